//! windlass-websocket under test, in both roles, on tokio and on windlass-task.
//!
//! The server lends its messages and sends them back in place. The client receives owned ones, and
//! waits until each is sent.

use std::{future::poll_fn, net::SocketAddr, pin::Pin};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use futures_core::Stream as _;
use tokio::io::{AsyncRead, AsyncWrite};
use windlass_task::Executor;
use windlass_websocket::{ClientRequest, Config, RecvError, SendError, WebSocket};

use super::client::{finish, is_gone, wishes};
use super::suite::{MESSAGE_MAX, SILENCE_MAX};
use crate::echo_server::{END_MAX, EchoServer, end};

/// The runtime under windlass-websocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Runtime {
    /// tokio, with one thread
    Tokio,
    /// windlass-task
    Task,
}

impl Runtime {
    /// In the names of runs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::Task => "task",
        }
    }
}

/// The settings of both roles. The compression is that of the engine's own client.
fn config() -> Config {
    Config::new().frame_max(MESSAGE_MAX).message_max(MESSAGE_MAX).deflate(wishes())
}

/// Starts the server under test.
pub(super) fn serve(runtime: Runtime, backend: &str) -> Result<EchoServer> {
    match runtime {
        Runtime::Tokio => EchoServer::on_tokio(|stream| async {
            if let Some(stream) = answer(stream).await {
                let _ = tokio::time::timeout(END_MAX, end(stream)).await;
            }
        }),
        Runtime::Task => EchoServer::on_task(backend, |stream| async {
            if let Some(stream) = answer(stream).await {
                let _ = windlass_task::time::timeout(END_MAX, end(stream)).await;
            }
        }),
    }
}

/// Echoes messages until the end, or the first violation of the protocol. Returns the stream if the
/// handshake succeeded.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Option<S> {
    let mut socket = WebSocket::accept(stream, &config()).await.ok()?;
    while let Ok(Some(message)) = socket.recv().await {
        if message.reply().is_err() {
            break;
        }
    }
    Some(socket.into_inner().0)
}

/// Echoes every message that the suite sends on `path`, until the suite closes.
pub(super) fn echo(runtime: Runtime, address: SocketAddr, path: &str) -> Result<()> {
    const SILENT: &str = "the suite does not close";
    match runtime {
        Runtime::Tokio => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let stream = tokio::net::TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                tokio::time::timeout(SILENCE_MAX, ask(stream, address, path))
                    .await
                    .context(SILENT)?
            })
        }
        Runtime::Task => Executor::builder().build()?.block_on(async {
            let stream = windlass_task::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            windlass_task::time::timeout(SILENCE_MAX, ask(stream, address, path))
                .await
                .context(SILENT)?
        }),
    }
}

async fn ask<S>(stream: S, address: SocketAddr, path: &str) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (config, host) = (config(), address.to_string());
    let request = ClientRequest::new(&host, path, config.random_key());
    let mut socket = WebSocket::client(stream, request, &config).await?;
    while let Some(received) = poll_fn(|context| Pin::new(&mut socket).poll_next(context)).await {
        // The suite breaks the protocol, and disconnects before it has read all frames.
        match received {
            Ok(message) => match socket.send(message).await {
                Ok(()) | Err(SendError::Closed) => {}
                Err(SendError::Io(error)) if is_gone(&error) => break,
                Err(error) => return Err(error).context("cannot send"),
            },
            Err(RecvError::Io(error)) if !is_gone(&error) => {
                return Err(error).context("cannot receive");
            }
            Err(_) => break,
        }
    }
    finish(tokio::io::copy(&mut socket.into_inner().0, &mut tokio::io::sink()).await)
}
