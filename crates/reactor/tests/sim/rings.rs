//! Reactors with a ring: streams by completion, and descriptors by polls.

use std::{
    cell::{Cell, RefCell},
    io::{Read, Write},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use windlass::{
    Key, Reactor, Remote, Turn,
    sim::{Faults, Sim, SimStream},
    stream::{Input, Listener, SharedBytes, Stream, StreamHandler},
};

use crate::{
    calls::run_through_panics,
    invariants::{transfer, whole},
    tools::{Log, address, again, calm, listen},
};

/// How many requests the rings of a simulation have got.
fn requests(sim: &Sim) -> usize {
    sim.trace().to_string().lines().filter(|line| line.contains("submit")).count()
}

#[test]
fn streams_and_listeners_use_the_ring_of_their_reactor() {
    for has_ring in [false, true] {
        let sim = calm();
        sim.set_ring(has_ring);
        let mut server = sim.reactor().unwrap();
        listen(&mut server, address("127.0.0.1:80"), &Log::new());
        sim.spawn(server);
        let mut client = sim.connect(address("127.0.0.1:80")).unwrap();
        let mut answer = [0; 5];
        for _ in 0..3 {
            client.write_all(b"hello").unwrap();
            client.read_exact(&mut answer).unwrap();
        }
        // The listener's poll, and then one for each wait of the stream for bytes.
        assert!(if has_ring { requests(&sim) >= 4 } else { requests(&sim) == 0 });
        assert_eq!(&answer, b"hello");
    }
}

#[test]
fn no_byte_is_lost_in_calm_weather() {
    let sim = calm();
    sim.set_ring(true);
    assert_eq!(transfer(&sim, 20, 100_000), 40);
}

#[test]
fn no_byte_is_lost_reordered_or_invented() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        transfer(sim, 4, 30_000);
    })
    .seeds(200)
    .faults(whole(Faults::rough()))
    .twice()
    .run();
}

#[test]
fn no_byte_is_lost_reordered_or_invented_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        transfer(sim, 3, 10_000);
    })
    .seeds(200)
    .faults(whole(Faults::hostile()))
    .run();
}

/// Notes the streams that have been opened.
struct Opened(Rc<RefCell<Vec<Key>>>);

impl StreamHandler for Opened {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.0.borrow_mut().push(stream.key());
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// Connections to a server, and the keys of its streams in the same order.
fn opened(sim: &Sim, mut server: Reactor, count: usize) -> (Remote, Vec<Key>, Vec<SimStream>) {
    let opened: Rc<RefCell<Vec<Key>>> = Rc::default();
    let of_listener = Rc::clone(&opened);
    again(|| Listener::tcp(address("127.0.0.1:80")))
        .with_handler(move |_| Some(Opened(Rc::clone(&of_listener))))
        .register_into(&mut server)
        .unwrap();
    let remote = server.remote();
    sim.spawn(server);
    let connect = |number| {
        let peer = again(|| sim.connect(address("127.0.0.1:80")));
        sim.run_until(|| opened.borrow().len() > number).unwrap();
        peer
    };
    let peers = (0..count).map(connect).collect();
    (remote, opened.take(), peers)
}

fn bytes(count: usize) -> Vec<u8> {
    windlass_testkit::pattern::bytes(0, count)
}

/// The sockets take a part of each send of a turn. The rest is in completions, and the queue has
/// room for few of them: the others must be fetched before the sends are forgotten.
fn parts_of_sends(sim: &Sim) {
    sim.set_ring(true);
    let server = sim.builder().ring_entries(64, 4).build().unwrap();
    let (remote, keys, mut peers) = opened(sim, server, 30);
    let send = move |mut turn: Turn<'_>| {
        for key in keys {
            turn.stream(key).unwrap().send(&bytes(3_000)).unwrap();
        }
    };
    assert!(remote.try_post(send).is_ok());
    for peer in &mut peers {
        let mut received = vec![0; 3_000];
        peer.read_exact(&mut received).unwrap();
        assert_eq!(received, bytes(3_000));
    }
}

#[test]
fn parts_of_sends_whose_completions_overflow_are_not_lost() {
    windlass::sim::check(|sim| parts_of_sends(sim))
        .seeds(10)
        .faults(Faults { buffer_min: 1000, buffer_max: 1000, ..Faults::calm() })
        .run();
}

/// Notes its key, and counts what it receives.
struct Counts(Rc<RefCell<Vec<Key>>>, Rc<Cell<usize>>);

impl StreamHandler for Counts {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.0.borrow_mut().push(stream.key());
    }

    fn on_data(&mut self, _: &mut Stream<'_>, input: Input<'_>) {
        self.1.set(self.1.get() + input.len());
    }
}

