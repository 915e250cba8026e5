//! Tables of allowed origins and of valid texts, and the rules restated in plain words.

use proptest::prelude::*;
use windlass_ws::handshake::HeadLimits;

use super::*;

/// Checks a request with these two headers, as the server does.
fn check(origins: &Origins, origin: Option<&[u8]>, host: &str) -> Result<(), String> {
    let mut head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    if let Some(origin) = origin {
        head.extend_from_slice(&[b"oRIGIN: ", origin, b"\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    let (request, _) =
        Request::parse(&head, &HeadLimits::DEFAULT).expect("well-formed").expect("complete");
    let checked = origins.check(&request);
    assert_eq!(checked.is_ok(), origins.allow(origin, Some(host)));
    checked.map_err(|rejection| {
        assert_eq!(rejection.code(), 403);
        let mut out = Vec::new();
        rejection.write(std::time::SystemTime::UNIX_EPOCH, &mut out).expect("it can be sent");
        let text = String::from_utf8(out).expect("text");
        text.split_once("\r\n\r\n").expect("a body").1.to_owned()
    })
}

fn list(words: &[&str]) -> Origins {
    match Origins::parse(words) {
        Ok(list @ Origins::List(_)) => list,
        other => panic!("{words:?} is no list: {other:?}"),
    }
}

#[test]
fn same_is_the_host_and_port_that_the_request_is_for() {
    for (origin, host) in [
        ("http://example.com", "example.com"),
        ("http://example.com", "example.com:80"),
        ("http://example.com:80", "example.com"),
        ("https://example.com", "example.com"),
        ("https://example.com", "example.com:443"),
        ("https://example.com:443", "example.com:"),
        ("HTTP://EXAMPLE.com:8080", "example.COM:8080"),
        ("http://127.0.0.1:9001", "127.0.0.1:9001"),
        ("http://[::1]:9001", "[::1]:9001"),
        ("http://[0:0:0:0:0:0:0:1]", "[::1]"),
        ("app://localhost", "localhost"),
        ("http://my_host", "my_host"),
    ] {
        assert_eq!(
            check(&Origins::Same, Some(origin.as_bytes()), host),
            Ok(()),
            "{origin} at {host}"
        );
    }
    for (origin, host) in [
        ("http://example.com", "example.com:8080"),
        ("http://example.com:8080", "example.com"),
        ("https://example.com", "example.com:80"),
        ("http://example.com", "example.com:443"),
        ("http://evil.example", "example.com"),
        ("http://example.com.evil.example", "example.com"),
        ("http://evil-example.com", "example.com"),
        ("http://example.com", "example.com.evil.example"),
        ("http://example.com", "[::1]"),
        ("http://[::2]", "[::1]"),
        ("http://localhost:9001", "127.0.0.1:9001"),
        ("app://localhost", "localhost:80"),
        ("null", "example.com"),
        ("null", "null"),
        ("file://", "localhost"),
    ] {
        assert!(
            check(&Origins::Same, Some(origin.as_bytes()), host).is_err(),
            "{origin} at {host}"
        );
    }
}

#[test]
fn a_list_allows_its_origins_for_every_host() {
    let list = list(&[
        "https://example.com",
        "http://localhost:8080",
        "null",
        "http://[2001:db8:0::1]",
        "file://",
    ]);
    for origin in [
        "https://example.com",
        "https://example.com:443",
        "HTTPS://Example.Com",
        "http://localhost:8080",
        "null",
        "http://[2001:db8::1]:80",
        "file://",
    ] {
        assert_eq!(check(&list, Some(origin.as_bytes()), "elsewhere:9"), Ok(()), "{origin}");
    }
    for origin in [
        "http://example.com",
        "https://example.com:80",
        "https://www.example.com",
        "https://example.co",
        "http://localhost",
        "https://localhost:8080",
        "http://elsewhere:9",
        "NULL",
        "http://[2001:db8::2]",
    ] {
        assert!(check(&list, Some(origin.as_bytes()), "elsewhere:9").is_err(), "{origin}");
    }
}

#[test]
fn the_servers_own_pages_may_be_allowed_beside_others() {
    let both = Origins::parse(&["same", "https://other.example", "null"])
        .expect("a list with the own ones");
    for (origin, host, is_allowed) in [
        ("http://example.com", "example.com", true),
        ("https://other.example", "example.com", true),
        ("null", "example.com", true),
        ("http://other.example", "example.com", false),
        ("http://example.com", "elsewhere", false),
    ] {
        assert_eq!(
            check(&both, Some(origin.as_bytes()), host).is_ok(),
            is_allowed,
            "{origin} at {host}"
        );
    }
}

#[test]
fn a_request_without_an_origin_is_no_browsers() {
    for origins in [Origins::Same, Origins::Any, list(&["http://a"]), Origins::List(Vec::new())] {
        assert_eq!(check(&origins, None, "b"), Ok(()), "{origins:?}");
    }
}

#[test]
fn an_origin_that_is_none_is_not_no_origin() {
    for origin in [
        &b""[..],
        b"\xff",
        b"http://\xe4",
        b"http://a http://b",
        b"a",
        b"http://",
        b"http://b/",
        b"*",
    ] {
        for origins in [Origins::Same, list(&["http://a", "http://b"])] {
            let rejected = check(&origins, Some(origin), "b").expect_err("it is rejected");
            assert_eq!(rejected, "the Origin header is no origin\n", "{:?}", origin.escape_ascii());
        }
        assert_eq!(check(&Origins::Any, Some(origin), "b"), Ok(()));
    }
}

#[test]
fn a_rejection_names_the_origin_to_allow() {
    let rejected = check(&Origins::Same, Some(b"https://Other.example:443"), "example.com")
        .expect_err("another host");
    let expected = "pages of https://other.example may not connect; \
                    to allow them, add https://other.example to the server's list of origins\n";
    assert_eq!(rejected, expected);
}

#[test]
fn without_a_host_nothing_is_the_same() {
    assert!(!Origins::Same.allow(Some(b"http://a"), None));
    assert!(!Origins::Same.allow(Some(b"http://a"), Some("a/b")));
    assert!(Origins::Same.allow(None, None));
}

#[test]
fn origins_are_written_as_browsers_do() {
    for (written, read) in [
        ("null", "null"),
        ("HTTPS://EXAMPLE.COM:443", "https://example.com"),
        ("http://a:80", "http://a"),
        ("http://a:", "http://a"),
        ("http://a:0443", "http://a:443"),
        ("https://a:80", "https://a:80"),
        ("http://[2001:DB8:0:0::1]:81", "http://[2001:db8::1]:81"),
        ("chrome-extension://abc", "chrome-extension://abc"),
        ("x+y.z-1://a:80", "x+y.z-1://a:80"),
        ("file://", "file://"),
    ] {
        let origin: Origin = written.parse().unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(origin.to_string(), read);
        assert_eq!(read.parse(), Ok(origin));
    }
}

#[test]
fn invalid_origins_are_reported() {
    for (text, error) in [
        ("", OriginError::Scheme),
        ("example.com", OriginError::Scheme),
        ("://a", OriginError::Scheme),
        ("1a://b", OriginError::Scheme),
        ("h ttp://a", OriginError::Scheme),
        ("h\u{e4}://a", OriginError::Scheme),
        ("ws://a", OriginError::WebSocketScheme),
        ("WSS://a", OriginError::WebSocketScheme),
        ("http://a/", OriginError::Path),
        ("http://a/b", OriginError::Path),
        ("http://a?b", OriginError::Path),
        ("http://a#b", OriginError::Path),
        ("file:///a", OriginError::Path),
        ("http://u@a", OriginError::User),
        ("http://", OriginError::Host),
        ("http://:80", OriginError::Host),
        ("http://a b", OriginError::Host),
        ("http://b\u{fc}cher.example", OriginError::Host),
        ("http://[::1", OriginError::Host),
        ("http://[a]", OriginError::Host),
        ("http://[::1]80", OriginError::Host),
        ("http://a%20", OriginError::Host),
        ("*", OriginError::Wildcard),
        ("https://*.example.com", OriginError::Wildcard),
        ("http://a:b", OriginError::Port),
        ("http://a:+1", OriginError::Port),
        ("http://a:65536", OriginError::Port),
        ("http://a:1:2", OriginError::Port),
        ("http://[::1]:x", OriginError::Port),
    ] {
        assert_eq!(text.parse::<Origin>(), Err(error), "{text}");
    }
}

#[test]
fn words_are_read() {
    assert_eq!(Origins::parse::<&str>(&[]), Ok(Origins::Same));
    assert_eq!(Origins::parse(&["same"]), Ok(Origins::Same));
    assert_eq!(Origins::parse(&["any"]), Ok(Origins::Any));
    assert_eq!(Origins::parse(&["null"]), Ok(Origins::List(vec!["null".parse().unwrap()])));
    assert_eq!(Origins::parse(&["same", "same"]), Ok(Origins::Same));
    let both = Origins::SameOr(vec!["http://a".parse().unwrap()]);
    assert_eq!(Origins::parse(&["http://a", "same"]), Ok(both.clone()));
    assert_eq!(Origins::parse(&["same", "http://a"]), Ok(both));
    let error = Origins::parse(&["http://a", "any"]).unwrap_err();
    assert_eq!(error, OriginsError { index: 1, reason: OriginError::Word });
    let error = Origins::parse(&["http://a", "b"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "origin 2: an origin starts with a scheme, as in https://example.com"
    );
}

/// An origin composed of parts, some of them left out, together with the parts.
fn made_origin() -> impl Strategy<Value = (String, (String, String, u16))> {
    let scheme = prop_oneof![Just("http"), Just("https"), Just("HTTP"), Just("Https")];
    let host = prop_oneof![
        Just("a"),
        Just("A"),
        Just("b.a"),
        Just("1.2.3.4"),
        Just("[::1]"),
        Just("[0::1]")
    ];
    let port = prop_oneof![Just(None), Just(Some(80)), Just(Some(443)), Just(Some(8080))];
    (scheme, host, port).prop_map(|(scheme, host, port): (&str, &str, Option<u16>)| {
        let text = match port {
            Some(port) => format!("{scheme}://{host}:{port}"),
            None => format!("{scheme}://{host}"),
        };
        let default = if scheme.len() == 4 { 80 } else { 443 };
        (
            text,
            (
                scheme.to_lowercase(),
                host.to_lowercase().replace("0::1", "::1"),
                port.unwrap_or(default),
            ),
        )
    })
}

proptest! {
    /// The rules without the code: both origins have the same three parts, with defaults filled in.
    #[test]
    fn origins_are_compared_by_their_parts(
        (page, page_parts) in made_origin(),
        (own, own_parts) in made_origin(),
    ) {
        let allowed = check(&list(&[&own]), Some(page.as_bytes()), "x").is_ok();
        prop_assert_eq!(allowed, page_parts == own_parts);
        let (_, host) = own.split_once("://").unwrap();
        let has_port = |before: &str| !before.ends_with(':') && !before.ends_with('[');
        let port = host.rsplit_once(':').filter(|(before, _)| has_port(before));
        let port = port.and_then(|(_, port)| port.parse().ok());
        let expected_port = port.unwrap_or(if page_parts.0 == "http" { 80 } else { 443 });
        let same = check(&Origins::Same, Some(page.as_bytes()), host).is_ok();
        prop_assert_eq!(same, page_parts.1 == own_parts.1 && page_parts.2 == expected_port);
    }

    /// Tests arbitrary input from a peer and from a configuration.
    #[test]
    fn no_bytes_panic(
        origin in proptest::collection::vec(any::<u8>(), 0..40),
        host in "\\PC{0,20}",
    ) {
        for origins in [Origins::Same, Origins::Any, list(&["http://a"])] {
            let _ = origins.allow(Some(&origin), Some(&host));
        }
        let _ = host.parse::<Origin>();
        let _ = format!("http://{host}").parse::<Origin>();
    }

    /// Parsing and formatting preserve the origin.
    #[test]
    fn writing_changes_nothing(
        text in "(http|https|x)://([a-zA-Z.-]{1,6}|\\[::[0-9]\\])(:[0-9]{0,5})?",
    ) {
        if let Ok(origin) = text.parse::<Origin>() {
            prop_assert_eq!(origin.to_string().parse::<Origin>().unwrap(), origin.clone());
            let listed = Origins::List(vec![origin]);
            prop_assert!(listed.allow(Some(text.as_bytes()), None));
        }
    }
}
