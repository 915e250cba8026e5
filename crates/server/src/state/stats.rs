//! Counts of a service that are not plain increments.

use windlass::{Turn, stream::ListenerKey};

use super::state::ServiceState;
use crate::{
    api::{CloseReason, ServerStats, SlowConsumerPolicy},
    metrics::{Closing, StateLabel, Transport, WorkerSnapshot},
    table::CloseInfo,
};

impl ServiceState {
    /// Number of connections, with those in their TLS handshake.
    fn connections(&self) -> u64 {
        self.tables.borrow().conns.len() as u64 + self.tls_handshakes.get()
    }

    /// Notes that connections have come or gone, for the maximum number of them.
    pub(crate) fn note_connections(&self) {
        let now = self.connections();
        self.stats.connections_most.set_max(now);
        self.worker.connections.note(self.connections_noted.replace(now), now);
    }

    pub(crate) fn count_end(&self, close_info: &CloseInfo) {
        let stats = &self.stats;
        stats.closed.add(1);
        let CloseInfo { reason, code, own_code, .. } = *close_info;
        self.labels.count_close(&Closing { reason, code, own_code });
        match close_info.reason {
            CloseReason::Violation(_) => stats.violations.add(1),
            CloseReason::Idle => stats.idle_timeouts.add(1),
            CloseReason::Failed(_) | CloseReason::WriteStall => stats.broken_off.add(1),
            _ => {}
        }
    }

    pub(crate) fn snapshot(&self) -> ServerStats {
        self.stats.connections.set(self.connections());
        let tables = self.tables.borrow();
        self.stats.topics.set(tables.topics.len() as u64);
        self.stats.subscriptions.set(tables.topics.subscription_count() as u64);
        self.stats.snapshot()
    }

    /// Returns all counts. What only a turn knows is that of the last [`publish`](Self::publish).
    pub(crate) fn worker_snapshot(&self) -> WorkerSnapshot {
        let mut snapshot = self.labels.snapshot(self.snapshot(), self.backend);
        snapshot.is_draining = self.is_draining.get();
        snapshot.pool = self.memory.figures();
        snapshot.connections = *self.tables.borrow().conns.counts();
        snapshot.connections[StateLabel::Handshake as usize][Transport::Tls as usize] +=
            self.tls_handshakes.get();
        snapshot.drop_policy = match self.options.slow {
            SlowConsumerPolicy::DropNewest => "drop_newest",
            SlowConsumerPolicy::DropOldest => "drop_oldest",
            SlowConsumerPolicy::Evict => "evict",
        };
        snapshot
    }

    /// Copies all counts to where other threads read them.
    pub(crate) fn publish_stats(&self, turn: &mut Turn<'_>) {
        self.note_listeners(turn);
        let used = self.memory.used(turn) as u64;
        self.stats.memory.set(used);
        self.labels.buffered.set(turn.stream_memory() as u64);
        // It is zero while the reactor does not measure it.
        let longest = Some(turn.stats().handler_max).filter(|longest| !longest.is_zero());
        self.labels.handler_longest.set(longest);
        self.worker.set_snapshot(self.worker_snapshot());
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
