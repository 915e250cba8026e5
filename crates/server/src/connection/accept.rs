//! Connections that a listener accepts.

use std::{io, sync::Arc};

use windlass::{
    Reactor, Registrar,
    stream::{Listener, ListenerKey, Peer},
};

use super::handler::ConnHandler;
use crate::{
    api::{Handler, Rejected},
    http::ListenerKind,
    metrics::HandshakeResult,
    service::Service,
};

impl<H: Handler> Service<H> {
    /// Accepts connections from a listener. Create the listener with
    /// [`Options::listener`](crate::Options::listener), so that the stream buffers match the other
    /// settings. With [`Listener::with_tls`] it serves `https://` and `wss://`.
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
        let has_tls = tls.is_some();
        let accept = move |peer: &Peer<'_>| service.accept(peer, listener_kind, has_tls);
        let key = listener.register(accept, target).map_err(io::Error::from)?;
        let mut listeners = self.0.state.listeners.take();
        listeners.push(key);
        self.0.state.listeners.set(listeners);
        self.0.state.worker.add_tls(tls);
        Ok(key)
    }

    fn accept(
        &self,
        peer: &Peer<'_>,
        listener_kind: ListenerKind,
        has_tls: bool,
    ) -> Option<ConnHandler<H>> {
        let new = |permit| match has_tls {
            true => ConnHandler::with_tls(&self.0, permit, listener_kind, peer.address()),
            false => ConnHandler::new(&self.0, permit, listener_kind),
        };
        let Some(limiter) = &self.0.limiter else { return Some(new(None)) };
        match limiter.try_acquire(peer.address()) {
            Ok(permit) => Some(new(Some(permit))),
            Err(reason) => {
                self.0.state.stats.rejected.add(1);
                self.0.state.labels.count_handshake(HandshakeResult::AddressLimit);
                let reason = reason.to_string();
                self.0.handler.on_rejected(&Rejected {
                    peer: peer.address(),
                    status: None,
                    reason: &reason,
                });
                None
            }
        }
    }
}
