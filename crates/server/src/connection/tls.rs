//! Connections in their TLS handshake.
//!
//! 1. The handler of such a connection exists from its acceptance on, and `on_open` comes after the
//!    handshake. Until then the connection is not in the connection table and has no ID.
//! 2. It counts towards `connections_max` and towards the limit of its address all the same,
//!    because its stream and its permit exist.
//! 3. `handshake_timeout` begins with the acceptance. It covers the TLS handshake and the request
//!    together: the stream has it as the limit of the TLS handshake, and the table gets the tick of
//!    the acceptance.
//! 4. Its memory is reserved when it is accepted, by an estimate of its factory, and released when
//!    the handshake ends. No such connection is accepted above the high watermark of the budget.
//! 5. A drain closes it, through its listener. The drain has not ended before.

use std::sync::Arc;

use windlass::{
    Turn,
    stream::{Address, DisconnectReason, Stream, TlsFailure},
};

use super::{
    accept::Accepted,
    handler::{ConnHandler, ConnPhase},
    proxy::ProxySlot,
};
use crate::{
    api::{Limit, NO_CONN, Rejected},
    handler::Handler,
    metrics::TlsFailureLabel,
    service::ServiceInner,
};

/// A connection in its TLS handshake. It is in a box of its own, which goes when it opens.
pub(crate) struct TlsHandshake {
    peer: Address,
    accepted: Accepted,
    /// The tick in which it was accepted.
    accepted_tick: u32,
    /// Its part of the memory budget.
    memory: usize,
    /// The place of the client that a PROXY header states.
    slot: Option<Arc<ProxySlot>>,
}

impl<D> ConnPhase<D> {
    /// The phase of a connection that begins with a TLS handshake.
    pub(super) fn tls_handshake<H: Handler>(
        service: &ServiceInner<H>,
        accepted: Accepted,
        peer: &Address,
        memory: usize,
        slot: Option<Arc<ProxySlot>>,
    ) -> Self {
        let state = &service.state;
        let tables = &mut *state.tables.borrow_mut();
        tables.conns.begin_tls_handshake();
        tables.note_connections(&state.shared);
        let accepted_tick = state.shared.tick();
        let peer = peer.clone();
        let handshake = TlsHandshake { peer, accepted, accepted_tick, memory, slot };
        Self::TlsHandshake(Box::new(handshake))
    }
}

impl<H: Handler> ConnHandler<H> {
    /// Ends the phase of the TLS handshake, if the connection is in it.
    fn take_tls_handshake(&mut self) -> Option<TlsHandshake> {
        if !matches!(self.phase, ConnPhase::TlsHandshake(_)) {
            return None;
        }
        let rejected = ConnPhase::Rejected { index: NO_CONN };
        let ConnPhase::TlsHandshake(pending) = core::mem::replace(&mut self.phase, rejected) else {
            return None;
        };
        let state = &self.service.state;
        let tables = &mut *state.tables.borrow_mut();
        tables.conns.end_tls_handshake();
        tables.note_connections(&state.shared);
        state.shared.memory.release(pending.memory);
        Some(*pending)
    }

    /// The TLS handshake has ended: requests follow. Returns the tick of the acceptance, and the
    /// client that a PROXY header has stated.
    #[cold]
    pub(super) fn tls_opened(&mut self, stream: &Stream<'_>) -> Option<(u32, Option<Address>)> {
        let TlsHandshake { mut accepted, accepted_tick, slot, .. } = self.take_tls_handshake()?;
        let client = slot.and_then(|slot| slot.take()?.ok()).map(|client| {
            let rules = self.service.state.shared.rules();
            accepted.is_forwarding = rules.proxies.forwarded.contains(&client.address);
            accepted.permit = client.permit;
            client.address
        });
        accepted.expects_header = false;
        let session = stream.tls();
        let (version, is_resumed) =
            session.map_or((None, false), |session| (session.version(), session.is_resumed()));
        self.service.state.shared.labels.count_tls_handshake(version, is_resumed);
        self.phase = ConnPhase::handshake(accepted);
        Some((accepted_tick, client))
    }

    /// The connection has ended before its TLS handshake did. Does nothing in another phase.
    #[cold]
    pub(super) fn tls_failed(&mut self, reason: DisconnectReason, turn: &mut Turn<'_>) {
        let Some(TlsHandshake { mut peer, slot, .. }) = self.take_tls_handshake() else { return };
        let state = &self.service.state;
        state.drain.check(&state.tables.borrow().conns, turn);
        match slot.map(|slot| slot.take()) {
            Some(Some(Ok(client))) => peer = client.address,
            // The session did not begin: the failure is that of the connection.
            Some(Some(Err((client, refusal)))) => {
                return self.service.refuse(&client.unwrap_or(peer), &refusal);
            }
            Some(None) if reason == DisconnectReason::Tls(TlsFailure::HandshakeTimeout) => {
                return self.service.refuse_late_header(&peer);
            }
            Some(None) | None => {}
        }
        let failure = match reason {
            DisconnectReason::Tls(failure) => failure,
            // The drain has ended it (rule 5).
            DisconnectReason::Closed if state.drain.has_begun() => {
                return state.shared.labels.count_tls_failure(TlsFailureLabel::Draining);
            }
            _ => return state.shared.labels.count_tls_failure(TlsFailureLabel::Lost),
        };
        state.shared.labels.count_tls_failure(TlsFailureLabel::of(failure));
        match failure {
            // As a client of a plain listener that goes away without a request.
            TlsFailure::HandshakeIncomplete => return,
            TlsFailure::HandshakeTimeout => state.shared.stats.handshake_timeouts.add(1),
            _ => state.shared.stats.rejected.add(1),
        }
        let reason = format!("TLS handshake: {failure}");
        let limit = (failure == TlsFailure::HandshakeTimeout).then_some(Limit::HandshakeTimeout);
        let rejected = Rejected { peer: &peer, limit, status: None, reason: &reason };
        self.service.handler.on_rejected(&rejected);
    }

    /// The handler is dropped without a callback: the server has stopped, or something has
    /// panicked.
    pub(super) fn tls_dropped(&mut self) {
        if self.take_tls_handshake().is_some() {
            let label = if std::thread::panicking() {
                TlsFailureLabel::Internal
            } else if self.service.state.drain.has_begun() {
                TlsFailureLabel::Draining
            } else {
                TlsFailureLabel::Lost
            };
            self.service.state.shared.labels.count_tls_failure(label);
        }
    }
}
