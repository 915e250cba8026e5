//! The loop over a batch of events. It calls cells by the addresses that the kernel hands back.
//!
//! The loop accesses the kernel and its reactor through raw pointers. A trampoline turns the second
//! into the handler's [`Turn`](crate::Turn) during a call. No reference to either is alive in the
//! loop then.
//!
//! Each function here requires that `reactor` is live and not borrowed elsewhere, that no handler
//! runs, and that `kernel` points to the kernel that the reactor owns and was derived from
//! `reactor`.

#![allow(
    unsafe_code,
    reason = "the loop calls cells by the addresses that the kernel hands back; the protocol above"
)]

use std::time::Instant;

use crate::{
    Key, Reactor,
    backend::batch::EventPlace,
    cell::CellPtr,
    kernel::{Kernel, pending_work},
};

/// The work around each handler. A type, so that the loop is compiled for each kind of work, and
/// the usual loop has none.
pub(crate) trait AroundHandler {
    fn before(&mut self, kernel: &mut Kernel, cell: CellPtr);
    fn after(&mut self, kernel: &mut Kernel);
}

/// Nothing.
pub(crate) struct Plain;

impl AroundHandler for Plain {
    #[inline(always)]
    fn before(&mut self, _: &mut Kernel, _: CellPtr) {}

    #[inline(always)]
    fn after(&mut self, _: &mut Kernel) {}
}

/// Replies may be queued with a ring: they do not wait for a long turn.
pub(crate) struct Paced;

impl AroundHandler for Paced {
    #[inline(always)]
    fn before(&mut self, kernel: &mut Kernel, _: CellPtr) {
        kernel.backend.submit_if_due();
    }

    #[inline(always)]
    fn after(&mut self, _: &mut Kernel) {}
}

/// As [`Paced`], and every handler is looked at: by the watchdog, for its progress, or both.
struct Watched {
    /// The end of the last wait, if the watchdog is on.
    fetched: Option<Instant>,
    start: Option<Instant>,
    /// That of the cell, which the handler may delete.
    key: Key,
    watches_progress: bool,
}

impl AroundHandler for Watched {
    fn before(&mut self, kernel: &mut Kernel, cell: CellPtr) {
        kernel.backend.submit_if_due();
        self.key = cell.key();
        if self.watches_progress {
            kernel.begin_watch();
        }
        self.start = self.fetched.map(|_| Instant::now());
    }

    fn after(&mut self, kernel: &mut Kernel) {
        if let (Some(fetched), Some(start)) = (self.fetched, self.start) {
            kernel.counters.note_handler(fetched, start, Some(self.key));
        }
        if self.watches_progress {
            kernel.end_watch(self.key);
        }
    }
}

/// Opens the batch and dispatches its events. `fetched` is the end of the last wait, if the
/// watchdog is on.
///
/// # Safety
/// As the module says.
#[inline]
pub(crate) unsafe fn dispatch_rest(
    kernel: *mut Kernel,
    reactor: *mut Reactor,
    fetched: Option<Instant>,
) {
    // SAFETY: the reactor is live and no handler runs, so this short borrow is the only one.
    let borrowed = unsafe { &mut *kernel };
    borrowed.batch.open();
    if borrowed.has(pending_work::WATCHED) {
        let watches_progress = borrowed.has(pending_work::PROGRESS);
        // SAFETY: an event carries the address of a cell whose block is not freed (rule 2).
        borrowed
            .put_demoted_last(|address| unsafe { CellPtr::<Reactor>::from_exposed(address) }.key());
        let around = Watched { fetched, start: None, key: Key::UNREGISTERED, watches_progress };
        // SAFETY: the caller's promise covers this call, and the batch is open.
        unsafe { dispatch_open(kernel, reactor, around) }
    } else if borrowed.has(pending_work::PACED) {
        // SAFETY: as above.
        unsafe { dispatch_open(kernel, reactor, Paced) }
    } else {
        // SAFETY: as above.
        unsafe { dispatch_batch(kernel, reactor) }
    }
}

/// [`dispatch_open`] as the usual turn needs it. The disassembly in `docs/technical.md` shows it.
///
/// # Safety
/// As [`dispatch_open`].
#[inline(never)]
unsafe fn dispatch_batch(kernel: *mut Kernel, reactor: *mut Reactor) {
    // SAFETY: the caller's promise covers this call.
    unsafe { dispatch_open(kernel, reactor, Plain) }
}

/// Dispatches the events of an open batch.
///
/// # Safety
/// As the module says, and the batch is open.
#[inline(always)]
unsafe fn dispatch_open(kernel: *mut Kernel, reactor: *mut Reactor, around: impl AroundHandler) {
    // SAFETY: the reactor is live and no handler runs, so this short borrow is the only one.
    let borrowed = unsafe { &mut *kernel };
    debug_assert!(borrowed.batch.is_open(), "the caller has opened it");
    // SAFETY: the batch is open (the caller's promise).
    if let Some(first) = unsafe { borrowed.batch.next_place() } {
        // SAFETY: the caller's promise covers this call, and the place is not the end.
        unsafe { dispatch_from(kernel, reactor, first, around) }
    }
}

/// Dispatches the events of the batch to their cells, until it ends or is halted. The whole cost of
/// an event is here and in the trampoline. Inlined where the call would cost as much as an event.
///
/// # Safety
/// As the module says, the batch is open, and the place is that of the next event.
#[inline(always)]
pub(crate) unsafe fn dispatch_from<A: AroundHandler>(
    kernel: *mut Kernel,
    reactor: *mut Reactor,
    mut place: EventPlace,
    mut around: A,
) {
    // The next place stays in a register, because nothing else moves the cursor.
    loop {
        // SAFETY: the reactor is live and no handler runs, so this short borrow is the only one.
        let borrowed = unsafe { &mut *kernel };
        // SAFETY: the batch is open, and this is the place of the next event.
        let (address, ready) = unsafe { borrowed.batch.take(place) };
        // SAFETY: an event carries the address of a cell, because no other code can add to the set
        // (rule 11). The cell's block is not freed before the batch is empty, or while the set may
        // have the address (rule 2).
        let cell = unsafe { CellPtr::<Reactor>::from_exposed(address) };
        around.before(borrowed, cell);
        // SAFETY: no handler runs. The cell is registered with this reactor, or is a dead cell of
        // it, whose function does nothing.
        unsafe { cell.call(ready, reactor) };
        // SAFETY: the handler has returned, so this borrow is again the only one.
        let borrowed = unsafe { &mut *kernel };
        around.after(borrowed);
        // SAFETY: the batch is open, and the event at this place was taken above.
        let Some(next) = (unsafe { borrowed.batch.after(place) }) else { return };
        place = next;
    }
}
