//! [`Handle`] and [`with_turn`]: how code finds the executor that runs it, and the reactor's turn.
//!
//! # The protocol of this module
//!
//! 1. At the end of each turn the executor publishes its [`Turn`]: the thread's variable points to
//!    the turn on the stack of [`publish`], which does not use it meanwhile. The variable is reset
//!    before that function returns or unwinds.
//! 2. A call takes the pointer out of the variable, uses the turn, and puts the pointer back. So
//!    there is one user at a time. A call inside of the call finds no turn.
//! 3. Where there is no turn, a request is queued and runs in the executor's next turn. This is so
//!    inside of a handler, of another request, and between two runs of the executor. A request to
//!    an executor that is gone is dropped.
//! 4. The queue is bounded. A request that makes something new is counted, and is rejected at
//!    `queued_registrations_max`. A change or an end of something that exists is never rejected.
//!    Whoever owns such a thing queues at most three requests for it between two turns: one change
//!    for each direction, and its end. So the bound is that of what exists: three times the
//!    reactor's `subscribers_max`, and `queued_registrations_max`.

#![allow(
    unsafe_code,
    reason = "a turn is published by a thread-local pointer; owners are told by their thread"
)]

use core::{any::TypeId, fmt, ptr};
use std::{io, rc::Rc};

use windlass::Turn;
use windlass_flow::panics::Panics;

use crate::{
    sync::Arc,
    task::{
        current,
        request::RoundEnd,
        shared::{Local, OwnerShared, Phase, Queued, Request},
    },
};

/// A handle to an executor on its own thread. `!Send`, cheap to clone.
///
/// Sockets, timers and tasks keep one, to reach the reactor from operations and destructors.
#[derive(Clone)]
pub(crate) struct Handle(OwnerShared);

impl Handle {
    pub(crate) fn new(owner: OwnerShared) -> Self {
        Self(owner)
    }

    /// The executor that this thread runs.
    pub(crate) fn current() -> Option<Self> {
        let shared = current::executor();
        if shared.is_null() {
            return None;
        }
        // SAFETY: the pointer came from an `Arc` that lives for as long as the executor is current
        // (`current::Entered`).
        unsafe { Arc::increment_strong_count(shared) };
        // SAFETY: the count above is for this `Arc`.
        let shared = unsafe { Arc::from_raw(shared) };
        // SAFETY: the thread runs this executor, which is `!Send`.
        Some(Self(unsafe { OwnerShared::new(shared) }))
    }

    /// The executor that this thread runs.
    ///
    /// # Panics
    /// If it runs none.
    #[track_caller]
    pub(crate) fn expect_current() -> Self {
        Self::current().expect(
            "no executor runs on this thread: call this inside `block_on`, on the same thread",
        )
    }

    pub(crate) fn owner(&self) -> &OwnerShared {
        &self.0
    }

    pub(crate) fn local(&self) -> &Local {
        self.0.local()
    }

    /// Whether this process is a child of fork(2), and the executor that of its parent.
    pub(crate) fn is_in_child(&self) -> bool {
        !self.local().process.is_current()
    }

    /// Whether the executor still runs or may run again. If not, no operation will ever complete.
    pub(crate) fn is_open(&self) -> bool {
        self.local().phase.get() == Phase::Open
    }

