//! A bus in memory, for tests: delays, losses of connections, and reordering between publishers.

use core::fmt;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Bus, BusError, BusSink, BusState};

/// Default maximum number of messages on the way between two nodes.
const QUEUE_MAX: usize = 1024;

/// A bus in memory. Messages wait until the test delivers them, so the test decides how long they
/// take. The order between publishers is chosen by a seed. Messages of one node to another stay in
/// their order.
///
/// A node that is [disconnected](MemoryBus::disconnect) loses what is on its way from and to it.
/// What it publishes meanwhile waits in a bounded queue, whose oldest messages are dropped.
///
/// `Clone`, `Send` and `Sync`. The value is a handle.
///
/// ```
/// use windlass_server::{Options, Server, bus::{Cluster, MemoryNetwork}};
/// # use windlass_server::{Connection, Handler, Message, http::{Accept, Reject, UpgradeRequest}};
/// # struct Chat;
/// # impl Handler for Chat {
/// #     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let network = MemoryNetwork::new(7);
/// let [one, other] = [(), ()].map(|()| {
///     Server::new(Options::new(), |_worker| Chat)
///         .cluster(Cluster::new(network.bus()))
///         .listen(([127, 0, 0, 1], 0).into())
///         .start()
/// });
/// let (one, other) = (one?, other?);
/// one.sender().publish("topic", "to the clients of both").unwrap();
/// network.deliver_all();
/// one.stop();
/// other.stop();
/// one.join()?;
/// other.join()
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryNetwork(Arc<Shared>);

struct Shared {
    net: Mutex<Net>,
    /// Notified when a message waits.
    has_message: Condvar,
    /// One thread delivers at a time, so that the order of each link is kept.
    delivering: Mutex<()>,
}

struct Net {
    seed: u64,
    queue_max: usize,
    nodes: Vec<Member>,
    /// Messages on their way, by publisher and receiver.
    links: BTreeMap<(usize, usize), VecDeque<Sent>>,
}

type Sent = (Arc<str>, Arc<[u8]>);

#[derive(Default)]
struct Member {
    sink: Option<BusSink>,
    subjects: BTreeSet<Box<str>>,
    is_connected: bool,
    /// What was published while the node was disconnected.
    waiting: VecDeque<Sent>,
    payload_max: Option<usize>,
}

impl MemoryNetwork {
    /// Creates a network without nodes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let (nodes, links) = (Vec::new(), BTreeMap::new());
        Self(Arc::new(Shared {
            net: Mutex::new(Net { seed, queue_max: QUEUE_MAX, nodes, links }),
            has_message: Condvar::new(),
            delivering: Mutex::new(()),
        }))
    }

    /// Sets the maximum number of messages between two nodes, and of those that wait for a
    /// connection. Default: 1024, at least 1.
    #[must_use]
    pub fn queue_max(self, messages: usize) -> Self {
        self.lock().queue_max = messages.max(1);
        self
    }

    /// Creates the bus of a further node. It is connected when its server starts.
    #[must_use]
    pub fn bus(&self) -> MemoryBus {
        let mut net = self.lock();
        net.nodes.push(Member::default());
        MemoryBus { network: self.clone(), index: net.nodes.len() - 1 }
    }

    /// Delivers one message that waits. Returns false if there is none.
    pub fn deliver_one(&self) -> bool {
        let _order = self.0.delivering.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((sink, (subject, payload))) = self.lock().take_one() else { return false };
        sink.deliver(&subject, &payload);
        true
    }

    /// Delivers messages until none waits. Returns their number.
    pub fn deliver_all(&self) -> usize {
        core::iter::from_fn(|| self.deliver_one().then_some(())).count()
    }

    /// Waits for a message, for at most this time, and delivers one. Returns false without one.
    pub fn wait_and_deliver(&self, timeout: Duration) -> bool {
        let net = self.lock();
        let empty = |net: &mut Net| net.links.is_empty();
        let waited = self.0.has_message.wait_timeout_while(net, timeout, empty);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.deliver_one()
    }

    /// Number of messages that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().links.values().map(VecDeque::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        // Nothing panics while the lock is held.
        self.0.net.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNetwork").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl Net {
    /// The next number of the seed (splitmix64).
    fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }

    /// Takes the oldest message of a link that the seed chooses. Links are never empty.
    fn take_one(&mut self) -> Option<(BusSink, Sent)> {
        if self.links.is_empty() {
            return None;
        }
        let place = self.random(self.links.len());
        let link = *self.links.keys().nth(place)?;
        let queue = self.links.get_mut(&link)?;
        let sent = queue.pop_front()?;
        if queue.is_empty() {
            self.links.remove(&link);
        }
        Some((self.nodes[link.1].sink.clone()?, sent))
    }

    /// Sends a message to all subscribers. Returns the sinks of those whose queue was full.
    fn send(&mut self, from: usize, sent: &Sent) -> Vec<BusSink> {
        let mut full = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let gets_it = index != from && node.is_connected && node.subjects.contains(&*sent.0);
            if !gets_it {
                continue;
            }
            let queue = self.links.entry((from, index)).or_default();
            if queue.len() < self.queue_max {
                queue.push_back(sent.clone());
            } else {
                full.extend(node.sink.clone());
            }
        }
        full
    }
}

