//! A connection of the admin listener: requests and their responses.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use windlass::stream::{Input, Stream, StreamHandler};
use windlass_ws::handshake::{HeadLimits, HeadReader, Rejection, Request};

use super::token::Token;
use crate::{
    http::{self, Hosts, ListenerKind, reject, without_body},
    mailbox::StatsHandle,
    metrics::{CONTENT_TYPE, not_ready, write_metrics, write_status},
};

/// Maximum time from the first byte of a request to its last.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection ends after a response behind which so many bytes wait for the client.
const WAITING_MAX: usize = 256 << 10;

/// Settings that all connections share.
pub(super) struct AdminState {
    pub(super) stats: StatsHandle,
    pub(super) token: Option<Token>,
    pub(super) hosts: Hosts,
    pub(super) listener_kind: ListenerKind,
}

pub(super) struct AdminConn {
    state: Arc<AdminState>,
    /// The reader of an incomplete request, and when it began.
    pending: Option<(Box<HeadReader>, Instant)>,
    is_closing: bool,
}

impl AdminConn {
    pub(super) fn new(state: Arc<AdminState>) -> Self {
        Self { state, pending: None, is_closing: false }
    }

    /// Responds to the requests in these bytes.
    fn respond_to_all(&mut self, mut bytes: &[u8], waiting: usize, out: &mut Vec<u8>) {
        while !bytes.is_empty() && !self.is_closing {
            let (mut reader, since) = self.pending.take().unwrap_or_else(|| {
                (Box::new(HeadReader::new(HeadLimits::DEFAULT)), Instant::now())
            });
            match reader.request(bytes) {
                Ok(Some((request, used))) => {
                    let is_last = self.state.respond(&request, out);
                    self.is_closing = is_last || waiting + out.len() > WAITING_MAX;
                    bytes = &bytes[used..];
                }
                Ok(None) if since.elapsed() > REQUEST_TIMEOUT => self.fail(Rejection::Timeout, out),
                Ok(None) => return self.pending = Some((reader, since)),
                Err(rejection) => self.fail(rejection, out),
            }
        }
    }

    fn fail(&mut self, rejection: Rejection, out: &mut Vec<u8>) {
        reject(rejection, SystemTime::now(), out);
        self.is_closing = true;
    }
}

impl StreamHandler for AdminConn {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        if self.is_closing {
            return;
        }
        let mut out = Vec::new();
        self.respond_to_all(&input, stream.buffered(), &mut out);
        if !out.is_empty() {
            // A failed stream reports its end separately.
            let _ = stream.send(&out);
        }
        if self.is_closing {
            stream.close();
        }
    }
}

/// What a request is answered with.
struct Answer {
    status: u16,
    content_type: &'static str,
    /// A header line with its line ending, or nothing.
    header: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn text(status: u16, text: &str) -> Self {
        let body = format!("{text}\n").into_bytes();
        Self { status, content_type: "text/plain; charset=utf-8", header: "", body }
    }
}

impl AdminState {
    /// Appends the response to a request. Returns true if the connection must end.
    fn respond(&self, request: &Request<'_>, out: &mut Vec<u8>) -> bool {
        if let Err(rejection) = self.hosts.check_at(request, self.listener_kind) {
            let start = out.len();
            // It has no headers that could not be sent.
            let _ = rejection.write(SystemTime::now(), out);
            if request.method() == "HEAD" {
                without_body(out, start);
            }
            return true;
        }
        let answer = self.answer(request);
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
        is_last
    }

    fn answer(&self, request: &Request<'_>) -> Answer {
        if !self.is_authorized(request) {
            let mut answer = Answer::text(401, "this listener needs a bearer token");
            answer.header = "WWW-Authenticate: Bearer\r\n";
            return answer;
        }
        let path = request.path();
        if !matches!(path, "/metrics" | "/healthz" | "/readyz" | "/status") {
            return Answer::text(
                404,
                "there is nothing here: see /metrics, /healthz, /readyz and /status",
            );
        }
        if !matches!(request.method(), "GET" | "HEAD") {
            let mut answer = Answer::text(405, "only GET and HEAD");
            answer.header = "Allow: GET, HEAD\r\n";
            return answer;
        }
        if path == "/healthz" {
            return Answer::text(200, "alive");
        }
        let workers = self.stats.fresh_snapshots();
        let mut body = Vec::new();
        match path {
            "/metrics" => {
                write_metrics(&workers, &mut body);
                Answer { status: 200, content_type: CONTENT_TYPE, header: "", body }
            }
            "/status" => {
                write_status(&workers, self.stats.uptime(), &mut body);
                Answer { status: 200, content_type: "application/json", header: "", body }
            }
            _ => match not_ready(&workers) {
                None => Answer::text(200, "ready"),
                Some(reason) => Answer::text(503, reason),
            },
        }
    }

    fn is_authorized(&self, request: &Request<'_>) -> bool {
        let Some(token) = &self.token else { return true };
        request.header_bytes("Authorization").is_some_and(|value| token.is_in(value))
    }
}
