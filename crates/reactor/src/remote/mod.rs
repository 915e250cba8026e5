//! Other threads: closures that run on the loop's thread, in a bounded queue.
//!
//! The queue is a [`Mailbox`] of `windlass-flow`, its latch the reactor's own, which [`Stop`] has
//! as well. How the loop sleeps on the latch stands in `dispatch.rs`.

mod call;
mod error;
mod future;

use core::{fmt, marker::PhantomData};
use std::{
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

pub use error::{CallError, PostError, PostReason, RemoteAddError};
pub use future::CallFuture;
use windlass_flow::{
    Bounds, Latch, Mailbox, PushError, PushReason, Sender, mailbox, panics::Panics,
};

use crate::{AddError, Key, Reactor, Stop, Subscriber, Turn, inline_closure::Posted, pending_work};
use call::{Call, Job, Place, harmless};

/// What other threads may ask of a reactor. `Clone`, `Send` and `Sync`; all clones share one queue.
///
/// A closure runs on the loop's thread, between events, with a [`Turn`]: it may do all that a
/// handler may. Those of one thread run in the order in which they were queued. Calls and posts
/// that wait are `remote_max` at most, and a turn runs `calls_per_turn` of them
/// ([`Builder`](crate::Builder)); what is left goes first in the next.
///
/// A queued closure wakes the loop, which costs a system call only if it sleeps; that of an
/// embedded reactor wakes the host.
///
/// When the reactor is dropped, all who wait are answered [`Closed`](CallError::Closed) at once.
/// While it lives and nobody runs it, they wait.
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
#[derive(Clone)]
pub struct Remote(Arc<Endpoint>);

struct Endpoint {
    queue: Sender<Message>,
    stop: Stop,
    /// The one of `stop`, a step nearer.
    latch: Arc<Latch>,
    /// The loop's own.
    thread: ThreadId,
    /// The loop polls busily, on a processor of its own.
    polls_busily: bool,
}

/// What waits in the queue.
enum Message {
    Post(Posted),
    Call(Place),
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

impl<S: Subscriber<Reactor> + Send> Job for Addition<S> {
    type Output = Result<Key, AddError<S>>;

    fn run(self, mut turn: Turn<'_>) -> Self::Output {
        turn.add(self.0)
    }
}

impl Remote {
    /// Runs a closure on the loop's thread and waits for what it returns.
    ///
    /// The closure's panic comes back as an error, and the loop goes on.
    ///
    /// Two loops whose handlers call each other wait for each other for ever, and nobody tells
    /// them. A handler that needs another loop's answer posts, and has the answer posted back, or
    /// awaits [`call_async`](Self::call_async).
    ///
    /// # Errors
    /// [`CallError::WouldDeadlock`] on the loop's own thread, [`CallError::Closed`],
    /// [`CallError::Panicked`]. In `anyhow`, write `.map_err(io::Error::from)?`:
    /// [why](crate::AddError#in-anyhow).
    pub fn call<T, F>(&self, closure: F) -> Result<T, CallError<F>>
    where
        T: Send + 'static,
        F: FnOnce(Turn<'_>) -> T + Send + 'static,
    {
        self.wait_for(Closure(closure, PhantomData), None).map_err(|e| e.map(|closure| closure.0))
    }

    /// The same, and waits no longer than `timeout`, for room in the queue and for the result
    /// together.
    ///
    /// # Errors
    /// Those of [`call`](Self::call), and [`CallError::TimedOut`], with the closure if it had not
    /// begun: then it never will. In `anyhow`, write `.map_err(io::Error::from)?`:
    /// [why](crate::AddError#in-anyhow).
    pub fn call_timeout<T, F>(&self, timeout: Duration, closure: F) -> Result<T, CallError<F>>
    where
        T: Send + 'static,
        F: FnOnce(Turn<'_>) -> T + Send + 'static,
    {
        self.wait_for(Closure(closure, PhantomData), Some(timeout))
            .map_err(|e| e.map(|closure| closure.0))
    }

    /// A future of the closure's result, for any executor, be it one on the loop's own thread.
    ///
    /// It is queued when the future is first polled. Dropping the future withdraws a closure that
    /// has not begun; the result of one that has is dropped on the loop's thread.
    pub fn call_async<T, F>(&self, closure: F) -> CallFuture<T, F>
    where
        T: Send + 'static,
        F: FnOnce(Turn<'_>) -> T + Send + 'static,
    {
        CallFuture::new(self.clone(), Closure(closure, PhantomData))
    }

    /// Queues a closure that nobody waits for, and waits for room in the queue if there is none.
    ///
    /// Its panic unwinds out of [`Reactor::run_once`], as a handler's does (rule 8).
    ///
    /// # Errors
    /// [`PostReason::Closed`], and [`PostReason::WouldDeadlock`] when the queue is full and this is
    /// the loop's own thread. In `anyhow`, write `.map_err(io::Error::from)?`:
    /// [why](crate::AddError#in-anyhow).
    pub fn post<F: FnOnce(Turn<'_>) + Send + 'static>(
        &self,
        closure: F,
    ) -> Result<(), PostError<F>> {
        let queue = &self.0.queue;
        let refused = match queue.try_push(Message::Post(Posted::new(closure))) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        if refused.reason != PushReason::Full {
            return Err(post_error(refused));
        }
        if self.is_own_thread() {
            let closure = post_error(refused).closure;
            return Err(PostError { reason: PostReason::WouldDeadlock, closure });
        }
        queue.push(refused.item).map_err(post_error)
    }

    /// Queues a closure that nobody waits for, if there is room.
    ///
    /// # Errors
    /// [`PostReason::Full`] and [`PostReason::Closed`]; the closure comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn try_post<F: FnOnce(Turn<'_>) + Send + 'static>(
        &self,
        closure: F,
    ) -> Result<(), PostError<F>> {
        self.0.queue.try_push(Message::Post(Posted::new(closure))).map_err(post_error)
    }

    /// Registers a hand-written subscriber from another thread, and waits for its key. See
    /// [`Turn::add`].
    ///
    /// One that is built of a descriptor and a handler registers itself:
    ///
    /// ```no_run
    /// # use std::net::TcpListener;
    /// # use windlass::{Key, Remote, Turn, interest};
    /// # fn listen(remote: &Remote, listener: TcpListener) -> std::io::Result<Key> {
    /// let key = interest()
    ///     .read()
    ///     .with_fd(listener)
    ///     .with_handler(|listener: &mut TcpListener, _: Turn<'_>| drop(listener.accept()))
    ///     .register_remotely(remote)?;
    /// # Ok(key)
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`RemoteAddError`]; the subscriber comes back.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn add<S: Subscriber<Reactor> + Send>(
        &self,
        subscriber: S,
    ) -> Result<Key, RemoteAddError<S>> {
        match self.wait_for(Addition(subscriber), None) {
            Ok(added) => added.map_err(RemoteAddError::Refused),
            Err(CallError::WouldDeadlock(Addition(subscriber))) => {
                Err(RemoteAddError::WouldDeadlock(subscriber))
            }
            Err(CallError::Closed(Addition(subscriber))) => Err(RemoteAddError::Closed(subscriber)),
            Err(CallError::Panicked(load)) => Err(RemoteAddError::Panicked(load)),
            Err(CallError::TimedOut(_)) => unreachable!("no time was set"),
        }
    }

    /// Makes the loop's wait end, now or the next: [`Reactor::run_once`] returns, with 0 if nothing
    /// else came, and [`Reactor::run`] goes on to the next turn.
    ///
    /// For a program with a queue of its own, which it looks at after each turn. A system call only
    /// if the loop sleeps.
    #[inline]
    pub fn wake(&self) {
        self.0.latch.wake();
    }

    /// Makes [`Reactor::run`] return; see [`Stop::stop`]. Nothing is awaited.
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
            return Err(if is_gone {
                CallError::Closed(job)
            } else {
                CallError::WouldDeadlock(job)
            });
        }
        // An end that no clock reaches is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let call = Call::new(job);
        // Any other loop may be about to sleep, or waits for this very processor.
        let spins = self.0.polls_busily && !self.0.latch.is_asleep();
        let message = Message::Call(Place::new(&call));
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
            Err(refused) => Err(call_error(&call, &refused)),
        }
    }
}

/// The error of a call that the queue has refused. The job is still in it.
fn call_error<J: Job>(call: &Call<J>, refused: &PushError<Message>) -> CallError<J> {
    let job = call.take_back().expect("what the queue has refused was not run");
    match refused.reason {
        PushReason::TimedOut => CallError::TimedOut(Some(job)),
        _ => CallError::Closed(job),
    }
}

/// The error of a post that the queue has refused, with the closure that came back.
fn post_error<F: FnOnce(Turn<'_>) + Send + 'static>(refused: PushError<Message>) -> PostError<F> {
    let reason =
        if refused.reason == PushReason::Full { PostReason::Full } else { PostReason::Closed };
    let Message::Post(post) = refused.item else { unreachable!("a post was refused") };
    PostError { reason, closure: post.into_inner() }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("thread", &self.0.thread).finish_non_exhaustive()
    }
}

/// The reactor's end of the queue.
pub(crate) struct Inbox {
    queue: Mailbox<Message>,
    remote: Remote,
}

impl Inbox {
    fn new(remote_max: usize, stop: Stop, busy_poll: Duration) -> Self {
        let latch = Arc::clone(stop.latch());
        let (sender, queue) = mailbox(Bounds::items(remote_max), Arc::clone(&latch));
        let polls_busily = !busy_poll.is_zero();
        let endpoint =
            Endpoint { queue: sender, stop, latch, thread: thread::current().id(), polls_busily };
        Self { queue, remote: Remote(Arc::new(endpoint)) }
    }

    /// Answers all who wait, then drops the posted closures, whose destructors may take their time
    /// or panic.
    pub(crate) fn close(mut self, panics: &mut Panics) {
        harmless(|| self.queue.close());
        let mut posts = Vec::new();
        for message in self.queue.drain(usize::MAX) {
            match message {
                Message::Call(place) => drop(place),
                Message::Post(post) => posts.push(post),
            }
        }
        for post in posts {
            panics.catch(|| drop(post));
        }
    }
}

impl Reactor {
    /// What other threads may ask of this reactor. Each call gives the same endpoint.
    ///
    /// A reactor that has one keeps account of whether it sleeps: two atomic operations a turn.
    #[must_use]
    pub fn remote(&mut self) -> Remote {
        let inbox = self.inbox.get_or_insert_with(|| {
            self.pending_work |= pending_work::REMOTE;
            // It has slept all the time; a stop that woke it has rung the descriptor.
            self.stop.latch().awake();
            Inbox::new(self.limits.remote_max, self.stop.clone(), self.busy_poll)
        });
        inbox.remote.clone()
    }

    /// Runs queued calls and posts, up to `count`, and says how many.
    ///
    /// The inbox is out of the reactor meanwhile, which no turn notices: a turn does not reach it.
    pub(crate) fn run_calls(&mut self, count: usize) -> usize {
        /// Puts the inbox back, also when a post panics.
        struct Restore<'r>(&'r mut Reactor, Option<Inbox>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.inbox = self.1.take();
            }
        }

        self.pending_work &= !pending_work::CALLS;
        // Stays so if a post panics (rule 8).
        self.calls_left = true;
        let inbox = self.inbox.take();
        let mut restore = Restore(self, inbox);
        let Restore(reactor, Some(inbox)) = &mut restore else { return 0 };
        let mut ran = 0;
        let mut drain = inbox.queue.drain(count);
        for message in &mut drain {
            ran += 1;
            reactor.counters.calls += 1;
            reactor.timed(|reactor| match message {
                Message::Post(post) => post.run(Turn::new(reactor)),
                Message::Call(place) => place.run(Turn::new(reactor)),
            });
        }
        // It wakes the tasks that wait for room, by their own code.
        harmless(|| drop(drain));
        reactor.calls_left = ran == count && !inbox.queue.is_empty();
        ran
    }
}
