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

/// A header whose elements cannot be told apart, so that the address that the last proxy has added
/// is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedForwarded;

/// Returns the client of a request that came from `peer`: the rightmost address that is not
/// trusted. Addresses to the left of it may be forged. An entry that is not an address ends the
/// search, and the client is the last proxy before it. A malformed `Forwarded` header is an error
/// if the search comes to it: a client may have hidden its proxy's entry in an open quote.
pub(crate) fn client_of(
    peer: Address,
    headers: Headers<'_>,
    header: ForwardedHeader,
    trusted: &Networks,
) -> Result<Address, MalformedForwarded> {
    let mut stated = Vec::new();
    for field in headers.filter(|field| is_named(field.name, header)) {
        // An entry with other bytes is no address. Commas and quotes stay where they are.
        let value = String::from_utf8_lossy(field.value);
        match header {
            ForwardedHeader::XForwardedFor => stated.extend(value.split(',').map(node).map(Ok)),
            ForwardedHeader::Forwarded => match forwarded_elements(&value) {
                Some(addresses) => stated.extend(addresses.into_iter().map(Ok)),
                None => stated.push(Err(MalformedForwarded)),
            },
        }
    }
    let mut client = peer;
    for address in stated.into_iter().rev() {
        if !trusted.contains(&client) {
            break;
        }
        let Some(address) = address? else { break };
        client = Address::Ip(address);
    }
    Ok(client)
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

/// Returns the address of each element of a `Forwarded` header; `None` for an element without one.
/// Returns `None` if the header is malformed.
fn forwarded_elements(value: &str) -> Option<Vec<Option<SocketAddr>>> {
    let mut stated = Vec::new();
    let mut rest = value.trim_start_matches([' ', '\t']);
    loop {
        // An element: pairs with semicolons between them. It may be empty (RFC 9110 section 5.6.1).
        let mut address = None;
        while !rest.is_empty() && !rest.starts_with(',') {
            let (name, text, after) = pair(rest)?;
            if name.eq_ignore_ascii_case("for") {
                address = node(&text);
            }
            rest = after.trim_start_matches([' ', '\t']);
            match rest.strip_prefix(';') {
                Some(next) => rest = next.trim_start_matches([' ', '\t']),
                None if rest.is_empty() || rest.starts_with(',') => {}
                None => return None,
            }
        }
        stated.push(address);
        let Some(next) = rest.strip_prefix(',') else { return Some(stated) };
        rest = next.trim_start_matches([' ', '\t']);
    }
}

/// Splits `name=token` or `name="quoted"` off the front. The name is a token: a comma before it
/// belongs to what a client has written.
fn pair(text: &str) -> Option<(&str, Cow<'_, str>, &str)> {
    let (name, rest) = text.split_once('=')?;
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    {
        return None;
    }
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

    const MALFORMED: &str = "malformed";

    fn client<L: AsRef<[u8]>>(header: ForwardedHeader, lines: &[L]) -> String {
        let trusted = Networks::parse(&["10.0.0.0/8", "unix"]).unwrap();
        let mut head = b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec();
        for line in lines {
            head.extend_from_slice(line.as_ref());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let (request, _) = Request::parse(&head, &HeadLimits::DEFAULT).unwrap().unwrap();
        let peer = Address::Ip("10.0.0.1:4000".parse().unwrap());
        let client = client_of(peer, request.headers(), header, &trusted);
        client.map_or_else(|MalformedForwarded| MALFORMED.to_owned(), |client| client.to_string())
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
            (&["Forwarded: for=192.0.2.1, "], own),
            (&["Forwarded: "], own),
            (&["Forwarded: , for=192.0.2.1"], "192.0.2.1:0"),
            (&["Forwarded: for=192.0.2.1, nonsense"], MALFORMED),
            (&["Forwarded: for=\"192.0.2.1"], MALFORMED),
            (&["Forwarded: for=192.0.2.1 x"], MALFORMED),
            // The quote of a client hides what its proxy has added to the line.
            (&["Forwarded: for=\"x, for=192.0.2.1"], MALFORMED),
            (&["Forwarded: x, for=192.0.2.1"], MALFORMED),
            (&["Forwarded: for=\"x", "Forwarded: for=10.0.0.9"], MALFORMED),
            (&["Forwarded: for=\"x", "Forwarded: for=192.0.2.1"], "192.0.2.1:0"),
            (&["X-Forwarded-For: 192.0.2.1"], own),
        ] {
            assert_eq!(client(lines), expected, "{lines:?}");
        }
    }

    proptest! {
        /// No header panics, and what the client has written never changes the result of what a
        /// proxy has added behind it: to the same line, or as another one. At most the request is
        /// malformed.
        #[test]
        fn forged_headers_change_nothing(
            forged in proptest::collection::vec(
                prop_oneof![0x20..=0x7e_u8, 0x80..=0xff_u8, Just(b'\t'), Just(b'"'), Just(b',')],
                0..60,
            ),
            is_list: bool,
            is_quoted: bool,
        ) {
            let (name, header, entry) = match (is_list, is_quoted) {
                (true, _) => ("X-Forwarded-For: ", ForwardedHeader::XForwardedFor, "192.0.2.1"),
                (_, false) => ("Forwarded: ", ForwardedHeader::Forwarded, "for=192.0.2.1"),
                (_, true) => ("Forwarded: ", ForwardedHeader::Forwarded, "for=\"192.0.2.1:0\""),
            };
            let forged = [name.as_bytes(), &forged].concat();
            let added = [name.as_bytes(), entry.as_bytes()].concat();
            prop_assert_eq!(client(header, &[&forged, &added]), "192.0.2.1:0");
            let line = [&forged, b", ".as_slice(), entry.as_bytes()].concat();
            let same_line = client(header, &[line]);
            prop_assert!(
                same_line == "192.0.2.1:0" || !is_list && same_line == MALFORMED,
                "{}", same_line
            );
            client(header, &[&forged]);
        }
    }
}
