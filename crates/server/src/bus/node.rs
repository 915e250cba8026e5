//! A server as a node on the bus.
//!
//! 1. The node's lock protects its subscriptions. It is taken when a worker gets the first receiver
//!    of a topic or loses the last one, on a timer event after that, and for each message that
//!    arrives. No worker takes it to publish.
//! 2. The bus is never called under the lock. Changes of subscriptions go to a queue. One thread at
//!    a time passes them to the bus, so that they arrive in the order of the changes.
//! 3. Each worker numbers its own publications.

use core::fmt;
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use super::{
    Bus, BusError, BusSink, BusState, PrefixError,
    envelope::Envelope,
    interest::Interest,
    sequence::{Arrival, Numbering},
    subject::{SubjectMap, SubjectTopic, TOPIC_BYTES_MAX},
};

/// A bus and how a server uses it: the argument of
/// [`Server::cluster`](crate::Server::cluster).
///
/// ```
/// use windlass_server::bus::{Cluster, MemoryNetwork};
///
/// # fn main() -> Result<(), windlass_server::bus::PrefixError> {
/// let network = MemoryNetwork::new(1);
/// let cluster = Cluster::new(network.bus()).prefix("chat")?;
/// # drop(cluster);
/// # Ok(())
/// # }
/// ```
#[must_use = "a server takes it"]
pub struct Cluster {
    bus: Arc<dyn Bus>,
    subjects: SubjectMap,
    id: u64,
    local: Option<Box<str>>,
}

impl Cluster {
    /// Uses this bus, with the prefix `windlass` and a random ID of the node.
    pub fn new(bus: impl Bus) -> Self {
        let subjects = SubjectMap::new("windlass").expect("the prefix is a word");
        Self { bus: Arc::new(bus), subjects, id: windlass::random(), local: None }
    }

    /// Sets the prefix of all subjects, which keeps servers apart that use the same bus.
    ///
    /// # Errors
    /// - [`PrefixError`] if the prefix cannot be the beginning of a subject: see
    ///   [`SubjectMap::new`].
    pub fn prefix(mut self, prefix: &str) -> Result<Self, PrefixError> {
        self.subjects = SubjectMap::new(prefix)?;
        Ok(self)
    }

    /// Keeps topics with this prefix on their node: they never reach the bus. Default: none.
    ///
    /// It is for publications that concern one node only, such as the members of its rooms.
    pub fn local_topics(mut self, prefix: &str) -> Self {
        self.local = Some(prefix.into());
        self
    }

