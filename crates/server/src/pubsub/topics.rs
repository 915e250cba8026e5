//! Topics and their subscribers.
//!
//! A subscription is stored in two places: in the topic's list of subscribers, which a publication
//! iterates over, and in a list of the connection, which is used to leave all topics when it
//! closes. Each entry has the index of the other, so the cost of all operations is independent of
//! the number of subscribers.
//!
//! Peers may choose the names of topics. So names have a maximum length, and all memory here counts
//! in the budget.

use core::cell::Cell;
use std::{collections::HashMap, rc::Rc, sync::Arc};

use crate::{api::TopicName, bus::Node, table::NO_SUBSCRIPTION};

/// Number of subscription slots up to which memory is not released.
const KEPT: usize = 4096;

/// Memory of a topic besides its name, in bytes: the counters of the `Arc`, the slot, the entry in
/// the map, room for the first subscribers. Lists and maps may have as much spare room again.
const TOPIC_OVERHEAD: usize = 220;

/// Memory of a subscription in bytes: its two entries, in lists with as much spare room again.
const SUBSCRIPTION_MEMORY: usize = 2 * (size_of::<Subscription>() + size_of::<TopicSubscriber>());

/// Maximum number of names in the description of a connection.
const NAMES_MAX: usize = 4;

/// The topic of the [live status](crate::Connection::watch_status).
pub(crate) const STATUS_TOPIC: &str = "$windlass/status";

/// Returns whether only this crate uses topics of this name.
#[inline]
pub(crate) fn is_reserved(name: &str) -> bool {
    name.as_bytes().first() == Some(&b'$') && name.starts_with("$windlass/")
}

/// A subscriber of a topic.
#[derive(Clone, Copy)]
pub(crate) struct TopicSubscriber {
    pub(crate) index: u32,
    subscription: u32,
}

/// The connection's entry of a subscription.
#[derive(Clone, Copy)]
struct Subscription {
    topic: u32,
    /// Index in the topic's list of subscribers.
    position: u32,
    /// The connection's next entry, or the next vacant one.
    next: u32,
}

pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) subscribers: Vec<TopicSubscriber>,
    /// Number of copies that receivers got, and that number when the busiest topics were last
    /// searched for.
    delivered: Cell<u64>,
    delivered_before: Cell<u64>,
}

impl Topic {
    fn new(name: Arc<str>) -> Self {
        let zero = || Cell::new(0);
        Self { name, subscribers: Vec::new(), delivered: zero(), delivered_before: zero() }
    }

    /// Number of copies of publications that receivers got.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.get()
    }

    pub(crate) fn note_delivered(&self, copies: u64) {
        self.delivered.set(self.delivered.get().wrapping_add(copies));
    }

    /// Returns that number since the last call.
    pub(crate) fn take_recent(&self) -> u64 {
        let now = self.delivered.get();
        now.wrapping_sub(self.delivered_before.replace(now))
    }
}

/// All topics that have subscribers.
pub(crate) struct Topics {
    /// Names may come from peers, so they are hashed with a secret.
    by_name: HashMap<Arc<str>, u32>,
    topics: Vec<Option<Topic>>,
    vacant_topics: Vec<u32>,
    subscriptions: Vec<Subscription>,
    vacant: u32,
    subscription_count: usize,
    /// The node that subscribes to the topics on its bus, and the index of this worker.
    node: Option<(Arc<Node>, u16)>,
    /// Memory of all topics and subscriptions in bytes, shared with other users of the counter.
    memory: Rc<Cell<usize>>,
}

impl Topics {
    /// Creates topics that add to this counter.
    pub(crate) fn new(node: Option<(Arc<Node>, u16)>, memory: &Rc<Cell<usize>>) -> Self {
        Self {
            node,
            memory: Rc::clone(memory),
            by_name: HashMap::new(),
            topics: Vec::new(),
            vacant_topics: Vec::new(),
            subscriptions: Vec::new(),
            vacant: NO_SUBSCRIPTION,
            subscription_count: 0,
        }
    }