    /// Calls a closure with the turn. `None`, without a call, where there is no turn (protocol 3).
    #[inline]
    pub(crate) fn with_turn<T>(&self, call: impl FnOnce(Turn<'_>) -> T) -> Option<T> {
        if current::is(Arc::as_ptr(self.0.shared())) { with_turn(call) } else { None }
    }

    /// Calls a closure with the turn: at once if there is one, else in the executor's next turn. If
    /// the executor is gone, the closure is dropped.
    ///
    /// It is for changes and ends, which must not fail. The caller bounds their number (protocol
    /// 4).
    pub(crate) fn request(&self, call: impl FnOnce(Turn<'_>) + 'static) {
        if let Some(call) = self.try_now(call) {
            self.queue(Request::Once(Box::new(call)), false);
        }
    }

    /// As [`request`](Self::request), but it waits for the end of the round even if there is a
    /// turn.
    pub(crate) fn request_at_end(&self, work: Rc<dyn RoundEnd>) {
        self.queue(Request::at_end(work), false);
    }

    /// As [`request`](Self::request), for what makes something new.
    ///
    /// # Errors
    /// If `queued_registrations_max` of them wait for a turn already. The closure is dropped.
    pub(crate) fn request_new(
        &self,
        call: impl FnOnce(Turn<'_>) + 'static,
    ) -> Result<(), QueueFull> {
        let Some(call) = self.try_now(call) else { return Ok(()) };
        let (count, max) = (self.local().queued_new.get(), self.local().limits.queued_new_max);
        if count >= max {
            return Err(QueueFull { max });
        }
        self.queue(Request::Once(Box::new(call)), true);
        Ok(())
    }

    /// Calls a closure with the turn. It is returned where there is none.
    fn try_now<F: FnOnce(Turn<'_>)>(&self, call: F) -> Option<F> {
        let mut call = Some(call);
        let run = |turn: Turn<'_>| {
            if let Some(call) = call.take() {
                call(turn);
            }
        };
        match self.with_turn(run) {
            Some(()) => None,
            None => call,
        }
    }

    fn queue(&self, call: Request, is_new: bool) {
        let local = self.local();
        if local.phase.get() != Phase::Closed {
            local.queued_new.set(local.queued_new.get() + usize::from(is_new));
            local.requests.borrow_mut().push_back(Queued { call, is_new });
        }
    }

    /// Runs the queued requests. Those that they queue wait for the next call. False if there are
    /// some.
    pub(crate) fn run_requests(&self) -> bool {
        let count = self.local().requests.borrow().len();
        for _ in 0..count {
            // The borrow ends before the request runs.
            let Some(request) = self.pop_request() else { break };
            if self.with_turn(|turn| request.run(turn)).is_none() {
                break;
            }
        }
        self.local().requests.borrow().is_empty()
    }

    /// As [`run_requests`](Self::run_requests), at the executor's end: all of them, although some
    /// panic.
    pub(crate) fn run_last_requests(&self, panics: &mut Panics) {
        while let Some(request) = self.pop_request() {
            panics.catch(|| {
                let _: Option<()> = self.with_turn(|turn| request.run(turn));
            });
        }
    }

    fn pop_request(&self) -> Option<Request> {
        let local = self.local();
        let Queued { call, is_new } = local.requests.borrow_mut().pop_front()?;
        local.queued_new.set(local.queued_new.get() - usize::from(is_new));
        Some(call)
    }

    /// The executor's value of this type: [`extension`].
    pub(crate) fn extension<T: Default + 'static>(&self) -> Rc<T> {
        extension(self.local())
    }
}

/// The executor's value of this type, which is made by the first call. For the modules of this
/// crate: a value for all sockets, or for all timers. It is dropped at the executor's end, with the
/// reactor alive and after all tasks.
pub(crate) fn extension<T: Default + 'static>(local: &Local) -> Rc<T> {
    let id = TypeId::of::<T>();
    let found = {
        let extensions = local.extensions.borrow();
        extensions.iter().find(|(of, _)| *of == id).map(|(_, value)| Rc::clone(value))
    };
    if let Some(Ok(value)) = found.map(Rc::downcast) {
        return value;
    }
    let value = Rc::new(T::default());
    if local.phase.get() != Phase::Closed {
        local.extensions.borrow_mut().push((id, Rc::clone(&value) as _));
    }
    value
}

