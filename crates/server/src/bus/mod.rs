//! Topics across machines: publications go to other servers through a [`Bus`].
//!
//! A *node* is a [`Server`](crate::Server) with a [`Cluster`]. It publishes to the bus what its own
//! connections, and its own code, publish. It subscribes to the topics that its connections are
//! subscribed to.
//!
//! # The guarantees
//!
//! 1. A publication reaches another node at most once. Nothing is sent or replayed again.
//! 2. The publications of one publisher to one topic arrive in order. A publisher is a worker of a
//!    node. Older ones that arrive later are dropped and counted (`stale`). An
//!    [ordered topic](crate::Options::ordered_topics) has one publisher for each node, its owner,
//!    and one order on each node. The order of two nodes' publications may differ between nodes.
//! 3. Missing publications are counted (`missed`): each one has a number that is consecutive for
//!    its publisher, topic and epoch. An epoch ends when the publisher restarts, or when its table
//!    of numbers is full. The numbers of a publisher are followed from its first publication on
//!    that arrives. A gap of more than 1024 counts when the next publication confirms it, and as
//!    4,294,967,296 at most.
//! 4. A node never gets its own publications from the bus.
//! 5. A node has one subscription for each topic, whatever the number of its connections and
//!    workers. It gives it up a second after the last one has left, at the earliest.
//! 6. Reserved topics never reach the bus, nor those of [`Cluster::local_topics`].
//! 7. Nothing waits for the bus. What does not fit in a queue is lost and counted.
//!
//! Local receivers get a publication whether or not the bus takes it. There is no presence: no node
//! knows the connections of another.
//!
//! # Trust
//!
//! The bus is trusted, and with it everyone who has access to it. Envelopes have no signature: who
//! can publish to the subjects can publish as any node. So only the nodes should have access to the
//! subjects of their prefix.
//!
//! One invented envelope does little. A later epoch, or a number that is more than 1024 ahead, is
//! only a claim until a second publication follows it. A publication that follows the former
//! numbers ends the claim. So one envelope adds at most 1024 to `missed`, and makes at most 1025
//! publications of its publisher to its topic `stale`.

mod envelope;
mod interest;
mod memory;
mod node;
mod sequence;
mod subject;

use core::fmt;
use std::{
    io,
    sync::{Arc, Weak},
};

pub use envelope::{Envelope, EnvelopeError};
pub use memory::{MemoryBus, MemoryNetwork};
pub(crate) use node::{Arrived, Node, Publisher};
pub use node::{Cluster, ClusterStats};
pub use subject::{PrefixError, SubjectMap, SubjectTopic};

/// A service that carries messages between nodes by subject, such as NATS.
///
/// Workers call it in their turns, so no call may block. Calls of one thread take effect in their
/// order. `subscribe` and `unsubscribe` are called by one thread at a time.
///
/// [`MemoryNetwork`] has an implementation for tests.
pub trait Bus: Send + Sync + 'static {
    /// Starts the service. It is called once, before any other call. What arrives, and what happens
    /// to the connection, is passed to `sink`, from any thread.
    ///
    /// # Errors
    /// The service cannot be started. The server does not start then. A service that cannot be
    /// reached yet is no error: it reports [`BusState::Connecting`].
    fn start(&self, sink: BusSink) -> io::Result<()>;

    /// Subscribes to a subject. The subscription survives the loss of a connection.
    fn subscribe(&self, subject: &str);

    /// Ends the subscription to a subject.
    fn unsubscribe(&self, subject: &str);

    /// Publishes a payload to a subject. The service should not deliver it to this node; the node
    /// drops it if it does.
    ///
    /// # Errors
    /// See [`BusError`]. The payload is lost, and counted.
    fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BusError>;

    /// The maximum length of a payload in bytes, as far as it is known. It may change. Default: no
    /// maximum.
    fn payload_max(&self) -> usize {
        usize::MAX
    }

    /// Ends the service. No call follows. It is called when the last worker has ended.
    fn stop(&self) {}
}

/// Why a bus did not take a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusError {
    /// Its queue is full.
    Full,
    /// The payload is longer than [`Bus::payload_max`].
    TooLarge,
    /// It has ended.
    Closed,
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of the bus is full",
            Self::TooLarge => "the message is longer than the bus allows",
            Self::Closed => "the bus has ended",
        })
    }
}

impl std::error::Error for BusError {}

/// The state of a bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusState {
    /// It connects, or connects again.
    #[default]
    Connecting,
    /// It is connected.
    Connected,
    /// It has ended, or has given up.
    Closed,
}

/// Where a [`Bus`] passes what arrives. `Clone`, `Send` and `Sync`.
///
/// A call neither blocks nor calls the bus. After [`Bus::stop`] has returned, calls do nothing.
#[derive(Clone)]
pub struct BusSink {
    node: Weak<Node>,
}

impl BusSink {
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        Self { node: Arc::downgrade(node) }
    }

    /// The node, unless it has ended.
    fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade().filter(|node| !node.is_stopped())
    }

    /// Passes a message to the workers with receivers. Messages of one publisher must be passed in
    /// the order in which the bus has them.
    pub fn deliver(&self, subject: &str, payload: &[u8]) {
        if let Some(node) = self.node() {
            node.deliver(subject, payload);
        }
    }

    /// Reports a change of the state.
    pub fn set_state(&self, state: BusState) {
        if let Some(node) = self.node() {
            node.set_state(state);
        }
    }

    /// Reports the number of outgoing messages that the bus has taken and lost since the last call.
    pub fn note_lost_out(&self, messages: u64) {
        if let Some(node) = self.node() {
            node.note_lost_out(messages);
        }
    }

    /// Reports the number of incoming messages that the bus has lost since the last call. Their
    /// numbers are missing too.
    pub fn note_lost_in(&self, messages: u64) {
        if let Some(node) = self.node() {
            node.note_lost_in(messages);
        }
    }
}

impl fmt::Debug for BusSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusSink").finish_non_exhaustive()
    }
}
