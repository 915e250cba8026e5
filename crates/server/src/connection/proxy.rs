//! Clients behind proxies.
//!
//! 1. A connection of a peer in `Proxies::proxy_protocol` begins with a PROXY header. Without TLS
//!    the connection itself reads it, in the phase of requests. Below TLS the session does.
//! 2. A peer in `Proxies::forwarded`, or one that a PROXY header states, names the client of each
//!    request in a header. One connection may have requests of several clients.
//! 3. Limits by address are checked when the client is known: at the acceptance, after the PROXY
//!    header, or at the request that opens a WebSocket.
//! 4. The service state has the address of a client that is not the peer.

use core::fmt;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use windlass::stream::{
    Address, Stream, TlsDecrypted, TlsFactoryStatus, TlsFailure, TlsPhase, TlsSession,
    TlsSessionFactory,
};
use windlass_ws::handshake::Request;

use super::{
    accept::Accepted,
    handler::{ConnHandler, ConnPhase},
    handshake::OUT_OF_MEMORY,
};
use crate::{
    api::{Limit, Rejected},
    handler::Handler,
    http::{
        AddressKey, ConnectionLimiter, ConnectionPermit, MalformedForwarded, Networks,
        ProxyHeaderError, StatedClient, client_of, parse_proxy_header,
    },
    metrics::HandshakeResult,
    service::ServiceInner,
    shared::ConnectionRates,
};

/// The limits of a client's address.
#[derive(Clone)]
pub(crate) struct ClientGate {
    pub(crate) limiter: Option<Arc<ConnectionLimiter>>,
    pub(crate) rates: Option<Arc<ConnectionRates>>,
    /// Peers that are proxies themselves, so that they have no limit.
    pub(crate) forwarded: Networks,
    pub(crate) has_tls: bool,
}

/// Why a client gets no connection.
#[derive(Debug)]
pub(crate) struct ClientRefusal {
    pub(crate) result: HandshakeResult,
    pub(crate) limit: Option<Limit>,
    pub(crate) reason: String,
    /// Seconds after which the client may try again.
    pub(crate) retry_after: String,
}

impl From<ProxyHeaderError> for ClientRefusal {
    fn from(error: ProxyHeaderError) -> Self {
        Self {
            result: HandshakeResult::BadProxyHeader,
            limit: None,
            reason: error.to_string(),
            retry_after: String::new(),
        }
    }
}

impl ClientRefusal {
    pub(super) fn out_of_memory() -> Self {
        Self {
            result: HandshakeResult::Memory,
            limit: Some(Limit::MemoryMax),
            reason: OUT_OF_MEMORY.to_owned(),
            retry_after: "1".to_owned(),
        }
    }
}

impl ClientGate {
    /// Counts a connection of a client towards the limits of its address.
    pub(crate) fn admit(
        &self,
        client: &Address,
        now: Instant,
    ) -> Result<Option<ConnectionPermit>, ClientRefusal> {
        if self.forwarded.contains(client) {
            return Ok(None);
        }
        if let Some(rates) = &self.rates {
            let counted = rates.connection(AddressKey::of(client), self.has_tls, now);
            counted.map_err(|exceeded| ClientRefusal {
                result: HandshakeResult::AddressRate,
                limit: Some(exceeded.limit),
                reason: exceeded.to_string(),
                retry_after: exceeded.retry_after(),
            })?;
        }
        let permit = self.limiter.as_ref().map(|limiter| limiter.try_acquire(client));
        permit.transpose().map_err(|error| ClientRefusal {
            result: HandshakeResult::AddressLimit,
            limit: Some(Limit::ConnectionsPerAddressMax),
            reason: error.to_string(),
            retry_after: "1".to_owned(),
        })
    }
}

/// The client that a PROXY header has stated, and its permit.
pub(super) struct AdmittedClient {
    pub(super) address: Address,
    pub(super) permit: Option<ConnectionPermit>,
}

/// A client, or the reason of its refusal with its address, if that is known.
type Admission = Result<AdmittedClient, Refused>;

type Refused = (Option<Address>, ClientRefusal);

