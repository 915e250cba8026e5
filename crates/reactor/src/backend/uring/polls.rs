//! Registrations as polls: how they are armed, report and end.
//!
//! A change of a level-triggered interest cancels nothing, because the kernel finds a request to
//! cancel by scanning a hash bucket of all polls. A poll in flight with too many conditions
//! completes once in vain. If writing is added, a second poll for writing only is armed beside the
//! poll in flight.
//!
//! The kernel does not wake a poll for priority data alone (io_uring/poll.c uses
//! `IO_ASYNC_POLL_COMMON` as a mark). It reports priority data by the conditions of the waker,
//! which for sockets contain reading and priority in both cases. So the poll also asks for reading,
//! and priority is reported only if poll(2) confirms it.

#![allow(unsafe_code, reason = "lists carry the addresses of cells; see mod.rs")]

use core::mem;

use rustix::io::Errno;

use super::{CONDITIONS, Cell, Completion, TO_ARM_KEPT, TO_ARM_SPARE, Uring, tag};
use crate::{
    api::interest::{ERR, ET, EXCLUSIVE, HUP, IN, ONESHOT, OUT, PRI},
    cell::CellFlags as Flags,
};

/// An interest with one of these flags cannot be changed without a cancellation.
const UNMERGED: u32 = ET | ONESHOT | EXCLUSIVE | PRI;

impl Uring {
    pub(crate) fn add(&mut self, cell: Cell) -> Result<(), Errno> {
        self.check_owner()?;
        cell.set_flag(Flags::DROPPED, false);
        self.list(cell);
        Ok(())
    }

    /// Changes a cell's interest to `mask`. The caller records it in the cell.
    pub(crate) fn modify(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        self.check_owner()?;
        let is_plain = (cell.armed_mask() | mask) & UNMERGED == 0 && !cell.has_flag(Flags::QUIET);
        let has_known = cell.has_flag(Flags::AWAITS_IN) || cell.has_flag(Flags::AWAITS_OUT);
        let is_kept = is_plain && (has_known || !cell.has_flag(Flags::IN_FLIGHT));
        if !is_kept {
            self.withdraw(cell);
        }
        self.list(cell);
        Ok(())
    }

    /// Ends the watch. The kernel has released the file when this returns, unless it has failed to
    /// do so for a second.
    pub(crate) fn delete(&mut self, cell: Cell) {
        cell.set_flag(Flags::DROPPED, true);
        if self.fork.is_child() {
            return;
        }
        self.withdraw(cell);
        if cell.has_flag(Flags::TO_ARM) && self.to_arm.last() == Some(&cell.expose()) {
            // Added and deleted within one turn: without this, its block would stay allocated until
            // the next wait.
            self.to_arm.pop();
            cell.set_flag(Flags::TO_ARM, false);
        }
        if let Some(host_epoll) = &mut self.host_epoll {
            host_epoll.forget(cell.fd());
        }
        let _ = self.end_receive(cell);
        if cell.has_requests() && !self.settle_while(|_| cell.has_requests()) {
            self.is_unsettled = true;
        }
        self.strike_out(cell.expose());
        // Rule 14: the number may be passed on now.
        if self.named.may_have(cell.fd()) {
            self.submit();
            if self.ring.queued() > 0 {
                self.retry_submit();
            }
        }
    }

    /// Discards the received bytes and waiting completions of a deleted cell. Its buffers are
    /// returned later, in their order (protocol 3).
    fn strike_out(&mut self, address: u64) {
        for kept in &mut self.backlog {
            if kept.user_data & !tag::MASK == address {
                kept.user_data &= tag::MASK;
            }
        }
    }

