//! Proxies that are reached over TLS.

use std::{future::pending, time::Duration};

use tokio::io::{copy_bidirectional, duplex};
use windlass_websocket::client::{AsyncIo, Client, ConnectError, Phase, Runtime, Tokio};

use crate::{
    fake::{Fake, paused},
    server::{acceptor, echo_server, on_each_connection, read_head_async, trusting},
};

/// A proxy with TLS, which connects to whatever CONNECT names.
fn proxy() -> String {
    let address = on_each_connection(async |stream| {
        // A client that does not trust the certificate is gone.
        let Ok(mut stream) = acceptor().accept(stream).await else { return };
        let head = read_head_async(&mut stream).await;
        let target = head.split(' ').nth(1).expect("CONNECT names a target");
        let mut server = tokio::net::TcpStream::connect(target).await.expect("it listens");
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 200 OK\r\n\r\n")
            .await
            .expect("the client reads");
        // It fails where one of the two ends its TLS roughly.
        let _ = copy_bidirectional(&mut stream, &mut server).await;
    });
    format!("https://localhost:{}", address.port())
}

fn client(tls: bool) -> Client {
    let scheme = if tls { "wss" } else { "ws" };
    let client = Client::new(&format!("{scheme}://localhost:{}/", echo_server(tls).port()));
    client.tls(trusting("ca")).proxy(&proxy())
}

async fn echo<R: Runtime>(client: Client, runtime: R) -> Result<bool, ConnectError> {
    let mut socket = client.connect_on(runtime).await?;
    let text = "x".repeat(100_000);
    socket.send(&*text).await.expect("it is open");
    let echo = socket.recv().await.expect("it is good").expect("an echo");
    assert!(echo.as_str() == Some(&*text));
    Ok(socket.get_ref().transport.tls_connection().is_some())
}

fn on_tokio<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

#[test]
fn a_proxy_over_tls_leads_to_servers_with_and_without_tls() {
    for tls in [false, true] {
        let client = || client(tls).proxy_tls(trusting("ca"));
        // Only TLS to the server counts as that of the connection.
        assert_eq!(on_tokio(echo(client(), Tokio)).expect("it is trusted"), tls);
        assert_eq!(async_io::block_on(echo(client(), AsyncIo)).expect("it is trusted"), tls);
    }
}

#[test]
fn the_proxy_and_the_server_are_trusted_apart() {
    let distrusted = on_tokio(echo(client(true).proxy_tls(trusting("other-ca")), Tokio));
    let error = distrusted.expect_err("its authority is another one");
    assert_eq!(error.phase(), Phase::Proxy);
    let text = "connecting through the proxy failed: the TLS handshake with the proxy failed: \
                invalid peer certificate: UnknownIssuer";
    assert_eq!(error.to_string(), text);
    let client = client(true).proxy_tls(trusting("ca")).tls(trusting("other-ca"));
    let error = on_tokio(echo(client, Tokio)).expect_err("the server's authority is another one");
    assert_eq!(error.phase(), Phase::Tls, "{error}");
}

#[test]
fn the_time_limit_of_the_phase_is_for_tls_and_the_answer_together() {
    paused(async {
        let fake = Fake::new(&["192.0.2.1:80"], |_| {
            let (ours, theirs) = duplex(1 << 16);
            tokio::spawn(async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                let _stream = acceptor().accept(theirs).await.expect("it is trusted");
                pending::<()>().await;
            });
            Box::pin(async { Ok(ours) })
        });
        let client = Client::new("ws://a.example").proxy("https://localhost");
        let client = client.proxy_tls(trusting("ca"));
        let client = client.time_limit(Phase::Proxy, Duration::from_secs(4));
        let (error, after) = fake.failure(client).await;
        assert_eq!(error.phase(), Phase::Proxy, "{error}");
        assert!((4000..4010).contains(&after), "after {after} ms");
    });
}
