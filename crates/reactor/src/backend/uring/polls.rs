//! Registrations as polls: when they are armed, what they find, and how they end.
//!
//! A level-triggered interest that grows or shrinks cancels nothing, for the kernel finds what is
//! to be cancelled by walking through a hash bucket of all that is polled. What is in flight for
//! more than is asked finds it once, in vain; where writing is asked beside what is in flight, a
//! poll for that alone is armed beside it.
//!
//! A poll of the kernel's is not woken for priority alone (`IO_ASYNC_POLL_COMMON` in
//! io_uring/poll.c takes it for a mark), and tells of it by what the waker said, which for sockets
//! is both for either. So reading is asked for beside it, and priority is believed when poll(2)
//! says so too.

#![allow(unsafe_code, reason = "lists carry the addresses of cells; see mod.rs")]

use core::mem;

use rustix::io::Errno;

use super::{CONDITIONS, Cell, Completion, TO_ARM_KEPT, TO_ARM_SPARE, Uring, tag};
use crate::{
    backend::pollable,
    cell::Flags,
    interest::{ERR, ET, EXCLUSIVE, HUP, IN, ONESHOT, OUT, PRI},
};

/// Interests whose changes cancel nothing have none of these.
const UNMERGED: u32 = ET | ONESHOT | EXCLUSIVE | PRI;

impl Uring {
    pub(crate) fn add(&mut self, cell: Cell) -> Result<(), Errno> {
        self.fork.check()?;
        cell.set_flag(Flags::DROPPED, false);
        self.list(cell);
        Ok(())
    }

    /// Changes what a cell is watched for to `mask`, which the cell is to note.
    pub(crate) fn modify(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        self.fork.check()?;
        let is_plain = (cell.armed_mask() | mask) & UNMERGED == 0 && !cell.has_flag(Flags::QUIET);
        let has_known = cell.has_flag(Flags::AWAITS_IN) || cell.has_flag(Flags::AWAITS_OUT);
        let is_kept = is_plain && (has_known || !cell.has_flag(Flags::IN_FLIGHT));
        if !is_kept {
            self.withdraw(cell);
        }
        self.list(cell);
        Ok(())
    }

    /// Ends the watch. The kernel has let go of the file when this returns, unless it has not done
    /// so for a second.
    pub(crate) fn delete(&mut self, cell: Cell) {
        cell.set_flag(Flags::DROPPED, true);
        if self.fork.is_child() {
            return;
        }
        self.withdraw(cell);
        if cell.has_flag(Flags::TO_ARM) && self.to_arm.last() == Some(&cell.expose()) {
            // Added and deleted within one turn: without this its block would wait for the next
            // wait.
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
        // Rule 14: the number may be given away now.
        if self.named.may_have(cell.fd()) {
            self.submit();
            if self.ring.queued() > 0 {
                self.retry_submit();
            }
        }
    }

    /// What a deleted cell has received, and what waits to be reported, is nobody's from here on;
    /// the buffers go back in their turn (protocol 3).
    fn strike_out(&mut self, address: u64) {
        for kept in &mut self.backlog {
            if kept.user_data & !tag::MASK == address {
                kept.user_data &= tag::MASK;
            }
        }
    }

    /// Ends all watches at once, those that were armed last first: they stand first in the kernel's
    /// buckets. For the reactor's own end.
    pub(crate) fn end(&mut self, cells: impl Iterator<Item = Cell>) {
        if self.fork.is_child() {
            cells.for_each(|cell| cell.set_flag(Flags::DROPPED, true));
            return;
        }
        self.submit_now();
        self.is_ending = true;
        self.backlog.clear();
        self.done.clear();
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

    /// Cancels the present polls, if there are any, and discards what they have reported.
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

    /// Notes that a poll is to be armed for the cell.
    #[inline]
    pub(super) fn list(&mut self, cell: Cell) {
        if !cell.has_flag(Flags::TO_ARM) {
            cell.set_flag(Flags::TO_ARM, true);
            self.to_arm.push(cell.expose());
        }
    }

    /// Queues the polls that are to be armed.
    pub(super) fn arm_all(&mut self) {
        let mut listed = mem::take(&mut self.to_arm);
        let is_far_too_large = listed.len() < listed.capacity() / TO_ARM_SPARE;
        for address in listed.drain(..) {
            // SAFETY: a listed cell is owed, so its block is allocated (protocol 1).
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
        // What was listed meanwhile waits for the next time; the larger memory is kept (rule 12),
        // unless many have been added at once and few fire.
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

    /// The interest of a cell whose poll is in flight has changed, or what it has beside it has
    /// fired: what is missing is armed beside it, or all of it anew.
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
        // What was cancelled may be taken for it for as long as it has not completed.
        if lacks_in || lacks_out && cell.polls() > 1 {
            self.withdraw(cell);
        } else if lacks_out {
            self.named.note(cell.fd());
            self.ring.poll(cell.fd(), OUT, false, cell.expose() | tag::OUT_POLL);
            cell.out_poll_begins();
            self.outstanding += 1;
        }
    }

    /// What a poll has found, as far as it was asked for, and what becomes of the poll.
    #[inline]
    pub(super) fn conditions(&mut self, cell: Cell, completion: Completion) -> u32 {
        let mask = cell.armed_mask();
        let Ok(mut found) = u32::try_from(completion.result) else {
            return self.refused(cell, completion);
        };
        if mask & PRI != 0 {
            found = ask_for_priority(cell.fd(), found);
        }
        let ready = found & (mask & CONDITIONS | ERR | HUP);
        if completion.has_more() {
            if ready != 0 && cell.has_flag(Flags::QUIET) {
                // What was asked for has come: from here on it is watched in its own manner again.
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

    /// A poll has completed. It is quiet from here on if it would complete again at once, and in
    /// vain.
    #[inline]
    fn set_quiet(&mut self, cell: Cell, ready: u32, found: u32) {
        let mask = cell.armed_mask();
        // What the kernel tells of unasked, or data that priority alone does not ask for. Reading
        // and writing may have been asked for before.
        let is_unasked = found & !(IN | OUT) != 0 || found == 0 || mask & PRI != 0;
        let is_quiet = ready == 0 && is_unasked && mask & (ET | ONESHOT) != ET;
        if is_quiet {
            // One poll watches all of it.
            self.withdraw(cell);
        }
        cell.set_flag(Flags::QUIET, is_quiet);
    }

    /// What becomes of a cell whose poll for writing beside the present one has completed.
    fn after_out_poll(&mut self, cell: Cell, ready: u32, found: u32) {
        if cell.armed_mask() & OUT == 0 || cell.has_flag(Flags::QUIET) {
            return;
        }
        if ready == 0 {
            self.set_quiet(cell, ready, found);
        }
        self.list(cell);
    }

    /// The kernel has refused a poll, or given it up.
    #[cold]
    fn refused(&mut self, cell: Cell, completion: Completion) -> u32 {
        if completion.has_more() {
            return 0;
        }
        if cell.has_flag(Flags::INTERNAL) {
            // Without it no other thread could wake the loop.
            self.list(cell);
            return 0;
        }
        // As for a change that epoll refuses at the flush: one error event, and it is absent until
        // it is changed again.
        cell.set_flag(Flags::ABSENT, true);
        ERR
    }
}

/// What a poll has found, with priority as poll(2) says it.
#[cold]
fn ask_for_priority(fd: i32, found: u32) -> u32 {
    if found & (IN | PRI) == 0 {
        return found;
    }
    if pollable::has_priority(fd) { found | PRI } else { found & !PRI }
}
