//! Information about connections that were refused before they opened.

use windlass::stream::{Address, Stream};

use crate::{Handler, service::Inner};

/// A rejected upgrade or a refused connection: the argument of [`on_refused`](Handler::on_refused).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refused<'a> {
    /// The peer's address. Behind a proxy it is the proxy's address.
    pub peer: &'a Address,
    /// The status of the response; `None` if the connection was closed without one.
    pub status: Option<u16>,
    /// The reason, in the words of the response. It may contain text from the peer, but no control
    /// characters.
    pub reason: &'a str,
}

impl<H: Handler> Inner<H> {
    /// Reports a response that rejects a request, with the status and the reason that the peer
    /// reads.
    #[cold]
    pub(crate) fn tell_refused(&self, stream: &Stream<'_>, answer: &[u8]) {
        let Some((status, reason)) = read(answer) else { return };
        let peer = stream.peer_addr().unwrap_or(Address::Unix(None));
        self.handler.on_refused(&Refused { peer: &peer, status: Some(status), reason });
    }
}

/// Returns status and text of a response that rejects a request.
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
        // An entry of the log must stay on one line.
        assert_eq!(read(&answer_of(Reject::status(401).text("two\nlines"))), Some((401, "two")));
        assert_eq!(read(b"HTTP/1.1 200 OK\r\n\r\n"), None);
        assert_eq!(read(b""), None);
    }
}
