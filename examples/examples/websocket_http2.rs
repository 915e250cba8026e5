//! Two WebSockets over one connection of HTTP/2 (RFC 8441), in cleartext: server and client.
//!
//! Run `cargo run --example websocket_http2`. The server answers each text with the path of the
//! socket before it.
//!
//! It shows:
//! - A server needs `server_settings` and `upgrade`, and answers requests on the same connection.
//! - A client awaits the server's settings first, which say that it accepts WebSockets. Then each
//!   `connect` opens a stream of the same connection.
//! - Sockets have windows of their own: one that is not read stops no other one.

use std::{convert::Infallible, error::Error};

use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http2::{Builder as ClientBuilder, SendRequest},
    server::conn::http2::Builder as ServerBuilder,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use windlass_websocket::{
    ClientRequest, CloseCode, Config, WebSocket,
    http2::{client_settings, connect, server_settings, watch},
    upgrade::{UpgradedIo, Upgrading, upgrade},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The WebSockets and requests of a connection at a time.
const STREAMS_MAX: u32 = 16;

async fn serve(listener: TcpListener) -> Result<()> {
    let mut builder = ServerBuilder::new(TokioExecutor::new());
    server_settings(&mut builder, STREAMS_MAX);
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = builder.serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn answer(
    mut request: Request<Incoming>,
) -> std::result::Result<Response<String>, Infallible> {
    let path = request.uri().path().to_owned();
    if path == "/" {
        return Ok(Response::new("every other path is a WebSocket\n".to_owned()));
    }
    Ok(match upgrade(&mut request, &Config::new()) {
        Ok((response, upgrading)) => {
            tokio::spawn(async move {
                if let Err(error) = talk(&path, upgrading).await {
                    eprintln!("{path}: {error}");
                }
            });
            response
        }
        Err(refused) => refused.into_response(),
    })
}

async fn talk(path: &str, upgrading: Upgrading) -> Result<()> {
    let mut socket = upgrading.await?;
    while let Some(message) = socket.recv().await? {
        let answer = format!("{path}: {}", message.as_str().unwrap_or("(binary)"));
        socket.send(answer).await?;
    }
    Ok(())
}

/// Opens a connection, and runs it in a task.
async fn open(stream: TcpStream) -> Result<SendRequest<String>> {
    stream.set_nodelay(true)?;
    let mut builder = ClientBuilder::new(TokioExecutor::new());
    client_settings(&mut builder, STREAMS_MAX);
    let (stream, settings) = watch(TokioIo::new(stream));
    let (sender, connection) = builder.handshake(stream).await?;
    tokio::spawn(connection);
    match settings.await? {
        true => Ok(sender),
        false => Err("this server accepts no WebSockets over HTTP/2".into()),
    }
}

async fn socket(sender: &mut SendRequest<String>, path: &str) -> Result<WebSocket<UpgradedIo>> {
    let config = Config::new();
    let request = ClientRequest::new("localhost", path, config.random_key());
    Ok(connect(sender, "http", request, &config).await?)
}

async fn ask(socket: &mut WebSocket<UpgradedIo>, text: &str) -> Result<String> {
    socket.send(text).await?;
    let answer = socket.recv().await?.ok_or("the server has closed")?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

async fn run(listener: TcpListener) -> Result<[String; 2]> {
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    tokio::spawn(serve(listener));
    let mut sender = open(stream).await?;
    let (mut news, mut chat) =
        (socket(&mut sender, "/news").await?, socket(&mut sender, "/chat").await?);
    // Both are open at the same time.
    let (one, other) = tokio::join!(ask(&mut news, "hello"), ask(&mut chat, "hello"));
    let answers = [one?, other?];
    for mut socket in [news, chat] {
        socket.close(CloseCode::NORMAL, "").await?;
    }
    Ok(answers)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    for answer in run(TcpListener::bind("127.0.0.1:0").await?).await? {
        println!("{answer}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_sockets_and_a_request_share_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            // The only connection: what is opened later would wait forever.
            let (stream, _) = listener.accept().await.unwrap();
            let mut builder = ServerBuilder::new(TokioExecutor::new());
            server_settings(&mut builder, STREAMS_MAX);
            builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await
        });
        let mut sender = open(TcpStream::connect(address).await.unwrap()).await.unwrap();
        let mut news = socket(&mut sender, "/news").await.unwrap();
        let mut chat = socket(&mut sender, "/chat").await.unwrap();
        assert_eq!(ask(&mut chat, "one").await.unwrap(), "/chat: one");
        assert_eq!(ask(&mut news, "two").await.unwrap(), "/news: two");
        let request = Request::get("http://localhost/").body(String::new()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
        assert_eq!(ask(&mut chat, "three").await.unwrap(), "/chat: three");
    }

    #[tokio::test]
    async fn the_program_gets_an_answer_on_each_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert_eq!(run(listener).await.unwrap(), ["/news: hello", "/chat: hello"]);
    }
}
