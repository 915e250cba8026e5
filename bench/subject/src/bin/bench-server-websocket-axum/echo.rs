//! An echo in axum, the same for both extractors: only the import differs.

use std::future::Future;

use axum::{Router, response::Response, routing::any};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;

use super::extractor::{Message, WebSocket, WebSocketUpgrade};

/// A router that gives each socket to the echo.
pub(crate) fn router<C, F>(echo: C) -> Router
where
    C: Fn(WebSocket) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let handler = async move |upgrade: WebSocketUpgrade| -> Response { upgrade.on_upgrade(echo) };
    Router::new().route("/", any(handler))
}

pub(crate) async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Text(_) | Message::Binary(_) = message
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
}

/// Serves a connection as `axum::serve` does.
pub(crate) async fn serve(stream: TcpStream, router: Router) {
    let (stream, service) = (TokioIo::new(stream), TowerToHyperService::new(router));
    let mut server = Builder::new(TokioExecutor::new());
    server.http2().enable_connect_protocol();
    // A client that disconnects before its upgrade is ignored.
    let _ = server.serve_connection_with_upgrades(stream, service).await;
}