/// Reads the owner's part of the executor that this thread runs. `None` if it runs none.
#[inline]
pub(crate) fn with_local<T>(read: impl FnOnce(&Local) -> T) -> Option<T> {
    let shared = current::executor();
    if shared.is_null() {
        return None;
    }
    // SAFETY: the executor lives for as long as it is current (`current::Entered`), which does not
    // end before this function returns.
    let shared = unsafe { &*shared };
    // SAFETY: the thread runs this executor.
    Some(read(unsafe { shared.local() }))
}

/// Too many registrations wait for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull {
    max: usize,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} registrations wait for the executor's next turn already; make sockets in tasks \
             and not in handlers of the reactor, or raise `queued_registrations_max`",
            self.max
        )
    }
}

impl From<QueueFull> for io::Error {
    fn from(error: QueueFull) -> Self {
        Self::other(error.to_string())
    }
}

/// Publishes a turn while `run` runs (protocol 1).
pub(crate) fn publish<T>(mut turn: Turn<'_>, run: impl FnOnce() -> T) -> T {
    struct Unpublish(*mut ());
    impl Drop for Unpublish {
        fn drop(&mut self) {
            current::with(|current| current.turn.set(self.0));
        }
    }
    let pointer = (&raw mut turn).cast::<()>();
    let _unpublish = Unpublish(current::with(|current| current.turn.replace(pointer)));
    run()
}

