//! Rates of connections, requests and messages, with a manual clock.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use windlass_server::{
    DeflateConfig, Limit, Options, OptionsError, Rate,
    http::{Page, Routes},
};
use windlass_tls::TlsTarget;

use crate::{
    fixture::{Client, ClientEvent, Fixture, TestHandler, text},
    tls_client::{TlsClient, acceptor, connector},
};

const SECOND: Duration = Duration::from_secs(1);

/// One unit in ten seconds, after this burst.
const fn slow(burst: u64) -> Option<Rate> {
    Some(Rate::new(1, Duration::from_secs(10)).with_burst(burst))
}

fn with_page(options: &mut Options) {
    options.routes = Routes::everywhere().page("/", Page::html("<p>"));
}

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Asks for a page, and returns the responses up to the end of the connection.
fn ask_until_end(fixture: &mut Fixture, requests: usize) -> String {
    let mut socket = TcpStream::connect(fixture.address).unwrap();
    socket.write_all(GET.repeat(requests).as_bytes()).unwrap();
    let mut client = Client::of(socket, "/", None);
    fixture.until(|_| client.raw_end())
}

#[test]
fn connections_beyond_their_rate_wait_in_the_backlog() {
    let mut fixture =
        Fixture::with(TestHandler::echo(), |options| options.rates.connections = slow(2));
    let mut clients: Vec<_> = (0..4).map(|_| Client::begin(fixture.address, "/", None)).collect();
    let is_open =
        |clients: &mut [Client]| clients.iter_mut().map(Client::is_open).collect::<Vec<_>>();
    fixture.until(|_| (is_open(&mut clients) == [true, true, false, false]).then_some(()));
    fixture.advance_time(9 * SECOND);
    assert_eq!(is_open(&mut clients), [true, true, false, false]);
    // A connection that ends makes no room for another one.
    drop(clients.remove(0));
    fixture.settle();
    assert_eq!(is_open(&mut clients), [true, false, false]);
    // A custom clock is read by timer events, which come at least once a second.
    fixture.advance_time(2 * SECOND);
    fixture.until(|_| (is_open(&mut clients) == [true, true, false]).then_some(()));
    fixture.advance_time(11 * SECOND);
    fixture.until(|_| (is_open(&mut clients) == [true, true, true]).then_some(()));
    let stats = fixture.service.stats();
    assert_eq!((stats.opened, stats.rejected), (4, 0));
    assert_eq!(stats.connection_rates_reached, 3, "after the second, third and fourth");
}

#[test]
fn connections_of_an_address_beyond_their_rate_are_closed() {
    let handler = TestHandler::echo();
    let (rejected, limits) = (Rc::clone(&handler.rejected), Rc::clone(&handler.limits));
    let mut fixture =
        Fixture::with(handler, |options| options.rates.connections_per_address = slow(2));
    let clients = [(); 2].map(|()| fixture.connect("/"));
    let refused = TcpStream::connect(fixture.address).unwrap();
    let mut client = Client::of(refused, "/", None);
    assert_eq!(fixture.until(|_| client.raw_end()), "");
    assert_eq!(*limits.borrow(), [Some(Limit::ConnectionRatePerAddress)]);
    let told = rejected.borrow()[0].clone();
    let reason = "too many connections of this address: at most 1 in 10s, with a burst of 2";
    assert_eq!((told.1, &*told.2), (None, reason));
    // A custom clock is read by timer events.
    fixture.advance_time(11 * SECOND);
    drop((clients, fixture.connect("/")));
    assert_eq!(fixture.service.stats().rejected, 1);
}

