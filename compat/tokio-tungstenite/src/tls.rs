//! Clients on a stream that TLS may be needed on.

use tokio::io::{AsyncRead, AsyncWrite};
use windlass_tungstenite::{
    client::{IntoClientRequest, uri_mode},
    error::{Error, UrlError},
    handshake::client::{Request, Response},
    protocol::WebSocketConfig,
    stream::Mode,
};

use crate::{MaybeTlsStream, WebSocketStream, handshake::client_async_with_config};

/// How a connection gets TLS.
#[non_exhaustive]
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "the interface has none")]
pub enum Connector {
    /// It gets none: `wss://` is an error.
    Plain,
    /// By rustls, with this configuration.
    #[cfg(feature = "__rustls-tls")]
    Rustls(std::sync::Arc<tokio_rustls::rustls::ClientConfig>),
}

/// The host of a request. An IPv6 address stands in brackets in a URL alone.
pub(crate) fn host(request: &Request) -> Result<String, Error> {
    let host = request.uri().host().ok_or(Error::Url(UrlError::NoHostName))?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Ok(inner.unwrap_or(host).to_owned())
}

/// Makes the handshake of a client on this stream, with TLS if the URL asks for it.
///
/// # Errors
/// Those of the request, TLS and the response.
#[cfg(feature = "__rustls-tls")]
pub async fn client_async_tls<R, S>(
    request: R,
    stream: S,
) -> Result<(WebSocketStream<MaybeTlsStream<S>>, Response), Error>
where
    R: IntoClientRequest + Unpin,
    S: 'static + AsyncRead + AsyncWrite + Send + Unpin,
    MaybeTlsStream<S>: Unpin,
{
    client_async_tls_with_config(request, stream, None, None).await
}

/// Like `client_async_tls`, with settings. Without a connector, rustls trusts the root certificates
/// that the crate's features choose.
///
/// # Errors
/// Those of the request, TLS and the response.
#[cfg_attr(
    not(feature = "__rustls-tls"),
    allow(unreachable_pub, reason = "without TLS it is for connect_async alone")
)]
pub async fn client_async_tls_with_config<R, S>(
    request: R,
    stream: S,
    config: Option<WebSocketConfig>,
    connector: Option<Connector>,
) -> Result<(WebSocketStream<MaybeTlsStream<S>>, Response), Error>
where
    R: IntoClientRequest + Unpin,
    S: 'static + AsyncRead + AsyncWrite + Send + Unpin,
    MaybeTlsStream<S>: Unpin,
{
    let request = request.into_client_request()?;
    let host = host(&request)?;
    let stream = match uri_mode(request.uri())? {
        Mode::Plain => MaybeTlsStream::Plain(stream),
        Mode::Tls => with_tls(stream, &host, connector).await?,
    };
    client_async_with_config(request, stream, config).await
}

#[cfg(not(feature = "__rustls-tls"))]
async fn with_tls<S>(_: S, _: &str, _: Option<Connector>) -> Result<MaybeTlsStream<S>, Error> {
    Err(Error::Url(UrlError::TlsFeatureNotEnabled))
}

#[cfg(feature = "__rustls-tls")]
async fn with_tls<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host: &str,
    connector: Option<Connector>,
) -> Result<MaybeTlsStream<S>, Error> {
    use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
    use windlass_tungstenite::error::TlsError;

    let config = match connector {
        Some(Connector::Plain) => return Err(Error::Url(UrlError::TlsFeatureNotEnabled)),
        Some(Connector::Rustls(config)) => config,
        None => windlass_tungstenite::__default_tls_config()?,
    };
    let name = ServerName::try_from(host).map_err(|_| TlsError::InvalidDnsName)?.to_owned();
    Ok(MaybeTlsStream::Rustls(TlsConnector::from(config).connect(name, stream).await?))
}
