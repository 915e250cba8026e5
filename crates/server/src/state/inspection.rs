//! The worker's part of [inspections](crate::Inspector): it looks at a part of its connections or
//! topics in each turn.

use core::cell::Cell;
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    rc::Rc,
    sync::{Arc, Weak},
};

use windlass::{Turn, stream::Address};
use windlass_ws::CloseCode;

use super::{state::ServiceState, tables::Tables, timeouts::Timeouts};
use crate::{
    api::{
        ConnectionId, ConnectionOrder, ConnectionQuery, DisconnectTarget, ListedConnection,
        ListedTopic,
    },
    mailbox::{Found, Inspection, InspectionTask},
    pubsub::{Topics, is_reserved},
    shared::Shared,
    table::ConnFlags,
};

/// Number of connections or topics that are looked at, or described, in one turn. Tests use fewer.
const PER_TURN: usize = if cfg!(test) { 4 } else { 256 };

/// The text of the Close frame of a disconnected client.
const REASON: &str = "disconnected by the operator";

/// The inspections of a service.
#[derive(Default)]
pub(crate) struct Inspections {
    /// The one under way.
    run: Cell<Option<InspectionRun>>,
    /// A later turn goes on.
    is_scheduled: Cell<bool>,
}

/// An inspection that is under way.
struct InspectionRun {
    inspection: Weak<Inspection>,
    /// The next slot. Of the subscribers of a topic, those behind this one are done.
    next: Option<usize>,
    /// All slots were looked at, and the best are described.
    is_scanned: bool,
    best: Best,
}

/// The best of what was looked at, with their numbers. The worst is on top.
struct Best {
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    limit: usize,
}

impl Best {
    fn note(&mut self, number: u64, item: u64) {
        let entry = Reverse((number, item));
        if self.heap.len() < self.limit {
            self.heap.push(entry);
        } else if let Some(mut worst) = self.heap.peek_mut().filter(|worst| **worst > entry) {
            *worst = entry;
        }
    }

    /// Takes some of them, in no order.
    fn take_some(&mut self) -> Vec<u64> {
        let count = self.heap.len().min(PER_TURN);
        (0..count).filter_map(|_| self.heap.pop()).map(|Reverse((_, item))| item).collect()
    }
}

impl ServiceState {
    /// Begins the inspections that other threads ask for, unless one is under way: it begins the
    /// others.
    pub(crate) fn inspect(self: &Rc<Self>, turn: &mut Turn<'_>) {
        if !self.inspections.is_scheduled.replace(true) {
            self.inspect_later(turn);
        }
    }

    fn inspect_later(self: &Rc<Self>, turn: &mut Turn<'_>) {
        let state = Rc::clone(self);
        let go_on = move |mut turn: Turn<'_>| {
            if state.inspect_part(&mut turn) {
                state.inspect_later(&mut turn);
            } else {
                state.inspections.is_scheduled.set(false);
            }
        };
        if turn.defer(go_on).is_err() {
            // The limit of deferred closures is reached: the one who asks waits in vain.
            self.inspections.run.set(None);
            self.inspections.is_scheduled.set(false);
        }
    }

    /// Does a part of an inspection. Returns whether there is more to do.
    fn inspect_part(&self, turn: &mut Turn<'_>) -> bool {
        let next = || self.shared.worker.take_inspection().map(InspectionRun::new);
        let Some(mut run) = self.inspections.run.take().or_else(next) else { return false };
        // Without the one who asks, the work ends.
        let Some(inspection) = run.inspection.upgrade() else { return true };
        let (shared, tables) = (&self.shared, &mut *self.tables.borrow_mut());
        let mut part = Found::default();
        let is_done = match &inspection.task {
            InspectionTask::Connections(query) => {
                run.connections(query, tables, shared, &self.timeouts, turn, &mut part)
            }
            InspectionTask::Topics => run.topics(tables.delivery.topics(), &mut part),
            InspectionTask::Disconnect(target) => {
                run.disconnect(target, tables, shared, turn, &mut part)
            }
        };
        inspection.add(part);
        if is_done {
            inspection.end_worker();
        } else {
            self.inspections.run.set(Some(run));
        }
        true
    }
}

impl InspectionRun {
    fn new(inspection: Weak<Inspection>) -> Self {
        let limit = match inspection.upgrade().as_deref() {
            Some(Inspection { task: InspectionTask::Connections(query), .. }) => query.limit,
            _ => ConnectionQuery::ROWS_MAX,
        };
        let best = Best { heap: BinaryHeap::new(), limit };
        Self { inspection, next: None, is_scanned: false, best }
    }

