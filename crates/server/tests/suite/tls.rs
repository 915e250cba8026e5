//! A service with TLS listeners.

use std::{cell::Cell, time::Duration};
use std::{
    cell::RefCell,
    io::Write as _,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::AsFd as _,
    rc::Rc,
    sync::Arc,
};

use windlass::stream::{DisconnectReason, TlsFailure, TlsSessionFactory as _};
use windlass_server::{
    CloseReason, Options, Service,
    http::{Accept, TlsInfo},
};
use windlass_tls::{MinimumVersion, TlsAcceptor};

use crate::{
    fixture::{Client, ClientEvent, ConnData, Fixture, RejectionLog, TestHandler, text},
    tls_client::{TlsClient, acceptor, certificate, connector},
};

const SECOND: Duration = Duration::from_secs(1);

/// A service with a plain listener, and one with TLS at the returned address.
fn service_with(
    handler: TestHandler,
    configure: impl Fn(&mut Options),
    tls: &TlsAcceptor,
) -> (Fixture, SocketAddr) {
    let mut fixture = Fixture::with(handler, &configure);
    let mut options = Options::new();
    configure(&mut options);
    let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.with_tls(Arc::new(tls.clone()));
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    fixture.service.listen(listener, &mut fixture.reactor).unwrap();
    (fixture, address)
}

fn service(handler: TestHandler) -> (Fixture, SocketAddr) {
    service_with(handler, |_| {}, &acceptor().build().unwrap())
}

/// A sample of the metrics.
fn metric(fixture: &mut Fixture, sample: &str) -> u64 {
    // The handle would wait for the loop, which is this thread. A timeout scan copies the counts.
    fixture.advance_time(2 * SECOND);
    let text = fixture.service.stats_handle().prometheus();
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in {text}")).parse().unwrap()
}

#[track_caller]
fn until_connections(fixture: &mut Fixture, count: u64) {
    fixture.until(|fixture| (fixture.service.stats().connections == count).then_some(()));
}

fn rejected(log: &RejectionLog) -> Vec<String> {
    log.borrow().iter().map(|(_, status, reason)| format!("{status:?} {reason}")).collect()
}

#[test]
fn handlers_see_what_was_negotiated() {
    let told: Rc<RefCell<Vec<Option<TlsInfo>>>> = Rc::default();
    let (of_upgrade, of_open) = (Rc::clone(&told), Rc::clone(&told));
    let handler = TestHandler::echo()
        .on_upgrade(move |request| {
            of_upgrade.borrow_mut().push(request.tls().cloned());
            Ok(Accept::new(ConnData::default()))
        })
        .on_open(move |connection, _| of_open.borrow_mut().push(connection.tls()));
    let tls = acceptor().request_client_certificates(certificate("ca.pem")).build().unwrap();
    let (mut fixture, address) = service_with(handler, |_| {}, &tls);
    let with_certificate = connector()
        .certificate(certificate("client.pem"), certificate("client.key"))
        .build()
        .unwrap();
    for resumed in [false, true] {
        let client = TlsClient::connect(&mut fixture, address, &with_certificate);
        client.send_text(&mut fixture, "hello");
        client.until_received(&mut fixture, "\u{5}hello");
        let told = told.take();
        assert_eq!(told.len(), 2);
        assert_eq!(told[0], told[1]);
        let info = told[0].as_ref().unwrap();
        assert_eq!((info.version(), info.is_resumed()), (Some("TLSv1.3"), resumed));
        assert_eq!(info.alpn(), Some(&b"http/1.1"[..]));
        assert_eq!(info.server_name(), Some("localhost"));
        assert_eq!(info.peer_subject(), Some("CN=client 1,O=Windlass\\, tests"));
    }
    // The same service has a plain listener.
    let mut plain = fixture.connect("/");
    plain.send("plain");
    assert_eq!(fixture.next_event(&mut plain), text("plain"));
    assert_eq!(told.take(), [None, None]);
    let completed = "windlass_tls_handshakes_total{version=\"1.3\",resumed=";
    assert_eq!(metric(&mut fixture, &format!("{completed}\"false\"}}")), 1);
    assert_eq!(metric(&mut fixture, &format!("{completed}\"true\"}}")), 1);
    let open = "windlass_connections{state=\"open\",transport=";
    assert_eq!(metric(&mut fixture, &format!("{open}\"tls\"}}")), 2);
    assert_eq!(metric(&mut fixture, &format!("{open}\"tcp\"}}")), 1);
}

