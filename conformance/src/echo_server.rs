//! An echo server on a thread of this process, on one of the async runtimes, or with a thread for
//! each connection.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use windlass::{Backend, Reactor};
use windlass_task::{Executor, cancel::Cancel};

/// How long a connection that was ended here waits for the end of the suite's side.
pub(crate) const END_MAX: Duration = Duration::from_secs(5);

/// A running server.
pub(crate) struct EchoServer {
    pub(crate) address: SocketAddr,
    stop: Box<dyn FnOnce()>,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl fmt::Debug for EchoServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EchoServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl EchoServer {
    /// Starts a server on windlass-task, on the backend of this name.
    pub(crate) fn on_task<F>(
        backend: &str,
        serve: fn(windlass_task::net::TcpStream) -> F,
    ) -> Result<Self>
    where
        F: Future<Output = ()> + 'static,
    {
        use windlass_task::{net::TcpListener, spawn};
        let backend: Backend = backend.parse().with_context(|| format!("backend {backend}"))?;
        let stop = Cancel::new();
        let stopped = stop.clone();
        Self::start(Box::new(move || stop.cancel()), move |started| {
            let reactor = Reactor::builder().backend(backend);
            Executor::builder().reactor(reactor).build()?.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                // It fails if nobody waits for this server any more.
                let _ = started.send(listener.local_addr()?);
                let accept = async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        if stream.set_nodelay(true).is_ok() {
                            spawn(serve(stream)).detach();
                        }
                    }
                };
                spawn(accept).detach();
                stopped.cancelled().await;
                Ok(())
            })
        })
    }

    /// Starts a server on tokio's current-thread runtime.
    pub(crate) fn on_tokio<F>(serve: fn(tokio::net::TcpStream) -> F) -> Result<Self>
    where
        F: Future<Output = ()> + 'static,
    {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        // Dropping the sender stops it.
        Self::start(Box::new(move || drop(stop)), move |started| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
                let _ = started.send(listener.local_addr()?);
                let accept = async move {
                    loop {
                        let (stream, _) = listener.accept().await?;
                        stream.set_nodelay(true)?;
                        tokio::task::spawn_local(serve(stream));
                    }
                };
                tokio::select! {
                    ended = accept => ended,
                    _ = stopped => Ok(()),
                }
            })
        })
    }

    /// Starts a server with a thread for each connection, which blocks.
    pub(crate) fn on_threads(serve: fn(std::net::TcpStream)) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = {
            let is_stopped = Arc::clone(&is_stopped);
            move || {
                is_stopped.store(true, Ordering::SeqCst);
                // Ends the wait for a connection.
                drop(std::net::TcpStream::connect(address));
            }
        };
        Self::start(Box::new(stop), move |started| {
            // It fails if nobody waits for this server any more.
            let _ = started.send(address);
            loop {
                let (stream, _) = listener.accept()?;
                if is_stopped.load(Ordering::SeqCst) {
                    return Ok(());
                }
                stream.set_nodelay(true)?;
                thread::spawn(move || serve(stream));
            }
        })
    }

    fn start(
        stop: Box<dyn FnOnce()>,
        run: impl FnOnce(mpsc::SyncSender<SocketAddr>) -> io::Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (started, is_started) = mpsc::sync_channel(1);
        let thread = thread::spawn(move || run(started));
        match is_started.recv() {
            Ok(address) => Ok(Self { address, stop, thread }),
            Err(_) => Err(ended(thread).map_or_else(|error| error, |()| anyhow!("it has ended"))),
        }
    }

    /// Stops it. Returns its error, or that it has panicked.
    pub(crate) fn stop(self) -> Result<()> {
        (self.stop)();
        ended(self.thread)
    }
}

fn ended(thread: thread::JoinHandle<io::Result<()>>) -> Result<()> {
    let outcome = thread.join().map_err(|_| anyhow!("the server has panicked"))?;
    outcome.context("the server has failed")
}

/// Ends writing, and discards what the suite still sends. A close with unread bytes would reset the
/// connection, and the suite lose what it has not read yet.
pub(crate) async fn end<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    stream.shutdown().await?;
    while stream.read(&mut [0; 4096]).await? > 0 {}
    Ok(())
}
