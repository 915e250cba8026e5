//! The queue of a mailbox: slots that senders claim and fill without a lock.
//!
//! # The protocol of this module
//!
//! 1. Items have positions, which count up from zero. `tail` holds the next position and whether
//!    the ring is closed. A sender claims a position by compare-and-swap of `tail`. So the pushes
//!    of one thread have ascending positions, and a closed ring gives out no position.
//! 2. A position is given out only if it is less than `items_max` above `released`. All items below
//!    `released` are finished.
//! 3. Slots lie in blocks of a fixed length. An entry of `directory` is the block of a range of
//!    positions, or null. Any thread replaces a null by a new block. The reader takes a block out
//!    after it has emptied all its slots, and before it releases the last of their positions.
//!    `(directory.len() - 1)` blocks have at least `items_max` slots. So, by rule 2, a sender never
//!    finds a block of an earlier range in the entry of a position that it may claim. It looks for
//!    the block before it claims, so nothing can fail after the claim.
//! 4. The state of a slot is `EMPTY`, `ARMED`, `ABANDONED` or published. A sender swaps in
//!    published, after it has written the item. The item belongs to that sender from the claim to
//!    the swap, and then to the reader. The swap is the sender's last access to the block, except
//!    in rule 6.
//! 5. The reader arms the slot at its head, whether it is claimed or not, before it relies on a
//!    wake. The sender that finds `ARMED` wakes it. So a wake comes after the publication, and a
//!    sender that is preempted after its claim delays only later positions.
//! 6. The reader of a closed ring does not wait for a slot that is claimed and not published. It
//!    swaps in `ABANDONED` and goes on. The sender finds that and takes its item back. A block with
//!    such a slot stays in the directory until the ring is dropped. The sender holds the ring.
//! 7. A ring has one reader. It alone changes `released`.

#![allow(unsafe_code, reason = "slots that threads pass to each other; the protocol above")]

use core::{
    marker::PhantomData,
    mem::{self, MaybeUninit},
    panic::{RefUnwindSafe, UnwindSafe},
    ptr,
};

use super::PushReason;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Ordering, UnsafeCell};

/// The largest number of items of a ring. Its directory then has 64 KiB.
pub(super) const ITEMS_MAX: usize = 1 << 24;

/// A block has a quarter of the bound, at most this number of slots while the directory stays
/// small. Longer blocks are replaced less often.
const BLOCK_LEN_MAX: usize = if cfg!(loom) { 2 } else { 128 };

/// The reader puts an emptied block into the next free one of this number of entries. So a queue of
/// the default bound allocates nothing after it was full once, and a long one frees the memory that
/// it does not need.
const AHEAD: usize = 9;

/// In `tail`, beside the position.
const CLOSED: usize = 1;
const ONE: usize = 2;

// States of a slot. From `PUBLISHED` on, the state is the item's weight plus `PUBLISHED`.
const EMPTY: usize = 0;
const ARMED: usize = 1;
const ABANDONED: usize = 2;
const PUBLISHED: usize = 3;
/// The state for a weight that is too large to be added. `huge_weight` has the weight.
const PUBLISHED_HUGE: usize = usize::MAX;

/// Keeps a value off the cache lines of others. It takes two lines, because processors fetch them
/// in pairs.
#[repr(align(128))]
struct OwnLines<V>(V);

struct Slot<T> {
    state: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

/// The words that senders write.
struct Tail {
    /// The next position, shifted, and [`CLOSED`] (rule 1).
    next: AtomicUsize,
    /// A value that `released` had. Senders read `released` itself only if this one says that the
    /// ring is full.
    released_seen: AtomicUsize,
}

/// The slots, and `side`, the state of the mailbox beside them.
pub(super) struct Ring<T, S> {
    tail: OwnLines<Tail>,
    released: OwnLines<AtomicUsize>,
    directory: Box<[AtomicPtr<Slot<T>>]>,
    block_shift: u32,
    items_max: usize,
    /// The weight of the one item whose state is [`PUBLISHED_HUGE`].
    huge_weight: AtomicUsize,
    pub(super) side: S,
    /// The items move between threads. They are never shared.
    items: PhantomData<*mut T>,
}

// SAFETY: the ring moves items between threads, which `T: Send` permits. Rule 4 says which thread
// has access to an item, so no two have it at a time.
unsafe impl<T: Send, S: Send> Send for Ring<T, S> {}
// SAFETY: as above. A shared ring gives no reference to an item.
unsafe impl<T: Send, S: Send + Sync> Sync for Ring<T, S> {}
/// No panic comes between two steps of the protocol.
impl<T, S> RefUnwindSafe for Ring<T, S> {}

/// A position that a sender has claimed and must fill, and its block.
struct Claim<T> {
    position: usize,
    block: *mut Slot<T>,
}

/// The items that were in the ring at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    end: usize,
    is_closed: bool,
}

