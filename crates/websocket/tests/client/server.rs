//! Servers on a thread of their own, at a port of the kernel's choice.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_rustls::TlsAcceptor;
use windlass_testkit::certificates::{client_config, server_config};
use windlass_websocket::{Answer, Config, Transport, WebSocket};

pub(crate) fn acceptor() -> TlsAcceptor {
    TlsAcceptor::from(Arc::new(server_config("localhost")))
}

/// A configuration of clients that trusts one authority: `ca` signed the server's certificate.
pub(crate) fn trusting(authority: &str) -> Arc<ClientConfig> {
    Arc::new(client_config(authority))
}

async fn echo<S: Transport>(stream: S) {
    let config = Config::new().protocols(["chat"]);
    let decide = |upgrade: &windlass_websocket::Upgrade<'_>| {
        let cookie = upgrade.request().path() == "/cookie";
        if cookie { Answer::accept().header("Set-Cookie", "a=b") } else { Answer::accept() }
    };
    // A client that does not trust the certificate is gone.
    let Ok(mut socket) = WebSocket::accept_with(stream, &config, decide).await else { return };
    while let Ok(Some(message)) = socket.recv().await {
        message.reply().expect("the connection is open");
    }
}

/// Calls a function with each connection, one after another, on a thread of its own.
pub(crate) fn on_each_connection(
    serve: impl AsyncFn(tokio::net::TcpStream) + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    listener.set_nonblocking(true).expect("it is a socket");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is good");
            loop {
                let (stream, _) = listener.accept().await.expect("it is accepted");
                serve(stream).await;
            }
        });
    });
    address
}

/// A server that echoes messages of any number of connections, one after another.
pub(crate) fn echo_server(tls: bool) -> SocketAddr {
    on_each_connection(async move |stream| match tls {
        false => echo(stream).await,
        true => {
            if let Ok(stream) = acceptor().accept(stream).await {
                echo(stream).await;
            }
        }
    })
}

/// Reads the head of a request.
pub(crate) async fn read_head_async(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a whole head"));
    }
    String::from_utf8(head).expect("text")
}

/// Reads the head of a request.
pub(crate) fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text")
}

/// A server that reads one request, answers with these bytes, and closes. The handle returns the
/// request.
pub(crate) fn answering(answer: &[u8]) -> (SocketAddr, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let answer = answer.to_vec();
    let handle = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("it is accepted");
        let head = read_head(&mut stream);
        stream.write_all(&answer).expect("the client reads");
        head
    });
    (address, handle)
}
