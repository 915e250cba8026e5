//! SOCKS5 (RFC 1928), with a user and a password (RFC 1929).

use std::net::IpAddr;

use super::ProxyError;
use crate::client::url::{Credentials, UrlError};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const CONNECT: u8 = 1;

/// The steps of a dialogue, and the bytes of an incomplete answer: at most 262.
pub(crate) struct Socks5 {
    step: Step,
    received: Vec<u8>,
    request: Vec<u8>,
    /// The message of RFC 1929, if there are credentials.
    login: Option<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum Step {
    Method,
    Login,
    Reply,
}

impl Socks5 {
    /// The dialogue, and the greeting.
    pub(super) fn new(
        host: &str,
        port: u16,
        credentials: Option<&Credentials>,
    ) -> Result<(Self, Vec<u8>), UrlError> {
        let mut request = vec![VERSION, CONNECT, 0];
        match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => {
                request.push(1);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(4);
                request.extend(address.octets());
            }
            Err(_) => {
                request.push(3);
                push_short(host.as_bytes(), &mut request)?;
            }
        }
        request.extend(port.to_be_bytes());
        let mut greeting = vec![VERSION, 1, NO_AUTHENTICATION];
        let mut login = None;
        if let Some(Credentials { user, password }) = credentials {
            greeting = vec![VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD];
            let mut message = vec![1];
            push_short(user, &mut message)?;
            push_short(password, &mut message)?;
            login = Some(message);
        }
        Ok((Self { step: Step::Method, received: Vec::new(), request, login }, greeting))
    }

