//! Clients behind proxies: the PROXY protocol, and headers that name the client.

use std::{cell::RefCell, io::Write as _, net::TcpStream, rc::Rc, sync::Arc, time::Duration};

use windlass_server::{
    Limit, Options, Rate,
    http::{Accept, ForwardedHeader, Networks, Page, Routes},
};

use crate::{
    fixture::{Client, ConnData, Fixture, RejectionLog, TestHandler},
    tls_client::{TlsClient, acceptor, connector},
};

const UPGRADE: &str = "Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// A header of version 1 for this client.
fn line(client: &str) -> String {
    format!("PROXY TCP4 {client} 127.0.0.1 1000 80\r\n")
}

/// Version 2 for 192.0.2.1:1000.
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01\x03\xe8\0\x50";
/// Version 2 of a proxy that speaks for itself.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// The peers that the handler has seen: at the request, and at the open connection.
type Peers = Rc<RefCell<Vec<String>>>;

fn handler() -> (TestHandler, Peers, RejectionLog) {
    let peers = Peers::default();
    let (at_request, at_open) = (Rc::clone(&peers), Rc::clone(&peers));
    let handler = TestHandler::echo()
        .on_upgrade(move |request| {
            at_request.borrow_mut().push(request.peer().to_string());
            Ok(Accept::new(ConnData { path: request.path().to_owned(), on_drop: None }))
        })
        .on_open(move |connection, _| {
            at_open.borrow_mut().push(connection.peer().unwrap().to_string());
        });
    let rejected = Rc::clone(&handler.rejected);
    (handler, peers, rejected)
}

fn loopback() -> Networks {
    Networks::parse(&["127.0.0.0/8"]).unwrap()
}

/// Sends these bytes, and opens a WebSocket by the given request behind them.
#[track_caller]
fn open(fixture: &mut Fixture, pieces: &[&[u8]]) -> Client {
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    for piece in pieces {
        let before = fixture.service.stats().wire_received;
        socket.write_all(piece).unwrap();
        fixture.until(|fixture| {
            let received = fixture.service.stats().wire_received - before;
            (received == piece.len() as u64).then_some(())
        });
    }
    let mut client = Client::of(socket, "/", None);
    client.skip_head();
    fixture.until(|_| client.is_open().then_some(()));
    client
}

/// Returns all that a client gets that sends this.
fn answer_to(fixture: &mut Fixture, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    socket.write_all(bytes).unwrap();
    let mut client = Client::of(socket, "/", None);
    fixture.until(|_| client.raw_end())
}

fn upgrade(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\n{UPGRADE}{lines}\r\n").into_bytes()
}

#[test]
fn a_proxy_header_states_the_client() {
    let (handler, peers, _) = handler();
    let mut fixture = Fixture::with(handler, |options| options.proxies.proxy_protocol = loopback());
    let request = upgrade("");
    let line = line("192.0.2.7").into_bytes();
    let client = open(&mut fixture, &[&line, &request]);
    assert_eq!(peers.take(), ["192.0.2.7:1000"; 2]);
    drop(client);
    // In one piece with the request, in three pieces, and cut in the last byte of the header.
    open(&mut fixture, &[&[BINARY, &request].concat()]);
    open(&mut fixture, &[&BINARY[..1], &BINARY[1..20], &[&BINARY[20..], &request].concat()]);
    let end = BINARY.len() - 1;
    open(&mut fixture, &[&BINARY[..end], &[&BINARY[end..], &request[..9]].concat(), &request[9..]]);
    assert_eq!(peers.take(), ["192.0.2.1:1000"; 6]);
    let client = open(&mut fixture, &[LOCAL, &request]);
    let own = client.socket.local_addr().unwrap().to_string();
    assert_eq!(peers.take(), [&own[..]; 2], "the proxy speaks for itself");
}

