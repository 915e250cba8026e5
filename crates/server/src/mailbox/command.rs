//! The commands of other threads and workers to a service.

use std::sync::Arc;

use windlass_ws::CloseCode;

use crate::api::{ConnectionId, OutMessage, Prepared};

/// An item in the mailbox.
pub(crate) enum WorkerCommand {
    Send {
        id: ConnectionId,
        message: Prepared,
    },
    Close {
        id: ConnectionId,
        code: CloseCode,
        reason: Box<str>,
    },
    Publish {
        topic: Arc<str>,
        message: Prepared,
    },
    /// Publications of another worker.
    ForwardedBatch(Arc<ForwardedBatch>),
}

/// Consecutive publications of another worker to one topic.
#[derive(Debug)]
pub(crate) struct ForwardedBatch {
    pub(crate) topic: Box<str>,
    pub(crate) payloads: Vec<u8>,
    /// For each publication, whether it is text, and the end of its payload.
    pub(crate) messages: Vec<(bool, usize)>,
    /// Number of bytes that it takes in a mailbox. It is at most the mailbox's capacity, so an
    /// empty mailbox has room for any message.
    pub(crate) weight: usize,
}

impl ForwardedBatch {
    pub(crate) fn empty(topic: &str) -> Self {
        let (payloads, messages) = (Vec::new(), Vec::new());
        Self { topic: topic.into(), payloads, messages, weight: topic.len() }
    }

    pub(crate) fn push(&mut self, message: &OutMessage<'_>) {
        let payload = message.as_bytes();
        self.payloads.extend_from_slice(payload);
        self.messages.push((message.is_text(), self.payloads.len()));
        self.weight += payload.len() + size_of::<(bool, usize)>();
    }

    /// A batch of one message, in a mailbox of this capacity.
    pub(crate) fn of_one(topic: &str, message: &OutMessage<'_>, weight_max: usize) -> Self {
        let mut batch = Self::empty(topic);
        batch.push(message);
        batch.weight = batch.weight.min(weight_max);
        batch
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = OutMessage<'_>> {
        let mut start = 0;
        self.messages.iter().map(move |(is_text, end)| {
            let payload = &self.payloads[core::mem::replace(&mut start, *end)..*end];
            OutMessage::checked(*is_text, payload)
        })
    }
}

/// Number of bytes that a command takes in the mailbox, beside its slot.
pub(crate) fn weight_of(command: &WorkerCommand) -> usize {
    match command {
        WorkerCommand::Send { message, .. } => message.weight(),
        WorkerCommand::Publish { topic, message } => topic.len() + message.weight(),
        WorkerCommand::Close { reason, .. } => reason.len(),
        WorkerCommand::ForwardedBatch(batch) => batch.weight,
    }
}
