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
    /// Publications to an [ordered topic](super::TopicOwners) that this worker owns.
    ToOwner(Arc<ForwardedBatch>),
}

/// Consecutive publications of another worker to one topic.
#[derive(Debug)]
pub(crate) struct ForwardedBatch {
    pub(crate) topic: Box<str>,
    pub(crate) payloads: Vec<u8>,
    /// For each publication, whether it is text, and the end of its payload.
    pub(crate) messages: Vec<(bool, usize)>,
    /// The worker that the batch goes to first, if the topic is ordered.
    pub(crate) owner: Option<u16>,
    /// For each publication to an ordered topic, the connection that does not get it. Otherwise
    /// empty: the worker of the publisher leaves it out by itself.
    senders: Vec<Option<ConnectionId>>,
    /// It comes from another node, so no node gets it.
    pub(crate) is_from_node: bool,
    /// Number of bytes that it takes in a mailbox. It is at most the mailbox's capacity, so an
    /// empty mailbox has room for any message.
    pub(crate) weight: usize,
}

impl ForwardedBatch {
    pub(crate) fn empty(topic: &str, owner: Option<u16>) -> Self {
        let (payloads, messages, senders) = (Vec::new(), Vec::new(), Vec::new());
        let (topic, weight): (Box<str>, _) = (topic.into(), topic.len());
        Self { topic, payloads, messages, owner, senders, is_from_node: false, weight }
    }

    pub(crate) fn push(&mut self, message: &OutMessage<'_>) {
        let payload = message.as_bytes();
        self.payloads.extend_from_slice(payload);
        self.messages.push((message.is_text(), self.payloads.len()));
        self.weight += payload.len() + size_of::<(bool, usize)>();
    }

    /// Adds a publication to an ordered topic, which `sender` does not get.
    pub(crate) fn push_of(&mut self, sender: Option<ConnectionId>, message: &OutMessage<'_>) {
        self.push(message);
        self.senders.push(sender);
        self.weight += size_of::<Option<ConnectionId>>();
    }

    /// A batch of one message of another node, in a mailbox of this capacity.
    pub(crate) fn of_node(topic: &str, message: &OutMessage<'_>, weight_max: usize) -> Self {
        let mut batch = Self::empty(topic, None);
        batch.push(message);
        batch.weight = batch.weight.min(weight_max);
        batch.is_from_node = true;
        batch
    }

    /// Each message, and the connection that does not get it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<ConnectionId>, OutMessage<'_>)> {
        let mut start = 0;
        self.messages.iter().enumerate().map(move |(at, (is_text, end))| {
            let payload = &self.payloads[core::mem::replace(&mut start, *end)..*end];
            let sender = self.senders.get(at).copied().flatten();
            (sender, OutMessage::checked(*is_text, payload))
        })
    }
}

/// Number of bytes that a command takes in the mailbox, beside its slot.
pub(crate) fn weight_of(command: &WorkerCommand) -> usize {
    match command {
        WorkerCommand::Send { message, .. } => message.weight(),
        WorkerCommand::Publish { topic, message } => topic.len() + message.weight(),
        WorkerCommand::Close { reason, .. } => reason.len(),
        WorkerCommand::ForwardedBatch(batch) | WorkerCommand::ToOwner(batch) => batch.weight,
    }
}