    /// Returns the next slots, and whether they are the last ones.
    fn next_slots(&mut self, count: usize) -> (core::ops::Range<usize>, bool) {
        let start = self.next.unwrap_or(0).min(count);
        let end = (start + PER_TURN).min(count);
        self.next = Some(end);
        (start..end, end == count)
    }

    /// Returns the next connections of a topic, or of all, and whether they are the last ones. The
    /// slots of others may be among them.
    fn next_connections(&mut self, topic: Option<&str>, tables: &Tables) -> (Vec<u32>, bool) {
        let Some(name) = topic else {
            let (slots, is_last) = self.next_slots(tables.conns.slots() as usize);
            return (slots.map(|index| index as u32).collect(), is_last);
        };
        let topics = tables.delivery.topics();
        let topic = topics.find(name).filter(|_| !is_reserved(name));
        let subscribers = topic.and_then(|topic| topics.topic(topic));
        let subscribers = subscribers.map_or(&[][..], |topic| &topic.subscribers);
        // From the end: the place of a subscriber that leaves is taken by the last one. So one may
        // come twice, and none is passed over.
        let end = self.next.unwrap_or(usize::MAX).min(subscribers.len());
        let start = end.saturating_sub(PER_TURN);
        self.next = Some(start);
        let indices = subscribers[start..end].iter().rev().map(|subscriber| subscriber.index);
        (indices.collect(), start == 0)
    }

    fn connections(
        &mut self,
        query: &ConnectionQuery,
        tables: &mut Tables,
        shared: &Shared,
        timeouts: &Timeouts,
        turn: &mut Turn<'_>,
        part: &mut Found,
    ) -> bool {
        if !self.is_scanned {
            let (indices, is_last) = self.next_connections(query.topic.as_deref(), tables);
            for index in indices {
                let Some(opened) = tables.conns.get_mut(index).map(|entry| entry.opened) else {
                    continue;
                };
                part.count += 1;
                let number = match query.order {
                    ConnectionOrder::Bytes => tables.tcp_bytes(turn, index).map_or(0, sum),
                    ConnectionOrder::Age => shared.tick().wrapping_sub(opened).into(),
                    ConnectionOrder::Buffered => tables.buffered(turn, index) as u64,
                };
                self.best.note(number, tables.conns.id(index).to_bits());
            }
            self.is_scanned = is_last;
            return false;
        }
        for bits in self.best.take_some() {
            let id = ConnectionId::from_bits(bits);
            if let Some(index) = tables.conns.index_of(id) {
                part.connections.push(tables.describe(shared, timeouts, turn, id, index));
            }
        }
        self.best.heap.is_empty()
    }

    fn topics(&mut self, topics: &Topics, part: &mut Found) -> bool {
        if !self.is_scanned {
            let (slots, is_last) = self.next_slots(topics.slots());
            for slot in slots {
                let Some(topic) = topics.topic(slot as u32) else { continue };
                if !topic.name.starts_with('$') {
                    part.count += 1;
                    self.best.note(topic.subscribers.len() as u64, slot as u64);
                }
            }
            self.is_scanned = is_last;
            return false;
        }
        let best = self.best.take_some();
        part.topics.extend(best.into_iter().filter_map(|slot| topics.topic(slot as u32)).map(
            |topic| ListedTopic {
                name: Arc::clone(&topic.name),
                subscribers: topic.subscribers.len() as u64,
                delivered: topic.delivered(),
            },
        ));
        self.best.heap.is_empty()
    }

    fn disconnect(
        &mut self,
        target: &DisconnectTarget,
        tables: &mut Tables,
        shared: &Shared,
        turn: &mut Turn<'_>,
        part: &mut Found,
    ) -> bool {
        let (indices, is_last) = match target {
            DisconnectTarget::Id(id) => (tables.conns.index_of(*id).into_iter().collect(), true),
            DisconnectTarget::Addresses(_) => self.next_connections(None, tables),
            DisconnectTarget::Topic(name) => self.next_connections(Some(name), tables),
        };
        for index in indices {
            if tables.conns.get_mut(index).is_none() {
                continue;
            }
            if let DisconnectTarget::Addresses(networks) = target {
                if !networks.contains(&tables.peer(turn, index)) {
                    continue;
                }
            }
            part.count += u64::from(tables.disconnect(shared, turn, index));
        }
        is_last
    }
}

fn sum((received, acked): (u64, u64)) -> u64 {
    received.saturating_add(acked)
}

