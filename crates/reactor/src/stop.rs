//! An end that anybody can ask for.

use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use windlass_flow::Latch;

use crate::{Errno, Event, Interest, Reactor, Subscriber, Turn, interest};

/// Makes a reactor's [`run`](Reactor::run) return, from any thread. Cheap to clone.
///
/// A stop that comes before `run` is not lost: that run returns at once. Each run consumes what was
/// asked before it returned. After the reactor is gone a stop does nothing.
#[derive(Clone)]
pub struct Stop(Arc<Shared>);

struct Shared {
    asked: AtomicBool,
    latch: Arc<Latch>,
}

impl Stop {
    /// The end of a reactor, and the latch that wakes it. The latch is asleep: every wake of a
    /// reactor that has no other use for it is to be heard by the descriptor, so that turns need
    /// not look.
    pub(crate) fn new() -> Result<Self, Errno> {
        let latch = Arc::new(Latch::new()?);
        fall_asleep(&latch);
        Ok(Self(Arc::new(Shared { asked: AtomicBool::new(false), latch })))
    }

    /// Asks for the end, and wakes the loop if it sleeps. Nothing is awaited.
    pub fn stop(&self) {
        if !self.0.asked.swap(true, Ordering::AcqRel) {
            self.0.latch.wake();
        }
    }

    /// Asks for the end from the loop's own thread, which is awake.
    pub(crate) fn ask(&self) {
        self.0.asked.store(true, Ordering::Release);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }

    /// Whether a stop was asked for since the last take.
    pub(crate) fn take(&self) -> bool {
        self.0.asked.swap(false, Ordering::AcqRel)
    }

    /// What wakes the loop.
    pub(crate) fn latch(&self) -> &Arc<Latch> {
        &self.0.latch
    }

    /// The subscriber that notices the wake. Edge-triggered where that is to be had, and never
    /// read: every write fires it again, which spares a read.
    pub(crate) fn edge_subscriber(&self) -> impl Subscriber<Reactor> + use<> {
        WakeSubscriber::<true>(Arc::clone(&self.0.latch))
    }

    /// The same, level-triggered, which clears the latch.
    pub(crate) fn level_subscriber(&self) -> impl Subscriber<Reactor> + use<> {
        WakeSubscriber::<false>(Arc::clone(&self.0.latch))
    }
}

/// Takes the wakes that have come and leaves the latch asleep.
pub(crate) fn fall_asleep(latch: &Latch) {
    while !latch.sleep() {
        latch.awake();
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("asked", &self.is_asked()).finish()
    }
}

struct WakeSubscriber<const EDGE: bool>(Arc<Latch>);

impl<const EDGE: bool> Subscriber<Reactor> for WakeSubscriber<EDGE> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn interest(&self) -> Interest {
        if EDGE { interest().read().edge_triggered() } else { interest().read() }
    }

    fn handle(&mut self, _: Event, mut turn: Turn<'_, Reactor>) {
        if !EDGE {
            // No ring is lost by this. Who has rung found the latch asleep, so before the last wait
            // ended: with a remote, the `awake` after that wait has taken the wake, for this comes
            // before the next wait; without one, the latch is put to sleep anew below, after it was
            // cleared.
            self.0.clear();
        }
        turn.ops().note_wake();
    }
}