/// Bytes for many streams have come when some of these are aborted. What that leaves in the ring is
/// not reported, and a wait for the bytes of the others does not sleep.
fn some_are_aborted(sim: &Sim) {
    const PEERS: usize = 60;
    sim.set_ring(true);
    let mut server = sim.reactor().unwrap();
    let (opened, received) = (Rc::<RefCell<Vec<Key>>>::default(), Rc::new(Cell::new(0)));
    let (noted, counted) = (Rc::clone(&opened), Rc::clone(&received));
    again(|| Listener::tcp(address("127.0.0.1:80")))
        .with_handler(move |_| Some(Counts(Rc::clone(&noted), Rc::clone(&counted))))
        .register_into(&mut server)
        .unwrap();
    let peers: Vec<_> =
        (0..PEERS).map(|_| again(|| sim.connect(address("127.0.0.1:80")))).collect();
    while opened.borrow().len() < PEERS {
        server.run_once(Duration::from_millis(1)).unwrap();
    }
    // Their receives begin.
    server.run_once(Duration::from_millis(1)).unwrap();
    for peer in &peers {
        assert_eq!(peer.try_write(&[1]).unwrap(), 1);
    }
    sim.run_for(Duration::from_millis(1)).unwrap();
    let kept = 1 + usize::try_from(sim.kernel().choose(PEERS as u64 - 1)).unwrap();
    for key in &opened.take()[..PEERS - kept] {
        server.stream(*key).unwrap().abort();
    }
    let begin = sim.elapsed();
    while received.get() < kept {
        server.run_once(Duration::from_secs(10)).unwrap();
    }
    assert!(received.get() == kept && sim.elapsed() - begin < Duration::from_secs(1));
}

#[test]
fn the_end_of_many_streams_holds_up_no_other() {
    windlass::sim::check(|sim| some_are_aborted(sim)).seeds(100).faults(Faults::calm()).run();
}

/// Sends its input back, up to the end of its peer or a zero, with which it ends.
struct Answers {
    answered: Rc<Cell<usize>>,
    answers_last: bool,
    end: fn(&mut Stream<'_>),
}

impl StreamHandler for Answers {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let (len, is_last) = (input.len(), input.last() == Some(&0));
        if !is_last || self.answers_last {
            stream.reply(input, ..).unwrap();
            self.answered.set(self.answered.get() + len);
        }
        if is_last {
            (self.end)(stream);
        }
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        (self.end)(stream);
    }
}

/// A peer that reads nothing before its request is over. So a queued reply may find a socket that
/// takes a part of it, and the event of this is behind the one that ends the stream.
fn answers(sim: &Sim) {
    sim.set_ring(true);
    let kernel = sim.kernel();
    let choose = |below: u64| usize::try_from(kernel.choose(below)).unwrap();
    let mut server = sim.builder().events_per_turn(1 + choose(3)).build().unwrap();
    let (answered, answers_last) = (Rc::new(Cell::new(0)), choose(2) == 0);
    let ends: [fn(&mut Stream<'_>); 2] = [|stream| stream.close(), |stream| stream.finish()];
    let (counted, end) = (Rc::clone(&answered), ends[choose(2)]);
    again(|| Listener::tcp(address("127.0.0.1:80")))
        .with_handler(move |_| Some(Answers { answered: Rc::clone(&counted), answers_last, end }))
        .register_into(&mut server)
        .unwrap();
    sim.spawn(server);
    let mut client = again(|| sim.connect(address("127.0.0.1:80")));
    let mut sent = vec![1; 1 + choose(1_000)];
    client.write_all(&sent).unwrap();
    for _ in 0..choose(4) {
        sim.run_for(Duration::from_micros(kernel.choose(200))).unwrap();
        let part = vec![2; 1 + choose(600)];
        client.write_all(&part).unwrap();
        sent.extend(part);
    }
    if choose(2) == 0 {
        client.write_all(&[0]).unwrap();
        sent.push(0);
    }
    client.shutdown_write().unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, sent[..answered.get()], "a clean end of a part");
}

#[test]
fn what_is_answered_goes_out_before_the_end() {
    let narrow = Faults { buffer_min: 300, buffer_max: 2_000, ..Faults::rough() };
    windlass::sim::check(|sim| answers(sim)).seeds(300).faults(narrow).run();
}

/// Peers that only listen, so the server hears of them by its sends alone. Some sends are queued
/// before the end of a turn, which may be a panic, and some at it.
fn listeners_hear_all(sim: &Sim) {
    sim.set_ring(true);
    let (remote, keys, mut peers) = opened(sim, sim.reactor().unwrap(), 6);
    let choose = |below: u64| usize::try_from(sim.kernel().choose(below)).unwrap();
    for _ in 0..4 {
        let sends: Vec<_> = keys.iter().map(|key| (*key, choose(3), 1 + choose(2_000))).collect();
        let lens: Vec<_> = sends.iter().map(|(_, _, len)| *len).collect();
        let (has_sent, panics) = (Arc::new(AtomicBool::new(false)), choose(2) == 0);
        let noted = Arc::clone(&has_sent);
        let send = move |mut turn: Turn<'_>| {
            for (key, way, len) in sends {
                let (bytes, mut stream) = (bytes(len), turn.stream(key).unwrap());
                match way {
                    0 => stream.send(&bytes).unwrap(),
                    _ => drop(stream.write_shared(&SharedBytes::new(&bytes)).unwrap()),
                }
            }
            noted.store(true, Ordering::Relaxed);
            assert!(!panics, "planned");
        };
        assert!(remote.try_post(send).is_ok());
        run_through_panics(sim, || has_sent.load(Ordering::Relaxed));
        for (peer, len) in peers.iter_mut().zip(lens) {
            let mut received = vec![0; len];
            peer.read_exact(&mut received).unwrap();
            assert_eq!(received, bytes(len));
        }
    }
}

#[test]
fn what_is_sent_after_a_failed_send_does_not_wait() {
    let narrow = Faults { buffer_min: 300, buffer_max: 2_000, ..Faults::calm() };
    windlass::sim::check(|sim| listeners_hear_all(sim)).seeds(100).faults(narrow).run();
}
