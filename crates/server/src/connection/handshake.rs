//! A connection before it is a WebSocket: its requests and their responses.

use core::cell::Cell;
use std::{
    borrow::Cow,
    rc::Rc,
    time::{Instant, SystemTime},
};

use windlass::stream::{Address, Input, Stream};
use windlass_ws::{
    Engine,
    handshake::{HeadReader, Rejection, Request, Upgrade},
};

use super::{
    accept::Accepted,
    deciding::{Deciding, head_of},
    handler::{ConnHandler, ConnPhase},
    open::{FirstCallback, Open, PassInput},
    rejection::rejecting_status,
};
use crate::{
    api::{Limit, Options},
    handler::{Handler, UpgradeDecision, UpgradeTicket, WaitingUpgrade},
    http::{
        Accept, AddressKey, LazyPeer, MalformedForwarded, Next, Opened, Reject, Served, TlsInfo,
        UpgradeRequest, reject, without_body,
    },
    metrics::HandshakeResult,
    service::ServiceInner,
    shared::RateExceeded,
    table::{ConnFlags, ConnState},
};

/// Memory of sent responses that is kept for the next ones, in bytes. Large pages are rare.
const RESPONSE_KEPT: usize = 16 << 10;

/// Response text while connections hold the maximum memory.
pub(super) const OUT_OF_MEMORY: &str = "the server's memory limit is reached; try again later";

/// Response text beyond the maximum number of connections.
const FULL: &str = "the server's connection limit is reached; try again later";

/// Response text to a header of a proxy that hides the client.
const MALFORMED_FORWARDED: &str = "the Forwarded header is malformed";

/// The outcome of a request.
pub(super) enum RequestOutcome<D> {
    /// The request is answered, and another one may follow. A rejected one has a result.
    Answered(Option<HandshakeResult>),
    /// The request is answered, and the connection ends. A rejected one has a result.
    End(Option<HandshakeResult>),
    Open {
        engine: Engine,
        is_compressed: bool,
        data: D,
        protocol: Option<Cow<'static, str>>,
    },
    /// The decision comes later.
    Later {
        head: Vec<u8>,
        waiting: WaitingUpgrade<D>,
    },
}

