//! Calls from other threads: closures that run on the loop's thread, in a bounded queue.
//!
//! The queue is a [`Mailbox`] of `windlass-flow`. It uses the reactor's own latch, as [`Stop`]
//! does. `runtime/run_loop.rs` describes how the loop sleeps on the latch.

mod call;
mod error;
mod future;
mod latch;
pub(crate) mod stop;

use core::{fmt, marker::PhantomData};
use std::{
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

pub use error::{CallError, PostError, PostReason, RemoteAddError};
pub use future::CallFuture;
pub use latch::latch;
use windlass_flow::{
    Bounds, Latch, Mailbox, PushError, PushReason, Returned, Sender, mailbox, panics::Panics,
};

use crate::{AddError, Key, Stop, Subscriber, Turn, api::inline_call::Posted};
pub(crate) use call::harmless;
use call::{Call, Job, QueuedCall};

/// A handle to a reactor for other threads. `Clone`, `Send` and `Sync`; all clones share one queue.
///
/// A closure runs on the loop's thread, between events, with a [`Turn`], so it may do everything
/// that a handler may. Closures of one thread run in the order in which they were queued. The queue
/// holds at most `remote_max` calls and posts, and a turn runs `calls_per_turn` of them
/// ([`Builder`](crate::Builder)). The rest runs first in the next turn.
///
/// A queued closure wakes the loop, with a system call only if the loop sleeps. If the reactor is
/// embedded, it wakes the host.
///
/// When the reactor is dropped, all waiting callers get [`Closed`](CallError::Closed) at once.
/// While the reactor exists and is not running, they wait.
///
/// ```
/// use std::{thread, time::Duration};
/// use windlass::{Reactor, Turn};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut reactor = Reactor::new()?;
/// let remote = reactor.remote();
/// let worker = thread::spawn(move || {
///     let timers = remote.call(|mut turn| {
///         let _ = turn.after(Duration::from_secs(60), |_: Turn<'_, _>| {});
///         turn.stats().timers
///     });
///     remote.stop();
///     timers.ok()
/// });
/// reactor.run()?;
/// assert_eq!(worker.join().unwrap(), Some(1));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "eventfd")]
#[derive(Clone)]
pub struct Remote(Arc<Endpoint>);

struct Endpoint {
    queue: Sender<RemoteItem>,
    stop: Stop,
    /// The latch of `stop`, stored here to save an indirection.
    latch: Arc<Latch>,
    /// The loop's thread.
    thread: ThreadId,
    /// The loop polls busily, on a processor of its own.
    polls_busily: bool,
}

/// An entry of the queue.
pub(crate) enum RemoteItem {
    Post(Posted),
    Call(QueuedCall),
}

/// A closure with a result.
struct Closure<F, T>(F, PhantomData<fn() -> T>);

impl<T: Send + 'static, F: FnOnce(Turn<'_>) -> T + Send + 'static> Job for Closure<F, T> {
    type Output = T;

    fn run(self, turn: Turn<'_>) -> T {
        (self.0)(turn)
    }
}

/// A subscriber to be registered.
struct Addition<S>(S);

impl<S: Subscriber + Send> Job for Addition<S> {
    type Output = Result<Key, AddError<S>>;

    fn run(self, mut turn: Turn<'_>) -> Self::Output {
        turn.try_add(self.0)
    }
}

