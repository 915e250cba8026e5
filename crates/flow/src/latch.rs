//! A wake-up that makes a system call only if its receiver sleeps.
//!
//! # The protocol of this module
//!
//! 1. `state` is `AWAKE`, `ASLEEP` or `WOKEN`. Any thread swaps it to `WOKEN`. Only the thread that
//!    finds `ASLEEP` there writes to the descriptor.
//! 2. Only the owner sets the other states. It moves from `AWAKE` to `ASLEEP` before it waits,
//!    which fails if a wake has arrived. It sets `AWAKE` after the wait, which returns whether a
//!    wake has arrived.
//! 3. So no wake is lost. If it arrives before the owner's step to `ASLEEP`, that step fails. If it
//!    arrives after it, the descriptor is written.
//! 4. Both sides of a step are `AcqRel`. The owner that takes a wake therefore sees everything that
//!    the waker did before it.

use core::fmt;
use std::time::Duration;

#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(all(feature = "sim", not(loom)))]
use crate::bell::{Bell, SimBell};
#[cfg(any(not(feature = "sim"), loom))]
use crate::sys::EventFd as Bell;
use crate::{
    Errno,
    sync::{AtomicU32, Ordering},
};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// Wakes one owner from any thread. Only a wake that finds the owner asleep makes a system call.
///
/// The owner is a loop that waits for the latch's descriptor among others. It calls
/// [`sleep`](Self::sleep) before it waits, and does not wait if that returns false. It calls
/// [`awake`](Self::awake) after the wait. If that returns true, it processes the wakers' data, for
/// example the items of a queue. A wake between `awake` and `sleep` costs its caller one atomic
/// operation.
///
/// Watch the descriptor edge-triggered and never read it. This saves a system call, because each
/// write is a new edge. If the loop cannot do this (poll(2)), [`clear`](Self::clear) the descriptor
/// after the wait. A thread that waits for nothing else calls [`wait`](Self::wait).
///
/// ```
/// use windlass_flow::Latch;
///
/// # fn main() -> std::io::Result<()> {
/// let latch = Latch::new()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| latch.wake());
///     latch.wait(None);
/// });
/// # Ok(())
/// # }
/// ```
pub struct Latch {
    state: AtomicU32,
    wake: Bell,
}

impl Latch {
    /// Creates a latch whose owner is awake.
    ///
    /// # Errors
    /// The error of eventfd(2), for example `EMFILE` if the process has no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { state: AtomicU32::new(AWAKE), wake: Bell::new()? })
    }

    /// Creates a latch without a descriptor, whose owner is awake. A wake that finds the owner
    /// asleep rings the bell. For a simulation.
    #[cfg(all(feature = "sim", not(loom)))]
    #[doc(hidden)]
    pub fn simulated(bell: impl SimBell) -> Self {
        Self { state: AtomicU32::new(AWAKE), wake: Bell::Simulated(Box::new(bell)) }
    }

    /// The bell, if it is one of this type.
    #[cfg(all(feature = "sim", not(loom)))]
    #[doc(hidden)]
    pub fn sim_bell<B: SimBell>(&self) -> Option<&B> {
        match &self.wake {
            Bell::Descriptor(_) => None,
            Bell::Simulated(bell) => (**bell).as_any().downcast_ref(),
        }
    }

    /// Wakes the owner, or prevents its next sleep. Any thread may call it, including the owner's.
    #[inline]
    pub fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // The write fails after 2^64 - 2 wakes without a clear. The descriptor is readable then,
        // and its edge came long ago.
        let _ = self.wake.write(1);
    }

    /// Announces that the owner is about to wait. False if a wake has arrived since
    /// [`awake`](Self::awake). The owner must then not wait, or only briefly.
    #[must_use = "when it says no, a wait could last for ever"]
    #[inline]
    pub fn sleep(&self) -> bool {
        // An owner that is already asleep stays so, because no wake has arrived.
        match self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state == ASLEEP,
        }
    }

    /// Puts the latch to sleep, for an owner that is one handler among others in a loop. If a wake
    /// has arrived since [`awake`](Self::awake), it writes to the descriptor, so that the loop
    /// calls the handler again. Other handlers run in between.
    ///
    /// Such an owner calls it before the descriptor is first watched, edge-triggered, and at the
    /// end of each call. It begins each call with `awake`.
    pub fn rearm(&self) {
        if !self.sleep() {
            self.ring();
        }
    }

    /// Announces that the owner has stopped waiting. True if a wake has arrived; this call takes
    /// it.
    #[inline]
    pub fn awake(&self) -> bool {
        // `AWAKE` is the only state that the swap would not change.
        self.state.load(Ordering::Relaxed) != AWAKE
            && self.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// Whether a wake has arrived that no [`awake`](Self::awake) has taken. One load, for an owner
    /// that spins.
    #[must_use]
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Whether the owner is asleep according to the latch. A wake would then make a system call.
    #[must_use]
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASLEEP
    }

    /// Makes the descriptor unreadable, for an owner that does not watch it edge-triggered. Call it
    /// before [`awake`](Self::awake).
    pub fn clear(&self) {
        let _ = self.wake.read();
    }

    /// Waits for a wake and takes it, or until the timeout (`None`: no timeout). True if a wake has
    /// arrived.
    ///
    /// For an owner that waits for nothing else. The wait may end early, because of a signal or the
    /// late write of a wake that was taken before. Call it in a loop that checks the wakers' data.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.sleep() {
            self.wake.wait(timeout);
            self.clear();
        }
        self.awake()
    }
}

