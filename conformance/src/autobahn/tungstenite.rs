//! The server under test is tokio-tungstenite on windlass-task, on a thread of this process.
//!
//! The suite's cases then use the streams of windlass-task as such a library does: in parts of any
//! size, both ways at once, and until the end of each direction.

use std::{io, net::SocketAddr, sync::mpsc, thread, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::accept_async;
use windlass::{Backend, Reactor};
use windlass_task::{
    Executor,
    cancel::Cancel,
    net::{TcpListener, TcpStream},
    spawn,
    time::timeout,
};

/// How long a connection that was ended here waits for the end of the suite's side.
const END_MAX: Duration = Duration::from_secs(5);

/// A running server.
#[derive(Debug)]
pub(super) struct EchoServer {
    pub(super) address: SocketAddr,
    stop: Cancel,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl EchoServer {
    /// Starts a server on the backend of this name.
    pub(super) fn start(backend: &str) -> Result<Self> {
        let backend: Backend = backend.parse().with_context(|| format!("backend {backend}"))?;
        let (started, is_started) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let reactor = Reactor::builder().backend(backend);
            Executor::builder().reactor(reactor).build()?.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let stop = Cancel::new();
                // It fails if nobody waits for this server any more.
                let _ = started.send((listener.local_addr()?, stop.clone()));
                spawn(async move { accept(listener).await }).detach();
                stop.cancelled().await;
                Ok(())
            })
        });
        match is_started.recv() {
            Ok((address, stop)) => Ok(Self { address, stop, thread }),
            Err(_) => Err(ended(thread).map_or_else(|error| error, |()| anyhow!("it has ended"))),
        }
    }

    /// Stops it. Returns its error, or that it has panicked.
    pub(super) fn stop(self) -> Result<()> {
        self.stop.cancel();
        ended(self.thread)
    }
}

fn ended(thread: thread::JoinHandle<io::Result<()>>) -> Result<()> {
    let outcome = thread.join().map_err(|_| anyhow!("the server has panicked"))?;
    outcome.context("the server has failed")
}

async fn accept(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        spawn(echo(stream)).detach();
    }
}

/// Echoes messages until the end, or the first violation of the protocol.
async fn echo(stream: TcpStream) {
    let Ok(mut socket) = accept_async(stream).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            break;
        }
    }
    // A close with unread bytes would reset the connection, and the suite lose what it has not
    // read yet.
    let mut stream = socket.into_inner();
    let end = async {
        stream.shutdown().await?;
        while stream.read(&mut [0; 4096]).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(END_MAX, end).await;
}
