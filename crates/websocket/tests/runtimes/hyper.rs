//! A socket on a connection of hyper that was upgraded, with the handshake by hand.

use ::hyper::{
    Request, Response, StatusCode, body::Incoming, header, server::conn::http1,
    service::service_fn, upgrade::on,
};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use windlass_websocket::{Config, HyperIo, Role, WebSocket};

use crate::{
    ask, echo,
    tokio::{current_thread, streams},
};

/// Answers with 101, and echoes on what the connection becomes.
async fn upgrade(
    mut request: Request<Incoming>,
) -> Result<Response<Empty<&'static [u8]>>, ::hyper::Error> {
    let key = &request.headers()[header::SEC_WEBSOCKET_KEY];
    let accept = windlass_ws::handshake::accept_value(key.as_bytes()).expect("a good key");
    let upgraded = on(&mut request);
    tokio::task::spawn_local(async move {
        let stream = HyperIo::new(upgraded.await.expect("it is upgraded"));
        let mut socket = WebSocket::from_upgraded(stream, &[], Role::Server, &Config::new());
        echo(&mut socket).await.expect("a clean end");
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .body(Empty::new());
    Ok(response.expect("it is a response"))
}

#[test]
fn an_echo_on_an_upgraded_connection() {
    let local = tokio::task::LocalSet::new();
    current_thread().block_on(local.run_until(async {
        let (ours, theirs) = streams().await;
        let server = http1::Builder::new()
            .serve_connection(TokioIo::new(ours), service_fn(upgrade))
            .with_upgrades();
        let server = tokio::task::spawn_local(server);
        ask(theirs).await;
        server.await.expect("it runs").expect("the connection is good");
    }));
}