    pub(super) fn input(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<()>, ProxyError> {
        for (index, &byte) in bytes.iter().enumerate() {
            // An answer ended, and this side has not spoken since.
            if !out.is_empty() {
                return Err(ProxyError::EarlyBytes);
            }
            self.received.push(byte);
            self.check(out)?;
            if self.is_done() {
                let is_last = index + 1 == bytes.len();
                return if is_last { Ok(Some(())) } else { Err(ProxyError::EarlyBytes) };
            }
        }
        Ok(None)
    }

    fn is_done(&self) -> bool {
        matches!(self.step, Step::Reply) && self.received.len() > 4 && self.missing() == 0
    }

    /// How many bytes of the reply are missing.
    fn missing(&self) -> usize {
        let address = match self.received[3] {
            1 => 4,
            4 => 16,
            _ => 1 + usize::from(self.received[4]),
        };
        (4 + address + 2).saturating_sub(self.received.len())
    }

    /// Looks at the last byte that was received.
    fn check(&mut self, out: &mut Vec<u8>) -> Result<(), ProxyError> {
        match (self.step, &self.received[..]) {
            (Step::Method | Step::Reply, [version]) if *version != VERSION => {
                Err(ProxyError::SocksVersion(*version))
            }
            (Step::Method, [_, NO_AUTHENTICATION]) => {
                self.next(Step::Reply);
                out.extend_from_slice(&self.request);
                Ok(())
            }
            (Step::Method, [_, USER_AND_PASSWORD]) => {
                let login = self.login.take().ok_or(ProxyError::SocksMethod)?;
                self.next(Step::Login);
                out.extend(login);
                Ok(())
            }
            (Step::Method, [_, _]) => Err(ProxyError::SocksMethod),
            (Step::Login, [_, 0]) => {
                self.next(Step::Reply);
                out.extend_from_slice(&self.request);
                Ok(())
            }
            (Step::Login, [_, _]) => Err(ProxyError::SocksCredentials),
            (Step::Reply, [_, code]) if *code != 0 => Err(ProxyError::SocksReply(*code)),
            (Step::Reply, [_, _, _, kind]) if !matches!(kind, 1 | 3 | 4) => {
                Err(ProxyError::SocksAddress(*kind))
            }
            _ => Ok(()),
        }
    }

    fn next(&mut self, step: Step) {
        self.step = step;
        self.received.clear();
    }
}

/// Appends a string of at most 255 bytes behind its length.
fn push_short(text: &[u8], out: &mut Vec<u8>) -> Result<(), UrlError> {
    out.push(u8::try_from(text.len()).map_err(|_| UrlError::HostTooLong)?);
    out.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::url::Target;

    /// What this side sends for these answers, one piece after another.
    fn run(url: &str, answers: &[&[u8]]) -> Result<(Vec<Vec<u8>>, bool), ProxyError> {
        let target = Target::parse(url).expect("a URL");
        let (mut dialogue, greeting) =
            Socks5::new(&target.host, target.port, target.credentials.as_ref()).expect("short");
        let (mut sent, mut is_done) = (vec![greeting], false);
        for answer in answers {
            let mut out = Vec::new();
            is_done = dialogue.input(answer, &mut out)?.is_some();
            if !out.is_empty() {
                sent.push(out);
            }
        }
        Ok((sent, is_done))
    }

    const REPLY: &[u8] = &[5, 0, 0, 1, 127, 0, 0, 1, 0, 80];

    #[test]
    fn hosts_are_sent_as_names_or_addresses() {
        let cases: [(&str, &[u8]); 3] = [
            ("ws://a.b/", b"\x05\x01\x00\x03\x03a.b\x00\x50"),
            ("ws://1.2.3.4:258/", b"\x05\x01\x00\x01\x01\x02\x03\x04\x01\x02"),
            ("ws://[::1]/", b"\x05\x01\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50"),
        ];
        for (url, request) in cases {
            let (sent, is_done) = run(url, &[b"\x05\x00", REPLY]).expect("a good proxy");
            assert_eq!(sent, [b"\x05\x01\x00", request], "{url}");
            assert!(is_done);
        }
    }

    #[test]
    fn a_user_logs_in_if_the_proxy_asks() {
        let url = "ws://me:pw@1.2.3.4/";
        let (sent, is_done) = run(url, &[b"\x05\x02", b"\x01\x00", REPLY]).expect("a good proxy");
        assert_eq!(sent[..2], [&b"\x05\x02\x00\x02"[..], b"\x01\x02me\x02pw"]);
        assert!(is_done && sent.len() == 3);
        let (sent, _) = run(url, &[b"\x05\x00", REPLY]).expect("a good proxy");
        assert_eq!(sent.len(), 2, "the credentials stay here");
    }

    #[test]
    fn answers_may_come_byte_by_byte() {
        let name = b"\x05\x00\x00\x03\x04host\x00\x50";
        let v6 = [&b"\x05\x00\x00\x04"[..], &[7; 18]].concat();
        for reply in [REPLY, name, &v6] {
            let pieces: Vec<&[u8]> =
                [b"\x05\x00".chunks(1), reply.chunks(1)].into_iter().flatten().collect();
            let (_, is_done) = run("ws://a.b/", &pieces).expect("a good proxy");
            assert!(is_done, "{reply:?}");
            let short = &pieces[..pieces.len() - 1];
            assert!(!run("ws://a.b/", short).expect("a good proxy").1);
        }
    }

    #[test]
    fn strange_answers_are_errors() {
        let early = [REPLY, b"!"].concat();
        let cases: [(&[&[u8]], &str); 9] = [
            (&[b"HTTP/1.1 400"], "the proxy answered with version 72 instead of SOCKS 5"),
            (&[b"\x04"], "the proxy answered with version 4 instead"),
            (&[b"\x05\xff"], "the proxy accepts no authentication"),
            (&[b"\x05\x02"], "the proxy accepts no authentication"),
            (&[b"\x05\x01"], "the proxy accepts no authentication"),
            (&[b"\x05\x00\x05"], "the proxy sent bytes that cannot be the server's"),
            (&[b"\x05\x00", b"\x05\x05\x00"], "the proxy could not connect: connection refused"),
            (&[b"\x05\x00", b"\x05\x00\x00\x02"], "the proxy's answer has an address of the"),
            (&[b"\x05\x00", &early], "the proxy sent bytes that cannot be the server's"),
        ];
        for (answers, expected) in cases {
            let error = run("ws://a.b/", answers).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = run("ws://me:pw@a.b/", &[b"\x05\x02", b"\x01\x01"]).expect_err("bad password");
        assert_eq!(error.to_string(), "the proxy rejected the user or the password");
    }

    #[test]
    fn a_host_is_at_most_255_bytes_long() {
        assert_eq!(Socks5::new(&"a".repeat(256), 80, None).err(), Some(UrlError::HostTooLong));
        assert!(Socks5::new(&"a".repeat(255), 80, None).is_ok());
    }
}
