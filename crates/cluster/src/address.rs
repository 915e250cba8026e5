//! Addresses of servers.

use crate::NatsConfigError;

/// The port of an address without one.
const PORT_DEFAULT: u16 = 4222;

/// Where a server is, and what its address says about who connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// A name, or an IP address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) requires_tls: bool,
    /// A user and a password, or a token alone.
    pub(crate) login: Option<(String, Option<String>)>,
}

impl Address {
    /// Reads `nats://HOST:PORT` or `tls://HOST:PORT`, with `USER:PASSWORD@` or `TOKEN@` before the
    /// host. The scheme and the port may be left out.
    pub(crate) fn parse(text: &str) -> Result<Self, NatsConfigError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let error = |reason: &str| {
            // Without a scheme, a password may have `://`.
            let is_scheme = ["nats", "tls", "ws", "wss"].contains(&scheme);
            let shown = match login {
                None => text.into(),
                Some(_) if is_scheme => format!("{scheme}://{place}"),
                Some(_) => place.into(),
            };
            NatsConfigError::Address { address: shown, reason: reason.to_owned() }
        };
        // In an address that was cut before its `@`, the port is a part of a password.
        let port_error = |host: &str| NatsConfigError::Address {
            address: host.to_owned(),
            reason: "invalid port".to_owned(),
        };
        let requires_tls = match scheme {
            "nats" => false,
            "tls" => true,
            "ws" | "wss" => return Err(error("NATS over WebSockets is not supported")),
            _ => return Err(error("invalid scheme")),
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        // Only the address of an IPv6 host has colons of its own, and it has brackets.
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => {
                (host, Some(rest.strip_prefix(':').ok_or_else(|| port_error(host))?))
            }
            None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err(error("it has no host"));
        }
        let is_invalid =
            |char: char| char.is_whitespace() || char.is_control() || "/?#[]@\\".contains(char);
        if host.contains(is_invalid) {
            return Err(error("invalid host"));
        }
        let port = match port {
            None | Some("") => PORT_DEFAULT,
            Some(port) => port.parse().map_err(|_| port_error(host))?,
        };
        let login = login.filter(|login| !login.is_empty()).map(|login| {
            let (user, password) = login.split_once(':').unzip();
            (decode(user.unwrap_or(login)), password.map(decode))
        });
        Ok(Self { host: host.to_owned(), port, requires_tls, login })
    }
}

/// Replaces the percent-encoding of a URL.
fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| core::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = &tail[2..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| {
            let Address { host, port, requires_tls, login } = Address::parse(text).unwrap();
            let login = login.map(|(user, password)| (user, password.unwrap_or_default()));
            let (user, password) = login.unwrap_or_default();
            format!("{host} {port} {requires_tls} {user} {password}")
        };
        for (text, expected) in [
            ("host", "host 4222 false  "),
            ("host:1", "host 1 false  "),
            ("nats://host:", "host 4222 false  "),
            ("tls://host:9/", "host 9 true  "),
            ("nats://[::1]", "::1 4222 false  "),
            ("nats://[::1]:5", "::1 5 false  "),
            ("nats://user:p%40ss%3A%zz@host", "host 4222 false user p@ss:%zz"),
            ("nats://t0ken@host", "host 4222 false t0ken "),
            ("nats://@host", "host 4222 false  "),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        for (text, decoded) in [("a%20b", "a b"), ("%", "%"), ("%4", "%4"), ("%C3%A4%", "\u{e4}%")]
        {
            assert_eq!(decode(text), decoded);
        }
        for text in [
            "user:secret://x@host",
            "secret://x@host",
            "ftp://user:secret@host",
            "nats://user:secret@a b",
            // The program has taken a comma in a password for the end of an address.
            "nats://user:secret",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        for text in ["[::1", "[::1]5", "::1", "a b", "host/path", "host?a=b", "a\nb", "[]"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
