//! WebSockets over HTTP/2 (RFC 8441), by hyper (feature `http2`).
//!
//! Each WebSocket is a stream of a connection, beside other WebSockets and requests. A server
//! answers the extended CONNECT with [`upgrade`](crate::upgrade::upgrade()), as it answers the GET
//! of HTTP/1.1.
//!
//! # Back-pressure
//!
//! A socket that is not read stops its peer when the window of its stream is full, and holds so
//! much. The connection has a window too, which its streams share: if it is too small, a socket
//! that is not read stops the others. [`server_settings`] and [`client_settings`] make it large
//! enough for all of them. hyper's own defaults do not: the window of a server's connection is as
//! large as that of one stream.
//!
//! A socket whose peer does not read holds at most its output ([`Config::high_watermark`] and a
//! message, [`Config::answers_max`]), four pieces of 32 KiB on the way to hyper, and
//! [`STREAM_WINDOW`] bytes in hyper.

mod settings;

use hyper::{
    body::Body,
    client::conn::http2::{Builder as ClientBuilder, SendRequest},
    server::conn::http2::Builder as ServerBuilder,
};

use crate::{
    ClientRequest, Config, WebSocket,
    upgrade::{ClientUpgrade, UpgradeError, UpgradedIo},
};

pub use settings::{ServerSettings, Watched, watch};

/// The window of one stream, in bytes: how much its peer may send that nobody has read.
pub const STREAM_WINDOW: u32 = 64 << 10;

/// The largest window of a connection (RFC 9113 section 6.9.1).
const CONNECTION_WINDOW_MAX: u32 = (1 << 31) - 1;

fn connection_window(streams_max: u32) -> u32 {
    STREAM_WINDOW.saturating_mul(streams_max).clamp(STREAM_WINDOW, CONNECTION_WINDOW_MAX)
}

/// Has a server's connections accept up to `streams_max` WebSockets and requests at a time, none of
/// which stops another one. It is for `windlass-http` as well: `server.http2_mut()`.
///
/// A connection then holds at most `streams_max` times [`STREAM_WINDOW`] bytes that nobody has
/// read.
pub fn server_settings<E>(builder: &mut ServerBuilder<E>, streams_max: u32) {
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(streams_max)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(streams_max))
        .max_send_buf_size(STREAM_WINDOW as usize);
}

/// Prepares a client's connections for up to `streams_max` WebSockets and requests at a time, none
/// of which stops another one.
pub fn client_settings<E: Clone>(builder: &mut ClientBuilder<E>, streams_max: u32) {
    builder
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(streams_max))
        .max_send_buf_size(STREAM_WINDOW as usize);
}

/// Opens a WebSocket on a connection of hyper's client. `scheme` is `http` or `https`, as the
/// connection is without or with TLS. The key of the request is not sent. A client must know that
/// the server accepts WebSockets (RFC 8441 section 3): see [`watch`].
///
/// ```no_run
/// # async fn connect(
/// #     mut sender: hyper::client::conn::http2::SendRequest<String>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_websocket::{ClientRequest, Config, http2};
///
/// let config = Config::new();
/// let request = ClientRequest::new("example.com", "/chat", config.random_key());
/// let mut socket = http2::connect(&mut sender, "https", request, &config).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`UpgradeError`].
pub async fn connect<B: Body + Default + 'static>(
    sender: &mut SendRequest<B>,
    scheme: &str,
    request: ClientRequest<'_>,
    config: &Config,
) -> Result<WebSocket<UpgradedIo>, UpgradeError> {
    let upgrade = ClientUpgrade::new(request, config);
    let request = upgrade.http2_request(scheme)?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    upgrade.finish(response).await
}
