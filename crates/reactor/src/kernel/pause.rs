//! Paused registrations: the members of a paused group.
//!
//! 1. The kernel does not watch a paused registration, so nothing that is ready wakes the loop. A
//!    registration that is added again reports its readiness, so no edge is lost.
//! 2. Its dispatch function does not call the handler. It drops an event of the kernel that was
//!    fetched before, by 1. A synthetic event is queued again.
//! 3. Its interest may be changed. The kernel learns of it by the resume.

use crate::{
    Interest, Key,
    cell::{CellFlags, CellPtr},
    kernel::{Kernel, pending_work},
};

impl Kernel {
    /// Stops the events of a registration. The caller calls
    /// [`keep_synthetic_of_paused`](Self::keep_synthetic_of_paused) afterwards.
    pub(crate) fn pause(&mut self, cell: CellPtr) {
        if !cell.is_paused() {
            cell.pause();
            cell.set_flag(CellFlags::DIRTY, false);
            self.leave_set(cell);
        }
    }

    /// Lets a registration have events again. If the kernel rejects it, it gets an error event.
    pub(crate) fn resume(&mut self, cell: CellPtr) {
        if !cell.is_paused() {
            return;
        }
        self.resume_dispatch(cell);
        let mask = cell.interest().kernel_mask();
        cell.set_armed_mask(mask);
        // The event of a one-shot is in the batch, unless it was re-armed since.
        let is_reported = cell.interest().has_one_shot()
            && !cell.has_flag(CellFlags::REARMED)
            && self.batch.names(cell.expose());
        if !is_reported {
            self.add_again(cell);
            // As after a change: if that fails, the ring itself reports most events.
            let _ = self.backend.tell_host_of(cell.fd());
        }
    }

    /// Lets events reach the handler of a paused registration. The caller sees to the kernel.
    pub(crate) fn resume_dispatch(&mut self, cell: CellPtr) {
        self.registry.owned(cell).resume();
        self.list_synthetic_of_resumed(cell);
    }

    /// Changes the interest of a paused registration.
    pub(super) fn change_paused(&mut self, cell: CellPtr, interest: Interest) {
        cell.set_interest_bits(interest.bits());
        cell.set_flag(CellFlags::FIRED, false);
        let has_event = interest.has_one_shot() && self.batch.names(cell.expose());
        cell.set_flag(CellFlags::REARMED, has_event);
    }

    /// A paused registration has an event that was fetched before.
    pub(crate) fn hold_event(&mut self, key: Key, ready: u32) {
        // It was not dispatched to the user.
        self.counters.events -= 1;
        self.note(pending_work::WOKEN);
        let Some(cell) = self.registry.find(key) else { return };
        cell.set_flag(CellFlags::REARMED, false);
        if cell.has_flag(CellFlags::TAINTED) {
            // The entry may still be in the set, and keep the loop awake.
            self.note(pending_work::REBUILD);
        }
        if self.synthetic.is_in_batch(key) {
            self.raise(cell, ready);
        }
    }
}
