//! The handler of a connection's stream: input passes through the engine to the application's
//! handler, and output back.

use std::rc::Rc;

use windlass::{
    Key, Turn,
    stream::{self, Input, Shared, Stream, StreamHandler, Timeout},
};
use windlass_ws::{
    CloseCode, End, Engine, EngineEvent, Outcome, Pass, ReceivedMessage, Scratch,
    handshake::HeadReader,
};

use crate::{
    api::{
        CloseInfo, CloseReason, Closed, ConnState, Connection, ConnectionId, HALT_CLOSING,
        HALT_CODEC, HALT_HELD, HALT_OUTPUT_MAX, HALT_PAUSED, HALTS, HAS_DEFLATE, Handler, Hub,
        Message,
    },
    http::{ConnectionPermit, ListenerKind},
    service::{ConnFlags, NO_CONN, PassGuard, PendingOutput, ServiceInner, ServiceState},
};

/// The handler of a connection's stream.
pub(crate) struct ConnHandler<H: Handler> {
    pub(crate) service: Rc<ServiceInner<H>>,
    pub(crate) phase: ConnPhase<H::Data>,
}

pub(crate) enum ConnPhase<D> {
    /// The partly received request, if any, and the number of requests answered before. `permit`
    /// counts the connection, if connections are counted by address, until the service state takes it over.
    Handshake {
        /// Its index in the connection table, or [`NO_CONN`] before and after.
        index: u32,
        reader: Option<Box<HeadReader>>,
        requests: u32,
        permit: Option<ConnectionPermit>,
        /// The kind of listening address, which decides the hosts that may be asked for.
        listener_kind: ListenerKind,
        /// The stream has reported that its output is above the high watermark.
        is_full: bool,
    },
    Open(Open<D>),
    /// The request was answered in a way that ends the connection.
    Rejected {
        index: u32,
    },
}

impl<D> ConnPhase<D> {
    /// Its index in the connection table, or [`NO_CONN`] before and after. Each phase stores its own copy. A
    /// field beside the phases would take twice as much memory per connection.
    pub(crate) fn index(&mut self) -> &mut u32 {
        match self {
            Self::Open(open) => &mut open.conn.index,
            Self::Handshake { index, .. } | Self::Rejected { index } => index,
        }
    }

    /// Only the connection's end is left to handle.
    pub(crate) fn reject(&mut self) {
        let index = *self.index();
        *self = Self::Rejected { index };
    }
}

/// An open connection.
pub(crate) struct Open<D> {
    pub(crate) engine: Engine,
    pub(crate) conn: ConnState,
    pub(crate) data: D,
}

/// How a pass begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstCallback {
    Nothing,
    Open,
    Drain,
}

