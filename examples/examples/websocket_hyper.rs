//! A chat on hyper's connections: HTTP and WebSockets on one port, under tokio.
//!
//! Run `cargo run --example websocket_hyper -- 127.0.0.1:9021`. `GET /` is a page, and `/chat` a
//! chat: each text goes to all members.
//!
//! It shows:
//! - `upgrade` answers the handshake of a request of hyper, and gives the future of the socket. A
//!   request that is no handshake gets a response that says why.
//! - A member is one task. `recv` may be dropped after any poll, so it stands in `select!`.

use std::{convert::Infallible, error::Error, io};

use hyper::{
    Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::broadcast};
use windlass_websocket::{
    CloseCode, Config, DeflateConfig, Message,
    upgrade::{Upgrading, upgrade},
};

/// The messages that wait for a member at most.
const QUEUE_MAX: usize = 64;

const DEFLATE: DeflateConfig = DeflateConfig::DEFAULT;

async fn serve(listener: TcpListener) -> io::Result<()> {
    let room = broadcast::Sender::new(QUEUE_MAX);
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let room = room.clone();
        let service = service_fn(move |request| {
            let response = answer(request, &room);
            async { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

fn answer(mut request: Request<Incoming>, room: &broadcast::Sender<Message>) -> Response<String> {
    let mut response = Response::new(String::new());
    match request.uri().path() {
        "/" => *response.body_mut() = "connect to /chat\n".into(),
        "/chat" => match upgrade(&mut request, &Config::new().deflate(DEFLATE)) {
            Ok((accepted, upgrading)) => {
                let room = room.clone();
                tokio::spawn(async move {
                    if let Err(error) = member(upgrading, room).await {
                        eprintln!("a member: {error}");
                    }
                });
                return accepted;
            }
            Err(refused) => return refused.into_response(),
        },
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

/// Serves one member to its end.
async fn member(
    upgrading: Upgrading,
    room: broadcast::Sender<Message>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut socket = upgrading.await?;
    let mut texts = room.subscribe();
    loop {
        tokio::select! {
            received = socket.recv() => match received? {
                // It fails if there are no members, and this is one.
                Some(message) => _ = message.to_message().map(|message| room.send(message)),
                None => return Ok(()),
            },
            text = texts.recv() => match text {
                Ok(text) => socket.send(text).await?,
                // It has not read for too long, and messages are lost.
                Err(_) => return Ok(socket.close(CloseCode::POLICY_VIOLATION, "too slow").await?),
            },
        }
    }
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9021".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on http://{}/", listener.local_addr()?);
        serve(listener).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };
    use windlass_websocket::{ClientRequest, WebSocket};

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        tokio::spawn(serve(listener));
        address
    }

    async fn join(address: SocketAddr, config: &Config) -> WebSocket<TcpStream> {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let request = ClientRequest::new("localhost", "/chat", config.random_key());
        let mut socket = WebSocket::client(stream, request, config).await.expect("it accepts");
        // A member is there when its own text has come back.
        socket.send("here").await.expect("it reads");
        assert_eq!(next(&mut socket).await, "here");
        socket
    }

    async fn next(socket: &mut WebSocket<TcpStream>) -> String {
        let message = socket.recv().await.expect("the server is good").expect("a message");
        message.as_str().expect("it is text").to_owned()
    }

    #[tokio::test]
    async fn texts_go_to_all_members_compressed_or_not() {
        let address = start().await;
        let mut ann = join(address, &Config::new()).await;
        let mut bob = join(address, &Config::new().deflate(DEFLATE)).await;
        assert_eq!((ann.has_compression(), bob.has_compression()), (false, true));
        assert_eq!(next(&mut ann).await, "here", "of the other");
        let long = "as long as a compressed text should be ".repeat(20);
        for text in ["one", &long] {
            ann.send(text).await.expect("it reads");
            assert_eq!((next(&mut ann).await, next(&mut bob).await), (text.into(), text.into()));
        }
        bob.close(CloseCode::NORMAL, "").await.expect("it is answered");
    }

    #[tokio::test]
    async fn requests_and_invalid_handshakes_are_answered_on_the_same_port() {
        let address = start().await;
        for (head, status) in [
            ("GET / HTTP/1.1", "200 OK"),
            ("GET /chat HTTP/1.1", "426 Upgrade Required"),
            (
                "GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
                "400 Bad Request",
            ),
            ("GET /other HTTP/1.1", "404 Not Found"),
        ] {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            let request = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("it reads");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("it answers");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}: {answer}");
        }
    }
}