    /// Sets the ID of the node. Default: random at each start.
    ///
    /// Two nodes with one ID do not get each other's publications. A node that starts again with
    /// the same ID needs a clock that was not set back: the epochs of its publishers begin with the
    /// time. With an earlier time, the nodes that have heard it before drop its publications as
    /// `stale`, until its clock has passed the former epoch and it starts again.
    pub fn node_id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Declares the counts of a node: the public copy, and the live ones.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a node has done on its bus: a copy of its counts.
        ///
        /// ```
        /// use windlass_server::bus::ClusterStats;
        ///
        /// let stats = ClusterStats::default();
        /// assert_eq!((stats.sent, stats.received, stats.missed), (0, 0, 0));
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ClusterStats {
            /// The state of the bus.
            pub state: BusState,
            /// Topics with a subscription, which includes those of the last second.
            pub subscriptions: u64,
            /// Publishers of other nodes whose numbers are followed: at most 256 of each topic. A
            /// further one takes the place of another.
            pub publishers: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Default)]
        struct Counts {
            $($name: AtomicU64,)*
        }

        impl Counts {
            fn copy(&self, state: BusState, interest: &Interest) -> ClusterStats {
                ClusterStats {
                    state,
                    subscriptions: interest.len() as u64,
                    publishers: interest.publishers() as u64,
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counts! {
    /// Publications that the bus has taken.
    sent,
    /// Publications that the bus did not take, because its queue was full or it had ended.
    send_full,
    /// Publications that were too large for the bus.
    send_too_large,
    /// Publications that the bus had taken, and lost before they left.
    send_lost,
    /// Publications of other nodes that went to a worker with receivers.
    received,
    /// Publications of other nodes that a worker's queue had no room for.
    receive_full,
    /// Publications of other nodes that the bus has lost at this side. They are missed too.
    receive_lost,
    /// Publications of other nodes that never arrived, by the gaps in their numbers.
    missed,
    /// Publications of other nodes that arrived after a later one, and were dropped.
    stale,
    /// Own publications that the bus returned.
    own,
    /// Publications of topics without a receiver here.
    unwanted,
    /// Messages that were no publications of a cluster.
    malformed,
    /// How often the bus was connected.
    connects,
}

/// A publication of another node.
pub(crate) struct Arrived<'a> {
    pub(crate) topic: &'a str,
    pub(crate) is_text: bool,
    pub(crate) payload: &'a [u8],
}

/// Passes a publication to workers. Returns the number of those whose queue had no room.
pub(crate) type ToWorkers = Box<dyn Fn(&[u16], &Arrived<'_>) -> u64 + Send + Sync>;

enum Change {
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
}

struct Locked {
    interest: Interest,
    changes: VecDeque<Change>,
    /// Some thread passes the changes to the bus.
    is_passing: bool,
}

pub(crate) struct Node {
    id: u64,
    subjects: SubjectMap,
    /// The beginning of the topics that stay here.
    local: Option<Box<str>>,
    bus: Arc<dyn Bus>,
    to_workers: OnceLock<ToWorkers>,
    locked: Mutex<Locked>,
    /// Some topic may have no worker.
    has_left: AtomicBool,
    state: AtomicU8,
    is_stopped: AtomicBool,
    counts: Counts,
}

impl Node {
    pub(crate) fn new(cluster: Cluster) -> Arc<Self> {
        let Cluster { bus, subjects, id, local } = cluster;
        let interest = Interest::new(subjects.clone());
        Arc::new(Self {
            id,
            subjects,
            local,
            bus,
            to_workers: OnceLock::new(),
            locked: Mutex::new(Locked { interest, changes: VecDeque::new(), is_passing: false }),
            has_left: AtomicBool::new(false),
            state: AtomicU8::new(BusState::Connecting as u8),
            is_stopped: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Starts the bus.
    pub(crate) fn start(self: &Arc<Self>, to_workers: ToWorkers) -> io::Result<()> {
        // It is called once.
        let _ = self.to_workers.set(to_workers);
        self.bus.start(BusSink::new(self))
    }

    /// Stops the bus, which may still report losses meanwhile.
    pub(crate) fn stop(&self) {
        self.bus.stop();
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the node has ended. Handles for its counts keep it alive.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        // Nothing panics while the lock is held.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_local(&self, topic: &str) -> bool {
        self.local.as_deref().is_some_and(|prefix| topic.starts_with(prefix))
    }

    /// A worker has got the first receiver of a topic.
    pub(crate) fn join(&self, topic: &Arc<str>, worker: u16) {
        if self.is_local(topic) {
            return;
        }
        let mut locked = self.lock();
        if let Some(subject) = locked.interest.join(topic, worker) {
            locked.changes.push_back(Change::Subscribe(subject));
        }
        self.pass_changes(locked);
    }

    /// Memory of a subscription to a topic in bytes, besides the name of the topic.
    pub(crate) fn topic_memory(&self, topic: &str) -> usize {
        if self.is_local(topic) {
            0
        } else {
            self.subjects.subject_len_max(topic) + Interest::OVERHEAD
        }
    }

    /// A worker has lost the last receiver of a topic.
    pub(crate) fn leave(&self, topic: &str, worker: u16) {
        if self.is_local(topic) {
            return;
        }
        let mut locked = self.lock();
        locked.interest.leave(topic, worker, windlass::now());
        self.has_left.store(locked.interest.has_left(), Ordering::Relaxed);
    }

    /// Gives up the subscriptions whose last receivers have left long enough ago.
    pub(crate) fn expire(&self, now: Instant) {
        if !self.has_left.load(Ordering::Relaxed) {
            return;
        }
        let mut locked = self.lock();
        while let Some(subject) = locked.interest.expire(now) {
            locked.changes.push_back(Change::Unsubscribe(subject));
        }
        self.has_left.store(locked.interest.has_left(), Ordering::Relaxed);
        self.pass_changes(locked);
    }

    /// Passes the changes to the bus, unless another thread does. If the bus panics, that change is
    /// lost, and the next call passes those behind it.
    fn pass_changes<'n>(&'n self, mut locked: MutexGuard<'n, Locked>) {
        if locked.is_passing {
            return;
        }
        locked.is_passing = true;
        while let Some(change) = locked.changes.pop_front() {
            drop(locked);
            let on_panic = PassingEnd(self);
            match change {
                Change::Subscribe(subject) => self.bus.subscribe(&subject),
                Change::Unsubscribe(subject) => self.bus.unsubscribe(&subject),
            }
            core::mem::forget(on_panic);
            locked = self.lock();
        }
        locked.is_passing = false;
    }

    /// Passes a message of the bus to the workers that have receivers.
    pub(super) fn deliver(&self, subject: &str, payload: &[u8]) {
        let counts = &self.counts;
        let (named, envelope) = (self.subjects.topic(subject), Envelope::decode(payload));
        let (Some(named), Ok(envelope)) = (named, envelope) else {
            return add(&counts.malformed, 1);
        };
        if envelope.node == self.id {
            return add(&counts.own, 1);
        }
        let topic = match (&named, envelope.topic) {
            (SubjectTopic::Named(topic), None) => topic.as_str(),
            // Another topic of the same hash has no receiver here, or is found as well.
            (SubjectTopic::Hashed, Some(topic)) if topic.len() > TOPIC_BYTES_MAX => topic,
            _ => return add(&counts.malformed, 1),
        };
        let mut locked = self.lock();
        let publisher = (envelope.node, envelope.worker);
        let number = (envelope.epoch, envelope.sequence);
        let Some((workers, arrival)) = locked.interest.note(topic, publisher, number) else {
            drop(locked);
            return add(&counts.unwanted, 1);
        };
        let workers = workers.to_vec();
        drop(locked);
        match arrival {
            Arrival::Stale => return add(&counts.stale, 1),
            Arrival::New { missed } => add(&counts.missed, missed),
        }
        let Some(to_workers) = self.to_workers.get().filter(|_| !workers.is_empty()) else {
            return add(&counts.unwanted, 1);
        };
        let Envelope { is_text, payload, .. } = envelope;
        let full = to_workers(&workers, &Arrived { topic, is_text, payload });
        add(&counts.receive_full, full);
        add(&counts.received, u64::from(full < workers.len() as u64));
    }

    pub(super) fn set_state(&self, state: BusState) {
        let before = self.state.swap(state as u8, Ordering::Relaxed);
        let is_new = state == BusState::Connected && before != BusState::Connected as u8;
        add(&self.counts.connects, u64::from(is_new));
    }

    pub(super) fn note_lost_out(&self, messages: u64) {
        add(&self.counts.send_lost, messages);
    }

    pub(super) fn note_lost_in(&self, messages: u64) {
        add(&self.counts.receive_lost, messages);
    }

    pub(crate) fn stats(&self) -> ClusterStats {
        let state = match self.state.load(Ordering::Relaxed) {
            _ if self.is_stopped() => BusState::Closed,
            state if state == BusState::Connecting as u8 => BusState::Connecting,
            state if state == BusState::Connected as u8 => BusState::Connected,
            _ => BusState::Closed,
        };
        self.counts.copy(state, &self.lock().interest)
    }
}

/// Lets another call pass the changes, after the bus has panicked. Otherwise it is forgotten.
struct PassingEnd<'n>(&'n Node);

impl Drop for PassingEnd<'_> {
    fn drop(&mut self) {
        self.0.lock().is_passing = false;
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.id).finish_non_exhaustive()
    }
}

fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Ordering::Relaxed);
    }
}

