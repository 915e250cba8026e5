//! The receiving end of a mailbox.

use core::fmt;
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};

use super::{
    MailboxCore, Sender, Side,
    ring::{Present, Reader},
};
use crate::{Latch, panics::Panics, sync::Ordering};

/// After a drain of more than one item, the receiver waits for this number of pauses, a fraction of
/// a microsecond, before it relies on a wake. Senders that push steadily have pushed again by then,
/// and a wake would cost them more.
const PAUSES: u32 = if cfg!(any(loom, miri)) { 0 } else { 16 };

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
    reader: Reader<T, Side<T>>,
    /// The position below which room was given back.
    released: usize,
    /// The weight of the items that have left since.
    out_bytes: usize,
    /// Room was given back, and the waiting senders have not been woken.
    must_announce: bool,
}

impl<T> Mailbox<T> {
    pub(super) fn new(reader: Reader<T, Side<T>>) -> Self {
        Self { reader, released: 0, out_bytes: 0, must_announce: false }
    }

    fn shared(&self) -> &MailboxCore<T> {
        self.reader.ring()
    }

    /// Creates another sender.
    #[must_use]
    pub fn sender(&self) -> Sender<T> {
        Sender::new(self.reader.ring())
    }

    /// The latch that the senders wake.
    #[must_use]
    pub fn latch(&self) -> &Latch {
        &self.shared().side.latch
    }

    /// Takes up to `max` items out, the oldest first. Dropping the iterator gives all their room
    /// back at once.
    ///
    /// It returns only the items that are present at its first item. Later items are left for the
    /// next drain. Otherwise fast senders could keep one drain busy for ever.
    ///
    /// If the drain ends before the mailbox is empty, it wakes the latch, so the owner stays awake.
    /// Otherwise the next push wakes it. A forgotten drain ([`core::mem::forget`]) never ends: it
    /// does not wake the latch, and the next push may not wake it. The next drain gives its room
    /// back.
    pub fn drain(&mut self, max: usize) -> Drain<'_, T> {
        let begin = self.reader.head();
        Drain { mailbox: self, left: max, begin, present: None }
    }

    /// The number of items in the mailbox.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reader.len()
    }

    /// Whether the mailbox is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the mailbox. Later pushes fail, and the items in it can still be drained. Wakes
    /// everything that waits for room.
    pub fn close(&self) {
        self.shared().close_all();
    }

    /// Whether no more items can arrive: the mailbox is closed, or the last sender was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let shared = self.shared();
        shared.is_closed() || shared.side.senders.load(Ordering::Acquire) == 0
    }

    /// Takes the next item out.
    #[inline]
    fn pop(&mut self, present: Present) -> Option<T> {
        let (item, bytes) = self.reader.pop(present)?;
        self.out_bytes += bytes;
        Some(item)
    }

    /// Gives the room of the removed items back. The end of the drain wakes the waiting senders.
    fn give_back(&mut self) {
        if self.released != self.reader.head() {
            self.released = self.reader.head();
            self.reader.release();
            let bytes = core::mem::take(&mut self.out_bytes);
            self.shared().side.unreserve(bytes);
            self.must_announce = true;
        }
    }

    /// Gives the room of the removed items back, and wakes everything that waits for room. Wakes
    /// the owner too if items are left (rule 3).
    fn end_drain(&mut self, begin: usize) {
        self.give_back();
        if self.reader.head() - begin > 1 {
            (0..PAUSES).for_each(|_| core::hint::spin_loop());
        }
        // The latch comes before the wakers, because those may panic.
        if !self.reader.arm() {
            self.shared().side.latch.wake();
        }
        if core::mem::take(&mut self.must_announce) {
            self.shared().side.room.announce();
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
        panics.catch(|| self.shared().close_all());
        // Drop the items one by one, because their destructors may panic. The mailbox is closed, so
        // nothing arrives any more.
        let present = self.reader.present();
        while let Some(item) = self.pop(present) {
            panics.catch(|| drop(item));
        }
        panics.resume();
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("bounds", &self.shared().side.bounds)
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
    /// The position at which it began.
    begin: usize,
    present: Option<Present>,
}

impl<T> Drain<'_, T> {
    /// Gives the room of the items returned so far back before the drain ends. The caller has
    /// finished with them. Senders that sleep until there is room are woken when the drain ends.
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
    /// assert!(sender.try_push(3).is_err());
    /// drain.give_back();
    /// assert!(sender.try_push(3).is_ok());
    /// assert!(sender.try_push(4).is_err(), "2 and 3 are in");
    /// # Ok(())
    /// # }
    /// ```
    pub fn give_back(&mut self) {
        self.mailbox.give_back();
    }
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        let mailbox = &mut *self.mailbox;
        let present = *self.present.get_or_insert_with(|| mailbox.reader.present());
        mailbox.pop(present)
    }
}

impl<T> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        self.mailbox.end_drain(self.begin);
    }
}