/// The receiving end (rule 7).
pub(super) struct Reader<T, S> {
    ring: Arc<Ring<T, S>>,
    /// The block of `head`. It is in the directory.
    block: *mut Slot<T>,
    /// The next position to take.
    head: usize,
    /// A slot of `block` was abandoned (rule 6).
    keeps_block: bool,
}

// SAFETY: the reader owns the items from their publication to their release, and `T: Send`.
unsafe impl<T: Send, S: Send + Sync> Send for Reader<T, S> {}
// SAFETY: a shared reader gives no access to items.
unsafe impl<T: Send, S: Send + Sync> Sync for Reader<T, S> {}
/// No panic comes between two steps of the protocol.
impl<T, S> UnwindSafe for Reader<T, S> {}
impl<T, S> RefUnwindSafe for Reader<T, S> {}

/// Allocates a block of empty slots.
fn new_block<T>(len: usize) -> *mut Slot<T> {
    let slot =
        |_| Slot { state: AtomicUsize::new(EMPTY), item: UnsafeCell::new(MaybeUninit::uninit()) };
    let slots: Box<[Slot<T>]> = (0..len).map(slot).collect();
    Box::into_raw(slots).cast()
}

/// Frees a block. Its slots hold no items.
///
/// # Safety
/// The block comes from [`new_block`] with this length, and nothing uses it again.
unsafe fn free_block<T>(block: *mut Slot<T>, len: usize) {
    let slots = ptr::slice_from_raw_parts_mut(block, len);
    // SAFETY: `new_block` made the box, and the caller gives it up.
    drop(unsafe { Box::from_raw(slots) });
}

impl<T, S> Ring<T, S> {
    /// Creates a ring for at most `items_max` items, and at most [`ITEMS_MAX`]. One item at a time
    /// may have a weight above half of `usize::MAX`; the caller sees to that.
    pub(super) fn new(items_max: usize, side: S) -> (Arc<Self>, Reader<T, S>) {
        let items_max = items_max.min(ITEMS_MAX);
        let bound = items_max.next_power_of_two();
        let block_len = (bound / 4).clamp(1, BLOCK_LEN_MAX.max(bound >> 12));
        let entries = (items_max.div_ceil(block_len) + 1).next_power_of_two();
        let ring = Arc::new(Self {
            tail: OwnLines(Tail { next: AtomicUsize::new(0), released_seen: AtomicUsize::new(0) }),
            released: OwnLines(AtomicUsize::new(0)),
            directory: (0..entries).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            block_shift: block_len.trailing_zeros(),
            items_max,
            huge_weight: AtomicUsize::new(0),
            side,
            items: PhantomData,
        });
        let block = ring.block_of(0);
        let mut reader = Reader { ring: Arc::clone(&ring), block, head: 0, keeps_block: false };
        reader.arm();
        (ring, reader)
    }

    fn block_len(&self) -> usize {
        1 << self.block_shift
    }

    fn entry(&self, block: usize) -> &AtomicPtr<Slot<T>> {
        &self.directory[block & (self.directory.len() - 1)]
    }

    /// Puts a new block into an entry that was null.
    #[cold]
    fn install(&self, entry: &AtomicPtr<Slot<T>>) {
        let block = new_block(self.block_len());
        let null = ptr::null_mut();
        if entry.compare_exchange(null, block, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the block was not shared.
            unsafe { free_block(block, self.block_len()) };
        }
    }

    /// The block of the position, for the reader, which alone takes blocks out.
    fn block_of(&self, position: usize) -> *mut Slot<T> {
        let entry = self.entry(position >> self.block_shift);
        if entry.load(Ordering::Acquire).is_null() {
            self.install(entry);
        }
        entry.load(Ordering::Acquire)
    }

