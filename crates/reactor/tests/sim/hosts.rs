//! Several reactors in one simulated network.

use std::{
    io::{Read, Write},
    time::Duration,
};

use windlass::{
    Key, Reactor, Turn,
    sim::{Faults, Link, Sim},
    stream::{Connector, DisconnectReason, Input, Listener, Stream, StreamHandler},
};

use crate::tools::{Echo, Log, address, again, calm, listen};

#[test]
fn a_listener_is_at_the_host_of_its_address() {
    let sim = calm();
    let (first, second) = (sim.host([10, 0, 0, 1].into()), sim.host([10, 0, 0, 2].into()));
    let logs = [Log::new(), Log::new()];
    for (host, log) in [(&first, &logs[0]), (&second, &logs[1])] {
        let mut reactor = Reactor::builder().sim(host).build().unwrap();
        listen(&mut reactor, (host.address(), 80).into(), log);
        sim.spawn(reactor);
    }
    let mut client = sim.connect(address("10.0.0.2:80")).unwrap();
    client.write_all(b"two").unwrap();
    client.read_exact(&mut [0; 3]).unwrap();
    assert_eq!((logs[0].len(), logs[1].len()), (0, 2));
    sim.connect(address("10.0.0.3:80")).unwrap_err();
}

#[test]
fn a_listener_without_an_address_is_at_the_host_of_its_program() {
    let sim = calm();
    let second = sim.host([10, 0, 0, 2].into());
    let mut reactor = Reactor::builder().sim(&second).build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let listen_late = move |mut turn: Turn<'_>| {
        let (noted, listener) = (noted.clone(), Listener::tcp(address("0.0.0.0:80")).unwrap());
        listener.with_handler(move |_| Some(Echo(noted.clone()))).register_into(&mut turn).unwrap();
    };
    reactor.defer(listen_late).unwrap();
    let running = sim.spawn(reactor);
    let mut steps = 0..1;
    sim.run_until(|| steps.next().is_none()).unwrap();
    let _own = Listener::tcp(address("0.0.0.0:81")).unwrap();
    sim.connect(address("10.0.0.2:81")).expect_err("the test has a host of its own");
    assert!(!running.has_ended());
    sim.run_for(Duration::from_secs(1)).unwrap();
    sim.connect(address("10.0.0.1:80")).unwrap_err();
    let mut client = sim.connect(address("10.0.0.2:80")).unwrap();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(log.len(), 2);
}

/// In the turns of a reactor that the test runs, and with its driver, things are made at its host.
/// After them, at the simulation's own.
#[test]
fn the_host_of_a_reactor_that_the_test_runs_counts_in_its_turns() {
    let sim = calm();
    let second = sim.host([10, 0, 0, 2].into());
    let mut reactor = Reactor::builder().sim(&second).build().unwrap();
    let made = Log::new();
    let of_handler = made.clone();
    let listen_late = move |_: Turn<'_>| {
        of_handler.note(Listener::tcp(address("0.0.0.0:80")).unwrap());
    };
    reactor.defer(listen_late).unwrap();
    reactor.run_once(Duration::ZERO).unwrap();
    made.note(Listener::tcp(address("0.0.0.0:81")).unwrap());
    let of_driver = made.clone();
    let mut driver = move |_: Turn<'_>| {
        of_driver.note(Listener::tcp(address("0.0.0.0:82")).unwrap());
        windlass::NextTurn::Stop
    };
    reactor.run_with(&mut driver).unwrap();
    for at in ["10.0.0.2:80", "10.0.0.1:81", "10.0.0.2:82"] {
        sim.connect(address(at)).unwrap();
    }
    assert_eq!(made.len(), 3);
}

/// Opens a connection to the next host for each message, and passes it on.
struct Relay {
    next: Option<std::net::SocketAddr>,
    log: Log<Vec<u8>>,
}

impl StreamHandler for Relay {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.log.note(input.to_vec());
        if let Some(next) = self.next {
            let message = Message(input.to_vec());
            Connector::tcp(next).connect(message, &mut stream.turn()).unwrap();
        }
        stream.close();
    }
}

