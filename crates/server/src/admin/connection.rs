//! A connection of the admin listener: requests and their responses.

use core::cell::Cell;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use windlass::{
    Key, Turn,
    stream::{Address, DisconnectReason, Input, Stream, StreamHandler, Timeout, TlsFailure},
};
use windlass_ws::handshake::{HeadLimits, HeadReader, Rejection, Request};

use super::{
    CONNECTIONS_MAX, Rules,
    connection_list::ConnectionList,
    controls::Controls,
    disconnect::{AdminDisconnect, OnDisconnected},
    inspect::{self, ParameterError},
    rejections::{RejectionCause, Rejections},
};
use crate::{
    connection::parse_response,
    http::{self, AddressKey, ConnectionPermit, ListenerKind, reject, without_body},
    mailbox::{Inspector, StatsHandle},
    metrics::{CONTENT_TYPE, WorkerSnapshot, not_ready, write_admin_counts, write_process},
};

/// Maximum time from the first byte of a request to its last. A client that sends nothing more is
/// told so at most [`IDLE_TIMEOUT`] later.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time without a byte from a client that has sent one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection ends after a response behind which so many bytes wait for the client.
const WAITING_MAX: usize = 256 << 10;

/// The paths whose answers take a look at single connections or topics.
const INSPECTIONS: [&str; 3] = ["/connections", "/rooms", "/disconnect"];

/// Settings and counts that all connections share.
pub(super) struct AdminState {
    stats: StatsHandle,
    inspector: Inspector,
    controls: Arc<Controls>,
    listener_kind: ListenerKind,
    rejections: Rejections,
    connections: ConnectionList,
    rules: Rules,
    on_disconnected: Option<OnDisconnected>,
    /// Number of connections that were closed because a request has asked for it.
    disconnected: Cell<u64>,
}

/// The counts of the workers, copied for the first request that asks for them. Requests that were
/// received together share a copy, because each one waits for busy workers.
#[derive(Default)]
struct SharedCopy(Option<Vec<WorkerSnapshot>>);

impl SharedCopy {
    fn get(&mut self, stats: &StatsHandle) -> &[WorkerSnapshot] {
        self.0.get_or_insert_with(|| stats.fresh_snapshots())
    }
}

pub(super) struct AdminConn {
    state: Rc<AdminState>,
    peer: Address,
    /// Counts it with the others of its address, if they begin with a TLS handshake.
    _permit: Option<ConnectionPermit>,
    /// The reader of an incomplete request, and when it began.
    pending: Option<(Box<HeadReader>, Instant)>,
    has_received: bool,
    is_closing: bool,
}

impl AdminConn {
    pub(super) fn new(
        state: Rc<AdminState>,
        peer: &Address,
        permit: Option<ConnectionPermit>,
    ) -> Self {
        let (peer, pending) = (peer.clone(), None);
        Self { state, peer, _permit: permit, pending, has_received: false, is_closing: false }
    }

    /// Responds to the requests in these bytes.
    fn respond_to_all(&mut self, mut bytes: &[u8], stream: &Stream<'_>, out: &mut Vec<u8>) {
        let waiting = stream.buffered();
        let mut copy = SharedCopy::default();
        while !bytes.is_empty() && !self.is_closing {
            let (mut reader, since) = self.pending.take().unwrap_or_else(|| {
                (Box::new(HeadReader::new(HeadLimits::DEFAULT)), Instant::now())
            });
            match reader.request(bytes) {
                Ok(Some((request, used))) => {
                    let start = out.len();
                    let (is_last, cause) = self.state.respond(&request, &self.peer, &mut copy, out);
                    match cause {
                        Some(cause) => self.state.note(cause, &self.peer, &out[start..]),
                        None => self.state.connections.note_answer(stream.key()),
                    }
                    self.is_closing = is_last || waiting + out.len() > WAITING_MAX;
                    bytes = &bytes[used..];
                }
                Ok(None) if since.elapsed() > REQUEST_TIMEOUT => {
                    self.fail(Rejection::Timeout, out);
                }
                Ok(None) => return self.pending = Some((reader, since)),
                Err(rejection) => self.fail(rejection, out),
            }
        }
    }

