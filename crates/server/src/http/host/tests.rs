//! Tests of requested hosts, by listening address and allowed hosts.

use windlass_ws::handshake::HeadLimits;

use super::*;

fn at(address: &str) -> Address {
    Address::Ip(address.parse().unwrap())
}

fn list(words: &[&str]) -> Hosts {
    Hosts::parse(words).unwrap()
}

const LOCAL: [&str; 10] = [
    "localhost",
    "localhost:9001",
    "LOCALHOST.",
    "localhost.:80",
    "127.0.0.1",
    "127.0.0.1:9001",
    "127.8.9.10:",
    "[::1]",
    "[0:0::0001]:9001",
    "[::ffff:127.0.0.1]:1",
];

const FOREIGN: [&str; 12] = [
    "evil.example",
    "evil.example:9001",
    "localhost.evil.example",
    "evil-localhost",
    "127.0.0.1.evil.example",
    "localhost..",
    ".",
    "10.0.0.1:9001",
    "[::2]",
    "0.0.0.0",
    "a%20b",
    "[v1.x]",
];

#[test]
fn by_default_loopback_answers_for_itself_alone_and_others_for_all() {
    for listening in ["127.0.0.1:9001", "127.0.0.2:1", "[::1]:9001", "[::ffff:127.0.0.1]:1"].map(at)
    {
        for host in LOCAL {
            assert!(Hosts::Local.allow(Some(host), &listening), "{host} at {listening}");
        }
        for host in FOREIGN {
            assert!(!Hosts::Local.allow(Some(host), &listening), "{host} at {listening}");
        }
    }
    let elsewhere = ["0.0.0.0:9001", "[::]:9001", "192.0.2.1:80"].map(at);
    for listening in elsewhere
        .into_iter()
        .chain([Address::Unix(None), Address::Unix(Some("/run/socket".into()))])
    {
        for host in LOCAL.into_iter().chain(FOREIGN) {
            assert!(Hosts::Local.allow(Some(host), &listening), "{host} at {listening}");
        }
    }
}

#[test]
fn a_list_allows_its_hosts_and_local_hosts() {
    let hosts = list(&[
        "Example.COM.",
        "10.0.0.1",
        "2001:db8:0::1",
        "[2001:db8::2]",
        "xn--bcher-kva.example",
    ]);
    let own = [
        "example.com",
        "EXAMPLE.com.:81",
        "10.0.0.1:9",
        "[::ffff:10.0.0.1]",
        "[2001:db8::1]:80",
        "[2001:DB8::2]",
        "XN--bcher-kva.example",
    ];
    for listening in [at("127.0.0.1:9001"), at("0.0.0.0:9001"), Address::Unix(None)] {
        for host in own {
            assert!(hosts.allow(Some(host), &listening), "{host} at {listening}");
        }
        for host in FOREIGN.into_iter().filter(|host| !host.starts_with("10.")) {
            assert!(!hosts.allow(Some(host), &listening), "{host} at {listening}");
        }
        for host in [
            "www.example.com",
            "example.co",
            "example.com.evil.example",
            "10.0.0.2",
            "[2001:db8::3]",
        ] {
            assert!(!hosts.allow(Some(host), &listening), "{host} at {listening}");
        }
        let is_here = listening != at("0.0.0.0:9001");
        assert!(
            LOCAL.iter().all(|host| hosts.allow(Some(host), &listening) == is_here),
            "{listening}"
        );
    }
    assert!(Hosts::Any.allow(Some("evil.example"), &at("127.0.0.1:1")));
    assert!(Hosts::Local.allow(None, &at("127.0.0.1:1")), "HTTP/1.0 need not say");
}

#[test]
fn a_rejection_names_the_host_to_allow() {
    let rejected = |host: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (request, _) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT).unwrap().unwrap();
        let rejection = Hosts::Local.check(&request, &at("127.0.0.1:1")).unwrap_err();
        let mut out = Vec::new();
        rejection.write(std::time::UNIX_EPOCH, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let text = rejected("Evil.Example.:9001");
    assert!(text.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{text}");
    assert!(
        text.contains("the host evil.example;") && text.contains("`--host evil.example`"),
        "{text}"
    );
    assert!(text.contains("Options::hosts"), "{text}");
    assert!(rejected("[2001:db8::1]:80").contains("`--host [2001:db8::1]`"));
    assert!(rejected("a%20b").contains("neither a name nor an address"));
    // The host that the message suggests can be allowed.
    assert_eq!("[2001:db8::1]".parse::<HostName>().unwrap().to_string(), "[2001:db8::1]");
}

#[test]
fn the_target_goes_before_the_header() {
    let head = b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (request, _) = Request::parse(head, &HeadLimits::DEFAULT).unwrap().unwrap();
    assert!(Hosts::Local.check(&request, &at("127.0.0.1:1")).is_err());
}

#[test]
fn invalid_hosts_are_reported() {
    for (words, index, reason) in [
        (&["http://example.com"][..], 0, HostError::Url),
        (&["a", "example.com/"], 1, HostError::Url),
        (&["example.com:80"], 0, HostError::Port),
        (&["[::1]:80"], 0, HostError::Port),
        (&["*.example.com"], 0, HostError::Wildcard),
        (&[""], 0, HostError::Name),
        (&["."], 0, HostError::Name),
        (&["b\u{fc}cher.example"], 0, HostError::Name),
        (&["a b"], 0, HostError::Name),
        (&["a@b"], 0, HostError::Name),
        (&["a", "any"], 1, HostError::Word),
    ] {
        assert_eq!(Hosts::parse(words), Err(HostsError { index, reason }), "{words:?}");
    }
    assert_eq!(Hosts::parse::<&str>(&[]), Ok(Hosts::Local));
    assert_eq!(Hosts::parse(&["any"]), Ok(Hosts::Any));
    assert_eq!(
        list(&["Example.com.", "127.0.0.1", "::1"]),
        list(&["example.com", "127.0.0.1", "[::1]"])
    );
}
