//! Received messages and messages to send.

use core::{fmt, str::Utf8Error};
use std::borrow::Cow;

use windlass_ws::{
    FrameHeader, HEADER_LEN_MAX, Opcode, Outbox, ReceivedMessage,
    deflate::{Codec, CodecPool},
};

/// A received message: complete, unmasked, and still in the receive buffer. It can be read and
/// changed during the call, and sent back without copying:
/// [`Connection::reply_in_place`](crate::Connection::reply_in_place).
///
/// ```
/// use std::{io, io::Read as _, os::unix::net::UnixStream, time::Duration};
/// use windlass::Reactor;
/// use windlass_server::{Connection, Handler, Message, Options, Service, Upgraded};
/// # use windlass_server::http::{Accept, Reject, UpgradeRequest};
///
/// struct Shout;
///
/// impl Handler for Shout {
///     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
///
///     fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
///         let _ = match message.as_str() {
///             Some(text) => connection.send(text.to_uppercase()),
///             // Bytes go back as they are, without a copy.
///             None => connection.reply_in_place(message),
///         };
///     }
/// }
///
/// # fn main() -> io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let service = Service::new(Shout, &Options::new(), &mut reactor)?;
/// let (ours, mut peer) = UnixStream::pair()?;
/// // A text frame from a client whose masking key is zero.
/// let received = *b"\x81\x85\0\0\0\0hello";
/// let adopted = service.adopt(ours, received, Upgraded::new(()), &mut reactor);
/// adopted.map_err(io::Error::from)?;
/// for _ in 0..4 {
///     reactor.run_once(Duration::ZERO)?;
/// }
/// let mut frame = [0; 7];
/// peer.read_exact(&mut frame)?;
/// assert_eq!(&frame, b"\x81\x05HELLO");
/// # Ok(())
/// # }
/// ```
pub struct Message<'a>(pub(crate) ReceivedMessage<'a>);

impl Message<'_> {
    /// Returns whether the message is text rather than bytes.
    #[must_use]
    #[inline]
    pub fn is_text(&self) -> bool {
        self.0.is_text()
    }

    /// Returns the payload; valid UTF-8 if the message is text.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the text if the message is text. To pass a message on, use [`to_out`](Self::to_out).
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// Returns the payload of a binary message, to change it.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.0.bytes_mut()
    }

    /// Changes the bytes of a text message, and checks that they are UTF-8 afterwards. A binary
    /// message is changed without a check.
    ///
    /// ```
    /// use windlass_server::{Connection, Message};
    ///
    /// fn shout(connection: &mut Connection<'_>, message: Message<'_>) {
    ///     let message = message.change_text(|bytes| bytes.make_ascii_uppercase());
    ///     let _ = connection.reply_in_place(message.expect("ASCII letters stay ASCII"));
    /// }
    /// ```
    ///
    /// # Errors
    /// The text is not UTF-8 any more. The message is gone, and nothing was sent.
    pub fn change_text(self, change: impl FnOnce(&mut [u8])) -> Result<Self, Utf8Error> {
        self.0.change_text(change).map(Self)
    }

    /// Returns the length of the payload in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Returns whether the payload is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the same message, for sending to others.
    #[must_use]
    #[inline]
    pub fn to_out(&self) -> OutMessage<'_> {
        OutMessage::checked(self.is_text(), self.as_bytes())
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("is_text", &self.is_text())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A message to send: the text of a string, the bytes of a slice or vector, or a [received
/// message](Message::to_out).
///
/// Functions that take a message accept anything convertible into one, borrowed or owned:
///
/// ```
/// use windlass_server::OutMessage;
///
/// assert!(OutMessage::from("text").is_text());
/// assert!(OutMessage::from(format!("{} messages", 2)).is_text());
/// assert!(!OutMessage::from(b"bytes").is_text());
/// assert!(!OutMessage::from(vec![1, 2, 3]).is_text());
/// ```
#[derive(Clone)]
pub struct OutMessage<'a>(OutPayload<'a>);

