//! The handler of a connection's stream: input passes through the engine to the application's
//! handler, and output back.

use std::{rc::Rc, sync::Arc, time::Instant};

use windlass::{
    Key, Turn,
    stream::{self, Address, Input, Stream, StreamHandler, Timeout},
};
use windlass_ws::handshake::HeadReader;

use super::{
    accept::Accepted,
    deciding::Deciding,
    handshake::close_after_response,
    open::{FirstCallback, Open, PassInput, after_output},
    proxy::ProxySlot,
    tls::TlsHandshake,
};
use crate::{
    api::{CloseReason, Closed, ConnectionId, NO_CONN},
    handler::{Connection, Handler, Hub},
    http::ListenerKind,
    metrics::HandshakeResult,
    service::ServiceInner,
    state::PassGuard,
    table::{CloseInfo, ConnFlags, ConnState},
};

/// The handler of a connection's stream.
pub(crate) struct ConnHandler<H: Handler> {
    pub(crate) service: Rc<ServiceInner<H>>,
    pub(crate) phase: ConnPhase<H::Data>,
}

pub(crate) enum ConnPhase<D> {
    /// The partly received request, if any, and the number of requests answered before.
    Handshake {
        /// Its index in the connection table, or [`NO_CONN`] before and after.
        index: u32,
        reader: Option<Box<HeadReader>>,
        requests: u32,
        accepted: Accepted,
        /// The time at which it was accepted.
        accepted_at: Option<Instant>,
    },
    /// The TLS handshake is in progress.
    TlsHandshake(Box<TlsHandshake>),
    /// The request that opens it waits for a decision.
    Deciding(Box<Deciding<D>>),
    Open(Open<D>),
    /// The request was answered in a way that ends the connection.
    Rejected {
        index: u32,
    },
}

impl<D> ConnPhase<D> {
    /// The phase before the first request.
    pub(super) fn handshake(accepted: Accepted) -> Self {
        Self::Handshake { index: NO_CONN, reader: None, requests: 0, accepted, accepted_at: None }
    }

    /// Its index in the connection table, or [`NO_CONN`] before and after. Each phase stores its
    /// own copy. A field beside the phases would take more memory per connection.
    pub(crate) fn index(&self) -> u32 {
        match self {
            Self::Open(open) => open.conn.index,
            Self::Deciding(deciding) => deciding.index,
            Self::Handshake { index, .. } | Self::Rejected { index } => *index,
            Self::TlsHandshake(_) => NO_CONN,
        }
    }

    /// Returns the index for the last time.
    fn take_index(&mut self) -> u32 {
        match self {
            Self::Open(open) => core::mem::replace(&mut open.conn.index, NO_CONN),
            Self::Deciding(deciding) => core::mem::replace(&mut deciding.index, NO_CONN),
            Self::Handshake { index, .. } | Self::Rejected { index } => {
                core::mem::replace(index, NO_CONN)
            }
            Self::TlsHandshake(_) => NO_CONN,
        }
    }

