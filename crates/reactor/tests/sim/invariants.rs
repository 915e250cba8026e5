//! Promises that hold under faults, for many seeds.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use windlass::{
    Key, Reactor, Tick, Turn, interest,
    sim::{Faults, Sim, SimFd, ThreadStep},
    stream::{
        Connector, DisconnectReason, Input, ListenOptions, Stream, StreamHandler, StreamOptions,
        StreamWriteError,
    },
};

use crate::tools::{address, again};

/// The byte at a place of a direction of a connection.
fn byte(connection: u8, direction: u8, place: usize) -> u8 {
    let mixed = (place as u64)
        .wrapping_add(u64::from(connection) << 32)
        .wrapping_add(u64::from(direction) << 40)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// One direction of a connection, as its sender or its receiver sees it.
#[derive(Default)]
struct Flow {
    len: usize,
    done: usize,
}

impl Flow {
    /// Sends until everything is sent or the stream is full. True if everything is sent.
    fn pump(&mut self, stream: &mut Stream<'_>, of: (u8, u8)) -> bool {
        while self.done < self.len {
            let end = self.len.min(self.done + 1 + self.done % 7_000);
            let bytes: Vec<u8> = (self.done..end).map(|place| byte(of.0, of.1, place)).collect();
            match stream.send(&bytes) {
                Ok(()) => self.done = end,
                Err(StreamWriteError::Full | StreamWriteError::Closed) => return false,
                Err(other) => panic!("{other:?}"),
            }
            if stream.is_full() {
                return false;
            }
        }
        true
    }

    /// Checks received bytes: none lost, reordered or invented.
    fn check(&mut self, input: &[u8], of: (u8, u8)) {
        for found in input {
            assert!(self.done < self.len, "{of:?}: more than was sent");
            assert_eq!(*found, byte(of.0, of.1, self.done), "{of:?} at {}", self.done);
            self.done += 1;
        }
    }
}

/// What the handlers of a run count.
#[derive(Default)]
struct Counts {
    opened: Cell<usize>,
    closed: Cell<usize>,
    clean: Cell<usize>,
    clients_closed: Cell<usize>,
}

/// Both ends: the client knows its number, the server reads it from the first byte.
struct End {
    number: Option<u8>,
    is_client: bool,
    lens: Rc<Vec<(usize, usize)>>,
    sent: Flow,
    received: Flow,
    counts: Rc<Counts>,
    is_open: bool,
    has_finished: bool,
}

impl End {
    fn new(number: Option<u8>, lens: &Rc<Vec<(usize, usize)>>, counts: &Rc<Counts>) -> Self {
        let mut end = Self {
            number,
            is_client: number.is_some(),
            lens: Rc::clone(lens),
            sent: Flow::default(),
            received: Flow::default(),
            counts: Rc::clone(counts),
            is_open: false,
            has_finished: false,
        };
        end.learn();
        end
    }

    fn learn(&mut self) {
        let Some(number) = self.number else { return };
        let (to_server, to_client) = self.lens[usize::from(number)];
        (self.sent.len, self.received.len) =
            if self.is_client { (to_server, to_client) } else { (to_client, to_server) };
    }

    fn pump(&mut self, stream: &mut Stream<'_>) {
        let Some(number) = self.number else { return };
        let direction = u8::from(!self.is_client);
        if self.sent.pump(stream, (number, direction)) && !self.has_finished {
            self.has_finished = true;
            stream.finish();
        }
    }
}

impl StreamHandler for End {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        assert!(!std::mem::replace(&mut self.is_open, true), "opened twice");
        self.counts.opened.set(self.counts.opened.get() + 1);
        if let (true, Some(number)) = (self.is_client, self.number) {
            let _ = stream.send(&[number]);
        }
        self.pump(stream);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        assert!(self.is_open, "data of a stream that is not open");
        let mut bytes = &input[..];
        if self.number.is_none() {
            self.number = Some(bytes[0]);
            bytes = &bytes[1..];
            self.learn();
        }
        let number = self.number.unwrap();
        self.received.check(bytes, (number, u8::from(self.is_client)));
        self.pump(stream);
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        self.pump(stream);
    }

    fn on_end(&mut self, _: &mut Stream<'_>) {
        let Flow { len, done } = self.received;
        // A FIN follows complete output only.
        assert!(self.number.is_some() && len == done, "{done} of {len} bytes before a clean end");
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        let counts = &self.counts;
        if std::mem::replace(&mut self.is_open, false) {
            counts.closed.set(counts.closed.get() + 1);
        }
        if reason == DisconnectReason::Closed {
            let is_whole =
                self.sent.done == self.sent.len && self.received.done == self.received.len;
            assert!(is_whole, "a clean end of a part");
            counts.clean.set(counts.clean.get() + 1);
        }
        if self.is_client {
            counts.clients_closed.set(counts.clients_closed.get() + 1);
        }
    }
}

