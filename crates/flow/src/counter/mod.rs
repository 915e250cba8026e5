//! A counter with a maximum: eventfd(2) as a patch to the kernel once proposed it, on any kernel.
//!
//! # The protocol of this module
//!
//! The state is one 64-bit word `{maximum, count}`. Everything else only signals that it has
//! changed. "A look" at the word is a read-modify-write that changes nothing (`look_again`). Any
//! two read-modify-writes of the word are ordered. The thread of the second sees everything that
//! the thread of the first saw and did. This applies to a step of the word and a look: either the
//! look sees the step, or the stepping thread sees what the looking thread did before. Acquire and
//! release are enough for this. loom checks it, and models `SeqCst` no more strongly than that.
//!
//! 1. **The word changes by compare-and-swap alone**, from a word with `count <= maximum` and
//!    `maximum >= 1` to another such word. A write of `n` needs `maximum - count > n`, so writes
//!    reach at most one below the maximum. A signal can reach the maximum. Every load is checked;
//!    an invalid word is [`Corrupt`].
//! 2. **A thread that is about to wait first announces it, then looks, then waits.** As shown
//!    above, the thread of a step that the look missed sees the announcement.
//! 3. **A thread that has made a step notifies the other threads.** After an addition it notifies
//!    the readers. After a removal or a change of the maximum it notifies the writers.
//! 4. **Blocking waits are futexes**, with one list for readers and one for writers. The waiter
//!    reads the number of wakes, sets `waiting`, looks, and sleeps only while the number is
//!    unchanged. The waker acts after its step: if `waiting` is set, it clears it, increments the
//!    number, and only then wakes. Clearing first is correct even if a thread sets `waiting` in
//!    between. A waiter whose mark was cleared had read the number before, so it is woken or does
//!    not fall asleep.
//! 5. **All waiters are woken.** In semaphore mode a freed unit may suit a waiter that writes one,
//!    but not a waiter that writes several. Waking a single waiter could choose the one that cannot
//!    continue.
//! 6. **Each side has a descriptor. It changes only when the side's level changes, and only after
//!    it was exposed**, that is, requested. Between threads it is an eventfd. The reader's is
//!    readable (not zero) iff `count > 0`. The writer's is writable iff `count < maximum - 1`. It
//!    is zero then, and otherwise at the kernel's own maximum. Between processes both are timerfds
//!    used as flags (`flag.rs`), readable iff the side is ready. To expose a side means to create
//!    the descriptor, set the bit, look (rule 2), and reconcile (rule 7). So a counter that is
//!    never polled makes system calls only to wait.
//! 7. **To reconcile means to show the level and to compare it with the word again, until both
//!    agree.** Every step across a level reconciles, unless the level is back already. In that case
//!    the thread that crossed it back reconciles later. So the descriptor is right when all
//!    operations have ended, for any number of threads. Proof: take the last call on the
//!    descriptor. Its thread compared afterwards, and both agreed. A step across the level that
//!    this thread did not see would still have to make its own call, which would be later.
//! 8. **While operations run, the descriptor may be wrong.** A poller can get a spurious wake-up,
//!    and it can wait a moment too long, but never forever.
//! 9. **A rejected writer gets an edge.** A writer that polls edge-triggered can miss one. A "not
//!    writable" that was never shown causes no edge. A freed unit that does not cross the level
//!    causes none either, although it may be the missing one. So a rejected writer sets `REJECTED`,
//!    looks, and tries once more. A thread that removes units and finds the bit clears it and
//!    triggers an edge: it adds one to the descriptor, so that the read that shows "writable" is
//!    an edge. (Setting a flag is always an edge.) It never shows "not writable" for this, because
//!    its death would leave that state behind. Readers need none of this: showing "readable" is
//!    always an edge, and a rejected reader saw zero.
//! 10. **Between processes, a death costs at most one wake**, and the next call of any process
//!     makes up for it.
//!     - A process that dies between its step and the notification leaves the old level shown, or
//!       `waiting` cleared without a wake. Therefore every addition reconciles the reader's side,
//!       and every removal the writer's, whether or not it crosses the level. A rejected call and a
//!       call that exposes a side reconcile both sides. A futex wait lasts at most 100 ms before it
//!       does the same.
//!     - A process notifies the other side first and its own last. So a dead process leaves its own
//!       side at "ready". Its peers on that side get a spurious wake-up, and reconcile. A late peer
//!       must not lose this state: **a thread that has made a side show "not ready" looks at the
//!       other side afterwards**, and so on until one side shows "ready" (`settle`).
//!     - So a death leaves both sides at "not ready" in one case only. A process looks, others
//!       overtake it and make the side ready, it shows "not ready" nevertheless, and is killed
//!       before it compares. A write to a descriptor cannot depend on the word, and waiting for a
//!       late process would mean waiting for a hostile one. A caller that must survive this polls
//!       with a timeout and tries again.
//! 11. **A page holds values, never addresses.** A hostile peer can make this process wait, wake up
//!     spuriously and count wrong. A corrupt page shows both sides ready and wakes all waiters,
//!     because each operation then returns the error.
//! 12. **No peer can block a call that promises not to wait.** A shared descriptor is never read or
//!     written, because the peers share its `O_NONBLOCK` flag. Between processes every loop is
//!     bounded. The attempts to change the word are limited; beyond them the page counts as
//!     corrupt. The rounds to show a level are limited; beyond them the side shows "ready", and a
//!     poller that wakes up spuriously looks again.

