//! One connection: its reaction to received bytes, to room for output, and to the end.
//!
//! Its phases are `Idle`, `Connecting`, `Upgrading` (WebSocket only), `Open`, `Closing`, `Parted`
//! (WebSocket only), `Over`. The first [`Fault`] ends it.

use windlass::{
    Key,
    stream::{CloseReason, Input, Stream},
};
use windlass_ws::{Engine, Scratch};

use super::{
    control::Clock,
    course::{Nanos, Session},
    dialogue::{Dialogue, Talk},
    fault::{self, Fault, Kind},
    websocket::{self, Speech, Upgrade},
};

/// Maximum time to wait for an orderly end that the server is not obliged to make.
const PARTING: Nanos = 1_000_000_000;

/// State that the connections of a worker share.
pub(crate) struct Kit {
    pub(crate) clock: Clock,
    pub(crate) talk: Talk,
    pub(crate) scratch: Scratch,
    /// WebSocket state, if the protocol is WebSocket.
    pub(crate) speech: Option<Speech>,
    /// Maximum time to wait for anything that the server must do.
    pub(crate) timeout: Nanos,
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) session: Session,
    phase: Phase,
    wire: Wire,
    /// The key of its stream, while there is one.
    key: Option<Key>,
    /// Time of the last progress, from which timeouts count.
    since: Nanos,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting,
    Upgrading,
    Open,
    /// The closing has begun on this side, and the answer is awaited.
    Closing,
    /// Both sides have sent a Close frame. The server closes TCP first, so that the client's port
    /// is free immediately (RFC 6455 section 7.1.1).
    Parted,
    /// All further input is ignored.
    Over,
}

/// The protocol state.
enum Wire {
    /// A byte stream; the number of bytes of the expected answer received so far.
    Raw(usize),
    Upgrading(Box<Upgrade>),
    WebSocket(Box<Engine>),
}