impl<H: Handler> StreamHandler for ConnHandler<H> {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        if let ConnPhase::Open(open) = &mut self.phase {
            // It was adopted, and is in the connection table already.
            return open.run_passes(
                &self.service,
                stream,
                PassInput::Bytes(&mut []),
                FirstCallback::Open,
            );
        }
        let state = &self.service.state;
        let entered = state.tables.borrow_mut().conns.insert(stream.key(), state.tick.get());
        state.note_connections();
        match entered {
            Some(index) => {
                if let ConnPhase::Handshake { index: own, permit, .. } = &mut self.phase {
                    *own = index;
                    state.set_permit(index, permit.take());
                }
            }
            None => {
                self.phase.reject();
                return stream.abort();
            }
        }
        if state.is_draining.get() {
            // It was accepted in the turn in which the drain began, and the drain did not see it.
            self.phase.reject();
            stream.close();
        }
    }

    #[inline]
    fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let Self { service, phase: ConnPhase::Open(open), .. } = self else {
            return self.on_request_bytes(stream, input);
        };
        let state = &*service.state;
        if open.conn.halt != 0 {
            return open.on_data_slow(service, stream, input);
        }
        let mut scratch = state.take_scratch();
        let outcome = {
            let Open { engine, conn, data } = open;
            state.note_rx(conn);
            let _guard = PassGuard::begin(state, conn.index);
            let mut pass = engine.process(&mut input, &mut scratch);
            // The usual case stays in registers; everything else is handled elsewhere.
            let done = loop {
                let Some(bytes) = pass.next_fast() else { break pass.finish_fast() };
                let (received, outbox) = bytes.detach();
                let connection =
                    Connection { outbox, turn: stream.turn(), state: &service.state, conn };
                service.message::<true>(connection, data, received);
                if conn.halt != 0 {
                    break Err(pass);
                }
            };
            done.map_err(|pass| service.deliver_events(stream, pass, conn, data))
        };
        let outcome = match outcome {
            Ok(range) => {
                open.conn.pass_output = 0;
                state.put_scratch(scratch);
                if !range.is_empty() {
                    // A failed stream reports its end separately.
                    if let Ok(1..) = stream.write_reply(input, range) {
                        after_output(state, stream);
                    }
                }
                return;
            }
            Err(outcome) => outcome,
        };
        if let (Some(range), 0, None) = (&outcome.in_place, open.conn.halt, outcome.end) {
            open.conn.pass_output = 0;
            state.put_scratch(scratch);
            let has_grown = open.note_partial_input(state);
            let waiting =
                if range.is_empty() { Ok(0) } else { stream.write_reply(input, range.clone()) };
            if matches!(waiting, Ok(1..)) || has_grown {
                after_output(state, stream);
            }
            return;
        }
        open.finish_pass(service, stream, PassInput::Input(input), outcome, scratch);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        match &mut self.phase {
            ConnPhase::Open(open) => {
                self.service.state.begin_closing(open.conn.index, CloseReason::Lost);
                open.leave_codec_queue(&self.service.state, stream);
                stream.close();
            }
            _ => self.service.state.close_after_response(stream),
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        match &mut self.phase {
            ConnPhase::Open(open) => {
                open.conn.is_output_full = true;
                self.service.state.note_output_full(open.conn.index);
                self.service.state.set_flags(open.conn.index, ConnFlags::FULL);
                stream.pause();
            }
            // The stream reports this once, so a connection that opens now must know it.
            ConnPhase::Handshake { is_full, .. } => *is_full = true,
            ConnPhase::Rejected { .. } => {}
        }
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        match &mut self.phase {
            ConnPhase::Open(open) => {
                open.conn.is_output_full = false;
                self.service.state.clear_flags(open.conn.index, ConnFlags::FULL);
                open.catch_up(&self.service, stream);
            }
            ConnPhase::Handshake { is_full, .. } => *is_full = false,
            ConnPhase::Rejected { .. } => {}
        }
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, _: Timeout) {
        if let ConnPhase::Open(open) = &mut self.phase {
            self.service.state.begin_closing(open.conn.index, CloseReason::WriteStall);
        }
        stream.abort();
    }

    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        self.handle_requests(stream);
    }

    fn on_close(&mut self, _: Key, reason: stream::CloseReason, mut turn: Turn<'_>) {
        let Some((id, close_info)) = self.leave() else { return };
        let state = &self.service.state;
        state.check_drained(&mut turn);
        let ConnPhase::Open(open) = &mut self.phase else { return };
        let close_info = close_info.unwrap_or_else(|| CloseInfo::new(reason_of(reason)));
        state.count_end(close_info.reason);
        let closed =
            Closed { id, reason: close_info.reason, code: close_info.code, text: &close_info.text };
        self.service.handler.on_close(&mut Hub { state, turn }, &mut open.data, &closed);
    }
}

/// Returns the reason for an end that has no other explanation.
fn reason_of(reason: stream::CloseReason) -> CloseReason {
    match reason {
        stream::CloseReason::Error(errno) => CloseReason::Failed(errno),
        stream::CloseReason::WriteStall => CloseReason::WriteStall,
        // All other code that aborts a stream notes a reason.
        stream::CloseReason::Aborted => CloseReason::Drained,
        _ => CloseReason::Lost,
    }
}

