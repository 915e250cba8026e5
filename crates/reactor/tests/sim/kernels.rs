//! The same random programs of streams on backends of the kernel and in a simulation. All callbacks
//! agree, after each action. Only pieces of input may have other borders.
//!
//! The simulation runs first. The kernel gets time until it has done the same.

use std::{
    cell::RefCell,
    net::SocketAddr,
    panic::resume_unwind,
    rc::Rc,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use windlass::{
    Backend, Key, Reactor, Turn,
    sim::{self, Faults, Sim},
    stream::{
        Address, Connector, DisconnectReason, Input, Listener, Stream, StreamHandler,
        StreamWriteError,
    },
};
use windlass_testkit::{pattern::bytes, rings};

use crate::tools::address;

const ACTIONS: usize = 40;
const CONNECTIONS: usize = 4;

/// Whether the kernel has had enough time. After the first failure it has less: those by which a
/// program is shrunk would take minutes.
fn is_late(begun: Instant) -> bool {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    let millis = if HAS_FAILED.load(Ordering::Relaxed) { 100 } else { 5_000 };
    let is_late = begun.elapsed() > Duration::from_millis(millis);
    HAS_FAILED.fetch_or(is_late, Ordering::Relaxed);
    is_late
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Connect,
    Send(usize),
    Finish,
    Close,
    CloseAfterOutput,
    Abort,
    Pause,
    Resume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Open,
    Data(usize),
    End,
    Close(DisconnectReason),
    /// A send was rejected, because the stream is closed.
    Rejected,
    /// There is no such stream any more.
    Gone,
}

/// One end of a connection. Numbers that are even have connected, the next ones have accepted.
#[derive(Clone, Default)]
struct Side {
    key: Option<Key>,
    said: Vec<Said>,
    sent: usize,
    received: usize,
}

type Sides = Rc<RefCell<Vec<Side>>>;

struct End {
    number: usize,
    sides: Sides,
}

impl End {
    fn note(&self, said: Said) {
        self.sides.borrow_mut()[self.number].said.push(said);
    }
}

impl StreamHandler for End {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.sides.borrow_mut()[self.number].key = Some(stream.key());
        self.note(Said::Open);
    }

    fn on_data(&mut self, _: &mut Stream<'_>, input: Input<'_>) {
        let side = &mut self.sides.borrow_mut()[self.number];
        assert!(*input == bytes(side.received, input.len()), "the bytes that were sent");
        side.received += input.len();
        match side.said.last_mut() {
            Some(Said::Data(count)) => *count += input.len(),
            _ => side.said.push(Said::Data(input.len())),
        }
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.note(Said::End);
        // Some leave their half open.
        if self.number % 4 < 2 {
            stream.close();
        }
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.note(Said::Close(reason));
    }
}

struct World {
    reactor: Reactor,
    to: SocketAddr,
    sides: Sides,
    connections: usize,
}

impl World {
    fn new(mut reactor: Reactor, at: SocketAddr) -> Self {
        let sides: Sides = Rc::new(RefCell::new(vec![Side::default(); 2 * CONNECTIONS]));
        let listener = Listener::tcp(at).unwrap();
        let Address::Ip(to) = listener.local_addr().unwrap() else { panic!("an address of TCP") };
        let (of_listener, mut accepted) = (Rc::clone(&sides), 0);
        listener
            .with_handler(move |_| {
                accepted += 1;
                Some(End { number: 2 * accepted - 1, sides: Rc::clone(&of_listener) })
            })
            .register_into(&mut reactor)
            .unwrap();
        Self { reactor, to, sides, connections: 0 }
    }

