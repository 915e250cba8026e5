//! One connection: what it does when bytes come, when there is room to send, and at the end.
//!
//! Its life is `Idle`, `Connecting`, `Upgrading` (WebSocket alone), `Open`, `Closing`, `Parted`
//! (WebSocket alone), `Over`. The first [`Fault`] ends it.

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

/// How long an orderly end that nobody owes us is waited for.
const PARTING: Nanos = 1_000_000_000;

/// What the connections of a worker share.
pub(crate) struct Kit {
    pub(crate) clock: Clock,
    pub(crate) talk: Talk,
    pub(crate) scratch: Scratch,
    /// How to speak WebSocket, if that is what is spoken.
    pub(crate) speech: Option<Speech>,
    /// How long to wait for anything that the server owes us.
    pub(crate) timeout: Nanos,
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) session: Session,
    phase: Phase,
    wire: Wire,
    /// The name of its stream, once there is one.
    key: Option<Key>,
    /// When it last came forward: what it waits for, it has waited for since then.
    since: Nanos,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting,
    Upgrading,
    Open,
    /// Said goodbye, and waits for the answer.
    Closing,
    /// Both have said goodbye; the server hangs up first, so that the port is free at once (RFC
    /// 6455 section 7.1.1).
    Parted,
    /// Nothing that comes matters any more.
    Over,
}

/// What is spoken.
enum Wire {
    /// Bytes, and how many of the answer that is due have come.
    Raw(usize),
    Upgrading(Box<Upgrade>),
    WebSocket(Box<Engine>),
}

impl Connection {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, phase: Phase::Idle, wire: Wire::Raw(0), key: None, since: 0 }
    }

    /// The stream's name, while the connection is there.
    pub(crate) fn key(&self) -> Option<Key> {
        self.key.filter(|_| !matches!(self.phase, Phase::Idle | Phase::Over))
    }

    /// Whether it is on its way to be opened.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Upgrading)
    }

    /// It has begun to connect.
    pub(crate) fn connecting(&mut self, key: Key, now: Nanos) {
        (self.key, self.phase, self.since) = (Some(key), Phase::Connecting, now);
    }

    /// It could not be connected, but shall be tried again.
    pub(crate) fn again(&mut self) {
        (self.key, self.phase) = (None, Phase::Idle);
    }

    /// The socket is connected.
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
                // There is room: nothing was sent before.
                let _ = stream.send(&request);
            }
        }
        Ok(())
    }

    fn open(&mut self, kit: &mut Kit) {
        self.phase = Phase::Open;
        kit.talk.tally.opened += 1;
    }

    /// Bytes have come.
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

    /// Sends what is to be sent now, or says goodbye if that was all.
    #[inline]
    pub(crate) fn go_on(&mut self, kit: &mut Kit, stream: &mut Stream<'_>, now: Nanos) {
        if self.phase != Phase::Open {
            return;
        }
        let was_idle = self.session.outstanding() == 0;
        let mut dialogue = Dialogue::new(&mut self.session, &mut kit.talk, now);
        while let Some(message) = dialogue.next() {
            // Room is never wanting: `depth` messages fit.
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

    /// The answer to the upgrade, and maybe frames behind it.
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

    /// Frames, or parts of them.
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
            // If the stream has failed, its end says so.
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

    /// Everything was answered.
    fn goodbye(&mut self, kit: &mut Kit, stream: &mut Stream<'_>, now: Nanos) {
        (self.phase, self.since) = (Phase::Closing, now);
        match &mut self.wire {
            Wire::WebSocket(engine) => {
                if let Ok(frame) = websocket::goodbye(engine, &mut kit.scratch) {
                    let _ = stream.send(frame);
                }
            }
            // What comes before the peer's end was not asked for.
            _ => stream.finish(),
        }
    }

    /// The peer has ended its half.
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

    /// Looks whether something is overdue. `Ok(true)`: the end has been waited for long enough.
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

    /// The stream is no more. What is wrong with that, if something is.
    pub(crate) fn closed(&mut self, reason: CloseReason) -> Option<Fault> {
        let kind = match (self.phase, reason) {
            (Phase::Over, _) => return None,
            (_, CloseReason::Connect(_) | CloseReason::ConnectTimeout) => Kind::Connect,
            _ => Kind::Broken,
        };
        Some(Fault::new(kind, reason))
    }

    /// Ends it: nothing that comes matters any more.
    pub(crate) fn give_up(&mut self) {
        self.phase = Phase::Over;
    }
}
