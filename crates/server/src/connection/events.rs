//! The events of a pass, delivered to the application's handler.

use windlass::stream::Stream;
use windlass_ws::{CloseCode, EngineEvent, Outcome, Pass, ReceivedMessage, Text};

use crate::{
    api::{CloseReason, Message},
    handler::{Connection, Handler},
    service::ServiceInner,
    shared::PendingOutput,
    state::ServiceState,
    table::{ConnState, HALT_CLOSING, HALT_CODEC, HALTS, HAS_DEFLATE, HAS_RATE, LARGE_LEN},
};

impl<H: Handler> ServiceInner<H> {
    /// Delivers the events of a pass, and ends it.
    #[inline(never)]
    pub(super) fn deliver_events(
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
                Some(EngineEvent::Text(text)) => self.text(text, stream, conn, data),
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
    pub(super) fn message<const IS_FAST_PATH: bool>(
        &self,
        mut connection: Connection<'_>,
        data: &mut H::Data,
        received: ReceivedMessage<'_>,
    ) {
        let state = &self.state;
        let len = received.as_bytes().len();
        state.shared.stats.messages_received.add(1);
        state.shared.stats.bytes_received.add(len as u64);
        // The fast path has no such connection.
        if !IS_FAST_PATH
            && connection.conn.halt & HAS_RATE != 0
            && exceeds_rate(&mut connection, len)
        {
            return;
        }
        self.handler.on_message(&mut connection, data, Message(received));
        // Off the fast path the message may have been decompressed.
        if len > if IS_FAST_PATH { LARGE_LEN } else { state.shared.bounds.large_len } {
            // Counted after the callback: otherwise the message's own reply would find the room
            // taken.
            connection.conn.add_pass_output(len, state.shared.bounds.pass_output_max);
        }
        if state.shared.pass.has_pending(PendingOutput::REENTRANT) {
            connection.take_reentrant_output();
        }
    }

    /// Delivers a text. In here the compiler knows that the message is one, so that it inlines a
    /// small handler.
    #[inline(never)]
    fn text(
        &self,
        text: Text<'_>,
        stream: &mut Stream<'_>,
        conn: &mut ConnState,
        data: &mut H::Data,
    ) {
        self.state.shared.stats.text_received.add(1);
        let (received, outbox) = text.detach();
        let connection = Connection { outbox, turn: stream.turn(), state: &self.state, conn };
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
        // Connections with compression or a rate of messages have no other flag set here.
        return conn.halt & HAS_DEFLATE == 0 || may_process(pass, state, conn);
    }
    discard_until_close(pass, state, conn);
    false
}

/// Counts a message towards the rate of its connection. Closes the connection if it is exceeded.
#[inline(never)]
fn exceeds_rate(connection: &mut Connection<'_>, len: usize) -> bool {
    let Connection { state, conn, .. } = connection;
    let Err(exceeded) = state.shared.message_rates.count(conn.index, len) else { return false };
    state.shared.labels.count_limit(exceeded.limit);
    let reason = CloseReason::Rate(exceeded.limit);
    // It fails only if the connection is closing, and then no message is delivered.
    let _ = connection.close_for(CloseCode::POLICY_VIOLATION, &exceeded.to_string(), reason);
    true
}

/// Returns whether the codecs may process the next message of a pass. If not, the pass must end.
fn may_process(pass: &Pass<'_>, state: &ServiceState, conn: &mut ConnState) -> bool {
    let may = state.shared.codec.may_process(pass.codec_bytes(), &state.shared.stats);
    if !may {
        conn.halt |= HALT_CODEC;
    }
    may
}

/// Continues without delivering messages, for a connection that is closing: only the peer's Close
/// frame still matters. Does nothing if the pass must end for another reason.
#[cold]
#[inline(never)]
fn discard_until_close(pass: &mut Pass<'_>, state: &ServiceState, conn: &mut ConnState) {
    while conn.halt & HALTS & !HALT_CLOSING == 0 {
        if conn.halt & HAS_DEFLATE != 0 && !may_process(pass, state, conn) {
            break;
        }
        let Some(event) = pass.next() else { break };
        // This notes how the connection ends. The other events are discarded.
        let _ = PingOrPong::of(event, state, conn);
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
                state.shared.stats.pings_received.add(1);
                // The engine answers it unless this side has sent its Close frame.
                state.shared.stats.pongs_sent.add(u64::from(conn.halt & HALT_CLOSING == 0));
                let (bytes, len) = copy(payload);
                Some(Self::Ping(bytes, len))
            }
            EngineEvent::Pong(payload) => {
                state.shared.stats.pongs_received.add(1);
                let (bytes, len) = copy(payload);
                Some(Self::Pong(bytes, len))
            }
            other => {
                let (reason, close) = match other {
                    EngineEvent::Close(close) => (CloseReason::Peer, Some(close)),
                    EngineEvent::Violation(violation) => (CloseReason::Violation(violation), None),
                    _ => return None,
                };
                let tables = &mut *state.tables.borrow_mut();
                tables.begin_own_closing(&state.shared, conn, reason);
                if let Some(close) = close {
                    tables.note_close(conn.index, &close);
                }
                None
            }
        }
    }
}
