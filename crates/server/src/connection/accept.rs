//! Connections that a listener accepts.

use std::{io, sync::Arc, time::Instant};

use windlass::{
    Reactor, Registrar,
    stream::{Listener, ListenerKey, Peer},
};

use super::{
    handler::ConnHandler,
    proxy::{ClientRefusal, ProxiedSessions, ProxySlot},
};
use crate::{
    handler::Handler,
    http::{ConnectionPermit, ListenerKind},
    service::Service,
};

/// Facts about a connection from its acceptance.
pub(crate) struct Accepted {
    /// Counts the connection, if connections are counted by address, until the service state takes
    /// it over.
    pub(super) permit: Option<ConnectionPermit>,
    /// The kind of listening address, which decides the hosts that may be asked for.
    pub(super) listener_kind: ListenerKind,
    /// It is beyond the maximum number of connections, and was accepted to reject its request.
    pub(super) is_surplus: bool,
    /// It must begin with a PROXY header. Below TLS its session reads that.
    pub(super) expects_header: bool,
    /// Its peer is a proxy whose requests name the client.
    pub(super) is_forwarding: bool,
}

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
        mut listener: Listener,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> io::Result<ListenerKey> {
        if self.is_draining() {
            return Err(io::Error::other("the service is draining"));
        }
        if let Some(limit) = &self.0.stream_limit {
            listener = listener.limited(limit);
        }
        let service = self.clone();
        // An address of any family other than these two is not a loopback address.
        let listener_kind = listener
            .local_addr()
            .map_or(ListenerKind::Network, |address| ListenerKind::of(&address));
        let tls = listener.tls().map(Arc::clone);
        // The networks of proxies may change later.
        let proxied = tls.as_ref().map(|sessions| ProxiedSessions::new(Arc::clone(sessions)));
        if let Some(sessions) = proxied.clone() {
            listener = listener.with_tls(sessions);
        }
        let handshake_memory = tls.as_ref().map(|sessions| sessions.handshake_memory());
        let listener_tls = handshake_memory.zip(proxied);
        let listener_tls = listener_tls.map(|(memory, proxied)| ListenerTls { memory, proxied });
        let accept = move |peer: &Peer<'_>| service.accept(peer, listener_kind, &listener_tls);
        let key = listener.register(accept, target).map_err(io::Error::from)?;
        self.0.state.drain.add_listener(key);
        self.0.state.shared.worker.add_tls(tls);
        Ok(key)
    }

    fn accept(
        &self,
        peer: &Peer<'_>,
        listener_kind: ListenerKind,
        tls: &Option<ListenerTls>,
    ) -> Option<ConnHandler<H>> {
        let shared = &self.0.state.shared;
        let rules = shared.rules();
        let proxies = &rules.proxies;
        let expects_header = proxies.proxy_protocol.contains(peer.address());
        let is_forwarding = !expects_header && proxies.forwarded.contains(peer.address());
        // There is no turn here. A custom clock is read by timer events.
        let has_own_clock = self.0.state.has_own_clock;
        let now = || if has_own_clock { shared.timer_event() } else { Instant::now() };
        let mut permit = None;
        if !expects_header && self.0.has_address_limits() {
            match self.0.client_gate(tls.is_some()).admit(peer.address(), now()) {
                Ok(admitted) => permit = admitted,
                Err(refusal) => {
                    self.0.refuse(peer.address(), &refusal);
                    return None;
                }
            }
        }
        let rates = self.0.rates.get();
        if let Some((rest, limit)) = rates.and_then(|rates| rates.accept(tls.is_some(), now())) {
            shared.stats.connection_rates_reached.add(1);
            shared.labels.count_limit(limit);
            peer.rest_listener(rest);
        }
        let is_surplus = self.0.is_beyond_connections_max();
        let accepted =
            Accepted { permit, listener_kind, is_surplus, expects_header, is_forwarding };
        let Some(ListenerTls { memory, proxied }) = tls else {
            return Some(ConnHandler::new(&self.0, accepted));
        };
        if !shared.memory.reserve(*memory) {
            self.0.refuse(peer.address(), &ClientRefusal::out_of_memory());
            return None;
        }
        let slot = expects_header
            .then(|| ProxySlot::new(peer.address().clone(), self.0.client_gate(true)));
        proxied.set_next(slot.clone());
        Some(ConnHandler::with_tls(&self.0, accepted, peer.address(), *memory, slot))
    }
}

/// The TLS of a listener.
struct ListenerTls {
    /// The memory of a handshake.
    memory: usize,
    /// Its sessions, which may begin with a PROXY header.
    proxied: Arc<ProxiedSessions>,
}
