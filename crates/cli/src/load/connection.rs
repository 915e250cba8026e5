//! One connection: its reaction to received bytes, to room for output, and to the end.
//!
//! Its phases are `Idle`, `Connecting`, `Upgrading` (WebSocket only), `Open`, `Closing`,
//! `AwaitingTcpClose` (WebSocket only), `Over`. The first [`Fault`] ends it. If an HTTP server ends
//! the connection between two responses, `Open` is followed by `Renewing`, `Dormant` and `Idle`.
//! With `--churn` these come in the place of `Over`, as long as there are messages.

use windlass::{
    Key,
    stream::{DisconnectReason, Input, Stream, TlsFailure},
};
use windlass_ws::{Engine, Scratch};

use super::{
    exchange::{Exchange, ExchangeState},
    fan_out::Role,
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
    /// Maximum time for a whole HTTP response.
    pub(crate) answer_timeout: Nanos,
}

/// One connection.
pub(crate) struct LoadConnection {
    pub(crate) sequence: MessageSequence,
    role: Role,
    phase: ConnPhase,
    protocol: ProtocolState,
    /// The key of its stream, while there is one.
    key: Option<Key>,
    /// Time of the last progress, from which timeouts count.
    since: Nanos,
    /// Time from which the limit of the answer that is due counts. Parts of it do not change this.
    due_since: Nanos,
    /// It was open before, and the server has ended it, or `--churn`.
    is_reopened: bool,
    /// Messages after which it ends, to be opened again: `--churn`.
    churn: Option<u64>,
    /// It closes for that.
    is_churning: bool,
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
    /// The server ends the connection between two responses. Its end is awaited, so that the
    /// client's port is free immediately.
    Renewing,
    /// The connection has ended so. It is opened again when a request is due.
    Dormant,
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
    pub(crate) fn new(mut sequence: MessageSequence, role: Role, churn: Option<u64>) -> Self {
        sequence.allow(churn.unwrap_or(u64::MAX));
        Self {
            sequence,
            role,
            churn,
            is_churning: false,
            phase: ConnPhase::Idle,
            protocol: ProtocolState::Raw(0),
            key: None,
            since: 0,
            due_since: 0,
            is_reopened: false,
        }
    }

    /// Returns the key of its stream, while there is one.
    pub(crate) fn key(&self) -> Option<Key> {
        self.key.filter(|_| {
            !matches!(self.phase, ConnPhase::Idle | ConnPhase::Dormant | ConnPhase::Over)
        })
    }

    /// Returns whether it waits until a request is due.
    pub(crate) fn is_dormant(&self) -> bool {
        self.phase == ConnPhase::Dormant
    }

    /// Returns whether it was open before.
    pub(crate) fn is_reopened(&self) -> bool {
        self.is_reopened
    }

    /// Returns whether it receives what others publish.
    pub(crate) fn is_receiver(&self) -> bool {
        self.role.is_receiver()
    }