impl Connection {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, phase: Phase::Idle, wire: Wire::Raw(0), key: None, since: 0 }
    }

    /// Returns the key of its stream, while there is one.
    pub(crate) fn key(&self) -> Option<Key> {
        self.key.filter(|_| !matches!(self.phase, Phase::Idle | Phase::Over))
    }

    /// Returns whether it is being opened.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Upgrading)
    }

    /// Notes that it has begun to connect.
    pub(crate) fn connecting(&mut self, key: Key, now: Nanos) {
        (self.key, self.phase, self.since) = (Some(key), Phase::Connecting, now);
    }

    /// Resets a connection that failed to connect, so that it can be tried again.
    pub(crate) fn again(&mut self) {
        (self.key, self.phase) = (None, Phase::Idle);
    }

    /// Handles a connected socket.
    pub(crate) fn connected(
        &mut self,
        kit: &mut Kit,
        stream: &mut Stream<'_>,
    ) -> Result<(), Fault> {
        self.since = kit.clock.now();
        match &kit.speech {
            None => self.open(kit),
            Some(speech) => {
                let (upgrade, request) = Upgrade::begin(speech);
                self.phase = Phase::Upgrading;
                self.wire = Wire::Upgrading(Box::new(upgrade));
                // There is room, because nothing was sent before.
                let _ = stream.send(&request);
            }
        }
        Ok(())
    }

    fn open(&mut self, kit: &mut Kit) {
        self.phase = Phase::Open;
        kit.talk.tally.opened += 1;
    }

    /// Handles received bytes.
    #[inline]
    pub(crate) fn data(
        &mut self,
        kit: &mut Kit,
        stream: &mut Stream<'_>,
        mut input: Input<'_>,
    ) -> Result<(), Fault> {
        let now = kit.clock.now();
        match &mut self.wire {
            Wire::WebSocket(_) => self.frames(kit, stream, &mut input, now)?,
            Wire::Raw(offset) => {
                let before = self.session.answered();
                Dialogue::new(&mut self.session, &mut kit.talk, now).bytes(&input, offset)?;
                if self.session.answered() > before {
                    self.since = now;
                }
            }
            Wire::Upgrading(_) => self.answer(kit, stream, &input, now)?,
        }
        self.go_on(kit, stream, now);
        Ok(())
    }

    /// Sends the messages that are due, or begins to close if there are no more.
    #[inline]
    pub(crate) fn go_on(&mut self, kit: &mut Kit, stream: &mut Stream<'_>, now: Nanos) {
        if self.phase != Phase::Open {
            return;
        }
        let was_idle = self.session.outstanding() == 0;
        let mut dialogue = Dialogue::new(&mut self.session, &mut kit.talk, now);
        while let Some(message) = dialogue.next() {
            // There is always room: `depth` messages fit.
            let _ = match &mut self.wire {
                Wire::WebSocket(engine) => {
                    engine.send(message, &mut kit.scratch).map(|frame| stream.send(frame))
                }
                _ => Ok(stream.send(message.as_bytes())),
            };
        }
        if self.session.outstanding() == 0 {
            if self.session.is_over(&kit.talk.course, now) {
                self.goodbye(kit, stream, now);
            }
        } else if was_idle {
            self.since = now;
        }
    }

    /// Handles the response to the upgrade, and any frames after it.
    fn answer(
        &mut self,
        kit: &mut Kit,
        stream: &mut Stream<'_>,
        input: &[u8],
        now: Nanos,
    ) -> Result<(), Fault> {
        let (Wire::Upgrading(upgrade), Some(speech)) = (&mut self.wire, &kit.speech) else {
            return Ok(());
        };
        let Some((engine, mut frames)) = upgrade.read(input, speech)? else { return Ok(()) };
        self.wire = Wire::WebSocket(Box::new(engine));
        self.since = now;
        self.open(kit);
        if frames.is_empty() { Ok(()) } else { self.frames(kit, stream, &mut frames, now) }
    }

    /// Handles frames, or parts of them.
    fn frames(
        &mut self,
        kit: &mut Kit,
        stream: &mut Stream<'_>,
        input: &mut [u8],
        now: Nanos,
    ) -> Result<(), Fault> {
        let Wire::WebSocket(engine) = &mut self.wire else { return Ok(()) };
        let (answered, was_idle) = (self.session.answered(), self.session.outstanding() == 0);
        let mut dialogue = Dialogue::new(&mut self.session, &mut kit.talk, now);
        let heard = websocket::hear(engine, &mut kit.scratch, input, &mut dialogue)?;
        for piece in kit.scratch.output(&heard.outcome, input) {
            // A failed stream reports its end separately.
            let _ = stream.send(piece);
        }
        if self.session.answered() > answered || (was_idle && self.session.outstanding() > 0) {
            self.since = now;
        }
        match (heard.goodbye, self.phase) {
            (Some(goodbye), Phase::Open) => Err(Fault::new(Kind::ClosedEarly, goodbye)),
            (Some(_), Phase::Closing) => {
                (self.phase, self.since) = (Phase::Parted, now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Begins to close, after everything was answered.
    fn goodbye(&mut self, kit: &mut Kit, stream: &mut Stream<'_>, now: Nanos) {
        (self.phase, self.since) = (Phase::Closing, now);
        match &mut self.wire {
            Wire::WebSocket(engine) => {
                if let Ok(frame) = websocket::goodbye(engine, &mut kit.scratch) {
                    let _ = stream.send(frame);
                }
            }
            // Input before the peer's end of stream would be surplus.
            _ => stream.finish(),
        }
    }

    /// Handles the peer's end of stream.
    pub(crate) fn ended(&mut self, stream: &mut Stream<'_>) -> Result<(), Fault> {
        match (self.phase, &self.wire) {
            (Phase::Upgrading, _) => Err(Fault::new(
                Kind::Handshake,
                "the server has hung up without an answer to the upgrade",
            )),
            (Phase::Open, _) => {
                let unanswered = fault::counted(self.session.outstanding() as usize, "message");
                let text = format!("the server has hung up with {unanswered} unanswered");
                Err(Fault::new(Kind::ClosedEarly, text))
            }
            (Phase::Closing, Wire::WebSocket(_)) => {
                Err(Fault::new(Kind::NotClosed, "the server has hung up without a Close frame"))
            }
            _ => {
                self.phase = Phase::Over;
                stream.close();
                Ok(())
            }
        }
    }

    /// Checks for timeouts. `Ok(true)`: the end has been awaited for long enough.
    pub(crate) fn look(&mut self, kit: &Kit, now: Nanos) -> Result<bool, Fault> {
        let waited = now.saturating_sub(self.since);
        let seconds = kit.timeout as f64 / 1e9;
        match (self.phase, &self.wire) {
            (Phase::Upgrading, _) if waited > kit.timeout => Err(Fault::new(
                Kind::Handshake,
                format_args!("no answer to the upgrade within {seconds} s"),
            )),
            (Phase::Open, _) if waited > kit.timeout && self.session.outstanding() > 0 => {
                let due = self.session.answered() + 1;
                Err(Fault::new(
                    Kind::Lost,
                    format_args!("no answer to message {due} within {seconds} s"),
                ))
            }
            (Phase::Closing, Wire::WebSocket(_)) if waited > kit.timeout => Err(Fault::new(
                Kind::NotClosed,
                format_args!("no answer to the Close frame within {seconds} s"),
            )),
            (Phase::Closing, Wire::Raw(_)) | (Phase::Parted, _) => Ok(waited > PARTING),
            _ => Ok(false),
        }
    }

    /// Handles the end of the stream. Returns the fault, if the end is one.
    pub(crate) fn closed(&mut self, reason: CloseReason) -> Option<Fault> {
        let kind = match (self.phase, reason) {
            (Phase::Over, _) => return None,
            (_, CloseReason::Connect(_) | CloseReason::ConnectTimeout) => Kind::Connect,
            _ => Kind::Broken,
        };
        Some(Fault::new(kind, reason))
    }

    /// Ends it: all further input is ignored.
    pub(crate) fn give_up(&mut self) {
        self.phase = Phase::Over;
    }
}
