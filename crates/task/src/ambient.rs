//! How code finds the executor that runs it, and the reactor's turn.
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

#![allow(
    unsafe_code,
    reason = "a turn is lent through a thread-local pointer; owners are told by their thread"
)]

use core::{any::TypeId, ptr};
use std::rc::Rc;

use windlass::Turn;
use windlass_flow::panics::Panics;

use crate::{
    sync::Arc,
    task::{
        current,
        shared::{Local, OwnerShared, Phase, Request},
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

    /// Whether the executor still runs or may run again. If not, no operation will ever complete.
    pub(crate) fn is_open(&self) -> bool {
        self.local().phase.get() == Phase::Open
    }

    /// Calls a closure with the turn. `None`, without a call, where there is no turn (protocol 3).
    pub(crate) fn with_turn<T>(&self, call: impl FnOnce(Turn<'_>) -> T) -> Option<T> {
        if current::is(Arc::as_ptr(self.0.shared())) { with_turn(call) } else { None }
    }

    /// Calls a closure with the turn: at once if there is one, else in the executor's next turn. If
    /// the executor is gone, the closure is dropped.
    #[allow(dead_code, reason = "for the modules of timers and sockets")]
    pub(crate) fn request(&self, call: impl FnOnce(Turn<'_>) + 'static) {
        let mut call = Some(call);
        let run = |turn: Turn<'_>| {
            if let Some(call) = call.take() {
                call(turn);
            }
        };
        if self.with_turn(run).is_some() {
            return;
        }
        let Some(call) = call else { return };
        if self.local().phase.get() != Phase::Closed {
            let request: Request = Box::new(call);
            self.local().requests.borrow_mut().push_back(request);
        }
    }

    /// Runs the queued requests. Those that they queue wait for the next call. False if there are
    /// some.
    pub(crate) fn run_requests(&self) -> bool {
        let count = self.local().requests.borrow().len();
        for _ in 0..count {
            // The borrow ends before the request runs.
            let Some(request) = self.pop_request() else { break };
            if self.with_turn(request).is_none() {
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
                let _: Option<()> = self.with_turn(request);
            });
        }
    }

    fn pop_request(&self) -> Option<Request> {
        self.local().requests.borrow_mut().pop_front()
    }

    /// The executor's value of this type, which is made by the first call. For the modules of this
    /// crate: a value for all sockets, or for all timers. It is dropped at the executor's end, with
    /// the reactor alive and after all tasks.
    pub(crate) fn extension<T: Default + 'static>(&self) -> Rc<T> {
        let id = TypeId::of::<T>();
        let found = {
            let extensions = self.local().extensions.borrow();
            extensions.iter().find(|(of, _)| *of == id).map(|(_, value)| Rc::clone(value))
        };
        if let Some(Ok(value)) = found.map(Rc::downcast) {
            return value;
        }
        let value = Rc::new(T::default());
        if self.local().phase.get() != Phase::Closed {
            self.local().extensions.borrow_mut().push((id, Rc::clone(&value) as _));
        }
        value
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
    let place = (&raw mut turn).cast::<()>();
    let _unpublish = Unpublish(current::with(|current| current.turn.replace(place)));
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
pub fn with_turn<T>(call: impl FnOnce(Turn<'_>) -> T) -> Option<T> {
    struct PutBack(*mut ());
    impl Drop for PutBack {
        fn drop(&mut self) {
            current::with(|current| current.turn.set(self.0));
        }
    }
    let place = current::with(|current| current.turn.replace(ptr::null_mut()));
    if place.is_null() {
        return None;
    }
    let _put_back = PutBack(place);
    // SAFETY: the variable points to the turn that `publish` keeps on its stack and does not use,
    // and the variable was taken, so nothing else uses it (protocols 1 and 2). The closure takes a
    // turn of any lifetime, so it cannot keep it.
    let turn = unsafe { &mut *place.cast::<Turn<'_>>() };
    Some(call(turn.reborrow()))
}