mod builder;
mod core;
mod error;
#[cfg(not(loom))]
mod flag;
mod handles;
mod page;
#[cfg(not(loom))]
mod parts;
mod sides;
mod wait;
mod word;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

#[cfg(not(loom))]
pub use self::parts::CounterParts;
pub use self::{
    builder::CounterBuilder,
    error::{
        Corrupt, CounterBuildError, PartsError, PartsReason, ReadError, SetMaximumError, WriteError,
    },
    handles::{CounterReader, CounterWriter},
};
use self::{core::Core, sides::Side};
use crate::Errno;

/// A counter with a maximum. Writers add to it and wait while there is no room. Readers take from
/// it.
///
/// It works like eventfd(2) with a configurable maximum, on any kernel. [`write`](Self::write)
/// adds, and reaches at most the maximum less one. [`read`](Self::read) takes the whole count, or
/// one in semaphore mode. Both wait, or return `WouldBlock` if the counter is
/// [non-blocking](CounterBuilder::nonblocking). [`signal`](Self::signal) never waits and may reach
/// the maximum itself, which is the [overflow](Self::is_overflowed) condition.
///
/// Both sides can be polled. [`reader`](Self::reader) is readable while the count is above zero.
/// [`writer`](Self::writer) is writable while there is room for a write of one. Between processes
/// the writer's side is polled for reading too. Both are exact when no operation is running; until
/// then there may be spurious wake-ups. A side whose descriptor was never requested costs nothing:
/// writes and reads that need not wait make no system call.
///
/// Between processes, no peer can block a call that promises not to wait, however hostile it is. A
/// peer can make other processes wait or wake up spuriously, and can set any count. A peer that is
/// killed in the middle of a call can suppress one wake until the next call of any process. Waiting
/// calls look again by themselves, every 100 ms. A process that polls and must survive such a peer
/// polls with a timeout, and then tries the operation. Any attempt, even a rejected one, updates
/// both sides for all processes.
///
/// It differs from an eventfd with a maximum in the kernel in two ways. The count has 32 bits, and
/// not 64. And the kernel itself cannot add to it or read it: it is memory of the process. Where
/// the kernel is one side, as with an ioeventfd or irqfd of KVM, or the eventfd of AIO and VFIO,
/// use eventfd(2) there, and put the counter behind it: a handler that is called for the eventfd
/// adds to the counter. While there is no room it watches the [`writer`](Self::writer) instead, and
/// the rest stays in the eventfd. The example `kvm_counter` does this, with an irqfd for
/// the answers.
///
/// Clones refer to the same counter. Any thread may use any of them at any time. Use
/// [`into_parts`](Self::into_parts) to send a counter to another process, if it was built as
/// [shared](CounterBuilder::shared).
///
/// ```
/// use windlass_flow::EventCounter;
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(10)?;
/// std::thread::scope(|scope| {
///     // Waits whenever the count is nine.
///     scope.spawn(|| (0..100).try_for_each(|_| counter.write(1)));
///     let mut items = 0;
///     while items < 100 {
///         let n = counter.read()?;
///         assert!(n <= 9);
///         items += n;
///     }
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "eventfd")]
pub struct EventCounter {
    core: Arc<Core>,
}

