//! Graceful shutdown of a service.

use std::{cell::Cell, io, net::TcpStream, rc::Rc, time::Duration};

use windlass_server::{CloseCode, Options, Service};

use crate::fixture::{Client, ClientEvent, Fixture, TestHandler, text};

const SECOND: Duration = Duration::from_secs(1);

/// Begins a drain. The returned cell counts how often its callback has run.
fn drain(fixture: &mut Fixture, deadline: Duration) -> Rc<Cell<u32>> {
    let over = Rc::new(Cell::new(0));
    let (service, told): (Service<TestHandler>, _) = (fixture.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(deadline, &mut turn, move |_| told.set(told.get() + 1));
        assert!(service.is_draining());
    };
    assert!(fixture.reactor.defer(begin).is_ok());
    fixture.turn();
    over
}

#[test]
fn a_drain_notifies_connections_and_ends_with_the_last() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let (mut a, mut b) = (fixture.connect("/a"), fixture.connect("/b"));
    let visitor = TcpStream::connect(fixture.address).unwrap();
    fixture.settle();
    let over = drain(&mut fixture, 60 * SECOND);
    for client in [&mut a, &mut b] {
        assert_eq!(fixture.next_event(client), ClientEvent::Close(Some(1001), String::new()));
    }
    fixture.settle();
    assert_eq!(over.get(), 0);
    let mut visitor = Client::of(visitor, "/", None);
    assert_eq!(fixture.until(|_| visitor.raw_end()), "");
    let refused = TcpStream::connect(fixture.address).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    drop((a, b, visitor));
    fixture.until(|_| (over.get() > 0).then_some(()));
    fixture.settle();
    assert_eq!(over.get(), 1);
    assert_eq!(fixture.service.stats().connections, 0);
    assert_eq!(fixture.events().iter().filter(|note| *note == "drain").count(), 2);
}

#[test]
fn a_connection_left_open_by_on_drain_lasts_until_the_deadline() {
    let mut fixture = Fixture::new(
        TestHandler::echo().on_drain(|connection, _| connection.send("we are closing").unwrap()),
    );
    let mut client = fixture.connect("/");
    let over = drain(&mut fixture, 10 * SECOND);
    assert_eq!(fixture.next_event(&mut client), text("we are closing"));
    client.send("one more");
    assert_eq!(fixture.next_event(&mut client), text("one more"));
    fixture.advance_time(9 * SECOND);
    assert_eq!(over.get(), 0);
    client.send("and one");
    assert_eq!(fixture.next_event(&mut client), text("and one"));
    fixture.advance_time(2 * SECOND);
    fixture.until_event("close / Drained");
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::End(Some(_))));
    fixture.settle();
    assert_eq!(over.get(), 1);
}

#[test]
fn an_empty_service_is_drained_at_once() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let over = drain(&mut fixture, 60 * SECOND);
    fixture.settle();
    assert_eq!(over.get(), 1);
}

#[test]
fn a_second_drain_can_shorten_the_deadline() {
    let mut fixture = Fixture::new(TestHandler::echo().on_drain(|_, _| {}));
    let mut client = fixture.connect("/");
    let over = drain(&mut fixture, 1000 * SECOND);
    fixture.settle();
    let sooner = drain(&mut fixture, Duration::ZERO);
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::End(Some(_))));
    fixture.settle();
    assert_eq!((over.get(), sooner.get()), (1, 1), "both are told");
    assert_eq!(fixture.events(), ["open /", "drain", "close / Drained"]);
}

#[test]
fn an_upgrade_in_progress_is_rejected_by_a_drain() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut half = TcpStream::connect(fixture.address).unwrap();
    io::Write::write_all(&mut half, b"GET / HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    fixture.settle();
    let over = drain(&mut fixture, 60 * SECOND);
    let mut half = Client::of(half, "/", None);
    fixture.until(|_| half.raw_end());
    drop(half);
    fixture.until(|_| (over.get() == 1).then_some(()));
    assert_eq!(fixture.events(), [""; 0]);
}

#[test]
fn a_closing_connection_is_not_notified_of_a_drain() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    client.is_mute = true;
    let id = fixture.ids()[0];
    fixture.with_hub(move |hub| hub.close(id, CloseCode::NORMAL, "").unwrap());
    fixture.settle();
    let over = drain(&mut fixture, 60 * SECOND);
    fixture.settle();
    assert_eq!(fixture.events(), ["open /"]);
    client.close_back();
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1000), String::new()));
    drop(client);
    fixture.until(|_| (over.get() == 1).then_some(()));
}

/// A stream opens in the turn after the one that accepted it. The drain begins between these two.
#[test]
fn an_accepted_connection_that_is_not_open_yet_is_closed_by_a_drain() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let visitor = TcpStream::connect(fixture.address).unwrap();
    fixture.turn();
    assert_eq!(fixture.service.stats().connections, 0, "it is on its way");
    let over = drain(&mut fixture, 60 * SECOND);
    let mut visitor = Client::of(visitor, "/", None);
    assert_eq!(fixture.until(|_| visitor.raw_end()), "");
    drop(visitor);
    fixture.until(|_| (over.get() == 1).then_some(()));
}

#[test]
fn a_drained_service_does_not_listen() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let _client = fixture.connect("/");
    let _over = drain(&mut fixture, 60 * SECOND);
    let listener = Options::new().listener().tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let rejected = fixture.service.listen(listener, &mut fixture.reactor).unwrap_err();
    assert_eq!(rejected.to_string(), "the service is draining");
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
