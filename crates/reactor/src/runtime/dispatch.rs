//! The loops over a batch of events. They call cells by the addresses that the kernel hands back.
//!
//! The loop accesses the reactor through one raw pointer. A trampoline turns it into the handler's
//! [`Turn`](crate::Turn) during a call. No reference to the reactor is alive in a loop then.

#![allow(
    unsafe_code,
    reason = "the loop calls cells by the addresses that the kernel hands back; the protocol above"
)]

use std::time::Instant;

use crate::{Reactor, backend::batch::EventPlace, cell::CellPtr};

/// Dispatches the events of the batch to their cells, until the batch ends or is halted. The whole
/// cost of an event is here and in the trampoline.
///
/// # Safety
/// `reactor` is live and not borrowed elsewhere, no handler runs, and its batch is open.
#[inline(never)]
pub(super) unsafe fn dispatch_batch(reactor: *mut Reactor) {
    // SAFETY: the reactor is live and no handler runs, so this short borrow is the only one.
    let batch = unsafe { &(*reactor).kernel.batch };
    // SAFETY: the batch is open (the caller's promise).
    let next = unsafe { batch.next_place() };
    if let Some(place) = next {
        // SAFETY: the caller's promise covers this call, and the place is not the end.
        unsafe { dispatch_events(reactor, place) }
    }
}

/// [`dispatch_batch`] from the place of the next event, inlined where the call would cost as much
/// as an event.
///
/// # Safety
/// As [`dispatch_batch`], and the place is not the end of the batch.
#[inline(always)]
pub(super) unsafe fn dispatch_events(reactor: *mut Reactor, mut place: EventPlace) {
    // The next place stays in a register, because nothing else moves the cursor.
    loop {
        // SAFETY: the reactor is live and no handler runs, so this short borrow is the only one.
        // The batch is open, and the place is not its end.
        let batch = unsafe { &mut (*reactor).kernel.batch };
        // SAFETY: the batch is open, and this is the place of the next event.
        let (address, ready) = unsafe { batch.take(place) };
        // SAFETY: an event carries the address of a cell, because no other code can add to the set
        // (rule 11). The cell's block is not freed before the batch is empty, or while the set may
        // have the address (rule 2).
        let cell = unsafe { CellPtr::<Reactor>::from_exposed(address) };
        // SAFETY: no handler runs. The cell is registered with this reactor, or is a dead cell of
        // it, whose function does nothing.
        unsafe { cell.call(ready, reactor) };
        // SAFETY: the handler has returned, so this borrow is again the only one.
        let batch = unsafe { &(*reactor).kernel.batch };
        // SAFETY: the batch is open, and the event at this place was taken above.
        let Some(next) = (unsafe { batch.after(place) }) else { return };
        place = next;
    }
}

/// The same where replies may be queued with a ring: they do not wait for a long turn.
///
/// # Safety
/// As [`dispatch_events`].
#[inline(always)]
pub(super) unsafe fn dispatch_paced(reactor: *mut Reactor, mut place: EventPlace) {
    loop {
        // SAFETY: as in `dispatch_events`.
        let batch = unsafe { &mut (*reactor).kernel.batch };
        // SAFETY: the batch is open, and this is the place of the next event.
        let (address, ready) = unsafe { batch.take(place) };
        // SAFETY: no handler runs, so nothing else borrows the reactor.
        unsafe { &mut (*reactor).kernel.backend }.submit_if_due();
        // SAFETY: as in `dispatch_events`.
        let cell = unsafe { CellPtr::<Reactor>::from_exposed(address) };
        // SAFETY: as in `dispatch_events`.
        unsafe { cell.call(ready, reactor) };
        // SAFETY: the handler has returned, so this borrow is again the only one.
        let batch = unsafe { &(*reactor).kernel.batch };
        // SAFETY: the batch is open, and the event at this place was taken above.
        let Some(next) = (unsafe { batch.after(place) }) else { return };
        place = next;
    }
}

/// The same, with the time of every handler measured.
///
/// # Safety
/// As [`dispatch_batch`].
pub(super) unsafe fn dispatch_watched(reactor: *mut Reactor, fetched: Instant) {
    loop {
        // SAFETY: no handler runs, so this short borrow is the only one. The batch is open.
        let batch = unsafe { &mut (*reactor).kernel.batch };
        // SAFETY: the batch is open (the caller's promise).
        let next = unsafe { batch.next() };
        let Some((address, ready)) = next else { return };
        // SAFETY: no handler runs, so nothing else borrows the reactor.
        unsafe { &mut (*reactor).kernel.backend }.submit_if_due();
        // SAFETY: as in `dispatch_events`.
        let cell = unsafe { CellPtr::<Reactor>::from_exposed(address) };
        let start = Instant::now();
        // SAFETY: as in `dispatch_events`.
        unsafe { cell.call(ready, reactor) };
        // SAFETY: the handler has returned, so nothing else borrows the reactor.
        unsafe { &mut (*reactor).kernel.counters }.note_handler(fetched, start);
    }
}
