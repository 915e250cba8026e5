//! A server: several services, one on each worker thread.

use core::fmt;
use std::{
    any::Any,
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use windlass::{
    Backend, Reactor, Turn,
    stream::{Address, ListenOptions, Listener, RunningWorkers, StreamLimit, Worker, Workers},
};

use crate::{
    api::{Handler, Options, Stats},
    http::ConnectionLimiter,
    mailbox::{Sender, WorkerHandle, WorkerMailbox, WorkerQueue},
    service::{Service, WorkerLinks, memory_pool},
};

/// Subscribers of a worker's reactor other than its connections: listeners, the mailbox, and the
/// reactor's own.
const OTHER_SUBSCRIBERS: usize = 1024;

/// Serves WebSocket connections with one or more workers. Each worker is a thread with its own
/// reactor and handler. The kernel distributes the connections among them, and a publication
/// reaches the connections of all workers.
///
/// If a handler panics, its worker continues with the next turn. Only the connection that was being
/// served is lost.
///
/// ```
/// use std::time::Duration;
/// use windlass_server::{Connection, Handler, Message, Options, Server, http::{Reject, UpgradeRequest, Accept}};
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
    backend: Backend,
    targets: Vec<ListenTarget>,
    on_panic: Option<OnPanic>,
}

type OnPanic = Arc<dyn Fn(Worker, &(dyn Any + Send)) + Send + Sync>;

/// An address or socket to listen on.
enum ListenTarget {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Socket(OwnedFd),
    /// Separate sockets for each worker.
    Each(Vec<Vec<OwnedFd>>),
}

impl<H: Handler, F: Fn(Worker) -> H + Send + Sync + 'static> Server<F> {
    /// Creates a server. Each worker calls `make` on its own thread to create its handler.
    pub fn new(options: Options, make: F) -> Self {
        Self {
            options,
            make,
            count: 1,
            is_pinned: false,
            backend: Backend::Auto,
            targets: Vec::new(),
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

    /// Sets the backend of the workers' reactors. Default: [`Backend::Auto`]. [`RunningServer::backend`]
    /// returns the one chosen.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Listens at a TCP address. Port 0 selects a free port, the same for all workers. This method
    /// and the next two may be called several times.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.targets.push(ListenTarget::Tcp(address));
        self
    }

    /// Listens at a Unix socket path. The file must not exist; the application removes it
    /// afterwards.
    pub fn listen_unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.targets.push(ListenTarget::Unix(path.into()));
        self
    }

    /// Uses a socket that already listens, for instance one from the service manager.
    pub fn listen_on(mut self, socket: impl Into<OwnedFd>) -> Self {
        self.targets.push(ListenTarget::Socket(socket.into()));
        self
    }

    /// Uses sockets that already listen, some for each worker, such as `SO_REUSEPORT` groups opened
    /// elsewhere.
    ///
    /// # Panics
    /// [`start`](Self::start) panics unless there is one list for each worker.
    pub fn listen_on_each(mut self, sockets: Vec<Vec<OwnedFd>>) -> Self {
        self.targets.push(ListenTarget::Each(sockets));
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
    /// - The errors of [`ListenOptions::tcp`], `unix` and `from_fd`, and of [`Workers::start`].
    /// - That of a [`BuildError`](windlass::BuildError) if the backend is not available.
    ///
    /// # Panics
    /// With the panic of `make`.
    pub fn start(self) -> io::Result<RunningServer> {
        let Self { options, make, count, is_pinned, backend, targets, on_panic } = self;
        options.check()?;
        let (sets, addresses) = open_listeners(&options, targets, count)?;
        let (handles, setups, sender) = worker_setups(&options, sets, count)?;
        let handles: Arc<[Arc<WorkerHandle>]> = handles.into();
        let setups = Mutex::new(setups);
        let workers_left = Arc::new(AtomicUsize::new(count));
        let hook = move |worker: Worker, panic: Box<dyn Any + Send>| {
            if let Some(on_panic) = &on_panic {
                on_panic(worker, &*panic);
            }
        };
        let workers = Workers::new(count).pinned(is_pinned).named("windlass-server").on_panic(hook);
        let chosen_backend = Arc::new(OnceLock::new());
        let first_backend = Arc::clone(&chosen_backend);
        let start_worker = move |worker: Worker| {
            let setup = setups.lock().unwrap_or_else(PoisonError::into_inner)[worker.index].take();
            let setup = setup.ok_or(io::ErrorKind::NotFound)?;
            let reactor = setup.build_reactor(&options, backend, make(worker), &workers_left)?;
            // All workers use the same backend, so the first one sets the value.
            let _ = first_backend.set(reactor.backend());
            Ok(reactor)
        };
        let workers = workers.start(start_worker)?;
        let backend = chosen_backend.get().copied().unwrap_or(backend);
        Ok(RunningServer { workers, addresses, sender, handles, backend })
    }
}

