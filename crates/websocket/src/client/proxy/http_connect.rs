//! HTTP CONNECT (RFC 9110 section 9.3.6).

use windlass_ws::handshake::{HeadLimits, HeadReader};

use super::ProxyError;
use crate::client::url::Credentials;

/// Waits for the answer to a request.
pub(crate) struct HttpConnect {
    head: HeadReader,
}

impl HttpConnect {
    /// The dialogue, and the request.
    pub(super) fn new(host: &str, port: u16, credentials: Option<&Credentials>) -> (Self, Vec<u8>) {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some(credentials) = credentials {
            request += &format!("Proxy-Authorization: {}\r\n", credentials.basic());
        }
        request += "\r\n";
        (Self { head: HeadReader::new(HeadLimits::DEFAULT) }, request.into_bytes())
    }

    pub(super) fn input(&mut self, mut bytes: &[u8]) -> Result<Option<()>, ProxyError> {
        while !bytes.is_empty() {
            let found = self.head.response(bytes).map_err(ProxyError::Response)?;
            let Some((response, used)) = found else { return Ok(None) };
            bytes = &bytes[used..];
            match response.status() {
                // Interim responses (RFC 9110 section 15.2).
                100..=199 => {}
                // Such a response has no body, whatever its headers say.
                200..=299 if bytes.is_empty() => return Ok(Some(())),
                200..=299 => return Err(ProxyError::EarlyBytes),
                status => return Err(ProxyError::Status(status)),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::url::Target;

    fn answer(pieces: &[&[u8]]) -> Result<Option<()>, ProxyError> {
        let (mut dialogue, _) = HttpConnect::new("a.example", 443, None);
        let mut outcome = Ok(None);
        for piece in pieces {
            outcome = dialogue.input(piece);
            if !matches!(outcome, Ok(None)) {
                break;
            }
        }
        outcome
    }

    #[test]
    fn the_request_names_the_host_and_has_the_credentials() {
        let credentials = Target::parse("ws://Aladdin:open%20sesame@x").expect("a URL").credentials;
        let (_, request) = HttpConnect::new("::1", 443, credentials.as_ref());
        assert_eq!(
            String::from_utf8(request).expect("text"),
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\
             Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n"
        );
    }

    #[test]
    fn answers_may_be_cut_at_every_byte() {
        let whole = b"HTTP/1.1 102 Wait\r\n\r\nHTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n";
        for at in 0..=whole.len() {
            let (left, right) = whole.split_at(at);
            assert!(matches!(answer(&[left, right]), Ok(Some(()))), "cut at {at}");
        }
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert!(matches!(answer(&bytes), Ok(Some(()))));
    }

    #[test]
    fn strange_answers_are_errors() {
        let long = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; 9000]].concat();
        let cases: [(&[u8], &str); 6] = [
            (b"HTTP/1.1 407 No\r\n\r\n", "the proxy answered with status 407: it wants"),
            (b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad", "the proxy answered with status"),
            (b"HTTP/1.1 200 OK\r\n\r\n!", "the proxy sent bytes that cannot be the server's"),
            (b"SSH-2.0-OpenSSH_9\r\n\r\n", "the proxy's answer is no HTTP response: malformed"),
            (b"HTTP/1.1 200 OK\nX: y\n\n", "the proxy's answer is no HTTP response: malformed"),
            (&long, "the proxy's answer is no HTTP response: the head of the response is longer"),
        ];
        for (bytes, expected) in cases {
            let error = answer(&[bytes]).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