impl EventCounter {
    /// Creates an empty counter between threads. Reads take the whole count, and calls wait.
    ///
    /// # Errors
    /// `ZeroMaximum` if the maximum is zero.
    pub fn new(maximum: u32) -> Result<Self, CounterBuildError> {
        Self::builder().maximum(maximum).build()
    }

    /// Starts a counter with other settings.
    pub fn builder() -> CounterBuilder {
        CounterBuilder::new()
    }

    /// Adds `n`. Waits while that would reach the maximum, unless the counter is non-blocking.
    ///
    /// A signal handler that runs meanwhile does not interrupt the wait. Writers are not ordered:
    /// one of few units can overtake one of many.
    ///
    /// # Errors
    /// - `Zero` if `n` is zero;
    /// - `TooLarge` if `n` is not below the maximum, also after [`set_maximum`](Self::set_maximum)
    ///   during the wait;
    /// - `WouldBlock` if there is no room and the counter is non-blocking;
    /// - `Corrupt` if the page is corrupt.
    #[inline]
    pub fn write(&self, n: u32) -> Result<(), WriteError> {
        self.core.write(n)
    }

    /// Like [`write`](Self::write), but waits at most for `timeout`, even if the counter is
    /// non-blocking.
    ///
    /// A timeout of zero does not wait. A timeout beyond the clock's range means no timeout.
    ///
    /// # Errors
    /// - `TimedOut` if there is still no room at the timeout;
    /// - `Zero`, `TooLarge` and `Corrupt` as for [`write`](Self::write).
    pub fn write_timeout(&self, n: u32, timeout: Duration) -> Result<(), WriteError> {
        self.core.write_timeout(n, timeout)
    }

    /// Like [`write`](Self::write), but never waits.
    ///
    /// After a rejection, wait for [`writer`](Self::writer) to be writable, which indicates room
    /// for one. A level-triggered poller that writes several will spin, as with eventfd(2). An
    /// edge-triggered one gets an edge whenever there is more room.
    ///
    /// # Errors
    /// - `WouldBlock` if there is no room;
    /// - `Zero`, `TooLarge` and `Corrupt` as for [`write`](Self::write).
    #[inline]
    pub fn try_write(&self, n: u32) -> Result<(), WriteError> {
        self.core.try_write(n)
    }

    /// Takes the whole count, or one in semaphore mode. Waits while the count is zero, unless the
    /// counter is non-blocking.
    ///
    /// # Errors
    /// - `WouldBlock` if the count is zero and the counter is non-blocking;
    /// - `Corrupt` if the page is corrupt.
    #[inline]
    pub fn read(&self) -> Result<u32, ReadError> {
        self.core.read()
    }

    /// Like [`read`](Self::read), but waits at most for `timeout`, even if the counter is
    /// non-blocking.
    ///
    /// A timeout of zero does not wait. A timeout beyond the clock's range means no timeout.
    ///
    /// # Errors
    /// - `TimedOut` if the count is still zero at the timeout;
    /// - `Corrupt` if the page is corrupt.
    pub fn read_timeout(&self, timeout: Duration) -> Result<u32, ReadError> {
        self.core.read_timeout(timeout)
    }

    /// Like [`read`](Self::read), but never waits.
    ///
    /// If you poll [`reader`](Self::reader) edge-triggered, read until this fails with
    /// `WouldBlock`.
    ///
    /// # Errors
    /// - `WouldBlock` if the count is zero;
    /// - `Corrupt` if the page is corrupt.
    #[inline]
    pub fn try_read(&self) -> Result<u32, ReadError> {
        self.core.try_read()
    }

