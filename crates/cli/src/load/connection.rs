//! One connection: its reaction to received bytes, to room for output, and to the end.
//!
//! Its phases are `Idle`, `Connecting`, `Upgrading` (WebSocket only), `Open`, `Closing`,
//! `AwaitingTcpClose` (WebSocket only), `Over`. The first [`Fault`] ends it.

use windlass::{
    Key,
    stream::{DisconnectReason, Input, Stream, TlsFailure},
};
use windlass_ws::{Engine, Scratch};

use super::{
    exchange::{Exchange, ExchangeState},
    fault::{self, Fault, FaultKind},
    http::{HttpSetup, Responses},
    run_state::RunClock,
    schedule::{MessageSequence, Nanos},
    tls::LoadTls,
    websocket::{self, ClientHandshake, WebSocketSetup},
};

/// Maximum time to wait for the server to close TCP, which it should do first but need not.
const TCP_CLOSE_MAX: Nanos = 1_000_000_000;

/// State that the connections of a worker share.
pub(crate) struct WorkerContext {
    pub(crate) clock: RunClock,
    pub(crate) exchange: ExchangeState,
    pub(crate) scratch: Scratch,
    /// WebSocket state, if the protocol is WebSocket.
    pub(crate) websocket: Option<WebSocketSetup>,
    /// HTTP state, if the protocol is HTTP.
    pub(crate) http: Option<HttpSetup>,
    /// Maximum time to wait for anything that the server must do.
    pub(crate) timeout: Nanos,
}

/// One connection.
pub(crate) struct LoadConnection {
    pub(crate) sequence: MessageSequence,
    phase: ConnPhase,
    protocol: ProtocolState,
    /// The key of its stream, while there is one.
    key: Option<Key>,
    /// Time of the last progress, from which timeouts count.
    since: Nanos,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnPhase {
    Idle,
    Connecting,
    Upgrading,
    Open,
    /// The closing has begun on this side, and the answer is awaited.
    Closing,
    /// Both sides have sent a Close frame. The server closes TCP first, so that the client's port
    /// is free immediately (RFC 6455 section 7.1.1).
    AwaitingTcpClose,
    /// All further input is ignored.
    Over,
}

/// The protocol state.
enum ProtocolState {
    /// A byte stream; the number of bytes of the expected answer received so far.
    Raw(usize),
    Upgrading(Box<ClientHandshake>),
    WebSocket(Box<Engine>),
    Http(Box<Responses>),
}

impl LoadConnection {
    pub(crate) fn new(sequence: MessageSequence) -> Self {
        Self {
            sequence,
            phase: ConnPhase::Idle,
            protocol: ProtocolState::Raw(0),
            key: None,
            since: 0,
        }
    }

    /// Returns the key of its stream, while there is one.
    pub(crate) fn key(&self) -> Option<Key> {
        self.key.filter(|_| !matches!(self.phase, ConnPhase::Idle | ConnPhase::Over))
    }

    /// Returns whether it is being opened.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, ConnPhase::Connecting | ConnPhase::Upgrading)
    }

    /// Notes that it has begun to connect.
    pub(crate) fn connecting(&mut self, key: Key, now: Nanos) {
        (self.key, self.phase, self.since) = (Some(key), ConnPhase::Connecting, now);
    }

    /// Resets a connection that failed to connect, so that it can be tried again.
    pub(crate) fn reset(&mut self) {
        (self.key, self.phase) = (None, ConnPhase::Idle);
    }

    /// Handles a connected socket.
    pub(crate) fn connected(
        &mut self,
        context: &mut WorkerContext,
        stream: &mut Stream<'_>,
    ) -> Result<(), Fault> {
        self.since = context.clock.now();
        match &context.websocket {
            None => {
                if context.http.is_some() {
                    self.protocol = ProtocolState::Http(Box::default());
                }
                self.open(context);
            }
            Some(setup) => {
                let (upgrade, request) = ClientHandshake::begin(setup);
                self.phase = ConnPhase::Upgrading;
                self.protocol = ProtocolState::Upgrading(Box::new(upgrade));
                // There is room, because nothing was sent before.
                let _ = stream.send(&request);
            }
        }
        Ok(())
    }

