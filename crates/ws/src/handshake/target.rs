//! Request targets (RFC 9112 section 3.2) and hosts.

/// A parsed target.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTarget<'a> {
    /// Host and port, if the target has them.
    pub(super) authority: Option<&'a str>,
    /// Starts with a slash; `*` for the server as a whole, empty for CONNECT.
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
}

/// Parses a target. `None` if its form does not match the method.
pub(super) fn parse<'a>(method: &str, target: &'a str) -> Option<RequestTarget<'a>> {
    // Clients do not send fragments (section 3.2).
    if target.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'#') {
        return None;
    }
    if method == "CONNECT" {
        return is_authority(target.as_bytes()).then_some(RequestTarget {
            authority: Some(target),
            path: "",
            query: None,
        });
    }
    if target == "*" {
        return (method == "OPTIONS").then_some(RequestTarget {
            authority: None,
            path: "*",
            query: None,
        });
    }
    if target.starts_with('/') {
        return Some(with_path(None, target));
    }
    // The absolute form is for proxies, but every server must accept it (section 3.2.2).
    let (scheme, rest) = target.split_once("://")?;
    let known =
        ["http", "https", "ws", "wss"].iter().any(|known| known.eq_ignore_ascii_case(scheme));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    (known && is_authority(authority.as_bytes())).then(|| with_path(Some(authority), path))
}

fn with_path<'a>(authority: Option<&'a str>, path: &'a str) -> RequestTarget<'a> {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    RequestTarget { authority, path: if path.is_empty() { "/" } else { path }, query }
}

/// Whether this is exactly a host with an optional port (RFC 3986 section 3.2).
pub(super) fn is_authority(text: &[u8]) -> bool {
    if let [b'[', rest @ ..] = text {
        let Some((address, after)) = split_at(rest, b']') else { return false };
        return is_ip_literal(address)
            && matches!(after, [] | [b':', ..])
            && is_port(after.get(1..).unwrap_or_default());
    }
    // Most hosts contain only these bytes.
    let name_len =
        text.iter().position(|&byte| !NAME_BYTES[usize::from(byte)]).unwrap_or(text.len());
    match text.get(name_len..) {
        Some([]) => name_len > 0,
        Some([b':', port @ ..]) => name_len > 0 && is_port(port),
        _ => match split_at(text, b':') {
            Some((host, port)) => is_reg_name(host) && is_port(port),
            None => is_reg_name(text),
        },
    }
}

/// The parts before and after the first occurrence of `byte`.
fn split_at(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&other| other == byte)?;
    Some((&text[..at], &text[at + 1..]))
}

/// An empty port means the default one (RFC 3986 section 3.2.3).
fn is_port(port: &[u8]) -> bool {
    let number = port.iter().try_fold(0_u16, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u16::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    number.is_some()
}

/// An IPv6 address, or one of a future version.
fn is_ip_literal(address: &[u8]) -> bool {
    let Ok(address) = core::str::from_utf8(address) else { return false };
    let future = address.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.'));
    match future {
        Some((version, rest)) => {
            let hex = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
            hex && !rest.is_empty() && rest.bytes().all(|byte| is_name_byte(byte) || byte == b':')
        }
        None => address.parse::<core::net::Ipv6Addr>().is_ok(),
    }
}

/// `reg-name`. It also covers IPv4 addresses.
fn is_reg_name(host: &[u8]) -> bool {
    let mut bytes = host.iter().copied();
    while let Some(byte) = bytes.next() {
        let good = if byte == b'%' {
            let mut hex = || bytes.next().is_some_and(|byte| byte.is_ascii_hexdigit());
            hex() && hex()
        } else {
            is_name_byte(byte)
        };
        if !good {
            return false;
        }
    }
    !host.is_empty()
}

/// `unreserved` or `sub-delims` (RFC 3986 section 2).
const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
        )
}

/// [`is_name_byte`] for each byte.
const NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_name_byte(byte as u8);
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for good in [
            "a",
            "example.com",
            "example.com:80",
            "127.0.0.1:65535",
            "[::1]",
            "[::1]:8080",
            "a:",
            "[v1.x:y]",
            "a%20b",
            "my_host",
            "xn--bcher-kva.example",
            "[fe80::1]:",
        ] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":80",
            "a:b",
            "a:65536",
            "a:+1",
            "a b",
            "user@host",
            "a/b",
            "[::1",
            "[]",
            "[::1]80",
            "[g::1]",
            "a%2",
            "a%zz",
            "::1",
            "a:1:2",
            "[v.x]",
            "\u{e4}",
            "a#",
            "a?",
            "[::1]x:80",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn the_forms_of_a_target() {
        let parse = |method, target| {
            parse(method, target).map(|target| (target.authority, target.path, target.query))
        };
        assert_eq!(parse("GET", "/"), Some((None, "/", None)));
        assert_eq!(parse("GET", "//a/b?c?d"), Some((None, "//a/b", Some("c?d"))));
        assert_eq!(parse("GET", "/?"), Some((None, "/", Some(""))));
        assert_eq!(parse("GET", "http://a:1/b"), Some((Some("a:1"), "/b", None)));
        assert_eq!(parse("GET", "WSS://[::1]"), Some((Some("[::1]"), "/", None)));
        assert_eq!(parse("GET", "ws://a?b/c"), Some((Some("a"), "/", Some("b/c"))));
        assert_eq!(parse("OPTIONS", "*"), Some((None, "*", None)));
        assert_eq!(parse("CONNECT", "a:443"), Some((Some("a:443"), "", None)));
        for (method, target) in [
            ("GET", ""),
            ("GET", "*"),
            ("GET", "a"),
            ("GET", "a:443"),
            ("GET", "/a#b"),
            ("GET", "ftp://a/"),
            ("GET", "http:///a"),
            ("GET", "http://u@a/"),
            ("GET", "http:/a"),
            ("CONNECT", "/"),
            ("GET", "/\u{e4}"),
            ("GET", "/\t"),
            ("GET", "?a"),
        ] {
            assert_eq!(parse(method, target), None, "{method} {target}");
        }
    }
}