/// Readable from a wake that finds the owner asleep until [`clear`](Latch::clear).
#[cfg(not(loom))]
impl AsFd for Latch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The descriptor as a loom model sees it.
#[cfg(loom)]
impl Latch {
    /// How many times a sleeping owner was woken.
    #[doc(hidden)]
    pub fn model_rings(&self) -> u64 {
        self.wake.edges().0.into()
    }

    /// Waits like an edge-triggered watch for more wakes than `seen`. Returns how many there were.
    #[doc(hidden)]
    pub fn model_edge(&self, seen: u64) -> u64 {
        self.wake.wait_readable_edge(u32::try_from(seen).expect("a model rings a few times"));
        self.model_rings()
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("is_woken", &self.is_woken()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whether the descriptor is readable now. Makes it unreadable.
    fn rang(latch: &Latch) -> bool {
        latch.wake.read()
    }

    #[test]
    fn a_wake_of_a_running_owner_writes_nothing_and_is_not_lost() {
        let latch = Latch::new().unwrap();
        latch.wake();
        latch.wake();
        assert!(!rang(&latch));
        assert!(latch.is_woken());
        assert!(!latch.sleep(), "the owner must not wait");
        assert!(latch.awake());
        assert!(!latch.awake(), "a wake is taken once");
        assert!(latch.sleep());
    }

    #[test]
    fn rearming_writes_if_a_wake_has_arrived() {
        let latch = Latch::new().unwrap();
        latch.rearm();
        assert!(!rang(&latch));
        latch.wake();
        assert!(rang(&latch));
        assert!(latch.awake());
        latch.wake();
        assert!(!rang(&latch), "the owner is awake");
        latch.rearm();
        assert!(rang(&latch), "it is called again");
        assert!(latch.awake());
        latch.rearm();
        assert!(!rang(&latch) && latch.is_asleep());
    }

    #[test]
    fn only_the_first_of_many_wakes_writes() {
        let latch = Latch::new().unwrap();
        assert!(latch.sleep());
        assert!(latch.sleep(), "asleep already");
        latch.wake();
        assert!(rang(&latch));
        latch.wake();
        assert!(!rang(&latch));
        assert!(latch.awake());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no ppoll(2)")]
    fn a_wait_ends_by_a_wake_before_it_during_it_or_by_time() {
        let latch = Latch::new().unwrap();
        assert!(!latch.wait(Some(Duration::ZERO)));
        latch.wake();
        assert!(latch.wait(None));
        std::thread::scope(|scope| {
            scope.spawn(|| latch.wake());
            assert!(latch.wait(None));
        });
        assert!(!latch.wait(Some(Duration::ZERO)), "what has rung is cleared");
    }
}
