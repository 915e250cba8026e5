//! A connection whose upgrade waits for its decision.
//!
//! 1. The request is kept as text, because its response depends on it. Bytes behind it are held.
//! 2. The decision is made on any thread, which wakes the worker. It is taken in the connection's
//!    own frame.
//! 3. `handshake_timeout` goes on. The connection counts as one in its handshake.

use std::{
    rc::Rc,
    time::{Instant, SystemTime},
};

use windlass::stream::Stream;
use windlass_ws::handshake::{Request, Upgrade};

use super::{
    handler::{ConnHandler, ConnPhase},
    handshake::{RequestOutcome, close_after_response, draining},
};
use crate::{
    handler::{Handler, WaitingUpgrade},
    http::Reject,
    metrics::HandshakeResult,
    table::ConnFlags,
};

/// Held input above which a connection is not read from.
const HELD_MAX: usize = 64 << 10;

pub(crate) struct Deciding<D> {
    pub(super) index: u32,
    /// The head of the request.
    head: Vec<u8>,
    accepted_at: Option<Instant>,
    waiting: WaitingUpgrade<D>,
}

impl<D> Deciding<D> {
    pub(super) fn new(
        index: u32,
        head: Vec<u8>,
        accepted_at: Option<Instant>,
        waiting: WaitingUpgrade<D>,
    ) -> Box<Self> {
        Box::new(Self { index, head, accepted_at, waiting })
    }
}

/// Writes the head of a request again.
pub(super) fn head_of(upgrade: &Upgrade<'_>) -> Vec<u8> {
    let request = upgrade.request();
    let mut head = format!("GET {} HTTP/1.1\r\n", request.target()).into_bytes();
    for header in request.headers() {
        head.extend_from_slice(header.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(header.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

impl<H: Handler> ConnHandler<H> {
    /// Holds bytes that follow a request without a decision.
    pub(super) fn hold_while_deciding(&mut self, stream: &mut Stream<'_>, bytes: &[u8]) {
        let state = &self.service.state;
        let index = self.phase.index();
        let mut tables = state.tables.borrow_mut();
        tables.hold(&state.shared, index, bytes);
        if tables.held_memory(index) > HELD_MAX {
            stream.pause();
        }
        drop(tables);
        state.check_memory(&mut stream.turn());
    }

    /// Acts on the decision, or on the end of the time for it.
    pub(super) fn on_decision(&mut self, stream: &mut Stream<'_>, wants: ConnFlags) {
        let ConnPhase::Deciding(deciding) = &self.phase else { return };
        let service = Rc::clone(&self.service);
        let index = deciding.index;
        let (result, decided) = match deciding.waiting.take() {
            Some(decide) => (HandshakeResult::Application, decide()),
            None if wants.any(ConnFlags::WANTS_TIMEOUT) => {
                service.state.shared.stats.handshake_timeouts.add(1);
                let text = "the server took too long to decide about the upgrade; try again later";
                let reject = Reject::status(503).text(text).header("Retry-After", "1");
                (HandshakeResult::Timeout, Err(reject))
            }
            None if wants.any(ConnFlags::WANTS_DRAIN) => {
                (HandshakeResult::Draining, Err(draining()))
            }
            None => return,
        };
        let ConnPhase::Deciding(deciding) = &self.phase else { return };
        let mut response = Vec::new();
        let mut limits = service.state.shared.options.head_limits;
        // It is written with a space before each value.
        limits.head_bytes_max = limits.head_bytes_max.saturating_mul(2);
        let outcome = decided.and_then(|accept| {
            let parsed = Request::parse(&deciding.head, &limits).ok().flatten();
            let upgrade = parsed.and_then(|(request, _)| request.upgrade().ok());
            let upgrade = upgrade.ok_or_else(|| Reject::status(500))?;
            service.open_by(accept, &upgrade, &mut response).map_err(|(_, reject)| reject)
        });
        let accepted_at = deciding.accepted_at;
        service.state.tables.borrow_mut().note_partial(&service.state.shared, index, 0);
        match outcome {
            Ok(RequestOutcome::Open { engine, is_compressed, data, protocol }) => {
                self.send_response(stream, &response);
                let state = &service.state;
                let held = state.tables.borrow_mut().take_held(&state.shared, index);
                stream.resume();
                let mut held = held.unwrap_or_default();
                let opened = (engine, is_compressed, data, protocol);
                self.open(stream, index, accepted_at, opened, &mut held);
            }
            Ok(_) => unreachable!("an accepted upgrade opens"),
            Err(reject) => {
                // A header that cannot be sent was replaced by a response with status 500.
                let _ = reject.write(SystemTime::now(), &mut response);
                let peer = service.peer_of(index, stream);
                service.note_rejection(result, &peer, &response);
                self.send_response(stream, &response);
                self.phase.reject();
                close_after_response(&service.state.shared.options, stream);
            }
        }
    }
}