impl<H: Handler> ConnHandler<H> {
    pub(crate) fn new(
        service: &Rc<ServiceInner<H>>,
        permit: Option<ConnectionPermit>,
        listener_kind: ListenerKind,
    ) -> Self {
        let phase = ConnPhase::Handshake {
            index: NO_CONN,
            reader: None,
            requests: 0,
            permit,
            listener_kind,
            is_full: false,
        };
        Self { service: Rc::clone(service), phase }
    }

    /// Returns the data of a connection that could not be registered.
    pub(crate) fn into_data(mut self) -> H::Data {
        // Leaves the connection table here, so that the destructor has nothing left to do.
        self.leave();
        match core::mem::replace(&mut self.phase, ConnPhase::Rejected { index: NO_CONN }) {
            ConnPhase::Open(open) => open.data,
            _ => unreachable!("an adopted connection is open"),
        }
    }

    /// Leaves the connection table, once. Returns the former ID, and how the connection ended if that is
    /// known.
    fn leave(&mut self) -> Option<(ConnectionId, Option<CloseInfo>)> {
        let index = core::mem::replace(self.phase.index(), NO_CONN);
        if index == NO_CONN {
            return None;
        }
        let state = &self.service.state;
        let id = state.tables.borrow().conns.id(index);
        Some((id, state.remove_conn(index)))
    }

    /// Carries out the requests of other code to this connection.
    #[cold]
    fn handle_requests(&mut self, stream: &mut Stream<'_>) {
        let index = *self.phase.index();
        let wants = {
            let mut tables = self.service.state.tables.borrow_mut();
            let Some(entry) = tables.conns.get_mut(index) else { return };
            let mut wants = entry.flags;
            entry.flags.clear(ConnFlags::WANTS);
            if wants.any(ConnFlags::WANTS_DRAIN) {
                if wants.any(ConnFlags::DRAIN_NOTIFIED) {
                    wants.clear(ConnFlags::WANTS_DRAIN);
                }
                entry.flags.add(ConnFlags::DRAIN_NOTIFIED);
            }
            wants
        };
        if wants.any(ConnFlags::WANTS_EVICTION | ConnFlags::WANTS_ABORT) {
            if let ConnPhase::Open(open) = &mut self.phase {
                let reason = if wants.any(ConnFlags::WANTS_EVICTION) {
                    CloseReason::Evicted
                } else {
                    CloseReason::Drained
                };
                self.service.state.begin_closing(open.conn.index, reason);
            }
            return stream.abort();
        }
        match &mut self.phase {
            ConnPhase::Open(open) => open.handle_requests(&self.service, stream, wants),
            _ if wants.any(ConnFlags::WANTS_TIMEOUT | ConnFlags::WANTS_DRAIN) => {
                self.end_handshake(stream, wants)
            }
            _ => {}
        }
    }
}

impl<H: Handler> Drop for ConnHandler<H> {
    fn drop(&mut self) {
        // A callback has panicked, or the reactor is gone. No callback is called.
        self.leave();
    }
}