    /// Returns whether it has ended, well or not.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == ConnPhase::Over
    }

    /// Returns whether it is closing, which has time limits of its own.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.phase, ConnPhase::Closing | ConnPhase::AwaitingTcpClose)
    }

    /// Returns whether it is being opened.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, ConnPhase::Connecting | ConnPhase::Upgrading)
    }

    /// Notes that it has begun to connect.
    pub(crate) fn connecting(&mut self, key: Key, now: Nanos) {
        (self.key, self.phase, self.since) = (Some(key), ConnPhase::Connecting, now);
    }

    /// Resets a connection that failed to connect or is dormant, so that it can be opened.
    pub(crate) fn reset(&mut self) {
        (self.key, self.phase) = (None, ConnPhase::Idle);
    }

    /// Handles a connected socket.
    pub(crate) fn connected(
        &mut self,
        context: &mut WorkerContext,
        stream: &mut Stream<'_>,
    ) -> Result<(), Fault> {
        let now = context.clock.now();
        self.since = now;
        match &context.websocket {
            None if context.http.is_some() => {
                self.protocol = ProtocolState::Http(Box::default());
                self.open(context);
                self.send_again(context, stream, now);
            }
            None => {
                self.open(context);
                self.send_due(context, stream, now);
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
        let results = &mut context.exchange.results;
        match self.is_reopened {
            false => results.opened += 1,
            true => results.reconnects += 1,
        }
    }

    /// Sends the requests again that an earlier connection has not answered, and those that are
    /// due.
    fn send_again(&mut self, context: &mut WorkerContext, stream: &mut Stream<'_>, now: Nanos) {
        self.due_since = now;
        for setup in context.http.iter().cycle().take(self.sequence.outstanding() as usize) {
            // There is always room: `depth` requests fit.
            let _ = stream.send(&setup.request);
        }
        self.send_due(context, stream, now);
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
                Exchange::new(&mut self.sequence, &mut self.role, &mut context.exchange, now)
                    .bytes(&input, offset)?;
                if self.sequence.answered() > before {
                    self.since = now;
                }
            }
            ProtocolState::Upgrading(_) => self.answer(context, stream, &input, now)?,
            // Input after the last response has no meaning (RFC 9112 section 9.6).
            ProtocolState::Http(_) if self.phase == ConnPhase::Renewing => return Ok(()),
            ProtocolState::Http(responses) => {
                let before = self.sequence.answered();
                let mut exchange =
                    Exchange::new(&mut self.sequence, &mut self.role, &mut context.exchange, now);
                if let Some(setup) = &context.http {
                    responses.read(&input, setup, &mut exchange)?;
                }
                // Bytes of a long body are progress, too.
                self.since = now;
                if self.sequence.answered() > before {
                    self.due_since = now;
                }
                if responses.has_ended() && self.phase == ConnPhase::Open {
                    self.phase = ConnPhase::Renewing;
                }
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
        let mut exchange =
            Exchange::new(&mut self.sequence, &mut self.role, &mut context.exchange, now);
        if let Some(setup) = &context.http {
            while exchange.next_is_due() {
                // There is always room: `depth` requests fit.
                let _ = stream.send(&setup.request);
            }
        }
        while exchange.has_room(|| stream.buffered())
            && let Some(message) = exchange.next()
        {
            // There is always room: `depth` messages of an echo fit, and one more of a publisher.
            let _ = match &mut self.protocol {
                ProtocolState::WebSocket(engine) => {
                    engine.send(message, &mut context.scratch).map(|frame| stream.send(frame))
                }
                _ => Ok(stream.send(message.as_bytes())),
            };
        }
        if self.sequence.outstanding() == 0 {
            let is_over = match &self.role {
                Role::Receiver(receiver) => receiver.is_over(now),
                _ => self.sequence.is_over(&context.exchange.schedule, now),
            };
            if is_over || self.sequence.is_exhausted() {
                self.is_churning = !is_over;
                self.begin_close(context, stream, now);
            }
        } else if was_idle {
            (self.since, self.due_since) = (now, now);
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
        let mut exchange =
            Exchange::new(&mut self.sequence, &mut self.role, &mut context.exchange, now);
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
        if !self.is_churning {
            self.role.end(&self.sequence, &mut context.exchange.results);
        }
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
            (ConnPhase::Open | ConnPhase::Renewing, _) if self.may_renew() => {
                self.phase = ConnPhase::Renewing;
                stream.close();
                Ok(())
            }
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
                self.phase = self.after_close();
                stream.close();
                Ok(())
            }
        }
    }

    /// Returns the phase after an orderly end.
    fn after_close(&self) -> ConnPhase {
        if self.is_churning { ConnPhase::Renewing } else { ConnPhase::Over }
    }

    /// Returns whether the server may end the connection now. If it has not answered a request on
    /// this connection, it would not answer one on the next.
    fn may_renew(&self) -> bool {
        match &self.protocol {
            ProtocolState::Http(responses) => {
                let has_served = responses.complete_count() > 0 || self.sequence.outstanding() == 0;
                has_served && responses.is_between()
            }
            _ => false,
        }
    }

    /// Handles the end of the stream, if the connection is to be opened again. Returns false if it
    /// is not.
    pub(crate) fn renew(&mut self) -> bool {
        let renews = match self.phase {
            ConnPhase::Renewing => true,
            // A reset: the server had not read all requests.
            ConnPhase::Open => self.may_renew(),
            _ => false,
        };
        if renews {
            (self.key, self.phase, self.is_reopened) = (None, ConnPhase::Dormant, true);
            self.is_churning = false;
            self.sequence.allow(self.churn.unwrap_or(u64::MAX));
        }
        renews
    }

    /// Checks for a timeout. Returns true if the connection has waited for its end long enough, and
    /// is to be aborted.
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
            (ConnPhase::Open, ProtocolState::Http(_))
                if self.sequence.outstanding() > 0
                    && now.saturating_sub(self.due_since) > context.answer_timeout =>
            {
                let (due, seconds) =
                    (self.sequence.answered() + 1, context.answer_timeout as f64 / 1e9);
                Err(Fault::new(
                    FaultKind::Lost,
                    format_args!(
                        "no end of the answer to message {due} within {seconds} s; \
                         --answer-timeout sets the limit"
                    ),
                ))
            }
            (ConnPhase::Renewing, _) => Ok(waited > TCP_CLOSE_MAX),
            (ConnPhase::Closing, ProtocolState::WebSocket(_)) if waited > context.timeout => {
                Err(Fault::new(
                    FaultKind::NotClosed,
                    format_args!("no answer to the Close frame within {seconds} s"),
                ))
            }
            (ConnPhase::Closing, ProtocolState::Raw(_) | ProtocolState::Http(_))
            | (ConnPhase::AwaitingTcpClose, _)
                if waited > TCP_CLOSE_MAX =>
            {
                self.phase = self.after_close();
                Ok(true)
            }
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

    /// Ends it: all further input is ignored. Messages that a receiver has missed count as lost
    /// only if it has lasted to its end.
    pub(crate) fn give_up(&mut self) {
        self.phase = ConnPhase::Over;
        if let Role::Publisher(shared) = &self.role {
            shared.publisher_ended(&self.sequence);
        }
    }
}