    /// Whether the position may be given out (rule 2). A position that is no longer the next one
    /// may lie below `released`; its claim fails anyway.
    #[inline]
    fn is_free(&self, position: usize) -> bool {
        let fits =
            |released: usize| (position.wrapping_sub(released) as isize) < self.items_max as isize;
        // `Acquire`, here and below: the reader has emptied the slots of what it has released, and
        // has taken their blocks out (rule 3).
        if fits(self.tail.0.released_seen.load(Ordering::Acquire)) {
            return true;
        }
        let released = self.released.0.load(Ordering::Acquire);
        self.tail.0.released_seen.store(released, Ordering::Release);
        fits(released)
    }

    /// Whether there is room for an item at present.
    pub(super) fn has_room(&self) -> bool {
        self.is_free(self.tail.0.next.load(Ordering::Relaxed) / ONE)
    }

    /// Pushes an item with its weight. True if the pusher must wake the reader (rule 5).
    ///
    /// # Errors
    /// The reason is `Full` or `Closed`.
    #[inline]
    pub(super) fn push(&self, item: T, weight: usize) -> Result<bool, (PushReason, T)> {
        match self.claim() {
            Ok(claim) => self.publish(claim, item, weight),
            Err(reason) => Err((reason, item)),
        }
    }

    /// Claims the next position.
    #[inline]
    fn claim(&self) -> Result<Claim<T>, PushReason> {
        let next = &self.tail.0.next;
        let mut tail = next.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(PushReason::Closed);
            }
            let position = tail / ONE;
            if !self.is_free(position) {
                return Err(PushReason::Full);
            }
            let entry = self.entry(position >> self.block_shift);
            let block = entry.load(Ordering::Acquire);
            if block.is_null() {
                self.install(entry);
                tail = next.load(Ordering::Relaxed);
                continue;
            }
            let after = tail.wrapping_add(ONE);
            match next.compare_exchange_weak(tail, after, Ordering::AcqRel, Ordering::Relaxed) {
                // `tail` has not changed since the block was looked up. So the position was not
                // given out before, and the block is that of the position (rule 3).
                Ok(_) => return Ok(Claim { position, block }),
                Err(now) => tail = now,
            }
        }
    }

    /// Writes the item into a claimed slot of this ring, and publishes it.
    #[inline]
    fn publish(&self, claim: Claim<T>, item: T, weight: usize) -> Result<bool, (PushReason, T)> {
        let state = match weight.checked_add(PUBLISHED) {
            Some(state) if state != PUBLISHED_HUGE => state,
            _ => {
                self.huge_weight.store(weight, Ordering::Relaxed);
                PUBLISHED_HUGE
            }
        };
        let index = claim.position & (self.block_len() - 1);
        // SAFETY: the block is that of a claimed position. It stays until the reader has passed the
        // slot, which it does after the swap below, or by abandoning it (rule 6). The index is
        // below the block's length.
        let slot = unsafe { &*claim.block.wrapping_add(index) };
        slot.item.with_mut(|place| {
            // SAFETY: the slot is empty, and this thread's until the swap (rule 4).
            unsafe { place.cast::<T>().write(item) };
        });
        match slot.state.swap(state, Ordering::AcqRel) {
            EMPTY => Ok(false),
            ARMED => Ok(true),
            before => {
                debug_assert_eq!(before, ABANDONED);
                // SAFETY: the reader has passed the slot without its item, and will not come back
                // (rule 6). The item was written above, and this is the only thread that takes it.
                let item = slot.item.with_mut(|place| unsafe { place.cast::<T>().read() });
                Err((PushReason::Closed, item))
            }
        }
    }

    /// Gives out no more positions.
    pub(super) fn close(&self) {
        self.tail.0.next.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.tail.0.next.load(Ordering::Acquire) & CLOSED != 0
    }
}

impl<T, S> Drop for Ring<T, S> {
    fn drop(&mut self) {
        for entry in &self.directory {
            // The reference count of the ring orders this after all other accesses.
            let block = entry.load(Ordering::Relaxed);
            if !block.is_null() {
                // SAFETY: nobody else has the ring, so no sender is in a push, and the reader is
                // gone. The block is in one entry, and entries are not used again. Items that the
                // reader has left in it are leaked.
                unsafe { free_block(block, self.block_len()) };
            }
        }
    }
}

impl<T, S> Reader<T, S> {
    pub(super) fn ring(&self) -> &Arc<Ring<T, S>> {
        &self.ring
    }