/// The location of received bytes.
pub(crate) enum PassInput<'i> {
    Input(Input<'i>),
    Bytes(&'i mut [u8]),
}

impl PassInput<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Input(input) => input,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl<D: 'static> Open<D> {
    /// One pass over received bytes, including the handler's callbacks.
    fn run_pass<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        input: &mut [u8],
        scratch: &mut Scratch,
        first: FirstCallback,
    ) -> Outcome {
        let state = &service.state;
        let Self { engine, conn, data } = self;
        state.note_rx(conn);
        if conn.halt & HAS_DEFLATE != 0 {
            state.begin_codec_turn(&stream.turn());
        }
        let _guard = PassGuard::begin(state, conn.index);
        let mut pass = engine.process(input, scratch);
        if first != FirstCallback::Nothing {
            let mut connection =
                Connection { outbox: pass.outbox(), turn: stream.turn(), state, conn };
            match first {
                FirstCallback::Open => service.handler.on_open(&mut connection, data),
                _ => service.handler.on_drain(&mut connection, data),
            }
            connection.take_reentrant_output();
        }
        service.deliver_events(stream, pass, conn, data)
    }

    /// Sends a pass's output, and does the work that must precede the next pass.
    #[cold]
    #[inline(never)]
    fn finish_pass<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        mut pass_input: PassInput<'_>,
        outcome: Outcome,
        scratch: Box<Scratch>,
    ) {
        send_output(stream, pass_input.bytes(), &outcome, &scratch);
        service.state.put_scratch(scratch);
        if self.handle_outcome(service, stream, &mut pass_input, &outcome) {
            let rest = &mut pass_input.bytes()[outcome.consumed..];
            return self.run_passes(
                service,
                stream,
                PassInput::Bytes(rest),
                FirstCallback::Nothing,
            );
        }
        after_output(&service.state, stream);
    }

    /// Notes the memory held for partly received data. Returns true if there was, or is, some to
    /// note.
    #[inline(always)]
    fn note_partial_input(&mut self, state: &ServiceState) -> bool {
        let bytes = self.engine.buffered();
        let is_noted = bytes > 0 || self.conn.has_partial;
        if is_noted {
            self.conn.has_partial = bytes > 0;
            state.note_partial(self.conn.index, bytes);
        }
        is_noted
    }

    /// Runs passes over received bytes until none are left or they must be held.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_passes<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        mut pass_input: PassInput<'_>,
        mut first: FirstCallback,
    ) {
        let mut at = 0;
        loop {
            let state = &service.state;
            if self.conn.halt & (HALT_PAUSED | HALT_HELD) != 0 && first == FirstCallback::Nothing {
                self.hold_and_notify(state, stream, &pass_input.bytes()[at..]);
                return after_output(state, stream);
            }
            self.conn.halt &= !HALT_OUTPUT_MAX;
            self.conn.pass_output = 0;
            let mut scratch = state.take_scratch();
            let bytes = &mut pass_input.bytes()[at..];
            let before = state.codec_total();
            let outcome = self.run_pass(service, stream, bytes, &mut scratch, first);
            first = FirstCallback::Nothing;
            if self.conn.halt & HAS_DEFLATE != 0 {
                self.note_codec(state, &scratch, before);
            }
            send_output(stream, bytes, &outcome, &scratch);
            state.put_scratch(scratch);
            let mut rest = PassInput::Bytes(bytes);
            if !self.handle_outcome(service, stream, &mut rest, &outcome) {
                return after_output(state, stream);
            }
            at += outcome.consumed;
        }
    }

    /// Handles the outcome of a pass, after its output. Returns true if more bytes can be processed
    /// now.
    fn handle_outcome<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        pass_input: &mut PassInput<'_>,
        outcome: &Outcome,
    ) -> bool {
        let state = &service.state;
        self.note_partial_input(state);
        if let Some(end) = outcome.end {
            let reason = match end {
                End::Closed => CloseReason::Peer,
                End::Failed(violation) => CloseReason::Violation(violation),
            };
            state.begin_closing(self.conn.index, reason);
            match end {
                // A Close frame is the last frame (RFC 6455 section 5.5.1), and the server closes
                // first (section 7.1.1).
                End::Closed => stream.close_after_output(),
                End::Failed(_) => stream.close(),
            }
            return false;
        }
        let halt = self.conn.halt;
        self.conn.pass_output = 0;
        self.conn.halt &= !(HALT_OUTPUT_MAX | HALT_CODEC);
        if halt & HALT_CLOSING != 0 {
            // Further input is discarded, except the peer's Close frame.
            self.conn.halt &= !HALT_PAUSED;
        } else if halt & HALT_PAUSED != 0 {
            stream.pause();
        }
        let bytes = pass_input.bytes();
        if outcome.consumed == bytes.len() {
            return false;
        }
        if halt & HALT_CLOSING == 0 && (halt & HALT_PAUSED != 0 || stream.is_full()) {
            self.hold_and_notify(state, stream, &bytes[outcome.consumed..]);
            return false;
        }
        if halt & HALT_CODEC != 0 {
            self.wait_for_codec(state, stream, &bytes[outcome.consumed..]);
            return false;
        }
        true
    }

    /// Holds received bytes until the connection resumes reading.
    fn hold_and_notify(&mut self, state: &ServiceState, stream: &mut Stream<'_>, rest: &[u8]) {
        self.hold(state, stream, rest);
        if !self.conn.is_output_full {
            // No other event would resume this.
            stream.notify();
        }
    }

    /// Holds received bytes; another event will call the connection handler.
    pub(crate) fn hold(&mut self, state: &ServiceState, stream: &mut Stream<'_>, rest: &[u8]) {
        stream.pause();
        self.conn.halt |= HALT_HELD;
        let mut tables = state.tables.borrow_mut();
        let held = tables.held.entry(self.conn.index).or_default();
        let before = held.capacity();
        held.extend_from_slice(rest);
        state.memory.change(before, held.capacity());
    }

    /// Sends messages from the backlog, processes held input, and resumes reading, as far as there
    /// is room.
    fn catch_up<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
    ) {
        let state = &service.state;
        state.refill_from_backlog(self.conn.index, stream, self.conn.is_output_full);
        if stream.is_full() && !self.conn.is_output_full {
            self.leave_codec_queue(state, stream);
            // The high watermark event is about to come, or the peer reads some output before it.
            return stream.notify();
        }
        if self.conn.is_output_full
            || self.conn.halt & HALT_PAUSED != 0
            || state.is_low_on_memory(self.conn.index)
        {
            return self.leave_codec_queue(state, stream);
        }
        if self.conn.halt & HALT_HELD != 0 {
            if !self.may_use_codec(state, stream) {
                return;
            }
            self.conn.halt &= !HALT_HELD;
            let held = state.tables.borrow_mut().held.remove(&self.conn.index);
            if let Some(mut held) = held {
                state.memory.change(held.capacity(), 0);
                self.run_passes(
                    service,
                    stream,
                    PassInput::Bytes(&mut held),
                    FirstCallback::Nothing,
                );
            }
            state.codec.end_grace();
        }
        if self.conn.halt & (HALT_HELD | HALT_PAUSED) == 0 {
            stream.resume();
        }
    }

    /// Carries out the requests of other code to this connection.
    fn handle_requests<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        wants: ConnFlags,
    ) {
        if wants.any(ConnFlags::WANTS_RESUME) {
            self.conn.halt &= !HALT_PAUSED;
        }
        if wants.any(ConnFlags::WANTS_PAUSE) && self.conn.halt & HALT_CLOSING == 0 {
            self.conn.halt |= HALT_PAUSED;
            stream.pause();
        }
        if wants.any(ConnFlags::WANTS_CLOSE) {
            let pending_close =
                service.state.tables.borrow_mut().pending_closes.remove(&self.conn.index);
            if let Some((code, text)) = pending_close {
                self.send_close(&service.state, stream, code, &text, CloseReason::Local);
            }
        }
        if wants.any(ConnFlags::WANTS_IDLE_END) {
            let text = "idle timeout: no data received";
            self.send_close(&service.state, stream, CloseCode::GOING_AWAY, text, CloseReason::Idle);
            // The peer has been silent for so long that its Close frame is not awaited.
            self.leave_codec_queue(&service.state, stream);
            return stream.close();
        }
        if wants.any(ConnFlags::WANTS_LIFETIME_END) {
            self.send_close(
                &service.state,
                stream,
                CloseCode::GOING_AWAY,
                "connection lifetime exceeded",
                CloseReason::Lifetime,
            );
        }
        if wants.any(ConnFlags::WANTS_DRAIN) && self.conn.halt & HALT_CLOSING == 0 {
            self.run_passes(service, stream, PassInput::Bytes(&mut []), FirstCallback::Drain);
        }
        if self.conn.halt & HALT_CLOSING != 0 {
            self.conn.halt &= !HALT_PAUSED;
        }
        self.catch_up(service, stream);
    }

    /// Sends a Close frame on behalf of code other than the handler.
    fn send_close(
        &mut self,
        state: &ServiceState,
        stream: &mut Stream<'_>,
        code: CloseCode,
        text: &str,
        reason: CloseReason,
    ) {
        // Earlier publications leave first.
        state.flush_for(self.conn.index, &mut stream.turn());
        let mut scratch = state.take_scratch();
        if let Ok(frame) = self.engine.close(code, text, &mut scratch) {
            // A failed stream reports its end separately.
            for message in state.take_backlog(self.conn.index) {
                let _ = stream.send_shared(&Shared::of(&message));
            }
            let _ = stream.send(frame);
            self.conn.halt = (self.conn.halt & !HALT_PAUSED) | HALT_CLOSING;
            state.begin_closing(self.conn.index, reason);
        }
        state.put_scratch(scratch);
    }
}