#[test]
fn only_pages_by_https_are_its_own_over_tls() {
    let (mut fixture, address) = service(TestHandler::echo());
    let connector = connector().build().unwrap();
    for (origin, status) in [
        ("https://localhost", "101"),
        ("https://localhost:443", "101"),
        ("http://localhost", "403"),
        ("http://localhost:443", "403"),
        ("https://localhost:80", "403"),
        ("https://elsewhere", "403"),
    ] {
        let target = Arc::new(connector.to("localhost").unwrap());
        let client = TlsClient::begin(&mut fixture, address, target);
        client.upgrade(&mut fixture, &format!("Origin: {origin}\r\n"));
        client.until_received(&mut fixture, &format!("HTTP/1.1 {status} "));
    }
}

/// Without it, what was received may be truncated: between two records or in one.
#[test]
fn an_end_without_close_notify_has_a_reason_of_its_own() {
    let reasons: Rc<RefCell<Vec<CloseReason>>> = Rc::default();
    let of_handler = Rc::clone(&reasons);
    let handler = TestHandler::echo()
        .on_close(move |_, _, closed| of_handler.borrow_mut().push(closed.reason));
    let (mut fixture, address) = service(handler);
    let connector = connector().build().unwrap();
    let part_of_a_record = [0x17, 3, 3, 0, 50, 1, 2, 3];
    let truncated = CloseReason::Tls(TlsFailure::Truncated);
    for (bytes, reason) in
        [(&[][..], truncated), (&part_of_a_record, truncated), (&[], CloseReason::Lost)]
    {
        let client = TlsClient::connect(&mut fixture, address, &connector);
        let mut stream = fixture.reactor.stream(client.key).unwrap();
        if reason == CloseReason::Lost {
            stream.finish();
        } else {
            // Past the session.
            let socket = TcpStream::from(stream.as_fd().try_clone_to_owned().unwrap());
            (&socket).write_all(bytes).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
        }
        let (end, reasons) = (fixture.until(|_| reasons.borrow_mut().pop()), &reasons);
        assert_eq!(end, reason);
        assert!(reasons.borrow().is_empty());
    }
    assert_ne!(truncated.to_string(), CloseReason::Lost.to_string());
    // A client that merely dies sends no `close_notify` either.
    let lost = "windlass_connections_closed_total{reason=\"lost\"}";
    assert_eq!(metric(&mut fixture, lost), 3);
}

#[test]
fn a_failed_tls_handshake_is_counted_and_reported() {
    let handler = TestHandler::echo();
    let log = Rc::clone(&handler.rejected);
    let tls = acceptor()
        .require_client_certificates(certificate("ca.pem"))
        .minimum_version(MinimumVersion::Tls13)
        .build()
        .unwrap();
    let (mut fixture, address) = service_with(handler, |_| {}, &tls);
    let without_certificate = connector().build().unwrap();
    let target = Arc::new(without_certificate.to("localhost").unwrap());
    let client = TlsClient::begin(&mut fixture, address, target);
    let reason = client.until_closed(&mut fixture);
    // The number of the alert `certificate_required`.
    assert_eq!(reason, DisconnectReason::Tls(TlsFailure::AlertReceived(116)));
    fixture.until(|_| (!log.borrow().is_empty()).then_some(()));
    let expected = format!("None TLS handshake: {}", TlsFailure::CertificateRequired);
    assert_eq!(rejected(&log), [expected]);
    log.borrow_mut().clear();
    // Plain HTTP on the port with TLS.
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut plain = Client::of(plain, "/", None);
    let answer = fixture.until(|_| plain.raw_end());
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    drop(plain);
    fixture.until(|_| (!log.borrow().is_empty()).then_some(()));
    assert_eq!(rejected(&log), [format!("None TLS handshake: {}", TlsFailure::PlainHttp)]);
    log.borrow_mut().clear();
    until_connections(&mut fixture, 0);
    // A client that goes away is counted, and no line of a log.
    let silent = TcpStream::connect(address).unwrap();
    until_connections(&mut fixture, 1);
    drop(silent);
    until_connections(&mut fixture, 0);
    let failures = "windlass_tls_handshake_failures_total{reason=";
    for reason in ["certificate_required", "plain_http", "incomplete"] {
        let sample = format!("{failures}\"{reason}\"}}");
        assert_eq!(metric(&mut fixture, &sample), 1, "{reason}");
    }
    assert!(log.borrow().is_empty());
    let stats = fixture.service.stats();
    assert_eq!((stats.rejected, stats.opened, stats.connections), (2, 0, 0));
}

