//! windlass-tungstenite and windlass-tokio-tungstenite under test, in both roles: the first on
//! threads with blocking sockets, the second on tokio.

use std::{
    future::poll_fn,
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    pin::Pin,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use futures_core::Stream as _;
use futures_util::SinkExt as _;
use windlass_tokio_tungstenite::{accept_async_with_config, client_async_with_config};
use windlass_tungstenite::{
    Error, HandshakeError, Message, accept_with_config, client::client_with_config,
    protocol::WebSocketConfig,
};

use super::client::{finish, is_gone, wishes};
use super::suite::SILENCE_MAX;
use crate::echo_server::{END_MAX, EchoServer, end};

/// A crate with the interface of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Compat {
    /// windlass-tungstenite
    Tungstenite,
    /// windlass-tokio-tungstenite
    TokioTungstenite,
}

impl Compat {
    /// In the names of runs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tungstenite => "windlass-tungstenite",
            Self::TokioTungstenite => "windlass-tokio-tungstenite",
        }
    }
}

/// The settings of both roles, which are the defaults but for the compression. That is the one of
/// the engine's own client.
fn config(is_compressed: bool) -> Option<WebSocketConfig> {
    Some(WebSocketConfig::default().deflate(is_compressed.then(wishes)))
}

/// Starts the server under test.
pub(super) fn serve(tested: Compat, is_compressed: bool) -> Result<EchoServer> {
    match (tested, is_compressed) {
        (Compat::Tungstenite, true) => EchoServer::on_threads(|stream| answer(stream, true)),
        (Compat::Tungstenite, false) => EchoServer::on_threads(|stream| answer(stream, false)),
        (Compat::TokioTungstenite, true) => EchoServer::on_tokio(|it| answer_on_tokio(it, true)),
        (Compat::TokioTungstenite, false) => EchoServer::on_tokio(|it| answer_on_tokio(it, false)),
    }
}

/// Echoes messages until the end, or the first violation of the protocol.
fn answer(stream: TcpStream, is_compressed: bool) {
    let Ok(mut socket) = accept_with_config(stream, config(is_compressed)) else { return };
    while let Ok(message) = socket.read() {
        if is_data(&message) && socket.send(message).is_err() {
            break;
        }
    }
    // A close with unread bytes would reset the connection.
    let mut stream = socket.into_inner();
    let ended = stream.set_read_timeout(Some(END_MAX)).and(stream.shutdown(Shutdown::Write));
    if ended.is_ok() {
        let _ = io::copy(&mut stream, &mut io::sink());
    }
}

/// The same on tokio.
async fn answer_on_tokio(stream: tokio::net::TcpStream, is_compressed: bool) {
    let config = config(is_compressed);
    let Ok(mut socket) = accept_async_with_config(stream, config).await else { return };
    while let Some(Ok(message)) = poll_fn(|context| Pin::new(&mut socket).poll_next(context)).await
    {
        if is_data(&message) && socket.send(message).await.is_err() {
            break;
        }
    }
    let _ = tokio::time::timeout(END_MAX, end(socket.into_inner())).await;
}

fn is_data(message: &Message) -> bool {
    message.is_text() || message.is_binary()
}

/// Echoes every message that the suite sends on `path`, until the suite closes.
pub(super) fn echo(
    tested: Compat,
    is_compressed: bool,
    address: SocketAddr,
    path: &str,
) -> Result<()> {
    let url = format!("ws://{address}{path}");
    match tested {
        Compat::Tungstenite => ask(address, url, is_compressed),
        Compat::TokioTungstenite => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime
                .block_on(async {
                    let asked = ask_on_tokio(address, url, is_compressed);
                    tokio::time::timeout(SILENCE_MAX, asked).await
                })
                .context("the suite does not close")?
        }
    }
}

fn ask(address: SocketAddr, url: String, is_compressed: bool) -> Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let mut socket = match client_with_config(url, stream, config(is_compressed)) {
        Ok((socket, _)) => socket,
        Err(HandshakeError::Failure(error)) => return Err(error).context("the handshake"),
        Err(HandshakeError::Interrupted(_)) => bail!("the suite does not answer"),
    };
    loop {
        let done = match socket.read() {
            Ok(message) if is_data(&message) => socket.send(message),
            other => other.map(|_| ()),
        };
        if is_end(done)? {
            break;
        }
    }
    finish(io::copy(&mut socket.into_inner(), &mut io::sink()))
}

async fn ask_on_tokio(address: SocketAddr, url: String, is_compressed: bool) -> Result<()> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut socket, _) = client_async_with_config(url, stream, config(is_compressed)).await?;
    while let Some(received) = poll_fn(|context| Pin::new(&mut socket).poll_next(context)).await {
        let done = match received {
            Ok(message) if is_data(&message) => socket.send(message).await,
            other => other.map(|_| ()),
        };
        if is_end(done)? {
            break;
        }
    }
    finish(tokio::io::copy(&mut socket.into_inner(), &mut tokio::io::sink()).await)
}

/// Returns whether the connection has ended. The suite breaks the protocol, and disconnects before
/// it has read all frames; only other errors of the stream are the client's.
fn is_end(done: Result<(), Error>) -> Result<bool> {
    match done {
        Ok(()) => Ok(false),
        Err(Error::Io(error)) if !is_gone(&error) && error.kind() != io::ErrorKind::InvalidData => {
            Err(error).context("the stream has failed")
        }
        _ => Ok(true),
    }
}