/// Connections in both directions, between two hosts. Returns how many ends were clean.
fn transfer(sim: &Sim, connections: u8, longest: u64) -> usize {
    let counts = Rc::new(Counts::default());
    let len = || usize::try_from(sim.kernel().choose(longest)).unwrap();
    let lens: Rc<Vec<_>> = Rc::new((0..connections).map(|_| (len(), len())).collect());
    let options = StreamOptions::new()
        .idle_timeout(Some(Duration::from_secs(60)))
        .write_stall_timeout(Some(Duration::from_secs(60)))
        .watermarks(10_000, 60_000);
    let host = sim.host([10, 0, 0, 2].into());
    let mut server = Reactor::builder().sim(&host).build().unwrap();
    let (of_server, lens_of_server) = (Rc::clone(&counts), Rc::clone(&lens));
    again(|| ListenOptions::new().stream(options).tcp(address("10.0.0.2:80")))
        .with_handler(move |_| Some(End::new(None, &lens_of_server, &of_server)))
        .register_into(&mut server)
        .unwrap();
    sim.spawn(server);
    let mut client = sim.reactor().unwrap();
    for number in 0..connections {
        let connector = Connector::tcp(address("10.0.0.2:80")).stream(options);
        again(|| connector.connect(End::new(Some(number), &lens, &counts), &mut client));
    }
    sim.spawn(client);
    let total = usize::from(connections);
    sim.run_until(|| counts.clients_closed.get() == total).unwrap();
    sim.run_until(|| counts.opened.get() == counts.closed.get()).unwrap();
    counts.clean.get()
}

/// Without another owner of a socket, who ends its output behind the stream's back: the peer takes
/// a part for the whole then.
fn whole(faults: Faults) -> Faults {
    Faults { half_close: 0, ..faults }
}

#[test]
fn no_byte_is_lost_in_calm_weather() {
    let sim = Sim::new(1, Faults::calm());
    assert_eq!(transfer(&sim, 20, 100_000), 40);
}

#[test]
fn no_byte_is_lost_reordered_or_invented() {
    windlass::sim::check(|sim| {
        transfer(sim, 4, 30_000);
    })
    .seeds(200)
    .faults(whole(Faults::rough()))
    .run();
}

#[test]
fn no_byte_is_lost_reordered_or_invented_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        transfer(sim, 3, 10_000);
    })
    .seeds(200)
    .faults(whole(Faults::hostile()))
    .run();
}

#[test]
fn timers_are_never_early() {
    windlass::sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let (fired, begin) = (Rc::new(Cell::new(0)), sim.now());
        for _ in 0..20 {
            let span = Duration::from_nanos(1 + sim.kernel().choose(10_000_000_000));
            let counted = Rc::clone(&fired);
            let handler = move |mut turn: Turn<'_, _>| {
                assert!(turn.now() >= begin + span, "early");
                counted.set(counted.get() + 1);
            };
            reactor.after(span, handler).unwrap();
        }
        let late = |tick: Tick, mut turn: Turn<'_, _>| assert!(turn.now() >= tick.deadline);
        reactor.every(Duration::from_millis(7), late).unwrap();
        sim.spawn(reactor);
        sim.run_until(|| fired.get() == 20).unwrap();
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

#[test]
fn no_handler_runs_after_its_deletion() {
    windlass::sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let host = sim.host([10, 0, 0, 1].into());
        let keys: Rc<RefCell<Vec<Option<Key>>>> = Rc::default();
        let calls = Rc::new(Cell::new(0));
        for place in 0..8 {
            let counter = again(|| sim.eventfd(0));
            let (keys, calls) = (Rc::clone(&keys), Rc::clone(&calls));
            let (kernel, shared) = (sim.kernel().clone(), Rc::clone(&keys));
            let handler = move |fd: &mut SimFd, mut turn: Turn<'_, _>| {
                assert!(keys.borrow()[place].is_some(), "{place} was deleted");
                let _ = fd.read(&mut [0; 8]);
                calls.set(calls.get() + 1);
                let victim = usize::try_from(kernel.choose(16)).unwrap();
                let key = keys.borrow_mut().get_mut(victim).and_then(Option::take);
                if let Some(key) = key {
                    turn.delete(key).unwrap();
                }
            };
            let (fd, mut writes) = (counter.clone(), 0);
            let registration = interest().read().with_fd(counter).with_handler(handler);
            let key = registration.register_into(&mut reactor).unwrap();
            shared.borrow_mut().push(Some(key));
            sim.thread(&host, move || {
                writes += 1;
                let _ = fd.write(&1u64.to_ne_bytes());
                if writes == 20 {
                    ThreadStep::End
                } else {
                    ThreadStep::After(Duration::from_micros(3))
                }
            });
        }
        sim.spawn(reactor);
        sim.run_for(Duration::from_secs(1)).unwrap();
        assert!(calls.get() > 0);
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}
