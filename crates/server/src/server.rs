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
    Handler, Options, Sender, Service, Stats,
    http::PlaceCounter,
    inbox::{Board, Inbox},
    sender::Gate,
    service::{self, Post},
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
    places: Vec<Place>,
    on_panic: Option<OnPanic>,
}

type OnPanic = Arc<dyn Fn(Worker, &(dyn Any + Send)) + Send + Sync>;

/// An address or socket to listen on.
enum Place {
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
            places: Vec::new(),
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

    /// Sets the backend of the workers' reactors. Default: [`Backend::Auto`]. [`Running::backend`]
    /// returns the one chosen.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Listens at a TCP address. Port 0 selects a free port, the same for all workers. This method
    /// and the next two may be called several times.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.places.push(Place::Tcp(address));
        self
    }

    /// Listens at a Unix socket path. The file must not exist; the application removes it
    /// afterwards.
    pub fn listen_unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.places.push(Place::Unix(path.into()));
        self
    }

    /// Uses a socket that already listens, for instance one from the service manager.
    pub fn listen_on(mut self, socket: impl Into<OwnedFd>) -> Self {
        self.places.push(Place::Socket(socket.into()));
        self
    }

    /// Uses sockets that already listen, some for each worker, such as `SO_REUSEPORT` groups opened
    /// elsewhere.
    ///
    /// # Panics
    /// [`start`](Self::start) panics unless there is one list for each worker.
    pub fn listen_on_each(mut self, sockets: Vec<Vec<OwnedFd>>) -> Self {
        self.places.push(Place::Each(sockets));
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
    pub fn start(self) -> io::Result<Running> {
        let Self { options, make, count, is_pinned, backend, places, on_panic } = self;
        options.check()?;
        let (sets, addresses) = open(&options, places, count)?;
        let (desks, posts, sender) = posts(&options, sets, count)?;
        let boards: Arc<[Arc<Board>]> = desks.into();
        let posts = Mutex::new(posts);
        let left = Arc::new(AtomicUsize::new(count));
        let hook = move |worker: Worker, panic: Box<dyn Any + Send>| {
            if let Some(on_panic) = &on_panic {
                on_panic(worker, &*panic);
            }
        };
        let workers = Workers::new(count).pinned(is_pinned).named("windlass-server").on_panic(hook);
        let at_work = Arc::new(OnceLock::new());
        let chosen = Arc::clone(&at_work);
        let set_up = move |worker: Worker| {
            let desk = posts.lock().unwrap_or_else(PoisonError::into_inner)[worker.index].take();
            let desk = desk.ok_or(io::ErrorKind::NotFound)?;
            let reactor = desk.set_up(&options, backend, make(worker), &left)?;
            // All workers use the same backend, so the first one sets the value.
            let _ = chosen.set(reactor.backend());
            Ok(reactor)
        };
        let workers = workers.start(set_up)?;
        let backend = at_work.get().copied().unwrap_or(backend);
        Ok(Running { workers, addresses, sender, boards, backend })
    }
}

/// Everything that a worker receives when it starts.
struct Desk {
    post: Post,
    thread: Arc<OnceLock<thread::ThreadId>>,
    listeners: Vec<Listener>,
}

impl Desk {
    fn set_up<H: Handler>(
        self,
        options: &Options,
        backend: Backend,
        handler: H,
        left: &Arc<AtomicUsize>,
    ) -> io::Result<Reactor> {
        // This runs on the worker's own thread, and the cell is set once.
        let _ = self.thread.set(thread::current().id());
        let most = options.connections_max.saturating_add(OTHER_SUBSCRIBERS);
        let mut reactor = Reactor::builder().backend(backend).subscribers_max(most).build()?;
        let service = Service::at_post(handler, options, self.post, &mut reactor)?;
        for listener in self.listeners {
            service.listen(listener, &mut reactor)?;
        }
        let left = Arc::clone(left);
        let drained = move |mut turn: Turn<'_>| {
            // A worker that ends stops the others, which may not be ready yet.
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                turn.stop();
            }
        };
        service.0.hall.after_drain.set(vec![Box::new(drained)]);
        Ok(reactor)
    }
}