/// Calls a closure with the [`Turn`] of the reactor that runs this executor. The closure may do
/// everything that a handler may: register descriptors, start timers, stop.
///
/// Futures that are polled by an executor's task have a turn. So have their destructors, except
/// where the closure of another call of this function drops them. `None`, without a call, where
/// there is no turn: outside of [`block_on`](crate::block_on()), in a handler of the reactor (which
/// has its own), and inside of such a closure.
///
/// ```
/// use windlass_task::{block_on, with_turn};
///
/// let subscribers = block_on(async { with_turn(|turn| turn.stats().subscribers) });
/// assert!(subscribers.is_some());
/// assert!(with_turn(|_| ()).is_none(), "no executor runs here");
/// ```
#[inline]
pub fn with_turn<T>(call: impl FnOnce(Turn<'_>) -> T) -> Option<T> {
    struct PutBack(*mut ());
    impl Drop for PutBack {
        #[inline(always)]
        fn drop(&mut self) {
            current::with(|current| current.turn.set(self.0));
        }
    }
    let pointer = current::with(|current| current.turn.replace(ptr::null_mut()));
    if pointer.is_null() {
        return None;
    }
    let _put_back = PutBack(pointer);
    // SAFETY: the variable points to the turn that `publish` keeps on its stack and does not use,
    // and the variable was taken, so nothing else uses it (protocols 1 and 2). The closure takes a
    // turn of any lifetime, so it cannot keep it.
    let turn = unsafe { &mut *pointer.cast::<Turn<'_>>() };
    Some(call(turn.reborrow()))
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        future::poll_fn,
        rc::Rc,
        task::Poll,
        time::Duration,
    };

    use super::*;
    use crate::{AsyncFd, Direction, Executor, block_on, spawn, yield_now};

    /// Notes in which order things happen.
    #[derive(Clone, Default)]
    struct Log(Rc<RefCell<Vec<&'static str>>>);

    impl Log {
        fn add(&self, what: &'static str) {
            self.0.borrow_mut().push(what);
        }

        fn request(&self, handle: &Handle, what: &'static str) {
            let log = self.clone();
            handle.request(move |_| log.add(what));
        }
    }

    #[test]
    fn a_request_runs_at_once_where_there_is_a_turn() {
        let log = Log::default();
        block_on(async {
            let handle = Handle::expect_current();
            log.request(&handle, "request");
            log.add("after");
        });
        assert_eq!(*log.0.borrow(), ["request", "after"]);
    }

    #[test]
    fn inside_of_a_call_there_is_no_turn_and_a_request_is_queued_for_the_same_turn() {
        let log = Log::default();
        block_on(async {
            let handle = Handle::expect_current();
            let turns = handle.with_turn(|turn| {
                assert!(handle.with_turn(|_| ()).is_none());
                log.request(&handle, "request");
                log.add("call");
                turn.stats().turns
            });
            log.add("poll");
            yield_now().await;
            assert!(handle.with_turn(|_| ()).is_some(), "it was put back");
            let _ = turns;
        });
        assert_eq!(*log.0.borrow(), ["call", "poll", "request"]);
    }

    #[test]
    fn a_request_of_a_poll_runs_before_the_wait() {
        block_on(async {
            let handle = Handle::expect_current();
            let done = Rc::new(Cell::new(false));
            poll_fn(|context| {
                if done.get() {
                    return Poll::Ready(());
                }
                let (done, waker) = (Rc::clone(&done), context.waker().clone());
                let request = move |_: Turn<'_>| {
                    done.set(true);
                    waker.wake();
                };
                // There is no turn inside of a call, so the request is queued. Nothing else wakes
                // this task.
                handle.with_turn(|_| handle.request(request));
                Poll::Pending
            })
            .await;
        });
    }

    #[test]
    fn a_call_that_panics_puts_the_turn_back() {
        block_on(async {
            let task = spawn(async { with_turn(|_| std::panic::resume_unwind(Box::new(1))) });
            assert!(task.await.unwrap_err().is_panic());
            assert!(with_turn(|_| ()).is_some());
        });
        assert!(with_turn(|_| ()).is_none());
    }

    #[test]
    fn in_a_handler_a_request_is_queued_and_runs_before_the_next_wait() {
        let log = Log::default();
        block_on(async {
            let handle = Handle::expect_current();
            let (in_handler, log) = (handle.clone(), log.clone());
            let done = Rc::new(Cell::new(false));
            let is_done = Rc::clone(&done);
            let timer = move |_: Turn<'_>| {
                assert!(in_handler.with_turn(|_| ()).is_none());
                let done = Rc::clone(&done);
                in_handler.request(move |mut turn| {
                    // It reaches the reactor.
                    turn.after_with(Duration::ZERO, move |_| done.set(true)).unwrap();
                });
                log.request(&in_handler, "request");
                log.add("handler");
            };
            handle.with_turn(|mut turn| turn.after_with(Duration::ZERO, timer).map(drop).unwrap());
            while !is_done.get() {
                yield_now().await;
            }
        });
        assert_eq!(*log.0.borrow(), ["handler", "request"]);
    }

    #[test]
    fn between_runs_a_request_waits_and_after_the_end_it_is_dropped() {
        let log = Log::default();
        let mut executor = Executor::new().unwrap();
        let handle = executor.block_on(async { Handle::expect_current() });
        log.request(&handle, "first");
        assert!(log.0.borrow().is_empty());
        executor.block_on(async { log.add("run") });
        log.request(&handle, "second");
        let late = log.clone();
        handle.request({
            let handle = handle.clone();
            move |_| late.request(&handle, "by the second")
        });
        drop(executor);
        assert_eq!(*log.0.borrow(), ["first", "run", "second", "by the second"]);
        let token = Rc::new(());
        let held = Rc::clone(&token);
        handle.request(move |_| drop(held));
        assert_eq!(Rc::strong_count(&token), 1, "it is dropped at once");
        assert!(!handle.is_open());
        assert_eq!(log.0.borrow().len(), 4);
    }

    #[test]
    fn an_extension_is_one_value_and_goes_with_the_executor() {
        #[derive(Default)]
        struct Counter(Cell<u32>);
        let mut executor = Executor::new().unwrap();
        let kept = executor.block_on(async {
            let handle = Handle::expect_current();
            handle.extension::<Counter>().0.set(5);
            let other = handle.extension::<Cell<u8>>();
            assert_eq!((Rc::strong_count(&other), other.get()), (2, 0));
            handle.extension::<Counter>()
        });
        assert_eq!((kept.0.get(), Rc::strong_count(&kept)), (5, 2));
        drop(executor);
        assert_eq!(Rc::strong_count(&kept), 1);
    }

    #[test]
    fn new_requests_are_bounded_and_ends_are_not_rejected() {
        let mut executor = Executor::builder().queued_registrations_max(2).build().unwrap();
        let (log, in_call) = (Log::default(), Log::default());
        executor.block_on(async {
            let handle = Handle::expect_current();
            handle.with_turn(|_| {
                for what in ["first", "second"] {
                    let log = in_call.clone();
                    handle.request_new(move |_| log.add(what)).unwrap();
                }
                let token = Rc::new(());
                let held = Rc::clone(&token);
                let full = handle.request_new(move |_| drop(held)).unwrap_err();
                assert_eq!(Rc::strong_count(&token), 1, "a rejected closure is dropped");
                assert!(io::Error::from(full).to_string().starts_with("2 registrations wait"));
                for _ in 0..5 {
                    log.request(&handle, "end");
                }
            });
            queue_is_empty(&handle).await;
            // Those that have run make room.
            handle.with_turn(|_| handle.request_new(|_| ()).unwrap());
            // Where there is a turn, nothing is queued.
            (0..5).for_each(|_| handle.request_new(|_| ()).unwrap());
        });
        assert_eq!((in_call.0.borrow().len(), log.0.borrow().len()), (2, 5));
    }

    /// Requests of a poll run after the polls of its round.
    async fn queue_is_empty(handle: &Handle) {
        while !handle.local().requests.borrow().is_empty() {
            yield_now().await;
        }
    }

    /// The bound of what must not fail (protocol 4).
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no ppoll(2)")]
    fn a_descriptor_queues_at_most_three_requests() {
        const COUNT: usize = 10;
        let reactor = windlass::Reactor::builder().backend(windlass::Backend::Poll);
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let handle = Handle::expect_current();
            let (fds, peers): (Vec<_>, Vec<_>) = (0..COUNT)
                .map(|_| std::os::unix::net::UnixStream::pair().unwrap())
                .map(|(fd, peer)| (AsyncFd::new(fd).unwrap(), peer))
                .unzip();
            handle.with_turn(|_| {
                let mut context = core::task::Context::from_waker(core::task::Waker::noop());
                for fd in &fds {
                    for _ in 0..100 {
                        assert!(fd.poll_ready(Direction::Read, &mut context).is_pending());
                        assert!(fd.poll_ready(Direction::Write, &mut context).is_pending());
                    }
                }
                drop(fds);
                assert_eq!(handle.local().requests.borrow().len(), 3 * COUNT);
                assert!(peers.iter().all(|peer| !is_closed(peer)), "the ends wait for a turn");
            });
            queue_is_empty(&handle).await;
            assert!(peers.iter().all(is_closed), "no end was lost");
        });
    }

    fn is_closed(peer: &std::os::unix::net::UnixStream) -> bool {
        peer.set_nonblocking(true).unwrap();
        matches!(io::Read::read(&mut &*peer, &mut [0]), Ok(0))
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot make a socket non-blocking")]
    fn a_descriptor_too_many_gets_a_clear_error_and_its_value_back() {
        let mut executor = Executor::builder().queued_registrations_max(1).build().unwrap();
        executor.block_on(async {
            with_turn(|_| {
                let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
                let first = AsyncFd::new(one).unwrap();
                // It is dropped before it was registered, and still counts until the next turn.
                drop(first);
                let error = AsyncFd::try_new(other).unwrap_err();
                assert!(error.reason.to_string().contains("queued_registrations_max"));
                assert!(is_closed(&error.value), "it is returned, and the first was dropped");
            });
            queue_is_empty(&Handle::expect_current()).await;
            with_turn(|_| AsyncFd::new(std::os::unix::net::UnixStream::pair().unwrap().0).unwrap());
        });
    }
}
