//! [`Driver`]: what the executor does at the end of each turn.

use windlass::{NextTurn, Turn, TurnDriver};

use crate::{
    handle::{Handle, publish},
    task::{join_ref::JoinRef, polls::poll_tasks},
    time::after_paused_round,
};

/// Futures of other threads that become tasks in one round.
const SPAWNS_PER_ROUND: usize = 61;

/// The driver of the reactor while `block_on` runs.
pub(super) struct Driver<'e> {
    handle: &'e Handle,
    /// The future of `block_on`.
    root: &'e JoinRef<()>,
}

impl<'e> Driver<'e> {
    pub(super) fn new(handle: &'e Handle, root: &'e JoinRef<()>) -> Self {
        Self { handle, root }
    }

    /// Whether the future of `block_on` is ready, or has panicked.
    pub(super) fn is_finished(&self) -> bool {
        self.root.is_finished()
    }

    fn round(&self) -> NextTurn {
        let handle = self.handle;
        let owner = handle.owner();
        let local = handle.local();
        let mut has_more = !handle.run_requests();
        owner.schedule_woken();
        for _ in 0..SPAWNS_PER_ROUND {
            let Some(job) = owner.shared().injector.pop_spawn() else { break };
            job.start(owner);
        }
        if !local.queue.is_empty() {
            poll_tasks(local);
            has_more |= !handle.run_requests();
        }
        if self.root.is_finished() {
            return NextTurn::Stop;
        }
        let is_idle = !has_more && local.queue.is_empty() && !owner.shared().injector.has_spawns();
        let paused = if local.limits.has_paused_clock { after_paused_round(is_idle) } else { None };
        match (paused, is_idle) {
            (Some(next), _) => next,
            (None, true) => NextTurn::Wait,
            (None, false) => NextTurn::Again,
        }
    }
}

impl TurnDriver for Driver<'_> {
    fn end_of_turn(&mut self, turn: Turn<'_>) -> NextTurn {
        publish(turn, || self.round())
    }
}