impl<H: Handler> ServiceInner<H> {
    /// Delivers the events of a pass, and ends it.
    #[inline(never)]
    fn deliver_events(
        &self,
        stream: &mut Stream<'_>,
        mut pass: Pass<'_>,
        conn: &mut ConnState,
        data: &mut H::Data,
    ) -> Outcome {
        let state = &self.state;
        // Each kind of event has its own code path: a common value would go through memory.
        loop {
            if conn.halt != 0 && !may_continue(&mut pass, state, conn) {
                break;
            }
            match pass.next() {
                None => break,
                Some(EngineEvent::Binary(bytes)) => {
                    let (received, outbox) = bytes.detach();
                    let connection = Connection { outbox, turn: stream.turn(), state, conn };
                    self.message::<false>(connection, data, received);
                }
                Some(EngineEvent::Text(text)) => {
                    let (received, outbox) = text.detach();
                    let connection = Connection { outbox, turn: stream.turn(), state, conn };
                    self.text(connection, data, received);
                }
                Some(other) => {
                    let Some(ping_or_pong) = PingOrPong::of(other, state, conn) else { continue };
                    let connection =
                        Connection { outbox: pass.outbox(), turn: stream.turn(), state, conn };
                    self.ping_or_pong(connection, data, &ping_or_pong);
                }
            }
        }
        pass.finish()
    }

