//! A server: several services, one on each worker thread.

use core::fmt;
use std::{
    any::Any,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicUsize},
};

use windlass::{
    Backend, Reactor,
    stream::{TlsSessionFactory, Worker, Workers},
};

use super::{
    listeners::{ListenTarget, ServerListener, open_listeners},
    reconfigurer::Reconfigurer,
    running::RunningServer,
    setup::{WorkerSetups, worker_setups},
};
use crate::{
    api::{Options, StartError},
    bus::{Cluster, Node},
    handler::Handler,
    mailbox::StatsHandle,
};

/// Serves WebSocket connections with one or more workers. Each worker is a thread with its own
/// reactor and handler. The kernel distributes the connections among them, and a publication
/// reaches the connections of all workers.
///
/// If a handler panics, its worker continues with the next turn. Only the connection that was being
/// served is lost.
///
/// ```
/// use std::time::Duration;
/// use windlass_server::{
///     Connection, Handler, Message, Options, Server,
///     http::{Accept, Reject, UpgradeRequest},
/// };
///
/// struct Echo;
///
/// impl Handler for Echo {
///     type Data = ();
///
///     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
///         Ok(Accept::new(()))
///     }
///
///     fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
///         let _ = connection.reply_in_place(message);
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let running = Server::new(Options::new(), |_worker| Echo)
///     .workers(2)
///     .listen("127.0.0.1:0".parse().unwrap())
///     .start()?;
/// println!("listening on {}", running.addresses()[0]);
/// running.drain(Duration::from_secs(1));
/// running.join()
/// # }
/// ```
#[must_use = "nothing runs before `start`"]
pub struct Server<F> {
    options: Options,
    make: F,
    count: usize,
    is_pinned: bool,
    has_watchdog: bool,
    backend: Backend,
    targets: Vec<ServerListener>,
    pub(super) cluster: Option<Cluster>,
    on_panic: Option<OnPanic>,
}

type OnPanic = Arc<dyn Fn(Worker, &(dyn Any + Send)) + Send + Sync>;