#[test]
fn requests_of_an_address_beyond_their_rate_get_status_429() {
    let handler = TestHandler::echo();
    let limits = Rc::clone(&handler.limits);
    let mut fixture = Fixture::with(handler, |options| {
        with_page(options);
        options.rates.requests_per_address = slow(2);
    });
    let responses = ask_until_end(&mut fixture, 4);
    assert_eq!(responses.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{responses}");
    assert_eq!(responses.matches("HTTP/1.1 ").count(), 3, "it ends the connection: {responses}");
    let last = responses.split("HTTP/1.1 429 Too Many Requests\r\n").nth(1);
    let last = last.unwrap_or_else(|| panic!("{responses}"));
    assert!(last.contains("\r\nRetry-After: 10\r\n") && last.contains("of this address"), "{last}");
    // Upgrades are requests too.
    fixture.advance_time(9 * SECOND);
    let mut refused = Client::begin(fixture.address, "/chat", None);
    let answer = fixture.until(|_| refused.raw_end());
    assert!(answer.contains("429") && answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
    assert_eq!(*limits.borrow(), [Some(Limit::RequestRatePerAddress); 2]);
    fixture.advance_time(2 * SECOND);
    fixture.connect("/chat");
}

#[test]
fn requests_beyond_their_rate_over_all_get_status_503() {
    let handler = TestHandler::echo();
    let limits = Rc::clone(&handler.limits);
    let mut fixture = Fixture::with(handler, |options| {
        with_page(options);
        options.rates.requests = slow(1);
    });
    fixture.connect("/chat");
    let answer = ask_until_end(&mut fixture, 1);
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    assert!(answer.contains("\r\nRetry-After: 10\r\n"), "{answer}");
    assert_eq!(*limits.borrow(), [Some(Limit::RequestRate)]);
}

/// Sends so many messages at once, and returns what the client gets.
fn exchange(
    fixture: &mut Fixture,
    client: &mut Client,
    sent: usize,
    got: usize,
) -> Vec<ClientEvent> {
    for number in 0..sent {
        client.send(number.to_string().as_str());
    }
    (0..got).map(|_| fixture.next_event(client)).collect()
}

#[test]
fn a_connection_that_sends_too_many_messages_is_closed() {
    for deflate in [None, Some(DeflateConfig::DEFAULT)] {
        let mut fixture = Fixture::with(TestHandler::echo(), |options| {
            options.rates.messages = slow(3);
            options.deflate = deflate;
        });
        let mut client = fixture.connect_with("/a", deflate.as_ref());
        let mut other = fixture.connect_with("/b", deflate.as_ref());
        let answers = exchange(&mut fixture, &mut client, 3, 3);
        assert_eq!(answers, ["0", "1", "2"].map(text));
        fixture.advance_time(10 * SECOND);
        let answers = exchange(&mut fixture, &mut client, 3, 2);
        let reason = "too many messages: at most 1 in 10s, with a burst of 3";
        assert_eq!(answers, [text("0"), ClientEvent::Close(Some(1008), reason.to_owned())]);
        fixture.until_event(&format!("close /a Rate(MessageRate) 1008 {reason:?}"));
        // Each connection has its own rate.
        assert_eq!(exchange(&mut fixture, &mut other, 3, 3).len(), 3);
        assert_eq!(fixture.service.stats().messages_sent, 7);
        // A later connection in the same place begins anew.
        let mut next = fixture.connect_with("/c", deflate.as_ref());
        assert_eq!(exchange(&mut fixture, &mut next, 3, 3), ["0", "1", "2"].map(text));
    }
}

#[test]
fn a_connection_that_sends_too_many_bytes_is_closed() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.limits.message_max = 100;
        options.rates.message_bytes = Some(Rate::per_second(100).with_burst(150));
    });
    let mut client = fixture.connect("/a");
    for (wait, len) in [(0, 100), (0, 50), (1, 100), (9, 100), (0, 50)] {
        fixture.advance_time(wait * SECOND);
        client.send(&vec![7; len][..]);
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![7; len]));
    }
    client.send(&b"7"[..]);
    let reason = "too many bytes of messages: at most 100 a second, with a burst of 150";
    let close = ClientEvent::Close(Some(1008), reason.to_owned());
    assert_eq!(fixture.next_event(&mut client), close);
    fixture.until_event(&format!("close /a Rate(MessageByteRate) 1008 {reason:?}"));
}

