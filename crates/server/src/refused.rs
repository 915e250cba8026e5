//! What becomes known of a connection that does not come to be.

use windlass::stream::{Address, Stream};

use crate::{Handler, service::Inner};

/// An upgrade that was refused, or a connection of which none could come: what
/// [`on_refused`](Handler::on_refused) is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refused<'a> {
    /// Where the peer is. Behind a proxy it is the proxy.
    pub peer: &'a Address,
    /// The status that it was answered; `None` where the connection was closed without an answer.
    pub status: Option<u16>,
    /// Why, in the words that it was answered. They may be the peer's own in part, but have no
    /// control characters.
    pub reason: &'a str,
}

impl<H: Handler> Inner<H> {
    /// Tells of an answer that refuses a request: status and reason are those that the peer reads.
    #[cold]
    pub(crate) fn tell_refused(&self, stream: &Stream<'_>, answer: &[u8]) {
        let Some((status, reason)) = read(answer) else { return };
        let peer = stream.peer_addr().unwrap_or(Address::Unix(None));
        self.handler.on_refused(&Refused { peer: &peer, status: Some(status), reason });
    }
}

/// Status and text of a response, if it refuses.
fn read(answer: &[u8]) -> Option<(u16, &str)> {
    let answer = core::str::from_utf8(answer).ok()?;
    let (head, text) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok().filter(|status| *status >= 300)?;
    let reason = text.split(char::is_control).next().unwrap_or_default();
    Some((status, reason))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::read;
    use crate::http::Reject;

    #[test]
    fn an_answer_says_why() {
        let mut answer = Vec::new();
        windlass_ws::handshake::Rejection::BadHost.write(&mut answer);
        let (status, reason) = read(&answer).unwrap();
        assert!(status == 400 && reason.contains("Host"), "{status} {reason}");
        let answer_of = |refusal: Reject| {
            let mut answer = Vec::new();
            refusal.write(UNIX_EPOCH, &mut answer).unwrap();
            answer
        };
        assert_eq!(
            read(&answer_of(Reject::status(401).text("who are you?"))),
            Some((401, "who are you?"))
        );
        // A line of the log is one line.
        assert_eq!(read(&answer_of(Reject::status(401).text("two\nlines"))), Some((401, "two")));
        assert_eq!(read(b"HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(read(b""), None);
    }
}
