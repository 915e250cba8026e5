//! The end of a service.

use std::{cell::Cell, io, net::TcpStream, rc::Rc, time::Duration};

use windlass_server::{CloseCode, Options, Service};

use crate::bed::{Acts, Bed, Client, Got, text};

const SECOND: Duration = Duration::from_secs(1);

/// Begins a drain, and says whether it is over.
fn drain(bed: &mut Bed, deadline: Duration) -> Rc<Cell<u32>> {
    let over = Rc::new(Cell::new(0));
    let (service, told): (Service<Acts>, _) = (bed.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(deadline, &mut turn, move |_| told.set(told.get() + 1));
        assert!(service.is_draining());
    };
    assert!(bed.reactor.defer(begin).is_ok());
    bed.turn();
    over
}

#[test]
fn connections_are_told_and_the_service_ends_with_the_last() {
    let mut bed = Bed::new(Acts::echo());
    let (mut a, mut b) = (bed.connect("/a"), bed.connect("/b"));
    let visitor = TcpStream::connect(bed.address).unwrap();
    bed.settle();
    let over = drain(&mut bed, 60 * SECOND);
    for client in [&mut a, &mut b] {
        assert_eq!(bed.next(client), Got::Close(Some(1001), String::new()));
    }
    bed.settle();
    assert_eq!(over.get(), 0);
    let mut visitor = Client::of(visitor, "/", None);
    assert_eq!(bed.until(|_| visitor.raw_end()), "");
    let refused = TcpStream::connect(bed.address).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    drop((a, b, visitor));
    bed.until(|_| (over.get() > 0).then_some(()));
    bed.settle();
    assert_eq!(over.get(), 1);
    assert_eq!(bed.service.stats().connections, 0);
    assert_eq!(bed.notes().iter().filter(|note| *note == "drain").count(), 2);
}

#[test]
fn who_leaves_it_open_has_until_the_deadline() {
    let mut bed =
        Bed::new(Acts::echo().on_drain(|connection, _| connection.send("we are closing").unwrap()));
    let mut client = bed.connect("/");
    let over = drain(&mut bed, 10 * SECOND);
    assert_eq!(bed.next(&mut client), text("we are closing"));
    client.send("one more");
    assert_eq!(bed.next(&mut client), text("one more"));
    bed.pass(9 * SECOND);
    assert_eq!(over.get(), 0);
    client.send("and one");
    assert_eq!(bed.next(&mut client), text("and one"));
    bed.pass(2 * SECOND);
    bed.until_noted("close / Drained");
    assert!(matches!(bed.next(&mut client), Got::End(Some(_))));
    bed.settle();
    assert_eq!(over.get(), 1);
}

#[test]
fn an_empty_service_is_drained_at_once() {
    let mut bed = Bed::new(Acts::echo());
    let over = drain(&mut bed, 60 * SECOND);
    bed.settle();
    assert_eq!(over.get(), 1);
}

#[test]
fn a_drain_can_be_hurried() {
    let mut bed = Bed::new(Acts::echo().on_drain(|_, _| {}));
    let mut client = bed.connect("/");
    let over = drain(&mut bed, 1000 * SECOND);
    bed.settle();
    let sooner = drain(&mut bed, Duration::ZERO);
    assert!(matches!(bed.next(&mut client), Got::End(Some(_))));
    bed.settle();
    assert_eq!((over.get(), sooner.get()), (1, 1), "both are told");
    assert_eq!(bed.notes(), ["open /", "drain", "close / Drained"]);
}

#[test]
fn an_upgrade_under_way_is_refused() {
    let mut bed = Bed::new(Acts::echo());
    let mut half = TcpStream::connect(bed.address).unwrap();
    io::Write::write_all(&mut half, b"GET / HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    bed.settle();
    let over = drain(&mut bed, 60 * SECOND);
    let mut half = Client::of(half, "/", None);
    bed.until(|_| half.raw_end());
    drop(half);
    bed.until(|_| (over.get() == 1).then_some(()));
    assert_eq!(bed.notes(), [""; 0]);
}

#[test]
fn a_connection_that_is_closing_already_is_not_told() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    client.is_mute = true;
    let id = bed.ids()[0];
    bed.act(move |hub| hub.close(id, CloseCode::NORMAL, "").unwrap());
    bed.settle();
    let over = drain(&mut bed, 60 * SECOND);
    bed.settle();
    assert_eq!(bed.notes(), ["open /"]);
    client.close_back();
    assert_eq!(bed.next(&mut client), Got::Close(Some(1000), String::new()));
    drop(client);
    bed.until(|_| (over.get() == 1).then_some(()));
}

/// Its stream opens in the turn after the one that has accepted it, and the drain begins in
/// between.
#[test]
fn one_who_was_accepted_and_not_open_yet_is_sent_away_too() {
    let mut bed = Bed::new(Acts::echo());
    let visitor = TcpStream::connect(bed.address).unwrap();
    bed.turn();
    assert_eq!(bed.service.stats().connections, 0, "it is on its way");
    let over = drain(&mut bed, 60 * SECOND);
    let mut visitor = Client::of(visitor, "/", None);
    assert_eq!(bed.until(|_| visitor.raw_end()), "");
    drop(visitor);
    bed.until(|_| (over.get() == 1).then_some(()));
}

#[test]
fn nobody_listens_after_a_drain() {
    let mut bed = Bed::new(Acts::echo());
    let _client = bed.connect("/");
    let _over = drain(&mut bed, 60 * SECOND);
    let listener = Options::new().listener().tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let refused = bed.service.listen(listener, &mut bed.reactor).unwrap_err();
    assert_eq!(refused.to_string(), "the service is draining");
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
