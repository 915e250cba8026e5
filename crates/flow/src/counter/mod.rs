//! A counter with a maximum: eventfd(2) as a patch once proposed it, on any kernel.
//!
//! # The protocol of this module
//!
//! The state is one 64-bit word `{maximum, count}`; everything else only tells others that it has
//! changed. "A look" at the word is a read-modify-write that changes nothing (`look_again`). Of two
//! read-modify-writes one comes first and the second sees all that its thread saw and did. So of a
//! step of the word and a look, either the look finds the step, or the step's thread finds what the
//! looking thread did before. Acquire and release are enough for this; loom, which knows no more of
//! `SeqCst`, checks it.
//!
//! 1. **The word changes by compare-and-swap alone**, from a word with `count <= maximum` and
//!    `maximum >= 1` to another. A write of `n` needs `maximum - count > n`, so writes reach at
//!    most one below the maximum; a signal reaches it. Every load is checked; what no counter can
//!    hold is [`Corrupt`].
//! 2. **A thread that is about to wait says so, then looks, then waits.** By the above, a step that
//!    it has missed finds what it said.
//! 3. **A thread that has made a step tells.** Whoever adds tells the readers, whoever removes or
//!    changes the maximum tells the writers.
//! 4. **Blocking waits are futexes**, one list for readers and one for writers. The waiter notes
//!    the number of wakes, sets `waiting`, looks, and sleeps only while the number is what it was.
//!    The waker, after its step: where `waiting` is set it clears it, adds to the number, and only
//!    then wakes. Clearing first is right although somebody may set it in between: a waiter whose
//!    mark was cleared had noted the number before, so it is woken, or does not fall asleep.
//! 5. **Everybody is woken.** In semaphore mode a freed unit may go to a waiter of one or leave a
//!    waiter of several asleep; waking one could pick the one that cannot go on.
//! 6. **Each side has a descriptor that is changed only when its level changes, and only once it is
//!    exposed**, that is, asked for. Between threads it is an eventfd. The reader's is readable
//!    (not zero) iff `count > 0`. The writer's is writable iff `count < maximum - 1`: it is zero
//!    then, and else at the kernel's own maximum. Between processes both are timerfds used as flags
//!    (`flag.rs`), readable iff the side is ready. To expose is to make the descriptor, set the
//!    bit, look (rule 2), and reconcile (rule 7). So a counter that nobody polls makes no system
//!    call but for waits.
//! 7. **To reconcile is to show the level and to compare again, until it is still the level.**
//!    Every step across a level reconciles, unless the level is back already: then who crossed it
//!    back comes later and does. So at rest the descriptor is right, for any number of threads:
//!    take the last call on it. Its thread compared afterwards and agreed. A step across the level
//!    that this thread did not see has its own call still to come, and that would be later.
//! 8. **Before that it may be wrong**: a poller can wake in vain, and it can wait for a moment
//!    longer than it must, never for ever.
//! 9. **A writer that was refused gets an edge.** To one that polls edge-triggered, "not writable"
//!    that was never shown is no edge, and a freed unit that does not cross the level is none
//!    either, though it may be the one that was missing. A refused writer sets `STARVED`, looks,
//!    and tries once more. Who removes and finds the bit clears it and nudges: adds one to the
//!    descriptor, so that the read that shows "writable" is an edge. (A flag that is set is one
//!    always.) It never shows "not writable" for that: dying then, it would leave that. A reader
//!    needs none of this: showing "readable" is an edge always, and one that was refused saw zero.
//! 10. **Between processes, a death costs at most one wake**, and the next call of anybody makes up
//!     for it. One that dies between its step and the telling leaves the level untold, or `waiting`
//!     cleared without a wake. So there every addition reconciles the reader's side and every
//!     removal the writer's, whether or not it crosses; who is refused, and who exposes a side,
//!     reconciles both; and no futex wait is longer than 100 ms before it does the same. A process
//!     tells the other side first and its own last, so that what a dead one leaves undone on its
//!     own side is "ready": its peers on that side wake in vain, and reconcile. They must not lose
//!     that by being late: **whoever has made a side say "not ready" looks at the other side
//!     afterwards**, and so on until one says "ready" (`settle`). So a death leaves both sides at
//!     "not ready" in one case alone. One looks, is overtaken by others who make the side ready,
//!     says "not ready" all the same, and is killed before it compares. A write to a descriptor
//!     cannot be made to depend on the word, and to wait for one that is late would be to wait for
//!     a hostile one. Who must outlive this polls with a timeout and tries again.
//! 11. **What a page holds is a value, never an address.** A hostile peer can make us wait, wake in
//!     vain and count wrong. A corrupt page shows both sides ready and wakes everybody, for each
//!     operation answers with the error.
//! 12. **No peer makes a call wait that promises not to.** A shared descriptor is never read or
//!     written, for its `O_NONBLOCK` is the peers' too. Between processes every loop has a bound:
//!     of attempts to change the word (then it is corrupt), and of rounds to show a level (then the
//!     side says "ready", and who comes in vain looks again).

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
    error::{BuildError, Corrupt, PartsError, PartsReason, ReadError, SetMaximumError, WriteError},
    handles::{CounterReader, CounterWriter},
};
use self::{core::Core, sides::Side};
use crate::Errno;

