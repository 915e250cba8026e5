//! What the loop asks of the [`Kernel`] in a turn.

use rustix::{fd::BorrowedFd, io::Errno};

use crate::{
    Key,
    api::inline_call::InlineTimer,
    backend::ActiveBackend,
    cell::{CellFlags, CellPtr},
    kernel::{Kernel, counters::Counters, pending_work},
};

impl Kernel {
    /// The bits of [`pending_work`].
    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        self.pending_work
    }

    /// Whether user code may run outside of the events.
    #[inline]
    pub(crate) fn set_calling(&mut self, is_calling: bool) {
        self.is_calling = is_calling;
    }

    /// Whether the next wait follows at once. If it does not, what is queued with a ring is
    /// submitted.
    pub(crate) fn set_keeps_queue(&mut self, keeps_queue: bool) {
        self.keeps_queue = keeps_queue;
        if !keeps_queue {
            self.backend.submit_now();
        }
    }

    #[inline(always)]
    pub(crate) fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    pub(crate) fn stats(&self) -> &Counters {
        &self.counters
    }

    /// The events that were fetched and not dispatched.
    pub(crate) fn events(&self) -> usize {
        self.batch.len()
    }

    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The most events of a turn.
    #[inline(always)]
    pub(crate) fn events_max(&self) -> usize {
        self.batch.capacity()
    }

    /// Removes the events of the last turn, all of which were dispatched, to make room.
    pub(crate) fn clear_batch(&mut self) {
        debug_assert!(self.batch.is_empty(), "rule 8: no event is lost");
        self.batch.clear();
    }

    /// The events of the turn were dispatched.
    #[inline(always)]
    pub(crate) fn close_empty_batch(&mut self) {
        self.batch.close_empty();
    }

    /// Ends the dispatch of events. Those that are left come first in the next turn.
    pub(crate) fn close_batch(&mut self) {
        self.batch.close();
    }

    /// Removes the only event that was fetched if it is of the cell at this address.
    pub(crate) fn takes_only_event(&mut self, address: u64) -> bool {
        let is_alone = self.batch.len() == 1 && self.batch.names(address);
        if is_alone {
            self.batch.clear();
        }
        is_alone
    }

    /// The address of the cell whose handler runs.
    pub(crate) fn running(&self) -> Option<u64> {
        self.batch.running()
    }

    /// The running cell, if it has deleted itself.
    pub(crate) fn self_deleted(&self) -> Option<CellPtr> {
        self.self_deleted.map(|deleted| *deleted.cell)
    }

    /// Ends a turn, also after a panic. `counted` says that the turn has counted its events as
    /// dispatched. Runs no user code.
    #[inline]
    pub(crate) fn end_turn(&mut self, counted: bool) {
        // A cell that deleted itself and panicked: its value's destructor runs in the next turn.
        self.retire_self_deleted();
        self.batch.close();
        self.is_calling = false;
        // Left-over events are counted when they are dispatched.
        if counted {
            self.counters.events -= self.batch.len() as u64;
        }
        if self.batch.is_empty() {
            self.synthetic.end_batch();
        }
        if self.has(pending_work::QUEUED) {
            // The next wait may be far off, and peers wait for the sent data. In `run` its own
            // guard submits.
            self.backend.submit_now();
        }
    }

    /// Submits replies that are queued with a ring and have waited for long enough.
    #[inline(always)]
    pub(crate) fn submit_if_due(&mut self) {
        if self.has(pending_work::PACED) {
            self.backend.submit_if_due();
        }
    }

    /// No wait follows: submits what it would have submitted.
    pub(crate) fn submit_now(&mut self) {
        self.backend.submit_now();
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        self.backend.check_owner()
    }

    /// What the backend is, and what it supports.
    pub(crate) fn backend(&self) -> &ActiveBackend {
        &self.backend
    }

    /// The cell that a key of the user names.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<CellPtr> {
        self.registry.get(key)
    }

    /// Names what a key of the user or of a listener names, or takes its name away. False if there
    /// is no such cell.
    pub(crate) fn set_name(&mut self, key: Key, name: Option<Box<str>>) -> bool {
        self.find(key).map(|cell| self.registry.set_name(cell, name)).is_some()
    }

    /// The name of a registered cell.
    pub(crate) fn name(&self, cell: CellPtr) -> Option<&str> {
        self.registry.name(cell)
    }

    /// The cells of the user's descriptors, without those of streams and listeners.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = CellPtr> {
        let is_own = |cell: &CellPtr| cell.has_flag(CellFlags::INTERNAL);
        let is_hidden = |cell: &CellPtr| cell.has_flag(CellFlags::HIDDEN);
        self.registry.iter().filter(move |cell| !is_own(cell) && !is_hidden(cell))
    }

    /// Whether a live cell has the number.
    pub(crate) fn is_taken(&self, fd: i32) -> bool {
        self.registry.is_taken(fd)
    }

    /// The keys of all registrations.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.registry.iter().map(CellPtr::key).collect()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.reclaim.has_waiting()
    }

    /// The number of cells that are kept until the epoll set is rebuilt.
    pub(crate) fn quarantined(&self) -> usize {
        self.reclaim.quarantined()
    }

    /// Queues the handler of a timer that is not running, as [`deregister`](Self::deregister)
    /// queues a value.
    pub(crate) fn retire_timer(&mut self, call: InlineTimer<crate::Reactor>) {
        self.reclaim.retire_timer(call);
        self.note(pending_work::RECLAIM);
    }

    /// See [`ActiveBackend::watchable`].
    pub(crate) fn watchable(&mut self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        self.backend.watchable()
    }

    /// Makes sure that the outer loop is woken for all registrations but those that are paused,
    /// after [`watchable`](Self::watchable) has returned another descriptor.
    pub(crate) fn tell_host(&mut self) -> Result<(), Errno> {
        let mut woken_for = self.registry.iter().filter(|cell| !cell.is_paused());
        woken_for.try_for_each(|cell| self.backend.tell_host_of(cell.fd()))
    }

    /// Prepares for a wait of another loop. See [`ActiveBackend::settle`].
    pub(crate) fn settle_for_host(&mut self) -> Result<bool, Errno> {
        self.flush();
        self.backend.settle()
    }

    /// See [`ActiveBackend::leave_host`].
    pub(crate) fn leave_host(&mut self) {
        self.backend.leave_host();
    }
}