#[test]
fn a_burst_must_hold_the_longest_message() {
    let mut options = Options::new();
    options.rates.message_bytes = Some(Rate::per_second(1 << 10));
    let error = options.check().unwrap_err();
    let expected = OptionsError::BurstTooSmall { burst: 1 << 10, message_max: 1 << 20 };
    assert_eq!(error, expected);
    options.limits.message_max = 1 << 10;
    assert_eq!(options.check(), Ok(()));
}

#[test]
fn a_full_server_may_reject_requests() {
    let handler = TestHandler::echo();
    let limits = Rc::clone(&handler.limits);
    let mut fixture = Fixture::with(handler, |options| {
        options.connections_max = 1;
        options.reject_when_full = true;
    });
    let first = fixture.connect("/a");
    let mut refused = Client::begin(fixture.address, "/b", None);
    let answer = fixture.until(|_| refused.raw_end());
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    assert!(answer.contains("\r\nRetry-After: 1\r\n") && answer.contains("limit"), "{answer}");
    assert_eq!(*limits.borrow(), [Some(Limit::ConnectionsMax)]);
    drop(refused);
    fixture.until(|fixture| (fixture.service.stats().connections == 1).then_some(()));
    // One that asks when there is room is served, although there was none when it came.
    let mut late = TcpStream::connect(fixture.address).unwrap();
    fixture.until(|fixture| (fixture.service.stats().connections == 2).then_some(()));
    drop(first);
    fixture.until(|fixture| (fixture.service.stats().connections == 1).then_some(()));
    late.write_all(LAST.as_bytes()).unwrap();
    let mut late = Client::of(late, "/", None);
    let answer = fixture.until(|_| late.raw_end());
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
}

/// A service with a plain listener, and one with TLS at the returned address.
fn with_tls(
    handler: TestHandler,
    configure: impl Fn(&mut Options),
) -> (Fixture, SocketAddr, Arc<TlsTarget>) {
    let mut fixture = Fixture::with(handler, &configure);
    let mut options = Options::new();
    configure(&mut options);
    let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.with_tls(Arc::new(acceptor().build().unwrap()));
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    fixture.service.listen(listener, &mut fixture.reactor).unwrap();
    let target = connector().build().unwrap().to("localhost").unwrap();
    (fixture, address, Arc::new(target))
}

#[test]
fn tls_handshakes_of_an_address_beyond_their_rate_are_closed() {
    let handler = TestHandler::echo();
    let limits = Rc::clone(&handler.limits);
    let configure = |options: &mut Options| options.rates.tls_handshakes_per_address = slow(1);
    let (mut fixture, address, target) = with_tls(handler, configure);
    let first = TlsClient::begin(&mut fixture, address, target.clone());
    fixture.until(|_| first.seen.is_open.get().then_some(()));
    let refused = TlsClient::begin(&mut fixture, address, target);
    refused.until_closed(&mut fixture);
    assert!(!refused.seen.is_open.get());
    assert_eq!(*limits.borrow(), [Some(Limit::TlsHandshakeRatePerAddress)]);
    // Plain connections have none.
    fixture.connect("/");
}

#[test]
fn tls_handshakes_beyond_their_rate_over_all_wait_in_the_backlog() {
    // The clients have ten seconds for their handshakes, by the same clock.
    let rate = Rate::new(1, Duration::from_secs(4));
    let configure = move |options: &mut Options| options.rates.tls_handshakes = Some(rate);
    let (mut fixture, address, target) = with_tls(TestHandler::echo(), configure);
    let [first, second] = [(); 2].map(|()| TlsClient::begin(&mut fixture, address, target.clone()));
    fixture.until(|_| first.seen.is_open.get().then_some(()));
    // Plain connections do not wait.
    fixture.connect("/");
    fixture.advance_time(3 * SECOND);
    assert!(!second.seen.is_open.get());
    fixture.advance_time(2 * SECOND);
    fixture.until(|_| second.seen.is_open.get().then_some(()));
    assert_eq!(fixture.service.stats().connection_rates_reached, 2);
}
