//! A bounded queue from many threads to one.
//!
//! # The protocol of this module
//!
//! 1. The bounds include the items that the receiver has not finished. An item takes room when it
//!    is pushed. It gives the room back when the [`Drain`] that took it ends, or by
//!    [`Drain::give_back`]. So the items in the mailbox and those held by the receiver never exceed
//!    the bounds together.
//! 2. The bytes are reserved before the place in the queue. A push that has bytes and gets no place
//!    gives them back as the receiver does (rule 4).
//! 3. A drain that ends arms the place of the next item. The sender that fills an armed place wakes
//!    the latch. If the item is there already, the drain wakes the latch itself.
//! 4. Giving room back wakes all waiting threads and tasks. One may need more bytes than are free,
//!    while another needs fewer. A waiter registers, and looks for room once more. The one that
//!    gives room back looks for waiters afterwards. A fence on each side makes sure that one sees
//!    the other.
//! 5. No user code runs while the lock of the waiters is held or a place is claimed. Items are
//!    weighed before. Wakers are cloned before, and woken and dropped after.
//!
//! The queue itself is in `ring.rs`, with a protocol of its own.

mod error;
mod push;
mod receive;
mod ring;
mod room;

use core::fmt;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

pub use error::{PushError, PushReason};
pub use push::Push;
pub use receive::{Drain, Mailbox};

use crate::{
    Latch,
    panics::discard_panic,
    sync::{self, AtomicUsize, Ordering},
};
use ring::Ring;
use room::Room;

/// The bounds of a mailbox. They include items that the receiver has taken and not finished.
///
/// ```
/// use windlass_flow::Bounds;
///
/// let bounds = Bounds::items(1000).bytes(1 << 20);
/// assert_eq!(bounds, Bounds { items_max: 1000, bytes_max: 1 << 20 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most items. A number above 2^24 (16 777 216) counts as 2^24.
    pub items_max: usize,
    /// The most bytes, as the mailbox's `weigh` counts them.
    pub bytes_max: usize,
}

impl Bounds {
    /// At most this many items, of any weight.
    #[must_use]
    pub const fn items(items_max: usize) -> Self {
        Self { items_max, bytes_max: usize::MAX }
    }

    /// Also limits the bytes.
    #[must_use]
    pub const fn bytes(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }
}

/// Creates a mailbox that wakes its receiver through `latch`. Its items weigh nothing, so only
/// their number is bounded.
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, PushReason, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, mut inbox) = mailbox(Bounds::items(2), Arc::new(Latch::new()?));
/// sender.push("one")?;
/// sender.push("two")?;
/// let rejected = sender.try_push("three").unwrap_err();
/// assert_eq!((rejected.reason, rejected.item.into_inner()), (PushReason::Full, "three"));
/// assert!(inbox.latch().is_woken());
/// assert!(inbox.drain(64).eq(["one", "two"]));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn mailbox<T>(bounds: Bounds, latch: Arc<Latch>) -> (Sender<T>, Mailbox<T>) {
    new_mailbox(bounds, latch, None)
}

/// Creates a mailbox that calls `weigh` once for each pushed item to get its weight.
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, weighed_mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let bounds = Bounds::items(100).bytes(10);
/// let (sender, mut inbox) = weighed_mailbox(bounds, Arc::new(Latch::new()?), Vec::len);
/// sender.push(vec![0_u8; 6])?;
/// assert!(sender.try_push(vec![0; 6]).is_err(), "12 bytes are more than 10");
/// inbox.drain(1).for_each(drop);
/// assert!(sender.try_push(vec![0; 6]).is_ok());
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn weighed_mailbox<T>(
    bounds: Bounds,
    latch: Arc<Latch>,
    weigh: fn(&T) -> usize,
) -> (Sender<T>, Mailbox<T>) {
    new_mailbox(bounds, latch, Some(weigh))
}

fn new_mailbox<T>(
    bounds: Bounds,
    latch: Arc<Latch>,
    weigh: Option<fn(&T) -> usize>,
) -> (Sender<T>, Mailbox<T>) {
    let side = Side {
        room: Room::new(),
        bytes: AtomicUsize::new(0),
        senders: AtomicUsize::new(0),
        bounds,
        latch,
        weigh,
    };
    let (shared, reader) = Ring::new(bounds.items_max, side);
    (Sender::new(&shared), Mailbox::new(reader))
}

