//! A bounded queue from many threads to one.
//!
//! # The protocol of this module
//!
//! 1. What is bounded is what the receiver has not finished: an item takes its room when it is
//!    pushed and gives it back when the [`Drain`] that took it ends. So items in the mailbox and in
//!    the receiver's hands together never pass the bounds.
//! 2. The queue has two halves. Senders push to `Inner::queue` under the lock; the receiver swaps
//!    it for `Mailbox::front`, which is empty then, and pops from there without it; once a drain,
//!    so that it does not take the lock for each item of fast senders.
//! 3. Who pushes to an empty queue wakes the latch after it has let go of the lock. Who pushes to
//!    another leaves that to them: the receiver has not swapped since, and looks again after their
//!    wake. A drain that leaves items behind wakes the latch itself.
//! 4. Giving room back wakes all who wait for it, threads and tasks: one may want more bytes than
//!    there are, and another one less.
//! 5. No code of the user's runs under the lock: items are weighed before it is taken, wakers are
//!    cloned before, woken and dropped after.

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

/// How much a mailbox holds, what its receiver has taken and not finished included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most items.
    pub items_max: usize,
    /// The most bytes, as the mailbox's `weigh` counts them.
    pub bytes_max: usize,
}

impl Bounds {
    /// So many items, whatever they weigh.
    #[must_use]
    pub const fn items(items_max: usize) -> Self {
        Self { items_max, bytes_max: usize::MAX }
    }

    /// So many bytes at most, too.
    #[must_use]
    pub const fn bytes(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }
}

/// Makes a mailbox that wakes its receiver by `latch`. Its items weigh nothing: the number of them
/// is the bound.
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, PushReason, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, mut inbox) = mailbox(Bounds::items(2), Arc::new(Latch::new()?));
/// sender.push("one")?;
/// sender.push("two")?;
/// let refused = sender.try_push("three").unwrap_err();
/// assert_eq!((refused.reason, refused.item), (PushReason::Full, "three"));
/// assert!(inbox.latch().is_woken());
/// assert!(inbox.drain(64).eq(["one", "two"]));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn mailbox<T>(bounds: Bounds, latch: Arc<Latch>) -> (Sender<T>, Mailbox<T>) {
    weighed_mailbox(bounds, latch, |_| 0)
}

/// Makes a mailbox whose items weigh what `weigh` says, asked once when an item is pushed.
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
    let shared =
        Arc::new(Shared { inner: Mutex::new(inner), room: Condvar::new(), bounds, latch, weigh });
    (Sender::new(&shared), Mailbox::new(shared))
}

/// An item and what it weighs.
struct Weighed<T> {
    item: T,
    bytes: usize,
}

struct Shared<T> {
    inner: Mutex<Inner<T>>,
    /// Where threads wait for room.
    room: Condvar,
    bounds: Bounds,
    latch: Arc<Latch>,
    weigh: fn(&T) -> usize,
}

struct Inner<T> {
    queue: VecDeque<Weighed<T>>,
    /// Items that have their room: those of `queue`, and those that the receiver has and has not
    /// finished.
    items: usize,
    bytes: usize,
    senders: usize,
    is_closed: bool,
    /// Threads that wait for room.
    blocked: usize,
    /// Tasks that wait for room, by rising ticket.
    tasks: Vec<(u64, Waker)>,
    next_ticket: u64,
}

/// What wants to be woken, to be done when the lock is free.
#[must_use]
struct Wakes {
    blocked: bool,
    tasks: Vec<(u64, Waker)>,
}

impl<T> Inner<T> {
    /// Whether there is room, and if not, why.
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

    /// Takes an item that is admitted. True when the receiver has to be woken (protocol 3).
    fn take_in(&mut self, weighed: Weighed<T>) -> bool {
        let was_empty = self.queue.is_empty();
        self.items += 1;
        self.bytes += weighed.bytes;
        self.queue.push_back(weighed);
        was_empty
    }

    /// All who wait for room (protocol 4).
    fn waiting(&mut self) -> Wakes {
        Wakes { blocked: self.blocked > 0, tasks: core::mem::take(&mut self.tasks) }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // Nothing panics under the lock (protocol 5), so a poisoned one is whole.
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

    /// Pushes an item when there is room; `None`: however long that takes.
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

    /// Wakes those who wait for room, the lock being free. A waker that panics keeps no other from
    /// being woken.
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

/// The end of a mailbox that items are pushed into. Clone it for each thread.
///
/// The items of one sender come out in the order in which they were pushed, clones of it in one
/// thread included. Room goes to whoever asks first once there is some: those who waited have no
/// right before those who come.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    fn new(shared: &Arc<Shared<T>>) -> Self {
        shared.lock().senders += 1;
        Self { shared: Arc::clone(shared) }
    }

    fn weigh(&self, item: T) -> Weighed<T> {
        Weighed { bytes: (self.shared.weigh)(&item), item }
    }

    /// Pushes an item if there is room now.
    ///
    /// # Errors
    /// [`PushReason::Full`], `TooLarge` or `Closed`; the item comes back.
    pub fn try_push(&self, item: T) -> Result<(), PushError<T>> {
        self.shared.offer(self.weigh(item)).map_err(refused)
    }

    /// Pushes an item, and waits for room if there is none.
    ///
    /// The receiver's own thread must not wait here: nobody else makes room.
    ///
    /// # Errors
    /// [`PushReason::TooLarge`] or `Closed`, also when it is closed during the wait; the item comes
    /// back.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        self.shared.wait_for_room(self.weigh(item), None).map_err(refused)
    }

    /// Pushes an item, and waits for room no longer than `timeout`.
    ///
    /// # Errors
    /// [`PushReason::TimedOut`], `TooLarge` or `Closed`; the item comes back.
    pub fn push_timeout(&self, item: T, timeout: Duration) -> Result<(), PushError<T>> {
        // An end that no clock reaches is none.
        let deadline = Instant::now().checked_add(timeout);
        self.shared.wait_for_room(self.weigh(item), deadline).map_err(refused)
    }

    /// Pushes an item, and lets the task wait for room. For any executor; nothing happens before
    /// the future is polled.
    ///
    /// Dropping the future drops the item, if it was not taken; [`Push::into_item`] gets it back.
    pub fn push_async(&self, item: T) -> Push<T> {
        Push::new(self.clone(), self.weigh(item))
    }

    /// Closes the mailbox: nothing more goes in, what is in can be drained. All who wait for room
    /// hear of it.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether the mailbox is closed, or gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().is_closed
    }
}

fn refused<T>((reason, weighed): (PushReason, Weighed<T>)) -> PushError<T> {
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