    /// The next position to take.
    pub(super) fn head(&self) -> usize {
        self.head
    }

    /// The number of positions that are given out and not taken.
    pub(super) fn len(&self) -> usize {
        (self.ring.tail.0.next.load(Ordering::Acquire) / ONE).saturating_sub(self.head)
    }

    /// What is in the ring now.
    pub(super) fn present(&self) -> Present {
        let tail = self.ring.tail.0.next.load(Ordering::Acquire);
        Present { end: tail / ONE, is_closed: tail & CLOSED != 0 }
    }

    fn slot(&self) -> &Slot<T> {
        let index = self.head & (self.ring.block_len() - 1);
        // SAFETY: the block of `head` is in the directory, and only this reader takes it out. The
        // index is below the block's length.
        unsafe { &*self.block.wrapping_add(index) }
    }

    /// Takes the next item and its weight. `None` if all that was present is taken, or if the next
    /// item is not published yet.
    #[inline]
    pub(super) fn pop(&mut self, present: Present) -> Option<(T, usize)> {
        while self.head != present.end {
            let slot = self.slot();
            let mut state = slot.state.load(Ordering::Acquire);
            if state < PUBLISHED {
                if !present.is_closed {
                    return None;
                }
                state = slot.state.swap(ABANDONED, Ordering::AcqRel);
                if state < PUBLISHED {
                    self.keeps_block = true;
                    self.advance();
                    continue;
                }
            }
            let item = slot.item.with_mut(|place| {
                // SAFETY: the item is published, and `Acquire` above orders this read after its
                // write. The head leaves the slot below, so the item is read once (rule 4).
                unsafe { place.cast::<T>().read() }
            });
            // The release of the position orders this before the next use of the slot.
            slot.state.store(EMPTY, Ordering::Relaxed);
            let weight = match state {
                PUBLISHED_HUGE => self.ring.huge_weight.load(Ordering::Relaxed),
                state => state - PUBLISHED,
            };
            self.advance();
            return Some((item, weight));
        }
        None
    }

    #[inline]
    fn advance(&mut self) {
        self.head += 1;
        if self.head & (self.ring.block_len() - 1) == 0 {
            self.next_block();
        }
    }

    /// Takes the emptied block out of the directory, and puts it in again for later positions.
    #[cold]
    fn next_block(&mut self) {
        let ring = &*self.ring;
        let next = self.head >> ring.block_shift;
        if !mem::take(&mut self.keeps_block) {
            let (block, null) = (self.block, ptr::null_mut());
            ring.entry(next - 1).store(null, Ordering::Relaxed);
            // Fewer than the directory has, so these entries are of later positions.
            let ahead = AHEAD.min(ring.directory.len() - 1);
            let is_placed = (next..next + ahead).any(|place| {
                let (entry, relaxed) = (ring.entry(place), Ordering::Relaxed);
                entry.load(relaxed).is_null()
                    && entry.compare_exchange(null, block, Ordering::AcqRel, relaxed).is_ok()
            });
            if !is_placed {
                // SAFETY: the block is no longer in the directory. A sender that has found it there
                // and claimed a position in it has made its last access (rules 3, 4). One whose
                // claim has failed does not use it.
                unsafe { free_block(block, ring.block_len()) };
            }
        }
        self.block = ring.block_of(self.head);
    }

    /// Arms the slot at the head. False if its item is published already.
    pub(super) fn arm(&mut self) -> bool {
        let state = &self.slot().state;
        !matches!(
            state.compare_exchange(EMPTY, ARMED, Ordering::AcqRel, Ordering::Acquire),
            Err(PUBLISHED..)
        )
    }