/// Everything that a worker receives when it starts.
struct WorkerSetup {
    links: WorkerLinks,
    thread: Arc<OnceLock<thread::ThreadId>>,
    listeners: Vec<Listener>,
}

impl WorkerSetup {
    fn build_reactor<H: Handler>(
        self,
        options: &Options,
        backend: Backend,
        handler: H,
        workers_left: &Arc<AtomicUsize>,
    ) -> io::Result<Reactor> {
        // This runs on the worker's own thread, and the cell is set once.
        let _ = self.thread.set(thread::current().id());
        let max = options.connections_max.saturating_add(OTHER_SUBSCRIBERS);
        let mut reactor = Reactor::builder().backend(backend).subscribers_max(max).build()?;
        let service = Service::with_links(handler, options, self.links, &mut reactor)?;
        for listener in self.listeners {
            service.listen(listener, &mut reactor)?;
        }
        let workers_left = Arc::clone(workers_left);
        let drained = move |mut turn: Turn<'_>| {
            // A worker that ends stops the others, which may not be ready yet.
            if workers_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                turn.stop();
            }
        };
        service.0.state.drain_callbacks.set(vec![Box::new(drained)]);
        Ok(reactor)
    }
}

type WorkerSetups = (Vec<Arc<WorkerHandle>>, Vec<Option<WorkerSetup>>, Sender);

fn worker_setups(
    options: &Options,
    sets: Vec<Vec<Listener>>,
    count: usize,
) -> io::Result<WorkerSetups> {
    let mailboxes =
        (0..count).map(|_| WorkerMailbox::new(options)).collect::<io::Result<Vec<_>>>()?;
    let threads: Vec<_> = (0..count).map(|_| Arc::new(OnceLock::new())).collect();
    let queues = mailboxes
        .iter()
        .zip(&threads)
        .map(|(mailbox, thread)| WorkerQueue::new(mailbox.sender.clone(), thread));
    let sender = Sender::new(queues.collect());
    let handles: Vec<_> = mailboxes.iter().map(|mailbox| Arc::clone(&mailbox.handle)).collect();
    let memory_pool = memory_pool(options, count);
    memory_pool.set_workers(handles.clone());
    let senders: Vec<_> = mailboxes.iter().map(|mailbox| mailbox.sender.clone()).collect();
    let limiter =
        options.connections_per_address_max.map(|max| ConnectionLimiter::new(None, Some(max)));
    let mut setups = Vec::new();
    for (index, ((mailbox, thread), listeners)) in
        mailboxes.into_iter().zip(threads).zip(sets).enumerate()
    {
        let others = senders
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != index)
            .map(|(_, sender)| sender.clone());
        let worker = u16::try_from(index).map_err(io::Error::other)?;
        let (others, sender, limiter, memory_pool) =
            (others.collect(), sender.clone(), limiter.clone(), Arc::clone(&memory_pool));
        let links = WorkerLinks { worker, mailbox, others, sender, limiter, memory_pool };
        setups.push(Some(WorkerSetup { links, thread, listeners }));
    }
    Ok((handles, setups, sender))
}

