//! Bounds of streams and listeners, and ends that are told, for many seeds.

use std::{
    cell::{Cell, RefCell},
    io::{Read, Write},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    Key, Turn,
    sim::{self, Faults, Sim, SimStream},
    stream::{
        Connector, DisconnectReason, Input, ListenOptions, Stream, StreamHandler, StreamLimit,
        StreamOptions, StreamWriteError, Timeout,
    },
};

use crate::tools::{Log, address, again};

const SECOND: Duration = Duration::from_secs(1);

/// Without the fault that ends a stream behind its back, which a peer takes for its end.
const HOSTILE: Faults = Faults { half_close: 0, ..Faults::hostile() };

/// How many streams of a listener are open, and how many may be.
struct Guests {
    open: Cell<usize>,
    max: usize,
}

/// A stream of a listener with a maximum.
struct Guest {
    own: Rc<Guests>,
    all: Rc<Guests>,
    is_open: bool,
}

impl StreamHandler for Guest {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        assert!(!std::mem::replace(&mut self.is_open, true), "opened twice");
        for guests in [&self.own, &self.all] {
            guests.open.set(guests.open.get() + 1);
            assert!(guests.open.get() <= guests.max, "more than {}", guests.max);
        }
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let _ = stream.reply(input, ..);
    }

    fn on_close(&mut self, _: Key, _: DisconnectReason, _: Turn<'_>) {
        if self.is_open {
            self.own.open.set(self.own.open.get() - 1);
            self.all.open.set(self.all.open.get() - 1);
        }
    }
}

/// Sends a byte, and closes when it comes back.
struct Visitor(Log<DisconnectReason>);

impl StreamHandler for Visitor {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let _ = stream.send(b"x");
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, _: Input<'_>) {
        stream.close();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.0.note(reason);
    }
}

/// Two listeners with maxima and a limit that they share, and more visitors than that. Returns why
/// the connections of these have ended.
fn visits(sim: &Sim) -> Vec<DisconnectReason> {
    let mut server = sim.reactor().unwrap();
    let limit = StreamLimit::new(4);
    let all = Rc::new(Guests { open: Cell::new(0), max: 4 });
    let options = StreamOptions::new().idle_timeout(Some(SECOND * 60));
    for at in ["127.0.0.1:80", "127.0.0.1:81"] {
        let (own, all) = (Rc::new(Guests { open: Cell::new(0), max: 3 }), Rc::clone(&all));
        let guest = move || Guest { own: Rc::clone(&own), all: Rc::clone(&all), is_open: false };
        again(|| ListenOptions::new().connections_max(3).stream(options).tcp(address(at)))
            .limited(&limit)
            .with_handler(move |_| Some(guest()))
            .register_into(&mut server)
            .unwrap();
    }
    sim.spawn(server);
    let mut client = sim.reactor().unwrap();
    let log = Log::new();
    for visitor in 0..12 {
        let at = address(if visitor % 2 == 0 { "127.0.0.1:80" } else { "127.0.0.1:81" });
        let connector = Connector::tcp(at).stream(options);
        again(|| connector.connect(Visitor(log.clone()), &mut client));
    }
    sim.spawn(client);
    sim.run_until(|| log.len() == 12).unwrap();
    sim.run_until(|| limit.open() == 0).unwrap();
    assert_eq!(all.open.get(), 0);
    log.take()
}

#[test]
fn listeners_keep_their_limits() {
    sim::check(|sim| _ = visits(sim)).seeds(100).faults(HOSTILE).run();
}

#[test]
fn listeners_serve_everyone_who_waits() {
    let few_descriptors = Faults { too_many_files: 50_000, ..Faults::rough() };
    let all = |sim: &mut Sim| assert_eq!(visits(sim), [DisconnectReason::Closed; 12]);
    sim::check(all).seeds(50).faults(few_descriptors).run();
}

/// Sends as much as it can whenever it can.
struct Flood {
    left: usize,
    max: usize,
}

impl Flood {
    fn pump(&mut self, stream: &mut Stream<'_>) {
        while self.left > 0 {
            let count = self.left.min(1 + self.left % 5_000);
            match stream.send(&vec![7; count]) {
                Ok(()) => self.left -= count,
                Err(StreamWriteError::Full) => break,
                Err(_) => return,
            }
            assert!(stream.buffered() <= self.max, "{} bytes wait", stream.buffered());
        }
        if self.left == 0 {
            stream.close();
        }
    }
}

impl StreamHandler for Flood {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.pump(stream);
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        self.pump(stream);
    }
}

/// A server that floods each connection, and a connection of the test's.
fn flooded(sim: &Sim, len: usize, options: StreamOptions, max: usize) -> SimStream {
    let mut server = sim.reactor().unwrap();
    let options = options.output_max(max).watermarks(max / 4, max / 2);
    again(|| ListenOptions::new().stream(options).tcp(address("127.0.0.1:80")))
        .with_handler(move |_| Some(Flood { left: len, max }))
        .register_into(&mut server)
        .unwrap();
    sim.spawn(server);
    again(|| sim.connect(address("127.0.0.1:80")))
}

#[test]
fn output_waits_within_its_maximum() {
    sim::check(|sim| {
        let mut client = flooded(sim, 100_000, StreamOptions::new(), 20_000);
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 100_000);
    })
    .seeds(100)
    .faults(Faults::rough())
    .run();
}

