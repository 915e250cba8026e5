//! Reports of rejected requests to the application.

use windlass::stream::Address;

use crate::{
    api::{Limit, Rejected},
    handler::Handler,
    metrics::HandshakeResult,
    service::ServiceInner,
};

impl<H: Handler> ServiceInner<H> {
    /// Counts a rejected request, and reports it with its response.
    #[cold]
    pub(super) fn note_rejection(&self, result: HandshakeResult, peer: &Address, answer: &[u8]) {
        self.state.shared.stats.rejected.add(1);
        self.state.shared.labels.count_handshake(result);
        self.report_rejection(result, peer, answer);
    }

    /// Reports a response that rejects a request, with the status and the reason that the peer
    /// reads.
    #[cold]
    pub(crate) fn report_rejection(&self, result: HandshakeResult, peer: &Address, answer: &[u8]) {
        let Some((status, reason)) = parse_response(answer) else { return };
        let limit = match result {
            HandshakeResult::HeadLimit => Some(Limit::Head),
            HandshakeResult::AddressLimit => Some(Limit::ConnectionsPerAddressMax),
            HandshakeResult::AddressRate => Some(Limit::ConnectionRatePerAddress),
            HandshakeResult::AddressRequestRate => Some(Limit::RequestRatePerAddress),
            HandshakeResult::RequestRate => Some(Limit::RequestRate),
            HandshakeResult::Full => Some(Limit::ConnectionsMax),
            HandshakeResult::Memory => Some(Limit::MemoryMax),
            HandshakeResult::Timeout => Some(Limit::HandshakeTimeout),
            _ => None,
        };
        self.handler.on_rejected(&Rejected { peer, limit, status: Some(status), reason });
    }
}

/// Returns the status of a response if it rejects a request.
pub(super) fn rejecting_status(answer: &[u8]) -> Option<u16> {
    let digits = core::str::from_utf8(answer.get(STATUS_AT)?).ok()?;
    digits.parse().ok().filter(|status| *status >= 400)
}

/// Where the status is in a response: behind `HTTP/1.1 ` (RFC 9112 section 4).
const STATUS_AT: core::ops::Range<usize> = 9..12;

/// Returns status and text of a response that rejects a request. A response to HEAD has no text;
/// there it is the phrase of the status.
pub(crate) fn parse_response(answer: &[u8]) -> Option<(u16, &str)> {
    let answer = core::str::from_utf8(answer).ok()?;
    let (head, text) = answer.split_once("\r\n\r\n")?;
    let mut first = head.lines().next()?.splitn(3, ' ').skip(1);
    let status = first.next()?.parse().ok().filter(|status| *status >= 300)?;
    let text = if text.is_empty() { first.next()? } else { text };
    let reason = text.split(char::is_control).next().unwrap_or_default();
    Some((status, reason))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::{parse_response, rejecting_status};
    use crate::http::Reject;

    #[test]
    fn an_answer_says_why() {
        let mut answer = Vec::new();
        windlass_ws::handshake::Rejection::BadHost.write(&mut answer);
        let (status, reason) = parse_response(&answer).unwrap();
        assert!(status == 400 && reason.contains("Host"), "{status} {reason}");
        let answer_of = |rejection: Reject| {
            let mut answer = Vec::new();
            rejection.write(UNIX_EPOCH, &mut answer).unwrap();
            answer
        };
        assert_eq!(
            parse_response(&answer_of(Reject::status(401).text("who are you?"))),
            Some((401, "who are you?"))
        );
        // A log entry must stay on one line.
        assert_eq!(
            parse_response(&answer_of(Reject::status(401).text("two\nlines"))),
            Some((401, "two"))
        );
        let head = b"HTTP/1.1 421 Misdirected Request\r\nDate: x\r\n\r\n";
        assert_eq!(parse_response(head), Some((421, "Misdirected Request")));
        assert_eq!(parse_response(b"HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(parse_response(b""), None);
        assert_eq!(rejecting_status(head), Some(421));
        assert_eq!(rejecting_status(b"HTTP/1.1 304 Not Modified\r\n\r\n"), None);
        assert_eq!(rejecting_status(b""), None);
    }
}
