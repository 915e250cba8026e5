//! Requests and responses before a connection is a WebSocket, over sockets.

use std::{io::Write, net::TcpStream, rc::Rc, time::Duration};

use windlass_server::http::{Accept, Hosts, Page, Reject, Routes};

use crate::fixture::{Client, ConnData, Fixture, TestHandler};

fn ask(fixture: &mut Fixture, request: &str) -> String {
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut client = Client::of(socket, "/", None);
    fixture.until(|_| client.raw_end())
}

const UPGRADE: &str = "Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn a_rejection_is_sent_to_the_client() {
    let handler = TestHandler::echo().on_upgrade(|request| {
        assert_eq!((request.path(), request.query()), ("/room", Some("x=1")));
        Err(Reject::status(401).text("who are you?").header("WWW-Authenticate", "Bearer"))
    });
    let mut fixture = Fixture::new(handler);
    let answer = ask(&mut fixture, &format!("GET /room?x=1 HTTP/1.1\r\n{UPGRADE}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(
        answer.contains("WWW-Authenticate: Bearer\r\n") && answer.contains("who are you?"),
        "{answer}"
    );
    fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
    let stats = fixture.service.stats();
    assert_eq!((stats.rejected, stats.opened), (1, 0));
    assert_eq!(fixture.events(), [""; 0]);
}

#[test]
fn pages_of_other_origins_are_rejected() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let answer = ask(
        &mut fixture,
        &format!("GET / HTTP/1.1\r\n{UPGRADE}Origin: http://evil.example\r\n\r\n"),
    );
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(fixture.events(), [""; 0]);
}

/// DNS rebinding (issue 13).
#[test]
fn a_name_that_is_made_to_resolve_to_this_server_is_rejected() {
    let own_page = "Origin: http://evil.example\r\n";
    let upgrade =
        format!("GET / HTTP/1.1\r\n{UPGRADE}{own_page}\r\n").replace("localhost", "evil.example");
    let handler = TestHandler::echo();
    let rejected = Rc::clone(&handler.rejected);
    let mut fixture = Fixture::with(handler, |options| {
        options.routes = Routes::everywhere().page("/", Page::html("<p>"))
    });
    let answer = ask(&mut fixture, &upgrade);
    assert!(
        answer.starts_with("HTTP/1.1 421 ") && answer.contains("--host evil.example"),
        "{answer}"
    );
    let answer = ask(&mut fixture, "HEAD / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 421 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    fixture.settle();
    assert_eq!((fixture.service.stats().rejected, fixture.service.stats().opened), (2, 0));
    let told: Vec<_> =
        rejected.take().into_iter().map(|(_, status, reason)| (status, reason)).collect();
    assert!(
        told.len() == 2 && told[0].0 == Some(421) && told[0].1.contains("evil.example"),
        "{told:?}"
    );
    // The request for the page is reported too. Its response has no text.
    assert_eq!(told[1], (Some(421), "Misdirected Request".to_owned()));

    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.hosts = Hosts::parse(&["evil.example"]).unwrap()
    });
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    socket.write_all(upgrade.as_bytes()).unwrap();
    let mut client = Client::of(socket, "/", None);
    client.skip_head();
    fixture.until(|_| client.is_open().then_some(()));
}

