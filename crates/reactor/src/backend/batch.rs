//! The events of one wait, and how many of them have been dispatched.
//!
//! The cursor is in memory and not in a register of the loop, for three reasons. A handler's calls
//! can find the running cell. A cell that deletes itself can stop the loop without a check per
//! event. A panic leaves the rest of the batch in place (rule 8).
//!
//! # The protocol of this module
//!
//! 1. `start <= cursor <= end <= true end <= start + capacity`, all within one allocation that
//!    `drop` frees.
//! 2. `end` is null if the batch is closed: no loop dispatches its events. So the loop needs no
//!    other mark that handlers run.
//! 3. The true end is `rest` if that is not null: while the loop is halted, and in a closed batch
//!    with events. Otherwise it is `end`, and in a closed batch the cursor.
//! 4. Every event in `start..true end` has been written, by the kernel or by [`Batch::push`].
//! 5. The rest of the allocation is initialised too. The borrowers of a room write only whole
//!    events to it.

#![allow(
    unsafe_code,
    reason = "a cursor of raw pointers spares the loop an index, a multiplication and a check"
)]

use core::{mem::MaybeUninit, ptr, slice};

pub(crate) use rustix::event::epoll::Event as RawEvent;
use rustix::event::epoll::{EventData, EventFlags};

/// The place of an event in the batch, as the pointer behind it. So the loop needs one register for
/// the event that it reads, the cursor that it writes, and the end that it compares with.
#[derive(Clone, Copy)]
pub(crate) struct EventPlace {
    behind: *mut RawEvent,
}

pub(crate) struct Batch {
    cursor: *mut RawEvent,
    /// Where the loop ends; null if the batch is closed.
    end: *mut RawEvent,
    /// The true end, if `end` is not; null otherwise.
    rest: *mut RawEvent,
    start: *mut RawEvent,
    capacity: usize,
}