/// A counter with a maximum: writers add and wait while there is no room, readers take.
///
/// It is what eventfd(2) would be with a maximum of one's choice, on any kernel:
/// [`write`](Self::write) adds, and reaches at most the maximum less one; [`read`](Self::read)
/// takes all of it, or one in semaphore mode; both wait, or say `WouldBlock` when
/// [non-blocking](CounterBuilder::nonblocking). [`signal`](Self::signal) never waits and may reach
/// the maximum itself, which is the [overflow](Self::is_overflowed) condition.
///
/// Either side can be polled: [`reader`](Self::reader) is readable while the count is above zero,
/// [`writer`](Self::writer) is writable while a write of one has room; between processes the
/// writer's side, too, is polled for reading. Both are exact as soon as no operation is under way,
/// and may wake in vain until then. A side that nobody has asked for costs nothing: a write and a
/// read that need not wait make no system call.
///
/// Between processes no peer, however hostile, makes a call wait that promises not to. A peer can
/// make the others wait or wake in vain, and give any count. A peer that is killed in the middle of
/// a call can take a wake with it, until anybody's next call. Calls that wait look again by
/// themselves, every 100 ms. Whoever polls and must go on without that peer polls with a timeout,
/// and tries when it is over: an attempt, also one that is refused, brings both sides up to date
/// for everybody.
///
/// Clones are the same counter. Any thread may use any of them at any time; to another process it
/// goes by [`into_parts`](Self::into_parts), if it was built to be
/// [shared](CounterBuilder::shared).
///
/// ```
/// use windlass_flow::EventCounter;
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(10)?;
/// std::thread::scope(|scope| {
///     // Waits whenever nine are there that nobody has read.
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
    /// An empty counter between threads, whose reads take all and whose calls wait.
    ///
    /// # Errors
    /// When the maximum is zero.
    pub fn new(maximum: u32) -> Result<Self, BuildError> {
        Self::builder().maximum(maximum).build()
    }

    /// A counter with other settings.
    pub fn builder() -> CounterBuilder {
        CounterBuilder::new()
    }

    /// Adds `n`, and waits while that would reach the maximum. A non-blocking counter does not
    /// wait.
    ///
    /// A signal handler that runs meanwhile changes nothing. Writers have no order: one of few
    /// units can overtake one of many.
    ///
    /// # Errors
    /// `Zero`, `TooLarge` when `n` is not below the maximum (also after
    /// [`set_maximum`](Self::set_maximum) while it waits), `Corrupt`; `WouldBlock` of a
    /// non-blocking counter.
    #[inline]
    pub fn write(&self, n: u32) -> Result<(), WriteError> {
        self.core.write(n)
    }

    /// The same, but waits no longer than this, and does wait on a non-blocking counter.
    ///
    /// A timeout of zero does not wait. One beyond the clock's end is for ever.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and `TimedOut` in place of `WouldBlock`.
    pub fn write_timeout(&self, n: u32, timeout: Duration) -> Result<(), WriteError> {
        self.core.write_timeout(n, timeout)
    }

    /// The same, but never waits.
    ///
    /// Whoever is refused may wait for [`writer`](Self::writer) to be writable, but that tells of
    /// room for one. A writer of several that polls level-triggered will spin, as with eventfd(2);
    /// edge-triggered it gets an edge whenever there is more room.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    #[inline]
    pub fn try_write(&self, n: u32) -> Result<(), WriteError> {
        self.core.try_write(n)
    }

    /// Takes all of the count, or one in semaphore mode, and waits while it is zero. A non-blocking
    /// counter does not wait.
    ///
    /// # Errors
    /// `Corrupt`; `WouldBlock` of a non-blocking counter.
    #[inline]
    pub fn read(&self) -> Result<u32, ReadError> {
        self.core.read()
    }

    /// The same, but waits no longer than this, and does wait on a non-blocking counter.
    ///
    /// A timeout of zero does not wait. One beyond the clock's end is for ever.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and `TimedOut` in place of `WouldBlock`.
    pub fn read_timeout(&self, timeout: Duration) -> Result<u32, ReadError> {
        self.core.read_timeout(timeout)
    }

    /// The same, but never waits.
    ///
    /// Whoever polls [`reader`](Self::reader) edge-triggered reads until it is refused.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    #[inline]
    pub fn try_read(&self) -> Result<u32, ReadError> {
        self.core.try_read()
    }

    /// Adds one, up to and including the maximum; never waits. False when the count was at the
    /// maximum already, and nothing was added.
    ///
    /// # Errors
    /// When the page is corrupt.
    #[doc(alias = "eventfd_signal")]
    #[inline]
    pub fn signal(&self) -> Result<bool, Corrupt> {
        self.core.signal()
    }

    /// Whether the count is at the maximum, which only [`signal`](Self::signal) can reach. Ends
    /// with the next read.
    ///
    /// Of an eventfd in the kernel this would be `EPOLLERR`; it cannot be raised from outside, so
    /// ask after a wake.
    ///
    /// # Errors
    /// When the page is corrupt.
    #[doc(alias = "EPOLLERR")]
    pub fn is_overflowed(&self) -> Result<bool, Corrupt> {
        self.core.word().map(|word| word.is_overflowed())
    }

    /// Changes the maximum, and wakes writers that wait: those for whom there is room now go on,
    /// those who could never fit now fail.
    ///
    /// # Errors
    /// `NotAboveCount` when it is not above the count; `Corrupt`.
    #[doc(alias = "EFD_IOC_SET_MAXIMUM")]
    pub fn set_maximum(&self, maximum: u32) -> Result<(), SetMaximumError> {
        self.core.set_maximum(maximum)
    }

    /// The maximum.
    ///
    /// # Errors
    /// When the page is corrupt.
    #[doc(alias = "EFD_IOC_GET_MAXIMUM")]
    pub fn maximum(&self) -> Result<u32, Corrupt> {
        self.core.word().map(|word| word.maximum())
    }

    /// The count of this moment.
    ///
    /// # Errors
    /// When the page is corrupt.
    pub fn count(&self) -> Result<u32, Corrupt> {
        self.core.word().map(|word| word.count())
    }

    /// Whether [`write`](Self::write) and [`read`](Self::read) say `WouldBlock` instead of waiting,
    /// for all clones in this process. Who waits already goes on waiting.
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

    /// Whether other processes can have it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.core.is_shared()
    }

    /// The side that is polled for reading: readable while the count is above zero.
    ///
    /// From now on each step to and from zero costs a system call.
    ///
    /// # Errors
    /// What eventfd(2) says the first time: `EMFILE`, say.
    pub fn reader(&self) -> Result<CounterReader, Errno> {
        self.core.expose(Side::Reader)?;
        Ok(CounterReader::new(self.clone()))
    }

    /// The side that is polled for writing: writable while the count is below the maximum less one.
    ///
    /// **That of a [shared](Self::is_shared) counter is polled for reading**: readable while a
    /// write of one has room. See [`CounterWriter`].
    ///
    /// From now on each step to and from that costs a system call.
    ///
    /// # Errors
    /// What eventfd(2) says the first time: `EMFILE`, say.
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
