//! Clients that connect again: a message is received at most once and in order, and a loss is told.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use windlass::sim::{Faults, Sim};
use windlass_task::time::sleep;
use windlass_websocket::{
    CloseCode,
    client::{Backoff, Client, Overflow},
};

use crate::{
    completing::Sockets,
    tools::{briefly, config, message, run_client, start_server},
};

const MESSAGES: usize = 40;

/// What the two ends have seen.
#[derive(Default)]
struct Seen {
    /// The messages of each connection.
    received: RefCell<Vec<Vec<usize>>>,
    /// How many connections the server has closed or dropped.
    closed: Cell<usize>,
    /// How many connections were lost, as the client was told.
    lost: Cell<u64>,
}

/// A client sends numbered messages to a server that ends its connections now and then.
fn session(sim: &Sim) -> Rc<Seen> {
    let seen = Rc::<Seen>::default();
    let (kernel, of_server) = (sim.kernel().clone(), Rc::clone(&seen));
    let all = start_server(sim, config(), move |mut socket, _| {
        let (kernel, seen) = (kernel.clone(), Rc::clone(&of_server));
        async move {
            let connection = seen.received.borrow().len();
            seen.received.borrow_mut().push(Vec::new());
            // Long enough for the last connection to end by the client.
            for _ in 0..kernel.choose(3 * MESSAGES as u64) {
                let Ok(Some(found)) = socket.recv().await else { return };
                let text = String::from_utf8_lossy(found.as_bytes()).into_owned();
                let place: usize = text.split(' ').nth(2).unwrap().parse().unwrap();
                let sent = message((0, 0), place, place * 50);
                assert!(*found.as_bytes() == **sent.as_bytes(), "message {place}");
                seen.received.borrow_mut()[connection].push(place);
            }
            seen.closed.set(seen.closed.get() + 1);
            if kernel.choose(2) == 0 {
                let _ = socket.close(CloseCode::GOING_AWAY, "enough").await;
            }
        }
    });
    let (kernel, of_client) = (sim.kernel().clone(), Rc::clone(&seen));
    run_client(sim, async move {
        let mut backoff = Backoff::DEFAULT;
        backoff.first = Duration::from_millis(10);
        let hook = move |client, attempt: windlass_websocket::client::Attempt| {
            if attempt.lost_by.is_some() && attempt.connections > 0 && attempt.number == 1 {
                assert_eq!(of_client.lost.replace(attempt.connections), attempt.connections - 1);
            }
            std::future::ready(Ok(client))
        };
        let mut socket = Client::new("ws://10.0.0.2/")
            .config(config())
            .reconnecting_on(Sockets(kernel.clone()))
            .before_attempt(hook)
            .queue(4, 1 << 20, Overflow::Wait)
            .backoff(backoff);
        for place in 0..MESSAGES {
            socket.send(message((0, 0), place, place * 50)).await.unwrap();
            match kernel.choose(4) {
                0 => sleep(Duration::from_nanos(kernel.choose(5_000_000))).await,
                1 => assert!(briefly(&kernel, socket.recv()).await.is_none(), "it was told to end"),
                _ => {}
            }
        }
        socket.flush().await.unwrap();
        socket.close(CloseCode::NORMAL, "done").await.unwrap();
    });
    all.check(sim);
    let received = seen.received.borrow();
    for connection in &*received {
        let is_next = |two: &[usize]| two[0] + 1 == two[1];
        assert!(connection.windows(2).all(is_next), "a loss in a connection: {connection:?}");
    }
    let mut places: Vec<usize> = received.iter().flatten().copied().collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|two| two[0] < two[1]), "received twice: {places:?}");
    drop(received);
    seen
}

#[test]
fn messages_are_lost_with_connections_alone() {
    for (faults, seeds) in [(Faults::calm(), 20), (Faults::rough(), 40)] {
        windlass::sim::check(|sim| {
            let seen = session(sim);
            let count: usize = seen.received.borrow().iter().map(Vec::len).sum();
            if (seen.lost.get(), seen.closed.get()) == (0, 0) {
                assert_eq!(count, MESSAGES, "a loss that nobody was told of");
            }
        })
        .seeds(seeds)
        .faults(faults)
        .run();
    }
}

#[test]
fn messages_come_at_most_once_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        session(sim);
    })
    .seeds(60)
    .faults(Faults::hostile())
    .run();
}
