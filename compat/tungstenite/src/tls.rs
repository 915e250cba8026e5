//! Clients on a stream that TLS may be needed on.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types::ServerName};

use crate::{
    client::{IntoClientRequest, client_with_config, uri_mode},
    error::{Error, Result, TlsError, UrlError},
    handshake::{
        HandshakeError,
        client::{ClientHandshake, Response},
    },
    protocol::{WebSocket, WebSocketConfig},
    stream::{MaybeTlsStream, Mode},
};

/// How a connection gets TLS.
#[non_exhaustive]
#[allow(missing_debug_implementations, reason = "the interface has none")]
pub enum Connector {
    /// It gets none: `wss://` is an error.
    Plain,
    /// By rustls, with this configuration.
    Rustls(Arc<ClientConfig>),
}

type TlsHandshakeError<S> = HandshakeError<ClientHandshake<MaybeTlsStream<S>>>;

/// Makes the handshake of a client on this stream, with TLS if the URL asks for it.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn client_tls<R, S>(
    request: R,
    stream: S,
) -> Result<(WebSocket<MaybeTlsStream<S>>, Response), TlsHandshakeError<S>>
where
    R: IntoClientRequest,
    S: Read + Write,
{
    client_tls_with_config(request, stream, None, None)
}

/// Like [`client_tls`], with settings. Without a connector, rustls trusts the root certificates
/// that the crate's features choose.
///
/// # Errors
/// [`HandshakeError::Interrupted`] if the stream is not ready.
pub fn client_tls_with_config<R, S>(
    request: R,
    stream: S,
    config: Option<WebSocketConfig>,
    connector: Option<Connector>,
) -> Result<(WebSocket<MaybeTlsStream<S>>, Response), TlsHandshakeError<S>>
where
    R: IntoClientRequest,
    S: Read + Write,
{
    let request = request.into_client_request()?;
    let host = request.uri().host().ok_or(Error::Url(UrlError::NoHostName))?;
    let stream = match (uri_mode(request.uri())?, connector) {
        (Mode::Plain, _) => MaybeTlsStream::Plain(stream),
        (Mode::Tls, Some(Connector::Plain)) => {
            return Err(Error::Url(UrlError::TlsFeatureNotEnabled).into());
        }
        (Mode::Tls, Some(Connector::Rustls(tls))) => with_tls(tls, host, stream)?,
        (Mode::Tls, None) => with_tls(default_config()?, host, stream)?,
    };
    client_with_config(request, stream, config)
}

fn with_tls<S: Read + Write>(
    config: Arc<ClientConfig>,
    host: &str,
    stream: S,
) -> Result<MaybeTlsStream<S>> {
    // An IPv6 address stands in brackets in a URL alone.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = ServerName::try_from(host).map_err(|_| TlsError::InvalidDnsName)?.to_owned();
    let session = ClientConnection::new(config, name).map_err(TlsError::from)?;
    Ok(MaybeTlsStream::Rustls(StreamOwned::new(session, stream)))
}

/// The configuration of connections without a [`Connector`].
///
/// # Errors
/// If the system has no root certificates.
pub fn default_config() -> Result<Arc<ClientConfig>> {
    #[allow(unused_mut, reason = "without a feature for roots there is none")]
    let mut roots = RootCertStore::empty();
    #[cfg(feature = "rustls-tls-webpki-roots")]
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    #[cfg(feature = "rustls-tls-native-roots")]
    {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let text = format!("the system has no root certificates: {:?}", found.errors);
            return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, text)));
        }
    }
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}