    /// Ends all watches at once, when the reactor is dropped. The polls armed last are cancelled
    /// first, because they are the first in the kernel's buckets.
    pub(crate) fn end(&mut self, cells: impl Iterator<Item = Cell>) {
        if self.fork.is_child() {
            cells.for_each(|cell| cell.set_flag(Flags::DROPPED, true));
            return;
        }
        self.submit_now();
        self.is_ending = true;
        self.backlog.clear();
        self.forget_done();
        let mut cells: Vec<Cell> = cells.collect();
        while let Some(cell) = cells.pop() {
            cell.set_flag(Flags::DROPPED, true);
            self.withdraw(cell);
            if let Some(host_epoll) = &mut self.host_epoll {
                host_epoll.forget(cell.fd());
            }
            let _ = self.end_receive(cell);
            let queued = self.ring.queued();
            if queued >= self.ring.capacity() {
                // Each of them ends a request, whose completion comes in this call.
                self.enter_for(queued);
                self.reap();
            }
        }
        self.settle_while(|_| true);
    }

    /// Cancels the present polls, if any, and discards their waiting completions.
    pub(super) fn withdraw(&mut self, cell: Cell) {
        let address = cell.expose();
        if !self.backlog.is_empty() {
            self.backlog.retain(|kept| {
                kept.user_data & !tag::MASK != address || kept.user_data & tag::MASK >= tag::RECEIVE
            });
        }
        if cell.has_flag(Flags::IN_FLIGHT) {
            self.ring.cancel(address | u64::from(cell.generation()), tag::CONTROL);
            cell.next_generation();
        }
        if cell.has_flag(Flags::OUT_IN_FLIGHT) {
            self.ring.cancel(address | tag::OUT_POLL, tag::CONTROL);
            cell.set_flag(Flags::OUT_IN_FLIGHT, false);
        }
    }

    /// Adds the cell to the list of polls to arm.
    #[inline]
    pub(super) fn list(&mut self, cell: Cell) {
        if !cell.has_flag(Flags::TO_ARM) {
            cell.set_flag(Flags::TO_ARM, true);
            self.to_arm.push(cell.expose());
        }
    }

    /// Queues the polls that must be armed.
    pub(super) fn arm_all(&mut self) {
        let mut listed = mem::take(&mut self.to_arm);
        let is_far_too_large = listed.len() < listed.capacity() / TO_ARM_SPARE;
        for address in listed.drain(..) {
            // SAFETY: A listed cell is owed, so its block is allocated (protocol 1).
            let cell = unsafe { Cell::from_exposed(address) };
            cell.set_flag(Flags::TO_ARM, false);
            if cell.has_flag(Flags::DROPPED) {
                continue;
            }
            if cell.has_flag(Flags::IN_FLIGHT) {
                self.top_up(cell);
            }
            if !cell.has_flag(Flags::IN_FLIGHT) {
                self.arm(cell);
            }
        }
        // Cells listed meanwhile wait for the next call. The larger memory is kept (rule 12),
        // unless many cells were added at once and few fire.
        if is_far_too_large && listed.capacity() > TO_ARM_KEPT {
            listed.shrink_to(TO_ARM_KEPT);
        }
        listed.append(&mut self.to_arm);
        self.to_arm = listed;
    }

    fn arm(&mut self, cell: Cell) {
        if cell.is_too_old() && !self.settle_while(|_| cell.is_too_old()) {
            self.list(cell);
            return;
        }
        let mask = cell.armed_mask();
        let is_multishot = cell.has_flag(Flags::QUIET) || mask & (ET | ONESHOT) == ET;
        let mut events = mask & !(ET | ONESHOT);
        if events & (IN | PRI) == PRI {
            events |= IN;
        }
        if cell.has_flag(Flags::OUT_IN_FLIGHT) {
            events &= !OUT;
            if events == 0 {
                return;
            }
        }
        self.named.note(cell.fd());
        self.ring.poll(
            cell.fd(),
            events,
            is_multishot,
            cell.expose() | u64::from(cell.generation()),
        );
        cell.poll_begins(if is_multishot { 0 } else { events });
        self.outstanding += 1;
    }

