//! The receiving end of a mailbox.

use core::fmt;
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};
use std::{collections::VecDeque, sync::Arc};

use super::{MailboxCore, Sender, Weighed};
use crate::{Latch, panics::Panics};

/// The receiving end of a mailbox. Its only owner drains it after a wake of the [`Latch`].
///
/// Dropping it closes the mailbox and drops the items in it.
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, Mailbox, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, mut inbox): (_, Mailbox<&str>) =
///     mailbox(Bounds::items(10), Arc::new(Latch::new()?));
/// let sending = std::thread::spawn(move || ["a", "b"].map(|item| sender.push(item)));
/// let mut received = Vec::new();
/// while received.len() < 2 {
///     inbox.latch().wait(None);
///     received.extend(inbox.drain(64));
/// }
/// assert_eq!(received, ["a", "b"]);
/// # drop(sending.join());
/// # Ok(())
/// # }
/// ```
pub struct Mailbox<T> {
    shared: Arc<MailboxCore<T>>,
    /// Items swapped out of the senders' half. They still count towards the bounds (protocol 2).
    front: VecDeque<Weighed<T>>,
    /// Items that have left since room was last given back.
    out_items: usize,
    out_bytes: usize,
}

impl<T> Mailbox<T> {
    pub(super) fn new(shared: Arc<MailboxCore<T>>) -> Self {
        Self { shared, front: VecDeque::new(), out_items: 0, out_bytes: 0 }
    }

    /// Creates another sender.
    #[must_use]
    pub fn sender(&self) -> Sender<T> {
        Sender::new(&self.shared)
    }

    /// The latch that the senders wake.
    #[must_use]
    pub fn latch(&self) -> &Latch {
        &self.shared.latch
    }

    /// Takes up to `max` items out, the oldest first. Dropping the iterator gives all their room
    /// back at once.
    ///
    /// It takes the lock once, and returns only the items that are present then. Later items are
    /// left for the next drain, because taking the lock for each item would be slow with fast
    /// senders. Those items have woken the latch.
    ///
    /// If the drain ends before the mailbox is empty, it wakes the latch, so the owner stays awake.
    /// A forgotten drain ([`core::mem::forget`]) never ends and does not wake the latch. The next
    /// drain gives its room back.
    pub fn drain(&mut self, max: usize) -> Drain<'_, T> {
        Drain { mailbox: self, left: max, has_swapped: false }
    }

    /// The number of items in the mailbox.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.lock().items - self.out_items
    }

    /// Whether the mailbox is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the mailbox. Later pushes fail, and the items in it can still be drained. Wakes
    /// everything that waits for room.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether no more items can arrive: the mailbox is closed, or the last sender was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let inner = self.shared.lock();
        inner.is_closed || inner.senders == 0
    }

    /// Swaps in the items that the senders have pushed; `front` must be empty (protocol 2).
    fn swap(&mut self) {
        core::mem::swap(&mut self.front, &mut self.shared.lock().queue);
    }

    /// The next item of the receiver's half.
    fn pop(&mut self) -> Option<T> {
        let Weighed { item, bytes } = self.front.pop_front()?;
        self.out_items += 1;
        self.out_bytes += bytes;
        Some(item)
    }

    /// Gives the room of the removed items back, and wakes everything that waits for room. Wakes
    /// the owner too if items are left. Items pushed after the swap do not count as left: their
    /// sender found an empty queue and has woken the latch (protocol 3).
    fn end_drain(&mut self, has_swapped: bool) {
        let has_room = self.out_items > 0;
        if has_swapped && !has_room {
            // The queue was empty.
            return;
        }
        let mut inner = self.shared.lock();
        let is_left = !self.front.is_empty() || (!has_swapped && !inner.queue.is_empty());
        inner.items -= core::mem::take(&mut self.out_items);
        inner.bytes -= core::mem::take(&mut self.out_bytes);
        let wakes = has_room.then(|| inner.waiting());
        drop(inner);
        // The latch comes before the wakers, because those may panic.
        if is_left {
            self.shared.latch.wake();
        }
        if let Some(wakes) = wakes {
            self.shared.notify(wakes);
        }
    }
}

/// The latch's descriptor, for a loop that polls the mailbox among others: see [`Latch::rearm`].
#[cfg(not(loom))]
impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.latch().as_fd()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut panics = Panics::default();
        panics.catch(|| self.shared.close());
        // Drop the items one by one, because their destructors may panic. The mailbox is closed, so
        // nothing arrives after one swap.
        for _ in 0..2 {
            while let Some(item) = self.pop() {
                panics.catch(|| drop(item));
            }
            self.swap();
        }
        panics.resume();
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("bounds", &self.shared.bounds)
            .field("len", &self.len())
            .finish()
    }
}

/// The items of one [`Mailbox::drain`]. Items that it has not returned when it is dropped stay in
/// the mailbox.
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, mut inbox) = mailbox(Bounds::items(2), Arc::new(Latch::new()?));
/// sender.push(1)?;
/// sender.push(2)?;
/// let mut drain = inbox.drain(64);
/// assert_eq!(drain.next(), Some(1));
/// assert!(sender.try_push(3).is_err(), "the room comes back when the drain ends");
/// drop(drain);
/// assert!(sender.try_push(3).is_ok());
/// assert!(inbox.drain(64).eq([2, 3]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Drain<'m, T> {
    mailbox: &'m mut Mailbox<T>,
    left: usize,
    has_swapped: bool,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        if self.mailbox.front.is_empty() && !self.has_swapped {
            self.has_swapped = true;
            self.mailbox.swap();
        }
        self.mailbox.pop()
    }
}

impl<T> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        self.mailbox.end_drain(self.has_swapped);
    }
}