/// The time of `linger` counts from the last progress: `StreamOptions::linger_restarts`.
#[test]
fn a_slow_reader_gets_all_output_of_a_closed_stream() {
    sim::check(|sim| {
        let options = StreamOptions::new().linger(SECOND * 10).linger_restarts(true);
        let mut client = flooded(sim, 600_000, options, 700_000);
        let (mut len, mut room) = (0, vec![0; 100_000]);
        loop {
            match client.read(&mut room).unwrap() {
                0 => break,
                count => len += count,
            }
            sim.run_for(Duration::from_millis(1 + sim.kernel().choose(4_000))).unwrap();
        }
        assert_eq!(len, 600_000);
    })
    .seeds(60)
    .faults(Faults::rough())
    .run();
}

/// Sends when it is opened, and counts what was accepted.
struct Gift(usize, Rc<Cell<usize>>);

impl StreamHandler for Gift {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        if stream.send(&vec![7; self.0]).is_ok() {
            self.1.set(self.0);
        }
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// A clean end follows complete output only, also if the reactor is dropped.
#[test]
fn the_end_of_a_reactor_hides_no_loss() {
    sim::check(|sim| {
        let mut server = sim.reactor().unwrap();
        let len = usize::try_from(sim.kernel().choose(400_000)).unwrap();
        let sent = Rc::new(Cell::new(0));
        let counted = Rc::clone(&sent);
        again(|| ListenOptions::new().tcp(address("127.0.0.1:80")))
            .with_handler(move |_| Some(Gift(len, Rc::clone(&counted))))
            .register_into(&mut server)
            .unwrap();
        let life = Duration::from_micros(100 + sim.kernel().choose(1_000));
        server.after_with(life, |mut turn| turn.stop()).unwrap();
        sim.spawn(server);
        let Ok(mut client) = sim.connect(address("127.0.0.1:80")) else { return };
        let mut received = Vec::new();
        if client.read_to_end(&mut received).is_ok() {
            assert_eq!(received.len(), sent.get(), "a clean end of a part");
        }
    })
    .seeds(200)
    .faults(HOSTILE)
    .run();
}

/// Closes itself when it is idle, and never before.
struct Watchful {
    last: Rc<Cell<Option<Instant>>>,
    idle: Duration,
}

impl StreamHandler for Watchful {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.last.set(Some(stream.turn().now()));
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, _: Input<'_>) {
        self.last.set(Some(stream.turn().now()));
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        assert_eq!(timeout, Timeout::Idle);
        let passed = stream.turn().now() - self.last.get().expect("it is open");
        assert!(passed >= self.idle, "idle after {passed:?}");
        stream.close();
    }

    fn on_close(&mut self, _: Key, _: DisconnectReason, _: Turn<'_>) {
        self.last.set(None);
    }
}

#[test]
fn no_idle_timeout_is_early_and_none_is_forgotten() {
    sim::check(|sim| {
        let idle = SECOND * 5;
        let mut server = sim.reactor().unwrap();
        let last = Rc::new(Cell::new(None));
        let seen = Rc::clone(&last);
        let options = StreamOptions::new().idle_timeout(Some(idle));
        again(|| ListenOptions::new().stream(options).tcp(address("127.0.0.1:80")))
            .with_handler(move |_| Some(Watchful { last: Rc::clone(&seen), idle }))
            .register_into(&mut server)
            .unwrap();
        sim.spawn(server);
        sim.run_for(SECOND * 20).unwrap();
        let mut client = again(|| sim.connect(address("127.0.0.1:80")));
        for _ in 0..6 {
            if client.write_all(b"x").is_err() {
                break;
            }
            sim.run_for(Duration::from_millis(sim.kernel().choose(6_000))).unwrap();
        }
        // At the end of its time, or because the connection has failed.
        sim.run_for(SECOND * 20).unwrap();
        assert_eq!(last.get(), None, "it is open still");
    })
    .seeds(100)
    .faults(HOSTILE)
    .run();
}

/// Of a connection that cannot come about.
struct Hopeless(Rc<RefCell<Vec<DisconnectReason>>>);

impl StreamHandler for Hopeless {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        panic!("opened without a peer");
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.0.borrow_mut().push(reason);
    }
}

fn refused(sim: &Sim) {
    let mut client = sim.reactor().unwrap();
    let reasons = Rc::default();
    for _ in 0..3 {
        let connector = Connector::tcp(address("127.0.0.1:81")).timeout(Some(SECOND * 60));
        again(|| connector.connect(Hopeless(Rc::clone(&reasons)), &mut client));
    }
    sim.spawn(client);
    sim.run_for(SECOND * 70).unwrap();
    let reasons = reasons.borrow();
    let is_refused = |reason: &DisconnectReason| matches!(reason, DisconnectReason::Connect(_));
    assert!(reasons.len() == 3 && reasons.iter().all(is_refused), "{reasons:?}");
}

#[test]
fn a_connection_that_is_refused_is_closed_once_and_never_opened() {
    sim::check(|sim| refused(sim)).seeds(100).faults(HOSTILE).run();
}

/// A spurious event has opened a connecting stream with this seed.
#[test]
fn seed_15_opens_no_connection_that_is_refused() {
    sim::check(|sim| refused(sim)).first_seed(15).seeds(1).faults(HOSTILE).run();
}
