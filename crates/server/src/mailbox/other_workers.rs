//! The services of the other workers, which receive publications besides this service's own
//! connections.
//!
//! The publications of one turn to one topic go to each of them as one item. A worker whose mailbox
//! is full does not get them, and the loss is counted. A callback never waits for another worker,
//! because two workers that wait for each other would deadlock.

use std::sync::Arc;

use windlass_flow::Sender;

use super::command::{ForwardedBatch, WorkerCommand};
use crate::api::{Counters, Options, OutMessage};

/// A batch that has reached this many bytes is sent before more is added.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// The mailboxes of the other workers, and the batch that is being collected for them.
#[derive(Default)]
pub(crate) struct OtherWorkers {
    others: Vec<Sender<WorkerCommand>>,
    batch: Option<ForwardedBatch>,
}

impl OtherWorkers {
    pub(crate) fn new(others: Vec<Sender<WorkerCommand>>) -> Self {
        Self { others, batch: None }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.others.is_empty()
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
        let empty = || ForwardedBatch {
            topic: topic.into(),
            payloads: Vec::new(),
            messages: Vec::new(),
            weight: topic.len(),
        };
        let batch = self.batch.get_or_insert_with(empty);
        batch.payloads.extend_from_slice(payload);
        batch.messages.push((message.is_text(), batch.payloads.len()));
        batch.weight += payload.len() + size_of::<(bool, usize)>();
    }

    /// Sends the batch to the other workers.
    pub(crate) fn forward(&mut self, options: &Options, stats: &Counters) {
        let Some(mut batch) = self.batch.take() else { return };
        batch.weight = batch.weight.min(options.sender_bounds.bytes_max);
        let messages = batch.messages.len() as u64;
        let batch = Arc::new(batch);
        for other in &self.others {
            if other.try_push(WorkerCommand::ForwardedBatch(Arc::clone(&batch))).is_err() {
                stats.lost_between_workers.add(messages);
            }
        }
    }
}