    fn open(&mut self, context: &mut WorkerContext) {
        self.phase = ConnPhase::Open;
        context.exchange.results.opened += 1;
    }

    /// Handles received bytes.
    #[inline]
    pub(crate) fn data(
        &mut self,
        context: &mut WorkerContext,
        stream: &mut Stream<'_>,
        mut input: Input<'_>,
    ) -> Result<(), Fault> {
        let now = context.clock.now();
        match &mut self.protocol {
            ProtocolState::WebSocket(_) => self.frames(context, stream, &mut input, now)?,
            ProtocolState::Raw(offset) => {
                let before = self.sequence.answered();
                Exchange::new(&mut self.sequence, &mut context.exchange, now)
                    .bytes(&input, offset)?;
                if self.sequence.answered() > before {
                    self.since = now;
                }
            }
            ProtocolState::Upgrading(_) => self.answer(context, stream, &input, now)?,
            ProtocolState::Http(responses) => {
                let mut exchange = Exchange::new(&mut self.sequence, &mut context.exchange, now);
                if let Some(setup) = &context.http {
                    responses.read(&input, setup, &mut exchange)?;
                }
                // Bytes of a long body are progress, too.
                self.since = now;
            }
        }
        self.send_due(context, stream, now);
        Ok(())
    }

    /// Sends the messages that are due, or begins to close if there are no more.
    #[inline]
    pub(crate) fn send_due(
        &mut self,
        context: &mut WorkerContext,
        stream: &mut Stream<'_>,
        now: Nanos,
    ) {
        if self.phase != ConnPhase::Open {
            return;
        }
        let was_idle = self.sequence.outstanding() == 0;
        let mut exchange = Exchange::new(&mut self.sequence, &mut context.exchange, now);
        if let Some(setup) = &context.http {
            while exchange.next_is_due() {
                // There is always room: `depth` requests fit.
                let _ = stream.send(&setup.request);
            }
        }
        while let Some(message) = exchange.next() {
            // There is always room: `depth` messages fit.
            let _ = match &mut self.protocol {
                ProtocolState::WebSocket(engine) => {
                    engine.send(message, &mut context.scratch).map(|frame| stream.send(frame))
                }
                _ => Ok(stream.send(message.as_bytes())),
            };
        }
        if self.sequence.outstanding() == 0 {
            if self.sequence.is_over(&context.exchange.schedule, now) {
                self.begin_close(context, stream, now);
            }
        } else if was_idle {
            self.since = now;
        }
    }

    /// Handles the response to the upgrade, and any frames after it.
    fn answer(
        &mut self,
        context: &mut WorkerContext,
        stream: &mut Stream<'_>,
        input: &[u8],
        now: Nanos,
    ) -> Result<(), Fault> {
        let (ProtocolState::Upgrading(upgrade), Some(setup)) =
            (&mut self.protocol, &context.websocket)
        else {
            return Ok(());
        };
        let Some((engine, mut frames)) = upgrade.read(input, setup)? else { return Ok(()) };
        self.protocol = ProtocolState::WebSocket(Box::new(engine));
        self.since = now;
        self.open(context);
        if frames.is_empty() { Ok(()) } else { self.frames(context, stream, &mut frames, now) }
    }

