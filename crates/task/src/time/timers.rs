//! The timers of one executor, from the sleeps' side.
//!
//! # The protocol of this module
//!
//! 1. Each armed sleep has one timer of the reactor, which owns the waker. The sleep owns the key.
//! 2. A timer that fires notes its deadline in `fired_ns`, and then wakes. So a sleep whose timer
//!    has a later deadline has not fired, and its poll reads no clock.
//! 3. A sleep that is dropped where it cannot cancel its timer hands the key back. That is so on
//!    other threads, and where there is no turn. Keys that were handed back are cancelled with the
//!    next timer that starts, ends or fires. A timer hands back at most one key, so there are never
//!    more of them than timers.
//! 4. With a paused clock, the deadlines of all timers are listed there. The clock is moved to the
//!    first one when nothing else can run.

use core::{
    cell::OnceCell,
    mem,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::Waker,
};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use windlass::{Key, Tick, TimerReason, Turn};
use windlass_flow::panics::Panics;

use crate::{
    handle::{Handle, extension, with_local, with_turn},
    process::OwnProcess,
    task::{current, shared::Shared},
    time::paused::{Paused, now},
};

/// A timer of the reactor: its key, and its deadline in nanoseconds since [`Timers::epoch`].
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerId {
    pub(super) deadline_ns: u64,
    key: Key,
}

/// The timers of one executor.
pub(super) struct Timers {
    /// Says which executor it is.
    executor: crate::sync::Arc<Shared>,
    process: OwnProcess,
    /// Before the deadlines of all timers.
    epoch: Instant,
    /// The latest deadline of the timers that have fired (protocol 2). Only the owner uses it.
    fired_ns: AtomicU64,
    has_returned: AtomicBool,
    is_requested: AtomicBool,
    returned: Mutex<Returned>,
}

/// Protocol 3.
#[derive(Default)]
struct Returned {
    is_closed: bool,
    timers: Vec<TimerId>,
}

/// The executor's reference. Dropping it at the executor's end closes the list.
#[derive(Default)]
struct LocalTimers(OnceCell<Arc<Timers>>);

impl Drop for LocalTimers {
    fn drop(&mut self) {
        if let Some(timers) = self.0.get() {
            let Some(mut returned) = timers.returned() else { return };
            returned.is_closed = true;
            returned.timers = Vec::new();
        }
    }
}

impl Timers {
    /// The timers of the executor that this thread runs. `None` if it runs none.
    #[inline]
    pub(super) fn current() -> Option<Arc<Self>> {
        let local = with_local(extension::<LocalTimers>)?;
        if let Some(timers) = local.0.get() {
            return Some(Arc::clone(timers));
        }
        let handle = Handle::current()?;
        Some(Arc::clone(local.0.get_or_init(|| Self::new(&handle))))
    }

    #[cold]
    fn new(handle: &Handle) -> Arc<Self> {
        Arc::new(Self {
            executor: crate::sync::Arc::clone(handle.owner().shared()),
            process: handle.local().process,
            epoch: now(),
            fired_ns: AtomicU64::new(0),
            has_returned: AtomicBool::new(false),
            is_requested: AtomicBool::new(false),
            returned: Mutex::default(),
        })
    }