#[test]
fn a_page_and_then_a_connection_on_one_socket() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.routes = Routes::new().upgrade("/ws").page("/", Page::html("<h1>hello</h1>"));
    });
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    let page = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // One write contains two page requests and an upgrade with its first message.
    let mut bytes = format!("{page}{page}GET /ws HTTP/1.1\r\n{UPGRADE}\r\n").into_bytes();
    bytes.extend([0x81, 0x82, 0, 0, 0, 0, b'h', b'i']);
    socket.write_all(&bytes).unwrap();
    let mut client = Client::of(socket, "/", None);
    let received = fixture.until(|_| {
        let received = client.raw_so_far();
        received.ends_with("\u{fffd}\u{2}hi").then_some(received)
    });
    assert_eq!(received.matches("<h1>hello</h1>").count(), 2);
    assert_eq!(received.matches("HTTP/1.1 101 ").count(), 1);
    assert_eq!(fixture.events(), ["open /ws"]);
    assert_eq!(fixture.service.stats().requests, 2);
    let answer = ask(&mut fixture, &format!("GET /other HTTP/1.1\r\n{UPGRADE}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

/// They are counted and reported whether or not they ask for an upgrade, and also when the
/// connection is kept.
#[test]
fn each_rejected_request_is_counted_and_reported() {
    let handler = TestHandler::echo();
    let rejected = Rc::clone(&handler.rejected);
    let mut fixture = Fixture::with(handler, |options| {
        options.routes = Routes::new().upgrade("/ws").page("/", Page::html("<p>"));
    });
    let head = |first: &str| format!("{first} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let not_modified =
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nIf-None-Match: *\r\n\r\n";
    let requests = [
        head("GET /"),
        not_modified.to_owned(),
        head("GET /nowhere"),
        head("HEAD /nowhere"),
        head("POST /"),
        head("OPTIONS *"),
        head("GET /ws"),
    ];
    let answers = ask(&mut fixture, &requests.concat());
    assert_eq!(answers.matches("HTTP/1.1 ").count(), requests.len(), "{answers}");
    let answers = ask(&mut fixture, "GARBAGE\r\n\r\n");
    assert!(answers.starts_with("HTTP/1.1 400 "), "{answers}");

    let told: Vec<_> = rejected.take().into_iter().map(|(_, status, _)| status.unwrap()).collect();
    assert_eq!(told, [404, 404, 405, 426, 400]);
    let stats = fixture.service.stats();
    assert_eq!((stats.rejected, stats.requests), (5, 3));
    let counts = fixture.service.stats_handle();
    fixture.advance_time(Duration::from_secs(1));
    let metrics = counts.prometheus();
    for (result, count) in [("not_found", 2), ("bad_request", 3)] {
        let line = format!("windlass_handshakes_total{{result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[test]
fn garbage_is_answered_once() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let answer = ask(&mut fixture, "GARBAGE\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
}

#[test]
fn connections_per_address_are_limited() {
    let mut fixture =
        Fixture::with(TestHandler::echo(), |options| options.connections_per_address_max = Some(2));
    let (a, _b) = (fixture.connect("/"), fixture.connect("/"));
    assert_eq!(ask(&mut fixture, &format!("GET / HTTP/1.1\r\n{UPGRADE}\r\n")), "");
    drop(a);
    fixture.until_event("close / Lost");
    let _c = fixture.connect("/");
    assert_eq!(fixture.service.stats().rejected, 1);
}

#[test]
fn connections_above_the_limit_wait() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| options.connections_max = 2);
    let a = fixture.connect("/");
    fixture.advance_time(Duration::from_secs(2));
    assert_eq!(fixture.service.stats().connection_limits_reached, 0);
    let _b = fixture.connect("/");
    fixture.advance_time(Duration::from_secs(2));
    assert_eq!(fixture.service.stats().connection_limits_reached, 1);
    let mut waits = Client::begin(fixture.address, "/", None);
    for _ in 0..20 {
        fixture.turn();
        assert!(!waits.is_open());
    }
    drop(a);
    fixture.until(|_| waits.is_open().then_some(()));
}

#[test]
fn on_rejected_gets_the_peer_and_the_reason() {
    let handler = TestHandler::echo().on_upgrade(|request| match request.path() {
        "/secret" => Err(Reject::status(401).text("who are you?")),
        _ => Ok(Accept::new(ConnData::default())),
    });
    let rejected = Rc::clone(&handler.rejected);
    let mut fixture = Fixture::with(handler, |options| {
        options.connections_per_address_max = Some(1);
        options.handshake_timeout = Duration::from_secs(10);
        options.routes = Routes::everywhere().page("/page", Page::html("<p>"));
    });
    let upgrade = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\n{UPGRADE}{more}\r\n");
    for request in [
        upgrade("/secret", ""),
        upgrade("/", "Origin: https://evil.example\r\n"),
        upgrade("/", "").replace("Key", "Clef"),
        "GARBAGE\r\n\r\n".to_owned(),
        "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(),
        // It is answered, and so not reported.
        "GET /page HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: close\r\n\r\n"
            .to_owned(),
    ] {
        assert_ne!(ask(&mut fixture, &request), "");
        // It has given up the one place of its address.
        fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
    }
    let mut slow = TcpStream::connect(fixture.address).unwrap();
    slow.write_all(b"GET / HT").unwrap();
    fixture.until_received("GET / HT".len());
    assert_eq!(fixture.service.stats().connections, 1);
    assert_eq!(ask(&mut fixture, &upgrade("/", "")), "", "it has the one place");
    fixture.advance_time(Duration::from_secs(15));
    let told: Vec<_> = rejected.take();
    assert!(told.iter().all(|(peer, ..)| peer.ip().is_some_and(|ip| ip.is_loopback())), "{told:?}");
    let told: Vec<_> = told.iter().map(|(_, status, reason)| (*status, reason.as_str())).collect();
    for (at, status, word) in [
        (0, Some(401), "who are you?"),
        (1, Some(403), "https://evil.example"),
        (2, Some(400), "Sec-WebSocket-Key"),
        (3, Some(400), ""),
        (4, Some(426), "WebSocket endpoint"),
        (5, None, "this address"),
        (6, Some(408), ""),
    ] {
        assert!(
            told[at].0 == status && told[at].1.contains(word) && !told[at].1.is_empty(),
            "{at}: {told:?}"
        );
    }
    assert_eq!(told.len(), 7, "{told:?}");
}