#[test]
fn the_handshake_timeout_covers_tls_and_the_request_together() {
    let handler = TestHandler::echo();
    let log = Rc::clone(&handler.rejected);
    let (mut fixture, address) = service(TestHandler { rejected: Rc::clone(&log), ..handler });
    // One that sends nothing.
    let silent = TcpStream::connect(address).unwrap();
    until_connections(&mut fixture, 1);
    let pending = "windlass_connections{state=\"handshake\",transport=\"tls\"}";
    assert_eq!(metric(&mut fixture, pending), 1);
    assert_eq!(fixture.service.stats().connections, 1);
    fixture.advance_time(7 * SECOND);
    // One whose TLS handshake ends after some seconds, without a whole request.
    let target = Arc::new(connector().build().unwrap().to("localhost").unwrap());
    let late = TlsClient::begin(&mut fixture, address, target);
    fixture.reactor.stream(late.key).unwrap().pause();
    until_connections(&mut fixture, 2);
    fixture.advance_time(6 * SECOND);
    let expected = format!("None TLS handshake: {}", TlsFailure::HandshakeTimeout);
    assert_eq!(rejected(&log), [expected]);
    let mut silent = Client::of(silent, "/", None);
    assert_eq!(fixture.until(|_| silent.raw_end()), "");
    fixture.reactor.stream(late.key).unwrap().resume();
    let seen = Rc::clone(&late.seen);
    fixture.until(|_| seen.is_open.get().then_some(()));
    // The server's side is open too when it has the first byte of a request.
    late.send(&mut fixture, b"G");
    fixture.until_received(1);
    // Ten seconds after it was accepted, and not after its TLS handshake.
    fixture.advance_time(6 * SECOND);
    assert_eq!(late.until_closed(&mut fixture), DisconnectReason::Closed);
    let limit = "windlass_limit_hits_total{limit=\"handshake_timeout\"}";
    assert_eq!(metric(&mut fixture, limit), 2);
    assert_eq!(fixture.service.stats().handshake_timeouts, 2);
}

#[test]
fn a_tls_handshake_counts_for_the_limit_of_its_address() {
    let limited = |options: &mut Options| options.connections_per_address_max = Some(2);
    let tls = acceptor().build().unwrap();
    let (mut fixture, address) = service_with(TestHandler::echo(), limited, &tls);
    let connector = connector().build().unwrap();
    let pending = TcpStream::connect(address).unwrap();
    until_connections(&mut fixture, 1);
    let client = TlsClient::connect(&mut fixture, address, &connector);
    let target = Arc::new(connector.to("localhost").unwrap());
    let third = TlsClient::begin(&mut fixture, address, Arc::clone(&target) as _);
    third.until_closed(&mut fixture);
    drop(pending);
    until_connections(&mut fixture, 1);
    TlsClient::connect(&mut fixture, address, &connector);
    client.send_text(&mut fixture, "still there");
    client.until_received(&mut fixture, "still there");
}