#[derive(Clone)]
enum OutPayload<'a> {
    Text(&'a str),
    /// Text that was already validated.
    Checked(&'a [u8]),
    Binary(&'a [u8]),
    OwnedText(String),
    OwnedBinary(Vec<u8>),
}

impl<'a> OutMessage<'a> {
    /// Creates a text message.
    #[must_use]
    pub const fn text(text: &'a str) -> Self {
        Self(OutPayload::Text(text))
    }

    /// Creates a message of bytes.
    #[must_use]
    pub const fn binary(bytes: &'a [u8]) -> Self {
        Self(OutPayload::Binary(bytes))
    }

    /// Wraps the payload of a message that was received or encoded; the payload of a text message
    /// is UTF-8.
    #[inline]
    pub(crate) const fn checked(is_text: bool, bytes: &'a [u8]) -> Self {
        Self(if is_text { OutPayload::Checked(bytes) } else { OutPayload::Binary(bytes) })
    }

    /// Returns whether the message is text rather than bytes.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        !matches!(self.0, OutPayload::Binary(_) | OutPayload::OwnedBinary(_))
    }

    /// Returns the payload.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            OutPayload::Text(text) => text.as_bytes(),
            OutPayload::Checked(bytes) | OutPayload::Binary(bytes) => bytes,
            OutPayload::OwnedText(text) => text.as_bytes(),
            OutPayload::OwnedBinary(bytes) => bytes,
        }
    }

    /// Passes the message to an engine.
    pub(crate) fn send_by(
        &self,
        outbox: &mut Outbox<'_>,
    ) -> Result<(), windlass_ws::FrameSendError> {
        match &self.0 {
            OutPayload::Text(text) => outbox.send(windlass_ws::MessageRef::Text(text)),
            OutPayload::OwnedText(text) => outbox.send(windlass_ws::MessageRef::Text(text)),
            OutPayload::Checked(bytes) => outbox.send_checked_text(bytes),
            OutPayload::Binary(bytes) => outbox.send(windlass_ws::MessageRef::Binary(bytes)),
            OutPayload::OwnedBinary(bytes) => outbox.send(windlass_ws::MessageRef::Binary(bytes)),
        }
    }

    const fn opcode(&self) -> Opcode {
        if self.is_text() { Opcode::Text } else { Opcode::Binary }
    }

    /// Length of the message's uncompressed frame in bytes.
    pub(crate) fn frame_len(&self) -> usize {
        self.header().encoded_len() + self.as_bytes().len()
    }

    fn header(&self) -> FrameHeader {
        FrameHeader {
            fin: true,
            compressed: false,
            opcode: self.opcode(),
            key: None,
            len: self.as_bytes().len() as u64,
        }
    }

    /// Appends the uncompressed frame.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; HEADER_LEN_MAX];
        let len = self.header().encode(&mut head);
        out.reserve(len + self.as_bytes().len());
        out.extend_from_slice(&head[..len]);
        out.extend_from_slice(self.as_bytes());
    }

    /// Appends a compressed frame for many receivers. Returns false, and appends nothing, if that
    /// frame is not shorter.
    pub(crate) fn encode_compressed(
        &self,
        codec: &mut Codec,
        shared: &mut CodecPool,
        out: &mut Vec<u8>,
    ) -> bool {
        let start = out.len();
        let done =
            windlass_ws::MessageRef::Binary(self.as_bytes()).encode_compressed(codec, shared, out);
        if done {
            // The opcode is in the lowest four bits (RFC 6455 section 5.2). Marking the frame as
            // text earlier would validate the text again.
            out[start] = (out[start] & 0xf0) | self.opcode() as u8;
        }
        done
    }
}

/// Compares kind and payload; ownership does not matter.
impl PartialEq for OutMessage<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_text() == other.is_text() && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for OutMessage<'_> {}

impl<'a> From<&'a str> for OutMessage<'a> {
    fn from(text: &'a str) -> Self {
        Self::text(text)
    }
}

impl<'a> From<&'a String> for OutMessage<'a> {
    fn from(text: &'a String) -> Self {
        Self::text(text)
    }
}

impl From<String> for OutMessage<'_> {
    fn from(text: String) -> Self {
        Self(OutPayload::OwnedText(text))
    }
}

impl<'a> From<Cow<'a, str>> for OutMessage<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl<'a> From<&'a [u8]> for OutMessage<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::binary(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for OutMessage<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::binary(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for OutMessage<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::binary(bytes)
    }
}

impl From<Vec<u8>> for OutMessage<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(OutPayload::OwnedBinary(bytes))
    }
}

impl<'a> From<&'a Message<'_>> for OutMessage<'a> {
    fn from(message: &'a Message<'_>) -> Self {
        message.to_out()
    }
}

impl fmt::Debug for OutMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutMessage")
            .field("is_text", &self.is_text())
            .field("len", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}