    /// Adds one, up to and including the maximum. Never waits. Returns false if the count was
    /// already at the maximum, and adds nothing then.
    ///
    /// # Errors
    /// [`Corrupt`] if the page is corrupt.
    #[doc(alias = "eventfd_signal")]
    #[inline]
    pub fn signal(&self) -> Result<bool, Corrupt> {
        self.core.signal()
    }

    /// Whether the count is at the maximum, which only [`signal`](Self::signal) can reach. The next
    /// read ends this state.
    ///
    /// An eventfd in the kernel would report `EPOLLERR`. User space cannot raise that, so call this
    /// after a wake-up.
    ///
    /// # Errors
    /// [`Corrupt`] if the page is corrupt.
    #[doc(alias = "EPOLLERR")]
    pub fn is_overflowed(&self) -> Result<bool, Corrupt> {
        self.core.word().map(|word| word.is_overflowed())
    }

    /// Changes the maximum and wakes the waiting writers. Those that have room now continue. Those
    /// that can no longer fit fail.
    ///
    /// # Errors
    /// - `NotAboveCount` if the maximum is not above the count;
    /// - `Corrupt` if the page is corrupt.
    #[doc(alias = "EFD_IOC_SET_MAXIMUM")]
    pub fn set_maximum(&self, maximum: u32) -> Result<(), SetMaximumError> {
        self.core.set_maximum(maximum)
    }

    /// The maximum.
    ///
    /// # Errors
    /// [`Corrupt`] if the page is corrupt.
    #[doc(alias = "EFD_IOC_GET_MAXIMUM")]
    pub fn maximum(&self) -> Result<u32, Corrupt> {
        self.core.word().map(|word| word.maximum())
    }

    /// The current count.
    ///
    /// # Errors
    /// [`Corrupt`] if the page is corrupt.
    pub fn count(&self) -> Result<u32, Corrupt> {
        self.core.word().map(|word| word.count())
    }

    /// Sets whether [`write`](Self::write) and [`read`](Self::read) return `WouldBlock` instead of
    /// waiting. It applies to all clones in this process. Calls that already wait continue to wait.
    #[doc(alias = "O_NONBLOCK")]
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.core.nonblocking.store(nonblocking, Relaxed);
    }

    /// See [`set_nonblocking`](Self::set_nonblocking).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.core.nonblocking.load(Relaxed)
    }

    /// Whether a read takes one instead of all.
    #[must_use]
    #[doc(alias = "EFD_SEMAPHORE")]
    pub fn is_semaphore(&self) -> bool {
        self.core.semaphore
    }

    /// Whether other processes can use the counter.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.core.is_shared()
    }

    /// The reader's side, polled for reading. It is readable while the count is above zero.
    ///
    /// After this call, each step to and from zero costs a system call.
    ///
    /// # Errors
    /// On the first call, the error of eventfd(2), for example `EMFILE`.
    pub fn reader(&self) -> Result<CounterReader, Errno> {
        self.core.expose(Side::Reader)?;
        Ok(CounterReader::new(self.clone()))
    }

    /// The writer's side, polled for writing. It is writable while the count is below the maximum
    /// less one.
    ///
    /// **For a [shared](Self::is_shared) counter it is polled for reading instead**, and is
    /// readable while there is room for a write of one. See [`CounterWriter`].
    ///
    /// After this call, each step to and from that level costs a system call.
    ///
    /// # Errors
    /// On the first call, the error of eventfd(2), for example `EMFILE`.
    pub fn writer(&self) -> Result<CounterWriter, Errno> {
        self.core.expose(Side::Writer)?;
        Ok(CounterWriter::new(self.clone()))
    }
}

impl fmt::Debug for EventCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventCounter")
            .field("maximum", &self.maximum())
            .field("count", &self.count())
            .field("semaphore", &self.is_semaphore())
            .field("nonblocking", &self.is_nonblocking())
            .field("shared", &self.is_shared())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod deaths;
#[cfg(all(test, not(loom)))]
mod tests;
