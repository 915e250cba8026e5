//! The services of the other workers, which receive publications besides this service's own
//! connections.
//!
//! The publications of one turn to one topic go to each of them as one item. A worker whose mailbox
//! is full does not get them, and the loss is counted. A callback never waits for another worker,
//! because two workers that wait for each other would deadlock.
//!
//! The other nodes of a cluster are receivers too. They get each publication by itself.

use std::sync::Arc;

use windlass_flow::Sender;

use super::command::{ForwardedBatch, WorkerCommand};
use crate::{
    api::{Counters, Options, OutMessage},
    bus::{Node, Publisher},
};

/// A batch that has reached this many bytes is sent before more is added.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// The mailboxes of the other workers, and the batch that is being collected for them.
#[derive(Default)]
pub(crate) struct OtherWorkers {
    others: Vec<Sender<WorkerCommand>>,
    /// To the other nodes.
    publisher: Option<Publisher>,
    has_receivers: bool,
    batch: Option<ForwardedBatch>,
}

impl OtherWorkers {
    pub(crate) fn new(others: Vec<Sender<WorkerCommand>>, publisher: Option<Publisher>) -> Self {
        let has_receivers = !others.is_empty() || publisher.is_some();
        Self { others, publisher, has_receivers, batch: None }
    }

    /// Returns whether there is neither another worker nor another node.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_receivers
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

    /// Adds a publication to the batch.
    pub(crate) fn publish(
        &mut self,
        topic: &str,
        message: &OutMessage<'_>,
        options: &Options,
        stats: &Counters,
    ) {
        let payload = message.as_bytes();
        let fits = |batch: &ForwardedBatch| {
            *batch.topic == *topic && batch.weight + payload.len() <= BATCH_BYTES_MAX
        };
        if !self.batch.as_ref().is_some_and(fits) {
            self.forward(options, stats);
        }
        self.batch.get_or_insert_with(|| ForwardedBatch::empty(topic)).push(message);
    }

    /// Sends the batch to the other workers and nodes.
    pub(crate) fn forward(&mut self, options: &Options, stats: &Counters) {
        let Some(mut batch) = self.batch.take() else { return };
        batch.weight = batch.weight.min(options.sender_bounds.bytes_max);
        let messages = batch.messages.len() as u64;
        if let Some(publisher) = &mut self.publisher {
            for message in batch.iter() {
                publisher.publish(&batch.topic, message.is_text(), message.as_bytes());
            }
        }
        let batch = Arc::new(batch);
        for other in &self.others {
            if other.try_push(WorkerCommand::ForwardedBatch(Arc::clone(&batch))).is_err() {
                stats.lost_between_workers.add(messages);
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

    use super::*;
    use crate::bus::{Bus, BusError, BusSink, Cluster, Envelope};

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
        let mut others = OtherWorkers::new(Vec::new(), Some(Publisher::new(node, 0)));
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
}
