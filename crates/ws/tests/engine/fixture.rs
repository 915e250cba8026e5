//! Frames written byte by byte, and a handler that records its events.

use std::sync::Arc;

pub(crate) use windlass_testkit::frames::{frame, masked, plain};
use windlass_ws::{
    Close, CloseCode, Config, End, Engine, EngineEvent, FrameSendError, MessageRef, Scratch,
    Violation, mask,
};

/// A copy of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    Violation(Violation),
}

pub(crate) fn text(text: &str) -> Seen {
    Seen::Text(text.to_owned())
}

/// The payload of a Close frame.
pub(crate) fn close_payload(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

pub(crate) fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 151 + at / 251 * 7 + 13) as u8).collect()
}

/// How the handler reacts to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    /// Sends them back.
    Echo,
    /// Only reads them.
    Silent,
    /// By turns: sends them back, sends something else, only reads, pings.
    Mixed,
}

/// One end of a connection, with its recorded events and output.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) engine: Engine,
    pub(crate) scratch: Scratch,
    pub(crate) handler: Handler,
    pub(crate) seen: Vec<Seen>,
    pub(crate) output: Vec<u8>,
    pub(crate) end: Option<End>,
    turns: usize,
}

impl Session {
    pub(crate) fn new(config: Config, handler: Handler) -> Self {
        Self::with(Engine::new(&Arc::new(config)), handler)
    }

    pub(crate) fn with(engine: Engine, handler: Handler) -> Self {
        let (seen, output, mut scratch) = (Vec::new(), Vec::new(), Scratch::new());
        // Enables the limit of control frames.
        scratch.set_second(0);
        Self { engine, scratch, handler, seen, output, end: None, turns: 0 }
    }

    pub(crate) fn server(handler: Handler) -> Self {
        Self::new(Config::server(), handler)
    }

    pub(crate) fn client(handler: Handler) -> Self {
        Self::new(Config::client(entropy), handler)
    }

    /// Runs one pass over received bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut input = bytes.to_vec();
        let copied = self.engine.whole_message(bytes).map(|it| (it.is_text(), it.to_vec()));
        let seen_before = self.seen.len();
        let mut pass = self.engine.process(&mut input, &mut self.scratch);
        while let Some(event) = pass.next() {
            self.turns += 1;
            let (seen, result) = handle(event, self.handler, self.turns);
            self.seen.push(seen);
            assert!(matches!(result, Ok(()) | Err(FrameSendError::Closed)), "{result:?}");
        }
        let outcome = pass.finish();
        match (copied, self.seen.get(seen_before)) {
            (None, _) => {}
            (Some((true, Ok(copy))), Some(Seen::Text(text))) => assert_eq!(copy, text.as_bytes()),
            (Some((false, Ok(copy))), Some(Seen::Binary(bytes))) => assert_eq!(copy, *bytes),
            (Some((true, Err(copied))), Some(Seen::Violation(seen))) => assert_eq!(copied, *seen),
            different => panic!("a copy and a pass do not agree: {different:?}"),
        }
        assert_eq!(
            outcome.consumed,
            bytes.len(),
            "a pass that came to its end has looked at everything"
        );
        let pieces: Vec<&[u8]> = self.scratch.output(&outcome, &input).collect();
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        let gathered = pieces.concat();
        assert_eq!(gathered.len(), outcome.len);
        if let Some(range) = outcome.in_place.clone() {
            assert_eq!(input[range], gathered);
        }
        self.output.extend(gathered);
        assert!(self.end.is_none() || self.end == outcome.end, "an end stays");
        self.end = outcome.end;
        assert_eq!(self.engine.end(), outcome.end);
    }

    /// Runs a pass over each piece.
    pub(crate) fn feed_all<'a>(mut self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        for piece in pieces {
            self.feed(piece);
        }
        self
    }

    /// The parts of the result that are compared.
    pub(crate) fn result(&self) -> (&[Seen], &[u8], Option<End>) {
        (&self.seen, &self.output, self.end)
    }
}

/// A constant, so that the output depends only on what is sent.
pub(crate) fn entropy(bytes: &mut [u8]) {
    bytes.fill(0x5c);
}

pub(crate) fn handle(
    event: EngineEvent<'_>,
    handler: Handler,
    turn: usize,
) -> (Seen, Result<(), FrameSendError>) {
    let other = handler == Handler::Mixed && turn % 4 != 0;
    match event {
        EngineEvent::Text(message) => {
            let seen = Seen::Text(message.to_string());
            assert_eq!(message.as_bytes(), message.as_str().as_bytes());
            let result = match handler {
                Handler::Silent => Ok(()),
                _ if !other => message.reply(),
                _ => {
                    let (text, mut outbox) = message.split();
                    match turn % 4 {
                        1 => outbox.send(MessageRef::Binary(text.as_bytes())),
                        2 => outbox.ping(&text.as_bytes()[..text.len().min(9)]),
                        _ => Ok(()),
                    }
                }
            };
            (seen, result)
        }
        EngineEvent::Binary(mut message) => {
            let seen = Seen::Binary(message.to_vec());
            let result = match handler {
                Handler::Silent => Ok(()),
                _ if !other => {
                    // A handler may change the bytes before it sends them back.
                    if let (Handler::Mixed, Some(first)) = (handler, message.first_mut()) {
                        *first = first.wrapping_add(1);
                    }
                    message.reply()
                }
                _ => {
                    let (bytes, mut outbox) = message.split();
                    match turn % 4 {
                        1 => outbox
                            .send(MessageRef::Text("something else"))
                            .and_then(|()| outbox.send(MessageRef::Binary(bytes))),
                        2 => outbox.pong(b"unasked"),
                        _ => Ok(()),
                    }
                }
            };
            (seen, result)
        }
        EngineEvent::Ping(payload) => (Seen::Ping(payload.to_vec()), Ok(())),
        EngineEvent::Pong(payload) => (Seen::Pong(payload.to_vec()), Ok(())),
        EngineEvent::Close(Close { code, reason }) => {
            (Seen::Close(code.map(CloseCode::get), reason.to_owned()), Ok(()))
        }
        EngineEvent::Violation(violation) => (Seen::Violation(violation), Ok(())),
        _ => panic!("an event that the tests do not know"),
    }
}

/// The frames that an engine sent: first byte and unmasked payload.
pub(crate) fn unmasked(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (header, len) = windlass_ws::FrameHeader::parse(bytes).unwrap().expect("whole frames");
        let mut payload = bytes[len..len + header.len as usize].to_vec();
        if let Some(key) = header.key {
            mask(&mut payload, key);
        }
        frames.push((bytes[0], payload));
        bytes = &bytes[len + header.len as usize..];
    }
    frames
}
