//! The events of one wait, and how many of them have been dispatched.
//!
//! The cursor is in memory and not in a register of the loop, for three reasons. A handler's calls
//! can find the running cell. A cell that deletes itself can stop the loop without a check per
//! event. A panic leaves the rest of the batch in place (rule 8).
//!
//! # The protocol of this module
//!
//! 1. `start <= cursor <= end <= true end <= start + capacity`, all within one allocation that
//!    `drop` frees. The true end is `end`, or `resume` while the batch is halted. So a turn without
//!    a halt writes one pointer less.
//! 2. Every event in `start..true end` has been written, by the kernel or by [`Batch::push`].

#![allow(
    unsafe_code,
    reason = "a cursor of raw pointers spares the loop an index, a multiplication and a check"
)]

use core::{mem::MaybeUninit, ptr, slice};

pub(crate) use rustix::event::epoll::Event as RawEvent;
use rustix::event::epoll::{EventData, EventFlags};

pub(crate) struct Batch {
    cursor: *mut RawEvent,
    end: *mut RawEvent,
    /// The true end, while [`halt`](Self::halt) has moved `end`; null otherwise.
    resume: *mut RawEvent,
    start: *mut RawEvent,
    capacity: usize,
}

impl Batch {
    /// Allocates room for `capacity` events, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        let room: Box<[MaybeUninit<RawEvent>]> = Box::new_uninit_slice(capacity);
        let start = Box::into_raw(room).cast::<RawEvent>();
        Self { cursor: start, end: start, resume: ptr::null_mut(), start, capacity }
    }

    /// Whether every event has been dispatched.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.cursor == self.true_end()
    }

    #[inline]
    fn true_end(&self) -> *mut RawEvent {
        if self.resume.is_null() { self.end } else { self.resume }
    }

    /// The number of events not dispatched yet.
    pub(crate) fn len(&self) -> usize {
        (self.true_end().addr() - self.cursor.addr()) / size_of::<RawEvent>()
    }

    /// The next event's cell address and conditions. `None` at the end, or while halted.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<(u64, u32)> {
        let event = self.cursor;
        if event == self.end {
            return None;
        }
        // SAFETY: `cursor < end`, so `cursor + 1` is inside the allocation or one past it
        // (protocol 1).
        self.cursor = unsafe { event.add(1) };
        // SAFETY: the event before `end` has been written (protocol 2), and only this batch can
        // access it.
        let RawEvent { flags, data } = unsafe { *event };
        Some((data.u64(), flags.bits()))
    }

    /// The cell address of the event returned last, if any since the batch was filled.
    pub(crate) fn running(&self) -> Option<u64> {
        if self.cursor == self.start {
            return None;
        }
        // SAFETY: `cursor > start`, so `cursor - 1` is inside the allocation (protocol 1).
        let event = unsafe { self.cursor.sub(1) };
        // SAFETY: events before the cursor have been written (protocol 2).
        Some(unsafe { (*event).data }.u64())
    }

    /// Whether an undispatched event names this cell.
    pub(crate) fn names(&self, address: u64) -> bool {
        // SAFETY: the events from the cursor to the true end have been written (protocol 2), and
        // nothing writes to them while `self` is borrowed.
        let waiting = unsafe { slice::from_raw_parts(self.cursor, self.len()) };
        waiting.iter().any(|event| { event.data }.u64() == address)
    }

    /// Ends the loop after the running handler. The remaining events stay.
    pub(crate) fn halt(&mut self) {
        self.resume = self.true_end();
        self.end = self.cursor;
    }

    /// Lets the loop continue after [`halt`](Self::halt).
    pub(crate) fn resume(&mut self) {
        self.end = self.true_end();
        self.resume = ptr::null_mut();
    }

    /// Prepares the batch to be filled. Remaining events are discarded.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.cursor = self.start;
        self.end = self.start;
        self.resume = ptr::null_mut();
    }

    /// The free room after the events in the batch.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [MaybeUninit<RawEvent>] {
        let end = self.true_end();
        let used = (end.addr() - self.start.addr()) / size_of::<RawEvent>();
        // SAFETY: the true end lies in the allocation, and `capacity - used` elements follow it
        // (protocol 1). The slice is borrowed from `self`, so nothing else accesses the memory
        // meanwhile.
        unsafe { slice::from_raw_parts_mut(end.cast(), self.capacity - used) }
    }

    /// The room of an empty batch: the whole allocation.
    #[inline]
    pub(crate) fn whole_room(&mut self) -> &mut [MaybeUninit<RawEvent>] {
        debug_assert!(
            self.is_empty() && self.resume.is_null(),
            "events that were not dispatched would be lost"
        );
        // SAFETY: the allocation has `capacity` elements (protocol 1). The slice is borrowed from
        // `self`, so nothing else accesses the memory meanwhile.
        unsafe { slice::from_raw_parts_mut(self.start.cast(), self.capacity) }
    }

    /// Adopts events that were written to the [`whole_room`](Self::whole_room).
    ///
    /// # Safety
    /// The first `count` elements of the room have been written, and `count` is not larger than its
    /// length.
    #[inline]
    pub(crate) unsafe fn refilled(&mut self, count: usize) {
        self.cursor = self.start;
        // SAFETY: the allocation has that many elements (the caller's promise).
        self.end = unsafe { self.start.add(count) };
    }

    /// Adopts events that were written to the [`room`](Self::room).
    ///
    /// # Panics
    /// If the batch is halted, because the halt would be lost.
    ///
    /// # Safety
    /// The first `count` elements of the room have been written, and `count` is not larger than its
    /// length.
    #[inline]
    pub(crate) unsafe fn filled(&mut self, count: usize) {
        assert!(self.resume.is_null(), "a halted batch is resumed before it is filled");
        // SAFETY: the batch is not halted, so `end` is the true end, and `count` elements follow it
        // in the allocation (the caller's promise).
        self.end = unsafe { self.end.add(count) };
    }

    /// Adds an event of the reactor's own. False if there is no room.
    pub(crate) fn push(&mut self, address: u64, ready: u32) -> bool {
        let Some(room) = self.room().first_mut() else {
            return false;
        };
        room.write(RawEvent {
            flags: EventFlags::from_bits_retain(ready),
            data: EventData::new_u64(address),
        });
        // SAFETY: one element has just been written.
        unsafe { self.filled(1) };
        true
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let room = ptr::slice_from_raw_parts_mut(
            self.start.cast::<MaybeUninit<RawEvent>>(),
            self.capacity,
        );
        // SAFETY: `start` and `capacity` come from the box that `new` gave up. Events have no
        // destructor.
        drop(unsafe { Box::from_raw(room) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_and_the_running_one_is_known() {
        let mut batch = Batch::new(3);
        assert_eq!((batch.next(), batch.running(), batch.is_empty()), (None, None, true));
        assert!(batch.push(10, 1) && batch.push(20, 2) && batch.push(30, 3));
        assert!(!batch.push(40, 4), "full");
        assert_eq!((batch.next(), batch.running(), batch.len()), (Some((10, 1)), Some(10), 2));
        batch.halt();
        assert_eq!(
            (batch.next(), batch.running(), batch.is_empty(), batch.len()),
            (None, Some(10), false, 2)
        );
        assert_eq!((batch.names(10), batch.names(30)), (false, true));
        batch.resume();
        assert_eq!(
            (batch.next(), batch.next(), batch.next()),
            (Some((20, 2)), Some((30, 3)), None)
        );
        assert!(batch.is_empty());
        batch.clear();
        assert_eq!((batch.running(), batch.room().len()), (None, 3));
    }

    #[test]
    #[should_panic(expected = "a halted batch")]
    fn a_halted_batch_is_not_filled() {
        let mut batch = Batch::new(3);
        assert!(batch.push(10, 1) && batch.push(20, 2));
        batch.next();
        batch.halt();
        batch.push(30, 3);
    }
}