    /// `None` in a child of fork(2), if a thread of the parent has held the lock.
    fn returned(&self) -> Option<MutexGuard<'_, Returned>> {
        // Nothing that may panic runs under the lock.
        self.process.lock(&self.returned)
    }

    /// Whether this thread runs the executor.
    #[inline]
    pub(super) fn are_current(&self) -> bool {
        current::is(crate::sync::Arc::as_ptr(&self.executor))
    }

    /// An instant in nanoseconds since the epoch. It is 0 before, and the largest number for what
    /// does not fit.
    #[inline]
    pub(super) fn since_epoch_ns(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// False if a timer with this deadline has not fired (protocol 2).
    #[inline]
    pub(super) fn may_have_fired(&self, deadline_ns: u64) -> bool {
        deadline_ns <= self.fired_ns.load(Ordering::Relaxed)
    }

    /// Starts a timer that wakes, in place of another one.
    #[inline]
    pub(super) fn start(
        self: &Arc<Self>,
        mut turn: Turn<'_>,
        deadline: Instant,
        waker: Waker,
        old: Option<TimerId>,
    ) -> Result<TimerId, TimerReason> {
        self.cancel_returned(turn.reborrow());
        if let Some(old) = old {
            self.cancel(turn.reborrow(), old);
        }
        let timers = Arc::clone(self);
        let fire = move |tick: Tick, turn: Turn<'_>| timers.fire(tick, turn, &waker);
        let key = turn.at(deadline, fire)?;
        let timer = TimerId { deadline_ns: self.since_epoch_ns(deadline), key };
        if let Some(paused) = Paused::current() {
            paused.add(timer.key, deadline);
        }
        Ok(timer)
    }

    fn fire(&self, tick: Tick, turn: Turn<'_>, waker: &Waker) {
        // It is the timer's own deadline, or a later one if that had passed.
        let due_ns = self.since_epoch_ns(tick.deadline);
        if due_ns > self.fired_ns.load(Ordering::Relaxed) {
            self.fired_ns.store(due_ns, Ordering::Relaxed);
        }
        if let Some(paused) = Paused::current() {
            paused.remove(tick.key);
        }
        let mut panics = Panics::default();
        panics.catch(|| self.cancel_returned(turn));
        panics.catch(|| waker.wake_by_ref());
        panics.resume();
    }

    /// Moves a timer to an earlier deadline. `None` if that cannot be done here, or the timer has
    /// fired.
    pub(super) fn bring_forward(&self, timer: TimerId, deadline: Instant) -> Option<TimerId> {
        if !self.are_current() {
            return None;
        }
        with_turn(|mut turn| turn.reset_at(timer.key, deadline))?.ok()?;
        if let Some(paused) = Paused::current() {
            paused.remove(timer.key);
            paused.add(timer.key, deadline);
        }
        Some(TimerId { deadline_ns: self.since_epoch_ns(deadline), ..timer })
    }

    /// Ends a timer: at once, or later (protocol 3).
    pub(super) fn end(self: &Arc<Self>, timer: TimerId) {
        let is_current = self.are_current();
        let end = |mut turn: Turn<'_>| {
            self.cancel_returned(turn.reborrow());
            self.cancel(turn, timer);
        };
        if !is_current || with_turn(end).is_none() {
            self.give_back(timer, is_current);
        }
    }

    fn cancel(&self, mut turn: Turn<'_>, timer: TimerId) {
        if let Some(paused) = Paused::current() {
            paused.remove(timer.key);
        }
        // It is stale if the timer has fired.
        let _ = turn.cancel(timer.key);
    }

    #[cold]
    fn give_back(self: &Arc<Self>, timer: TimerId, is_current: bool) {
        let Some(mut returned) = self.returned() else { return };
        if returned.is_closed {
            return;
        }
        returned.timers.push(timer);
        drop(returned);
        self.has_returned.store(true, Ordering::Release);
        let handle = if is_current { Handle::current() } else { None };
        if let Some(handle) = handle {
            if !self.is_requested.swap(true, Ordering::Relaxed) {
                let timers = Arc::clone(self);
                handle.request(move |turn| {
                    timers.is_requested.store(false, Ordering::Relaxed);
                    timers.cancel_returned(turn);
                });
            }
        }
    }

    /// Cancels the timers that were handed back (protocol 3).
    #[inline]
    fn cancel_returned(&self, turn: Turn<'_>) {
        if self.has_returned.load(Ordering::Relaxed) {
            self.cancel_all_returned(turn);
        }
    }

    #[cold]
    fn cancel_all_returned(&self, mut turn: Turn<'_>) {
        // Cleared first, so that a key that comes meanwhile is not forgotten.
        self.has_returned.swap(false, Ordering::Acquire);
        let Some(mut returned) = self.returned() else { return };
        let timers = mem::take(&mut returned.timers);
        drop(returned);
        let mut panics = Panics::default();
        for timer in timers {
            // The destructor of a waker may panic.
            panics.catch(|| self.cancel(turn.reborrow(), timer));
        }
        panics.resume();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;
    use crate::Executor;

    /// As in a child of fork(2), when another thread of the parent hands a timer back.
    #[test]
    fn destructors_in_a_child_of_fork_do_not_wait_for_the_list() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let mut executor = Executor::new().unwrap();
            executor.block_on(async {
                let handle = Handle::expect_current();
                let (local, mut timers) = (LocalTimers::default(), Timers::new(&handle));
                Arc::get_mut(&mut timers).unwrap().process = OwnProcess::foreign();
                local.0.set(Arc::clone(&timers)).ok().unwrap();
                let deadline = now() + Duration::from_secs(60);
                let timer =
                    with_turn(|turn| timers.start(turn, deadline, Waker::noop().clone(), None));
                let timer = timer.unwrap().unwrap();
                timers.has_returned.store(true, Ordering::Relaxed);
                let held = timers.returned.lock().unwrap();
                with_turn(|_| timers.end(timer)).unwrap();
                timers.end(timer);
                drop(local);
                drop(held);
            });
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("it waits for a lock");
    }
}
