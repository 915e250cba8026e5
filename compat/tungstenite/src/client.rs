//! Functions that open connections.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
};

use http::{HeaderName, HeaderValue, Uri, header::SEC_WEBSOCKET_PROTOCOL};

use crate::{
    error::{Error, Result, UrlError},
    handshake::{
        HandshakeError,
        client::{ClientHandshake, Request, Response, generate_key},
        server::from_head,
    },
    protocol::{WebSocket, WebSocketConfig},
    stream::{MaybeTlsStream, Mode},
};

/// A socket that was opened by URL, and the response.
type Connected = (WebSocket<MaybeTlsStream<TcpStream>>, Response);

/// Opens a connection by URL, and blocks meanwhile. Follows up to `max_redirects` redirections.
/// `wss://` needs a feature for TLS.
///
/// # Errors
/// [`UrlError::UnableToConnect`] if no address of the host can be reached; those of the handshake.
pub fn connect_with_config<Req: IntoClientRequest>(
    request: Req,
    config: Option<WebSocketConfig>,
    max_redirects: u8,
) -> Result<(WebSocket<MaybeTlsStream<TcpStream>>, Response)> {
    let mut request = request.into_client_request()?;
    for _ in 0..max_redirects {
        match connect_once(request.clone(), config) {
            Err(Error::Http(response)) if response.status().is_redirection() => {
                let Some(location) = response.headers().get("Location") else {
                    return Err(Error::Http(response));
                };
                *request.uri_mut() = location.to_str()?.parse()?;
            }
            result => return result,
        }
    }
    connect_once(request, config)
}

fn connect_once(request: Request, config: Option<WebSocketConfig>) -> Result<Connected> {
    let uri = request.uri();
    let mode = uri_mode(uri)?;
    if matches!(mode, Mode::Tls) && cfg!(not(feature = "__rustls-tls")) {
        return Err(Error::Url(UrlError::TlsFeatureNotEnabled));
    }
    let host = uri.host().ok_or(Error::Url(UrlError::NoHostName))?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = uri.port_u16().unwrap_or(match mode {
        Mode::Plain => 80,
        Mode::Tls => 443,
    });
    let mut addresses = (host, port).to_socket_addrs()?;
    let stream = addresses
        .find_map(|address| TcpStream::connect(address).ok())
        .ok_or_else(|| Error::Url(UrlError::UnableToConnect(uri.to_string())))?;
    stream.set_nodelay(true)?;
    #[cfg(feature = "__rustls-tls")]
    let result = crate::tls::client_tls_with_config(request, stream, config, None);
    #[cfg(not(feature = "__rustls-tls"))]
    let result = client_with_config(request, MaybeTlsStream::Plain(stream), config);
    result.map_err(|error| match error {
        HandshakeError::Failure(error) => error,
        // Only a stream that does not block interrupts it.
        HandshakeError::Interrupted(_) => Error::Io(std::io::ErrorKind::WouldBlock.into()),
    })
}

/// Opens a connection by URL, with default settings, and blocks meanwhile. Follows up to three
/// redirections.
///
/// # Errors
/// Those of [`connect_with_config`].
pub fn connect<Req: IntoClientRequest>(
    request: Req,
) -> Result<(WebSocket<MaybeTlsStream<TcpStream>>, Response)> {
    connect_with_config(request, None, 3)
}

/// Whether this URL asks for TLS.
///
/// # Errors
/// [`UrlError::UnsupportedUrlScheme`] unless it is `ws://` or `wss://`.
pub fn uri_mode(uri: &Uri) -> Result<Mode> {
    match uri.scheme_str() {
        Some("ws") => Ok(Mode::Plain),
        Some("wss") => Ok(Mode::Tls),
        _ => Err(Error::Url(UrlError::UnsupportedUrlScheme)),
    }
}

/// Makes the handshake of a client on this stream.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn client_with_config<Stream, Req>(
    request: Req,
    stream: Stream,
    config: Option<WebSocketConfig>,
) -> Result<(WebSocket<Stream>, Response), HandshakeError<ClientHandshake<Stream>>>
where
    Stream: Read + Write,
    Req: IntoClientRequest,
{
    ClientHandshake::start(stream, request.into_client_request()?, config)?.handshake()
}

