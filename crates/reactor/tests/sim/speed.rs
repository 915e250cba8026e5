//! Many hosts and many seeds. The ignored tests print how fast they are:
//!
//! ```sh
//! cargo test --release -p windlass --features sim --test sim -- --ignored --nocapture \
//!     --test-threads 1 speed
//! ```

use std::{
    cell::Cell,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    Key, Reactor, Turn,
    sim::{self, Faults, Sim},
    stream::{Connector, DisconnectReason, Input, Listener, Stream, StreamHandler},
};

use crate::tools::address;

const SECOND: Duration = Duration::from_secs(1);

/// Sends its input back.
struct Answer;

impl StreamHandler for Answer {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        stream.reply(input, ..).unwrap();
    }
}

/// Sends a message, and another one some time after its answer has come.
struct Ask {
    answers: Rc<Cell<u64>>,
    pause: Duration,
    /// How many messages are left to send.
    left: u64,
    received: usize,
}

impl Ask {
    const MESSAGE: [u8; 64] = [7; 64];
}

impl StreamHandler for Ask {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        stream.send(&Self::MESSAGE).unwrap();
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.received += input.len();
        if self.received < Self::MESSAGE.len() {
            return;
        }
        self.received = 0;
        self.answers.set(self.answers.get() + 1);
        self.left -= 1;
        if self.left == 0 {
            return stream.close();
        }
        if self.pause.is_zero() {
            return stream.send(&Self::MESSAGE).unwrap();
        }
        let key = stream.key();
        let ask = move |mut turn: Turn<'_>| {
            turn.stream(key).unwrap().send(&Self::MESSAGE).unwrap();
        };
        stream.turn().after_with(self.pause, ask).unwrap();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        assert!(self.left == 0, "{reason:?}");
    }
}

/// Each host listens, and asks the next ones once a second. Returns the number of answers.
fn ring(sim: &Sim, hosts: u16, connections: u16, seconds: u64) -> u64 {
    let answers = Rc::new(Cell::new(0));
    let at = |host: u16| {
        let [high, low] = (host % hosts).to_be_bytes();
        SocketAddr::from(([10, 1, high, low], 80))
    };
    let mut reactors: Vec<Reactor> = (0..hosts)
        .map(|host| Reactor::builder().sim(&sim.host(at(host).ip())).build().unwrap())
        .collect();
    for (host, reactor) in (0..hosts).zip(&mut reactors) {
        let listener = Listener::tcp(at(host)).unwrap();
        listener.with_handler(|_| Some(Answer)).register_into(reactor).unwrap();
    }
    for (host, mut reactor) in (0..hosts).zip(reactors) {
        for next in 1..=connections {
            let answers = Rc::clone(&answers);
            let ask = Ask { answers, pause: SECOND, left: seconds, received: 0 };
            Connector::tcp(at(host + next)).connect(ask, &mut reactor).unwrap();
        }
        sim.spawn(reactor);
    }
    sim.run_for(SECOND * u32::try_from(seconds).unwrap()).unwrap();
    answers.get()
}

#[test]
fn hosts_in_a_ring_answer_each_other() {
    let sim = Sim::new(1, Faults::calm());
    assert_eq!(ring(&sim, 30, 4, 5), 30 * 4 * 5);
}

/// A session of one server: each connection sends some messages, one after the other.
fn echo(sim: &Sim, connections: u64, messages: u64) {
    let mut server = sim.reactor().unwrap();
    let listener = Listener::tcp(address("127.0.0.1:80")).unwrap();
    listener.with_handler(|_| Some(Answer)).register_into(&mut server).unwrap();
    sim.spawn(server);
    let mut client = sim.reactor().unwrap();
    let answers = Rc::new(Cell::new(0));
    for _ in 0..connections {
        let answers = Rc::clone(&answers);
        let ask = Ask { answers, pause: Duration::ZERO, left: messages, received: 0 };
        Connector::tcp(address("127.0.0.1:80")).connect(ask, &mut client).unwrap();
    }
    sim.spawn(client);
    sim.run_until(|| answers.get() == connections * messages).unwrap();
}

#[test]
fn a_session_of_a_hundred_connections_has_all_answers() {
    sim::check(|sim| echo(sim, 100, 3)).seeds(5).faults(Faults::calm()).run();
}

/// Prints how fast something was.
fn measure(what: &str, run: impl FnOnce() -> u64) {
    let begin = Instant::now();
    let events = run();
    let took = begin.elapsed().as_secs_f64();
    println!("{what}: {took:.2} s, {events} events, {:.0} events/s", events as f64 / took);
}

#[test]
#[ignore = "prints a speed, which needs a release build on a quiet machine"]
fn speed_of_a_thousand_hosts() {
    measure("1,000 hosts with 10 connections each, for a virtual minute", || {
        let sim = Sim::new(1, Faults::calm());
        sim.kernel().set_trace_max(0);
        assert_eq!(ring(&sim, 1_000, 10, 60), 600_000);
        sim.kernel().events()
    });
}

#[test]
#[ignore = "prints a speed, which needs a release build on a quiet machine"]
fn speed_of_one_processor() {
    measure("echo of 100 connections with 1,000 messages each, one processor", || {
        let check = sim::check(|sim| echo(sim, 100, 1_000)).faults(Faults::calm());
        let outcome = check.seeds(2).threads(1).outcome();
        assert!(outcome.failure.is_none());
        outcome.events
    });
}

#[test]
#[ignore = "prints a speed, which needs a release build on a quiet machine"]
fn speed_of_ten_thousand_sessions() {
    measure("10,000 seeds of an echo of 100 connections, all processors", || {
        let check = sim::check(|sim| echo(sim, 100, 1)).faults(Faults::calm());
        let outcome = check.seeds(10_000).outcome();
        assert!(outcome.failure.is_none());
        outcome.events
    });
}