/// Single connections, as inspections see them.
impl Tables {
    /// The address of a connection's client, or of the last proxy before it if requests name it.
    fn peer(&self, turn: &mut Turn<'_>, index: u32) -> Address {
        let known = self.client(index).cloned();
        let of_stream = || turn.stream(self.conns.stream(index)).ok()?.peer_addr().ok();
        known.or_else(of_stream).unwrap_or(Address::Unix(None))
    }

    fn tcp_bytes(&self, turn: &mut Turn<'_>, index: u32) -> Option<(u64, u64)> {
        let bytes = turn.stream(self.conns.stream(index)).ok()?.tcp_bytes().ok()?;
        Some((bytes.received, bytes.acked))
    }

    fn describe(
        &mut self,
        shared: &Shared,
        timeouts: &Timeouts,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        index: u32,
    ) -> ListedConnection {
        let entry = self.conns.entry(index);
        let (state, transport) = entry.flags.label_texts();
        let since = |tick| timeouts.tick_len().saturating_mul(shared.tick().wrapping_sub(tick));
        let (age, idle) = (since(entry.opened), since(entry.last_rx));
        let topics = self.delivery.topics().names_of(entry.subscriptions);
        ListedConnection {
            id,
            peer: self.peer(turn, index),
            state,
            transport,
            age,
            idle,
            bytes: self.tcp_bytes(turn, index),
            buffered: self.buffered(turn, index) as u64,
            topics,
        }
    }

    /// Disconnects a client. Returns false if its connection is closing already.
    fn disconnect(&mut self, shared: &Shared, turn: &mut Turn<'_>, index: u32) -> bool {
        let entry = self.conns.entry(index);
        if entry.flags.takes_messages() {
            let id = self.conns.id(index);
            return self.close(shared, turn, id, CloseCode::POLICY_VIOLATION, REASON).is_ok();
        }
        if !entry.flags.any(ConnFlags::HANDSHAKE) {
            return false;
        }
        turn.stream(entry.stream).is_ok_and(|mut stream| {
            stream.abort();
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, time::Duration};

    use windlass::{Clock, Reactor};

    use super::*;
    use crate::{
        Connection, Handler, Message, Options, Service, Upgraded,
        http::{Accept, Reject, UpgradeRequest},
    };

    struct Silent;

    impl Handler for Silent {
        type Data = ();

        fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
            Ok(Accept::new(()))
        }

        fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
            connection.subscribe("topic").unwrap();
        }

        fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    }

    #[derive(Clone)]
    struct ManualClock(Rc<Cell<std::time::Instant>>);

    impl Clock for ManualClock {
        fn now(&self) -> std::time::Instant {
            self.0.get()
        }
    }

    /// A service with connections, of which each is ten seconds older than the next.
    struct Bed {
        service: Service<Silent>,
        reactor: Reactor,
        peers: Vec<UnixStream>,
    }

    impl Bed {
        fn new(count: usize) -> Self {
            let clock = ManualClock(Rc::new(Cell::new(std::time::Instant::now())));
            let mut reactor = Reactor::builder().clock(clock.clone()).build().unwrap();
            let mut options = Options::new();
            (options.idle_timeout, options.ping_interval) = (None, None);
            let service = Service::new(Silent, &options, &mut reactor).unwrap();
            let mut peers = Vec::new();
            for _ in 0..count {
                let (ours, peer) = UnixStream::pair().unwrap();
                service.adopt(ours, Vec::new(), Upgraded::new(()), &mut reactor).unwrap();
                peers.push(peer);
                // A gap of many ticks would not count.
                for _ in 0..10 {
                    clock.0.set(clock.0.get() + Duration::from_secs(1));
                    reactor.run_once(Duration::ZERO).unwrap();
                    reactor.run_once(Duration::ZERO).unwrap();
                }
            }
            Self { service, reactor, peers }
        }

        /// Asks, and checks that no turn does more than its part.
        fn ask(&mut self, task: InspectionTask) -> Found {
            let inspection = Inspection::new(task);
            let worker = &self.service.0.state.shared.worker;
            assert!(worker.request_inspection(&inspection));
            let sizes = |inspection: &Inspection| {
                let found = inspection.lock();
                [found.count as usize, found.connections.len(), found.topics.len()]
            };
            while Arc::weak_count(&inspection) > 0 {
                let before = sizes(&inspection);
                self.reactor.run_once(Duration::ZERO).unwrap();
                for (before, after) in before.into_iter().zip(sizes(&inspection)) {
                    assert!(after - before <= PER_TURN, "{before} to {after}");
                }
            }
            core::mem::take(&mut *inspection.lock())
        }