    /// The interest of a cell with a poll in flight has changed, or its poll for writing has fired.
    /// Arms a poll for the missing conditions, or replaces all polls.
    #[cold]
    fn top_up(&mut self, cell: Cell) {
        if cell.has_flag(Flags::QUIET) {
            return;
        }
        let has_in = cell.has_flag(Flags::AWAITS_IN);
        let has_out = cell.has_flag(Flags::AWAITS_OUT) || cell.has_flag(Flags::OUT_IN_FLIGHT);
        if !has_in && !has_out {
            // It is edge-triggered, and was not changed.
            return;
        }
        let mask = cell.armed_mask();
        let lacks_in = mask & IN != 0 && !has_in;
        let lacks_out = mask & OUT != 0 && !has_out;
        // A cancelled poll could be mistaken for the new one until it has completed.
        if lacks_in || lacks_out && cell.polls() > 1 {
            self.withdraw(cell);
        } else if lacks_out {
            self.named.note(cell.fd());
            self.ring.poll(cell.fd(), OUT, false, cell.expose() | tag::OUT_POLL);
            cell.out_poll_begins();
            self.outstanding += 1;
        }
    }

    /// Filters the conditions that a poll has found by the interest, and updates the poll's state.
    #[inline]
    pub(super) fn conditions(&mut self, cell: Cell, completion: Completion) -> u32 {
        let mask = cell.armed_mask();
        let Ok(mut found) = u32::try_from(completion.result) else {
            return self.rejected(cell, completion);
        };
        if mask & PRI != 0 {
            found = self.ask_for_priority(cell.fd(), found);
        }
        let ready = found & (mask & CONDITIONS | ERR | HUP);
        if completion.has_more() {
            if ready != 0 && cell.has_flag(Flags::QUIET) {
                // A requested condition has come: the normal kind of poll is used again.
                self.withdraw(cell);
                if mask & ONESHOT == 0 {
                    self.list(cell);
                }
            }
        } else if completion.user_data & tag::MASK == tag::OUT_POLL {
            self.after_out_poll(cell, ready, found);
        } else if mask & ONESHOT == 0 || ready == 0 {
            self.set_quiet(cell, ready, found);
            self.list(cell);
        }
        ready
    }

    /// A poll has completed. The cell becomes quiet if the poll would complete again at once and in
    /// vain.
    #[inline]
    fn set_quiet(&mut self, cell: Cell, ready: u32, found: u32) {
        let mask = cell.armed_mask();
        // Conditions that the kernel reports without a request, or data found by a poll for
        // priority only. Reading and writing may be left over from an earlier interest.
        let is_unasked = found & !(IN | OUT) != 0 || found == 0 || mask & PRI != 0;
        let is_quiet = ready == 0 && is_unasked && mask & (ET | ONESHOT) != ET;
        if is_quiet {
            // One poll watches all conditions.
            self.withdraw(cell);
        }
        cell.set_flag(Flags::QUIET, is_quiet);
    }

    /// Updates a cell whose second poll, for writing, has completed.
    fn after_out_poll(&mut self, cell: Cell, ready: u32, found: u32) {
        if cell.armed_mask() & OUT == 0 || cell.has_flag(Flags::QUIET) {
            return;
        }
        if ready == 0 {
            self.set_quiet(cell, ready, found);
        }
        self.list(cell);
    }

    /// The kernel has rejected or ended a poll.
    #[cold]
    fn rejected(&mut self, cell: Cell, completion: Completion) -> u32 {
        if completion.has_more() {
            return 0;
        }
        if cell.has_flag(Flags::INTERNAL) {
            // Without this poll no other thread could wake the loop.
            self.list(cell);
            return 0;
        }
        // As after a change that epoll rejects at the flush: one error event, and the cell is
        // absent until its next change.
        cell.set_flag(Flags::ABSENT, true);
        ERR
    }

    /// The conditions that a poll has found, with priority as poll(2) reports it.
    #[cold]
    fn ask_for_priority(&self, fd: i32, found: u32) -> u32 {
        if found & (IN | PRI) == 0 {
            return found;
        }
        if self.ring.has_priority(fd) { found | PRI } else { found & !PRI }
    }
}
