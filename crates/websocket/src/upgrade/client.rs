//! The client's side.

use std::fmt;

use hyper::{HeaderMap, Request, Response, Version, header::HeaderName};
#[cfg(feature = "http2")]
use hyper::{Method, Uri};
use windlass_ws::handshake::{
    ClientRequest, HandshakeError, HeadLimits, Request as RequestHead, RequestError, accept_value,
};

use super::{Upgrading, head};
use crate::{Config, Role, WebSocket, handshake::Accepted, upgrade::UpgradedIo};

/// A client's handshake by way of hyper's client: it makes the request, and checks the response.
///
/// ```no_run
/// # async fn connect(
/// #     mut sender: hyper::client::conn::http1::SendRequest<String>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_websocket::{ClientRequest, Config, upgrade::ClientUpgrade};
///
/// let config = Config::new();
/// let request = ClientRequest::new("example.com", "/chat", config.random_key());
/// let upgrade = ClientUpgrade::new(request, &config);
/// let response = sender.send_request(upgrade.http1_request()?).await?;
/// let mut socket = upgrade.finish(response).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ClientUpgrade<'a> {
    request: ClientRequest<'a>,
    config: Config,
}

/// Why a client's handshake failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The request is invalid. Nothing was sent.
    Request(RequestError),
    /// The server's response does not accept the request.
    Response(HandshakeError),
    /// The connection has failed.
    Hyper(hyper::Error),
}

impl<'a> ClientUpgrade<'a> {
    /// A handshake with this request. permessage-deflate is offered if the configuration has it.
    #[must_use]
    pub fn new(request: ClientRequest<'a>, config: &Config) -> Self {
        #[cfg(feature = "deflate")]
        let request = match &config.settings().deflate {
            Some(deflate) => request.deflate(deflate),
            None => request,
        };
        Self { request, config: config.clone() }
    }

    /// The request for a connection of HTTP/1.1.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn http1_request<R: Default>(&self) -> Result<Request<R>, UpgradeError> {
        let (target, headers) = self.head(false)?;
        let mut request = Request::new(R::default());
        *request.uri_mut() = target.parse().map_err(|_| RequestError::Target)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// The extended CONNECT for a connection of HTTP/2 (RFC 8441 section 4). `scheme` is `http`
    /// or `https`.
    ///
    /// # Errors
    /// The request is invalid.
    #[cfg(feature = "http2")]
    pub fn http2_request<R: Default>(&self, scheme: &str) -> Result<Request<R>, UpgradeError> {
        let (target, mut headers) = self.head(true)?;
        let host = headers.remove(hyper::header::HOST).ok_or(RequestError::Host)?;
        let uri = Uri::builder().scheme(scheme).authority(host.as_bytes()).path_and_query(target);
        let mut request = Request::new(R::default());
        *request.uri_mut() = uri.build().map_err(|_| RequestError::Target)?;
        *request.method_mut() = Method::CONNECT;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
        Ok(request)
    }

    /// The target and the headers.
    fn head(&self, is_http2: bool) -> Result<(String, HeaderMap), UpgradeError> {
        let bytes = self.bytes()?;
        let request = parse(&bytes)?;
        let mut headers = HeaderMap::new();
        for line in request.headers() {
            let name = HeaderName::try_from(line.name).map_err(|_| RequestError::HeaderName)?;
            let is_left = is_http2 && name != hyper::header::HOST && head::is_http1_only(&name);
            if !is_left {
                let value = line.value.try_into().map_err(|_| RequestError::HeaderValue)?;
                headers.append(name, value);
            }
        }
        Ok((request.target().to_owned(), headers))
    }

    fn bytes(&self) -> Result<Vec<u8>, RequestError> {
        let mut bytes = Vec::new();
        self.request.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Checks the response, and returns the future of the socket. The response is borrowed: if it
    /// is not what was asked for, its body may say why.
    ///
    /// # Errors
    /// [`UpgradeError::Response`].
    pub fn check<B>(&self, response: &mut Response<B>) -> Result<Upgrading, UpgradeError> {
        let is_http2 = response.version() >= Version::HTTP_2;
        let request = self.bytes()?;
        let key = parse(&request)?.header_bytes("Sec-WebSocket-Key").unwrap_or_default();
        let accept = accept_value(key).filter(|_| is_http2);
        let status = response.status().as_u16();
        let bytes = head::response(status, response.headers(), accept.as_deref());
        let parsed = head::parse_response(&bytes)?;
        let negotiated = self.request.check(parsed)?;
        let accepted = Accepted {
            #[cfg(feature = "deflate")]
            agreement: negotiated.deflate,
            protocol: negotiated.protocol.map(Into::into),
        };
        let on_upgrade = hyper::upgrade::on(response);
        let (config, role) = (self.config.clone(), Role::Client);
        Ok(Upgrading { on_upgrade, config, role, accepted, is_http2 })
    }

    /// Checks the response, and waits for the socket.
    ///
    /// # Errors
    /// [`UpgradeError::Response`], [`UpgradeError::Hyper`].
    pub async fn finish<B>(
        &self,
        mut response: Response<B>,
    ) -> Result<WebSocket<UpgradedIo>, UpgradeError> {
        let upgrading = self.check(&mut response)?;
        // Its body holds nothing that the socket needs.
        drop(response);
        Ok(upgrading.await?)
    }
}

/// Reads a request that was written here.
fn parse(bytes: &[u8]) -> Result<RequestHead<'_>, RequestError> {
    let mut limits = HeadLimits::DEFAULT;
    (limits.head_bytes_max, limits.headers_max) = (bytes.len(), usize::from(u16::MAX));
    limits.target_bytes_max = bytes.len();
    let parsed = RequestHead::parse(bytes, &limits).ok().flatten();
    parsed.map(|(request, _)| request).ok_or(RequestError::HeaderValue)
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => write!(f, "the request is invalid: {error}"),
            Self::Response(error) => error.fmt(f),
            Self::Hyper(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for UpgradeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Request(error) => Some(error),
            Self::Response(error) => Some(error),
            Self::Hyper(error) => Some(error),
        }
    }
}

macro_rules! impl_from {
    ($($error:ty => $variant:ident),+) => {
        $(
            impl From<$error> for UpgradeError {
                fn from(error: $error) -> Self {
                    Self::$variant(error)
                }
            }
        )+
    };
}

impl_from!(RequestError => Request, HandshakeError => Response, hyper::Error => Hyper);
