//! Connections by URL.

use tokio::net::TcpStream;
use windlass_tungstenite::{
    client::IntoClientRequest,
    error::{Error, UrlError},
    handshake::client::{Request, Response},
    protocol::WebSocketConfig,
};

use crate::{
    Connector, MaybeTlsStream, WebSocketStream,
    tls::{self, host},
};

/// Opens a connection by URL, with default settings. `wss://` needs a feature for TLS.
///
/// # Errors
/// Those of the request, the connection and the response.
pub async fn connect_async<R>(
    request: R,
) -> Result<(WebSocketStream<MaybeTlsStream<TcpStream>>, Response), Error>
where
    R: IntoClientRequest + Unpin,
{
    connect_async_with_config(request, None, false).await
}

/// Opens a connection by URL. `disable_nagle` sets `TCP_NODELAY`, so that short messages are sent
/// at once.
///
/// # Errors
/// Those of the request, the connection and the response.
pub async fn connect_async_with_config<R>(
    request: R,
    config: Option<WebSocketConfig>,
    disable_nagle: bool,
) -> Result<(WebSocketStream<MaybeTlsStream<TcpStream>>, Response), Error>
where
    R: IntoClientRequest + Unpin,
{
    connect(request.into_client_request()?, config, disable_nagle, None).await
}

/// Opens a connection by URL, with TLS by this connector.
///
/// # Errors
/// Those of the request, the connection and the response.
#[cfg(feature = "__rustls-tls")]
pub async fn connect_async_tls_with_config<R>(
    request: R,
    config: Option<WebSocketConfig>,
    disable_nagle: bool,
    connector: Option<Connector>,
) -> Result<(WebSocketStream<MaybeTlsStream<TcpStream>>, Response), Error>
where
    R: IntoClientRequest + Unpin,
{
    connect(request.into_client_request()?, config, disable_nagle, connector).await
}

async fn connect(
    request: Request,
    config: Option<WebSocketConfig>,
    disable_nagle: bool,
    connector: Option<Connector>,
) -> Result<(WebSocketStream<MaybeTlsStream<TcpStream>>, Response), Error> {
    let host = host(&request)?;
    let port = match (request.uri().port_u16(), request.uri().scheme_str()) {
        (Some(port), _) => port,
        (None, Some("ws")) => 80,
        (None, Some("wss")) => 443,
        (None, _) => return Err(Error::Url(UrlError::UnsupportedUrlScheme)),
    };
    let stream = TcpStream::connect((&*host, port)).await?;
    if disable_nagle {
        stream.set_nodelay(true)?;
    }
    tls::client_async_tls_with_config(request, stream, config, connector).await
}