    /// Handles frames, or parts of them.
    fn frames(
        &mut self,
        context: &mut WorkerContext,
        stream: &mut Stream<'_>,
        input: &mut [u8],
        now: Nanos,
    ) -> Result<(), Fault> {
        let ProtocolState::WebSocket(engine) = &mut self.protocol else { return Ok(()) };
        let (answered, was_idle) = (self.sequence.answered(), self.sequence.outstanding() == 0);
        let mut exchange = Exchange::new(&mut self.sequence, &mut context.exchange, now);
        let processed = websocket::process(engine, &mut context.scratch, input, &mut exchange)?;
        for piece in context.scratch.output(&processed.outcome, input) {
            // A failed stream reports its end separately.
            let _ = stream.send(piece);
        }
        if self.sequence.answered() > answered || (was_idle && self.sequence.outstanding() > 0) {
            self.since = now;
        }
        match (processed.close, self.phase) {
            (Some(close), ConnPhase::Open) => Err(Fault::new(FaultKind::ClosedEarly, close)),
            (Some(_), ConnPhase::Closing) => {
                (self.phase, self.since) = (ConnPhase::AwaitingTcpClose, now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Begins to close, after everything was answered.
    fn begin_close(&mut self, context: &mut WorkerContext, stream: &mut Stream<'_>, now: Nanos) {
        (self.phase, self.since) = (ConnPhase::Closing, now);
        match &mut self.protocol {
            ProtocolState::WebSocket(engine) => {
                if let Ok(frame) = websocket::close_frame(engine, &mut context.scratch) {
                    let _ = stream.send(frame);
                }
            }
            // Input before the peer's end of stream would be surplus.
            _ => stream.finish(),
        }
    }

    /// Handles the peer's end of stream.
    pub(crate) fn ended(&mut self, stream: &mut Stream<'_>) -> Result<(), Fault> {
        match (self.phase, &self.protocol) {
            (ConnPhase::Upgrading, _) => Err(Fault::new(
                FaultKind::Handshake,
                "the server has disconnected without an answer to the upgrade",
            )),
            (ConnPhase::Open, _) => {
                let unanswered = fault::counted(self.sequence.outstanding() as usize, "message");
                let text = format!("the server has disconnected with {unanswered} unanswered");
                Err(Fault::new(FaultKind::ClosedEarly, text))
            }
            (ConnPhase::Closing, ProtocolState::WebSocket(_)) => Err(Fault::new(
                FaultKind::NotClosed,
                "the server has disconnected without a Close frame",
            )),
            _ => {
                self.phase = ConnPhase::Over;
                stream.close();
                Ok(())
            }
        }
    }

    /// Checks for a timeout. Returns true if the connection has waited for its end long enough.
    pub(crate) fn check_timeout(
        &mut self,
        context: &WorkerContext,
        now: Nanos,
    ) -> Result<bool, Fault> {
        let waited = now.saturating_sub(self.since);
        let seconds = context.timeout as f64 / 1e9;
        match (self.phase, &self.protocol) {
            (ConnPhase::Upgrading, _) if waited > context.timeout => Err(Fault::new(
                FaultKind::Handshake,
                format_args!("no answer to the upgrade within {seconds} s"),
            )),
            (ConnPhase::Open, _) if waited > context.timeout && self.sequence.outstanding() > 0 => {
                let due = self.sequence.answered() + 1;
                Err(Fault::new(
                    FaultKind::Lost,
                    format_args!("no answer to message {due} within {seconds} s"),
                ))
            }
            (ConnPhase::Closing, ProtocolState::WebSocket(_)) if waited > context.timeout => {
                Err(Fault::new(
                    FaultKind::NotClosed,
                    format_args!("no answer to the Close frame within {seconds} s"),
                ))
            }
            (ConnPhase::Closing, ProtocolState::Raw(_) | ProtocolState::Http(_))
            | (ConnPhase::AwaitingTcpClose, _) => Ok(waited > TCP_CLOSE_MAX),
            _ => Ok(false),
        }
    }

    /// Handles the end of the stream. Returns the fault, if the end is one.
    pub(crate) fn closed(
        &mut self,
        reason: DisconnectReason,
        tls: Option<&LoadTls>,
    ) -> Option<Fault> {
        let is_truncated = reason == DisconnectReason::Tls(TlsFailure::Truncated);
        let kind = match (self.phase, reason) {
            (ConnPhase::Over, _) => return None,
            // The Close frames have shown that nothing is missing. Many servers omit close_notify.
            (ConnPhase::AwaitingTcpClose, _) if is_truncated => return None,
            // Every response was complete by its own framing.
            (ConnPhase::Closing, _)
                if is_truncated && matches!(self.protocol, ProtocolState::Http(_)) =>
            {
                return None;
            }
            (ConnPhase::Connecting, DisconnectReason::Tls(failure)) => {
                return tls.map(|tls| tls.fault(failure));
            }
            (_, DisconnectReason::Connect(_) | DisconnectReason::ConnectTimeout) => {
                FaultKind::Connect
            }
            _ => FaultKind::Broken,
        };
        Some(Fault::new(kind, reason))
    }

    /// Ends it: all further input is ignored.
    pub(crate) fn give_up(&mut self) {
        self.phase = ConnPhase::Over;
    }
}