    fn fail(&mut self, rejection: Rejection, out: &mut Vec<u8>) {
        let start = out.len();
        let cause = match rejection {
            Rejection::Timeout => RejectionCause::Timeout,
            _ => RejectionCause::BadRequest,
        };
        reject(rejection, SystemTime::now(), out);
        self.state.note(cause, &self.peer, &out[start..]);
        self.is_closing = true;
    }
}

impl StreamHandler for AdminConn {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.state.make_room(stream, AddressKey::of(&self.peer));
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, _: Timeout) {
        if self.pending.take().is_none() {
            // Nothing was asked, or the peer does not read.
            return stream.abort();
        }
        let mut out = Vec::new();
        self.fail(Rejection::Timeout, &mut out);
        let _ = stream.send(&out);
        stream.close();
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        if self.is_closing {
            return;
        }
        if !core::mem::replace(&mut self.has_received, true) {
            stream.set_idle_timeout(Some(IDLE_TIMEOUT));
        }
        let mut out = Vec::new();
        self.respond_to_all(&input, stream, &mut out);
        if !out.is_empty() {
            // A failed stream reports its end separately.
            let _ = stream.send(&out);
        }
        if self.is_closing {
            stream.close();
        }
    }

    fn on_close(&mut self, key: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.state.connections.remove(key);
        let failed = match reason {
            // As a client that goes away without a request.
            DisconnectReason::Tls(TlsFailure::HandshakeIncomplete | TlsFailure::Truncated) => None,
            DisconnectReason::Tls(failure) => Some(failure),
            _ => None,
        };
        if let Some(failure) = failed {
            let reason = format!("TLS: {failure}");
            self.state.rejections.note(RejectionCause::Tls, &self.peer, None, &reason);
        }
    }
}

/// What a request is answered with.
struct Answer {
    status: u16,
    cause: Option<RejectionCause>,
    content_type: &'static str,
    /// A header line with its line ending, or nothing.
    header: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn text(status: u16, text: &str) -> Self {
        let body = format!("{text}\n").into_bytes();
        let content_type = "text/plain; charset=utf-8";
        Self { status, cause: None, content_type, header: "", body }
    }

    fn rejected(status: u16, cause: RejectionCause, text: &str, header: &'static str) -> Self {
        Self { cause: Some(cause), header, ..Self::text(status, text) }
    }

    fn found(content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status: 200, cause: None, content_type, header: "", body }
    }

    fn json(body: Vec<u8>) -> Self {
        Self::found("application/json", body)
    }

    fn bad_parameter(error: &str) -> Self {
        Self::rejected(400, RejectionCause::Parameter, error, "")
    }
}

impl AdminState {
    pub(super) fn new(
        stats: StatsHandle,
        controls: Arc<Controls>,
        listener_kind: ListenerKind,
        rejections: Rejections,
        rules: Rules,
        on_disconnected: Option<OnDisconnected>,
    ) -> Self {
        let (inspector, connections) = (stats.inspector(), ConnectionList::default());
        let disconnected = Cell::new(0);
        Self {
            stats,
            inspector,
            controls,
            listener_kind,
            rejections,
            connections,
            rules,
            on_disconnected,
            disconnected,
        }
    }

    /// Notes a rejected request and its response.
    fn note(&self, cause: RejectionCause, peer: &Address, response: &[u8]) {
        let (status, reason) = parse_response(response).unzip();
        self.rejections.note(cause, peer, status, reason.unwrap_or_default());
    }

