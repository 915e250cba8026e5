//! Handlers that panic in every callback and in destructors, and handlers that call the service
//! from every callback. Each panic costs one connection, and the service stays intact.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_server::{CloseCode, ConnectionId, OutMessage, Service, http::Accept};

use crate::fixture::{Client, ClientEvent, ConnData, Fixture, TestHandler, text};

/// Runs turns until one panics. Returns the message of the panic.
#[track_caller]
pub(crate) fn panic_of(fixture: &mut Fixture) -> String {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| fixture.turn())) {
            return panic.downcast_ref::<&str>().map_or_else(
                || panic.downcast_ref::<String>().cloned().unwrap_or_default(),
                |panic| (*panic).to_owned(),
            );
        }
    }
    panic!("nobody panics");
}

/// Checks that the other connections are served, and that no others exist.
#[track_caller]
fn is_whole(fixture: &mut Fixture, witness: &mut Client, connections: u64) {
    fixture.settle();
    while witness.poll().is_some() {}
    witness.send("witness");
    assert_eq!(fixture.next_event(witness), text("witness"));
    let mut next = fixture.connect("/next");
    next.send("next");
    assert_eq!(fixture.next_event(&mut next), text("next"));
    next.close(1000, "");
    drop(next);
    fixture.until(|fixture| (fixture.service.stats().connections == connections).then_some(()));
    let topic = fixture.with_hub(|hub| hub.publish("t", "to the witness"));
    assert_eq!(topic, 1, "the one who panicked has left");
    assert_eq!(fixture.next_event(witness), text("to the witness"));
}

/// Echoes to every client, subscribes all of them to `t`, and panics where the path says.
fn fragile() -> TestHandler {
    let at = |data: &ConnData, place: &str| assert!(data.path != place, "at {place}");
    TestHandler::on_message(move |connection, data, message| {
        let _ = connection.send(&*format!("answer to {:?}", data.path));
        connection.publish_to_others("t", "half done");
        at(data, "/message");
        if data.path == "/close" || data.path == "/drop" {
            let _ = connection.close(CloseCode::NORMAL, "");
        }
        if data.path != "/message" && (data.path == "/witness" || data.path == "/next") {
            let _ = message;
        }
    })
    .on_open(move |connection, data| {
        if data.path != "/next" {
            _ = connection.subscribe("t");
        }
        at(data, "/open");
    })
    .on_drain(move |_, data| at(data, "/drain"))
    .on_close(move |_, data, _| at(data, "/close"))
    .on_upgrade(move |request| {
        assert!(request.path() != "/upgrade", "at /upgrade");
        let on_drop: Option<Box<dyn FnOnce()>> =
            (request.path() == "/drop").then(|| Box::new(dropped) as Box<dyn FnOnce()>);
        Ok(Accept::new(ConnData { path: request.path().to_owned(), on_drop }))
    })
}

fn dropped() {
    panic!("at /drop");
}

/// Like [`fragile`], but the clients at `/witness` and `/next` only get an echo.
fn handler() -> TestHandler {
    let TestHandler { message, .. } = fragile();
    let inner = message.unwrap();
    let mut handler = fragile();
    handler.message = Some(Box::new(move |connection, data, message| {
        if data.path == "/witness" || data.path == "/next" {
            let _ = connection.reply_in_place(message);
        } else {
            inner(connection, data, message);
        }
    }));
    handler.ping = Some(Box::new(|_, data, _| assert!(data.path != "/ping", "at /ping")));
    handler
}

fn with_witness() -> (Fixture, Client) {
    let mut fixture = Fixture::new(handler());
    let witness = fixture.connect("/witness");
    (fixture, witness)
}

#[test]
fn a_panic_at_the_upgrade() {
    let (mut fixture, mut witness) = with_witness();
    let mut client = Client::begin(fixture.address, "/upgrade", None);
    assert_eq!(panic_of(&mut fixture), "at /upgrade");
    assert_eq!(fixture.until(|_| client.raw_end()), "");
    is_whole(&mut fixture, &mut witness, 1);
}

