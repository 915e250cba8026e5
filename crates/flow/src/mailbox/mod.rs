//! A bounded queue from many threads to one.
//!
//! # The protocol of this module
//!
//! 1. The bounds include the items that the receiver has not finished. An item takes room when it
//!    is pushed. It gives the room back when the [`Drain`] that took it ends. So the items in the
//!    mailbox and those held by the receiver never exceed the bounds together.
//! 2. The queue has two halves. Senders push to `Inner::queue` under the lock. The receiver swaps
//!    it for `Mailbox::front`, which is empty then, and pops from there without the lock. It swaps
//!    once per drain, so it does not take the lock for each item of fast senders.
//! 3. A sender that pushes to an empty queue wakes the latch after it has released the lock. A
//!    sender that pushes to a non-empty queue does not: the receiver has not swapped since the
//!    earlier push, and will look again after its wake. A drain that leaves items behind wakes the
//!    latch itself.
//! 4. Giving room back wakes all waiting threads and tasks. One may need more bytes than are free,
//!    while another needs fewer.
//! 5. No user code runs under the lock. Items are weighed before it is taken. Wakers are cloned
//!    before it, and woken and dropped after it.

mod error;
mod push;
mod receive;

use core::fmt;
use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError},
    task::Waker,
    time::{Duration, Instant},
};

pub use error::{PushError, PushReason};
pub use push::Push;
pub use receive::{Drain, Mailbox};

use crate::{
    Latch,
    panics::Panics,
    sync::{Condvar, Mutex, MutexGuard},
};

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
    /// The most items.
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
/// assert_eq!((rejected.reason, rejected.item), (PushReason::Full, "three"));
/// assert!(inbox.latch().is_woken());
/// assert!(inbox.drain(64).eq(["one", "two"]));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn mailbox<T>(bounds: Bounds, latch: Arc<Latch>) -> (Sender<T>, Mailbox<T>) {
    weighed_mailbox(bounds, latch, |_| 0)
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
    let inner = Inner {
        queue: VecDeque::new(),
        items: 0,
        bytes: 0,
        senders: 0,
        is_closed: false,
        blocked: 0,
        tasks: Vec::new(),
        next_ticket: 0,
    };
    let shared = Arc::new(MailboxCore {
        inner: Mutex::new(inner),
        room: Condvar::new(),
        bounds,
        latch,
        weigh,
    });
    (Sender::new(&shared), Mailbox::new(shared))
}

/// An item and its weight.
struct Weighed<T> {
    item: T,
    bytes: usize,
}

struct MailboxCore<T> {
    inner: Mutex<Inner<T>>,
    /// Threads wait here for room.
    room: Condvar,
    bounds: Bounds,
    latch: Arc<Latch>,
    weigh: fn(&T) -> usize,
}

struct Inner<T> {
    queue: VecDeque<Weighed<T>>,
    /// Items that occupy room: those in `queue`, and those that the receiver has not finished.
    items: usize,
    bytes: usize,
    senders: usize,
    is_closed: bool,
    /// How many threads wait for room.
    blocked: usize,
    /// The tasks that wait for room, in ascending order of tickets.
    tasks: Vec<(u64, Waker)>,
    next_ticket: u64,
}

/// The threads and tasks to wake after the lock is released.
#[must_use]
struct Wakes {
    blocked: bool,
    tasks: Vec<(u64, Waker)>,
}

impl<T> Inner<T> {
    /// Whether there is room, or else the reason.
    fn admits(&self, bounds: Bounds, bytes: usize) -> Result<(), PushReason> {
        if self.is_closed {
            Err(PushReason::Closed)
        } else if bytes > bounds.bytes_max || bounds.items_max == 0 {
            Err(PushReason::TooLarge)
        } else if self.items >= bounds.items_max || bytes > bounds.bytes_max - self.bytes {
            Err(PushReason::Full)
        } else {
            Ok(())
        }
    }

