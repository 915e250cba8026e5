//! The handle that stops a reactor from any thread.

use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use windlass_flow::Latch;

use crate::{
    Errno, Event, Interest, Subscriber, Turn,
    api::ops::{OwnEvent, ReactorOps, Token},
    interest,
};

/// Makes a reactor's [`run`](crate::Reactor::run) return, from any thread. Cheap to clone.
///
/// A stop requested before `run` is not lost: that `run` returns at once. Each `run` consumes the
/// requests made before it returns. After the reactor is dropped, a stop does nothing.
///
/// ```
/// use std::thread;
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let stop = reactor.stop_handle();
/// let thread = thread::spawn(move || stop.stop());
/// reactor.run()?;
/// thread.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[doc(alias = "eventfd")]
#[derive(Clone)]
pub struct Stop(Arc<StopState>);

struct StopState {
    asked: AtomicBool,
    latch: Arc<Latch>,
}

impl Stop {
    /// Makes the stop flag and the latch that wakes the loop. The latch starts asleep. If the
    /// reactor uses it for nothing else, every wake is reported by the descriptor, and turns need
    /// not check the latch.
    pub(crate) fn new() -> Result<Self, Errno> {
        let latch = Arc::new(Latch::new()?);
        fall_asleep(&latch);
        Ok(Self(Arc::new(StopState { asked: AtomicBool::new(false), latch })))
    }

    /// The same for a reactor of a simulation. A wake that finds the latch asleep rings the
    /// bell.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(bell: impl windlass_flow::SimBell) -> Self {
        let latch = Arc::new(Latch::simulated(bell));
        fall_asleep(&latch);
        Self(Arc::new(StopState { asked: AtomicBool::new(false), latch }))
    }

    /// Requests a stop and wakes the loop if it sleeps. Does not wait for the loop to end.
    pub fn stop(&self) {
        if !self.0.asked.swap(true, Ordering::AcqRel) {
            self.0.latch.wake();
        }
    }

    /// Requests a stop from the loop's own thread, which is awake.
    pub(crate) fn ask(&self) {
        self.0.asked.store(true, Ordering::Release);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }

    /// Whether a stop was requested since the last `take`.
    pub(crate) fn take(&self) -> bool {
        self.0.asked.swap(false, Ordering::AcqRel)
    }

    /// The latch that wakes the loop.
    pub(crate) fn latch(&self) -> &Arc<Latch> {
        &self.0.latch
    }

    /// The subscriber that detects a wake. Edge-triggered if the backend supports it. Its
    /// descriptor is never read: every write fires it again, which saves a read.
    pub(crate) fn edge_subscriber(&self) -> impl Subscriber + use<> {
        WakeSubscriber::<true>(Arc::clone(&self.0.latch))
    }

    /// The level-triggered variant, which clears the latch.
    pub(crate) fn level_subscriber(&self) -> impl Subscriber + use<> {
        WakeSubscriber::<false>(Arc::clone(&self.0.latch))
    }
}

/// Consumes pending wakes and leaves the latch asleep.
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

impl<const EDGE: bool> Subscriber for WakeSubscriber<EDGE> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn interest(&self) -> Interest {
        if EDGE { interest().read().edge_triggered() } else { interest().read() }
    }

    fn handle(&mut self, _: Event, mut turn: Turn<'_>) {
        if !EDGE {
            // No wake is lost here. A caller that rang the descriptor found the latch asleep, so it
            // did so before the last wait ended. With a remote, the `awake` after that wait
            // consumed the wake, because this handler runs before the next wait. Without a remote,
            // the latch is put to sleep again below, after it was cleared.
            self.0.clear();
        }
        turn.ops().own_event(OwnEvent::Wake, Token(()));
    }
}
