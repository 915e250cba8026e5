//! Worker threads with one reactor each, so that a server uses several processors. The runtime
//! starts them.
//!
//! The workers share nothing. The kernel distributes connections over their listeners
//! (`SO_REUSEPORT`, socket(7)). A connection stays with its worker until it is closed.

use core::fmt;
use std::{any::Any, io, net::SocketAddr, panic::resume_unwind, sync::Arc, thread::JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{
    Backend, RingError, Stats, Stop,
    stream::{ListenOptions, Listener},
};

/// The maximum number of workers. It exceeds the processors of common machines.
pub const WORKERS_MAX: usize = 1024;

/// Threads with one reactor each.
///
/// ```
/// use std::sync::Mutex;
/// use windlass::{Reactor, stream::{ListenOptions, Workers}};
///
/// # fn main() -> std::io::Result<()> {
/// // Bound before the threads start: so a port of 0 is the same for all, and an error is met here.
/// let listeners = ListenOptions::new().tcp_group("127.0.0.1:0".parse().unwrap(), 2)?;
/// let listeners = Mutex::new(listeners);
/// let running = Workers::new(2).start(move |_worker| {
///     let listener = listeners.lock().unwrap().pop().unwrap();
///     let mut reactor = Reactor::new()?;
///     // .. `listener.with_handler(..).register_into(&mut reactor)` ..
///     # drop(listener);
///     Ok(reactor)
/// })?;
/// running.stop();
/// running.join()
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing runs before `start`"]
pub struct Workers {
    pub(crate) count: usize,
    pinned: bool,
    pub(crate) name: String,
    pub(crate) on_panic: Option<OnPanic>,
}

pub(crate) type OnPanic = Arc<dyn Fn(Worker, Box<dyn Any + Send>) + Send + Sync>;

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, pinned, name, .. } = self;
        f.debug_struct("Workers")
            .field("count", count)
            .field("pinned", pinned)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

/// Identifies the worker in a call of `set_up`.
///
/// ```
/// use windlass::{Reactor, stream::Workers};
///
/// # fn main() -> std::io::Result<()> {
/// let running = Workers::new(2).named("echo").start(|worker| {
///     println!("worker {} of {}", worker.index, worker.count);
///     Ok(Reactor::new()?)
/// })?;
/// running.stop();
/// running.join()
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Worker {
    /// The worker's index, from 0.
    pub index: usize,
    /// The number of workers.
    pub count: usize,
    /// The processor that the thread is pinned to, if workers are pinned.
    pub cpu: Option<usize>,
}

impl Worker {
    /// Pins the calling thread to [`cpu`](Self::cpu), if there is one (sched_setaffinity(2)).
    /// [`Workers::start`] does it for its threads.
    ///
    /// # Errors
    /// That of sched_setaffinity(2): the process may no longer use the processor.
    pub fn pin(&self) -> io::Result<()> {
        self.cpu.map_or(Ok(()), pin_to)
    }
}

impl Workers {
    /// Creates `count` workers. [`start`](Self::start) starts their threads.
    ///
    /// # Panics
    /// If `count` is 0 or more than [`WORKERS_MAX`].
    pub fn new(count: usize) -> Self {
        assert!(
            (1..=WORKERS_MAX).contains(&count),
            "there are 1 to {WORKERS_MAX} workers, not {count}"
        );
        Self { count, pinned: false, name: "windlass".to_owned(), on_panic: None }
    }

    /// Pins each worker's thread to one of the processors that this process may use, in turn
    /// (sched_setaffinity(2)).
    #[doc(alias = "sched_setaffinity")]
    pub const fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// The name of the threads, followed by their index. Default: `windlass`.
    ///
    /// # Panics
    /// If the name contains a NUL byte.
    pub fn named(mut self, name: &str) -> Self {
        assert!(!name.contains('\0'), "a thread's name has no NUL");
        name.clone_into(&mut self.name);
        self
    }

    /// Keeps a worker running after a panic of one of its handlers. `hook` is called on the
    /// worker's thread; its reactor stays usable (rule 8). Without a hook, or if the hook panics,
    /// the panic ends all workers and resumes in [`RunningWorkers::join`].
    pub fn on_panic(
        mut self,
        hook: impl Fn(Worker, Box<dyn Any + Send>) + Send + Sync + 'static,
    ) -> Self {
        self.on_panic = Some(Arc::new(hook));
        self
    }

    /// The workers, with their processors if they are pinned. For a caller that starts threads of
    /// its own, to run another loop. Each of them calls [`Worker::pin`].
    ///
    /// ```
    /// use windlass::stream::Workers;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let workers = Workers::new(2).pinned(true).list()?;
    /// assert!(workers.iter().all(|worker| worker.count == 2 && worker.cpu.is_some()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of sched_getaffinity(2).
    pub fn list(&self) -> io::Result<Vec<Worker>> {
        let cpus = if self.pinned { allowed_cpus()? } else { Vec::new() };
        let cpu = |index| self.pinned.then(|| cpus[index % cpus.len()]);
        let worker = |index| Worker { index, count: self.count, cpu: cpu(index) };
        Ok((0..self.count).map(worker).collect())
    }
}

fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

fn pin_to(cpu: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

/// Running workers. Dropping this stops them and waits until they have ended; their errors and
/// panics are lost.
///
/// ```
/// use windlass::{Reactor, stream::{RunningWorkers, Workers}};
///
/// # fn main() -> std::io::Result<()> {
/// let running: RunningWorkers = Workers::new(2).start(|_| Ok(Reactor::new()?))?;
/// assert_eq!(running.stops().len(), 2);
/// running.stop();
/// running.join()
/// # }
/// ```
#[must_use = "dropping it stops the workers"]
pub struct RunningWorkers {
    pub(crate) stops: Vec<Stop>,
    pub(crate) threads: Vec<JoinHandle<io::Result<()>>>,
    /// [`Backend::Auto`] before the first worker is set up.
    backend: Backend,
    ring_error: Option<RingError>,
    /// Of programs in place of the threads.
    #[cfg(feature = "sim")]
    pub(crate) results: Option<crate::world::Results>,
}

impl RunningWorkers {
    pub(crate) fn new() -> Self {
        Self {
            stops: Vec::new(),
            threads: Vec::new(),
            backend: Backend::Auto,
            ring_error: None,
            #[cfg(feature = "sim")]
            results: None,
        }
    }

    /// Adds a worker that is set up, with the figures of its reactor.
    pub(crate) fn add(&mut self, stop: Stop, stats: &Stats) {
        self.stops.push(stop);
        if self.ring_error.is_none() {
            (self.backend, self.ring_error) = (stats.backend, stats.ring_error);
        }
    }

    /// The backend of the workers' reactors; never [`Backend::Auto`] or [`Backend::UringOrEpoll`].
    /// Where [`Backend::UringOrEpoll`] is a ring for some of them only, it is epoll.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Why a worker has no ring, if [`Backend::UringOrEpoll`] has become epoll.
    #[must_use]
    pub fn ring_error(&self) -> Option<RingError> {
        self.ring_error
    }

    /// Asks every worker to stop after its current turn. Does not wait.
    pub fn stop(&self) {
        for stop in &self.stops {
            stop.stop();
        }
    }

    /// One stop handle per worker, usable from any thread.
    #[must_use]
    pub fn stops(&self) -> &[Stop] {
        &self.stops
    }

    /// Waits until every worker has ended, which happens when one of them is stopped or fails.
    /// Workers of a simulation are waited for in virtual time.
    ///
    /// # Errors
    /// The first error of a reactor's run, in the order of the workers.
    ///
    /// # Panics
    /// With the first panic of a worker, after all have ended.
    pub fn join(mut self) -> io::Result<()> {
        #[cfg(feature = "sim")]
        if let Some(results) = self.results.take() {
            return results.join();
        }
        let mut outcome = Ok(());
        let mut panic = None;
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Err(error)) if outcome.is_ok() => outcome = Err(error),
                Ok(_) => {}
                Err(payload) => panic = panic.or(Some(payload)),
            }
        }
        match panic {
            Some(payload) => resume_unwind(payload),
            None => outcome,
        }
    }
}

impl fmt::Debug for RunningWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningWorkers").field("count", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Drop for RunningWorkers {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl ListenOptions {
    /// Listens at one TCP address with several sockets, one per worker. The kernel distributes the
    /// connections over them (`SO_REUSEPORT`, socket(7)). With port 0 all use the port that the
    /// kernel has chosen for the first.
    ///
    /// The group takes the address exclusively: it fails if another socket already listens there,
    /// even one of another group of the same user. To share an address with other processes, call
    /// [`reuse_port`](Self::reuse_port) first. A socket of the same user that does so can join the
    /// group later.
    ///
    /// # Errors
    /// See [`tcp`](Self::tcp). `EADDRINUSE` if another socket listens at the address.
    #[doc(alias = "SO_REUSEPORT")]
    pub fn tcp_group(self, address: SocketAddr, count: usize) -> io::Result<Vec<Listener>> {
        let mut address = address;
        let mut group = Vec::with_capacity(count);
        for index in 0..count {
            // The first socket listens without `SO_REUSEPORT`. If several try that at the same
            // moment, the kernel lets only one listen. The option is set afterwards, for the others
            // of the group.
            let listener = self.reuse_port(self.reuse_port || index > 0).tcp(address)?;
            if count > 1 && index == 0 {
                listener.socket.set_reuse_port()?;
            }
            address = listener.local_addr()?.socket_addr().unwrap_or(address);
            group.push(listener);
        }
        Ok(group)
    }
}