impl Remote {
    /// Runs a closure on the loop's thread and waits for its result.
    ///
    /// If the closure panics, the panic is returned as an error and the loop continues.
    ///
    /// Two loops whose handlers call each other block forever; this is not detected. A handler that
    /// needs an answer of another loop posts a closure that posts the answer back, or awaits
    /// [`call_async`](Self::call_async).
    ///
    /// # Errors
    /// The error returns the closure unless it has run.
    ///
    /// - [`WouldDeadlock`](crate::CallError::WouldDeadlock): the caller is on the loop's own
    ///   thread.
    /// - [`Closed`](crate::CallError::Closed): the reactor was dropped and has not run the closure.
    /// - [`Panicked`](crate::CallError::Panicked): the closure has panicked. It contains the
    ///   payload.
    pub fn call<T, F>(&self, closure: F) -> Result<T, CallError<F>>
    where
        T: Send + 'static,
        F: FnOnce(Turn<'_>) -> T + Send + 'static,
    {
        self.wait_for(Closure(closure, PhantomData), None).map_err(|e| e.map(|closure| closure.0))
    }

    /// Like [`call`](Self::call), with a limit on the total wait for room in the queue and for the
    /// result.
    ///
    /// # Errors
    /// The error returns the closure unless it has run.
    ///
    /// - [`WouldDeadlock`](crate::CallError::WouldDeadlock): the caller is on the loop's own
    ///   thread.
    /// - [`Closed`](crate::CallError::Closed): the reactor was dropped and has not run the closure.
    /// - [`Panicked`](crate::CallError::Panicked): the closure has panicked. It contains the
    ///   payload.
    /// - [`TimedOut`](crate::CallError::TimedOut): the timeout has expired. It contains the closure
    ///   if that had not started; it never will. It is empty if the closure runs or has run.
    pub fn call_timeout<T, F>(&self, timeout: Duration, closure: F) -> Result<T, CallError<F>>
    where
        T: Send + 'static,
        F: FnOnce(Turn<'_>) -> T + Send + 'static,
    {
        self.wait_for(Closure(closure, PhantomData), Some(timeout))
            .map_err(|e| e.map(|closure| closure.0))
    }

    /// Returns a future of the closure's result, for any executor, including one on the loop's own
    /// thread.
    ///
    /// The closure is queued when the future is first polled. Dropping the future withdraws a
    /// closure that has not started. If it has started, its result is dropped on the loop's thread.
    ///
    /// The future's error is [`Closed`](CallError::Closed) if the reactor was dropped before the
    /// closure ran, and [`Panicked`](CallError::Panicked) if the closure has panicked.
    pub fn call_async<T, F>(&self, closure: F) -> CallFuture<T, F>
    where
        T: Send + 'static,
        F: FnOnce(Turn<'_>) -> T + Send + 'static,
    {
        CallFuture::new(self.clone(), Closure(closure, PhantomData))
    }

    /// Queues a closure without waiting for its result. If the queue is full, it waits for room.
    ///
    /// A panic of the closure unwinds out of [`Reactor::run_once`](crate::Reactor::run_once), as a
    /// handler's does (rule 8).
    ///
    /// # Errors
    /// The error returns the closure, and the reason:
    ///
    /// - [`Closed`](crate::PostReason::Closed): the reactor was dropped.
    /// - [`WouldDeadlock`](crate::PostReason::WouldDeadlock): the queue is full, and the caller is
    ///   on the loop's own thread.
    #[inline]
    pub fn post<F: FnOnce(Turn<'_>) + Send + 'static>(
        &self,
        closure: F,
    ) -> Result<(), PostError<F>> {
        let queue = &self.0.queue;
        let rejected = match queue.try_push(RemoteItem::Post(Posted::new(closure))) {
            Ok(()) => return Ok(()),
            Err(rejected) => rejected,
        };
        if rejected.reason != PushReason::Full {
            return Err(post_error(rejected));
        }
        if self.is_own_thread() {
            let closure = post_error(rejected).closure;
            return Err(PostError { reason: PostReason::WouldDeadlock, closure });
        }
        queue.push(rejected.item.into_inner()).map_err(post_error)
    }

    /// Queues a closure without waiting for its result, if there is room.
    ///
    /// # Errors
    /// The error returns the closure, and the reason:
    ///
    /// - [`Full`](crate::PostReason::Full): `remote_max` calls and posts are queued or running.
    /// - [`Closed`](crate::PostReason::Closed): the reactor was dropped.
    #[inline]
    pub fn try_post<F: FnOnce(Turn<'_>) + Send + 'static>(
        &self,
        closure: F,
    ) -> Result<(), PostError<F>> {
        self.0.queue.try_push(RemoteItem::Post(Posted::new(closure))).map_err(post_error)
    }

    /// Registers a hand-written subscriber from another thread, and waits for its key. See
    /// [`Turn::add`].
    ///
    /// A subscriber made of a descriptor and a handler can register itself:
    ///
    /// ```
    /// # use std::net::TcpListener;
    /// # use windlass::{Key, Reactor, Remote, Turn, interest};
    /// fn listen(remote: &Remote, listener: TcpListener) -> std::io::Result<Key> {
    ///     let key = interest()
    ///         .read()
    ///         .with_fd(listener)
    ///         .with_handler(|listener: &mut TcpListener, _: Turn<'_>| drop(listener.accept()))
    ///         .register_remotely(remote)?;
    ///     Ok(key)
    /// }
    /// # fn main() -> std::io::Result<()> {
    /// # let mut reactor = Reactor::new()?;
    /// # let remote = reactor.remote();
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let thread = std::thread::spawn(move || {
    /// #     let key = listen(&remote, listener);
    /// #     remote.stop();
    /// #     key.is_ok()
    /// # });
    /// # reactor.run()?;
    /// # assert!(thread.join().unwrap());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error returns the subscriber, except after a panic:
    ///
    /// - [`Refused`](crate::RemoteAddError::Refused): the reactor or the kernel has rejected it. It
    ///   holds an [`AddError`] with the reason.
    /// - [`WouldDeadlock`](crate::RemoteAddError::WouldDeadlock): the caller is on the loop's own
    ///   thread.
    /// - [`Closed`](crate::RemoteAddError::Closed): the reactor was dropped.
    /// - [`Panicked`](crate::RemoteAddError::Panicked): its own `fd` or `interest` has panicked.
    pub fn add<S: Subscriber + Send>(&self, subscriber: S) -> Result<Key, RemoteAddError<S>> {
        match self.wait_for(Addition(subscriber), None) {
            Ok(added) => added.map_err(|e| RemoteAddError::Refused(e.map(Returned::new))),
            Err(CallError::WouldDeadlock(addition)) => {
                Err(RemoteAddError::WouldDeadlock(addition.map(|addition| addition.0)))
            }
            Err(CallError::Closed(addition)) => {
                Err(RemoteAddError::Closed(addition.map(|addition| addition.0)))
            }
            Err(CallError::Panicked(load)) => Err(RemoteAddError::Panicked(load)),
            Err(CallError::TimedOut(_)) => unreachable!("no time was set"),
        }
    }

    /// Ends the loop's current or next wait. [`Reactor::run_once`](crate::Reactor::run_once)
    /// returns, with 0 if there was no event; [`Reactor::run`](crate::Reactor::run) continues with
    /// the next turn.
    ///
    /// For a program with a queue of its own that it checks after each turn. It makes a system call
    /// only if the loop sleeps.
    #[doc(alias = "eventfd")]
    #[inline]
    pub fn wake(&self) {
        self.0.latch.wake();
    }

    /// Makes [`Reactor::run`](crate::Reactor::run) return; see [`Stop::stop`]. Does not wait.
    pub fn stop(&self) {
        self.0.stop.stop();
    }

    fn is_own_thread(&self) -> bool {
        thread::current().id() == self.0.thread
    }

    /// Queues a job and waits for its output.
    fn wait_for<J: Job>(
        &self,
        job: J,
        timeout: Option<Duration>,
    ) -> Result<J::Output, CallError<J>> {
        if self.is_own_thread() {
            let is_gone = self.0.queue.is_closed();
            let job = job.into();
            return Err(if is_gone {
                CallError::Closed(job)
            } else {
                CallError::WouldDeadlock(job)
            });
        }
        // A deadline beyond the clock's range means no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let call = Call::new(job);
        // A loop that does not poll busily may be about to sleep, or may need this thread's
        // processor.
        let spins = self.0.polls_busily && !self.0.latch.is_asleep();
        let message = RemoteItem::Call(QueuedCall::new(&call));
        let pushed = match timeout {
            None => self.0.queue.push(message),
            Some(timeout) => self.0.queue.push_timeout(message, timeout),
        };
        match pushed {
            Ok(()) => {
                if spins {
                    call.spin();
                }
                call.wait(deadline)
            }
            Err(rejected) => Err(call_error(&call, &rejected)),
        }
    }
}

/// The error of a call that the queue has rejected. The call still contains the job.
fn call_error<J: Job>(call: &Call<J>, rejected: &PushError<RemoteItem>) -> CallError<J> {
    let job = call.take_back().expect("what the queue has rejected was not run");
    match rejected.reason {
        PushReason::TimedOut => CallError::TimedOut(Some(job.into())),
        _ => CallError::Closed(job.into()),
    }
}

/// The error of a post that the queue has rejected, with its closure.
fn post_error<F: FnOnce(Turn<'_>) + Send + 'static>(
    rejected: PushError<RemoteItem>,
) -> PostError<F> {
    let reason =
        if rejected.reason == PushReason::Full { PostReason::Full } else { PostReason::Closed };
    let RemoteItem::Post(post) = rejected.item.into_inner() else {
        unreachable!("a post was rejected")
    };
    PostError { reason, closure: Returned::new(post.into_inner()) }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("thread", &self.0.thread).finish_non_exhaustive()
    }
}

/// The reactor's end of the queue.
pub(crate) struct RemoteInbox {
    pub(crate) queue: Mailbox<RemoteItem>,
    pub(crate) remote: Remote,
}

impl RemoteInbox {
    pub(crate) fn new(remote_max: usize, stop: Stop, busy_poll: Duration) -> Self {
        let latch = Arc::clone(stop.latch());
        let (sender, queue) = mailbox(Bounds::items(remote_max), Arc::clone(&latch));
        let polls_busily = !busy_poll.is_zero();
        let endpoint =
            Endpoint { queue: sender, stop, latch, thread: thread::current().id(), polls_busily };
        Self { queue, remote: Remote(Arc::new(endpoint)) }
    }

    /// Answers all waiting callers first, then drops the posted closures, whose destructors may be
    /// slow or panic.
    pub(crate) fn close(mut self, panics: &mut Panics) {
        harmless(|| self.queue.close());
        let mut posts = Vec::new();
        for message in self.queue.drain(usize::MAX) {
            match message {
                RemoteItem::Call(place) => drop(place),
                RemoteItem::Post(post) => posts.push(post),
            }
        }
        for post in posts {
            panics.catch(|| drop(post));
        }
    }
}