/// A worker as a publisher on the bus.
pub(crate) struct Publisher {
    node: Arc<Node>,
    worker: u16,
    numbers: Numbering,
    /// The subject of the last topic, because publications to one topic often come together.
    last: (Box<str>, String),
}

impl Publisher {
    pub(crate) fn new(node: Arc<Node>, worker: u16) -> Self {
        // A later start has a larger epoch, unless the clock was set back.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(since.as_micros()).unwrap_or(u64::MAX >> 1);
        let last = ("".into(), node.subjects.subject(""));
        Self { node, worker, numbers: Numbering::new(epoch), last }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn worker(&self) -> u16 {
        self.worker
    }

    /// Publishes to the other nodes.
    pub(crate) fn publish(&mut self, topic: &str, is_text: bool, payload: &[u8]) {
        if self.node.is_local(topic) {
            return;
        }
        let (epoch, sequence) = self.numbers.next(topic);
        if *self.last.0 != *topic {
            self.last = (topic.into(), self.node.subjects.subject(topic));
        }
        let envelope = Envelope {
            node: self.node.id,
            worker: self.worker,
            epoch,
            sequence,
            topic: (topic.len() > TOPIC_BYTES_MAX).then_some(topic),
            is_text,
            payload,
        };
        let counts = &self.node.counts;
        if envelope.encoded_len() > self.node.bus.payload_max() {
            return add(&counts.send_too_large, 1);
        }
        let mut bytes = Vec::with_capacity(envelope.encoded_len());
        envelope.encode(&mut bytes);
        let count = match self.node.bus.publish(&self.last.1, bytes) {
            Ok(()) => &counts.sent,
            Err(BusError::TooLarge) => &counts.send_too_large,
            Err(_) => &counts.send_full,
        };
        add(count, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::bus::interest::GRACE;

    /// A bus that records its calls, and panics when the test asks for it.
    #[derive(Clone, Default)]
    struct TestBus(Arc<Mutex<TestBusState>>);

    #[derive(Default)]
    struct TestBusState {
        calls: Vec<String>,
        panics_next: bool,
        sink: Option<BusSink>,
    }

    impl TestBus {
        fn state(&self) -> MutexGuard<'_, TestBusState> {
            self.0.lock().unwrap()
        }

        fn call(&self, call: String) {
            let panics = core::mem::take(&mut self.state().panics_next);
            assert!(!panics, "as asked");
            self.state().calls.push(call);
        }
    }

    impl Bus for TestBus {
        fn start(&self, sink: BusSink) -> io::Result<()> {
            self.state().sink = Some(sink);
            Ok(())
        }
        fn subscribe(&self, subject: &str) {
            self.call(format!("+{subject}"));
        }
        fn unsubscribe(&self, subject: &str) {
            self.call(format!("-{subject}"));
        }
        fn publish(&self, _: &str, _: Vec<u8>) -> Result<(), BusError> {
            Ok(())
        }
        fn stop(&self) {
            let sink = self.state().sink.clone().unwrap();
            // What is reported meanwhile counts.
            sink.note_lost_out(2);
        }
    }

    /// A node that has started, with one receiver of the topic `t`.
    fn started() -> (TestBus, Arc<Node>, BusSink) {
        let bus = TestBus::default();
        let node = Node::new(Cluster::new(bus.clone()));
        node.start(Box::new(|_, _| 0)).unwrap();
        node.join(&"t".into(), 0);
        let sink = bus.state().sink.clone().unwrap();
        (bus, node, sink)
    }

    /// A publication of another node to the topic `t`.
    fn deliver(node: &Node, sink: &BusSink, epoch: u64, sequence: u64) {
        let (id, topic, payload) = (node.id.wrapping_add(1), None, &b""[..]);
        let envelope =
            Envelope { node: id, worker: 0, epoch, sequence, topic, is_text: true, payload };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        sink.deliver(&node.subjects.subject("t"), &bytes);
    }

    #[test]
    fn after_the_end_calls_of_the_bus_do_nothing() {
        let (_bus, node, sink) = started();
        sink.set_state(BusState::Connected);
        deliver(&node, &sink, 1, 0);
        let before = node.stats();
        assert_eq!((before.state, before.connects, before.received), (BusState::Connected, 1, 1));
        node.stop();
        let ended = ClusterStats { state: BusState::Closed, send_lost: 2, ..before };
        assert_eq!(node.stats(), ended);
        // The test keeps the node, as a handle for its counts does.
        deliver(&node, &sink, 1, 1);
        sink.deliver("elsewhere", b"");
        sink.set_state(BusState::Connecting);
        sink.set_state(BusState::Connected);
        sink.note_lost_out(1);
        sink.note_lost_in(1);
        assert_eq!(node.stats(), ended);
    }

    #[test]
    fn a_number_from_the_network_adds_little_to_a_count() {
        let (_bus, node, sink) = started();
        let confirmed = 7 + (1 << 32);
        for (epoch, sequence, missed) in [
            (1, 0, 0),
            (2, 7, 7),
            (3, u64::MAX - 9, 7),
            (3, u64::MAX - 8, confirmed),
            (4, 9, confirmed + 9),
        ] {
            deliver(&node, &sink, epoch, sequence);
            assert_eq!(node.stats().missed, missed, "{epoch}");
        }
    }

    #[test]
    fn a_panic_of_the_bus_does_not_hold_up_the_changes_behind_it() {
        let bus = TestBus::default();
        let node = Node::new(Cluster::new(bus.clone()));
        let panics = |call: &dyn Fn()| {
            bus.state().panics_next = true;
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        };
        panics(&|| node.join(&"a".into(), 0));
        node.join(&"b".into(), 0);
        node.join(&"c".into(), 0);
        node.leave("b", 0);
        node.leave("c", 0);
        // The first of two changes panics. The next call passes the second one.
        panics(&|| node.expire(Instant::now() + 2 * GRACE));
        assert_eq!(node.lock().changes.len(), 1);
        node.join(&"d".into(), 0);
        assert!(node.lock().changes.is_empty());
        let calls = [("+", "b"), ("+", "c"), ("-", "c"), ("+", "d")];
        let calls = calls.map(|(sign, topic)| format!("{sign}{}", node.subjects.subject(topic)));
        assert_eq!(bus.state().calls, calls);
    }
}