/// Opens the listeners of each worker, and returns their addresses.
fn open_listeners(
    options: &Options,
    targets: Vec<ListenTarget>,
    count: usize,
) -> io::Result<(Vec<Vec<Listener>>, Vec<Address>)> {
    let listen = options.listener();
    // One limit for all workers: the kernel's distribution of connections decides each worker's
    // share.
    let limit = StreamLimit::new(options.connections_max);
    let mut sets: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for target in targets {
        let group = match target {
            ListenTarget::Tcp(address) => listen.tcp_group(address, count)?,
            ListenTarget::Unix(path) => {
                share_socket(listen, listen.unix(path)?.as_fd().try_clone_to_owned()?, count)?
            }
            ListenTarget::Socket(socket) => share_socket(listen, socket, count)?,
            ListenTarget::Each(sockets) => {
                assert_eq!(sockets.len(), count, "there is a list of sockets for each worker");
                for (worker, (set, sockets)) in sets.iter_mut().zip(sockets).enumerate() {
                    for socket in sockets {
                        let listener = listen.from_fd(socket)?;
                        if worker == 0 {
                            addresses.push(listener.local_addr()?);
                        }
                        set.push(listener.limited(&limit));
                    }
                }
                continue;
            }
        };
        addresses.push(group[0].local_addr()?);
        for (set, listener) in sets.iter_mut().zip(group) {
            set.push(listener.limited(&limit));
        }
    }
    Ok((sets, addresses))
}

/// Shares one socket among all workers: the first to accept gets the connection.
fn share_socket(listen: ListenOptions, socket: OwnedFd, count: usize) -> io::Result<Vec<Listener>> {
    (0..count).map(|_| listen.from_fd(socket.try_clone()?)).collect()
}

impl<F> fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("workers", &self.count).finish_non_exhaustive()
    }
}

/// A running server. Dropping it ends all connections and waits for the workers.
#[must_use = "dropping it stops the server"]
pub struct RunningServer {
    workers: RunningWorkers,
    addresses: Vec<Address>,
    sender: Sender,
    handles: Arc<[Arc<WorkerHandle>]>,
    backend: Backend,
}

impl RunningServer {
    /// Returns the backend of the workers' reactors, never [`Backend::Auto`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the addresses where the server listens, in the order of the configuration calls.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns a sender, which reaches all connections from other threads.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Shuts the server down gracefully: see [`Service::drain`]. The workers end when the last
    /// connection is gone, or when `deadline` has passed. This call does not wait;
    /// [`join`](Self::join) does. [`drainer`](Self::drainer) provides the same call for other
    /// threads.
    pub fn drain(&self, deadline: Duration) {
        self.drainer().drain(deadline);
    }

    /// Returns a handle that drains the server from any thread, for instance from a signal's
    /// thread.
    #[must_use]
    pub fn drainer(&self) -> Drainer {
        Drainer(Arc::clone(&self.handles))
    }

    /// Ends the server immediately: connections are closed as by close(2). Does not wait.
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// Returns a handle for each worker that [stops](Self::stop) it from any thread.
    #[must_use]
    pub fn stops(&self) -> &[windlass::Stop] {
        self.workers.stops()
    }

    /// Returns the sum of all workers' counts, as of their last timeout scan, at max a second ago.
    /// After the workers have ended, the counts are exact; see [`stats_handle`](Self::stats_handle).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats_handle().stats()
    }

    /// Returns a handle to the counts that outlives the server.
    #[must_use]
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(Arc::clone(&self.handles))
    }

    /// Waits until all workers have ended, after [`drain`](Self::drain) or [`stop`](Self::stop), or
    /// because one has failed.
    ///
    /// # Errors
    /// The first error of a worker's loop.
    ///
    /// # Panics
    /// With the panic of the hook set by [`on_panic`](Server::on_panic).
    pub fn join(self) -> io::Result<()> {
        self.workers.join()
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Drains a server from any thread. `Clone`, `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct Drainer(Arc<[Arc<WorkerHandle>]>);

impl Drainer {
    /// See [`RunningServer::drain`].
    pub fn drain(&self, deadline: Duration) {
        for worker in self.0.iter() {
            worker.request_drain(deadline);
        }
    }
}

/// The counts of a server, on any thread. `Clone`, `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct StatsHandle(Arc<[Arc<WorkerHandle>]>);

impl StatsHandle {
    /// See [`RunningServer::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for worker in self.0.iter() {
            stats.add(&worker.stats());
        }
        stats
    }
}
