//! The services of the other workers, which receive publications besides this service's own
//! connections.
//!
//! The publications of one turn to one topic go to each of them as one item. A worker whose mailbox
//! is full does not get them, and the loss is counted. A callback never waits for another worker,
//! because two workers that wait for each other would deadlock.
//!
//! Those to an ordered topic go to its owner alone, if that is another worker (`topic_owners.rs`).
//!
//! The other nodes of a cluster are receivers too. They get each publication by itself.

use std::sync::Arc;

use windlass_flow::Sender;

use super::{
    command::{ForwardedBatch, WorkerCommand},
    topic_owners::TopicOwners,
};
use crate::{
    api::{ConnectionId, Counters, Options, OutMessage},
    bus::{Node, Publisher},
};

/// A batch that has reached this many bytes is sent before more is added.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// The mailboxes of the other workers, and the batch that is being collected for them.
#[derive(Default)]
pub(crate) struct OtherWorkers {
    /// The index of this worker.
    worker: u16,
    /// In the order of their indexes, without this one.
    others: Vec<Sender<WorkerCommand>>,
    owners: Option<Arc<TopicOwners>>,
    /// To the other nodes.
    publisher: Option<Publisher>,
    has_receivers: bool,
    batch: Option<ForwardedBatch>,
}

impl OtherWorkers {
    pub(crate) fn new(
        worker: u16,
        others: Vec<Sender<WorkerCommand>>,
        owners: Option<Arc<TopicOwners>>,
        publisher: Option<Publisher>,
    ) -> Self {
        let has_receivers = !others.is_empty() || publisher.is_some();
        Self { worker, others, owners, publisher, has_receivers, batch: None }
    }

