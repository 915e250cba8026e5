//! Connections that a listener accepts.

use std::{io, sync::Arc};

use windlass::{
    Reactor, Registrar,
    stream::{Listener, ListenerKey, Peer},
};

use super::{handler::ConnHandler, handshake::OUT_OF_MEMORY};
use crate::{
    api::Rejected, handler::Handler, http::ListenerKind, metrics::HandshakeResult, service::Service,
};

impl<H: Handler> Service<H> {
    /// Accepts connections from a listener. Create the listener with
    /// [`Options::listener`](crate::Options::listener), so that the stream buffers match the other
    /// settings. With [`Listener::with_tls`] it serves `https://` and `wss://`. Such connections
    /// are rejected above the high watermark of [`memory_max`](crate::Options::memory_max).
    ///
    /// # Errors
    /// - The reactor has no room for the listener.
    /// - A [drain](Self::drain) has begun.
    pub fn listen(
        &self,
        listener: Listener,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> io::Result<ListenerKey> {
        if self.is_draining() {
            return Err(io::Error::other("the service is draining"));
        }
        let service = self.clone();
        // An address of any family other than these two is not a loopback address.
        let listener_kind = listener
            .local_addr()
            .map_or(ListenerKind::Network, |address| ListenerKind::of(&address));
        let tls = listener.tls().map(Arc::clone);
        let handshake_memory = tls.as_ref().map(|sessions| sessions.handshake_memory());
        let accept = move |peer: &Peer<'_>| service.accept(peer, listener_kind, handshake_memory);
        let key = listener.register(accept, target).map_err(io::Error::from)?;
        self.0.state.drain.add_listener(key);
        self.0.state.shared.worker.add_tls(tls);
        Ok(key)
    }

    /// `handshake_memory` is `None` without TLS.
    fn accept(
        &self,
        peer: &Peer<'_>,
        listener_kind: ListenerKind,
        handshake_memory: Option<usize>,
    ) -> Option<ConnHandler<H>> {
        let limiter = self.0.limiter.as_ref();
        let permit = match limiter.map(|limiter| limiter.try_acquire(peer.address())).transpose() {
            Ok(permit) => permit,
            Err(reason) => {
                self.reject(peer, HandshakeResult::AddressLimit, &reason.to_string());
                return None;
            }
        };
        let Some(bytes) = handshake_memory else {
            return Some(ConnHandler::new(&self.0, permit, listener_kind));
        };
        if !self.0.state.shared.memory.reserve(bytes) {
            self.reject(peer, HandshakeResult::Memory, OUT_OF_MEMORY);
            return None;
        }
        Some(ConnHandler::with_tls(&self.0, permit, listener_kind, peer.address(), bytes))
    }

    #[cold]
    fn reject(&self, peer: &Peer<'_>, result: HandshakeResult, reason: &str) {
        self.0.state.shared.stats.rejected.add(1);
        self.0.state.shared.labels.count_handshake(result);
        self.0.handler.on_rejected(&Rejected { peer: peer.address(), status: None, reason });
    }
}
