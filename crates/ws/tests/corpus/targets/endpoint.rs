//! Runs an engine: feeds it bytes in pieces, and records its events and its output.

use std::{cell::Cell, sync::Arc};

use windlass_ws::{
    CloseCode, Config, End, Engine, EngineEvent, FrameSendError, MessageRef, Scratch, Violation,
};

use super::input::Cuts;

/// An event, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    Violation(Violation),
}

/// How a handler reacts to a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaction {
    Ignore,
    /// Sends it back, in place if possible.
    Reply,
    /// Sends something else while the message is borrowed.
    Other,
    /// Sends something else and then a copy of the message.
    Both,
    Ping,
    Close,
}

impl Reaction {
    pub(crate) fn new(byte: u8) -> Self {
        match byte % 16 {
            0 => Self::Ignore,
            1..=9 => Self::Reply,
            10 | 11 => Self::Other,
            12 | 13 => Self::Both,
            14 => Self::Ping,
            _ => Self::Close,
        }
    }
}

/// The text that [`Reaction::Other`] sends.
pub(crate) const OTHER: &str = "something else";

/// An engine with its recorded events and output.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) engine: Engine,
    pub(crate) seen: Vec<Seen>,
    /// Output that was not taken yet.
    pub(crate) sent: Vec<u8>,
    pub(crate) end: Option<End>,
    /// One reaction per message; they repeat.
    reactions: Vec<u8>,
    messages: usize,
}

impl Endpoint {
    pub(crate) fn new(engine: Engine, reactions: &[u8]) -> Self {
        let reactions = if reactions.is_empty() { vec![1] } else { reactions.to_vec() };
        Self { engine, seen: Vec::new(), sent: Vec::new(), end: None, reactions, messages: 0 }
    }

    pub(crate) fn server(config: &Arc<Config>, reactions: &[u8]) -> Self {
        Self::new(Engine::new(config), reactions)
    }

    /// Feeds bytes in pieces, until the bytes or the connection end.
    pub(crate) fn feed(&mut self, bytes: &[u8], cuts: &mut Cuts, scratch: &mut Scratch) {
        let mut rest = bytes;
        while !rest.is_empty() && self.end.is_none() {
            let (piece, after) = rest.split_at(cuts.next(rest.len()));
            self.pass(piece, scratch);
            rest = after;
        }
    }

    fn pass(&mut self, piece: &[u8], scratch: &mut Scratch) {
        let mut input = piece.to_vec();
        let mut pass = self.engine.process(&mut input, scratch);
        while let Some(event) = pass.next() {
            let seen = match event {
                EngineEvent::Text(text) => {
                    let seen = Seen::Text(text.as_str().to_owned());
                    let reaction = next_reaction(&self.reactions, &mut self.messages);
                    ignore_closed(match reaction {
                        Reaction::Ignore => Ok(()),
                        Reaction::Reply => text.reply(),
                        _ => {
                            let (text, mut outbox) = text.split();
                            let message = MessageRef::Text(text);
                            react(reaction, message, |action| match action {
                                Action::Send(message) => outbox.send(message),
                                Action::Ping(payload) => outbox.ping(payload),
                                Action::Close => outbox.close(CloseCode::NORMAL, "enough"),
                            })
                        }
                    });
                    seen
                }
                EngineEvent::Binary(binary) => {
                    let seen = Seen::Binary(binary.to_vec());
                    let reaction = next_reaction(&self.reactions, &mut self.messages);
                    ignore_closed(match reaction {
                        Reaction::Ignore => Ok(()),
                        Reaction::Reply => binary.reply(),
                        _ => {
                            let (bytes, mut outbox) = binary.split();
                            let message = MessageRef::Binary(bytes);
                            react(reaction, message, |action| match action {
                                Action::Send(message) => outbox.send(message),
                                Action::Ping(payload) => outbox.ping(payload),
                                Action::Close => outbox.close(CloseCode::NORMAL, "enough"),
                            })
                        }
                    });
                    seen
                }
                EngineEvent::Ping(payload) => Seen::Ping(payload.to_vec()),
                EngineEvent::Pong(payload) => Seen::Pong(payload.to_vec()),
                EngineEvent::Close(close) => {
                    Seen::Close(close.code.map(CloseCode::get), close.reason.to_owned())
                }
                EngineEvent::Violation(violation) => Seen::Violation(violation),
                other => panic!("unknown event: {other:?}"),
            };
            self.seen.push(seen);
        }
        let outcome = pass.finish();
        let gathered: Vec<u8> = scratch.output(&outcome, &input).flatten().copied().collect();
        assert_eq!(gathered.len(), outcome.len, "the length of the output");
        if let Some(range) = outcome.in_place {
            assert_eq!(input[range], gathered, "the output in place and gathered");
        }
        if outcome.end.is_none() {
            assert_eq!(outcome.consumed, piece.len(), "the pass went to the end of its input");
        }
        assert_eq!(outcome.end, self.engine.end());
        self.sent.extend_from_slice(&gathered);
        self.end = outcome.end;
    }
}

enum Action<'a> {
    Send(MessageRef<'a>),
    Ping(&'a [u8]),
    Close,
}

fn react(
    reaction: Reaction,
    message: MessageRef<'_>,
    mut act: impl FnMut(Action<'_>) -> Result<(), FrameSendError>,
) -> Result<(), FrameSendError> {
    match reaction {
        Reaction::Other => act(Action::Send(MessageRef::Text(OTHER))),
        Reaction::Both => {
            act(Action::Send(MessageRef::Text(OTHER))).and_then(|()| act(Action::Send(message)))
        }
        Reaction::Ping => act(Action::Ping(b"are you there")),
        Reaction::Close => act(Action::Close),
        Reaction::Ignore | Reaction::Reply => Ok(()),
    }
}

fn next_reaction(reactions: &[u8], messages: &mut usize) -> Reaction {
    let reaction = Reaction::new(reactions[*messages % reactions.len()]);
    *messages += 1;
    reaction
}

/// A handler may have closed the connection before. Any other error is a fault.
fn ignore_closed(outcome: Result<(), FrameSendError>) {
    if let Err(error) = outcome {
        assert_eq!(error, FrameSendError::Closed);
    }
}

/// Masking keys for clients: all different, and the same in each run.
pub(crate) fn entropy(bytes: &mut [u8]) {
    thread_local!(static STATE: Cell<u64> = const { Cell::new(1) });
    for byte in bytes {
        let state = STATE
            .get()
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        STATE.set(state);
        *byte = (state >> 56) as u8;
    }
}
