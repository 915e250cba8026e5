//! Echoes by URL, on each runtime, plain and over TLS. The host is a name with perhaps two
//! addresses, of which the server has one.

use windlass_websocket::{
    CloseCode,
    client::{AsyncIo, Client, ClientSocket, Runtime, Tokio},
};

use crate::server::{echo_server, trusting};

fn client(tls: bool) -> Client {
    let port = echo_server(tls).port();
    let scheme = if tls { "wss" } else { "ws" };
    let client = Client::new(&format!("{scheme}://localhost:{port}/"));
    if tls { client.tls(trusting("ca")) } else { client }
}

async fn ask<R: Runtime>(client: Client, runtime: R) {
    let mut socket: ClientSocket<R> = client.connect_on(runtime).await.expect("it is accepted");
    for text in ["", "hello", &"x".repeat(100_000)] {
        socket.send(text).await.expect("it is open");
        let echo = socket.recv().await.expect("it is good").expect("an echo");
        assert!(echo.as_str() == Some(text));
    }
    socket.close(CloseCode::NORMAL, "").await.expect("it is answered");
}

#[test]
fn an_echo_on_tokio() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    for tls in [false, true] {
        // The future is `Send`.
        let asking = runtime.spawn(ask(client(tls), Tokio));
        runtime.block_on(asking).expect("the client is good");
    }
}

#[test]
fn an_echo_on_async_io() {
    for tls in [false, true] {
        async_io::block_on(ask(client(tls), AsyncIo));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_echo_on_windlass_task() {
    for tls in [false, true] {
        windlass_task::block_on(ask(client(tls), windlass_websocket::client::WindlassTask));
    }
}
