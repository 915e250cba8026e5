//! hypercorn, a server in Python, on HTTP/2. The tests are skipped where it is missing.

use tokio::{net::TcpStream, spawn};
use windlass_testkit::{certificates::certificate, hypercorn::Hypercorn};
use windlass_websocket::{Config, DeflateConfig};

use crate::bed::{Stream, client_http2, close, converse, open, run, tls_client};

async fn several_sockets(stream: impl Stream, scheme: &str) {
    let config = Config::new().deflate(DeflateConfig::DEFAULT);
    let mut sender = client_http2(stream).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let mut socket = open(&mut sender, scheme, "/", &config).await;
        assert!(socket.has_compression());
        tasks.push(spawn(async move {
            converse(&mut socket).await;
            socket
        }));
    }
    let mut sockets = Vec::new();
    for task in tasks {
        sockets.push(task.await.expect("the echo is right"));
    }
    // hypercorn 0.18 fails with a `KeyError`, and its connection with it, when it receives the
    // empty DATA frame that ends a closed socket's stream. So only one is closed, and last.
    close(sockets.remove(0)).await;
}

#[test]
fn it_serves_several_sockets_in_cleartext() {
    let Some(server) = Hypercorn::start("hypercorn::it_serves_several_sockets_in_cleartext", &[])
    else {
        return;
    };
    run(async {
        let stream = TcpStream::connect(server.address).await.expect("it listens");
        several_sockets(stream, "http").await;
    });
}

#[test]
fn it_serves_several_sockets_with_tls() {
    let files = ["pem", "key"].map(|kind| certificate(&format!("localhost.{kind}")));
    let Some(server) = Hypercorn::start("hypercorn::it_serves_several_sockets_with_tls", &files)
    else {
        return;
    };
    run(async {
        let stream = TcpStream::connect(server.address).await.expect("it listens");
        let stream = tls_client(stream).await;
        several_sockets(stream, "https").await;
    });
}
