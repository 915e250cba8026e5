//! The settings of workers, and their start.

use core::{fmt, future::Future};
use std::{
    io,
    net::SocketAddr,
    os::fd::AsFd as _,
    panic::resume_unwind,
    sync::{Arc, mpsc},
    thread,
};

use windlass::stream::{ListenOptions, WORKERS_MAX, Worker};

use crate::{
    Executor, ExecutorBuilder,
    workers::{
        WorkerContext, Workers, WorkersHandle,
        handle::WorkerEntry,
        inbox::UnopenedInbox,
        run::{self, Parts, Report},
    },
};

/// Settings of [`Workers`]. Each method states its default.
///
/// ```
/// use windlass_task::{Executor, WorkerContext, Workers};
///
/// # fn main() -> std::io::Result<()> {
/// let workers = Workers::builder()
///     .count(2)
///     .pinned(true)
///     .name("echo")
///     .inbox_len_max(16)
///     .listen("127.0.0.1:0".parse().unwrap())
///     .executor(|| Executor::builder().spawns_max(16))
///     .start(|worker: WorkerContext| async move {
///         let listener = worker.take_listener()?;
///         worker.stopped().await;
///         listener.local_addr()
///     })?;
/// let address = workers.addresses()[0];
/// workers.stop();
/// for output in workers.join() {
///     assert_eq!(output.unwrap()?, address);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing runs before `start`"]
pub struct WorkersBuilder {
    count: usize,
    pinned: bool,
    name: String,
    inbox_len_max: usize,
    listen: Vec<SocketAddr>,
    executor: MakeExecutor,
}

type MakeExecutor = Arc<dyn Fn() -> ExecutorBuilder + Send + Sync>;

impl WorkersBuilder {
    pub(super) fn new() -> Self {
        Self {
            count: thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX),
            pinned: false,
            name: "windlass".to_owned(),
            inbox_len_max: 1024,
            listen: Vec::new(),
            executor: Arc::new(Executor::builder),
        }
    }

    /// The number of workers, from 1 to [`WORKERS_MAX`]. Default: the number of processors
    /// that this process may use ([`std::thread::available_parallelism`]).
    pub const fn count(mut self, count: usize) -> Self {
        self.count = count;
        self
    }

    /// Pins each thread to one of the processors that this process may use, one after the other
    /// (sched_setaffinity(2)). Default: off.
    #[doc(alias = "sched_setaffinity")]
    pub const fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// The name of the threads, followed by their index. Default: `windlass`.
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Maximum messages in the queue of each worker; at least 1. Default: 1024.
    pub fn inbox_len_max(mut self, count: usize) -> Self {
        self.inbox_len_max = count.max(1);
        self
    }

    /// Listens on a TCP address with one socket for each worker. The kernel distributes connections
    /// over them (`SO_REUSEPORT`, socket(7)). Port 0 chooses one port for all;
    /// [`Workers::addresses`] returns it. May be called several times. Default: none.
    ///
    /// A connection belongs to the worker whose listener the kernel has chosen, from the handshake
    /// on. When a listener is closed, the kernel resets the connections that wait in its backlog.
    /// So before a worker ends, it should serve them: [`TcpListener::into_backlog`]. A worker that
    /// panics loses its backlog. Where that matters, share one socket among all workers instead:
    /// bind it before, and give each worker a [`try_clone`](std::net::TcpListener::try_clone). All
    /// workers then wake for each connection. Since Linux 5.14, the kernel moves such connections
    /// to the other listeners if `net.ipv4.tcp_migrate_req` is 1.
    ///
    /// [`TcpListener::into_backlog`]: crate::net::TcpListener::into_backlog
    #[doc(alias = "SO_REUSEPORT")]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.push(address);
        self
    }

    /// The settings of the executors. The closure is called once on each worker's thread. Default:
    /// [`Executor::builder`].
    pub fn executor(mut self, make: impl Fn() -> ExecutorBuilder + Send + Sync + 'static) -> Self {
        self.executor = Arc::new(make);
        self
    }

    /// Starts the threads. Each runs the future that `make` returns on it, in a task, so the future
    /// need not be `Send`. It returns when all executors are built.
    ///
    /// # Errors
    /// The first error of a listener, of pinning, of starting a thread, or of an executor
    /// ([`windlass::BuildError`]). No future was made, and all threads have ended.
    ///
    /// # Panics
    /// If the number of workers is 0 or more than [`WORKERS_MAX`], if the name contains a NUL byte,
    /// or with the panic of the closure of [`executor`](Self::executor).
    pub fn start<T, M, F, Make>(self, make: Make) -> io::Result<Workers<T, M>>
    where
        T: Send + 'static,
        M: Send + 'static,
        F: Future<Output = T> + 'static,
        Make: Fn(WorkerContext<M>) -> F + Send + Sync + 'static,
    {
        let group = windlass::stream::Workers::new(self.count).pinned(self.pinned).list()?;
        let (mut listeners, addresses) = self.open_listeners()?;
        let make = Arc::new(make);
        let (report, reports) = mpsc::channel();
        let mut starting = Starting { threads: Vec::new(), senders: Vec::new(), go: Vec::new() };
        for worker in group {
            let (sender, inbox) = UnopenedInbox::new(self.inbox_len_max)?;
            let (go, may_go) = mpsc::channel();
            let listeners = std::mem::take(&mut listeners[worker.index]);
            let parts = Parts { worker, inbox, listeners, report: report.clone(), may_go };
            let (make, executor) = (Arc::clone(&make), Arc::clone(&self.executor));
            let body = move || run::work(parts, &*executor, make);
            let name = format!("{}-{}", self.name, worker.index);
            // If this fails, the threads so far end, because `starting` is dropped.
            starting.threads.push(thread::Builder::new().name(name).spawn(body)?);
            starting.senders.push(sender);
            starting.go.push(go);
        }
        drop(report);
        starting.finish(&reports, addresses)
    }

    /// The listeners of each worker, and their addresses.
    fn open_listeners(&self) -> io::Result<(Vec<Vec<std::net::TcpListener>>, Vec<SocketAddr>)> {
        let mut listeners: Vec<_> = (0..self.count).map(|_| Vec::new()).collect();
        let mut addresses = Vec::new();
        for address in &self.listen {
            let group = ListenOptions::new().tcp_group(*address, self.count)?;
            for (of_worker, listener) in listeners.iter_mut().zip(group) {
                let socket = listener.as_fd().try_clone_to_owned()?;
                of_worker.push(std::net::TcpListener::from(socket));
            }
            let first = listeners[0].last().expect("there is at least one worker");
            addresses.push(first.local_addr()?);
        }
        Ok((listeners, addresses))
    }
}