    /// Gives a new connection an entry, if need be that of another one, which is closed.
    fn make_room(&self, stream: &mut Stream<'_>, address: Option<AddressKey>) {
        let Some(oldest) = self.connections.enter(stream.key(), address) else { return };
        let mut turn = stream.turn();
        // A handler that panicked has left its entry to a stream that is gone.
        let Ok(mut oldest) = turn.stream(oldest) else { return };
        let reason = format!(
            "connection limit {CONNECTIONS_MAX} of the admin listener reached; this one of the \
             address with most connections without an answer was closed"
        );
        let peer = oldest.peer_addr().unwrap_or(Address::Unix(None));
        self.rejections.note(RejectionCause::ConnectionsMax, &peer, None, &reason);
        oldest.abort();
    }

    /// Notes a connection that is closed before its TLS handshake: its address has too many.
    pub(super) fn note_too_many(&self, peer: &Address, reason: &str) {
        self.rejections.note(RejectionCause::ConnectionsMax, peer, None, reason);
    }

    /// Appends the response to a request. Returns true if the connection must end, and the
    /// rejection if the request is rejected.
    fn respond(
        &self,
        request: &Request<'_>,
        peer: &Address,
        copy: &mut SharedCopy,
        out: &mut Vec<u8>,
    ) -> (bool, Option<RejectionCause>) {
        // One look: the access may change at any moment.
        let access = self.controls.access();
        let checked = access.hosts.check_at(request, self.listener_kind);
        let is_authorized = access.token.as_ref().map(|token| {
            request.header_bytes("Authorization").is_some_and(|value| token.is_in(value))
        });
        drop(access);
        if let Err(rejection) = checked {
            let start = out.len();
            // It has no headers that could not be sent.
            let _ = rejection.write(SystemTime::now(), out);
            if request.method() == "HEAD" {
                without_body(out, start);
            }
            return (true, Some(RejectionCause::Host));
        }
        let answer = self.answer(request, peer, is_authorized, copy);
        // The body of a request is never read.
        let has_body = request.header_bytes("Content-Length").is_some()
            || request.header_bytes("Transfer-Encoding").is_some();
        // Such a look may take a while, and the others wait for it.
        let is_slow = INSPECTIONS.contains(&request.path());
        let wants_close = request.is_http_1_0() || http::wants_close(request);
        // Open health is for anybody, so it takes no place for long.
        let is_stranger = is_authorized == Some(false);
        let is_last = has_body || is_slow || is_stranger || wants_close || answer.status >= 400;
        let body = if request.method() == "HEAD" { &[][..] } else { &answer.body };
        http::start_response(answer.status, SystemTime::now(), out);
        let Answer { content_type, header, .. } = answer;
        out.extend_from_slice(
            format!(
                "Content-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
                 X-Content-Type-Options: nosniff\r\n{header}",
                answer.body.len()
            )
            .as_bytes(),
        );
        http::finish_response(is_last, body, out);
        (is_last, answer.cause)
    }