/// The bus of one node on a [`MemoryNetwork`]. `Clone`: a test keeps one to break its connection.
///
/// ```
/// use windlass_server::bus::MemoryNetwork;
///
/// let network = MemoryNetwork::new(1);
/// let bus = network.bus();
/// bus.disconnect();
/// assert!(!bus.is_connected());
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBus {
    network: MemoryNetwork,
    index: usize,
}

impl MemoryBus {
    /// Breaks the connection. What is on its way from and to this node is lost.
    pub fn disconnect(&self) {
        let mut net = self.network.lock();
        let was_connected = core::mem::take(&mut net.nodes[self.index].is_connected);
        let is_concerned = |link: &(usize, usize)| link.0 == self.index || link.1 == self.index;
        net.links.retain(|link, _| !is_concerned(link));
        let sink = net.nodes[self.index].sink.clone();
        drop(net);
        if let (true, Some(sink)) = (was_connected, sink) {
            sink.set_state(BusState::Connecting);
        }
    }

    /// Connects again. The subscriptions are there again, and what has waited is sent.
    pub fn connect(&self) {
        let mut net = self.network.lock();
        let node = &mut net.nodes[self.index];
        node.is_connected = true;
        let (sink, waiting) = (node.sink.clone(), core::mem::take(&mut node.waiting));
        let mut full = Vec::new();
        for sent in &waiting {
            full.extend(net.send(self.index, sent));
        }
        drop(net);
        if let Some(sink) = sink {
            sink.set_state(BusState::Connected);
        }
        full.iter().for_each(|sink| sink.note_lost_in(1));
        self.network.0.has_message.notify_all();
    }

    /// Returns whether it is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.network.lock().nodes[self.index].is_connected
    }

    /// Sets the maximum length of a payload. Default: none.
    pub fn set_payload_max(&self, bytes: usize) {
        self.network.lock().nodes[self.index].payload_max = Some(bytes);
    }

    /// The subjects of its subscriptions, sorted.
    #[must_use]
    pub fn subjects(&self) -> Vec<String> {
        let net = self.network.lock();
        net.nodes[self.index].subjects.iter().map(|subject| subject.to_string()).collect()
    }
}

impl Bus for MemoryBus {
    fn start(&self, sink: BusSink) -> io::Result<()> {
        self.network.lock().nodes[self.index].sink = Some(sink);
        self.connect();
        Ok(())
    }

    fn subscribe(&self, subject: &str) {
        self.network.lock().nodes[self.index].subjects.insert(subject.into());
    }

    fn unsubscribe(&self, subject: &str) {
        self.network.lock().nodes[self.index].subjects.remove(subject);
    }

    fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BusError> {
        let mut net = self.network.lock();
        let queue_max = net.queue_max;
        let node = &mut net.nodes[self.index];
        if node.payload_max.is_some_and(|max| payload.len() > max) {
            return Err(BusError::TooLarge);
        }
        let Some(sink) = node.sink.clone() else { return Err(BusError::Closed) };
        let sent: Sent = (subject.into(), payload.into());
        if !node.is_connected {
            node.waiting.push_back(sent);
            let is_over = node.waiting.len() > queue_max;
            if is_over {
                node.waiting.pop_front();
            }
            drop(net);
            sink.note_lost_out(u64::from(is_over));
            return Ok(());
        }
        let full = net.send(self.index, &sent);
        drop(net);
        full.iter().for_each(|sink| sink.note_lost_in(1));
        self.network.0.has_message.notify_all();
        Ok(())
    }

    fn payload_max(&self) -> usize {
        self.network.lock().nodes[self.index].payload_max.unwrap_or(usize::MAX)
    }

    fn stop(&self) {
        self.disconnect();
        let mut net = self.network.lock();
        net.nodes[self.index] = Member::default();
    }
}
