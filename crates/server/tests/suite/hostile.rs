//! A user who panics everywhere, drops where nobody expects it, and calls the service from every
//! callback: one connection is lost at a time, and the service stays whole.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass_server::{CloseCode, ConnectionId, OutMessage, Service, http::Accept};

use crate::bed::{Acts, Bed, Client, Data, Got, text};

/// Runs turns until a panic comes out of one.
#[track_caller]
fn panic_of(bed: &mut Bed) -> String {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| bed.turn())) {
            return panic.downcast_ref::<&str>().map_or_else(
                || panic.downcast_ref::<String>().cloned().unwrap_or_default(),
                |panic| (*panic).to_owned(),
            );
        }
    }
    panic!("nobody panics");
}

/// That others are served, and are all that there is.
#[track_caller]
fn is_whole(bed: &mut Bed, witness: &mut Client, connections: u64) {
    bed.settle();
    while witness.poll().is_some() {}
    witness.send("witness");
    assert_eq!(bed.next(witness), text("witness"));
    let mut next = bed.connect("/next");
    next.send("next");
    assert_eq!(bed.next(&mut next), text("next"));
    next.close(1000, "");
    drop(next);
    bed.until(|bed| (bed.service.stats().connections == connections).then_some(()));
    let topic = bed.act(|hub| hub.publish("t", "to the witness"));
    assert_eq!(topic, 1, "the one who panicked has left");
    assert_eq!(bed.next(witness), text("to the witness"));
}

/// Echoes for everybody, all subscribed to `t`, and panics where the path says.
fn fragile() -> Acts {
    let at = |data: &Data, place: &str| assert!(data.path != place, "at {place}");
    Acts::on_message(move |connection, data, message| {
        let _ = connection.send(&*format!("answer to {:?}", data.path));
        connection.publish("t", "half done");
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
            connection.subscribe("t");
        }
        at(data, "/open");
    })
    .on_drain(move |_, data| at(data, "/drain"))
    .on_close(move |_, data, _| at(data, "/close"))
    .on_upgrade(move |request| {
        assert!(request.path() != "/upgrade", "at /upgrade");
        let on_drop: Option<Box<dyn FnOnce()>> =
            (request.path() == "/drop").then(|| Box::new(dropped) as Box<dyn FnOnce()>);
        Ok(Accept::new(Data { path: request.path().to_owned(), on_drop }))
    })
}

fn dropped() {
    panic!("at /drop");
}

/// The same, but the witness and the next get an echo and nothing else.
fn acts() -> Acts {
    let Acts { message, .. } = fragile();
    let inner = message.unwrap();
    let mut acts = fragile();
    acts.message = Some(Box::new(move |connection, data, message| {
        if data.path == "/witness" || data.path == "/next" {
            let _ = connection.reply_in_place(message);
        } else {
            inner(connection, data, message);
        }
    }));
    acts.ping = Some(Box::new(|_, data, _| assert!(data.path != "/ping", "at /ping")));
    acts
}

fn with_witness() -> (Bed, Client) {
    let mut bed = Bed::new(acts());
    let witness = bed.connect("/witness");
    (bed, witness)
}

#[test]
fn a_panic_at_the_upgrade() {
    let (mut bed, mut witness) = with_witness();
    let mut client = Client::begin(bed.address, "/upgrade", None);
    assert_eq!(panic_of(&mut bed), "at /upgrade");
    assert_eq!(bed.until(|_| client.raw_end()), "");
    is_whole(&mut bed, &mut witness, 1);
}

#[test]
fn a_panic_at_the_opening() {
    let (mut bed, mut witness) = with_witness();
    let mut client = Client::begin(bed.address, "/open", None);
    assert_eq!(panic_of(&mut bed), "at /open");
    bed.until(|_| client.raw_end());
    is_whole(&mut bed, &mut witness, 1);
}

#[test]
fn a_panic_in_a_message() {
    let (mut bed, mut witness) = with_witness();
    let mut client = bed.connect("/message");
    let frames = [client.frame("one"), client.frame("two")].concat();
    client.write(&frames);
    assert_eq!(panic_of(&mut bed), "at /message");
    assert!(matches!(bed.next(&mut client), Got::End(Some(_))), "it is reset");
    // What was published before the panic is not taken back.
    assert_eq!(bed.next(&mut witness), text("half done"));
    is_whole(&mut bed, &mut witness, 1);
    assert!(
        !bed.notes().iter().any(|note| note.starts_with("close /message")),
        "it is not called any more"
    );
}

#[test]
fn a_panic_in_a_ping() {
    let (mut bed, mut witness) = with_witness();
    let mut client = bed.connect("/ping");
    client.ping(b"x");
    assert_eq!(panic_of(&mut bed), "at /ping");
    assert!(matches!(bed.next(&mut client), Got::End(Some(_))));
    is_whole(&mut bed, &mut witness, 1);
}

#[test]
fn a_panic_at_the_close_and_one_in_the_destructor() {
    for path in ["/close", "/drop"] {
        let (mut bed, mut witness) = with_witness();
        let mut client = bed.connect(path);
        client.send("x");
        // The client answers the Close as soon as it has read it, and then the next turn is the
        // one.
        bed.until(|_| {
            core::iter::from_fn(|| client.poll()).find(|got| matches!(got, Got::Close(..)))
        });
        drop(client);
        assert_eq!(panic_of(&mut bed), format!("at {path}"));
        is_whole(&mut bed, &mut witness, 1);
        assert_eq!(bed.service.stats().closed, 2, "that one and the one after it");
    }
}