    /// Number of topics that have subscribers.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Number of subscriptions to all topics.
    pub(crate) fn subscription_count(&self) -> usize {
        self.subscription_count
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Number of subscribers of a topic.
    pub(crate) fn subscribers(&self, name: &str) -> usize {
        let topic = self.find(name).and_then(|topic| self.topic(topic));
        topic.map_or(0, |topic| topic.subscribers.len())
    }

    pub(crate) fn topic(&self, topic: u32) -> Option<&Topic> {
        self.topics.get(topic as usize)?.as_ref()
    }

    /// All topics in this number of slots.
    pub(crate) fn in_slots(&self, slots: usize) -> impl Iterator<Item = &Topic> {
        self.topics.iter().take(slots).flatten()
    }

    /// Number of slots, including vacant ones.
    pub(crate) fn slots(&self) -> usize {
        self.topics.len()
    }

    /// The names of the last topics that a connection has subscribed to, a few of them. Names that
    /// begin with `$` are left out.
    pub(crate) fn names_of(&self, first: u32) -> Vec<Arc<str>> {
        let (mut names, mut at) = (Vec::new(), first);
        // A connection may have any number of topics.
        for _ in 0..4 * NAMES_MAX {
            let Some(subscription) = self.subscriptions.get(at as usize) else { break };
            at = subscription.next;
            let topic = self.topic(subscription.topic).filter(|topic| !topic.name.starts_with('$'));
            names.extend(topic.map(|topic| Arc::clone(&topic.name)));
            if names.len() == NAMES_MAX {
                break;
            }
        }
        names
    }

    /// Memory of a topic without its subscriptions, in bytes.
    fn topic_memory(&self, name: &str) -> usize {
        let node = self.node.as_ref().map_or(0, |(node, _)| node.topic_memory(name));
        TOPIC_OVERHEAD + name.len() + node
    }

    /// Memory of the subscriptions of a connection in bytes, with its part of their topics.
    pub(crate) fn memory(&self, first: u32) -> usize {
        let (mut bytes, mut at) = (0, first);
        while let Some(subscription) = self.subscriptions.get(at as usize) {
            let part = |topic: &Topic| self.topic_memory(&topic.name) / topic.subscribers.len();
            bytes += SUBSCRIPTION_MEMORY + self.topic(subscription.topic).map_or(0, part);
            at = subscription.next;
        }
        bytes
    }

    /// Returns the topic of that name, and creates it if necessary.
    fn topic_of(&mut self, name: TopicName<'_>) -> u32 {
        if let Some(topic) = self.find(name.text()) {
            return topic;
        }
        let name = name.to_shared();
        self.memory.set(self.memory.get() + self.topic_memory(&name));
        let made = Topic::new(Arc::clone(&name));
        let topic = match self.vacant_topics.pop() {
            Some(topic) => {
                self.topics[topic as usize] = Some(made);
                topic
            }
            None => {
                self.topics.push(Some(made));
                (self.topics.len() - 1) as u32
            }
        };
        self.by_name.insert(Arc::clone(&name), topic);
        // It calls the bus, which may panic. The topic is complete by then.
        if let Some((node, worker)) = self.node.as_ref().filter(|_| !is_reserved(&name)) {
            node.join(&name, *worker);
        }
        topic
    }

    /// Returns a connection's subscription to a topic, and the preceding one in its list.
    fn search(&self, first: u32, topic: u32) -> Option<(u32, u32)> {
        let (mut before, mut at) = (NO_SUBSCRIPTION, first);
        while let Some(subscription) = self.subscriptions.get(at as usize) {
            if subscription.topic == topic {
                return Some((at, before));
            }
            (before, at) = (at, subscription.next);
        }
        None
    }

    /// Returns whether a connection, whose subscriptions begin with `first`, is subscribed to a
    /// topic.
    pub(crate) fn is_subscribed(&self, first: u32, topic: u32) -> bool {
        self.search(first, topic).is_some()
    }

    /// Number of topics that a connection is subscribed to.
    pub(crate) fn count(&self, first: u32) -> usize {
        let (mut count, mut at) = (0, first);
        while let Some(subscription) = self.subscriptions.get(at as usize) {
            count += 1;
            at = subscription.next;
        }
        count
    }

    /// Adds a connection to a topic. Returns false if it is already subscribed.
    pub(crate) fn subscribe(&mut self, first: &mut u32, index: u32, name: TopicName<'_>) -> bool {
        let topic = self.topic_of(name);
        if self.is_subscribed(*first, topic) {
            return false;
        }
        let Some(entry) = self.topics[topic as usize].as_mut() else { return false };
        let made = Subscription { topic, position: entry.subscribers.len() as u32, next: *first };
        let subscription = match self.subscriptions.get_mut(self.vacant as usize) {
            Some(position) => {
                let at = self.vacant;
                self.vacant = position.next;
                *position = made;
                at
            }
            None => {
                self.subscriptions.push(made);
                (self.subscriptions.len() - 1) as u32
            }
        };
        entry.subscribers.push(TopicSubscriber { index, subscription });
        *first = subscription;
        self.subscription_count += 1;
        self.memory.set(self.memory.get() + SUBSCRIPTION_MEMORY);
        true
    }

    /// Removes a connection from a topic. Returns false if it is not subscribed.
    pub(crate) fn unsubscribe(&mut self, first: &mut u32, topic: u32) -> bool {
        let Some((at, before)) = self.search(*first, topic) else { return false };
        let next = self.subscriptions[at as usize].next;
        match self.subscriptions.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => *first = next,
        }
        self.remove(at);
        true
    }