/// How often a thread looks for room before it sleeps: first it spins for twice as long each time,
/// then it yields. To sleep and be woken takes longer than the receiver needs for many items.
const LOOKS: u32 = if cfg!(any(loom, miri)) { 0 } else { 12 };
/// How many of them spin.
const SPINNING_LOOKS: u32 = 7;

/// An item and its weight.
struct Weighed<T> {
    item: T,
    bytes: usize,
}

/// What the threads share.
type MailboxCore<T> = Ring<T, Side<T>>;

/// The state beside the queue.
struct Side<T> {
    room: Room,
    /// The sum of the weights that occupy room.
    bytes: AtomicUsize,
    senders: AtomicUsize,
    bounds: Bounds,
    latch: Arc<Latch>,
    /// `None`: items weigh nothing.
    weigh: Option<fn(&T) -> usize>,
}

/// An item that has found no room.
struct Rejection<T> {
    reason: PushReason,
    weighed: Weighed<T>,
    /// The push has given bytes back, so `announce_rejected` must be called (rule 2).
    must_announce: bool,
}

impl<T> Side<T> {
    /// Reserves bytes if they are free.
    fn reserve(&self, bytes: usize) -> bool {
        let reserved = |sum: usize| (bytes <= self.bounds.bytes_max - sum).then(|| sum + bytes);
        bytes == 0 || self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, reserved).is_ok()
    }

    fn unreserve(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
}

impl<T> MailboxCore<T> {
    /// Pushes an item if there is room. True if the latch must be woken (rule 3).
    #[inline]
    fn offer(&self, weighed: Weighed<T>) -> Result<bool, Rejection<T>> {
        let Weighed { item, bytes } = weighed;
        let bounds = &self.side.bounds;
        let reason = if bytes > bounds.bytes_max || bounds.items_max == 0 {
            PushReason::TooLarge
        } else if bytes == 0 || (self.has_room() && self.side.reserve(bytes)) {
            match self.push(item, bytes) {
                Ok(wakes) => return Ok(wakes),
                Err((reason, item)) => {
                    self.side.unreserve(bytes);
                    let weighed = Weighed { item, bytes };
                    return Err(Rejection { reason, weighed, must_announce: bytes > 0 });
                }
            }
        } else {
            PushReason::Full
        };
        let reason = if self.is_closed() { PushReason::Closed } else { reason };
        Err(Rejection { reason, weighed: Weighed { item, bytes }, must_announce: false })
    }

    /// Pushes an item if there is room, and wakes the receiver.
    #[inline]
    fn try_push(&self, weighed: Weighed<T>) -> Result<(), (PushReason, Weighed<T>)> {
        match self.offer(weighed) {
            Ok(wakes) => {
                if wakes {
                    self.side.latch.wake();
                }
                Ok(())
            }
            Err(rejection) => {
                if rejection.must_announce {
                    self.announce_rejected();
                }
                Err((rejection.reason, rejection.weighed))
            }
        }
    }

    /// Pushes an item as soon as there is room. `None`: no deadline.
    #[inline]
    fn push_or_wait(
        &self,
        weighed: Weighed<T>,
        deadline: Option<Instant>,
    ) -> Result<(), (PushReason, Weighed<T>)> {
        match self.try_push(weighed) {
            Err((PushReason::Full, weighed)) => self.wait_for_room(weighed, deadline),
            outcome => outcome,
        }
    }

    #[cold]
    fn wait_for_room(
        &self,
        mut weighed: Weighed<T>,
        deadline: Option<Instant>,
    ) -> Result<(), (PushReason, Weighed<T>)> {
        let has_passed = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        for look in 0..LOOKS {
            if has_passed() {
                return Err((PushReason::TimedOut, weighed));
            }
            if look < SPINNING_LOOKS {
                (0..1 << look).for_each(|_| core::hint::spin_loop());
            } else {
                thread::yield_now();
            }
            match self.try_push(weighed) {
                Err((PushReason::Full, rejected)) => weighed = rejected,
                outcome => return outcome,
            }
        }
        let mut waiting = self.side.room.register_thread();
        loop {
            match self.offer(weighed) {
                Ok(wakes) => {
                    drop(waiting);
                    if wakes {
                        self.side.latch.wake();
                    }
                    return Ok(());
                }
                Err(rejection) => {
                    weighed = rejection.weighed;
                    if rejection.must_announce {
                        drop(waiting);
                        self.announce_rejected();
                        waiting = self.side.room.register_thread();
                        if rejection.reason == PushReason::Full {
                            continue;
                        }
                    }
                    if rejection.reason != PushReason::Full {
                        return Err((rejection.reason, weighed));
                    }
                }
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err((PushReason::TimedOut, weighed));
            }
            waiting.wait(left);
        }
    }