impl Batch {
    /// Allocates room for `capacity` events, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        let nothing = RawEvent { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let room: Box<[RawEvent]> = vec![nothing; capacity].into_boxed_slice();
        let start = Box::into_raw(room).cast::<RawEvent>();
        Self { cursor: start, end: ptr::null_mut(), rest: ptr::null_mut(), start, capacity }
    }

    /// The most events that a wait can write.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether every event has been dispatched.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.cursor == self.true_end()
    }

    #[inline]
    fn true_end(&self) -> *mut RawEvent {
        match (self.rest.is_null(), self.end.is_null()) {
            (false, _) => self.rest,
            (true, false) => self.end,
            (true, true) => self.cursor,
        }
    }

    /// Whether a loop dispatches the events: a handler runs, or a destructor between two handlers.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        !self.end.is_null()
    }

    /// The number of events not dispatched yet.
    pub(crate) fn len(&self) -> usize {
        (self.true_end().addr() - self.cursor.addr()) / size_of::<RawEvent>()
    }

    /// The place of the next event. `None` at the end, or while halted.
    ///
    /// # Safety
    /// The batch is open.
    #[inline(always)]
    pub(crate) unsafe fn next_place(&self) -> Option<EventPlace> {
        debug_assert!(self.is_open(), "the caller's promise");
        if self.cursor == self.end {
            return None;
        }
        // SAFETY: the event lies before the end of an open batch (the caller's promise), so the
        // place behind it is inside the allocation or one past it (protocol 1).
        Some(EventPlace { behind: unsafe { self.cursor.add(1) } })
    }

    /// Dispatches the event at a place: its cell address and conditions.
    ///
    /// # Safety
    /// The batch is open, and the place is that of the next event.
    #[inline(always)]
    pub(crate) unsafe fn take(&mut self, place: EventPlace) -> (u64, u32) {
        debug_assert!(self.is_open(), "the caller's promise");
        self.cursor = place.behind;
        // SAFETY: an event lies in front of the pointer (the caller's promise).
        let event = unsafe { place.behind.sub(1) };
        // SAFETY: the event before the end has been written (protocol 4), and only this batch can
        // access it.
        let RawEvent { flags, data } = unsafe { *event };
        (data.u64(), flags.bits())
    }

    /// The place after that of the event that was taken last. `None` at the end, or while halted.
    ///
    /// # Safety
    /// The batch is open, and the event at `place` was taken last.
    #[inline(always)]
    pub(crate) unsafe fn after(&self, place: EventPlace) -> Option<EventPlace> {
        debug_assert!(self.is_open() && self.cursor == place.behind, "the caller's promise");
        if self.end == place.behind {
            return None;
        }
        // SAFETY: as in `next_place`, because the cursor is at `behind`.
        Some(EventPlace { behind: unsafe { place.behind.add(1) } })
    }

    /// The cell address of the event returned last, if the batch is open.
    pub(crate) fn running(&self) -> Option<u64> {
        if self.cursor == self.start || !self.is_open() {
            return None;
        }
        // SAFETY: `cursor > start`, so `cursor - 1` is inside the allocation (protocol 1).
        let event = unsafe { self.cursor.sub(1) };
        // SAFETY: events before the cursor have been written (protocol 4).
        Some(unsafe { (*event).data }.u64())
    }

    /// Whether an undispatched event names this cell.
    pub(crate) fn names(&self, address: u64) -> bool {
        // SAFETY: the events from the cursor to the true end have been written (protocol 4), and
        // nothing writes to them while `self` is borrowed.
        let waiting = unsafe { slice::from_raw_parts(self.cursor, self.len()) };
        waiting.iter().any(|event| { event.data }.u64() == address)
    }

    /// The conditions of the undispatched events of this cell, in their order.
    pub(crate) fn waiting_of(&self, address: u64) -> impl Iterator<Item = u32> + '_ {
        // SAFETY: as in `names`.
        let waiting = unsafe { slice::from_raw_parts(self.cursor, self.len()) };
        waiting
            .iter()
            .filter(move |event| { event.data }.u64() == address)
            .map(|event| { event.flags }.bits())
    }

    /// Moves the undispatched events of the cells for which `is_last` holds behind the others. Both
    /// keep their order.
    pub(crate) fn sort_waiting(&mut self, mut is_last: impl FnMut(u64) -> bool) {
        // SAFETY: as in `names`, and `self` is borrowed mutably.
        let waiting = unsafe { slice::from_raw_parts_mut(self.cursor, self.len()) };
        waiting.sort_by_key(|event| is_last({ event.data }.u64()));
    }

    /// Ends the loop after the running handler. The remaining events stay.
    pub(crate) fn halt(&mut self) {
        debug_assert!(self.is_open(), "only a running loop is halted");
        self.rest = self.true_end();
        self.end = self.cursor;
    }

    /// Begins a loop over the events, or lets it continue after [`halt`](Self::halt).
    pub(crate) fn open(&mut self) {
        self.end = self.true_end();
        self.rest = ptr::null_mut();
    }

    /// Ends a loop. The remaining events stay.
    pub(crate) fn close(&mut self) {
        self.set_rest(self.true_end());
        self.end = ptr::null_mut();
    }

    fn set_rest(&mut self, end: *mut RawEvent) {
        self.rest = if end == self.cursor { ptr::null_mut() } else { end };
    }

    /// Ends a loop that has dispatched all events.
    #[inline(always)]
    pub(crate) fn close_empty(&mut self) {
        debug_assert!(self.is_empty(), "events that were not dispatched would be lost");
        self.end = ptr::null_mut();
    }

    /// Prepares the batch to be filled. Remaining events are discarded.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.cursor = self.start;
        self.end = ptr::null_mut();
        self.rest = ptr::null_mut();
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
        debug_assert!(self.is_empty(), "events that were not dispatched would be lost");
        // SAFETY: the allocation has `capacity` elements (protocol 1). The slice is borrowed from
        // `self`, so nothing else accesses the memory meanwhile.
        unsafe { slice::from_raw_parts_mut(self.start.cast(), self.capacity) }
    }

    /// The first `length` elements of the room of an empty batch.
    ///
    /// # Safety
    /// `length` is at most the capacity.
    #[inline(always)]
    pub(crate) unsafe fn front(&mut self, length: usize) -> &mut [RawEvent] {
        debug_assert!(self.is_empty(), "events that were not dispatched would be lost");
        debug_assert!(length <= self.capacity, "the caller's promise");
        // SAFETY: the allocation has `length` elements (protocol 1, the caller's promise), all of
        // them written (protocol 5). The slice is borrowed from `self`, so nothing else accesses
        // the memory meanwhile.
        unsafe { slice::from_raw_parts_mut(self.start, length) }
    }

    /// Adopts events that were written to the [`whole_room`](Self::whole_room), and opens the
    /// batch. The caller takes the event at the place that is returned next, before anything else
    /// uses the batch.
    ///
    /// # Safety
    /// The first `count` elements of the room have been written. `count` is not zero, and not
    /// larger than the room's length. The batch was closed and empty.
    #[inline(always)]
    pub(crate) unsafe fn open_with(&mut self, count: usize) -> EventPlace {
        debug_assert!(count > 0 && self.is_empty() && !self.is_open(), "the caller's promise");
        // SAFETY: the allocation has that many elements (the caller's promise).
        self.end = unsafe { self.start.add(count) };
        // SAFETY: there is at least one event (the caller's promise).
        EventPlace { behind: unsafe { self.start.add(1) } }
    }

    /// Adopts events that were written to the [`room`](Self::room).
    ///
    /// # Panics
    /// If the batch is open, because a halt would be lost.
    ///
    /// # Safety
    /// The first `count` elements of the room have been written, and `count` is not larger than its
    /// length.
    #[inline]
    pub(crate) unsafe fn filled(&mut self, count: usize) {
        assert!(!self.is_open(), "an open batch is closed before it is filled");
        debug_assert!(count <= self.room().len(), "the caller's promise");
        // SAFETY: `count` elements follow the true end in the allocation (the caller's promise).
        self.set_rest(unsafe { self.true_end().add(count) });
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
        let room = ptr::slice_from_raw_parts_mut(self.start, self.capacity);
        // SAFETY: `start` and `capacity` come from the box that `new` gave up. Events have no
        // destructor.
        drop(unsafe { Box::from_raw(room) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(batch: &mut Batch) -> Option<(u64, u32)> {
        assert!(batch.is_open());
        // SAFETY: the batch is open.
        let place = unsafe { batch.next_place() }?;
        // SAFETY: the batch is open, and the place is that of the next event.
        Some(unsafe { batch.take(place) })
    }

    #[test]
    fn events_come_in_order_and_the_running_one_is_known() {
        let mut batch = Batch::new(3);
        assert_eq!((batch.running(), batch.is_empty(), batch.is_open()), (None, true, false));
        assert!(batch.push(10, 1) && batch.push(20, 2) && batch.push(30, 3));
        assert!(!batch.push(40, 4), "full");
        batch.open();
        assert_eq!((next(&mut batch), batch.running(), batch.len()), (Some((10, 1)), Some(10), 2));
        batch.halt();
        assert_eq!(
            (next(&mut batch), batch.running(), batch.is_empty(), batch.len()),
            (None, Some(10), false, 2)
        );
        assert_eq!((batch.names(10), batch.names(30)), (false, true));
        batch.open();
        assert_eq!(
            (next(&mut batch), next(&mut batch), next(&mut batch)),
            (Some((20, 2)), Some((30, 3)), None)
        );
        assert_eq!((batch.is_empty(), batch.running()), (true, Some(30)));
        batch.close_empty();
        assert_eq!((batch.is_empty(), batch.running()), (true, None));
        batch.clear();
        assert_eq!((batch.running(), batch.room().len()), (None, 3));
    }

    #[test]
    fn a_closed_batch_keeps_its_events_and_names_none_as_running() {
        let mut batch = Batch::new(3);
        assert!(batch.push(10, 1) && batch.push(20, 2));
        batch.open();
        next(&mut batch);
        batch.close();
        assert_eq!((batch.running(), batch.len(), batch.names(20)), (None, 1, true));
        batch.close();
        assert_eq!(batch.len(), 1, "closed twice");
        batch.open();
        assert_eq!((next(&mut batch), next(&mut batch)), (Some((20, 2)), None));
        batch.close();
        assert!(batch.is_empty());
    }

    #[test]
    fn a_batch_is_filled_and_opened_in_one_step_whatever_was_in_it_before() {
        let mut batch = Batch::new(3);
        for count in [3, 1, 2] {
            for (room, at) in batch.whole_room().iter_mut().zip(1..=count) {
                let data = EventData::new_u64(at);
                room.write(RawEvent { flags: EventFlags::IN, data });
            }
            // SAFETY: so many were written above, and the batch is closed and empty.
            let mut next = Some(unsafe { batch.open_with(usize::try_from(count).unwrap()) });
            for at in 1..=count {
                let place = next.unwrap();
                // SAFETY: the batch is open, and this is the place of the next event.
                let (address, _) = unsafe { batch.take(place) };
                assert_eq!((address, batch.running()), (at, Some(at)));
                assert_eq!(batch.len() as u64, count - at);
                // SAFETY: the event was taken above.
                next = unsafe { batch.after(place) };
            }
            assert!(next.is_none());
            batch.close_empty();
        }
    }

    /// Otherwise the end of one batch would be that of the next.
    #[test]
    fn a_loop_that_goes_on_after_a_halt_leaves_no_mark() {
        let mut batch = Batch::new(3);
        assert!(batch.push(10, 1) && batch.push(20, 2) && batch.push(30, 3));
        batch.open();
        next(&mut batch);
        batch.halt();
        batch.open();
        assert_eq!((next(&mut batch), next(&mut batch)), (Some((20, 2)), Some((30, 3))));
        batch.close_empty();
        for room in &mut batch.whole_room()[..2] {
            room.write(RawEvent { flags: EventFlags::IN, data: EventData::new_u64(40) });
        }
        // SAFETY: two were written above, and the batch is closed and empty.
        let place = unsafe { batch.open_with(2) };
        // SAFETY: the batch is open, and this is the place of the next event.
        unsafe { batch.take(place) };
        assert_eq!((batch.len(), batch.names(40)), (1, true));
    }

    #[test]
    #[should_panic(expected = "an open batch")]
    fn an_open_batch_is_not_filled() {
        let mut batch = Batch::new(3);
        assert!(batch.push(10, 1) && batch.push(20, 2));
        batch.open();
        next(&mut batch);
        batch.halt();
        batch.push(30, 3);
    }
}