/// Reads a PROXY header at the beginning of `bytes`. Returns the client and the length of the
/// header; `None` if it is incomplete. An error of the limits has the client's address.
fn read_header(
    bytes: &[u8],
    peer: impl FnOnce() -> Address,
    gate: &ClientGate,
    now: impl FnOnce() -> Instant,
) -> Result<Option<(AdmittedClient, usize)>, Refused> {
    let parsed = parse_proxy_header(bytes).map_err(|error| (None, error.into()))?;
    let Some((stated, len)) = parsed else { return Ok(None) };
    let address = match stated {
        StatedClient::Address(address) => Address::Ip(address),
        StatedClient::Own => peer(),
    };
    match gate.admit(&address, now()) {
        Ok(permit) => Ok(Some((AdmittedClient { address, permit }, len))),
        Err(refusal) => Err((Some(address), refusal)),
    }
}

impl<H: Handler> ConnHandler<H> {
    /// Handles bytes of a connection that must begin with a PROXY header. Returns the rest of the
    /// bytes once the header is there.
    #[cold]
    #[inline(never)]
    pub(super) fn take_proxy_header<'i>(
        &mut self,
        stream: &mut Stream<'_>,
        input: &'i mut [u8],
    ) -> Option<&'i mut [u8]> {
        let ConnPhase::Handshake { index, accepted, .. } = &mut self.phase else { return None };
        let (index, state) = (*index, &self.service.state);
        let mut bytes =
            state.tables.borrow_mut().take_held(&state.shared, index).unwrap_or_default();
        bytes.extend_from_slice(input);
        // A custom clock is user code, so nothing is borrowed here.
        let now = stream.turn().now();
        let peer = || stream.peer_addr().unwrap_or(Address::Unix(None));
        match read_header(&bytes, peer, &self.service.client_gate(false), || now) {
            Ok(None) => {
                state.tables.borrow_mut().hold(&state.shared, index, &bytes);
                None
            }
            Ok(Some((client, len))) => {
                accepted.expects_header = false;
                let rules = state.shared.rules();
                accepted.is_forwarding = rules.proxies.forwarded.contains(&client.address);
                let mut tables = state.tables.borrow_mut();
                tables.set_permit(index, client.permit);
                tables.set_client(index, client.address);
                // Earlier bytes belong to the header: without its end they were incomplete.
                let rest = bytes.len() - len;
                Some(input.split_at_mut(input.len() - rest).1)
            }
            Err((client, refusal)) => {
                let peer = client.unwrap_or_else(peer);
                self.service.refuse(&peer, &refusal);
                self.phase.reject();
                stream.close();
                None
            }
        }
    }
}

impl<H: Handler> ServiceInner<H> {
    /// Whether addresses have limits.
    pub(super) fn has_address_limits(&self) -> bool {
        self.limiter.is_some() || self.rates.get().is_some()
    }

    pub(super) fn client_gate(&self, has_tls: bool) -> ClientGate {
        ClientGate {
            limiter: self.limiter.clone(),
            rates: self.rates.get(),
            forwarded: self.state.shared.rules().proxies.forwarded.clone(),
            has_tls,
        }
    }

    /// Counts and reports a client that is refused without a response.
    #[cold]
    pub(super) fn refuse(&self, peer: &Address, refusal: &ClientRefusal) {
        let ClientRefusal { result, limit, reason, .. } = refusal;
        self.state.shared.stats.rejected.add(1);
        self.state.shared.labels.count_handshake(*result);
        self.count_rate(*limit);
        self.handler.on_rejected(&Rejected { peer, limit: *limit, status: None, reason });
    }

    /// Counts and reports a connection whose PROXY header did not come in time.
    #[cold]
    pub(super) fn refuse_late_header(&self, peer: &Address) {
        self.state.shared.stats.handshake_timeouts.add(1);
        self.state.shared.labels.count_handshake(HandshakeResult::LateProxyHeader);
        let (limit, reason) = (Some(Limit::HandshakeTimeout), "no PROXY header came in time");
        self.handler.on_rejected(&Rejected { peer, limit, status: None, reason });
    }

    /// Counts a rate of connections of an address. Other limits have counts of their own.
    pub(super) fn count_rate(&self, limit: Option<Limit>) {
        let rates = [Limit::ConnectionRatePerAddress, Limit::TlsHandshakeRatePerAddress];
        if let Some(limit) = limit.filter(|limit| rates.contains(limit)) {
            self.state.shared.labels.count_limit(limit);
        }
    }

    /// The address of a connection's client, or of the last proxy before it if requests name it.
    pub(super) fn peer_of(&self, index: u32, stream: &Stream<'_>) -> Address {
        let client = self.state.tables.borrow().client(index).cloned();
        client.unwrap_or_else(|| stream.peer_addr().unwrap_or(Address::Unix(None)))
    }