    /// Queues an item that was admitted. True if the receiver must be woken (protocol 3).
    fn take_in(&mut self, weighed: Weighed<T>) -> bool {
        let was_empty = self.queue.is_empty();
        self.items += 1;
        self.bytes += weighed.bytes;
        self.queue.push_back(weighed);
        was_empty
    }

    /// Everything that waits for room (protocol 4).
    fn waiting(&mut self) -> Wakes {
        Wakes { blocked: self.blocked > 0, tasks: core::mem::take(&mut self.tasks) }
    }
}

impl<T> MailboxCore<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // No code panics under the lock (protocol 5), so a poisoned lock guards consistent data.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes an item if there is room.
    fn offer(&self, weighed: Weighed<T>) -> Result<(), (PushReason, Weighed<T>)> {
        let mut inner = self.lock();
        if let Err(reason) = inner.admits(self.bounds, weighed.bytes) {
            return Err((reason, weighed));
        }
        let wakes = inner.take_in(weighed);
        drop(inner);
        if wakes {
            self.latch.wake();
        }
        Ok(())
    }

    /// Pushes an item as soon as there is room. `None`: no deadline.
    fn wait_for_room(
        &self,
        weighed: Weighed<T>,
        deadline: Option<Instant>,
    ) -> Result<(), (PushReason, Weighed<T>)> {
        let mut inner = self.lock();
        loop {
            match inner.admits(self.bounds, weighed.bytes) {
                Ok(()) => break,
                Err(PushReason::Full) => {}
                Err(reason) => return Err((reason, weighed)),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err((PushReason::TimedOut, weighed));
            }
            inner.blocked += 1;
            inner = match left {
                None => self.room.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.room.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            inner.blocked -= 1;
        }
        let wakes = inner.take_in(weighed);
        drop(inner);
        if wakes {
            self.latch.wake();
        }
        Ok(())
    }

    /// Wakes the waiting threads and tasks, after the lock was released. A waker that panics does
    /// not prevent the other wake-ups.
    fn notify(&self, wakes: Wakes) {
        if wakes.blocked {
            self.room.notify_all();
        }
        let mut panics = Panics::default();
        for (_, waker) in wakes.tasks {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }

    fn close(&self) {
        let mut inner = self.lock();
        let wakes = inner.waiting();
        inner.is_closed = true;
        drop(inner);
        self.latch.wake();
        self.notify(wakes);
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
    shared: Arc<MailboxCore<T>>,
}

impl<T> Sender<T> {
    fn new(shared: &Arc<MailboxCore<T>>) -> Self {
        shared.lock().senders += 1;
        Self { shared: Arc::clone(shared) }
    }

    fn weigh(&self, item: T) -> Weighed<T> {
        Weighed { bytes: (self.shared.weigh)(&item), item }
    }

    /// Pushes an item if there is room at present.
    ///
    /// # Errors
    /// The error returns the item. Its reason is:
    /// - `Full` if there is no room;
    /// - `TooLarge` if the item would not fit into an empty mailbox;
    /// - `Closed` if the mailbox was closed or dropped.
    pub fn try_push(&self, item: T) -> Result<(), PushError<T>> {
        self.shared.offer(self.weigh(item)).map_err(rejected)
    }

    /// Pushes an item. Waits for room if necessary.
    ///
    /// The receiver's own thread must not wait here, because only the receiver makes room.
    ///
    /// # Errors
    /// The error returns the item. Its reason is:
    /// - `TooLarge` if the item would not fit into an empty mailbox;
    /// - `Closed` if the mailbox was closed or dropped, also during the wait.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        self.shared.wait_for_room(self.weigh(item), None).map_err(rejected)
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
        self.shared.wait_for_room(self.weigh(item), deadline).map_err(rejected)
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
        self.shared.close();
    }

    /// Whether the mailbox was closed or dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().is_closed
    }
}

fn rejected<T>((reason, weighed): (PushReason, Weighed<T>)) -> PushError<T> {
    PushError { reason, item: weighed.item }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.senders -= 1;
        let was_last = inner.senders == 0;
        drop(inner);
        if was_last {
            self.shared.latch.wake();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("bounds", &self.shared.bounds).finish_non_exhaustive()
    }
}
