//! A wake that costs a system call only when somebody sleeps.
//!
//! # The protocol of this module
//!
//! 1. `state` is `AWAKE`, `ASLEEP` or `WOKEN`. Any thread swaps it to `WOKEN`; who finds `ASLEEP`
//!    there, and nobody else, writes to the descriptor.
//! 2. The owner alone moves it elsewhere: from `AWAKE` to `ASLEEP` before it waits, which fails if
//!    a wake has come; to `AWAKE` after the wait, which says whether one has.
//! 3. So a wake is never lost: it comes before the owner's step to `ASLEEP`, which then fails, or
//!    after it, and then the descriptor is written.
//! 4. Both sides of a step are `AcqRel`: what a waker did before the wake is seen by the owner that
//!    takes it.

use core::fmt;
use std::time::Duration;

#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};

use crate::{
    Errno,
    sync::{AtomicU32, Ordering},
    sys::EventFd,
};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// Wakes one owner from any thread; only the wake that finds the owner asleep makes a system call.
///
/// The owner is a loop that waits for the latch's descriptor among others. It calls
/// [`sleep`](Self::sleep) before it waits, does not wait if that says no, and calls
/// [`awake`](Self::awake) after the wait; when that says yes it looks for what the wakers have
/// left, a queue's items say. A wake between `awake` and `sleep` costs its caller one atomic
/// operation.
///
/// The descriptor is watched edge-triggered and never read, which spares a call: each write is a
/// new edge. Where that is not to be had (poll(2)), [`clear`](Self::clear) it after the wait. A
/// thread that has nothing else to wait for calls [`wait`](Self::wait).
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
    wake: EventFd,
}

impl Latch {
    /// A latch whose owner is awake.
    ///
    /// # Errors
    /// What eventfd(2) says: `EMFILE` when the process has no descriptor left, say.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { state: AtomicU32::new(AWAKE), wake: EventFd::new()? })
    }

    /// Wakes the owner, or keeps it from falling asleep. From any thread, the owner's too.
    #[inline]
    pub fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // It is refused when 2^64 - 2 wakes were never cleared; then the descriptor is readable and
        // its edge came long ago.
        let _ = self.wake.write(1);
    }

    /// The owner is about to wait. False when a wake has come since [`awake`](Self::awake): then it
    /// must not wait, or not long.
    #[must_use = "when it says no, a wait could last for ever"]
    #[inline]
    pub fn sleep(&self) -> bool {
        // An owner that is asleep already stays so: nobody has woken it.
        match self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state == ASLEEP,
        }
    }

    /// Puts the latch to sleep, for an owner that its descriptor calls: one handler among others in
    /// a loop. If a wake has come since [`awake`](Self::awake), the descriptor is rung, so that the
    /// loop calls again: other handlers get their turn in between.
    ///
    /// Such an owner rearms before the descriptor is first watched, edge-triggered, and at the end
    /// of each call; it begins each with `awake`.
    pub fn rearm(&self) {
        if !self.sleep() {
            self.ring();
        }
    }

    /// The owner does not wait any more. True when a wake has come, and is taken by this.
    #[inline]
    pub fn awake(&self) -> bool {
        // Awake and not woken is the only state that the swap would not change.
        self.state.load(Ordering::Relaxed) != AWAKE
            && self.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// Whether a wake has come that no [`awake`](Self::awake) has taken. One load: for an owner
    /// that spins.
    #[must_use]
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Whether the owner sleeps, as far as the latch knows: then a wake will make a system call.
    #[must_use]
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASLEEP
    }

    /// Makes the descriptor unreadable, for an owner that does not watch it edge-triggered. Comes
    /// before [`awake`](Self::awake).
    pub fn clear(&self) {
        let _ = self.wake.read();
    }

    /// Waits for a wake and takes it, or until the time is over (`None`: for ever). True when one
    /// has come.
    ///
    /// For an owner that waits for nothing else. The wait may end early, by a signal or by the late
    /// ring of a wake that was taken long ago; so wait in a loop for what the wakers leave.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.sleep() {
            self.wake.wait(timeout);
            self.clear();
        }
        self.awake()
    }
}

/// Readable from the wake that finds the owner asleep until [`clear`](Latch::clear).
#[cfg(not(loom))]
impl AsFd for Latch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// What a model sees of the descriptor.
#[cfg(loom)]
impl Latch {
    /// How often a sleeper was rung.
    #[doc(hidden)]
    pub fn model_rings(&self) -> u64 {
        self.wake.edges().0.into()
    }

    /// Waits as an edge-triggered watch does, for more rings than `seen`; says how many there were.
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

    /// Whether the descriptor is readable now; makes it unreadable.
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
    fn rearming_rings_for_what_has_come() {
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
    fn of_many_wakes_the_first_alone_rings_a_sleeper() {
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
