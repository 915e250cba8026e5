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
