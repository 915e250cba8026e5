//! Registration of descriptors: add, modify, delete, and the state of the epoll set.
//!
//! Each descriptor number has at most one live cell. The registry checks this before the kernel is
//! called. The kernel's entries are keyed by (file, number), so they can disagree with the registry
//! if other code closes or replaces a registered descriptor. An entry with a cell's address may
//! then stay in the epoll set. Such a cell is a *stale entry*: its block is quarantined and its
//! number tainted until the epoll set is rebuilt (rule 7).

use core::mem;

#[cfg(feature = "sim")]
use crate::backend::sim::WAKE_NUMBER;
use crate::{
    AddReason, Errno, Interest, Key, ModifyError, Subscriber, Subscription,
    api::interest::{ERR, ET, EXCLUSIVE, ONESHOT},
    cell::{CellFlags, CellPtr, OwnedCell},
    kernel::{Kernel, SelfDeleted, pending_work},
};

type Cell = CellPtr;

impl Kernel {
    /// The number of subscribers that the user has registered, without the reactor's own.
    pub(crate) fn subscribers(&self) -> usize {
        self.registry.len() - self.internal
    }

    /// Registers a subscriber of the reactor's own, which no key names. Returns the address that
    /// its events carry.
    pub(crate) fn add_internal(&mut self, subscriber: impl Subscriber) -> Result<u64, Errno> {
        let subscription = Subscription::new(subscriber);
        #[cfg(not(feature = "sim"))]
        let fd = subscription.fd();
        // A simulated reactor has one such subscriber: its wake.
        #[cfg(feature = "sim")]
        let fd = if self.sim().is_some() { WAKE_NUMBER } else { subscription.fd() };
        let interest = subscription.interest();
        let cell = subscription.cell();
        self.watch(cell, fd, interest)?;
        cell.set_flag(CellFlags::INTERNAL, true);
        subscription.into_cell();
        self.internal += 1;
        Ok(cell.expose())
    }

    /// Adds a cell to the epoll set and the registry. On error the cell is not registered.
    fn watch(&mut self, cell: OwnedCell, fd: i32, interest: Interest) -> Result<Key, Errno> {
        debug_assert!(!self.registry.is_taken(fd), "rule 7: one live cell has a number");
        let mask = interest.kernel_mask();
        let key = self.registry.next_key();
        self.note_progress();
        cell.set_fd(fd);
        cell.set_interest(interest);
        cell.set_armed_bits(mask);
        self.backend.add(*cell, mask)?;
        cell.set_key(key);
        // Rule 7: a cell added under a tainted number becomes a stale entry when it is deleted,
        // even if the kernel reports success.
        cell.set_flag(CellFlags::TAINTED, self.registry.is_tainted(fd));
        self.registry.insert(cell, self.turn_mark());
        Ok(key)
    }

    /// The number of a user's subscriber. Calls user code.
    #[inline]
    pub(crate) fn number_of(
        &self,
        subscription: &Subscription<crate::Reactor>,
    ) -> Result<i32, AddReason> {
        #[cfg(feature = "sim")]
        match (self.sim(), subscription.sim_id()) {
            (None, None) => {}
            (Some(sim), Some(id)) => return sim.number_of(id),
            _ => return Err(AddReason::Unsupported),
        }
        Ok(subscription.fd())
    }

    /// Registers a user's cell. The caller has read its descriptor and interest before (rule 3).
    pub(crate) fn admit(
        &mut self,
        cell: OwnedCell,
        fd: i32,
        interest: Interest,
    ) -> Result<Key, AddReason> {
        self.may_admit(fd, interest)?;
        self.backend.check(fd)?;
        Ok(self.watch(cell, fd, interest)?)
    }

    /// Registers the cell of a stream or listener. Its descriptor is known to be a socket.
    pub(crate) fn admit_socket(
        &mut self,
        cell: OwnedCell,
        fd: i32,
        interest: Interest,
    ) -> Result<Key, AddReason> {
        self.may_admit(fd, interest)?;
        Ok(self.watch(cell, fd, interest)?)
    }