    /// Returns whether there is neither another worker nor another node.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_receivers
    }

    /// Returns whether publications wait to be [forwarded](Self::forward).
    pub(crate) fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns whether a topic has an owner.
    pub(crate) fn is_ordered(&self, topic: &str) -> bool {
        self.owners.as_ref().is_some_and(|owners| owners.owner_of(topic).is_some())
    }

    /// Returns the other worker that owns a topic. `None` if the topic is not ordered, or if this
    /// worker owns it.
    #[inline]
    pub(crate) fn owner_elsewhere(&self, topic: &str) -> Option<u16> {
        let owners = self.owners.as_ref()?;
        match &self.batch {
            Some(batch) if *batch.topic == *topic => batch.owner,
            _ => owners.owner_of(topic).filter(|owner| *owner != self.worker),
        }
    }

    /// The node of this worker in a cluster, and its index there.
    pub(crate) fn node(&self) -> Option<(&Arc<Node>, u16)> {
        self.publisher.as_ref().map(|publisher| (publisher.node(), publisher.worker()))
    }

    /// Publishes to the other nodes alone. The batch goes before it, because it is older.
    pub(crate) fn publish_to_nodes(
        &mut self,
        topic: &str,
        message: &OutMessage<'_>,
        options: &Options,
        stats: &Counters,
    ) {
        if self.publisher.is_none() {
            return;
        }
        self.forward(options, stats);
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(topic, message.is_text(), message.as_bytes());
        }
    }

    /// Adds a publication to the batch for all other workers and nodes.
    pub(crate) fn publish(
        &mut self,
        topic: &str,
        message: &OutMessage<'_>,
        options: &Options,
        stats: &Counters,
    ) {
        self.batch_for(topic, None, message, options, stats).push(message);
    }

    /// Adds a publication to the batch for the owner of the topic. `sender` does not get it.
    pub(crate) fn publish_by(
        &mut self,
        owner: u16,
        topic: &str,
        (sender, message): (Option<ConnectionId>, &OutMessage<'_>),
        options: &Options,
        stats: &Counters,
    ) {
        self.batch_for(topic, Some(owner), message, options, stats).push_of(sender, message);
    }

    /// Returns the batch to add a publication to.
    #[inline]
    fn batch_for(
        &mut self,
        topic: &str,
        owner: Option<u16>,
        message: &OutMessage<'_>,
        options: &Options,
        stats: &Counters,
    ) -> &mut ForwardedBatch {
        let len = message.as_bytes().len();
        let fits = |batch: &ForwardedBatch| {
            *batch.topic == *topic && batch.weight + len <= BATCH_BYTES_MAX
        };
        if !self.batch.as_ref().is_some_and(fits) {
            self.forward(options, stats);
        }
        self.batch.get_or_insert_with(|| ForwardedBatch::empty(topic, owner))
    }

    /// Sends the batch to the other workers and nodes, or to the owner of its topic.
    pub(crate) fn forward(&mut self, options: &Options, stats: &Counters) {
        let Some(mut batch) = self.batch.take() else { return };
        batch.weight = batch.weight.min(options.sender_bounds.bytes_max);
        let batch = Arc::new(batch);
        let Some(owner) = batch.owner else { return self.send(&batch, stats) };
        let messages = batch.messages.len() as u64;
        // The list does not have this worker.
        let at = usize::from(owner - u16::from(owner > self.worker));
        let is_lost = self.others[at].try_push(WorkerCommand::ToOwner(batch)).is_err();
        stats.lost_between_workers.add(if is_lost { messages } else { 0 });
    }

    /// Passes on publications to a topic that this worker owns, after those before them.
    pub(crate) fn relay(
        &mut self,
        batch: &Arc<ForwardedBatch>,
        options: &Options,
        stats: &Counters,
    ) {
        self.forward(options, stats);
        self.send(batch, stats);
    }

    fn send(&mut self, batch: &Arc<ForwardedBatch>, stats: &Counters) {
        if let Some(publisher) = self.publisher.as_mut().filter(|_| !batch.is_from_node) {
            for (_, message) in batch.iter() {
                publisher.publish(&batch.topic, message.is_text(), message.as_bytes());
            }
        }
        for other in &self.others {
            if other.try_push(WorkerCommand::ForwardedBatch(Arc::clone(batch))).is_err() {
                stats.lost_between_workers.add(batch.messages.len() as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Mutex, PoisonError},
    };

    use proptest::prelude::*;
    use windlass_flow::{Bounds, Mailbox};

    use super::*;
    use crate::{
        bus::{Bus, BusError, BusSink, Cluster, Envelope},
        mailbox::WorkerMailbox,
    };

    /// Records what is published.
    #[derive(Default)]
    struct Record(Arc<Mutex<Vec<(u64, String)>>>);

    impl Bus for Record {
        fn start(&self, _: BusSink) -> io::Result<()> {
            Ok(())
        }
        fn subscribe(&self, _: &str) {}
        fn unsubscribe(&self, _: &str) {}
        fn publish(&self, _: &str, payload: Vec<u8>) -> Result<(), BusError> {
            let envelope = Envelope::decode(&payload).unwrap();
            let text = String::from_utf8_lossy(envelope.payload).into_owned();
            let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            record.push((envelope.sequence, text));
            Ok(())
        }
    }

    #[test]
    fn a_publication_to_the_nodes_alone_does_not_overtake_the_batch() {
        let record = Arc::default();
        let node = Node::new(Cluster::new(Record(Arc::clone(&record))));
        let mut others = OtherWorkers::new(0, Vec::new(), None, Some(Publisher::new(node, 0)));
        let (options, stats) = (Options::new(), Counters::default());
        let message = |text: &'static str| OutMessage::from(text);
        others.publish("t", &message("first"), &options, &stats);
        others.publish("t", &message("second"), &options, &stats);
        others.publish_to_nodes("t", &message("third"), &options, &stats);
        others.publish("t", &message("fourth"), &options, &stats);
        others.forward(&options, &stats);
        let expected = ["first", "second", "third", "fourth"];
        let expected = (0_u64..).zip(expected.map(str::to_owned)).collect::<Vec<_>>();
        assert_eq!(*record.lock().unwrap(), expected);
    }

    /// The workers of a server without connections. Each notes what its members would see.
    struct Site {
        owners: Arc<TopicOwners>,
        options: Options,
        workers: Vec<(OtherWorkers, Mailbox<WorkerCommand>, Vec<u32>)>,
        stats: Counters,
    }

    impl Site {
        fn new(count: usize, items_max: usize) -> Self {
            let mut options = Options::new();
            options.ordered_topics("");
            options.sender_bounds = Bounds::items(items_max);
            let owners = TopicOwners::new(&options, count).unwrap();
            let mailboxes: Vec<_> = (0..count)
                .map(|_| WorkerMailbox::new(&options, &Arc::default()).unwrap())
                .collect();
            let senders: Vec<_> = mailboxes.iter().map(|mailbox| mailbox.sender.clone()).collect();
            let workers = mailboxes.into_iter().enumerate().map(|(index, mailbox)| {
                let mut others = senders.clone();
                others.remove(index);
                let owners = Some(Arc::clone(&owners));
                let others = OtherWorkers::new(index as u16, others, owners, None);
                (others, mailbox.receiver, Vec::new())
            });
            let workers = workers.collect();
            Self { owners, options, workers, stats: Counters::default() }
        }

        fn publish(&mut self, worker: usize, number: u32) {
            let (options, stats) = (&self.options, &self.stats);
            let (others, _, seen) = &mut self.workers[worker];
            let bytes = number.to_le_bytes();
            let message = OutMessage::from(&bytes[..]);
            if let Some(owner) = others.owner_elsewhere("t") {
                return others.publish_by(owner, "t", (None, &message), options, stats);
            }
            others.publish("t", &message, options, stats);
            seen.push(number);
        }

        fn end_turn(&mut self, worker: usize) {
            self.workers[worker].0.forward(&self.options, &self.stats);
        }

        /// Returns whether there was a command.
        fn execute(&mut self, worker: usize, max: usize) -> bool {
            let (others, mailbox, seen) = &mut self.workers[worker];
            let commands: Vec<_> = mailbox.drain(max).collect();
            for command in &commands {
                let batch = match command {
                    WorkerCommand::ToOwner(batch) => {
                        others.relay(batch, &self.options, &self.stats);
                        batch
                    }
                    WorkerCommand::ForwardedBatch(batch) => batch,
                    _ => panic!("another command"),
                };
                let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
                seen.extend(batch.iter().map(|(_, message)| number(message.as_bytes())));
            }
            !commands.is_empty()
        }
    }

    #[test]
    fn publications_to_topics_of_an_ended_worker_are_lost_and_counted() {
        let mut site = Site::new(2, 9);
        let owner = usize::from(site.owners.owner_of("t").unwrap());
        site.workers[owner].1.close();
        (0..3).for_each(|number| site.publish(1 - owner, number));
        site.end_turn(1 - owner);
        assert_eq!(site.stats.lost_between_workers.get(), 3);
        assert!(!site.execute(1 - owner, 9));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the workers do first and whatever finds no room: nobody sees another order, and
        /// the counts tell exactly what is missing.
        #[test]
        fn members_see_a_part_of_the_order_of_the_owner(
            steps in proptest::collection::vec((0_usize..3, 0_usize..3, 1_usize..4), 0..120),
        ) {
            let mut site = Site::new(3, 4);
            let mut published = 0;
            for (step, worker, count) in steps {
                match step {
                    0 => for _ in 0..count {
                        site.publish(worker, published);
                        published += 1;
                    },
                    1 => site.end_turn(worker),
                    _ => _ = site.execute(worker, count),
                }
            }
            (0..3).for_each(|worker| site.end_turn(worker));
            while (0..3).any(|worker| site.execute(worker, 9)) {}
            let owner = usize::from(site.owners.owner_of("t").unwrap());
            let order = &site.workers[owner].2;
            let mut lost = published as usize - order.len();
            for (_, _, seen) in &site.workers {
                let mut rest = order.iter();
                prop_assert!(seen.iter().all(|number| rest.any(|at| at == number)), "{seen:?}");
                lost += order.len() - seen.len();
            }
            prop_assert_eq!(site.stats.lost_between_workers.get(), lost as u64);
        }
    }
}
