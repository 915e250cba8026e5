//! The executor: tasks, polled at the end of each turn of its reactor.
//!
//! One round, in the end of a turn (`driver.rs`):
//!
//! 1. Run the requests that were queued where there was no turn.
//! 2. Schedule the tasks that other threads have woken, and spawn their futures.
//! 3. Poll scheduled tasks, the first to be scheduled first, at most `polls_per_turn`.
//! 4. Run the requests again. Then wait, or do not wait if anything is left.

mod builder;
mod driver;
mod root_task;
mod shutdown;
#[cfg(feature = "sim")]
mod simulated;
mod spawn_on;
mod stats;

use core::{fmt, future::Future, pin::pin, task::Poll};

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use windlass::{BuildError, NextTurn, Reactor, Turn};
use windlass_flow::panics::Panics;

use crate::{
    handle::{Handle, publish},
    join::JoinHandle,
    process::OwnProcess,
    spawner::Spawner,
    sync::Arc,
    task::{
        current::{self, Entered},
        error::JoinError,
        shared::OwnerShared,
    },
    time::{CustomClock, VirtualClock},
};
pub use builder::ExecutorBuilder;
use driver::Driver;
use root_task::RootTask;
pub use stats::{ExecutorStats, stats};

/// An executor for futures that need not be `Send`, with the reactor that it runs on.
///
/// It stays on its thread. Its tasks run inside of [`block_on`](Self::block_on) alone. Between two
/// calls they rest, and go on with the next.
///
/// Dropping it drops all futures, while the reactor still works, and then the reactor. Futures that
/// are spawned by their destructors are dropped too. A panic of one does not keep the others from
/// being dropped. Handles then report [`JoinError::Cancelled`]. Wakers may outlive the executor,
/// and do nothing then.
///
/// The drop sends the output of streams that their sockets have not accepted, which exists on a
/// ring alone. If peers do not read, it takes up to [`ExecutorBuilder::drain_timeout`], which is
/// two seconds unless it is set, and resets their connections then.
///
/// A child of fork(2) must not run the copy of its parent's executor, and
/// [`block_on`](Self::block_on) panics there. Dropping the copy runs the destructors of the copied
/// futures, closes the child's descriptors, and changes nothing of the parent's reactor.
///
/// ```
/// use windlass_task::{Executor, spawn};
///
/// # fn main() -> std::io::Result<()> {
/// let mut executor = Executor::new()?;
/// let sum = executor.block_on(async {
///     let task = spawn(async { 20 });
///     task.await.unwrap() + 22
/// });
/// assert_eq!(sum, 42);
/// # Ok(())
/// # }
/// ```
pub struct Executor {
    /// Dropped after `shutdown` has run.
    reactor: Reactor,
    handle: Handle,
    process: OwnProcess,
}

#[track_caller]
fn assert_own(process: OwnProcess) {
    assert!(
        process.is_current(),
        "this process is a child of fork(2), and the executor belongs to its parent: build \
         another executor in the child, or call exec or _exit",
    );
}

/// Runs a future and the tasks that it spawns, on a new executor with the default settings.
///
/// Returns when the future is ready. Tasks that are not finished then are cancelled. Peers that do
/// not read their output may delay the return by two seconds, as for the drop of an [`Executor`].
///
/// ```
/// assert_eq!(windlass_task::block_on(async { 42 }), 42);
/// ```
///
/// # Panics
/// If the future panics, if the reactor cannot be built (use [`Executor::builder`] for the error),
/// or if an executor runs on this thread already.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert_not_nested();
    let mut executor = match Executor::new() {
        Ok(executor) => executor,
        Err(error) => panic!("cannot build the reactor of the executor: {error}"),
    };
    executor.block_on(future)
}

fn run_driver(reactor: &mut Reactor, driver: &mut Driver<'_>, process: OwnProcess) {
    while !driver.is_finished() {
        if let Err(error) = reactor.run_with(driver) {
            // A task has called fork(2), and has returned in the child.
            assert_own(process);
            panic!("the reactor of the executor has failed: {error}");
        }
    }
}

#[track_caller]
fn assert_not_nested() {
    assert!(
        current::executor().is_null(),
        "`block_on` inside of `block_on`: an executor runs on this thread already, and would wait \
         for itself; await the future instead, or use another thread",
    );
}

impl Executor {
    /// An executor with the default settings.
    ///
    /// # Errors
    /// That of [`Reactor::new`].
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// A builder with the default settings.
    pub fn builder() -> ExecutorBuilder {
        ExecutorBuilder::new()
    }