/// The engine of a connection that opens, whether it takes compressed frames, its data and its
/// subprotocol.
type OpenedParts<D> = (Engine, bool, D, Option<Cow<'static, str>>);

/// The origin of a request.
struct RequestClient {
    index: u32,
    /// Number of requests before it on its connection.
    requests: u32,
    /// The client that a proxy has named.
    address: Option<Address>,
}

/// How far the requests in some received bytes were handled.
struct RequestProgress<D> {
    /// The outcome of the request that opens or ends the connection.
    outcome: Option<RequestOutcome<D>>,
    /// Number of bytes used.
    used: usize,
    /// The reader of an incomplete request.
    pending: Option<Box<HeadReader>>,
}

impl<H: Handler> ConnHandler<H> {
    /// Handles bytes of requests. Bytes after an upgrade belong to the first frames: a client need
    /// not wait for the response.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_request_bytes(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let ConnPhase::Handshake { accepted, .. } = &self.phase else {
            if matches!(self.phase, ConnPhase::Deciding(_)) {
                self.service.state.shared.stats.wire_received.add(input.len() as u64);
                self.hold_while_deciding(stream, &input);
            }
            return;
        };
        self.service.state.shared.stats.wire_received.add(input.len() as u64);
        let mut input: &mut [u8] = &mut input;
        if accepted.expects_header {
            match self.take_proxy_header(stream, input) {
                Some(rest) if !rest.is_empty() => input = rest,
                _ => return,
            }
        }
        let ConnPhase::Handshake { index, reader, requests, accepted, accepted_at } =
            &mut self.phase
        else {
            return;
        };
        let (index, accepted_at) = (*index, *accepted_at);
        let service = Rc::clone(&self.service);
        let state = &*service.state;
        let mut response = state.response.take();
        let reader_was_there = reader.is_some();
        let mut client = RequestClient { index, requests: *requests, address: None };
        let RequestProgress { outcome, used, pending } = service.respond_to_all(
            input,
            reader.take(),
            &mut client,
            accepted,
            stream,
            &mut response,
        );
        *requests = client.requests;
        let partial_bytes = pending.as_ref().map_or(0, |reader| reader.buffered());
        if partial_bytes > 0 || reader_was_there {
            state.tables.borrow_mut().note_partial(&state.shared, index, partial_bytes);
        }
        *reader = pending;
        if !response.is_empty() {
            state.tables.borrow_mut().conns.entry(index).opened = state.shared.tick();
            // A failed stream reports its end separately.
            state.shared.stats.wire_sent.add(response.len() as u64);
            let _ = stream.send(&response);
            response.clear();
            response.shrink_to(RESPONSE_KEPT);
        }
        state.response.set(response);
        match outcome {
            None | Some(RequestOutcome::Answered(_)) => {}
            Some(RequestOutcome::End(_)) => {
                self.phase.reject();
                close_after_response(&state.shared.options, stream);
            }
            Some(RequestOutcome::Later { head, waiting }) => {
                state.tables.borrow_mut().note_partial(&state.shared, index, head.len());
                self.phase = ConnPhase::Deciding(Deciding::new(index, head, accepted_at, waiting));
                if used < input.len() {
                    self.hold_while_deciding(stream, &input[used..]);
                }
            }
            Some(RequestOutcome::Open { engine, is_compressed, data, protocol }) => {
                let opened = (engine, is_compressed, data, protocol);
                return self.open(stream, index, accepted_at, opened, &mut input[used..]);
            }
        }
        if partial_bytes > 0 || stream.buffered() > 0 {
            state.check_memory(&mut stream.turn());
        }
    }

    /// Opens the connection, and processes the bytes behind its request.
    pub(super) fn open(
        &mut self,
        stream: &mut Stream<'_>,
        index: u32,
        accepted_at: Option<Instant>,
        (engine, is_compressed, data, protocol): OpenedParts<H::Data>,
        rest: &mut [u8],
    ) {
        let service = Rc::clone(&self.service);
        let state = &*service.state;
        if let Some(accepted_at) = accepted_at {
            let time = stream.turn().now().saturating_duration_since(accepted_at);
            state.shared.labels.note_handshake_time(time);
        }
        state.shared.labels.count_handshake(HandshakeResult::Accepted);
        let protocol = protocol.as_deref();
        state.tables.borrow_mut().open(&state.shared, index, is_compressed, protocol);
        let conn = ConnState::new(index, state.shared.tick(), engine.has_deflate())
            .with_rate(state.shared.message_rates.open(index));
        if state.flags(index).any(ConnFlags::FULL) {
            // The output consists of pages that the client has not read. The stream will
            // report when it has.
            stream.pause();
        }
        self.phase = ConnPhase::Open(Open { engine, conn, data });
        let ConnPhase::Open(open) = &mut self.phase else { return };
        open.run_passes(&service, stream, PassInput::Bytes(rest), FirstCallback::Open);
    }

    /// Ends a connection that did not open.
    pub(crate) fn end_handshake(&mut self, stream: &mut Stream<'_>, wants: ConnFlags) {
        let ConnPhase::Handshake { reader, requests, accepted, .. } = &self.phase else { return };
        let state = Rc::clone(&self.service.state);
        let has_begun = reader.is_some();
        if wants.any(ConnFlags::WANTS_TIMEOUT) && accepted.expects_header {
            let peer = self.service.peer_of(self.phase.index(), stream);
            self.service.refuse_late_header(&peer);
        } else if wants.any(ConnFlags::WANTS_TIMEOUT) {
            // A client that got a response and asks for nothing more is merely closed, not
            // rejected.
            if has_begun || *requests == 0 {
                state.shared.stats.handshake_timeouts.add(1);
                state.shared.labels.count_handshake(HandshakeResult::Timeout);
            }
            if has_begun {
                let mut response = Vec::new();
                reject(Rejection::Timeout, SystemTime::now(), &mut response);
                self.send_rejection(stream, HandshakeResult::Timeout, &response);
            }
        } else if has_begun {
            state.shared.stats.rejected.add(1);
            state.shared.labels.count_handshake(HandshakeResult::Draining);
            let mut response = Vec::new();
            // It has no header of the application, which could be invalid.
            let _ = draining().write(SystemTime::now(), &mut response);
            self.send_rejection(stream, HandshakeResult::Draining, &response);
        }
        self.phase.reject();
        close_after_response(&state.shared.options, stream);
    }

    pub(super) fn send_response(&self, stream: &mut Stream<'_>, response: &[u8]) {
        self.service.state.shared.stats.wire_sent.add(response.len() as u64);
        // A failed stream reports its end separately.
        let _ = stream.send(response);
    }

    /// Reports the rejection of an incomplete request, and sends it.
    fn send_rejection(&self, stream: &mut Stream<'_>, result: HandshakeResult, response: &[u8]) {
        let peer = self.service.peer_of(self.phase.index(), stream);
        self.service.report_rejection(result, &peer, response);
        self.send_response(stream, response);
    }
}