impl<H: Handler, F: Fn(Worker) -> H + Send + Sync + 'static> Server<F> {
    /// Creates a server. Each worker calls `make` on its own thread to create its handler.
    pub fn new(options: Options, make: F) -> Self {
        Self {
            options,
            make,
            count: 1,
            is_pinned: false,
            has_watchdog: false,
            backend: Backend::Auto,
            targets: Vec::new(),
            cluster: None,
            on_panic: None,
        }
    }

    /// Sets the number of workers. Default: one.
    ///
    /// # Panics
    /// If `count` is zero, or more than [`WORKERS_MAX`](windlass::stream::WORKERS_MAX).
    pub fn workers(mut self, count: usize) -> Self {
        // Panics if the number is out of range.
        let _ = Workers::new(count);
        self.count = count;
        self
    }

    /// Binds each worker thread to a CPU. See [`Workers::pinned`].
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.is_pinned = pinned;
        self
    }

    /// Measures the time of every handler, for the metric `windlass_handler_longest_seconds`.
    /// Default: no, because it reads the clock twice for each event. See
    /// [`Builder::watchdog`](windlass::Builder::watchdog).
    pub fn watchdog(mut self, on: bool) -> Self {
        self.has_watchdog = on;
        self
    }

    /// Sets the backend of the workers' reactors. Default: [`Backend::Auto`].
    /// [`RunningServer::backend`] returns the one chosen, and [`RunningServer::ring_error`] why
    /// [`Backend::UringOrEpoll`] has chosen epoll.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Listens at a TCP address. Port 0 selects a free port, the same for all workers. This method
    /// and the next two may be called several times.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.targets.push(ListenTarget::Tcp(address).into());
        self
    }

    /// Listens at a TCP address with TLS, for `https://` and `wss://`: short for
    /// `self.listen(address).with_tls(sessions)`.
    ///
    /// The server itself has no cryptography. `windlass-tls` makes the sessions:
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use windlass_server::{Options, Server};
    /// use windlass_tls::TlsAcceptor;
    /// # use windlass_server::{Connection, Handler, Message};
    /// # use windlass_server::http::{Accept, Reject, UpgradeRequest};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     type Data = ();
    /// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
    /// #         Ok(Accept::new(()))
    /// #     }
    /// #     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    /// # }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tls = TlsAcceptor::builder()
    ///     .certificate("cert.pem", "key.pem")
    ///     .alpn([b"http/1.1"])
    ///     .build()?;
    /// let running = Server::new(Options::new(), |_worker| Echo)
    ///     .listen("0.0.0.0:80".parse()?)
    ///     .listen_tls("0.0.0.0:443".parse()?, Arc::new(tls.clone()))
    ///     .start()?;
    /// // Later, from any thread, after the files have changed:
    /// tls.reload()?;
    /// # running.join()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen_tls(self, address: SocketAddr, sessions: Arc<dyn TlsSessionFactory>) -> Self {
        self.listen(address).with_tls(sessions)
    }

    /// Adds TLS to the sockets of the last call that added some: [`listen`](Self::listen),
    /// [`listen_unix`](Self::listen_unix), [`listen_on`](Self::listen_on) or
    /// [`listen_on_each`](Self::listen_on_each). So one server can have plain sockets and sockets
    /// with TLS. Let sockets with the same certificates share one `Arc`.
    ///
    /// # Panics
    /// If there was no such call.
    pub fn with_tls(mut self, sessions: Arc<dyn TlsSessionFactory>) -> Self {
        let last = self.targets.last_mut();
        last.expect("`with_tls` follows a call that adds sockets").tls = Some(sessions);
        self
    }

    /// Listens at a Unix socket path. The file must not exist; the application removes it
    /// afterwards.
    pub fn listen_unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.targets.push(ListenTarget::Unix(path.into()).into());
        self
    }

    /// Uses a socket that already listens, for instance one from the service manager.
    pub fn listen_on(mut self, socket: impl Into<OwnedFd>) -> Self {
        self.targets.push(ListenTarget::Socket(socket.into()).into());
        self
    }

    /// Uses sockets that already listen, some for each worker, such as `SO_REUSEPORT` groups opened
    /// elsewhere.
    ///
    /// # Panics
    /// [`start`](Self::start) panics unless there is one list for each worker.
    pub fn listen_on_each(mut self, sockets: Vec<Vec<OwnedFd>>) -> Self {
        self.targets.push(ListenTarget::Each(sockets).into());
        self
    }

    /// Sets a hook that is called for each panic of a handler, on its worker's thread, in addition
    /// to the process' panic hook. If the hook itself panics, the worker ends, and the server with
    /// it.
    pub fn on_panic(
        mut self,
        hook: impl Fn(Worker, &(dyn Any + Send)) + Send + Sync + 'static,
    ) -> Self {
        self.on_panic = Some(Arc::new(hook));
        self
    }

    /// Opens the sockets and starts the workers. Returns when all of them run.
    ///
    /// # Errors
    /// No thread is left running after an error.
    ///
    /// - [`OptionsError`](crate::OptionsError), with kind
    ///   [`InvalidInput`](io::ErrorKind::InvalidInput).
    /// - [`StartError`] if there is no socket to listen on, with the same kind.
    /// - [`ListenError`](crate::ListenError), which names the address, and the errors of
    ///   [`ListenOptions::from_fd`](windlass::stream::ListenOptions::from_fd).
    /// - The errors of [`Workers::start`].
    /// - That of a [`BuildError`](windlass::BuildError) if the backend is not available.
    ///
    /// # Panics
    /// With the panic of `make`.
    pub fn start(self) -> io::Result<RunningServer> {
        let Self { options, make, count, is_pinned, has_watchdog, backend, .. } = self;
        let Self { targets, on_panic, cluster, .. } = self;
        options.check()?;
        let (sets, addresses, limit) = open_listeners(&options, targets, count)?;
        if sets.iter().all(Vec::is_empty) {
            return Err(StartError::NoListener.into());
        }
        let node = cluster.map(Node::new);
        let WorkerSetups { handles, setups, sender, limiter, rates, memory_pool } =
            worker_setups(&options, sets, &limit, count, node.as_ref())?;
        if let Some(node) = node.clone() {
            // Also if the workers cannot be started.
            StatsHandle::new(Arc::clone(&handles), None).on_end(move || node.stop());
        }
        let reconfigurer = Reconfigurer {
            workers: Arc::clone(&handles),
            limit,
            limiter,
            rates,
            memory_pool,
            receiver_buffer_max: options.receiver_buffer_max,
            reject_when_full: options.reject_when_full,
        };
        let setups = Mutex::new(setups);
        let workers_left = Arc::new(AtomicUsize::new(count));
        let hook = move |worker: Worker, panic: Box<dyn Any + Send>| {
            if let Some(on_panic) = &on_panic {
                on_panic(worker, &*panic);
            }
        };
        let workers = Workers::new(count).pinned(is_pinned).named("wl-worker").on_panic(hook);
        let start_worker = move |worker: Worker| {
            let setup = setups.lock().unwrap_or_else(PoisonError::into_inner)[worker.index].take();
            let setup = setup.ok_or(io::ErrorKind::NotFound)?;
            let builder = Reactor::builder().backend(backend).watchdog(has_watchdog);
            setup.build_reactor(&options, builder, make(worker), &workers_left)
        };
        let workers = workers.start(start_worker)?;
        Ok(RunningServer { workers, addresses, sender, handles, node, reconfigurer })
    }
}

impl<F> fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("workers", &self.count).finish_non_exhaustive()
    }
}