    #[inline(always)]
    fn message<const IS_FAST_PATH: bool>(
        &self,
        mut connection: Connection<'_>,
        data: &mut H::Data,
        received: ReceivedMessage<'_>,
    ) {
        let state = &self.state;
        let len = received.as_bytes().len();
        state.stats.messages_received.add(1);
        state.stats.bytes_received.add(len as u64);
        self.handler.on_message(&mut connection, data, Message(received));
        // Off the fast path the message may have been decompressed.
        if len > if IS_FAST_PATH { LARGE_LEN } else { state.bounds.large_len } {
            // Counted after the callback: otherwise the message's own reply would find the room
            // taken.
            connection.conn.add_pass_output(len, state.bounds.pass_output_max);
        }
        if state.has_pending(PendingOutput::REENTRANT) {
            connection.take_reentrant_output();
        }
    }

    #[inline(never)]
    fn text(&self, connection: Connection<'_>, data: &mut H::Data, received: ReceivedMessage<'_>) {
        self.message::<false>(connection, data, received);
    }

    #[cold]
    #[inline(never)]
    fn ping_or_pong(
        &self,
        mut connection: Connection<'_>,
        data: &mut H::Data,
        ping_or_pong: &PingOrPong,
    ) {
        match ping_or_pong {
            PingOrPong::Ping(bytes, len) => {
                self.handler.on_ping(&mut connection, data, &bytes[..*len])
            }
            PingOrPong::Pong(bytes, len) => {
                self.handler.on_pong(&mut connection, data, &bytes[..*len])
            }
        }
        connection.take_reentrant_output();
    }
}

/// Returns whether an unusual pass may deliver its next message.
#[inline(never)]
fn may_continue(pass: &mut Pass<'_>, state: &ServiceState, conn: &mut ConnState) -> bool {
    if conn.halt & HALTS == 0 {
        // Connections with compression have no other flag set here.
        return state.has_budget(pass, conn);
    }
    discard_until_close(pass, state, conn);
    false
}