/// Threads that build their executors and then wait.
struct Starting<T: Send + 'static, M: Send + 'static> {
    threads: Vec<thread::JoinHandle<run::Outcome<T>>>,
    senders: Vec<windlass_flow::Sender<M>>,
    go: Vec<mpsc::Sender<WorkersHandle<M>>>,
}

impl<T: Send + 'static, M: Send + 'static> Starting<T, M> {
    /// Protocol 1.
    fn finish(
        mut self,
        reports: &mpsc::Receiver<(Worker, io::Result<Report>)>,
        addresses: Vec<SocketAddr>,
    ) -> io::Result<Workers<T, M>> {
        let count = self.threads.len();
        let mut ready = Vec::new();
        for (worker, report) in reports.iter().take(count) {
            ready.push((worker.index, report?));
        }
        if ready.len() < count {
            // A thread has ended without a report, by a panic.
            self.go.clear();
            let ends: Vec<_> = self.threads.drain(..).map(thread::JoinHandle::join).collect();
            match ends.into_iter().find_map(Result::err) {
                Some(payload) => resume_unwind(payload),
                None => return Err(io::Error::other("a worker has ended before its start")),
            }
        }
        ready.sort_unstable_by_key(|(index, _)| *index);
        let senders = self.senders.drain(..);
        let entry = |(sender, (_, report)): (_, (usize, Report))| WorkerEntry {
            sender,
            stop: Default::default(),
            remote: report.remote,
            spawner: report.spawner,
            is_finished: Default::default(),
            last: Default::default(),
        };
        let handle = WorkersHandle::new(senders.zip(ready).map(entry).collect());
        for go in self.go.drain(..) {
            // The thread is blocked in receiving this, so it cannot have ended.
            let _ = go.send(handle.clone());
        }
        let threads = std::mem::take(&mut self.threads);
        Ok(Workers { threads, handle, addresses })
    }
}

impl<T: Send + 'static, M: Send + 'static> Drop for Starting<T, M> {
    fn drop(&mut self) {
        // Threads that wait see that nobody will let them go.
        self.go.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for WorkersBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, pinned, name, inbox_len_max, listen, .. } = self;
        f.debug_struct("WorkersBuilder")
            .field("count", count)
            .field("pinned", pinned)
            .field("name", name)
            .field("inbox_len_max", inbox_len_max)
            .field("listen", listen)
            .finish_non_exhaustive()
    }
}