    /// The client that a request names; `None` if it is that of the connection.
    pub(super) fn client_of_request(
        &self,
        request: &Request<'_>,
        accepted: &Accepted,
        index: u32,
        stream: &Stream<'_>,
    ) -> Result<Option<Address>, MalformedForwarded> {
        if !accepted.is_forwarding {
            return Ok(None);
        }
        let rules = self.state.shared.rules();
        let proxies = &rules.proxies;
        let peer = self.peer_of(index, stream);
        client_of(peer, request.headers(), proxies.forwarded_header, &proxies.forwarded).map(Some)
    }
}

/// What a session below a PROXY header leaves for its connection.
pub(crate) struct ProxySlot {
    peer: Address,
    gate: ClientGate,
    found: Mutex<Option<Admission>>,
}

impl ProxySlot {
    pub(super) fn new(peer: Address, gate: ClientGate) -> Arc<Self> {
        Arc::new(Self { peer, gate, found: Mutex::default() })
    }

    /// Takes the client, or the reason of its refusal.
    pub(super) fn take(&self) -> Option<Admission> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Makes sessions below a PROXY header for those connections of a listener that have one.
pub(super) struct ProxiedSessions {
    inner: Arc<dyn TlsSessionFactory>,
    /// Of the connection that is being accepted. Its session is made right after.
    next: Mutex<Option<Arc<ProxySlot>>>,
}

impl ProxiedSessions {
    pub(super) fn new(inner: Arc<dyn TlsSessionFactory>) -> Arc<Self> {
        Arc::new(Self { inner, next: Mutex::default() })
    }

    /// The next session begins with a PROXY header, if there is a slot for it.
    pub(super) fn set_next(&self, slot: Option<Arc<ProxySlot>>) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = slot;
    }
}

impl fmt::Debug for ProxiedSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl TlsSessionFactory for ProxiedSessions {
    fn new_session(&self) -> Box<dyn TlsSession> {
        let session = self.inner.new_session();
        let slot = self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
        match slot {
            Some(slot) => Box::new(ProxiedSession { session, slot: Some(slot) }),
            None => session,
        }
    }

    fn handshake_memory(&self) -> usize {
        self.inner.handshake_memory()
    }

    fn status(&self) -> TlsFactoryStatus {
        self.inner.status()
    }
}

/// A TLS session behind a PROXY header.
struct ProxiedSession {
    session: Box<dyn TlsSession>,
    /// `None` after the header.
    slot: Option<Arc<ProxySlot>>,
}

impl TlsSession for ProxiedSession {
    fn decrypt(&mut self, input: &mut [u8], records: &mut Vec<u8>) -> TlsDecrypted {
        let Some(slot) = &self.slot else { return self.session.decrypt(input, records) };
        let read = read_header(input, || slot.peer.clone(), &slot.gate, Instant::now);
        let (len, found) = match read {
            Ok(None) => return TlsDecrypted::new(0, 0, TlsPhase::Handshake),
            Ok(Some((client, len))) => (len, Ok(client)),
            Err(refusal) => (0, Err(refusal)),
        };
        let is_refused = found.is_err();
        *slot.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        self.slot = None;
        if is_refused {
            let failed = TlsPhase::Failed(TlsFailure::ProtocolViolation);
            return TlsDecrypted::new(input.len(), 0, failed);
        }
        // During the handshake there is no plaintext, so only the number of bytes is another.
        let mut decrypted = self.session.decrypt(&mut input[len..], records);
        decrypted.consumed += len;
        decrypted
    }

    fn encrypt(&mut self, plaintext: &[u8], records: &mut Vec<u8>) -> Result<(), TlsFailure> {
        self.session.encrypt(plaintext, records)
    }

    fn close_notify(&mut self, records: &mut Vec<u8>) {
        self.session.close_notify(records);
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.session.alpn()
    }

    fn server_name(&self) -> Option<&str> {
        self.session.server_name()
    }

    fn peer_subject(&self) -> Option<&str> {
        self.session.peer_subject()
    }

    fn version(&self) -> Option<&'static str> {
        self.session.version()
    }

    fn is_resumed(&self) -> bool {
        self.session.is_resumed()
    }

    fn memory(&self) -> usize {
        self.session.memory()
    }
}