    /// Removes a connection from all topics.
    pub(crate) fn unsubscribe_all(&mut self, first: &mut u32) {
        let mut at = core::mem::replace(first, NO_SUBSCRIPTION);
        while let Some(subscription) = self.subscriptions.get(at as usize) {
            let next = subscription.next;
            self.remove(at);
            at = next;
        }
    }

    /// Removes a subscription, which is in no list any more, from its topic. A topic without
    /// subscribers is deleted.
    fn remove(&mut self, at: u32) {
        self.subscription_count -= 1;
        let mut freed = SUBSCRIPTION_MEMORY;
        let Subscription { topic, position, .. } = self.subscriptions[at as usize];
        self.subscriptions[at as usize].next = self.vacant;
        self.vacant = at;
        let Some(entry) = self.topics[topic as usize].as_mut() else { return };
        entry.subscribers.swap_remove(position as usize);
        if let Some(moved) = entry.subscribers.get(position as usize) {
            self.subscriptions[moved.subscription as usize].position = position;
        } else if entry.subscribers.is_empty() {
            if let Some((node, worker)) = self.node.as_ref().filter(|_| !is_reserved(&entry.name)) {
                node.leave(&entry.name, *worker);
            }
            if let Some((name, _)) = self.by_name.remove_entry(&entry.name) {
                freed += self.topic_memory(&name);
            }
            self.topics[topic as usize] = None;
            self.vacant_topics.push(topic);
        }
        self.memory.set(self.memory.get().saturating_sub(freed));
        if self.by_name.is_empty() && self.subscriptions.len() > KEPT {
            // A service that once had many subscriptions releases their memory.
            *self = Self::new(self.node.take(), &self.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use crate::bus::{Bus, BusError, BusSink, Cluster};

    /// A bus that panics at the first subscription.
    #[derive(Default)]
    struct Panicking(AtomicBool);

    impl Bus for Panicking {
        fn start(&self, _: BusSink) -> io::Result<()> {
            Ok(())
        }
        fn subscribe(&self, _: &str) {
            assert!(self.0.swap(true, Ordering::Relaxed), "the first one");
        }
        fn unsubscribe(&self, _: &str) {}
        fn publish(&self, _: &str, _: Vec<u8>) -> Result<(), BusError> {
            Ok(())
        }
    }

    #[test]
    fn a_topic_is_complete_although_the_bus_panics() {
        let node = Node::new(Cluster::new(Panicking::default()));
        let memory = Rc::default();
        let mut topics = Topics::new(Some((node, 0)), &memory);
        let (mut first, name) = (NO_SUBSCRIPTION, TopicName::Text("t"));
        let panics = catch_unwind(AssertUnwindSafe(|| topics.subscribe(&mut first, 3, name)));
        assert!(panics.is_err());
        assert!(topics.subscribe(&mut first, 3, name));
        assert_eq!(topics.memory(first), memory.get());
        assert_eq!((topics.len(), topics.topics.len()), (1, 1), "the slot is used again");
        topics.unsubscribe_all(&mut first);
        assert_eq!((topics.len(), topics.subscription_count(), memory.get()), (0, 0, 0));
    }

    #[test]
    fn a_topic_shares_the_name_that_it_is_given() {
        let memory = Rc::new(Cell::new(5));
        let mut topics = Topics::new(None, &memory);
        let (mut one, mut other): (u32, u32) = (NO_SUBSCRIPTION, NO_SUBSCRIPTION);
        let name: Arc<str> = "a room".into();
        assert!(topics.subscribe(&mut one, 0, TopicName::Shared(&name)));
        assert!(topics.subscribe(&mut other, 1, TopicName::Text("a room")));
        let topic = topics.find("a room").and_then(|topic| topics.topic(topic)).unwrap();
        assert!(Arc::ptr_eq(&topic.name, &name));
        let whole = TOPIC_OVERHEAD + name.len() + 2 * SUBSCRIPTION_MEMORY;
        assert_eq!((memory.get(), topics.memory(one) + topics.memory(other)), (5 + whole, whole));
        topics.unsubscribe_all(&mut one);
        assert_eq!(topics.memory(other), memory.get() - 5);
        topics.unsubscribe_all(&mut other);
        assert_eq!((memory.get(), Arc::strong_count(&name)), (5, 1));
    }
}
