//! Counts of a service that are not plain increments.

use windlass::{Turn, stream::ListenerKey};

use super::state::ServiceState;
use crate::api::{CloseReason, ServerStats};

impl ServiceState {
    /// Updates the maximum number of simultaneous connections.
    pub(crate) fn note_connections(&self) {
        let now = self.tables.borrow().conns.len() as u64;
        self.stats.connections_most.set(now.max(self.stats.connections_most.get()));
    }

    pub(crate) fn count_end(&self, reason: CloseReason) {
        let stats = &self.stats;
        stats.closed.add(1);
        match reason {
            CloseReason::Violation(_) => stats.violations.add(1),
            CloseReason::Idle => stats.idle_timeouts.add(1),
            CloseReason::Failed(_) | CloseReason::WriteStall => stats.broken_off.add(1),
            _ => {}
        }
    }

    pub(crate) fn snapshot(&self) -> ServerStats {
        let tables = self.tables.borrow();
        self.stats.connections.set(tables.conns.len() as u64);
        self.stats.topics.set(tables.topics.len() as u64);
        self.stats.snapshot()
    }

    /// Notes how often the listeners paused accepting, and how often they reached their connection
    /// limit.
    pub(crate) fn note_listeners(&self, turn: &mut Turn<'_>) {
        let mut listeners = self.listeners.take();
        let (mut rests, mut limits) = (0, 0);
        listeners.retain(|key: &ListenerKey| {
            let found = turn.listener(*key).map(|listening| {
                rests += listening.rests();
                limits += listening.limits_reached();
            });
            // The application may have deleted it.
            found.is_ok()
        });
        self.listeners.set(listeners);
        // A deleted listener loses its count, so it is noted here.
        let stats = &self.stats;
        stats.accepting_paused.set(rests.max(stats.accepting_paused.get()));
        stats.connection_limits_reached.set(limits.max(stats.connection_limits_reached.get()));
    }
}