struct Message(Vec<u8>);

impl StreamHandler for Message {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        stream.send(&self.0).unwrap();
        stream.finish();
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

#[test]
fn a_chain_of_hosts_passes_a_message_on() {
    let sim = calm();
    let log = Log::new();
    let at = |number: u8| address(&format!("10.0.1.{number}:9"));
    for number in 1..=100 {
        let host = sim.host(at(number).ip());
        let mut reactor = Reactor::builder().sim(&host).build().unwrap();
        let (log, next) = (log.clone(), (number < 100).then(|| at(number + 1)));
        Listener::tcp(at(number))
            .unwrap()
            .with_handler(move |_| Some(Relay { next, log: log.clone() }))
            .register_into(&mut reactor)
            .unwrap();
        sim.spawn(reactor);
    }
    let mut client = sim.connect(at(1)).unwrap();
    client.write_all(b"on").unwrap();
    sim.run_until(|| log.len() == 100).unwrap();
    assert!(log.take().iter().all(|message| message == b"on"));
}

#[test]
fn a_link_takes_time() {
    let sim = calm();
    let far = sim.host([10, 0, 0, 2].into());
    let near = sim.host([10, 0, 0, 1].into());
    let link = Link { latency_ns: 50_000_000, jitter_ns: 0, bytes_per_s: 0 };
    sim.kernel().set_link(near.id(), far.id(), link);
    let mut reactor = Reactor::builder().sim(&far).build().unwrap();
    let log = Log::new();
    listen(&mut reactor, address("10.0.0.2:80"), &log);
    sim.spawn(reactor);
    let mut client = sim.connect(address("10.0.0.2:80")).unwrap();
    let begin = sim.elapsed();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    let passed = sim.elapsed() - begin;
    assert!(passed >= Duration::from_millis(100), "{passed:?}");
    assert!(passed < Duration::from_millis(101), "{passed:?}");
}

#[test]
fn a_partition_ends_in_the_connect_timeout() {
    struct Client(Log<DisconnectReason>);
    impl StreamHandler for Client {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
        fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
            self.0.note(reason);
            turn.stop();
        }
    }
    let sim = calm();
    let far = sim.host([10, 0, 0, 2].into());
    let mut server = Reactor::builder().sim(&far).build().unwrap();
    listen(&mut server, address("10.0.0.2:80"), &Log::new());
    sim.spawn(server);
    sim.kernel().partition(sim.host([10, 0, 0, 1].into()).id(), far.id());
    let mut client = sim.reactor().unwrap();
    let log = Log::new();
    Connector::tcp(address("10.0.0.2:80"))
        .timeout(Some(Duration::from_secs(10)))
        .connect(Client(log.clone()), &mut client)
        .unwrap();
    let begin = sim.elapsed();
    client.run().unwrap();
    assert_eq!(log.take(), [DisconnectReason::ConnectTimeout]);
    assert!(sim.elapsed() - begin >= Duration::from_secs(10));
}

/// The hash of a run of twenty connections with faults.
fn run(seed: u64) -> u64 {
    let sim = Sim::new(seed, Faults::rough());
    let mut server = sim.reactor().unwrap();
    let log = Log::new();
    listen(&mut server, address("127.0.0.1:80"), &log);
    struct Client(u8);
    impl StreamHandler for Client {
        fn on_open(&mut self, stream: &mut Stream<'_>) {
            let _ = stream.send(&vec![self.0; 100 * usize::from(self.0)]);
        }
        fn on_data(&mut self, stream: &mut Stream<'_>, _: Input<'_>) {
            stream.close();
        }
    }
    for number in 0..20 {
        let connector = Connector::tcp(address("127.0.0.1:80"));
        again(|| connector.connect(Client(number), &mut server));
    }
    let stop = |mut turn: Turn<'_>| turn.stop();
    server.after_with(Duration::from_secs(5), stop).unwrap();
    server.run().unwrap();
    sim.kernel().hash()
}

#[test]
fn a_seed_says_it_all() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "{seed}");
    }
    assert_ne!(run(1), run(2));
}