    fn from_builder(builder: ExecutorBuilder) -> Result<Self, BuildError> {
        let mut settings = builder.reactor;
        if let Some(slack) = builder.timer_slack {
            settings = settings.timer_slack(slack);
        }
        let mut limits = builder.limits;
        #[cfg(feature = "sim")]
        let host = settings.sim_host().cloned();
        #[cfg(feature = "sim")]
        {
            // Its time moves by itself.
            limits.has_paused_clock &= host.is_none();
        }
        let paused = limits.has_paused_clock.then(VirtualClock::new);
        if let Some(clock) = &paused {
            settings = clock.set(settings);
        }
        let custom = if paused.is_some() { None } else { CustomClock::of(&mut settings) };
        limits.has_own_clock = paused.is_some() || custom.is_some();
        let mut reactor = settings.build()?;
        let handle = Handle::new(OwnerShared::create(reactor.remote(), limits));
        #[cfg(feature = "sim")]
        if let Some(host) = host {
            crate::simulation::install(&handle, &host);
        }
        if let Some(clock) = paused {
            clock.pause(&handle);
        }
        if let Some(clock) = custom {
            clock.install(&handle);
        }
        let process = handle.local().process;
        Ok(Self { reactor, handle, process })
    }

    /// Runs a future, and the executor's tasks, until the future is ready.
    ///
    /// The tasks that are left rest until the next call. Those that are scheduled may still be
    /// polled, within the limit of a turn. A request to stop the reactor
    /// ([`Turn::stop`]) does not end it.
    ///
    /// # Panics
    /// - With the panic of the future.
    /// - With the panic of a reactor's handler. The tasks are not lost, and the next call goes on.
    /// - If an executor runs on this thread already.
    /// - In a child of fork(2), before anything is polled: the executor belongs to the parent. A
    ///   task that forks must not return in the child, where other tasks of the same turn may be
    ///   polled before the panic.
    /// - If the reactor fails ([`Reactor::run_once`]), because other code tampers with its
    ///   descriptors.
    #[track_caller]
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        assert_not_nested();
        assert_own(self.process);
        let _entered = Entered::new(Arc::as_ptr(self.handle.owner().shared()));
        let mut output = None;
        let mut future = pin!(Some(future));
        let mut poll = |context: &mut core::task::Context<'_>| {
            let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
            let Poll::Ready(ready) = running.poll(context) else { return Poll::Pending };
            output = Some(ready);
            // With the turn at hand, so that its sockets leave the reactor at once.
            future.set(None);
            Poll::Ready(())
        };
        let root = RootTask::spawn(self.handle.owner(), &mut poll);
        let mut driver = Driver::new(&self.handle, root.task());
        // A panic of a handler, or of the future itself.
        let run = catch_unwind(AssertUnwindSafe(|| {
            run_driver(&mut self.reactor, &mut driver, self.process);
        }));
        let end = root.take_output();
        drop(root);
        let payload = match (run, end) {
            (Err(payload), _) => payload,
            (Ok(()), Some(Err(JoinError::Panicked(payload)))) => payload.into_inner(),
            _ => return output.expect("the future has an output when its task is finished"),
        };
        // Their destructors may panic too, and two panics at once would abort the process.
        let mut panics = Panics::default();
        panics.catch(|| resume_unwind(payload));
        panics.catch(|| {
            let _: Option<()> = self.in_turn(|| future.set(None));
        });
        panics.catch(|| drop(output));
        panics.resume();
        unreachable!("a panic was caught")
    }

    /// Spawns a task from outside of [`block_on`](Self::block_on). It starts with the next call.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        JoinHandle::new(self.handle.owner().spawn(future))
    }

    /// A handle that spawns futures from any thread.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner::new(Arc::clone(self.handle.owner().shared()))
    }

    /// Calls a closure with the reactor's turn, outside of [`block_on`](Self::block_on): to
    /// register handlers and timers. Inside, use [`with_turn`](crate::with_turn).
    ///
    /// # Panics
    /// With the panic of the closure, in a child of fork(2), or if the reactor fails, as for
    /// [`block_on`](Self::block_on).
    #[track_caller]
    pub fn with_turn<T>(&mut self, call: impl FnOnce(Turn<'_>) -> T) -> T {
        assert_own(self.process);
        let _entered = Entered::new(Arc::as_ptr(self.handle.owner().shared()));
        let handle = self.handle.clone();
        self.in_turn(|| handle.with_turn(call))
            .flatten()
            .expect("the reactor gives a turn in the process that has built it")
    }

    /// A handle to the reactor for other threads.
    pub(crate) fn remote(&mut self) -> windlass::Remote {
        self.reactor.remote()
    }

    /// Counters of the reactor.
    pub(crate) fn reactor_stats(&self) -> windlass::Stats {
        self.reactor.stats()
    }

    /// Counters of the executor.
    #[must_use]
    pub fn stats(&self) -> ExecutorStats {
        ExecutorStats::read(self.handle.local())
    }

    /// Calls a closure with a published turn, and then runs what requests are queued. `None`,
    /// without a call, if the reactor belongs to another process.
    fn in_turn<T>(&mut self, call: impl FnOnce() -> T) -> Option<T> {
        let handle = &self.handle;
        let (mut call, mut result) = (Some(call), None);
        // The first run may take a stop that was requested before, and return without a turn.
        while call.is_some() {
            let mut driver = |turn: Turn<'_>| {
                publish(turn, || {
                    result = call.take().map(|call| call());
                    handle.run_requests();
                });
                NextTurn::Stop
            };
            if self.reactor.run_with(&mut driver).is_err() {
                break;
            }
        }
        result
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
