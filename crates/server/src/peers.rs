//! The services of the other workers, which receive publications besides this service's own
//! connections.
//!
//! The publications of one turn to one topic go to each of them as one item. A worker whose mailbox
//! is full does not get them, and the loss is counted. A callback never waits for another worker,
//! because two workers that wait for each other would deadlock.

use std::sync::Arc;

use windlass_flow::Sender;

use crate::{
    OutMessage,
    hall::Hall,
    inbox::{Command, Run},
};

/// A run that has reached this many bytes is sent before more is added.
const RUN_MAX: usize = 64 << 10;

/// The mailboxes of the other workers, and the run that is being collected for them.
#[derive(Default)]
pub(crate) struct Peers {
    others: Vec<Sender<Command>>,
    run: Option<Run>,
}

impl Peers {
    pub(crate) fn new(others: Vec<Sender<Command>>) -> Self {
        Self { others, run: None }
    }

    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    /// Adds a publication to the run.
    pub(crate) fn publish(&mut self, hall: &Hall, topic: &str, message: &OutMessage<'_>) {
        let payload = message.as_bytes();
        let goes_on = |run: &Run| *run.topic == *topic && run.weight + payload.len() <= RUN_MAX;
        if !self.run.as_ref().is_some_and(goes_on) {
            self.send_out(hall);
        }
        let begun = || Run {
            topic: topic.into(),
            payloads: Vec::new(),
            pieces: Vec::new(),
            weight: topic.len(),
        };
        let run = self.run.get_or_insert_with(begun);
        run.payloads.extend_from_slice(payload);
        run.pieces.push((message.is_text(), run.payloads.len()));
        run.weight += payload.len() + size_of::<(bool, usize)>();
    }

    /// Sends the run to the other workers.
    pub(crate) fn send_out(&mut self, hall: &Hall) {
        let Some(mut run) = self.run.take() else { return };
        run.weight = run.weight.min(hall.options.sender_bounds.bytes_max);
        let pieces = run.pieces.len() as u64;
        let run = Arc::new(run);
        for other in &self.others {
            if other.try_push(Command::Run(Arc::clone(&run))).is_err() {
                hall.stats.lost_between_workers.add(pieces);
            }
        }
    }
}