    /// `is_authorized` is whether the request has the token, if there is one.
    fn answer(
        &self,
        request: &Request<'_>,
        peer: &Address,
        is_authorized: Option<bool>,
        copy: &mut SharedCopy,
    ) -> Answer {
        let path = request.path();
        let is_health = matches!(path, "/healthz" | "/readyz");
        let is_open = is_health && self.rules.has_open_health;
        if !is_open && is_authorized == Some(false) {
            return Answer::rejected(
                401,
                RejectionCause::Token,
                "this listener needs a bearer token",
                "WWW-Authenticate: Bearer\r\n",
            );
        }
        if path == "/disconnect" {
            return self.disconnect(request, peer, is_authorized);
        }
        if !is_health && !INSPECTIONS.contains(&path) && !matches!(path, "/metrics" | "/status") {
            let text = "there is nothing here: see /metrics, /healthz, /readyz, /status, \
                        /connections, /rooms and /disconnect";
            return Answer::rejected(404, RejectionCause::Path, text, "");
        }
        if !matches!(request.method(), "GET" | "HEAD") {
            let allowed = "Allow: GET, HEAD\r\n";
            return Answer::rejected(405, RejectionCause::Method, "only GET and HEAD", allowed);
        }
        if INSPECTIONS.contains(&path) {
            if is_authorized.is_none() && is_of_page(request) {
                let text = "pages of other sites may not look at connections and rooms";
                return Answer::rejected(403, RejectionCause::Token, text, "");
            }
            let found = self.inspect(path, request.query());
            return found.map_or_else(|error| Answer::bad_parameter(&error), Answer::json);
        }
        if is_health {
            // No worker is waited for, because this one does not answer.
            if let Some(text) = self.stalled() {
                return Answer::text(503, &text);
            }
        }
        if path == "/healthz" {
            return Answer::text(200, "alive");
        }
        if is_authorized == Some(false) {
            // Others wait while this thread waits for workers. These copies are at most about a
            // second old.
            copy.0.get_or_insert_with(|| self.stats.last_snapshots().collect());
        }
        let workers = copy.get(&self.stats);
        let mut body = Vec::new();
        match path {
            "/metrics" => {
                self.stats.write_metrics(workers, &mut body);
                let (disconnected, reloads) = (self.disconnected.get(), self.controls.reloads());
                write_admin_counts(self.rejections.counts(), disconnected, reloads, &mut body);
                write_process(&mut body);
                Answer::found(CONTENT_TYPE, body)
            }
            "/status" => {
                self.stats.write_status(workers, &mut body);
                Answer::json(body)
            }
            _ if self.controls.is_leaving() => Answer::text(503, "leaving: the server shuts down"),
            _ => match (not_ready(workers), self.stats.cluster_not_ready()) {
                (Some(reason), _) => Answer::text(503, reason),
                (None, Some(reason)) if self.rules.is_cluster_required => Answer::text(503, reason),
                (None, Some(reason)) => Answer::text(200, &format!("ready, but {reason}")),
                (None, None) => Answer::text(200, "ready"),
            },
        }
    }

    fn inspect(&self, path: &str, query: Option<&str>) -> Result<Vec<u8>, ParameterError> {
        if path == "/connections" {
            let query = inspect::connection_query(query)?;
            return Ok(inspect::connections_json(&self.inspector.connections(&query)));
        }
        let limit = inspect::room_limit(query)?;
        Ok(inspect::rooms_json(&self.inspector.topics(limit)))
    }

    /// A page of another site can send such a request, so a token is needed on loopback too.
    fn disconnect(
        &self,
        request: &Request<'_>,
        peer: &Address,
        is_authorized: Option<bool>,
    ) -> Answer {
        if request.method() != "POST" {
            let allowed = "Allow: POST\r\n";
            return Answer::rejected(405, RejectionCause::Method, "only POST", allowed);
        }
        if is_authorized != Some(true) {
            let text = "to disconnect clients, the listener must have a token";
            return Answer::rejected(403, RejectionCause::Token, text, "");
        }
        let asked = match inspect::disconnect_request(request.query()) {
            Ok(asked) => asked,
            Err(error) => return Answer::bad_parameter(&error),
        };
        let done = self.inspector.disconnect(asked.target);
        self.disconnected.set(self.disconnected.get() + done.count);
        if let Some(on_disconnected) = &self.on_disconnected {
            let (by, target) = (asked.by, &*asked.value);
            let report = AdminDisconnect { peer, by, target, done };
            // The panic hook reports a panic. The listener must not end by it.
            let _ = catch_unwind(AssertUnwindSafe(|| on_disconnected(&report)));
        }
        Answer::json(inspect::disconnected_json(done))
    }

    /// Describes a worker that has been in its turn for too long, if there is one.
    fn stalled(&self) -> Option<String> {
        let (index, age) = self.stats.slowest_worker()?;
        (age > self.rules.stall_limit).then(|| {
            format!("stalled: worker {index} has not finished a turn for {} s", age.as_secs())
        })
    }
}

/// Whether a browser says that a page of another site has sent the request.
fn is_of_page(request: &Request<'_>) -> bool {
    let site = request.header_bytes("Sec-Fetch-Site");
    request.header_bytes("Origin").is_some()
        || site.is_some_and(|site| !matches!(site, b"none" | b"same-origin"))
}