#[test]
fn a_listed_peer_without_a_proxy_header_is_closed() {
    let (handler, peers, rejected) = handler();
    let limits = Rc::clone(&handler.limits);
    let mut fixture = Fixture::with(handler, |options| options.proxies.proxy_protocol = loopback());
    for (bytes, reason, advice) in [
        (upgrade(""), "no PROXY header came from a listed proxy; ", "let it send one, or do not"),
        (b"PROXY nonsense\r\n".to_vec(), "the PROXY header is malformed; ", "version 1 or 2"),
        ([b"PROXY ", &[b'x'; 200][..]].concat(), "the PROXY header is longer than 107", "fewer"),
    ] {
        assert_eq!(answer_to(&mut fixture, &bytes), "");
        let told = rejected.take();
        assert_eq!((told.len(), told[0].1), (1, None));
        assert!(told[0].2.starts_with(reason) && told[0].2.contains(advice), "{told:?}");
    }
    // One that sends nothing is closed by the timeout of the handshake.
    let silent = TcpStream::connect(fixture.address).unwrap();
    let mut partial = TcpStream::connect(fixture.address).unwrap();
    partial.write_all(b"PROXY TCP4 ").unwrap();
    fixture.until_received("PROXY TCP4 ".len());
    fixture.advance_time(Duration::from_secs(12));
    for socket in [silent, partial] {
        let mut client = Client::of(socket, "/", None);
        assert_eq!(fixture.until(|_| client.raw_end()), "");
    }
    fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
    assert_eq!((peers.take().len(), fixture.service.stats().handshake_timeouts), (0, 2));
    let told = rejected.take();
    let reasons: Vec<_> = told.iter().map(|(_, status, reason)| (*status, &**reason)).collect();
    assert_eq!(reasons, [(None, "no PROXY header came in time"); 2]);
    assert_eq!(limits.take().split_off(3), [Some(Limit::HandshakeTimeout); 2]);
    // The timer event copies the counts.
    fixture.advance_time(Duration::from_secs(1));
    let metrics = fixture.service.stats_handle().prometheus();
    for line in [
        "handshakes_total{result=\"late_proxy_header\"} 2\n",
        "limit_hits_total{limit=\"handshake_timeout\"} 2\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[test]
fn a_peer_that_is_not_listed_forges_nothing() {
    let (handler, peers, _) = handler();
    let mut fixture = Fixture::with(handler, |options| {
        options.proxies.proxy_protocol = Networks::parse(&["10.0.0.0/8", "unix"]).unwrap();
        options.proxies.forwarded = Networks::parse(&["10.0.0.0/8", "unix"]).unwrap();
    });
    for header in [line("192.0.2.7").as_bytes(), BINARY] {
        let answer = answer_to(&mut fixture, &[header, &upgrade("")].concat());
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    let forged = "X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n";
    let client = open(&mut fixture, &[&upgrade(forged)]);
    let own = client.socket.local_addr().unwrap().to_string();
    assert_eq!(peers.take(), [&own[..]; 2]);
}

#[test]
fn limits_by_address_are_those_of_the_client_that_a_proxy_states() {
    let (handler, _, rejected) = handler();
    let limits = Rc::clone(&handler.limits);
    let mut fixture = Fixture::with(handler, |options| {
        options.proxies.proxy_protocol = loopback();
        options.connections_per_address_max = Some(1);
        options.rates.connections_per_address = Some(Rate::new(3, Duration::from_secs(3600)));
    });
    let request = upgrade("");
    let headers = ["192.0.2.7", "192.0.2.8"].map(line);
    let clients =
        headers.clone().map(|line| open(&mut fixture, &[&[line.as_bytes(), &request].concat()]));
    assert_eq!(answer_to(&mut fixture, &[headers[0].as_bytes(), &request].concat()), "");
    assert_eq!(rejected.borrow()[0].0.to_string(), "192.0.2.7:1000", "a log line has the client");
    // The proxy's own checks count as its own.
    open(&mut fixture, &[&[LOCAL, &request].concat()]);
    drop(clients);
    fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
    open(&mut fixture, &[&[headers[0].as_bytes(), &request].concat()]);
    fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
    assert_eq!(answer_to(&mut fixture, headers[0].as_bytes()), "", "the fourth in an hour");
    let expected = [Limit::ConnectionsPerAddressMax, Limit::ConnectionRatePerAddress];
    assert_eq!(*limits.borrow(), expected.map(Some));
}

#[test]
fn a_proxy_header_comes_before_tls() {
    let (handler, peers, rejected) = handler();
    let configure = |options: &mut Options| {
        options.proxies.proxy_protocol = loopback();
        options.connections_per_address_max = Some(1);
    };
    let mut fixture = Fixture::with(handler, configure);
    let mut options = Options::new();
    configure(&mut options);
    let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.with_tls(Arc::new(acceptor().build().unwrap()));
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    fixture.service.listen(listener, &mut fixture.reactor).unwrap();
    let target = Arc::new(connector().build().unwrap().to("localhost").unwrap());

    let begin = |fixture: &mut Fixture, header: &[u8]| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(header).unwrap();
        TlsClient::on(fixture, socket, target.clone())
    };
    let line = line("192.0.2.7");
    let client = begin(&mut fixture, line.as_bytes());
    client.upgrade(&mut fixture, "");
    client.until_received(&mut fixture, "HTTP/1.1 101 ");
    client.send_text(&mut fixture, "hello");
    client.until_received(&mut fixture, "\u{5}hello");
    assert_eq!(peers.take(), ["192.0.2.7:1000"; 2]);
    for (header, peer, reason) in [
        (line.as_bytes(), Some("192.0.2.7:1000"), "connection limit of this address reached"),
        (&b""[..], None, "no PROXY header came from a listed proxy; "),
    ] {
        let refused = begin(&mut fixture, header);
        refused.until_closed(&mut fixture);
        let told = fixture.until(|_| Some(rejected.take()).filter(|told| !told.is_empty()));
        assert_eq!((told.len(), told[0].1), (1, None));
        assert!(told[0].2.starts_with(reason), "{told:?}");
        assert!(peer.is_none_or(|peer| told[0].0.to_string() == peer), "{told:?}");
    }
    let other = begin(&mut fixture, BINARY);
    other.upgrade(&mut fixture, "");
    other.until_received(&mut fixture, "HTTP/1.1 101 ");
    // Without the whole header, the TLS handshake has not begun.
    let before = fixture.service.stats().connections;
    let mut late = TcpStream::connect(address).unwrap();
    late.write_all(b"PROXY TCP4 ").unwrap();
    fixture.until(|fixture| (fixture.service.stats().connections > before).then_some(()));
    fixture.advance_time(Duration::from_secs(12));
    let told = fixture.until(|_| Some(rejected.take()).filter(|told| !told.is_empty()));
    assert_eq!((told.len(), told[0].1, &*told[0].2), (1, None, "no PROXY header came in time"));
}

#[test]
fn a_trusted_header_names_the_client_of_each_request() {
    let (handler, peers, rejected) = handler();
    let limits = Rc::clone(&handler.limits);
    let mut fixture = Fixture::with(handler, |options| {
        options.routes = Routes::everywhere().page("/page", Page::html("<p>"));
        options.proxies.forwarded = loopback();
        options.connections_per_address_max = Some(1);
        options.rates.requests_per_address = Some(Rate::new(2, Duration::from_secs(3600)));
    });
    // The client has forged the first address.
    let names = |client: &str| format!("X-Forwarded-For: 127.0.0.1, {client}\r\n");
    let client = open(&mut fixture, &[&upgrade(&names("192.0.2.7"))]);
    assert_eq!(peers.take(), ["192.0.2.7:0"; 2]);
    let answer = answer_to(&mut fixture, &upgrade(&names("192.0.2.7")));
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("Retry-After: "), "{answer}");
    // One connection of the proxy has requests of several clients.
    let page = |client: &str| format!("GET /page HTTP/1.1\r\nHost: x\r\n{}\r\n", names(client));
    let all = [page("192.0.2.8"), page("192.0.2.9"), page("192.0.2.7")].concat();
    let answers = answer_to(&mut fixture, all.replace("Host: x", "Host: localhost").as_bytes());
    let statuses: Vec<&str> =
        answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "200", "429"], "{answers}");
    let told: Vec<String> = rejected.borrow().iter().map(|told| told.0.to_string()).collect();
    assert_eq!(told, ["192.0.2.7:0"; 2]);
    let expected = [Limit::ConnectionsPerAddressMax, Limit::RequestRatePerAddress];
    assert_eq!(*limits.borrow(), expected.map(Some));
    drop(client);
}

