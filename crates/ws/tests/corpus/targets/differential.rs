//! tungstenite and this crate get the same bytes. They yield the same messages and the same
//! verdict.
//!
//! The intended differences are listed at [`agree`].

use std::{
    io::{self, Cursor, Read, Write},
    sync::Arc,
};

use tungstenite::{
    Message, WebSocket,
    error::{CapacityError, Error, ProtocolError},
    protocol::{Role, WebSocketConfig},
};
use windlass_ws::{Config, EngineLimits, Scratch, Violation};

use super::{
    endpoint::{Endpoint, Seen},
    input::{Cuts, Input},
    stream,
};

/// Limits that a fuzzer's stream can reach.
const FRAME_MAX: usize = 20_000;
const MESSAGE_MAX: usize = 30_000;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut cuts = Cuts::new(&mut input);
    let bytes = stream::client_bytes(&mut input);

    let mut limits = EngineLimits::DEFAULT;
    limits.frame_max = FRAME_MAX;
    limits.message_max = MESSAGE_MAX;
    // Tungstenite has no such limits.
    limits.fragments_max = u32::MAX;
    limits.controls_per_second_max = u16::MAX;
    let mut ours = Endpoint::server(&Arc::new(Config::server().with_limits(limits)), &[0]);
    ours.feed(&bytes, &mut cuts, &mut Scratch::new());

    let (theirs, verdict) = tungstenite(&bytes);
    let verdict_of_ours = match ours.seen.last() {
        Some(Seen::Violation(violation)) => Verdict::of(*violation),
        Some(Seen::Close(..)) => Verdict::Closed,
        _ => Verdict::Open,
    };
    if matches!(verdict_of_ours, Verdict::Failed(_)) {
        ours.seen.pop();
    }
    agree(&ours.seen, verdict_of_ours, &theirs, verdict);
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It has not ended and waits for more bytes.
    Open,
    /// By the peer's Close frame.
    Closed,
    Failed(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Protocol,
    Utf8,
    TooBig,
    /// A length in more bytes than necessary, or too long for a control frame.
    Length,
    /// A Close frame with a code that must not be sent.
    Code,
}

impl Verdict {
    fn of(violation: Violation) -> Self {
        Self::Failed(match violation {
            Violation::InvalidUtf8 => Fault::Utf8,
            Violation::FrameTooBig | Violation::MessageTooBig => Fault::TooBig,
            Violation::BadLength | Violation::LongControl => Fault::Length,
            Violation::BadCloseCode => Fault::Code,
            _ => Fault::Protocol,
        })
    }
}

/// Panics unless both agree. These differences are intended:
///
/// 1. tungstenite checks a frame when it is complete; this crate checks each byte. This crate may
///    report a fault while tungstenite still waits, and may report another fault of the same frame.
/// 2. tungstenite accepts lengths in more bytes than necessary, also in control frames. RFC 6455
///    section 5.2 forbids them. Nothing can be compared after one of those.
/// 3. For a close code that must not be sent, tungstenite yields a Close frame with code 1002, and
///    this crate a violation with code 1002. If the reason is not UTF-8 too, tungstenite reports
///    that first.
/// 4. tungstenite does not know code 1014, which was registered later. It counts as one that must
///    not be sent.
fn agree(ours: &[Seen], our_verdict: Verdict, theirs: &[Seen], their_verdict: Verdict) {
    let told = || {
        format!("ours: {our_verdict:?} after {ours:?}; theirs: {their_verdict:?} after {theirs:?}")
    };
    // 2.
    if our_verdict == Verdict::Failed(Fault::Length) {
        assert!(theirs.starts_with(ours), "{}", told());
        return;
    }
    // 3.
    if our_verdict == Verdict::Failed(Fault::Code) && theirs.len() >= ours.len() {
        let closes =
            matches!(theirs[ours.len()..], [Seen::Close(..)]) && their_verdict == Verdict::Closed;
        let finds_the_reason =
            theirs.len() == ours.len() && their_verdict == Verdict::Failed(Fault::Utf8);
        assert!(theirs.starts_with(ours) && (closes || finds_the_reason), "{}", told());
        return;
    }
    // 4.
    if let (Some((Seen::Close(Some(1014), _), ours)), Some((Seen::Close(Some(1002), _), theirs))) =
        (ours.split_last(), theirs.split_last())
    {
        assert_eq!(ours, theirs, "{}", told());
        return;
    }
    assert_eq!(ours, theirs, "{}", told());
    match (our_verdict, their_verdict) {
        // 1.
        (Verdict::Failed(_), Verdict::Open | Verdict::Failed(_)) => {}
        (ours, theirs) => assert_eq!(ours, theirs, "{}", told()),
    }
}

/// The messages and the verdict of tungstenite, as a server.
fn tungstenite(bytes: &[u8]) -> (Vec<Seen>, Verdict) {
    let config = WebSocketConfig::default()
        .max_frame_size(Some(FRAME_MAX))
        .max_message_size(Some(MESSAGE_MAX));
    let mut socket =
        WebSocket::from_raw_socket(Received(Cursor::new(bytes)), Role::Server, Some(config));
    let mut seen = Vec::new();
    loop {
        let message = match socket.read() {
            Ok(message) => message,
            Err(error) => return (seen, verdict_of(&error)),
        };
        seen.push(match message {
            Message::Text(text) => Seen::Text(text.as_str().to_owned()),
            Message::Binary(bytes) => Seen::Binary(bytes.to_vec()),
            Message::Ping(bytes) => Seen::Ping(bytes.to_vec()),
            Message::Pong(bytes) => Seen::Pong(bytes.to_vec()),
            Message::Close(None) => Seen::Close(None, String::new()),
            Message::Close(Some(close)) => {
                Seen::Close(Some(close.code.into()), close.reason.as_str().to_owned())
            }
            Message::Frame(frame) => panic!("it never reads one: {frame}"),
        });
    }
}

fn verdict_of(error: &Error) -> Verdict {
    match error {
        Error::ConnectionClosed => Verdict::Closed,
        // The bytes end, within a frame or between two.
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Verdict::Open,
        Error::Protocol(_) => Verdict::Failed(Fault::Protocol),
        Error::Utf8(_) => Verdict::Failed(Fault::Utf8),
        Error::Capacity(CapacityError::MessageTooLong { .. }) => Verdict::Failed(Fault::TooBig),
        other => panic!("nothing else can happen in memory: {other:?}"),
    }
}

/// A socket that yields these bytes and discards what is written.
#[derive(Debug)]
struct Received<'a>(Cursor<&'a [u8]>);

impl Read for Received<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Received<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
