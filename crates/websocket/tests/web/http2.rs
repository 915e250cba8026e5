//! HTTP/2 in both roles: RFC 8441.

use hyper::StatusCode;
use tokio::spawn;
use windlass_websocket::{
    ClientRequest, Config, DeflateConfig, HandshakeError,
    http2::connect,
    upgrade::{ClientUpgrade, UpgradeError},
};

use crate::bed::{Stream, ask, client_http2, echo, open, run, serve_http2, streams, tls_streams};

async fn several_sockets(ours: impl Stream, theirs: impl Stream, scheme: &str) {
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let server = spawn(serve_http2(ours, config.clone(), async |_, upgrading| {
        echo(upgrading.await.expect("it is upgraded")).await;
    }));
    let mut sender = client_http2(theirs).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let socket = open(&mut sender, scheme, "/", &config).await;
        assert!(socket.has_compression());
        assert!(socket.get_ref().is_http2());
        tasks.push(spawn(ask(socket)));
    }
    for task in tasks {
        task.await.expect("the echo is right");
    }
    drop(sender);
    server.await.expect("it runs").expect("the connection is good");
}

#[test]
fn several_sockets_on_one_connection_in_cleartext() {
    run(async {
        let (ours, theirs) = streams().await;
        several_sockets(ours, theirs, "http").await;
    });
}

#[test]
fn several_sockets_on_one_connection_with_tls() {
    run(async {
        let (ours, theirs) = tls_streams().await;
        several_sockets(ours, theirs, "https").await;
    });
}

#[test]
fn a_refused_socket_leaves_the_connection_to_the_others() {
    run(async {
        let (ours, theirs) = streams().await;
        let config = Config::new().hosts(["localhost"]);
        spawn(serve_http2(ours, config.clone(), async |_, upgrading| {
            echo(upgrading.await.expect("it is upgraded")).await;
        }));
        let mut sender = client_http2(theirs).await;
        let request = ClientRequest::new("elsewhere", "/", [0; 16]);
        let refused = connect(&mut sender, "http", request, &config).await;
        let is_status = |error: &UpgradeError| {
            matches!(error, UpgradeError::Response(HandshakeError::Status(421)))
        };
        assert!(refused.is_err_and(|error| is_status(&error)));
        // The response can be read.
        let request = ClientRequest::new("elsewhere", "/", [0; 16]);
        let upgrade = ClientUpgrade::new(request, &config);
        let request = upgrade.http2_request("http").expect("a good request");
        let mut response = sender.send_request(request).await.expect("a response");
        assert!(upgrade.check(&mut response).is_err_and(|error| is_status(&error)));
        assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
        ask(open(&mut sender, "http", "/", &config).await).await;
    });
}