    /// Releases the positions of all items taken so far. They are finished.
    pub(super) fn release(&mut self) {
        self.ring.released.0.store(self.head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_up_later_items_and_its_sender_wakes_the_reader() {
        let (ring, mut reader) = Ring::new(8, ());
        assert_eq!(ring.push(0, 0), Ok(true), "the first slot is armed");
        let late = ring.claim().unwrap();
        assert_eq!(ring.push(2, 0), Ok(false), "an item behind a gap wakes nobody");
        assert_eq!(reader.pop(reader.present()), Some((0, 0)));
        assert_eq!(reader.pop(reader.present()), None);
        assert!(reader.arm(), "the gap is armed");
        assert_eq!(reader.len(), 2);
        assert_eq!(ring.publish(late, 1, 0), Ok(true));
        assert!(!reader.arm(), "an item is there");
        assert_eq!(reader.pop(reader.present()), Some((1, 0)));
        assert_eq!(reader.pop(reader.present()), Some((2, 0)));
    }

    /// Under Miri, a block that was freed or filled again would be an error here.
    #[test]
    fn a_gap_of_a_closed_ring_is_passed_and_its_item_comes_back() {
        for arms in [false, true] {
            let (ring, mut reader) = Ring::new(4, ());
            assert_eq!(ring.push(String::from("a"), 7), Ok(true));
            let gaps = [ring.claim().unwrap(), ring.claim().unwrap()];
            assert_eq!(ring.push(String::from("d"), 1), Ok(false));
            ring.close();
            assert_eq!(reader.pop(reader.present()), Some(("a".to_owned(), 7)));
            assert!(!arms || reader.arm());
            assert_eq!(reader.pop(reader.present()), Some(("d".to_owned(), 1)));
            assert_eq!((reader.pop(reader.present()), reader.len()), (None, 0));
            drop(reader);
            for gap in gaps {
                let block = gap.block;
                let is_kept = || ring.directory.iter().any(|e| e.load(Ordering::Relaxed) == block);
                assert!(is_kept(), "the sender still writes to it");
                let item = String::from("late");
                assert_eq!(ring.publish(gap, item.clone(), 0), Err((PushReason::Closed, item)));
            }
            assert_eq!(ring.push(String::new(), 0), Err((PushReason::Closed, String::new())));
        }
    }

    /// The reader frees an emptied block of so long a queue.
    #[test]
    fn a_block_with_an_abandoned_slot_is_not_freed_before_the_ring() {
        let (ring, mut reader) = Ring::new(16 * BLOCK_LEN_MAX, ());
        let gap = ring.claim().unwrap();
        while ring.push(0, 0).is_ok() {}
        ring.close();
        let present = reader.present();
        assert_eq!(std::iter::from_fn(|| reader.pop(present)).count(), 16 * BLOCK_LEN_MAX - 1);
        drop(reader);
        let first = ring.entry(0).load(Ordering::Relaxed);
        assert_eq!(first, gap.block, "the sender still writes to it");
        assert_eq!(ring.publish(gap, 1, 0), Err((PushReason::Closed, 1)));
    }

    #[test]
    fn the_ring_is_as_long_as_its_bound_and_goes_round() {
        // Miri takes half a minute for all rounds.
        let rounds = if cfg!(miri) { 3 } else { 20 };
        for bound in [1, 2, 3, 5, 8, 100, 513] {
            let (ring, mut reader) = Ring::new(bound, ());
            for round in 0..rounds {
                for item in 0..1 + round % bound {
                    // Only one item at a time may be as heavy as this.
                    let weight = usize::MAX - item % 5;
                    assert!(ring.push(item, weight).is_ok());
                    assert_eq!(reader.pop(reader.present()), Some((item, weight)));
                    reader.release();
                }
                (0..bound).for_each(|item| assert!(ring.push(item, item).is_ok()));
                assert_eq!(ring.push(0, 0), Err((PushReason::Full, 0)));
                let all = std::iter::from_fn(|| reader.pop(reader.present()));
                assert!(all.eq((0..bound).map(|item| (item, item))));
                assert_eq!(ring.push(0, 0), Err((PushReason::Full, 0)), "nothing is released");
                reader.release();
            }
        }
    }

    #[test]
    fn a_long_queue_frees_the_memory_that_a_short_one_does_not_need() {
        let blocks = |ring: &Ring<u8, ()>| {
            ring.directory.iter().filter(|e| !e.load(Ordering::Relaxed).is_null()).count()
        };
        let count = if cfg!(miri) { 16 } else { 64 };
        let (ring, mut reader) = Ring::new(count * BLOCK_LEN_MAX, ());
        assert_eq!(blocks(&ring), 1);
        for _ in 0..count * BLOCK_LEN_MAX {
            assert!(ring.push(0, 0).is_ok());
        }
        assert_eq!(blocks(&ring), count);
        while reader.pop(reader.present()).is_some() {}
        reader.release();
        assert!(blocks(&ring) <= AHEAD + 1, "{} blocks are kept", blocks(&ring));
        assert!(size_of::<Slot<[u64; 5]>>() == 48);
    }
}