    /// Whether the reactor holds as many subscribers as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.subscribers() >= self.subscribers_max
    }

    fn may_admit(&self, fd: i32, interest: Interest) -> Result<(), AddReason> {
        if !interest.is_valid() {
            return Err(AddReason::InvalidInterest);
        }
        if !self.backend.supports(interest) {
            return Err(AddReason::Unsupported);
        }
        if self.registry.is_taken(fd) {
            return Err(AddReason::AlreadyExists);
        }
        if self.is_full() {
            return Err(AddReason::LimitReached);
        }
        Ok(())
    }

    /// Changes an interest, at once or merged with other changes.
    pub(crate) fn change(&mut self, cell: Cell, interest: Interest) -> Result<(), ModifyError> {
        self.note_progress();
        if !interest.is_valid() {
            return Err(ModifyError::InvalidInterest);
        }
        if !self.backend.supports(interest) {
            return Err(ModifyError::Unsupported);
        }
        // The mask of an empty interest is edge-triggered, but setting it again must not re-arm it.
        // Otherwise a handler that sets it at every hang-up would be called for ever.
        let is_armed =
            cell.armed_mask() == interest.kernel_mask() && !cell.has_flag(CellFlags::ABSENT);
        if is_armed && interest == crate::interest() && cell.interest() == interest {
            return Ok(());
        }
        let was_mergeable = cell.armed_mask() & (ET | ONESHOT | EXCLUSIVE) == 0;
        let in_turn = self.is_in_turn();
        if in_turn && was_mergeable && interest.is_mergeable() && !cell.has_flag(CellFlags::ABSENT)
        {
            self.registry.owned(cell).set_interest(interest);
            if !cell.has_flag(CellFlags::DIRTY) {
                cell.set_flag(CellFlags::DIRTY, true);
                self.dirty.push(cell.key());
                self.pending_work |= pending_work::DIRTY;
            }
            return Ok(());
        }
        if cell.is_paused() {
            self.change_paused(cell, interest);
            return Ok(());
        }
        self.rearm_in_kernel(cell, interest.kernel_mask()).map_err(ModifyError::Os)?;
        self.registry.owned(cell).set_interest(interest);
        Ok(())
    }

    /// Sets the kernel's mask, by MOD, or by DEL and ADD.
    pub(super) fn rearm_in_kernel(&mut self, cell: Cell, mask: u32) -> Result<(), Errno> {
        let (fd, address) = (cell.fd(), cell.expose());
        let exclusive = (cell.armed_mask() | mask) & EXCLUSIVE != 0;
        if !cell.has_flag(CellFlags::ABSENT) && !exclusive {
            self.backend.modify(cell, mask)?;
        } else {
            // The kernel does not modify exclusive entries (epoll_ctl(2)).
            self.leave_set(cell);
            if let Err(errno) = self.backend.add(cell, mask) {
                self.add_again(cell);
                return Err(errno);
            }
            // The deletion made the host forget the descriptor, so it is added there again. If that
            // fails, the ring itself reports most events.
            let _ = self.backend.tell_host_of(fd);
        }
        cell.set_armed_mask(mask);
        for flag in [CellFlags::ABSENT, CellFlags::FIRED, CellFlags::DIRTY] {
            cell.set_flag(flag, false);
        }
        cell.set_flag(CellFlags::REARMED, mask & ONESHOT != 0 && self.batch.names(address));
        // Rule 7 requires a cell modified under a tainted number to be tainted. This holds: it was
        // added under that number, or has tainted it just now.
        debug_assert!(cell.has_flag(CellFlags::TAINTED) || !self.registry.is_tainted(fd));
        Ok(())
    }

    /// Adds a cell with its old mask, after it was deleted for a change that the kernel rejected,
    /// or for a pause.
    pub(super) fn add_again(&mut self, cell: Cell) {
        // Adding a fired one-shot would arm it.
        if cell.has_flag(CellFlags::FIRED) {
            return;
        }
        if self.backend.add(cell, cell.armed_mask()).is_ok() {
            cell.set_flag(CellFlags::ABSENT, false);
        } else {
            self.raise(cell, ERR);
        }
    }

    /// Deletes a cell's entry from the epoll set, if it has one. The cell stays registered.
    pub(super) fn leave_set(&mut self, cell: Cell) {
        if !cell.has_flag(CellFlags::ABSENT) {
            self.delete_from_set(cell);
            cell.set_flag(CellFlags::ABSENT, true);
        }
    }

    /// Deletes a cell's entry from the epoll set. True if an entry with its address may remain.
    fn delete_from_set(&mut self, cell: Cell) -> bool {
        // Under a tainted number, a successful DEL may have deleted the entry of another file.
        let is_stale = self.backend.delete(cell).is_err() || cell.has_flag(CellFlags::TAINTED);
        if is_stale {
            self.registry.taint(cell.fd());
            cell.set_flag(CellFlags::TAINTED, true);
            // Reserve a descriptor for the rebuild while one is available. A stale entry that
            // cannot be removed would keep the loop awake.
            self.backend.reserve();
        }
        is_stale
    }

    /// Stops watching a cell. True if it is a stale entry now.
    pub(super) fn unwatch(&mut self, cell: Cell) -> bool {
        let is_stale = if cell.has_flag(CellFlags::ABSENT) {
            self.backend.let_go(cell);
            cell.has_flag(CellFlags::TAINTED)
        } else {
            self.delete_from_set(cell)
        };
        if is_stale && self.reclaim.quarantined() >= self.quarantine_max {
            self.pending_work |= pending_work::REBUILD;
        }
        is_stale
    }

    /// The turn number, modulo 2^32.
    #[expect(clippy::cast_possible_truncation, reason = "the low half of the count")]
    const fn turn_mark(&self) -> u32 {
        self.counters.turns as u32
    }

    /// Whether a registered cell was added after the batch was fetched, so that its block may be
    /// freed as soon as the cell is deleted.
    ///
    /// This is a hint that is wrong once every 2^32 turns.
    /// [`ReclaimQueue::free_early`](crate::registry::reclaim::ReclaimQueue::free_early) checks the
    /// batch itself. False for streams on a ring, because other lists also store their addresses.
    pub(super) fn is_new(&self, cell: Cell) -> bool {
        let is_streams = cell.has_flag(CellFlags::HIDDEN) && self.backend.has_ring();
        self.registry.mark(cell) == self.turn_mark() && !is_streams
    }

    /// Removes a cell from the epoll set and the registry. Its value goes to the reclaim queue, or
    /// waits for its handler to return. Runs no user code.
    pub(crate) fn deregister(&mut self, cell: Cell) {
        self.note_progress();
        cell.set_flag(CellFlags::DIRTY, false);
        // Rule 14: the destructor may close descriptors that merged changes still name.
        self.flush();
        let is_stale = self.unwatch(cell);
        let leaving = self.is_running(cell);
        let early = !is_stale && self.is_new(cell);
        let cell = self.registry.remove(cell, leaving);
        if leaving {
            // Rule 1. The number stays taken. Halting the batch ends the loop after the handler,
            // without a check per event.
            self.self_deleted = Some(SelfDeleted { cell, is_stale });
            self.pending_work |= pending_work::SELF_DELETED;
            self.batch.halt();
        } else {
            self.reclaim.retire(cell, is_stale, early);
        }
    }

    pub(super) fn is_running(&self, cell: Cell) -> bool {
        self.batch.running() == Some(cell.expose())
    }

    /// Passes the merged changes to the kernel. A rejected change becomes an error event.
    pub(crate) fn flush(&mut self) {
        self.pending_work &= !pending_work::DIRTY;
        let mut dirty = mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some(cell) = self.registry.find(key) else {
                continue;
            };
            let mask = cell.interest().kernel_mask();
            if !cell.has_flag(CellFlags::DIRTY) {
                continue;
            }
            cell.set_flag(CellFlags::DIRTY, false);
            if mask != cell.armed_mask() && self.rearm_in_kernel(cell, mask).is_err() {
                self.raise(cell, ERR);
            }
        }
        // Nothing was added meanwhile. The list keeps its memory (rule 12).
        self.dirty = dirty;
    }

    /// Rebuilds the epoll set without its stale entries (rule 7). If the kernel has no descriptor
    /// or memory for it, the old set stays and the next turn tries again.
    ///
    /// The batch must be empty. The new set would report events fetched from the old set again,
    /// except one-shot events, which would be lost.
    pub(crate) fn rebuild(&mut self) {
        debug_assert!(self.batch.is_empty(), "rule 7: no rebuild while events of the old set wait");
        if self.backend.replace().is_err() {
            return;
        }
        self.pending_work &= !pending_work::REBUILD;
        self.counters.rebuilds += 1;
        self.registry.clear_taint();
        let is_own = |cell: &Cell| cell.has_flag(CellFlags::INTERNAL);
        let (own, cells): (Vec<Cell>, Vec<Cell>) = self.registry.iter().partition(is_own);
        own.iter().for_each(|cell| cell.set_flag(CellFlags::ABSENT, true));
        self.listen_again();
        for cell in cells {
            // A fired one-shot is disabled in the kernel, and adding it would arm it.
            let absent = cell.has_flag(CellFlags::FIRED) || cell.has_flag(CellFlags::ABSENT);
            cell.set_flag(CellFlags::ABSENT, true);
            if absent {
                continue;
            }
            // Adding an entry reports the current readiness, so no edge is lost.
            if self.backend.add(cell, cell.armed_mask()).is_ok() {
                cell.set_flag(CellFlags::ABSENT, false);
            } else {
                self.raise(cell, ERR);
            }
        }
        self.reclaim.release_quarantine();
        self.free_dead();
    }

    /// Adds the reactor's own wake descriptor to the epoll set if it is missing. If the kernel
    /// rejects it, the next turn tries again. Until then no turn waits longer than `DEAF_WAIT_MAX`.
    pub(crate) fn listen_again(&mut self) {
        self.pending_work &= !pending_work::DEAF;
        let is_missing =
            |cell: &Cell| cell.has_flag(CellFlags::INTERNAL) && cell.has_flag(CellFlags::ABSENT);
        for cell in self.registry.iter().filter(is_missing) {
            match self.backend.add(cell, cell.armed_mask()) {
                Ok(()) => cell.set_flag(CellFlags::ABSENT, false),
                Err(_) => self.pending_work |= pending_work::DEAF,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use rustix::event::{EventfdFlags, eventfd};

    use crate::{Backend, Event, Key, Reactor, Turn, interest};

    /// The mark of a registration is a turn modulo 2^32. After so many turns a cell seems new, but
    /// the batch has its address (rule 2).
    #[test]
    fn a_cell_that_only_seems_new_is_kept_while_the_batch_names_it() {
        let mut reactor = Reactor::builder().backend(Backend::Epoll).build().unwrap();
        let keys: Rc<Cell<[Option<Key>; 2]>> = Rc::default();
        let is_kept = Rc::new(Cell::new(false));
        let both = [0, 1].map(|at| {
            let (keys, is_kept) = (Rc::clone(&keys), Rc::clone(&is_kept));
            let fd = eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
            let handler = move |_: Event, mut turn: Turn<'_, Reactor>| {
                turn.delete(keys.get()[1 - at].unwrap()).unwrap();
                is_kept.set(turn.ops().parts().kernel.reclaim.has_dead());
            };
            Some(interest().read().with_fd(fd).with_handler(handler).register_into(&mut reactor))
        });
        keys.set(both.map(|key| key.and_then(Result::ok)));
        reactor.parts().kernel.counters.turns += (1 << 32) - 1;
        assert_eq!(reactor.run_once(std::time::Duration::ZERO).unwrap(), 2);
        assert!(is_kept.get());
        assert_eq!(reactor.stats().subscribers, 1);
    }
}
