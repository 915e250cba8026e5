//! A peer that speaks bytes, the oracle that reads them, and both forms of a socket as one.

use std::task::Poll;

use windlass_websocket::{
    CloseCode, CloseError, Config, Message, Outgoing, Reader, RecvError, Role, SendError,
    WebSocket, Writer,
};

use crate::bed::{Manner, Stream, pair, poll_once};

pub(crate) use windlass_testkit::frames::{BINARY, CLOSE, PING, TEXT, masked, plain};

/// A pong.
pub(crate) const PONG: u8 = 0x8a;

/// A frame: its first byte, and its payload without the mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) first: u8,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(first: u8, payload: impl AsRef<[u8]>) -> Self {
        Self { first, payload: payload.as_ref().to_vec() }
    }

    /// The frame that carries a message.
    pub(crate) fn of(message: &Message) -> Self {
        Self::new(if message.is_text() { TEXT } else { BINARY }, message.as_bytes())
    }
}

/// The whole frames in the bytes, and how many bytes of another one follow them.
pub(crate) fn frames(mut bytes: &[u8]) -> (Vec<Frame>, usize) {
    let mut frames = Vec::new();
    while let Some((frame, len)) = first_frame(bytes) {
        frames.push(frame);
        bytes = &bytes[len..];
    }
    (frames, bytes.len())
}

/// The first frame, read as RFC 6455 section 5.2 says, and its length.
fn first_frame(bytes: &[u8]) -> Option<(Frame, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let (mut at, len) = match second & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
        len => (2, usize::from(len)),
    };
    let mut key = [0; 4];
    if second & 0x80 != 0 {
        key.copy_from_slice(bytes.get(at..at + 4)?);
        at += 4;
    }
    let mut payload = bytes.get(at..at + len)?.to_vec();
    payload.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= key[at % 4]);
    Some((Frame { first, payload }, at + len))
}

/// The other end of a socket.
pub(crate) struct Peer {
    pub(crate) stream: Stream,
    /// The role of the socket.
    role: Role,
    /// What the socket has sent.
    pub(crate) bytes: Vec<u8>,
}

/// A socket and its peer.
pub(crate) fn socket_and_peer(
    manner: Manner,
    role: Role,
    config: &Config,
) -> (WebSocket<Stream>, Peer) {
    let (ours, stream) = pair(manner);
    let socket = WebSocket::from_upgraded(ours, &[], role, config);
    (socket, Peer { stream, role, bytes: Vec::new() })
}

impl Peer {
    pub(crate) fn of(stream: Stream, role: Role) -> Self {
        Self { stream, role, bytes: Vec::new() }
    }

    /// Reads everything that the socket has sent.
    pub(crate) fn read(&mut self) {
        let bytes = self.stream.take_received();
        self.bytes.extend(bytes);
    }

    /// A frame as this peer sends it.
    pub(crate) fn frame(&self, first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
        match self.role {
            Role::Server => masked(first, payload.as_ref()),
            Role::Client => plain(first, payload.as_ref()),
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&self, first: u8, payload: impl AsRef<[u8]>) {
        self.stream.give(&self.frame(first, payload));
    }

    /// The frames that the socket has sent, all of them whole.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        self.read();
        let (frames, rest) = frames(&self.bytes);
        assert_eq!(rest, 0, "the last frame is torn");
        frames
    }
}

/// The payload of a Close frame.
pub(crate) fn close_payload(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

/// A whole socket or a writer.
pub(crate) trait Sending {
    async fn send(&mut self, message: Outgoing<'_>) -> Result<(), SendError>;
    async fn feed(&mut self, message: Outgoing<'_>) -> Result<(), SendError>;
    async fn flush(&mut self) -> Result<(), SendError>;
    async fn ping(&mut self, payload: &[u8]) -> Result<(), SendError>;
    async fn send_close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError>;
}

/// A whole socket or a reader.
pub(crate) trait Receiving {
    async fn next(&mut self) -> Result<Option<Message>, RecvError>;
    /// Receives a message and sends it back.
    async fn reply_to_next(&mut self) -> Result<Option<Message>, RecvError>;
}

impl Sending for WebSocket<Stream> {
    async fn send(&mut self, message: Outgoing<'_>) -> Result<(), SendError> {
        Self::send(self, message).await
    }

    async fn feed(&mut self, message: Outgoing<'_>) -> Result<(), SendError> {
        Self::feed(self, message).await
    }

    async fn flush(&mut self) -> Result<(), SendError> {
        Self::flush(self).await
    }

    async fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        Self::ping(self, payload).await
    }

    async fn send_close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        match self.close(code, reason).await {
            Err(CloseError::Send(error)) => Err(error),
            other => {
                other.expect("the peer is good");
                Ok(())
            }
        }
    }
}

impl Sending for Writer<Stream> {
    async fn send(&mut self, message: Outgoing<'_>) -> Result<(), SendError> {
        Self::send(self, message).await
    }

    async fn feed(&mut self, message: Outgoing<'_>) -> Result<(), SendError> {
        Self::feed(self, message).await
    }

    async fn flush(&mut self) -> Result<(), SendError> {
        Self::flush(self).await
    }

    async fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        Self::ping(self, payload).await
    }

    async fn send_close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.close(code, reason).await
    }
}

macro_rules! impl_receiving {
    ($($type:ty),+) => {
        $(
            impl Receiving for $type {
                async fn next(&mut self) -> Result<Option<Message>, RecvError> {
                    let received = self.recv().await?;
                    Ok(received.map(|it| it.to_message().expect("it is unchanged")))
                }

                async fn reply_to_next(&mut self) -> Result<Option<Message>, RecvError> {
                    let Some(received) = self.recv().await? else { return Ok(None) };
                    let message = received.to_message();
                    received.reply().expect("the connection is open");
                    Ok(message)
                }
            }
        )+
    };
}

impl_receiving!(WebSocket<Stream>, Reader<Stream>);

/// Polls `next` with a new future each time, until it is pending twice running.
pub(crate) fn receive_all(receiving: &mut impl Receiving) -> Vec<Message> {
    let (mut messages, mut pending) = (Vec::new(), 0);
    while pending < 2 {
        match poll_once(receiving.next()) {
            Poll::Ready(message) => {
                pending = 0;
                messages.push(message.expect("the peer is good").expect("it is open"));
            }
            Poll::Pending => pending += 1,
        }
    }
    messages
}
