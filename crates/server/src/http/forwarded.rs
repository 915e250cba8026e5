//! The client's address in the headers of a proxy: `X-Forwarded-For` and `Forwarded` (RFC 7239).

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

use windlass::stream::Address;
use windlass_ws::handshake::Headers;

use super::networks::Networks;

/// The header in which trusted proxies state the client's address. Only one of them is read: a
/// proxy passes on what a client writes into the other.
///
/// ```
/// use windlass_server::http::ForwardedHeader;
///
/// assert_eq!(ForwardedHeader::default(), ForwardedHeader::XForwardedFor);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`: addresses with commas between them.
    #[default]
    XForwardedFor,
    /// `Forwarded`: elements with `for=` (RFC 7239).
    Forwarded,
}

/// Returns the client of a request that came from `peer`: the rightmost address that is not
/// trusted. Addresses to the left of it may be forged. An entry that is not an address ends the
/// search, and the client is the last proxy before it.
pub(crate) fn client_of(
    peer: Address,
    headers: Headers<'_>,
    header: ForwardedHeader,
    trusted: &Networks,
) -> Address {
    let mut stated = Vec::new();
    for field in headers {
        let Ok(value) = core::str::from_utf8(field.value) else {
            if is_named(field.name, header) {
                stated.push(None);
            }
            continue;
        };
        match header {
            _ if !is_named(field.name, header) => {}
            ForwardedHeader::XForwardedFor => stated.extend(value.split(',').map(node)),
            ForwardedHeader::Forwarded => forwarded_elements(value, &mut stated),
        }
    }
    let mut client = peer;
    for address in stated.into_iter().rev() {
        let (true, Some(address)) = (trusted.contains(&client), address) else { break };
        client = Address::Ip(address);
    }
    client
}

fn is_named(name: &str, header: ForwardedHeader) -> bool {
    let expected = match header {
        ForwardedHeader::XForwardedFor => "X-Forwarded-For",
        ForwardedHeader::Forwarded => "Forwarded",
    };
    name.eq_ignore_ascii_case(expected)
}

/// Parses an address with or without a port, an IPv6 address with or without brackets. Without a
/// port it has port 0.
fn node(text: &str) -> Option<SocketAddr> {
    let text = text.trim_matches([' ', '\t']);
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let with_port = || text.parse().ok();
    let address = bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0));
    let address = address.or_else(with_port)?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Appends the address of each element of a `Forwarded` header; `None` for an element without one.
/// A malformed header counts as one element without an address.
fn forwarded_elements(value: &str, stated: &mut Vec<Option<SocketAddr>>) {
    let begin = stated.len();
    let mut rest = value;
    loop {
        // An element: pairs with semicolons between them.
        let mut address = None;
        loop {
            let Some((name, text, after)) = pair(rest) else {
                stated.truncate(begin);
                return stated.push(None);
            };
            if name.eq_ignore_ascii_case("for") {
                address = node(&text);
            }
            rest = after.trim_start_matches([' ', '\t']);
            match rest.strip_prefix(';') {
                Some(next) => rest = next,
                None => break,
            }
        }
        stated.push(address);
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None if rest.is_empty() => return,
            None => {
                stated.truncate(begin);
                return stated.push(None);
            }
        }
    }
}