/// Makes the handshake of a client on this stream, with default settings.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn client<Stream, Req>(
    request: Req,
    stream: Stream,
) -> Result<(WebSocket<Stream>, Response), HandshakeError<ClientHandshake<Stream>>>
where
    Stream: Read + Write,
    Req: IntoClientRequest,
{
    client_with_config(request, stream, None)
}

/// Something that a client's request is made of. A URL becomes a complete one; a [`Request`] stays
/// as it is.
pub trait IntoClientRequest {
    /// The request.
    ///
    /// # Errors
    /// It is no URL with a host.
    fn into_client_request(self) -> Result<Request>;
}

impl IntoClientRequest for &str {
    fn into_client_request(self) -> Result<Request> {
        self.parse::<Uri>()?.into_client_request()
    }
}

impl IntoClientRequest for &String {
    fn into_client_request(self) -> Result<Request> {
        self.as_str().into_client_request()
    }
}

impl IntoClientRequest for String {
    fn into_client_request(self) -> Result<Request> {
        self.as_str().into_client_request()
    }
}

impl IntoClientRequest for &Uri {
    fn into_client_request(self) -> Result<Request> {
        self.clone().into_client_request()
    }
}

impl IntoClientRequest for Uri {
    fn into_client_request(self) -> Result<Request> {
        let authority = self.authority().ok_or(Error::Url(UrlError::NoHostName))?.as_str();
        // Without a user and a password.
        let host = authority.split_once('@').map_or(authority, |(_, host)| host);
        if host.is_empty() {
            return Err(Error::Url(UrlError::EmptyHostName));
        }
        let request = Request::builder()
            .header("Host", host)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key());
        Ok(request.uri(self).body(())?)
    }
}

#[cfg(feature = "url")]
impl IntoClientRequest for &url::Url {
    fn into_client_request(self) -> Result<Request> {
        self.as_str().into_client_request()
    }
}

#[cfg(feature = "url")]
impl IntoClientRequest for url::Url {
    fn into_client_request(self) -> Result<Request> {
        self.as_str().into_client_request()
    }
}

impl IntoClientRequest for Request {
    fn into_client_request(self) -> Result<Request> {
        Ok(self)
    }
}

impl IntoClientRequest for httparse::Request<'_, '_> {
    fn into_client_request(self) -> Result<Request> {
        from_head(&self)
    }
}

/// A request for a URL, with more headers and with subprotocols.
///
/// ```no_run
/// use windlass_tungstenite::{ClientRequestBuilder, connect, http::Uri};
///
/// let url = Uri::from_static("ws://localhost:3012/chat");
/// let request = ClientRequestBuilder::new(url).with_header("X-Room", "7");
/// let request = request.with_sub_protocol("chat");
/// let (socket, response) = connect(request)?;
/// # Ok::<(), windlass_tungstenite::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientRequestBuilder {
    uri: Uri,
    headers: Vec<(String, String)>,
    protocols: Vec<String>,
}

impl ClientRequestBuilder {
    /// A request for this URL.
    #[must_use]
    pub const fn new(uri: Uri) -> Self {
        Self { uri, headers: Vec::new(), protocols: Vec::new() }
    }

    /// Adds a header.
    pub fn with_header<K, V>(mut self, key: K, value: V) -> Self
    where
        K: Into<String>,
        V: Into<String>,
    {
        self.headers.push((key.into(), value.into()));
        self
    }

    /// Offers a subprotocol.
    pub fn with_sub_protocol<P>(mut self, protocol: P) -> Self
    where
        P: Into<String>,
    {
        self.protocols.push(protocol.into());
        self
    }
}

impl IntoClientRequest for ClientRequestBuilder {
    fn into_client_request(self) -> Result<Request> {
        let mut request = self.uri.into_client_request()?;
        let headers = request.headers_mut();
        for (name, value) in self.headers {
            headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        }
        if !self.protocols.is_empty() {
            headers.append(SEC_WEBSOCKET_PROTOCOL, self.protocols.join(", ").try_into()?);
        }
        Ok(request)
    }
}
