//! The header of the PROXY protocol, versions 1 and 2, before anything else on a connection
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).

use core::{fmt, str::FromStr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header of version 1, with its line ending.
const LINE_MAX: usize = 107;

/// The longest header of version 2 that is accepted, with its type-length-values.
const BINARY_MAX: usize = 4096;

/// The beginning of version 1.
const LINE_START: &[u8] = b"PROXY ";

/// The beginning of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the fixed part of version 2.
const FIXED_LEN: usize = 16;

/// The client that a proxy states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatedClient {
    /// The address of the client.
    Address(SocketAddr),
    /// The proxy speaks for itself, for instance to check this server's health, or it does not know
    /// the address.
    Own,
}

/// Why a connection from a proxy is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyHeaderError {
    Missing,
    Malformed,
    TooLong,
}

impl fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "no PROXY header came from a listed proxy; let it send one, or do not list it",
            ),
            Self::Malformed => f.write_str(
                "the PROXY header is malformed; let the proxy send version 1 or 2, for TCP",
            ),
            Self::TooLong => write!(
                f,
                "the PROXY header is longer than {LINE_MAX} bytes in version 1, {BINARY_MAX} in \
                 version 2; let the proxy send fewer fields",
            ),
        }
    }
}

/// Parses a header from the front of `bytes`. Returns it with its length, or `None` if it is
/// incomplete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(StatedClient, usize)>, ProxyHeaderError> {
    let begins = |start: &[u8]| {
        let len = bytes.len().min(start.len());
        bytes[..len] == start[..len]
    };
    if begins(LINE_START) {
        parse_line(bytes)
    } else if begins(SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

fn parse_line(bytes: &[u8]) -> Result<Option<(StatedClient, usize)>, ProxyHeaderError> {
    let first = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(end) = first.windows(2).position(|pair| pair == b"\r\n") else {
        let is_too_long = first.len() == LINE_MAX;
        return if is_too_long { Err(ProxyHeaderError::TooLong) } else { Ok(None) };
    };
    let line = core::str::from_utf8(&first[..end]).map_err(|_| ProxyHeaderError::Malformed)?;
    let client = client_of_line(line).ok_or(ProxyHeaderError::Malformed)?;
    Ok(Some((client, end + 2)))
}

fn client_of_line(line: &str) -> Option<StatedClient> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        // The rest of the line is ignored.
        return Some(StatedClient::Own);
    }
    let [source, destination] = [words.next()?, words.next()?];
    let [source_port, _] = [port(words.next()?)?, port(words.next()?)?];
    let address = match family {
        "TCP4" => {
            Ipv4Addr::from_str(destination).and_then(|_| Ipv4Addr::from_str(source)).map(IpAddr::V4)
        }
        "TCP6" => {
            Ipv6Addr::from_str(destination).and_then(|_| Ipv6Addr::from_str(source)).map(IpAddr::V6)
        }
        _ => return None,
    };
    let address = SocketAddr::new(address.ok()?.to_canonical(), source_port);
    words.next().is_none().then_some(StatedClient::Address(address))
}

fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    if is_plain && is_short { text.parse().ok() } else { None }
}

fn parse_binary(bytes: &[u8]) -> Result<Option<(StatedClient, usize)>, ProxyHeaderError> {
    let Some(fixed) = bytes.first_chunk::<FIXED_LEN>() else { return Ok(None) };
    let [.., version_and_command, family, high, low] = *fixed;
    let len = FIXED_LEN + usize::from(u16::from_be_bytes([high, low]));
    if len > BINARY_MAX {
        return Err(ProxyHeaderError::TooLong);
    }
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyHeaderError::Malformed),
    };
    let Some(rest) = bytes.get(FIXED_LEN..len) else { return Ok(None) };
    let client = match family {
        _ if is_local => StatedClient::Own,
        // TCP over IPv4, and over IPv6.
        0x11 => stated::<4>(rest)?,
        0x21 => stated::<16>(rest)?,
        // Unspecified, datagrams, and Unix sockets.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => StatedClient::Own,
        _ => return Err(ProxyHeaderError::Malformed),
    };
    Ok(Some((client, len)))
}

