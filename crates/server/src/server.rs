//! A server: several services, one a worker thread.

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

/// Subscribers of a worker's reactor beside its connections: listeners, the mailbox, and the
/// reactor's own.
const OTHER_SUBSCRIBERS: usize = 1024;

/// Serves WebSocket connections with one or more workers, each a thread with a reactor and a
/// handler of its own. The kernel spreads the connections over them, and a publication reaches
/// those of all.
///
/// A worker whose handler panics goes on with the next turn: only the connection that was being
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

/// Where to listen.
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Socket(OwnedFd),
    /// Those of each worker.
    Each(Vec<Vec<OwnedFd>>),
}

impl<H: Handler, F: Fn(Worker) -> H + Send + Sync + 'static> Server<F> {
    /// A server whose workers each have a handler that `make` makes, on the worker's own thread.
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

    /// How many workers there are. Default: one.
    ///
    /// # Panics
    /// With none, or more than [`WORKERS_MAX`](windlass::stream::WORKERS_MAX).
    pub fn workers(mut self, count: usize) -> Self {
        // It says so if the number is wrong.
        let _ = Workers::new(count);
        self.count = count;
        self
    }

    /// Binds each worker to a processor. See [`Workers::pinned`].
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.is_pinned = pinned;
        self
    }

    /// What the workers' reactors run on. Default: [`Backend::Auto`]. Which one it came to be,
    /// [`Running::backend`] says.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Listens at a TCP address; port 0 is a free one, the same for all workers. May be called
    /// several times, as may the next two.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.places.push(Place::Tcp(address));
        self
    }

    /// Listens at a path. The file must not be there; who runs the server removes it.
    pub fn listen_unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.places.push(Place::Unix(path.into()));
        self
    }

    /// Takes a socket that listens already: one from the service manager, say.
    pub fn listen_on(mut self, socket: impl Into<OwnedFd>) -> Self {
        self.places.push(Place::Socket(socket.into()));
        self
    }

    /// Takes sockets that listen already, some for each worker: groups of `SO_REUSEPORT` that
    /// somebody else has opened.
    ///
    /// # Panics
    /// [`start`](Self::start) panics unless there is one list for each worker.
    pub fn listen_on_each(mut self, sockets: Vec<Vec<OwnedFd>>) -> Self {
        self.places.push(Place::Each(sockets));
        self
    }

    /// What is told of each panic of a handler, on its worker's thread, beside what the process'
    /// panic hook does. If it panics itself, the worker ends, and the server with it.
    pub fn on_panic(
        mut self,
        hook: impl Fn(Worker, &(dyn Any + Send)) + Send + Sync + 'static,
    ) -> Self {
        self.on_panic = Some(Arc::new(hook));
        self
    }

    /// Opens the sockets and starts the workers. It returns when all of them run.
    ///
    /// # Errors
    /// [`OptionsError`](crate::OptionsError), with [`InvalidInput`](io::ErrorKind::InvalidInput).
    /// What [`ListenOptions::tcp`], `unix` and `from_fd` say, and [`Workers::start`]; that of a
    /// [`BuildError`](windlass::BuildError) where the backend is not to be had. No thread is left
    /// then.
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
            // All workers get the same, or the first that is there speaks for them.
            let _ = chosen.set(reactor.backend());
            Ok(reactor)
        };
        let workers = workers.start(set_up)?;
        let backend = at_work.get().copied().unwrap_or(backend);
        Ok(Running { workers, addresses, sender, boards, backend })
    }
}

/// What a worker is given on its way.
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
        // This is the worker's own thread, and it is set once.
        let _ = self.thread.set(thread::current().id());
        let most = options.connections_max.saturating_add(OTHER_SUBSCRIBERS);
        let mut reactor = Reactor::builder().backend(backend).subscribers_max(most).build()?;
        let service = Service::at_post(handler, options, self.post, &mut reactor)?;
        for listener in self.listeners {
            service.listen(listener, &mut reactor)?;
        }
        let left = Arc::clone(left);
        let drained = move |mut turn: Turn<'_>| {
            // A worker that ends stops the others, who may not be ready.
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

/// The listeners of each worker, and where they listen.
fn open(
    options: &Options,
    places: Vec<Place>,
    count: usize,
) -> io::Result<(Vec<Vec<Listener>>, Vec<Address>)> {
    let listen = options.listener();
    // One for all: how the kernel spreads the connections decides who uses how much of it.
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

/// One socket for all workers: whoever comes first takes the connection.
fn share(listen: ListenOptions, socket: OwnedFd, count: usize) -> io::Result<Vec<Listener>> {
    (0..count).map(|_| listen.from_fd(socket.try_clone()?)).collect()
}

impl<F> fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("workers", &self.count).finish_non_exhaustive()
    }
}

/// A server that runs. Dropping it ends all connections and waits for the workers.
#[must_use = "dropping it stops the server"]
pub struct Running {
    workers: RunningWorkers,
    addresses: Vec<Address>,
    sender: Sender,
    boards: Arc<[Arc<Board>]>,
    backend: Backend,
}

impl Running {
    /// What the workers' reactors run on: never [`Backend::Auto`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Where it listens, in the order in which that was said.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What reaches all connections from other threads.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Shuts the server down gracefully: see [`Service::drain`]. The workers end when the last
    /// connection has gone, or `deadline` is over. Does not wait: [`join`](Self::join) does. From
    /// any thread by [`drainer`](Self::drainer).
    pub fn drain(&self, deadline: Duration) {
        self.drainer().drain(deadline);
    }

    /// What drains the server from any thread: that of a signal, say.
    #[must_use]
    pub fn drainer(&self) -> Drainer {
        Drainer(Arc::clone(&self.boards))
    }

    /// Ends the server at once: connections are closed as close(2) does. Does not wait.
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// A handle for each worker, to [stop](Self::stop) it from anywhere.
    #[must_use]
    pub fn stops(&self) -> &[windlass::Stop] {
        self.workers.stops()
    }

    /// What all workers have counted, up to their last look at timeouts: at most a second ago. When
    /// they have ended it is exact; see [`counts`](Self::counts).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counts().stats()
    }

    /// What has the counts, for longer than the server runs.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts(Arc::clone(&self.boards))
    }

    /// Waits until all workers have ended: after [`drain`](Self::drain) or [`stop`](Self::stop), or
    /// because one has failed.
    ///
    /// # Errors
    /// The first error of a worker's loop.
    ///
    /// # Panics
    /// With the panic of a hook that was to be told of panics.
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