/// The response during a drain.
pub(super) fn draining() -> Reject {
    Reject::status(503).text("the server shuts down; connect again in a moment")
}

/// Closes a connection that is not a WebSocket. Its last response may be a page, and a slow client
/// has as much time for it as for other output.
pub(super) fn close_after_response(options: &Options, stream: &mut Stream<'_>) {
    let Options { close_timeout, write_stall_timeout, .. } = *options;
    if stream.buffered() > RESPONSE_KEPT {
        stream.set_linger(
            write_stall_timeout.map_or(close_timeout, |timeout| timeout.max(close_timeout)),
        );
    }
    stream.close();
}

impl<H: Handler> ServiceInner<H> {
    /// Responds to the requests in these bytes, up to one that opens or ends the connection.
    /// Returns the outcome of that one, the number of bytes used, and the reader of an incomplete
    /// request.
    fn respond_to_all(
        &self,
        input: &[u8],
        mut pending: Option<Box<HeadReader>>,
        client: &mut RequestClient,
        accepted: &mut Accepted,
        stream: &mut Stream<'_>,
        response: &mut Vec<u8>,
    ) -> RequestProgress<H::Data> {
        let head_limits = &self.state.shared.options.head_limits;
        let mut at = 0;
        let outcome = loop {
            let bytes = &input[at..];
            let found = match &mut pending {
                _ if bytes.is_empty() => break None,
                Some(reader) => reader.request(bytes),
                None => Request::parse(bytes, head_limits),
            };
            let from = response.len();
            let (outcome, used) = match found {
                Ok(Some((request, used))) => {
                    let named = self.client_of_request(&request, accepted, client.index, stream);
                    let outcome = match named {
                        Ok(address) => {
                            client.address = address;
                            self.respond(&request, accepted, client, stream, response)
                        }
                        Err(MalformedForwarded) => {
                            client.address = None;
                            let rejection = Reject::status(400).text(MALFORMED_FORWARDED);
                            let result = HandshakeResult::BadRequest;
                            self.reject(&rejection, result, &request, response)
                        }
                    };
                    if let RequestOutcome::Answered(Some(result))
                    | RequestOutcome::End(Some(result)) = outcome
                    {
                        self.note_rejection(
                            result,
                            &self.address_of(client, stream),
                            &response[from..],
                        );
                    }
                    (outcome, used)
                }
                Ok(None) => break None,
                Err(rejection) => {
                    reject(rejection, SystemTime::now(), response);
                    let result = match rejection {
                        Rejection::HeadTooLong
                        | Rejection::TooManyHeaders
                        | Rejection::TargetTooLong => HandshakeResult::HeadLimit,
                        _ => HandshakeResult::BadRequest,
                    };
                    let peer = self.peer_of(client.index, stream);
                    self.note_rejection(result, &peer, &response[from..]);
                    (RequestOutcome::End(Some(result)), bytes.len())
                }
            };
            at += used;
            // The reader is finished. While a reader exists, a request counts as begun.
            pending = None;
            match outcome {
                RequestOutcome::Answered(_) => client.requests += 1,
                other => break Some(other),
            }
        };
        if outcome.is_none() && pending.is_none() && at < input.len() {
            // The head is incomplete.
            let mut begun = Box::new(HeadReader::new(*head_limits));
            // The same bytes were parsed without an error just now.
            let _ = begun.request(&input[at..]);
            pending = Some(begun);
        }
        RequestProgress { outcome, used: at, pending }
    }