#[test]
fn only_the_chosen_header_is_believed() {
    let (handler, peers, _) = handler();
    let mut fixture = Fixture::with(handler, |options| {
        options.proxies.forwarded = loopback();
        options.proxies.forwarded_header = ForwardedHeader::Forwarded;
    });
    let lines = "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.9, for=\"192.0.2.8:80\"\r\n";
    open(&mut fixture, &[&upgrade(lines)]);
    assert_eq!(peers.take(), ["192.0.2.8:80"; 2]);
    // The open quote would hide the client, who then had the exemption of the proxy.
    let hiding = upgrade("Forwarded: for=\"x, for=192.0.2.8\r\n");
    let answer = answer_to(&mut fixture, &hiding);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(peers.take().is_empty());
}

#[test]
fn a_proxy_header_may_state_another_proxy() {
    let (handler, peers, _) = handler();
    let mut fixture = Fixture::with(handler, |options| {
        options.proxies.proxy_protocol = loopback();
        options.proxies.forwarded = Networks::parse(&["192.0.2.7"]).unwrap();
        options.connections_per_address_max = Some(1);
    });
    let _clients = ["198.51.100.1", "198.51.100.2"].map(|client| {
        let request = upgrade(&format!("X-Forwarded-For: {client}\r\n"));
        open(&mut fixture, &[&[line("192.0.2.7").as_bytes(), &request].concat()])
    });
    let expected = ["198.51.100.1:0", "198.51.100.2:0"].map(|client| [client; 2]).concat();
    assert_eq!(peers.take(), expected);
    assert_eq!(fixture.service.stats().rejected, 0);
}
