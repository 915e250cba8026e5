//! A connection of the admin listener: requests and their responses.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use windlass::{
    Key, Turn,
    stream::{Address, DisconnectReason, Input, Stream, StreamHandler, Timeout},
};
use windlass_ws::handshake::{HeadLimits, HeadReader, Rejection, Request};

use super::{
    CONNECTIONS_MAX,
    connection_list::ConnectionList,
    controls::Controls,
    rejections::{RejectionCause, Rejections},
};
use crate::{
    connection::parse_response,
    http::{self, AddressKey, ListenerKind, reject, without_body},
    mailbox::StatsHandle,
    metrics::{CONTENT_TYPE, WorkerSnapshot, not_ready, write_admin_rejections, write_process},
};

/// Maximum time from the first byte of a request to its last. A client that sends nothing more is
/// told so at most [`IDLE_TIMEOUT`] later.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time without a byte from a client that has sent one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection ends after a response behind which so many bytes wait for the client.
const WAITING_MAX: usize = 256 << 10;

/// Settings and counts that all connections share.
pub(super) struct AdminState {
    stats: StatsHandle,
    controls: Arc<Controls>,
    listener_kind: ListenerKind,
    rejections: Rejections,
    connections: ConnectionList,
    stall_limit: Duration,
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
    address: Option<AddressKey>,
    /// The reader of an incomplete request, and when it began.
    pending: Option<(Box<HeadReader>, Instant)>,
    has_received: bool,
    is_closing: bool,
}

impl AdminConn {
    pub(super) fn new(state: Rc<AdminState>, peer: &Address) -> Self {
        let address = AddressKey::of(peer);
        Self { state, address, pending: None, has_received: false, is_closing: false }
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
                    let (is_last, cause) = self.state.respond(&request, &mut copy, out);
                    match cause {
                        Some(cause) => self.state.note(cause, stream, &out[start..]),
                        None => self.state.connections.note_answer(stream.key()),
                    }
                    self.is_closing = is_last || waiting + out.len() > WAITING_MAX;
                    bytes = &bytes[used..];
                }
                Ok(None) if since.elapsed() > REQUEST_TIMEOUT => {
                    self.fail(Rejection::Timeout, stream, out);
                }
                Ok(None) => return self.pending = Some((reader, since)),
                Err(rejection) => self.fail(rejection, stream, out),
            }
        }
    }

    fn fail(&mut self, rejection: Rejection, stream: &Stream<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        let cause = match rejection {
            Rejection::Timeout => RejectionCause::Timeout,
            _ => RejectionCause::BadRequest,
        };
        reject(rejection, SystemTime::now(), out);
        self.state.note(cause, stream, &out[start..]);
        self.is_closing = true;
    }
}

impl StreamHandler for AdminConn {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.state.make_room(stream, self.address);
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, _: Timeout) {
        if self.pending.take().is_none() {
            // Nothing was asked, or the peer does not read.
            return stream.abort();
        }
        let mut out = Vec::new();
        self.fail(Rejection::Timeout, stream, &mut out);
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

    fn on_close(&mut self, key: Key, _: DisconnectReason, _: Turn<'_>) {
        self.state.connections.remove(key);
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
}

impl AdminState {
    pub(super) fn new(
        stats: StatsHandle,
        controls: Arc<Controls>,
        listener_kind: ListenerKind,
        rejections: Rejections,
        stall_limit: Duration,
    ) -> Self {
        let connections = ConnectionList::default();
        Self { stats, controls, listener_kind, rejections, connections, stall_limit }
    }

    /// Notes a rejected request and its response.
    fn note(&self, cause: RejectionCause, stream: &Stream<'_>, response: &[u8]) {
        let (status, reason) = parse_response(response).unzip();
        self.rejections.note(cause, stream, status, reason.unwrap_or_default());
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
        self.rejections.note(RejectionCause::ConnectionsMax, &oldest, None, &reason);
        oldest.abort();
    }

    /// Appends the response to a request. Returns true if the connection must end, and the
    /// rejection if the request is rejected.
    fn respond(
        &self,
        request: &Request<'_>,
        copy: &mut SharedCopy,
        out: &mut Vec<u8>,
    ) -> (bool, Option<RejectionCause>) {
        let checked = self.controls.access().hosts.check_at(request, self.listener_kind);
        if let Err(rejection) = checked {
            let start = out.len();
            // It has no headers that could not be sent.
            let _ = rejection.write(SystemTime::now(), out);
            if request.method() == "HEAD" {
                without_body(out, start);
            }
            return (true, Some(RejectionCause::Host));
        }
        let answer = self.answer(request, copy);
        // The body of a request is never read.
        let has_body = request.header_bytes("Content-Length").is_some()
            || request.header_bytes("Transfer-Encoding").is_some();
        let is_last =
            has_body || request.is_http_1_0() || http::wants_close(request) || answer.status >= 400;
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

    fn answer(&self, request: &Request<'_>, copy: &mut SharedCopy) -> Answer {
        if !self.is_authorized(request) {
            return Answer::rejected(
                401,
                RejectionCause::Token,
                "this listener needs a bearer token",
                "WWW-Authenticate: Bearer\r\n",
            );
        }
        let path = request.path();
        if !matches!(path, "/metrics" | "/healthz" | "/readyz" | "/status") {
            let text = "there is nothing here: see /metrics, /healthz, /readyz and /status";
            return Answer::rejected(404, RejectionCause::Path, text, "");
        }
        if !matches!(request.method(), "GET" | "HEAD") {
            let allowed = "Allow: GET, HEAD\r\n";
            return Answer::rejected(405, RejectionCause::Method, "only GET and HEAD", allowed);
        }
        if matches!(path, "/healthz" | "/readyz") {
            // No worker is waited for, because this one does not answer.
            if let Some(text) = self.stalled() {
                return Answer::text(503, &text);
            }
        }
        if path == "/healthz" {
            return Answer::text(200, "alive");
        }
        let workers = copy.get(&self.stats);
        let mut body = Vec::new();
        match path {
            "/metrics" => {
                self.stats.write_metrics(workers, &mut body);
                write_admin_rejections(self.rejections.counts(), &mut body);
                write_process(&mut body);
                Answer::found(CONTENT_TYPE, body)
            }
            "/status" => {
                self.stats.write_status(workers, &mut body);
                Answer::found("application/json", body)
            }
            _ if self.controls.is_leaving() => Answer::text(503, "leaving: the server shuts down"),
            _ => match not_ready(workers).or(self.stats.cluster_not_ready()) {
                None => Answer::text(200, "ready"),
                Some(reason) => Answer::text(503, reason),
            },
        }
    }

    /// Describes a worker that has been in its turn for too long, if there is one.
    fn stalled(&self) -> Option<String> {
        let (index, age) = self.stats.slowest_worker()?;
        (age > self.stall_limit).then(|| {
            format!("stalled: worker {index} has not finished a turn for {} s", age.as_secs())
        })
    }

    fn is_authorized(&self, request: &Request<'_>) -> bool {
        let access = self.controls.access();
        let Some(token) = &access.token else { return true };
        request.header_bytes("Authorization").is_some_and(|value| token.is_in(value))
    }
}