        fn list(&mut self, order: ConnectionOrder, topic: Option<&str>, limit: usize) -> Found {
            let topic = topic.map(Into::into);
            self.ask(InspectionTask::Connections(ConnectionQuery { order, topic, limit }))
        }
    }

    const MANY: usize = 3 * PER_TURN + 1;

    #[test]
    fn a_turn_does_a_part_and_none_is_passed_over() {
        let mut bed = Bed::new(MANY);
        for topic in [None, Some("topic")] {
            let found = bed.list(ConnectionOrder::Buffered, topic, 1000);
            assert_eq!((found.count as usize, found.connections.len()), (MANY, MANY));
            let mut ids: Vec<_> = found.connections.iter().map(|row| row.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), MANY, "each is there once");
        }
        let found = bed.ask(InspectionTask::Topics);
        assert_eq!((found.count, found.topics[0].subscribers as usize), (1, MANY));
    }

    #[test]
    fn the_oldest_come_first_and_no_more_than_asked_for() {
        let mut bed = Bed::new(MANY);
        let mut ages: Vec<_> = bed
            .list(ConnectionOrder::Age, None, PER_TURN + 1)
            .connections
            .iter()
            .map(|row| (row.age.as_secs(), row.id.index()))
            .collect();
        ages.sort_unstable_by(|a, b| b.cmp(a));
        let indices: Vec<_> = ages.iter().map(|(_, index)| *index as usize).collect();
        assert_eq!(indices, Vec::from_iter(0..=PER_TURN));
        for pair in ages.windows(2) {
            assert!((9..=11).contains(&(pair[0].0 - pair[1].0)), "{ages:?}");
        }
    }

    #[test]
    fn a_turn_disconnects_a_part() {
        let mut bed = Bed::new(MANY);
        let target = DisconnectTarget::Topic("topic".into());
        let found = bed.ask(InspectionTask::Disconnect(target));
        assert_eq!(found.count as usize, MANY);
        let networks = crate::http::Networks::parse(&["unix"]).unwrap();
        let target = DisconnectTarget::Addresses(networks);
        let found = bed.ask(InspectionTask::Disconnect(target));
        assert_eq!(found.count, 0, "they are closing");
        bed.peers.clear();
    }

    #[test]
    fn subscribers_that_move_are_not_passed_over() {
        let mut bed = Bed::new(MANY);
        let all = bed.list(ConnectionOrder::Age, None, 1000).connections;
        let id_at = |index: usize| {
            all.iter().find(|row| row.id.index() as usize == index).map(|row| row.id).unwrap()
        };
        // The places of these are taken by others.
        let leaving = [id_at(0), id_at(MANY - 1)];
        let (order, topic) = (ConnectionOrder::Age, Some("topic".into()));
        let query = ConnectionQuery { order, topic, limit: 1000 };
        let inspection = Inspection::new(InspectionTask::Connections(query));
        assert!(bed.service.0.state.shared.worker.request_inspection(&inspection));
        while inspection.lock().count == 0 {
            bed.reactor.run_once(Duration::ZERO).unwrap();
        }
        let service = bed.service.clone();
        let leave = move |mut turn: Turn<'_>| {
            for id in leaving {
                assert!(service.hub(&mut turn).unsubscribe(id, "topic"));
            }
        };
        assert!(bed.reactor.defer(leave).is_ok());
        while Arc::weak_count(&inspection) > 0 {
            bed.reactor.run_once(Duration::ZERO).unwrap();
        }
        let found = core::mem::take(&mut *inspection.lock()).connections;
        for row in all.iter().filter(|row| !leaving.contains(&row.id)) {
            assert!(found.iter().any(|other| other.id == row.id), "{}", row.id);
        }
    }

    #[test]
    fn without_the_one_who_asks_the_work_ends() {
        let mut bed = Bed::new(MANY);
        let task = InspectionTask::Disconnect(DisconnectTarget::Topic("topic".into()));
        let inspection = Inspection::new(task);
        let worker = Rc::clone(&bed.service.0.state).shared.worker.clone();
        assert!(worker.request_inspection(&inspection));
        while inspection.lock().count == 0 {
            bed.reactor.run_once(Duration::ZERO).unwrap();
        }
        drop(inspection);
        for _ in 0..10 {
            bed.reactor.run_once(Duration::ZERO).unwrap();
        }
        let all = bed.list(ConnectionOrder::Age, None, 1000);
        let open = all.connections.iter().filter(|row| row.state == "open").count();
        assert_eq!(open, MANY - PER_TURN);
    }
}