#[test]
fn a_panic_at_the_opening() {
    let (mut fixture, mut witness) = with_witness();
    let mut client = Client::begin(fixture.address, "/open", None);
    assert_eq!(panic_of(&mut fixture), "at /open");
    fixture.until(|_| client.raw_end());
    is_whole(&mut fixture, &mut witness, 1);
}

#[test]
fn a_panic_in_a_message() {
    let (mut fixture, mut witness) = with_witness();
    let mut client = fixture.connect("/message");
    let frames = [client.frame("one"), client.frame("two")].concat();
    client.write(&frames);
    assert_eq!(panic_of(&mut fixture), "at /message");
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::End(Some(_))), "it is reset");
    // A message that was published before the panic is still delivered.
    assert_eq!(fixture.next_event(&mut witness), text("half done"));
    is_whole(&mut fixture, &mut witness, 1);
    assert!(
        !fixture.events().iter().any(|note| note.starts_with("close /message")),
        "it is not called any more"
    );
}

#[test]
fn a_panic_in_a_ping() {
    let (mut fixture, mut witness) = with_witness();
    let mut client = fixture.connect("/ping");
    client.ping(b"x");
    assert_eq!(panic_of(&mut fixture), "at /ping");
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::End(Some(_))));
    is_whole(&mut fixture, &mut witness, 1);
}

#[test]
fn a_panic_at_the_close_and_one_in_the_destructor() {
    for path in ["/close", "/drop"] {
        let (mut fixture, mut witness) = with_witness();
        let mut client = fixture.connect(path);
        client.send("x");
        // The client answers the Close frame as soon as it has read it. The panic comes in the turn
        // after that.
        fixture.until(|_| {
            core::iter::from_fn(|| client.poll())
                .find(|received| matches!(received, ClientEvent::Close(..)))
        });
        drop(client);
        assert_eq!(panic_of(&mut fixture), format!("at {path}"));
        is_whole(&mut fixture, &mut witness, 1);
        assert_eq!(fixture.service.stats().closed, 2, "that one and the one after it");
    }
}

#[test]
fn a_panic_in_on_drain_does_not_stop_the_drain() {
    let (mut fixture, mut witness) = with_witness();
    let mut client = fixture.connect("/drain");
    let over = Rc::new(Cell::new(false));
    let (service, told): (Service<TestHandler>, _) = (fixture.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(Duration::from_secs(60), &mut turn, move |_| told.set(true));
    };
    assert!(fixture.reactor.defer(begin).is_ok());
    assert_eq!(panic_of(&mut fixture), "at /drain");
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::End(Some(_))));
    fixture.until(|fixture| (fixture.service.stats().connections == 1).then_some(()));
    witness.send("x");
    assert_eq!(fixture.next_event(&mut witness), text("x"));
    witness.close(1000, "");
    drop(witness);
    fixture.until(|_| over.get().then_some(()));
}

#[test]
fn the_last_connection_of_a_drain_may_go_in_a_panic() {
    let mut fixture = Fixture::new(handler());
    let _client = fixture.connect("/drain");
    let over = Rc::new(Cell::new(false));
    let (service, told): (Service<TestHandler>, _) = (fixture.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(Duration::from_secs(60), &mut turn, move |_| told.set(true));
    };
    assert!(fixture.reactor.defer(begin).is_ok());
    assert_eq!(panic_of(&mut fixture), "at /drain");
    fixture.advance_time(Duration::from_secs(3));
    assert!(over.get(), "the sweep has noticed it");
}

