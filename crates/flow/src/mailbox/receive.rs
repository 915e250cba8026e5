//! The receiver's end.

use core::fmt;
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};
use std::{collections::VecDeque, sync::Arc};

use super::{Sender, Shared, Weighed};
use crate::{Latch, panics::Panics};

/// The end of a mailbox that items come out of: one owner, who drains it when the [`Latch`] has
/// woken him.
///
/// Dropping it closes the mailbox and drops what is in it.
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
    /// Taken from the senders' half, and still in the bounds (protocol 2).
    front: VecDeque<Weighed<T>>,
    /// What has gone out since room was given back last.
    out_items: usize,
    out_bytes: usize,
}

impl<T> Mailbox<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared, front: VecDeque::new(), out_items: 0, out_bytes: 0 }
    }

    /// Another sender.
    #[must_use]
    pub fn sender(&self) -> Sender<T> {
        Sender::new(&self.shared)
    }

    /// What the senders wake.
    #[must_use]
    pub fn latch(&self) -> &Latch {
        &self.shared.latch
    }

    /// Takes up to `max` items out, the oldest first. Their room is given back in one go when the
    /// iterator is dropped.
    ///
    /// It gives out what is there when it comes to it, under one lock, and not what is pushed
    /// meanwhile: a receiver that ran after fast senders would take the lock for each item. Those
    /// items have woken the latch.
    ///
    /// What is left behind keeps the owner awake: the latch is woken if the drain ends before the
    /// mailbox is empty. A drain that never ends, because it is forgotten ([`core::mem::forget`]),
    /// wakes nobody; the next one gives its room back.
    pub fn drain(&mut self, max: usize) -> Drain<'_, T> {
        Drain { mailbox: self, left: max, has_swapped: false }
    }

    /// How many items are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.lock().items - self.out_items
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the mailbox: nothing more goes in, what is in can be drained. All who wait for room
    /// hear of it.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether nothing more will come: it is closed, or the last sender is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let inner = self.shared.lock();
        inner.is_closed || inner.senders == 0
    }

    /// Takes over what the senders have pushed; `front` is empty (protocol 2).
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

    /// Gives the room back of what has gone out, wakes those who wait for it, and the owner if he
    /// has left items behind. What came after the swap is not left behind: it was pushed to an
    /// empty queue (protocol 3).
    fn end_drain(&mut self, has_swapped: bool) {
        let has_room = self.out_items > 0;
        if has_swapped && !has_room {
            // It was empty.
            return;
        }
        let mut inner = self.shared.lock();
        let is_left = !self.front.is_empty() || (!has_swapped && !inner.queue.is_empty());
        inner.items -= core::mem::take(&mut self.out_items);
        inner.bytes -= core::mem::take(&mut self.out_bytes);
        let wakes = has_room.then(|| inner.waiting());
        drop(inner);
        // Before the wakers, which may panic.
        if is_left {
            self.shared.latch.wake();
        }
        if let Some(wakes) = wakes {
            self.shared.notify(wakes);
        }
    }
}

/// The latch's descriptor, by which a loop has the mailbox among others: see [`Latch::rearm`].
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
        // One by one: their destructors may panic. Closed, so after one swap nothing comes.
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

/// The items of one [`Mailbox::drain`]. What it has not given out when it is dropped stays in the
/// mailbox.
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