    /// Only the connection's end is left to handle.
    pub(crate) fn reject(&mut self) {
        let index = self.index();
        *self = Self::Rejected { index };
    }
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
        let (tls_tick, client) = self.tls_opened(stream).unzip();
        let state = &self.service.state;
        let tick = tls_tick.unwrap_or_else(|| state.shared.tick());
        // A custom clock is user code, so nothing is borrowed here.
        let now = stream.turn().now();
        let transport = match &mut self.phase {
            _ if tls_tick.is_some() => ConnFlags::TLS,
            ConnPhase::Handshake { accepted, .. }
                if accepted.listener_kind == ListenerKind::Unix =>
            {
                ConnFlags::UNIX
            }
            _ => ConnFlags::default(),
        };
        let tables = &mut *state.tables.borrow_mut();
        let entered = tables.conns.insert(stream.key(), tick, transport);
        tables.note_connections(&state.shared);
        match entered {
            Some(index) => {
                if let ConnPhase::Handshake { index: own, accepted, accepted_at, .. } =
                    &mut self.phase
                {
                    *own = index;
                    *accepted_at = Some(now);
                    tables.set_permit(index, accepted.permit.take());
                    if let Some(client) = client.flatten() {
                        tables.set_client(index, client);
                    }
                }
            }
            None => {
                self.phase.reject();
                return stream.abort();
            }
        }
        if state.drain.has_begun() {
            // It was accepted in the turn in which the drain began, and the drain did not see it.
            state.shared.stats.rejected.add(1);
            state.shared.labels.count_handshake(HandshakeResult::Draining);
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
            state.shared.stats.wire_received.add(input.len() as u64);
            return open.on_data_checked(service, stream, input);
        }
        let mut scratch = state.shared.take_scratch();
        let outcome = {
            let Open { engine, conn, data } = open;
            state.note_rx(conn);
            let _guard = PassGuard::begin(state, conn.index);
            let bytes: &mut [u8] = &mut input;
            state.shared.stats.wire_received.add(bytes.len() as u64);
            let mut pass = engine.process(bytes, &mut scratch);
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
                state.shared.put_scratch(scratch);
                if !range.is_empty() {
                    state.shared.stats.wire_sent.add(range.end.wrapping_sub(range.start) as u64);
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
            state.shared.put_scratch(scratch);
            state.shared.stats.wire_sent.add(range.end.wrapping_sub(range.start) as u64);
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
            _ => close_after_response(&self.service.state.shared.options, stream),
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        let state = &self.service.state;
        // The stream reports this once, so it is noted also of a connection that may open later.
        let mut flags = ConnFlags::FULL;
        if matches!(self.phase, ConnPhase::Open(_)) {
            state.shared.stats.reading_paused.add(1);
            // Senders must check the remaining room.
            flags.add(ConnFlags::LAGGING);
            stream.pause();
        }
        if let Some(entry) = state.tables.borrow_mut().conns.get_mut(self.phase.index()) {
            entry.flags.add(flags);
        }
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        let state = &self.service.state;
        if let Some(entry) = state.tables.borrow_mut().conns.get_mut(self.phase.index()) {
            entry.read_again(ConnFlags::FULL, state.shared.tick());
        }
        if let ConnPhase::Open(open) = &mut self.phase {
            open.catch_up(&self.service, stream);
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

    fn on_close(&mut self, _: Key, reason: stream::DisconnectReason, mut turn: Turn<'_>) {
        let Some((id, close_info)) = self.leave() else {
            return self.tls_failed(reason, &mut turn);
        };
        let state = &self.service.state;
        state.drain.check(&state.tables.borrow().conns, &mut turn);
        let open = match &mut self.phase {
            ConnPhase::Open(open) => open,
            ConnPhase::Handshake { reader, requests, .. } => {
                // A client that got a response and asked for nothing more has lost nothing.
                if reader.is_some() || *requests == 0 {
                    state.shared.labels.count_handshake(HandshakeResult::Lost);
                }
                return;
            }
            ConnPhase::Deciding(_) => {
                return state.shared.labels.count_handshake(HandshakeResult::Lost);
            }
            ConnPhase::Rejected { .. } | ConnPhase::TlsHandshake(_) => return,
        };
        let close_info = close_info.unwrap_or_else(|| CloseInfo::new(close_reason_of(reason)));
        state.shared.count_end(&close_info);
        let closed =
            Closed { id, reason: close_info.reason, code: close_info.code, text: &close_info.text };
        self.service.handler.on_close(&mut Hub { state, turn }, &mut open.data, &closed);
    }
}

/// Returns the reason for an end that has no other explanation.
fn close_reason_of(reason: stream::DisconnectReason) -> CloseReason {
    match reason {
        stream::DisconnectReason::Error(errno) => CloseReason::Failed(errno),
        stream::DisconnectReason::WriteStall => CloseReason::WriteStall,
        // All other code that aborts a stream notes a reason.
        stream::DisconnectReason::Aborted => CloseReason::Drained,
        stream::DisconnectReason::Tls(failure) => CloseReason::Tls(failure),
        _ => CloseReason::Lost,
    }
}

impl<H: Handler> ConnHandler<H> {
    pub(crate) fn new(service: &Rc<ServiceInner<H>>, accepted: Accepted) -> Self {
        Self { service: Rc::clone(service), phase: ConnPhase::handshake(accepted) }
    }

    /// A connection that begins with a TLS handshake, for which so much memory is reserved.
    pub(crate) fn with_tls(
        service: &Rc<ServiceInner<H>>,
        accepted: Accepted,
        peer: &Address,
        memory: usize,
        slot: Option<Arc<ProxySlot>>,
    ) -> Self {
        let phase = ConnPhase::tls_handshake(service, accepted, peer, memory, slot);
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

    /// Leaves the connection table, once. Returns the former ID, and how the connection ended if
    /// that is known.
    fn leave(&mut self) -> Option<(ConnectionId, Option<CloseInfo>)> {
        let index = self.phase.take_index();
        if index == NO_CONN {
            return None;
        }
        let state = &self.service.state;
        Some(state.tables.borrow_mut().remove(&state.shared, index))
    }

    /// Carries out the requests of other code to this connection.
    #[cold]
    fn handle_requests(&mut self, stream: &mut Stream<'_>) {
        let index = self.phase.index();
        let wants = {
            let mut tables = self.service.state.tables.borrow_mut();
            let Some(entry) = tables.conns.get_mut(index) else { return };
            let mut wants = entry.flags;
            // Until it has begun to close, it must accept no messages of other code.
            entry.flags.clear(ConnFlags::WANTS.without(ConnFlags::WANTS_CLOSE));
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
            ConnPhase::Deciding(_) => self.on_decision(stream, wants),
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
        self.tls_dropped();
        let is_open = matches!(self.phase, ConnPhase::Open(_));
        if self.leave().is_some() && is_open {
            self.service.state.shared.labels.count_abort();
        }
    }
}

// Memory of a connection in its cell, beside the user's data. The engine takes 48 bytes. With the
// pointer to the service, the stream's index and the header of the registration, the block has 120
// bytes. Allocators that add a word and round up to 16 allocate 128 bytes for it.
const _: () = assert!(size_of::<ConnState>() == 16 && size_of::<ConnPhase<()>>() == 64);