    fn act(&mut self, number: usize, act: Act) {
        if let Act::Connect = act {
            if self.connections < CONNECTIONS {
                let end = End { number: 2 * self.connections, sides: Rc::clone(&self.sides) };
                Connector::tcp(self.to).connect(end, &mut self.reactor).unwrap();
                self.connections += 1;
            }
            return;
        }
        let Side { key: Some(key), sent, .. } = self.sides.borrow()[number] else { return };
        let Ok(mut stream) = self.reactor.stream(key) else {
            return self.sides.borrow_mut()[number].said.push(Said::Gone);
        };
        match act {
            Act::Connect => {}
            Act::Send(count) => match stream.send(&bytes(sent, count)) {
                Ok(()) => self.sides.borrow_mut()[number].sent += count,
                Err(StreamWriteError::Closed) => {
                    self.sides.borrow_mut()[number].said.push(Said::Rejected);
                }
                Err(other) => panic!("{other:?}"),
            },
            Act::Finish => stream.finish(),
            Act::Close => stream.close(),
            Act::CloseAfterOutput => stream.close_after_output(),
            Act::Abort => stream.abort(),
            Act::Pause => stream.pause(),
            Act::Resume => stream.resume(),
        }
    }

    /// What all ends have said so far.
    fn said(&self) -> Vec<Vec<Said>> {
        self.sides.borrow().iter().map(|side| side.said.clone()).collect()
    }

    fn simulate(mut self, actions: &[(usize, Act)]) -> Vec<Vec<Vec<Said>>> {
        let mut all = Vec::new();
        for (number, act) in actions {
            self.act(*number, *act);
            let mut idle = 0;
            while idle < 3 {
                let count = self.reactor.run_once(Duration::from_millis(1)).unwrap();
                idle = if count == 0 { idle + 1 } else { 0 };
            }
            all.push(self.said());
        }
        all
    }

    fn compare(mut self, actions: &[(usize, Act)], expected: &[Vec<Vec<Said>>]) {
        for (place, (number, act)) in actions.iter().enumerate() {
            self.act(*number, *act);
            let begun = Instant::now();
            while self.reactor.run_once(Duration::ZERO).unwrap() > 0
                || self.said() != expected[place] && !is_late(begun)
            {}
            assert_eq!(
                self.said(),
                expected[place],
                "the kernel and the simulation, after {:?}",
                &actions[..=place]
            );
        }
    }
}

/// A random program in a simulation, with a ring or without, and on a backend of the kernel.
fn program(sim: &Sim, has_ring: bool, backends: &'static [Backend]) {
    let kernel = sim.kernel().clone();
    let choose = |below| kernel.choose(below) as usize;
    let actions: Vec<(usize, Act)> = (0..ACTIONS)
        .map(|_| {
            let act = match choose(20) {
                0..=2 => Act::Connect,
                3..=9 => Act::Send(1 + choose(400)),
                10 => Act::Finish,
                11 => Act::Close,
                12 => Act::CloseAfterOutput,
                13 => Act::Abort,
                14..=16 => Act::Pause,
                _ => Act::Resume,
            };
            (choose(2 * CONNECTIONS as u64), act)
        })
        .collect();
    sim.set_ring(has_ring);
    // Buffers as large as the default ones: if a closed stream does not discard all that it has
    // received, its peer is reset, so small buffers have another outcome.
    let reactor = sim.builder().ring_buffers(16, 16 << 10).build().unwrap();
    let expected = World::new(reactor, address("10.0.0.1:80")).simulate(&actions);
    for backend in backends {
        // Listeners of this thread are simulated.
        let real = || {
            let reactor = Reactor::builder().backend(*backend).build().unwrap();
            World::new(reactor, address("127.0.0.1:0")).compare(&actions, &expected);
        };
        let outcome = thread::scope(|scope| scope.spawn(real).join());
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }
}

#[test]
fn random_programs_of_streams_have_the_outcomes_of_readiness() {
    sim::check(|sim| program(sim, false, &[Backend::Epoll, Backend::Poll]))
        .seeds(150)
        .faults(Faults::calm())
        .run();
}

#[test]
fn random_programs_of_streams_have_the_outcomes_of_a_ring() {
    if rings::are_to_be_had("kernels::random_programs_of_streams_have_the_outcomes_of_a_ring") {
        sim::check(|sim| program(sim, true, &[Backend::Uring]))
            .seeds(150)
            .faults(Faults::calm())
            .run();
    }
}