#[test]
fn a_panic_with_messages_for_itself_on_the_way() {
    // Messages that others send to a connection during its pass wait in the reentrant output. The
    // next connection must not get them.
    let service: Rc<RefCell<Option<Service<TestHandler>>>> = Rc::default();
    let inside = Rc::clone(&service);
    let handler = TestHandler::on_message(move |connection, _, message| {
        let id = connection.id();
        connection.hub().send(id, "for the one who panics").unwrap();
        assert_ne!(message.as_str(), Some("panic"), "as asked");
        let _ = inside.borrow().as_ref().map(Service::stats);
        let _ = connection.reply_in_place(message);
    });
    let mut fixture = Fixture::new(handler);
    *service.borrow_mut() = Some(fixture.service.clone());
    let (mut victim, mut next) = (fixture.connect("/"), fixture.connect("/"));
    victim.send("panic");
    assert!(panic_of(&mut fixture).contains("as asked"));
    next.send("hello");
    assert_eq!(
        [(); 2].map(|()| fixture.next_event(&mut next)),
        ["for the one who panics", "hello"].map(text)
    );
    fixture.expect_nothing(&mut next);
    *service.borrow_mut() = None;
}

#[test]
fn everything_can_be_called_from_everywhere() {
    let everything = |hub: &mut windlass_server::Hub<'_>, id: ConnectionId| {
        let _ = hub.send(id, "x");
        hub.publish("t", "y");
        _ = hub.subscribe(id, "t");
        hub.publish("t", "z");
        hub.unsubscribe(id, "t");
        _ = hub.subscribe(id, "t");
        hub.resume(id);
        let _ = (
            hub.buffered(id),
            hub.connections(),
            hub.subscribers("t"),
            hub.stats(),
            hub.is_open(id),
        );
        let _ = hub.turn().now();
    };
    let handler = TestHandler::on_message(move |connection, _, message| {
        let id = connection.id();
        everything(&mut connection.hub(), id);
        connection.pause();
        connection.resume();
        let _ = connection.reply_in_place(message);
        everything(&mut connection.hub(), id);
        let _ = connection.hub().close(id, CloseCode::NORMAL, "by itself");
        everything(&mut connection.hub(), id);
        let _ = connection.send("after the close by name");
    })
    .on_open(move |connection, _| {
        let id = connection.id();
        everything(&mut connection.hub(), id);
    })
    .on_close(move |hub, _, closed| {
        assert!(!hub.is_open(closed.id), "its name names nobody any more");
        everything(hub, closed.id);
    });
    let mut fixture = Fixture::new(handler);
    let mut client = fixture.connect("/");
    client.send("hello");
    let mut received = Vec::new();
    loop {
        match fixture.next_event(&mut client) {
            ClientEvent::End(_) => break,
            other => received.push(other),
        }
    }
    assert!(received.contains(&text("hello")), "{received:?}");
    assert_eq!(received.last(), Some(&ClientEvent::Close(Some(1000), "by itself".into())));
    drop(client);
    fixture.until_event("close / Local 1000 \"by itself\"");
    assert_eq!(fixture.service.stats().connections, 0);
}

#[test]
fn a_reactor_that_is_dropped_drops_the_data() {
    let drops = Rc::new(Cell::new(0));
    let count = Rc::clone(&drops);
    let handler = TestHandler::echo().on_upgrade(move |_| {
        let count = Rc::clone(&count);
        let on_drop: Box<dyn FnOnce()> = Box::new(move || count.set(count.get() + 1));
        Ok(Accept::new(ConnData { path: String::new(), on_drop: Some(on_drop) }))
    });
    let mut fixture = Fixture::new(handler);
    let clients = [(); 3].map(|()| fixture.connect("/"));
    let Fixture { reactor, service, .. } = fixture;
    drop(reactor);
    assert_eq!(drops.get(), 3);
    assert_eq!(service.stats().connections, 0);
    drop((service, clients));
}

#[test]
fn prepared_and_relayed_text_stays_text() {
    let mut fixture = Fixture::new(TestHandler::on_message(|connection, _, message| {
        let out: OutMessage<'_> = (&message).into();
        connection.send(out).unwrap();
    }));
    let mut client = fixture.connect("/");
    client.send("ünï");
    client.send(&[0xff, 0xfe][..]);
    assert_eq!(
        [(); 2].map(|()| fixture.next_event(&mut client)),
        [text("ünï"), ClientEvent::Binary(vec![0xff, 0xfe])]
    );
}