/// Continues without delivering messages, for a connection that is closing: only the peer's Close
/// frame still matters. Does nothing if the pass must end for another reason.
#[cold]
#[inline(never)]
fn discard_until_close(pass: &mut Pass<'_>, state: &ServiceState, conn: &mut ConnState) {
    while conn.halt & HALTS & !HALT_CLOSING == 0 {
        if conn.halt & HAS_DEFLATE != 0 && !state.has_budget(pass, conn) {
            break;
        }
        let Some(event) = pass.next() else { break };
        // This notes how the connection ends. The other events are discarded.
        let _ = PingOrPong::of(event, state, conn);
    }
}

/// A message of at least this length counts against the pass's output limit, as if it were sent
/// back.
pub(crate) const LARGE_LEN: usize = 16 << 10;

impl ConnState {
    #[cold]
    pub(crate) fn add_pass_output(&mut self, len: usize, max: u32) {
        self.pass_output = self.pass_output.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        if self.pass_output > max {
            self.halt |= HALT_OUTPUT_MAX;
        }
    }
}

/// Checks memory after output has begun to wait or input is held. This runs last, because it may
/// end the connection.
#[cold]
#[inline(never)]
pub(crate) fn after_output(state: &ServiceState, stream: &mut Stream<'_>) {
    let max = state.options.receiver_buffer_max;
    // Pages may be longer than this; connections that open behind them are full from the beginning.
    debug_assert!(
        stream.buffered() <= max + PASS_ROOM || stream.is_full(),
        "{} bytes of {max} wait",
        stream.buffered()
    );
    state.check_memory(&mut stream.turn());
}

/// Upper bound of the responses to one receive that are not checked one by one, and of the bytes
/// that io_uring has in flight.
const PASS_ROOM: usize = 128 << 10;

/// Passes a pass's output to the stream.
fn send_output(stream: &mut Stream<'_>, input: &[u8], outcome: &Outcome, scratch: &Scratch) {
    if outcome.len == 0 {
        return;
    }
    let mut pieces = scratch.output(outcome, input);
    let (first, second) = (pieces.next(), pieces.next());
    // A failed stream reports its end separately.
    let Some(first) = first else { return };
    let Some(second) = second else {
        let _ = stream.write_shared(&Shared::new(first));
        return;
    };
    for piece in [first, second].into_iter().chain(pieces) {
        let _ = stream.send(piece);
    }
}

/// Events other than messages.
enum PingOrPong {
    Ping([u8; 125], usize),
    Pong([u8; 125], usize),
}

impl PingOrPong {
    #[cold]
    #[inline(never)]
    fn of(event: EngineEvent<'_>, state: &ServiceState, conn: &mut ConnState) -> Option<Self> {
        let copy = |payload: &[u8]| {
            let mut bytes = [0; 125];
            bytes[..payload.len()].copy_from_slice(payload);
            (bytes, payload.len())
        };
        match event {
            EngineEvent::Ping(payload) => {
                let (bytes, len) = copy(payload);
                Some(Self::Ping(bytes, len))
            }
            EngineEvent::Pong(payload) => {
                let (bytes, len) = copy(payload);
                Some(Self::Pong(bytes, len))
            }
            EngineEvent::Close(close) => {
                conn.halt |= HALT_CLOSING;
                state.begin_closing(conn.index, CloseReason::Peer);
                state.note_close(conn.index, &close);
                None
            }
            EngineEvent::Violation(violation) => {
                conn.halt |= HALT_CLOSING;
                state.begin_closing(conn.index, CloseReason::Violation(violation));
                None
            }
            _ => None,
        }
    }
}

// Memory of a connection in its cell, beside the user's data. The engine takes 48 bytes. With the
// pointer to the service, the stream's index and the header of the registration, the block has 120
// bytes. Allocators that add a word and round up to 16 allocate 128 bytes for it.
const _: () = assert!(size_of::<ConnState>() == 16 && size_of::<ConnPhase<()>>() == 64);
