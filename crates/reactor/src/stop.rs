//! An end that anybody can ask for.

use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use crate::{Event, Interest, Reactor, Subscriber, Turn, interest};

/// Makes a reactor's [`run`](Reactor::run) return, from any thread. Cheap to clone.
///
/// A stop that comes before `run` is not lost: that run returns at once. Each run consumes what was asked before it
/// returned. After the reactor is gone a stop does nothing.
#[derive(Clone)]
pub struct Stop(Arc<Shared>);

struct Shared {
    asked: AtomicBool,
    wake: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> Result<Self, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared { asked: AtomicBool::new(false), wake })))
    }

    /// Asks for the end, and wakes the loop if it sleeps. Nothing is awaited.
    pub fn stop(&self) {
        if !self.0.asked.swap(true, Ordering::AcqRel) {
            // The counter is never read, so it holds one per stop: it cannot reach its maximum and refuse one.
            let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
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

    /// The subscriber that notices the wake. Edge-triggered and never read: every write fires it again, which spares a read.
    pub(crate) fn subscriber(&self) -> impl Subscriber<Reactor> + use<> {
        WakeSubscriber(self.clone())
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("asked", &self.is_asked()).finish()
    }
}

struct WakeSubscriber(Stop);

impl Subscriber<Reactor> for WakeSubscriber {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.0.wake.as_fd()
    }

    fn interest(&self) -> Interest {
        interest().read().edge_triggered()
    }

    fn handle(&mut self, _: Event, mut turn: Turn<'_, Reactor>) {
        turn.ops().note_wake();
    }
}