    /// Tells waiters that bytes of a rejected item are free again. The wakers are not the caller's,
    /// and neither are their panics.
    #[cold]
    fn announce_rejected(&self) {
        let announce = AssertUnwindSafe(|| self.side.room.announce());
        discard_panic(catch_unwind(announce));
    }

    fn close_all(&self) {
        self.close();
        self.side.latch.wake();
        self.side.room.announce_all();
    }
}

/// The sending end of a mailbox. Clone it for each thread.
///
/// Items that one thread pushes come out in the order of the pushes, through any clones. Free room
/// goes to the first sender that asks for it. Waiting senders have no priority over new ones.
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, mut inbox) = mailbox(Bounds::items(10), Arc::new(Latch::new()?));
/// let other = sender.clone();
/// std::thread::scope(|scope| {
///     scope.spawn(move || (0..100).try_for_each(|n| sender.push(n)));
///     scope.spawn(move || (100..200).try_for_each(|n| other.push(n)));
///     let mut numbers = Vec::new();
///     while !(inbox.is_closed() && inbox.is_empty()) {
///         inbox.latch().wait(None);
///         numbers.extend(inbox.drain(64));
///     }
///     numbers.sort_unstable();
///     assert!(numbers.into_iter().eq(0..200));
/// });
/// # Ok(())
/// # }
/// ```
pub struct Sender<T> {
    shared: sync::Arc<MailboxCore<T>>,
}

impl<T> Sender<T> {
    fn new(shared: &sync::Arc<MailboxCore<T>>) -> Self {
        shared.side.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: sync::Arc::clone(shared) }
    }

    #[inline]
    fn weigh(&self, item: T) -> Weighed<T> {
        Weighed { bytes: self.shared.side.weigh.map_or(0, |weigh| weigh(&item)), item }
    }

    /// Pushes an item if there is room at present.
    ///
    /// # Errors
    /// The error returns the item. Its reason is:
    /// - `Full` if there is no room;
    /// - `TooLarge` if the item would not fit into an empty mailbox;
    /// - `Closed` if the mailbox was closed or dropped.
    #[inline]
    pub fn try_push(&self, item: T) -> Result<(), PushError<T>> {
        self.shared.try_push(self.weigh(item)).map_err(rejected)
    }

    /// Pushes an item. Waits for room if necessary.
    ///
    /// The receiver's own thread must not wait here, because only the receiver makes room.
    ///
    /// # Errors
    /// The error returns the item. Its reason is:
    /// - `TooLarge` if the item would not fit into an empty mailbox;
    /// - `Closed` if the mailbox was closed or dropped, also during the wait.
    #[inline]
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        self.shared.push_or_wait(self.weigh(item), None).map_err(rejected)
    }

    /// Pushes an item. Waits for room for at most `timeout`.
    ///
    /// # Errors
    /// The error returns the item. Its reason is:
    /// - `TimedOut` if there is still no room at the timeout;
    /// - `TooLarge` if the item would not fit into an empty mailbox;
    /// - `Closed` if the mailbox was closed or dropped, also during the wait.
    pub fn push_timeout(&self, item: T, timeout: Duration) -> Result<(), PushError<T>> {
        // A deadline beyond the clock's range means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        self.shared.push_or_wait(self.weigh(item), deadline).map_err(rejected)
    }

    /// Pushes an item as a future, which waits for room. It works with any executor, and does
    /// nothing before it is polled.
    ///
    /// Dropping the future drops the item, unless the mailbox has taken it. [`Push::into_item`]
    /// returns the item instead. The future's errors are those of [`push`](Self::push).
    pub fn push_async(&self, item: T) -> Push<T> {
        Push::new(self.clone(), self.weigh(item))
    }

    /// Closes the mailbox. Later pushes fail, and the items in it can still be drained. Wakes
    /// everything that waits for room.
    pub fn close(&self) {
        self.shared.close_all();
    }

    /// Whether the mailbox was closed or dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}

fn rejected<T>((reason, weighed): (PushReason, Weighed<T>)) -> PushError<T> {
    PushError { reason, item: weighed.item.into() }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // The receiver that sees that the last sender is gone also sees its items.
        if self.shared.side.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.side.latch.wake();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("bounds", &self.shared.side.bounds).finish_non_exhaustive()
    }
}
