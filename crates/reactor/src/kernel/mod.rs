//! The [`Kernel`]: the part of the reactor that talks to the kernel.
//!
//! It adds, modifies and deletes registrations, fetches events into the batch, and keeps deleted
//! cells until the kernel can no longer name them. It runs no user code, except for destructors
//! in [`Kernel::drop_waiting_down_to`].
//!
//! # What streams and groups use
//!
//! 1. *Cells.* [`admit`](Kernel::admit) and [`admit_socket`](Kernel::admit_socket) register one,
//!    [`find`](Kernel::find) returns the cell of a key, [`change`](Kernel::change) sets its
//!    interest, [`deregister`](Kernel::deregister) deletes it.
//! 2. *Destructors.* `deregister` queues the value. The caller notes
//!    [`waiting`](Kernel::waiting) before, and calls
//!    [`drop_waiting_down_to`](Kernel::drop_waiting_down_to) once its own tables are consistent
//!    (rule 3). [`take_hidden`](Kernel::take_hidden) returns the value instead.
//! 3. *The ring.* [`ring`](Kernel::ring), and [`note_queued`](Kernel::note_queued) after an entry
//!    was queued with it.
//! 4. *Pending work.* [`note`](Kernel::note), [`clear`](Kernel::clear) and [`has`](Kernel::has)
//!    with the bits of [`pending_work`].
//! 5. *Turns.* [`is_in_turn`](Kernel::is_in_turn).
//!
//! Timers are those of `Timing`, which is given the kernel, and groups those of `Groups`.

pub(crate) mod counters;
mod destructors;
pub(crate) mod dispatch;
mod ending;
mod pause;
pub(crate) mod pending_work;
pub(crate) mod progress;
mod registration;
mod synthetic;
mod turn;
mod wait;

#[cfg(feature = "sim")]
use crate::backend::sim::SimBackend;
use crate::{
    Key, Reactor,
    backend::{ActiveBackend, Uring, batch::Batch},
    cell::{CellPtr, OwnedCell},
    kernel::{
        counters::Counters,
        progress::{ProgressTable, StreakLimits},
        synthetic::SyntheticEvents,
    },
    registry::{reclaim::ReclaimQueue, table::Registry},
};

/// What the reactor has told the kernel, and what the kernel has answered.
pub(crate) struct Kernel {
    /// First, because the loop reads it for every event.
    batch: Batch,
    /// The [`pending_work`] bits: work beside events. Zero on the shortest path.
    pending_work: u32,
    /// In a turn, outside of the events: a timer, a closure, a hook or a driver may run. See
    /// [`is_in_turn`](Self::is_in_turn).
    is_calling: bool,
    /// The next wait follows at once and submits the ring's queued requests.
    keeps_queue: bool,
    counters: Counters,
    backend: ActiveBackend,
    registry: Registry<Reactor>,
    reclaim: ReclaimQueue<Reactor>,
    /// The running cell, if it has deleted itself. Its value is dropped after its handler has
    /// returned (rule 1).
    self_deleted: Option<SelfDeleted>,
    /// Registrations with a merged `modify` that the kernel does not have yet.
    dirty: Vec<Key>,
    synthetic: SyntheticEvents,
    /// Registrations of the reactor's own.
    internal: usize,
    subscribers_max: usize,
    quarantine_max: usize,
    /// Something was called since the mark was cleared that counts as progress of a handler.
    has_progressed: bool,
    /// If the progress is watched.
    progress: Option<Box<ProgressTable>>,
}

/// A cell that deleted itself in its handler.
#[derive(Clone, Copy, Debug)]
struct SelfDeleted {
    cell: OwnedCell,
    is_stale: bool,
}

/// The bounds of a [`Kernel`].
pub(crate) struct KernelLimits {
    pub(crate) events_per_turn: usize,
    pub(crate) subscribers_max: usize,
    pub(crate) quarantine_max: usize,
    pub(crate) progress: Option<StreakLimits>,
}

impl Kernel {
    /// `pending` has the bits that describe the reactor's configuration.
    pub(crate) fn new(backend: ActiveBackend, limits: &KernelLimits, pending: u32) -> Self {
        debug_assert_eq!(pending & !pending_work::LASTING, 0, "work is noted when it comes up");
        Self {
            batch: Batch::new(limits.events_per_turn),
            pending_work: pending,
            is_calling: false,
            keeps_queue: false,
            counters: Counters::default(),
            backend,
            registry: Registry::new(),
            reclaim: ReclaimQueue::new(),
            self_deleted: None,
            dirty: Vec::new(),
            synthetic: SyntheticEvents::default(),
            internal: 0,
            subscribers_max: limits.subscribers_max,
            quarantine_max: limits.quarantine_max,
            has_progressed: false,
            progress: limits.progress.map(|limits| Box::new(ProgressTable::new(limits))),
        }
    }

    /// Whether the reactor runs a turn. Otherwise its owner has control.
    #[inline]
    pub(crate) fn is_in_turn(&self) -> bool {
        self.is_calling || self.batch.is_open()
    }

    /// The cell that a key of the user or of a stream names.
    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<CellPtr> {
        self.registry.find(key)
    }

    /// The ring, if it is the backend. After an entry was queued with it, the caller calls
    /// [`note_queued`](Self::note_queued).
    #[inline]
    pub(crate) fn ring(&mut self) -> Option<&mut Uring> {
        self.backend.ring()
    }

    /// An entry was queued with the ring. It is submitted with the next wait, or at the end of the
    /// turn if no wait follows.
    #[inline]
    pub(crate) fn note_queued(&mut self) {
        if !self.keeps_queue {
            self.note(pending_work::QUEUED);
        }
    }

    /// The simulation, if it is the backend.
    #[cfg(feature = "sim")]
    pub(crate) fn sim(&self) -> Option<&SimBackend> {
        self.backend.sim()
    }

    #[cfg(feature = "sim")]
    pub(crate) fn sim_mut(&mut self) -> Option<&mut SimBackend> {
        self.backend.sim_mut()
    }

    /// The ring, and the conditions of the cell's events in the batch that were not dispatched.
    pub(crate) fn ring_and_events(
        &mut self,
        cell: CellPtr,
    ) -> Option<(&mut Uring, impl Iterator<Item = u32>)> {
        Some((self.backend.ring()?, self.batch.waiting_of(cell.expose())))
    }

    /// Whether an event of the cell was fetched and not dispatched.
    pub(crate) fn has_event_of(&self, cell: CellPtr) -> bool {
        self.batch.names(cell.expose())
    }

    /// Adds an event to the batch of the next wait. False if the batch is full.
    pub(crate) fn push_event(&mut self, cell: CellPtr, ready: u32) -> bool {
        self.batch.push(cell.expose(), ready)
    }
}
