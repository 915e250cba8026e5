//! A received message that is lent.

use std::{fmt, str::Utf8Error};

use windlass_ws::{MessageBuffer, MessageRef};

use super::halves::Joint;
use crate::{
    Message, SendError,
    core::Core,
    inbox::{Found, Inbox},
    transport::Transport,
    utf8_bytes::checked_str,
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
    found: Found,
    /// A change of the text began, and has not left UTF-8.
    is_broken: bool,
}

/// The core of a whole socket, or of a reader.
pub(super) enum CoreRef<'a, S> {
    Own(&'a mut Core<S>),
    Joint(&'a Joint<S>),
}

impl<'a, S: Transport> Received<'a, S> {
    pub(super) fn new(inbox: &'a mut Inbox, core: CoreRef<'a, S>, found: Found) -> Self {
        Self { inbox, core, found, is_broken: false }
    }

    /// Whether it is a text message.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.found.is_text
    }

    /// The payload.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.inbox.payload(&self.found)
    }

    /// The text, if this is a text message, and UTF-8 after every change.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        (self.is_text() && !self.is_broken).then(|| checked_str(self.as_bytes()))
    }

    /// The payload of a binary message, to change it.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        (!self.is_text()).then(|| self.inbox.payload_mut(&self.found))
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
        let payload = self.inbox.payload_mut(&self.found);
        let result = change(payload);
        if self.found.is_text {
            std::str::from_utf8(payload)?;
        }
        self.is_broken = false;
        Ok(result)
    }

    /// The message with a payload of its own: one allocation, and a copy. `None` if a change has
    /// left no UTF-8.
    #[must_use]
    pub fn to_message(&self) -> Option<Message> {
        (!self.is_broken).then(|| self.inbox.to_message(&self.found))
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
        let Self { inbox, core, found, .. } = self;
        match core {
            CoreRef::Own(core) => reply(inbox, core, &found),
            CoreRef::Joint(joint) => joint.with(|core, context| {
                reply(inbox, core, &found)?;
                let _ = inbox.poll_flush(core, context);
                inbox.queue_unsent(core);
                Ok(())
            }),
        }
    }
}

fn reply<S: Transport>(
    inbox: &mut Inbox,
    core: &mut Core<S>,
    found: &Found,
) -> Result<(), SendError> {
    core.check_open()?;
    if !core.is_server() || core.engine.has_deflate() {
        inbox.queue_unsent(core);
        let before = core.output.len();
        let payload = inbox.payload(found);
        let message = if found.is_text {
            MessageRef::Text(checked_str(payload))
        } else {
            MessageRef::Binary(payload)
        };
        core.send_ref(message, None)?;
        core.output.note_answers(core.output.len() - before);
    } else if !inbox.reply_in_place(found) {
        inbox.queue_unsent(core);
        if let Some(message) = inbox.take_message(found) {
            send_around(core, message, found.is_text);
        }
    }
    Ok(())
}

fn send_around<S>(core: &mut Core<S>, mut message: MessageBuffer, is_text: bool) {
    let len = message.make_frame(is_text).len();
    core.output.push_message(message);
    core.output.note_answers(len);
}

impl<S: Transport> fmt::Debug for Received<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("is_text", &self.is_text())
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}