/// The source in a block of two addresses of this length and two ports.
fn stated<const LEN: usize>(block: &[u8]) -> Result<StatedClient, ProxyHeaderError>
where
    IpAddr: From<[u8; LEN]>,
{
    let source = block.first_chunk::<LEN>();
    let ports = block.get(2 * LEN..).and_then(|ports| ports.first_chunk::<4>());
    let (Some(source), Some([high, low, ..])) = (source, ports) else {
        return Err(ProxyHeaderError::Malformed);
    };
    let ip = IpAddr::from(*source).to_canonical();
    Ok(StatedClient::Address(SocketAddr::new(ip, u16::from_be_bytes([*high, *low]))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_error_names_the_proxy_header() {
        use ProxyHeaderError::{Malformed, Missing, TooLong};
        // By these words `windlass serve` finds the option that its log names.
        for error in [Missing, Malformed, TooLong] {
            assert!(error.to_string().contains("PROXY header"), "{error}");
        }
    }

    fn client(text: &str) -> StatedClient {
        StatedClient::Address(text.parse().unwrap())
    }

    fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let len = u16::try_from(block.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &len, block].concat()
    }

    /// Two addresses of this many bytes, and the ports 1000 and 80.
    fn block(addresses: &[u8], more: &[u8]) -> Vec<u8> {
        [addresses, &[0x03, 0xe8, 0, 80], more].concat()
    }

    fn samples() -> Vec<(Vec<u8>, StatedClient)> {
        let ipv4 = [192, 0, 2, 1, 10, 0, 0, 1];
        let mut ipv6 = [0; 32];
        ipv6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        ipv6[15] = 1;
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(LINE_MAX - 16));
        vec![
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 1000 80\r\n".to_vec(), client("192.0.2.1:1000")),
            (b"PROXY TCP6 2001:db8::1 ::1 1000 80\r\n".to_vec(), client("[2001:db8::1]:1000")),
            (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 80\r\n".to_vec(), client("192.0.2.1:1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), StatedClient::Own),
            (longest.into_bytes(), StatedClient::Own),
            (binary(0x21, 0x11, &block(&ipv4, b"")), client("192.0.2.1:1000")),
            (binary(0x21, 0x11, &block(&ipv4, &[4, 0, 2, 0, 0])), client("192.0.2.1:1000")),
            (binary(0x21, 0x21, &block(&ipv6, b"")), client("[2001:db8::1]:1000")),
            (binary(0x20, 0x00, b""), StatedClient::Own),
            (binary(0x20, 0x11, &block(&ipv4, b"")), StatedClient::Own),
            (binary(0x21, 0x00, b"ignored"), StatedClient::Own),
            (binary(0x21, 0x31, &[0; 216]), StatedClient::Own),
            (binary(0x21, 0x11, &block(&ipv4, &[0; 4068])), client("192.0.2.1:1000")),
        ]
    }

    #[test]
    fn a_header_is_found_at_every_split_and_its_end_is_known() {
        for (header, expected) in samples() {
            let with_more = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            for len in 0..header.len() {
                assert_eq!(parse(&header[..len]), Ok(None), "{}", header[..len].escape_ascii());
            }
            for bytes in [&header, &with_more] {
                assert_eq!(parse(bytes), Ok(Some((expected, header.len()))), "{bytes:?}");
            }
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        use ProxyHeaderError::{Malformed, Missing, TooLong};
        let ipv4 = block(&[192, 0, 2, 1, 10, 0, 0, 1], b"");
        for (bytes, error) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), Missing),
            (b"\x16\x03\x01".to_vec(), Missing),
            (b"proxy TCP4 192.0.2.1 10.0.0.1 1 80\r\n".to_vec(), Missing),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 1\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 1 80 9\r\n".to_vec(), Malformed),
            (b"PROXY TCP4  192.0.2.1 10.0.0.1 1 80\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 +1 80\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 01 80\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 65536 80\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1  80\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 2001:db8::1 ::1 1 80\r\n".to_vec(), Malformed),
            (b"PROXY TCP6 192.0.2.1 10.0.0.1 1 80\r\n".to_vec(), Malformed),
            (b"PROXY TCP4 192.0.2.1 nonsense 1 80\r\n".to_vec(), Malformed),
            (b"PROXY UDP4 192.0.2.1 10.0.0.1 1 80\r\n".to_vec(), Malformed),
            (b"PROXY \xff\r\n".to_vec(), Malformed),
            (b"PROXY \r\n".to_vec(), Malformed),
            (format!("PROXY UNKNOWN{}\r\n", " ".repeat(LINE_MAX - 14)).into_bytes(), TooLong),
            (binary(0x11, 0x11, &ipv4), Malformed),
            (binary(0x22, 0x11, &ipv4), Malformed),
            (binary(0x21, 0x41, &ipv4), Malformed),
            (binary(0x21, 0x11, &ipv4[..11]), Malformed),
            (binary(0x21, 0x21, &ipv4), Malformed),
            (binary(0x21, 0x11, &[0; 4081]), TooLong),
        ] {
            assert_eq!(parse(&bytes), Err(error), "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        /// Bytes of a peer never panic, and more bytes never change an answer.
        #[test]
        fn any_bytes_have_one_answer(
            sample in prop::sample::select(samples()),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            tail in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = sample.0;
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.extend(tail);
            let all = parse(&bytes);
            for len in 0..bytes.len() {
                let part = parse(&bytes[..len]);
                prop_assert!(part == Ok(None) || part == all, "{:?} and {:?}", part, all);
            }
            if let Ok(Some((_, len))) = all {
                prop_assert!(len <= bytes.len() && len <= BINARY_MAX);
            }
        }

        #[test]
        fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
            let _ = parse(&[LINE_START, &bytes[..]].concat());
            let _ = parse(&[&SIGNATURE[..], &bytes[..]].concat());
        }
    }
}