    fn respond(
        &self,
        request: &Request<'_>,
        accepted: &mut Accepted,
        client: &RequestClient,
        stream: &mut Stream<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome<H::Data> {
        let state = &self.state;
        if let Err((result, rejection)) = self.check_limits(accepted, client, stream) {
            return self.reject(&rejection, result, request, out);
        }
        let rules = state.shared.rules();
        if let Err(rejection) = rules.hosts.check_at(request, accepted.listener_kind) {
            return self.reject(&rejection, HandshakeResult::BadHost, request, out);
        }
        if state.shared.memory.is_exhausted() {
            let rejection = Reject::status(503).text(OUT_OF_MEMORY);
            return self.reject(&rejection, HandshakeResult::Memory, request, out);
        }
        let Some(upgrade) = state.shared.options.routes.upgrade_of(request) else {
            return self.respond_otherwise(request, client.requests, stream, out);
        };
        match self.accept_upgrade(&upgrade, client, stream, out) {
            Ok(outcome) => outcome,
            Err((result, rejection)) => self.reject(&rejection, result, request, out),
        }
    }

    /// Checks the limits on requests.
    fn check_limits(
        &self,
        accepted: &mut Accepted,
        client: &RequestClient,
        stream: &mut Stream<'_>,
    ) -> Result<(), (HandshakeResult, Reject)> {
        if let Some(rates) = self.rates.get() {
            let key = AddressKey::of(&self.address_of(client, stream));
            let now = stream.turn().now();
            rates.request(key, now).map_err(|exceeded| self.rate_exceeded(&exceeded))?;
        }
        // There may be room by now.
        accepted.is_surplus = accepted.is_surplus && self.is_beyond_connections_max();
        if accepted.is_surplus {
            let rejection = Reject::status(503).text(FULL).header("Retry-After", "1");
            return Err((HandshakeResult::Full, rejection));
        }
        Ok(())
    }

    /// Counts the client that a proxy has named towards the limits of its address.
    #[cold]
    fn admit_client(
        &self,
        index: u32,
        address: &Address,
        stream: &mut Stream<'_>,
    ) -> Result<(), (HandshakeResult, Reject)> {
        // A custom clock is user code, so nothing is borrowed here.
        let now = stream.turn().now();
        let permit = self.client_gate(false).admit(address, now).map_err(|refusal| {
            self.count_rate(refusal.limit);
            let rejection =
                Reject::status(429).text(refusal.reason).header("Retry-After", refusal.retry_after);
            (refusal.result, rejection)
        })?;
        let mut tables = self.state.tables.borrow_mut();
        tables.set_permit(index, permit);
        tables.set_client(index, address.clone());
        Ok(())
    }

    /// The address of the client of a request.
    fn address_of(&self, client: &RequestClient, stream: &Stream<'_>) -> Address {
        client.address.clone().unwrap_or_else(|| self.peer_of(client.index, stream))
    }

    #[cold]
    fn rate_exceeded(&self, exceeded: &RateExceeded) -> (HandshakeResult, Reject) {
        self.state.shared.labels.count_limit(exceeded.limit);
        let (result, status) = match exceeded.limit {
            Limit::RequestRatePerAddress => (HandshakeResult::AddressRequestRate, 429),
            _ => (HandshakeResult::RequestRate, 503),
        };
        let rejection = Reject::status(status)
            .text(exceeded.to_string())
            .header("Retry-After", exceeded.retry_after());
        (result, rejection)
    }

    #[cold]
    fn reject(
        &self,
        rejection: &Reject,
        result: HandshakeResult,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome<H::Data> {
        let start = out.len();
        // A header that cannot be sent was replaced by a response with status 500.
        let _ = rejection.write(SystemTime::now(), out);
        if request.method() == "HEAD" {
            without_body(out, start);
        }
        RequestOutcome::End(Some(result))
    }

    /// Answers a request that is not an acceptable upgrade.
    #[cold]
    fn respond_otherwise(
        &self,
        request: &Request<'_>,
        before: u32,
        stream: &mut Stream<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome<H::Data> {
        let waiting_bytes = stream.buffered() + out.len();
        let served = Served { requests: before, waiting_bytes, now: SystemTime::now() };
        let start = out.len();
        let next = self.state.shared.options.routes.answer(request, &served, out);
        let result = match rejecting_status(&out[start..]) {
            Some(404) => Some(HandshakeResult::NotFound),
            Some(_) => Some(HandshakeResult::BadRequest),
            None => {
                self.state.shared.stats.requests.add(1);
                None
            }
        };
        match next {
            Next::Request => RequestOutcome::Answered(result),
            Next::Upgrade(_) | Next::Close => RequestOutcome::End(result),
        }
    }

    fn accept_upgrade(
        &self,
        upgrade: &Upgrade<'_>,
        client: &RequestClient,
        stream: &mut Stream<'_>,
        out: &mut Vec<u8>,
    ) -> Result<RequestOutcome<H::Data>, (HandshakeResult, Reject)> {
        let state = &self.state;
        if state.drain.has_begun() {
            return Err((HandshakeResult::Draining, draining()));
        }
        let of = |result: HandshakeResult| move |rejection: Reject| (result, rejection);
        let has_tls = stream.tls().is_some();
        let checked = state.shared.rules().origins.check_on(upgrade.request(), has_tls);
        checked.map_err(of(HandshakeResult::BadOrigin))?;
        if let Some(address) = &client.address {
            self.admit_client(client.index, address, stream)?;
        }
        let stream = &*stream;
        let lookup = || self.address_of(client, stream);
        let lookup_tls = || stream.tls().map(TlsInfo::of);
        let peer = LazyPeer::new(&lookup, &lookup_tls);
        let deferred = Cell::new(None);
        let ticket = UpgradeTicket {
            id: state.tables.borrow().conns.id(client.index),
            worker: &state.shared.worker,
            waiting_max: state.shared.options.pending_upgrades_max,
            deferred: &deferred,
        };
        let request = UpgradeRequest::lazy(upgrade, &peer);
        let decision = self.handler.decide_upgrade(&request, ticket);
        match (decision.map_err(of(HandshakeResult::Application))?, deferred.take()) {
            (UpgradeDecision::Accept(accept), _) => self.open_by(accept, upgrade, out),
            (UpgradeDecision::Later, Some(waiting)) => {
                Ok(RequestOutcome::Later { head: head_of(upgrade), waiting })
            }
            // A mistake of the application: nobody will decide.
            (UpgradeDecision::Later, None) => {
                Err((HandshakeResult::Application, Reject::status(500)))
            }
        }
    }

    /// Writes the response that opens a connection.
    pub(super) fn open_by(
        &self,
        accept: Accept<H::Data>,
        upgrade: &Upgrade<'_>,
        out: &mut Vec<u8>,
    ) -> Result<RequestOutcome<H::Data>, (HandshakeResult, Reject)> {
        let state = &self.state;
        let deflate = state.shared.options.deflate.as_ref();
        let Opened { data, protocol, deflate: agreement, .. } = accept
            .accept(upgrade, deflate, out)
            .map_err(|_| (HandshakeResult::Application, Reject::status(500)))?;
        let engine = state.shared.engine(agreement.as_ref());
        let is_compressed = state.shared.takes_compressed(agreement.as_ref());
        Ok(RequestOutcome::Open { engine, is_compressed, data, protocol })
    }
}