/// Splits `name=token` or `name="quoted"` off the front.
fn pair(text: &str) -> Option<(&str, Cow<'_, str>, &str)> {
    let (name, rest) = text.trim_start_matches([' ', '\t']).split_once('=')?;
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find([';', ',', ' ', '\t']).unwrap_or(rest.len());
        return Some((name, Cow::Borrowed(&rest[..end]), &rest[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((name, Cow::Owned(value), &quoted[at + 1..])),
            (_, '\\') => value.push(chars.next()?.1),
            (_, char) => value.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use windlass_ws::handshake::{HeadLimits, Request};

    use super::*;

    fn client(header: ForwardedHeader, lines: &[&str]) -> String {
        let trusted = Networks::parse(&["10.0.0.0/8", "unix"]).unwrap();
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
        let (request, _) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT).unwrap().unwrap();
        let peer = Address::Ip("10.0.0.1:4000".parse().unwrap());
        client_of(peer, request.headers(), header, &trusted).to_string()
    }

    #[test]
    fn the_client_is_the_rightmost_address_that_is_not_trusted() {
        let client = |lines: &[&str]| client(ForwardedHeader::XForwardedFor, lines);
        let own = "10.0.0.1:4000";
        for (lines, expected) in [
            (&[][..], own),
            (&["X-Forwarded-For: 192.0.2.1"], "192.0.2.1:0"),
            (&["x-forwarded-for:192.0.2.1:99"], "192.0.2.1:99"),
            // What a client has written stands on the left.
            (&["X-Forwarded-For: 127.0.0.1, 192.0.2.1"], "192.0.2.1:0"),
            (&["X-Forwarded-For: 198.51.100.7, 192.0.2.1, 10.9.9.9"], "192.0.2.1:0"),
            (&["X-Forwarded-For: 127.0.0.1", "X-Forwarded-For: 192.0.2.1"], "192.0.2.1:0"),
            (&["X-Forwarded-For: 10.0.0.3, 10.0.0.2"], "10.0.0.3:0"),
            (&["X-Forwarded-For: 192.0.2.1, unknown"], own),
            (&["X-Forwarded-For: 192.0.2.1, unknown, 10.0.0.2"], "10.0.0.2:0"),
            (&["X-Forwarded-For: "], own),
            (&["X-Forwarded-For: 192.0.2.1,"], own),
            (&["X-Forwarded-For: 2001:db8::1"], "[2001:db8::1]:0"),
            (&["X-Forwarded-For: [2001:db8::1]:5"], "[2001:db8::1]:5"),
            (&["X-Forwarded-For: [2001:db8::1]"], "[2001:db8::1]:0"),
            (&["X-Forwarded-For: ::ffff:192.0.2.1"], "192.0.2.1:0"),
            (&["X-Forwarded-For: 192.0.2.999"], own),
            // A proxy that writes one header passes the other one on.
            (&["Forwarded: for=192.0.2.1"], own),
        ] {
            assert_eq!(client(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_has_elements_with_pairs() {
        let client = |lines: &[&str]| client(ForwardedHeader::Forwarded, lines);
        let own = "10.0.0.1:4000";
        for (lines, expected) in [
            (&["Forwarded: for=192.0.2.1"][..], "192.0.2.1:0"),
            (&["Forwarded: For=\"[2001:db8::1]:4711\""], "[2001:db8::1]:4711"),
            (&["Forwarded: for=127.0.0.1, for=192.0.2.1;proto=http;by=10.0.0.1"], "192.0.2.1:0"),
            (&["Forwarded: proto=http; for=192.0.2.1 , for=10.0.0.9"], "192.0.2.1:0"),
            (&["Forwarded: for=127.0.0.1", "Forwarded: for=192.0.2.1"], "192.0.2.1:0"),
            // A comma in quotes is no separator.
            (&["Forwarded: for=\"192.0.2.1, for=127.0.0.1\""], own),
            (&["Forwarded: for=192.0.2.1;x=\"a,\\\"b\""], "192.0.2.1:0"),
            (&["Forwarded: for=\"1\\92.0.2.1\""], "192.0.2.1:0"),
            (&["Forwarded: for=_hidden, for=10.0.0.9"], "10.0.0.9:0"),
            (&["Forwarded: for=192.0.2.1, proto=http"], own),
            (&["Forwarded: for=192.0.2.1, nonsense"], own),
            (&["Forwarded: for=\"192.0.2.1"], own),
            (&["Forwarded: for=192.0.2.1 x"], own),
            (&["X-Forwarded-For: 192.0.2.1"], own),
        ] {
            assert_eq!(client(lines), expected, "{lines:?}");
        }
    }

    proptest! {
        /// No header panics, and one that the client has written never changes the result of those
        /// that a proxy has added behind it.
        #[test]
        fn forged_headers_change_nothing(forged in "[ -~]{0,60}", is_list: bool) {
            let (own, header) = if is_list {
                ("X-Forwarded-For: ", ForwardedHeader::XForwardedFor)
            } else {
                ("Forwarded: for=", ForwardedHeader::Forwarded)
            };
            let name = own.split(' ').next().unwrap();
            let forged = format!("{name} {forged}");
            let added = format!("{own}192.0.2.1");
            prop_assert_eq!(client(header, &[&forged, &added]), "192.0.2.1:0");
            client(header, &[&forged]);
        }
    }
}
