//! An open connection: passes of received bytes through its engine, and what follows from them.

use windlass::stream::{Input, SharedBytes, Stream};
use windlass_ws::{CloseCode, End, Engine, Outcome, Scratch};

use crate::{
    api::CloseReason,
    handler::{Connection, Handler},
    service::ServiceInner,
    state::{PassGuard, ServiceState, Tables},
    table::{
        ConnFlags, ConnState, HALT_CLOSING, HALT_CODEC, HALT_HELD, HALT_OUTPUT_MAX, HALT_PAUSED,
        HAS_DEFLATE, HAS_RATE,
    },
};

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
            state.shared.codec.begin_turn(&stream.turn());
        }
        if conn.halt & HAS_RATE != 0 {
            state.shared.message_rates.set_now(stream.turn().now());
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
    pub(super) fn finish_pass<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        mut pass_input: PassInput<'_>,
        outcome: Outcome,
        scratch: Box<Scratch>,
    ) {
        send_output(&service.state, stream, pass_input.bytes(), &outcome, &scratch);
        service.state.shared.put_scratch(scratch);
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
    pub(super) fn note_partial_input(&mut self, state: &ServiceState) -> bool {
        let bytes = self.engine.buffered();
        let is_noted = bytes > 0 || self.conn.has_partial;
        if is_noted {
            self.conn.has_partial = bytes > 0;
            state.tables.borrow_mut().note_partial(&state.shared, self.conn.index, bytes);
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
            let mut scratch = state.shared.take_scratch();
            let bytes = &mut pass_input.bytes()[at..];
            let before = state.shared.stats.codec_bytes();
            let outcome = self.run_pass(service, stream, bytes, &mut scratch, first);
            first = FirstCallback::Nothing;
            if self.conn.halt & HAS_DEFLATE != 0 {
                self.note_codec(state, &scratch, before);
            }
            send_output(state, stream, bytes, &outcome, &scratch);
            state.shared.put_scratch(scratch);
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
        if halt & HALT_PAUSED != 0 {
            stream.pause();
        }
        let bytes = pass_input.bytes();
        if outcome.consumed == bytes.len() {
            return false;
        }
        // While it is closing, input is discarded, except the peer's Close frame.
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
        if !state.flags(self.conn.index).any(ConnFlags::FULL) {
            // No other event would resume this.
            stream.notify();
        }
    }

    /// Holds received bytes; another event will call the connection handler.
    pub(crate) fn hold(&mut self, state: &ServiceState, stream: &mut Stream<'_>, rest: &[u8]) {
        stream.pause();
        self.conn.halt |= HALT_HELD;
        state.tables.borrow_mut().hold(&state.shared, self.conn.index, rest);
    }

    /// Sends messages from the backlog, processes held input, and resumes reading, as far as there
    /// is room.
    pub(super) fn catch_up<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
    ) {
        let state = &service.state;
        let flags = {
            let Tables { conns, delivery, .. } = &mut *state.tables.borrow_mut();
            delivery.refill_from_backlog(conns, &state.shared, stream, self.conn.index);
            conns.entry(self.conn.index).flags
        };
        let is_full = flags.any(ConnFlags::FULL);
        if stream.is_full() && !is_full {
            self.leave_codec_queue(state, stream);
            // The high watermark event is about to come, or the peer reads some output before it.
            return stream.notify();
        }
        if is_full || self.conn.halt & HALT_PAUSED != 0 || flags.any(ConnFlags::LOW_MEMORY) {
            return self.leave_codec_queue(state, stream);
        }
        if self.conn.halt & HALT_HELD != 0 {
            if !self.may_use_codec(state, stream) {
                return;
            }
            self.conn.halt &= !HALT_HELD;
            let held = state.tables.borrow_mut().take_held(&state.shared, self.conn.index);
            if let Some(mut held) = held {
                self.run_passes(
                    service,
                    stream,
                    PassInput::Bytes(&mut held),
                    FirstCallback::Nothing,
                );
            }
            state.shared.codec.end_grace();
        }
        if self.conn.halt & (HALT_HELD | HALT_PAUSED) == 0 {
            stream.resume();
        }
    }

    /// Carries out the requests of other code to this connection.
    pub(super) fn handle_requests<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        wants: ConnFlags,
    ) {
        self.conn.follow(wants);
        if self.conn.halt & HALT_PAUSED != 0 {
            stream.pause();
        }
        if wants.any(ConnFlags::WANTS_CLOSE) {
            let pending_close = service.state.tables.borrow_mut().take_close(self.conn.index);
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
        let tables = &mut *state.tables.borrow_mut();
        let Tables { conns, delivery, .. } = &mut *tables;
        delivery.flush_for(conns, &state.shared, &mut stream.turn(), self.conn.index);
        let mut scratch = state.shared.take_scratch();
        if let Ok(frame) = self.engine.close(code, text, &mut scratch) {
            // A failed stream reports its end separately.
            for message in delivery.take_backlog(conns, &state.shared, self.conn.index) {
                state.shared.stats.wire_sent.add(message.len() as u64);
                let _ = stream.send_shared(&SharedBytes::of(&message));
            }
            state.shared.stats.wire_sent.add(frame.len() as u64);
            let _ = stream.send(frame);
            tables.begin_own_closing(&state.shared, &mut self.conn, reason);
            tables.note_own_code(self.conn.index, code);
        }
        state.shared.put_scratch(scratch);
    }
}

/// Checks memory after output has begun to wait or input is held. This runs last, because it may
/// end the connection.
#[cold]
#[inline(never)]
pub(crate) fn after_output(state: &ServiceState, stream: &mut Stream<'_>) {
    let max = state.shared.options.receiver_buffer_max;
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
fn send_output(
    state: &ServiceState,
    stream: &mut Stream<'_>,
    input: &[u8],
    outcome: &Outcome,
    scratch: &Scratch,
) {
    if outcome.len == 0 {
        return;
    }
    state.shared.stats.wire_sent.add(outcome.len as u64);
    let mut pieces = scratch.output(outcome, input);
    let (first, second) = (pieces.next(), pieces.next());
    // A failed stream reports its end separately.
    let Some(first) = first else { return };
    let Some(second) = second else {
        let _ = stream.write_shared(&SharedBytes::new(first));
        return;
    };
    for piece in [first, second].into_iter().chain(pieces) {
        let _ = stream.send(piece);
    }
}