#[test]
fn a_drain_says_close_and_close_notify_and_waits_for_no_tls_handshake() {
    let (mut fixture, address) = service(TestHandler::echo());
    let client = TlsClient::connect(&mut fixture, address, &connector().build().unwrap());
    let pending = TcpStream::connect(address).unwrap();
    until_connections(&mut fixture, 2);
    let over = Rc::new(Cell::new(false));
    let (service, told): (Service<TestHandler>, _) = (fixture.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(60 * SECOND, &mut turn, move |_| told.set(true));
    };
    assert!(fixture.reactor.defer(begin).is_ok());
    let seen = Rc::clone(&client.seen);
    fixture.until(|_| (seen.received.borrow().len() >= 4).then_some(()));
    let close = [0x88, 2, 0x03, 0xe9];
    assert_eq!(*client.seen.received.borrow(), close);
    client.send(&mut fixture, &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]);
    // Its `close_notify` comes, and so the end is no truncation.
    assert_eq!(client.until_closed(&mut fixture), DisconnectReason::Closed);
    assert!(client.seen.has_ended.get());
    let ended = Rc::clone(&over);
    fixture.until(|_| ended.get().then_some(()));
    let mut pending = Client::of(pending, "/", None);
    drop(fixture);
    assert!(matches!(pending.poll(), Some(ClientEvent::End(_))));
}

#[test]
fn a_drain_ends_tls_handshakes_at_once() {
    let (mut fixture, address) = service(TestHandler::echo());
    let silent = TcpStream::connect(address).unwrap();
    until_connections(&mut fixture, 1);
    let over = Rc::new(Cell::new(false));
    let (service, told) = (fixture.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(60 * SECOND, &mut turn, move |_| told.set(true));
    };
    assert!(fixture.reactor.defer(begin).is_ok());
    let mut silent = Client::of(silent, "/", None);
    assert_eq!(fixture.until(|_| silent.raw_end()), "");
    let ended = Rc::clone(&over);
    fixture.until(|_| ended.get().then_some(()));
    assert_eq!(fixture.service.stats().connections, 0);
    let draining = "windlass_tls_handshake_failures_total{reason=\"draining\"}";
    assert_eq!(metric(&mut fixture, draining), 1);
}

#[test]
fn tls_handshakes_count_towards_the_memory_and_are_rejected_without() {
    let handler = TestHandler::echo();
    let log = Rc::clone(&handler.rejected);
    let tls = acceptor().build().unwrap();
    let each = tls.handshake_memory();
    let limited = |options: &mut Options| options.memory_max = Some(20 * each);
    let (mut fixture, address) = service_with(handler, limited, &tls);
    let pending: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    fixture.until(|fixture| {
        let stats = fixture.service.stats();
        (stats.connections + stats.rejected == 20).then_some(())
    });
    let stats = fixture.service.stats();
    // Four fifths of twenty, less a part that was borrowed before.
    assert!((15..=16).contains(&stats.connections), "{}", stats.connections);
    let reason = "None the server's memory limit is reached; try again later";
    assert_eq!(rejected(&log), vec![reason; stats.rejected as usize]);
    let result = "windlass_handshakes_total{result=\"memory\"}";
    assert_eq!(metric(&mut fixture, result), stats.rejected);
    let memory = fixture.service.stats().memory;
    assert!(memory >= stats.connections * each as u64, "{memory}");
    // When they are gone, others come, and an open connection takes none of it.
    drop(pending);
    until_connections(&mut fixture, 0);
    let client = TlsClient::connect(&mut fixture, address, &connector().build().unwrap());
    client.send_text(&mut fixture, "room");
    client.until_received(&mut fixture, "room");
    fixture.advance_time(2 * SECOND);
    assert!(fixture.service.stats().memory < each as u64);
}

#[test]
fn a_tls_handshake_that_a_stop_ends_is_lost_and_no_internal_fault() {
    let (mut fixture, address) = service(TestHandler::echo());
    let _pending = TcpStream::connect(address).unwrap();
    until_connections(&mut fixture, 1);
    let stats = fixture.service.stats_handle();
    drop(fixture);
    let text = stats.prometheus();
    for (reason, count) in [("lost", 1), ("internal", 0), ("draining", 0)] {
        let sample = format!("tls_handshake_failures_total{{reason=\"{reason}\"}} {count}\n");
        assert!(text.contains(&sample), "{sample} is not in: {text}");
    }
}