#[test]
fn a_panic_in_a_drain_keeps_nobody_from_it() {
    let (mut bed, mut witness) = with_witness();
    let mut client = bed.connect("/drain");
    let over = Rc::new(Cell::new(false));
    let (service, told): (Service<Acts>, _) = (bed.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(Duration::from_secs(60), &mut turn, move |_| told.set(true));
    };
    assert!(bed.reactor.defer(begin).is_ok());
    assert_eq!(panic_of(&mut bed), "at /drain");
    assert!(matches!(bed.next(&mut client), Got::End(Some(_))));
    bed.until(|bed| (bed.service.stats().connections == 1).then_some(()));
    witness.send("x");
    assert_eq!(bed.next(&mut witness), text("x"));
    witness.close(1000, "");
    drop(witness);
    bed.until(|_| over.get().then_some(()));
}

#[test]
fn the_last_connection_of_a_drain_may_go_in_a_panic() {
    let mut bed = Bed::new(acts());
    let _client = bed.connect("/drain");
    let over = Rc::new(Cell::new(false));
    let (service, told): (Service<Acts>, _) = (bed.service.clone(), Rc::clone(&over));
    let begin = move |mut turn: windlass::Turn<'_>| {
        service.drain(Duration::from_secs(60), &mut turn, move |_| told.set(true));
    };
    assert!(bed.reactor.defer(begin).is_ok());
    assert_eq!(panic_of(&mut bed), "at /drain");
    bed.pass(Duration::from_secs(3));
    assert!(over.get(), "the sweep has noticed it");
}

#[test]
fn a_panic_with_messages_for_itself_on_the_way() {
    // What others send to a connection in its own callback waits at a place that the next
    // connection must not find it at.
    let service: Rc<RefCell<Option<Service<Acts>>>> = Rc::default();
    let inside = Rc::clone(&service);
    let acts = Acts::on_message(move |connection, _, message| {
        let id = connection.id();
        connection.hub().send(id, "for the one who panics").unwrap();
        assert_ne!(message.as_str(), Some("panic"), "as asked");
        let _ = inside.borrow().as_ref().map(Service::stats);
        let _ = connection.reply_in_place(message);
    });
    let mut bed = Bed::new(acts);
    *service.borrow_mut() = Some(bed.service.clone());
    let (mut victim, mut next) = (bed.connect("/"), bed.connect("/"));
    victim.send("panic");
    assert!(panic_of(&mut bed).contains("as asked"));
    next.send("hello");
    assert_eq!(
        [(); 2].map(|()| bed.next(&mut next)),
        ["for the one who panics", "hello"].map(text)
    );
    bed.nothing(&mut next);
    *service.borrow_mut() = None;
}

#[test]
fn everything_can_be_called_from_everywhere() {
    let everything = |hub: &mut windlass_server::Hub<'_>, id: ConnectionId| {
        let _ = hub.send(id, "x");
        hub.publish("t", "y");
        hub.subscribe(id, "t");
        hub.publish("t", "z");
        hub.unsubscribe(id, "t");
        hub.subscribe(id, "t");
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
    let acts = Acts::on_message(move |connection, _, message| {
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
    let mut bed = Bed::new(acts);
    let mut client = bed.connect("/");
    client.send("hello");
    let mut got = Vec::new();
    loop {
        match bed.next(&mut client) {
            Got::End(_) => break,
            other => got.push(other),
        }
    }
    assert!(got.contains(&text("hello")), "{got:?}");
    assert_eq!(got.last(), Some(&Got::Close(Some(1000), "by itself".into())));
    drop(client);
    bed.until_noted("close / Local 1000 \"by itself\"");
    assert_eq!(bed.service.stats().connections, 0);
}

#[test]
fn a_reactor_that_is_dropped_drops_the_data() {
    let drops = Rc::new(Cell::new(0));
    let count = Rc::clone(&drops);
    let acts = Acts::echo().on_upgrade(move |_| {
        let count = Rc::clone(&count);
        let on_drop: Box<dyn FnOnce()> = Box::new(move || count.set(count.get() + 1));
        Ok(Accept::new(Data { path: String::new(), on_drop: Some(on_drop) }))
    });
    let mut bed = Bed::new(acts);
    let clients = [(); 3].map(|()| bed.connect("/"));
    let Bed { reactor, service, .. } = bed;
    drop(reactor);
    assert_eq!(drops.get(), 3);
    assert_eq!(service.stats().connections, 0);
    drop((service, clients));
}

#[test]
fn prepared_and_relayed_text_stays_text() {
    let mut bed = Bed::new(Acts::on_message(|connection, _, message| {
        let out: OutMessage<'_> = (&message).into();
        connection.send(out).unwrap();
    }));
    let mut client = bed.connect("/");
    client.send("ünï");
    client.send(&[0xff, 0xfe][..]);
    assert_eq!(
        [(); 2].map(|()| bed.next(&mut client)),
        [text("ünï"), Got::Binary(vec![0xff, 0xfe])]
    );
}
