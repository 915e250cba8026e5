//! A received message that is lent.

use std::{fmt, str::Utf8Error};

use windlass_ws::MessageRef;

use super::halves::Joint;
use crate::{
    Message, SendError, core::Core, inbox::Inbox, transport::Transport, utf8_bytes::checked_str,
};

/// A message that the socket lends until the next call. Its payload lies in the buffer that it was
/// read into, and may be changed and sent back there.
///
/// ```no_run
/// # async fn echo<S: windlass_websocket::Transport>(
/// #     mut socket: windlass_websocket::WebSocket<S>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(mut message) = socket.recv().await? {
///     if let Some(bytes) = message.bytes_mut() {
///         bytes.reverse();
///     }
///     message.reply()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Received<'a, S: Transport> {
    inbox: &'a mut Inbox,
    core: CoreRef<'a, S>,
    /// A change of the text began, and has not left UTF-8.
    is_broken: bool,
}

/// The core of a whole socket, or of a reader.
pub(super) enum CoreRef<'a, S> {
    Own(&'a mut Core<S>),
    Joint(&'a Joint<S>),
}

impl<'a, S: Transport> Received<'a, S> {
    pub(super) fn new(inbox: &'a mut Inbox, core: CoreRef<'a, S>) -> Self {
        Self { inbox, core, is_broken: false }
    }

    /// Whether it is a text message.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.inbox.is_text()
    }

    /// The payload.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.inbox.payload()
    }

    /// The text, if this is a text message, and UTF-8 after every change.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        (self.is_text() && !self.is_broken).then(|| checked_str(self.as_bytes()))
    }

    /// The payload of a binary message, to change it.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        (!self.is_text()).then(|| self.inbox.payload_mut())
    }

    /// Changes the bytes of a text message, and checks that they are UTF-8 afterwards. A binary
    /// message is changed without a check.
    ///
    /// # Errors
    /// The text is not UTF-8 any more. It cannot be sent, and has no `str`, until another change
    /// has mended it.
    pub fn change_text<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> Result<R, Utf8Error> {
        // The change may panic.
        self.is_broken = self.is_text();
        let payload = self.inbox.payload_mut();
        let result = change(payload);
        if self.is_broken {
            std::str::from_utf8(payload)?;
        }
        self.is_broken = false;
        Ok(result)
    }

    /// The message with a payload of its own: one allocation, and a copy. `None` if a change has
    /// left no UTF-8.
    #[must_use]
    pub fn to_message(&self) -> Option<Message> {
        (!self.is_broken).then(|| self.inbox.to_message())
    }

    /// Sends the message back with its current bytes. A server without compression builds the frame
    /// around them, where they lie.
    ///
    /// The reply is sent by the next `recv`, before it waits, or by `flush`. So all messages that
    /// arrive with one read are answered with one write.
    ///
    /// # Errors
    /// [`SendError::Closed`] after the Close frame, [`SendError::NotUtf8`] after a change that left
    /// no UTF-8, [`SendError::Io`] if writing has failed before.
    pub fn reply(self) -> Result<(), SendError> {
        if self.is_broken {
            return Err(SendError::NotUtf8);
        }
        let Self { inbox, core, .. } = self;
        match core {
            CoreRef::Own(core) => reply(inbox, core),
            CoreRef::Joint(joint) => joint.with(|core, context| {
                reply(inbox, core)?;
                let _ = inbox.poll_flush(core, context);
                inbox.queue_unsent(core);
                Ok(())
            }),
        }
    }
}

#[inline]
fn reply<S: Transport>(inbox: &mut Inbox, core: &mut Core<S>) -> Result<(), SendError> {
    core.check_open()?;
    let is_built_around = core.is_server() && !core.engine.has_deflate();
    if is_built_around && inbox.reply_in_place() {
        return Ok(());
    }
    reply_queued(inbox, core, is_built_around)
}

#[inline(never)]
fn reply_queued<S: Transport>(
    inbox: &mut Inbox,
    core: &mut Core<S>,
    is_built_around: bool,
) -> Result<(), SendError> {
    inbox.queue_unsent(core);
    let (before, is_text) = (core.output.len(), inbox.is_text());
    if is_built_around {
        if let Some(mut message) = inbox.take_message() {
            message.make_frame(is_text);
            core.output.push_message(message);
        }
    } else if is_text {
        core.send_ref(MessageRef::Text(checked_str(inbox.payload())), None)?;
    } else {
        core.send_ref(MessageRef::Binary(inbox.payload()), None)?;
    }
    core.output.note_answers(core.output.len() - before);
    Ok(())
}

impl<S: Transport> fmt::Debug for Received<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("is_text", &self.is_text())
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}
