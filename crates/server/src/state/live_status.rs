//! The live status: what connections get that [watch](crate::Connection::watch_status) it.
//!
//! 1. It goes out on the timer events of the timeouts, to the worker's own watchers, at most twice
//!    a second. While nobody watches, a timer event reads one number of each worker.
//! 2. It is a topic with a reserved name. The calls of the application reject that name, so only
//!    this file publishes to it, and only `watch_status` subscribes.
//! 3. A worker sends the last copies of all workers' counts. It waits for none of them.

use core::cell::Cell;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use windlass::Turn;

use super::tables::Tables;
use crate::{
    api::{NO_CONN, OutMessage, TopicName},
    mailbox::WorkerHandle,
    metrics::{TopicFigures, write_live_status},
    pubsub::{STATUS_TOPIC, Topics},
    shared::Shared,
};

/// The shortest time between two pushes, less than half of which the timer may be early.
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Number of topics in the live status.
const TOPICS_SHOWN: usize = 8;

/// Number of slots that are looked at for the busiest topics. Further ones are not ranked.
const TOPICS_RANKED: usize = 65_536;

/// The state of the pushes of a worker.
#[derive(Default)]
pub(crate) struct LiveStatus {
    last_push: Cell<Option<Instant>>,
    /// When the busiest topics were last searched for.
    last_ranking: Cell<Option<Instant>>,
}

impl Tables {
    /// Subscribes a connection to the live status. Returns false if it is off, or if the connection
    /// is subscribed already.
    pub(crate) fn watch_status(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
    ) -> bool {
        let name = TopicName::Text(STATUS_TOPIC);
        shared.options.live_status
            && self.delivery.subscribe(&mut self.conns, shared, turn, index, name)
    }
}

impl LiveStatus {
    /// Publishes the live status to the connections that watch it, if it is time.
    pub(super) fn push(
        &self,
        tables: &mut Tables,
        shared: &Shared,
        turn: &mut Turn<'_>,
        now: Instant,
    ) {
        if !shared.options.live_status {
            return;
        }
        let topics = tables.delivery.topics();
        let watchers = topics.subscribers(STATUS_TOPIC);
        shared.worker.set_watched(watchers > 0);
        let own = core::slice::from_ref(&shared.worker);
        let workers: &[Arc<WorkerHandle>] = shared.memory.workers().unwrap_or(own);
        if workers.iter().all(|worker| !worker.is_watched()) {
            self.last_ranking.set(None);
            return;
        }
        shared.worker.set_busiest(self.rank_topics(topics, now));
        let is_due = self
            .last_push
            .get()
            .is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL_MIN);
        if watchers == 0 || !is_due {
            return;
        }
        self.last_push.set(Some(now));
        let copies: Vec<_> = workers.iter().map(|worker| worker.dated_snapshot()).collect();
        let mut busiest = TopicFigures::merge(workers.iter().map(|worker| worker.busiest()));
        busiest.truncate(TOPICS_SHOWN);
        let uptime = shared.worker.started().elapsed();
        let cluster = tables.delivery.other_workers().node().map(|(node, _)| node.stats());
        let mut text = Vec::new();
        write_live_status(&copies, uptime, cluster.as_ref(), &busiest, &mut text);
        let message = OutMessage::checked(true, &text);
        // Each worker serves its own watchers.
        let Tables { conns, delivery, .. } = tables;
        delivery.publish_here(conns, shared, turn, NO_CONN, STATUS_TOPIC, message);
    }

    /// Returns the figures of the busiest topics, for where the other workers read them.
    fn rank_topics(&self, topics: &Topics, now: Instant) -> Vec<TopicFigures> {
        let last = self.last_ranking.replace(Some(now));
        let since = last.map(|last| now.saturating_duration_since(last));
        let mut busiest: Vec<TopicFigures> = Vec::with_capacity(TOPICS_SHOWN + 1);
        for topic in topics.in_slots(TOPICS_RANKED) {
            let recent = topic.take_recent();
            if topic.name.starts_with('$') {
                continue;
            }
            let per_second = match since {
                Some(since) if !since.is_zero() => {
                    u128::from(recent) * 1_000_000 / since.as_micros().max(1)
                }
                _ => 0,
            };
            let figures = TopicFigures {
                name: Arc::clone(&topic.name),
                subscribers: topic.subscribers.len() as u64,
                delivered: topic.delivered(),
                per_second: u64::try_from(per_second).unwrap_or(u64::MAX),
            };
            let at = busiest.partition_point(|other| other.rank() <= figures.rank());
            if at < TOPICS_SHOWN {
                busiest.insert(at, figures);
                busiest.truncate(TOPICS_SHOWN);
            }
        }
        busiest
    }
}