type Desks = (Vec<Arc<Board>>, Vec<Option<Desk>>, Sender);

fn posts(options: &Options, sets: Vec<Vec<Listener>>, count: usize) -> io::Result<Desks> {
    let inboxes = (0..count).map(|_| Inbox::new(options)).collect::<io::Result<Vec<_>>>()?;
    let threads: Vec<_> = (0..count).map(|_| Arc::new(OnceLock::new())).collect();
    let gates =
        inboxes.iter().zip(&threads).map(|(inbox, thread)| Gate::new(inbox.sender.clone(), thread));
    let sender = Sender::new(gates.collect());
    let boards: Vec<_> = inboxes.iter().map(|inbox| Arc::clone(&inbox.board)).collect();
    let pool = service::pool(options, count);
    pool.set_boards(boards.clone());
    let outlets: Vec<_> = inboxes.iter().map(|inbox| inbox.sender.clone()).collect();
    let places =
        options.connections_per_address_max.map(|most| PlaceCounter::new(None, Some(most)));
    let mut desks = Vec::new();
    for (index, ((inbox, thread), listeners)) in
        inboxes.into_iter().zip(threads).zip(sets).enumerate()
    {
        let others = outlets
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != index)
            .map(|(_, outlet)| outlet.clone());
        let worker = u16::try_from(index).map_err(io::Error::other)?;
        let (others, sender, places, pool) =
            (others.collect(), sender.clone(), places.clone(), Arc::clone(&pool));
        let post = Post { worker, inbox, others, sender, places, pool };
        desks.push(Some(Desk { post, thread, listeners }));
    }
    Ok((boards, desks, sender))
}

/// Opens the listeners of each worker, and returns their addresses.
fn open(
    options: &Options,
    places: Vec<Place>,
    count: usize,
) -> io::Result<(Vec<Vec<Listener>>, Vec<Address>)> {
    let listen = options.listener();
    // One limit for all workers: the kernel's distribution of connections decides each worker's
    // share.
    let limit = StreamLimit::new(options.connections_max);
    let mut sets: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for place in places {
        let group = match place {
            Place::Tcp(address) => listen.tcp_group(address, count)?,
            Place::Unix(path) => {
                share(listen, listen.unix(path)?.as_fd().try_clone_to_owned()?, count)?
            }
            Place::Socket(socket) => share(listen, socket, count)?,
            Place::Each(sockets) => {
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
fn share(listen: ListenOptions, socket: OwnedFd, count: usize) -> io::Result<Vec<Listener>> {
    (0..count).map(|_| listen.from_fd(socket.try_clone()?)).collect()
}

impl<F> fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("workers", &self.count).finish_non_exhaustive()
    }
}

/// A running server. Dropping it ends all connections and waits for the workers.
#[must_use = "dropping it stops the server"]
pub struct Running {
    workers: RunningWorkers,
    addresses: Vec<Address>,
    sender: Sender,
    boards: Arc<[Arc<Board>]>,
    backend: Backend,
}

impl Running {
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
        Drainer(Arc::clone(&self.boards))
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

    /// Returns the sum of all workers' counts, as of their last timeout scan, at most a second ago.
    /// After the workers have ended, the counts are exact; see [`counts`](Self::counts).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counts().stats()
    }

    /// Returns a handle to the counts that outlives the server.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts(Arc::clone(&self.boards))
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

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Drains a server from any thread. `Clone`, `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct Drainer(Arc<[Arc<Board>]>);

impl Drainer {
    /// See [`Running::drain`].
    pub fn drain(&self, deadline: Duration) {
        for board in self.0.iter() {
            board.ask_for_drain(deadline);
        }
    }
}

/// The counts of a server, on any thread. `Clone`, `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct Counts(Arc<[Arc<Board>]>);

impl Counts {
    /// See [`Running::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for board in self.0.iter() {
            stats.add(&board.stats());
        }
        stats
    }
}
