//! A server under a mixed load for minutes. At quiet points each figure of `/metrics` and of the
//! live view is what the clients have counted themselves.
//!
//! 1. *Drivers* echo messages of mixed sizes over many connections, and open and close some of
//!    them all the time, in every way.
//! 2. *Rooms* have a member that publishes and others that read.
//! 3. *Slow members* do not read before the end. A message to them is sent or dropped.
//! 4. All of them pause from time to time. Then the figures are compared.

use windlass_testkit::exposition;

mod client;
#[path = "../suite/harness.rs"]
mod harness;
mod operation;
mod quiet;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use client::{BINARY, Client, Ending, TEXT, Tally};
use harness::{Server, pattern, windlass};
use quiet::{Pauses, Site, Watcher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DRIVERS: usize = 4;
const ROOMS: usize = 3;
const MEMBERS: usize = 8;
const SLOW: usize = 5;
/// Length of a message to the slow members.
const SLOW_LEN: usize = 40_000;
const SIZES: [usize; 10] = [0, 1, 20, 125, 126, 1000, 4096, 65_535, 65_536, 200_000];

/// How long, how much, and how hard.
#[derive(Clone, Copy)]
struct Plan {
    duration: Duration,
    connections: usize,
    between_checks: Duration,
    /// Time between two messages of a thread.
    pause: Duration,
}

#[test]
fn all_figures_agree_with_the_clients() {
    soak(Plan {
        duration: Duration::from_secs(4),
        connections: 200,
        between_checks: Duration::from_secs(2),
        pause: Duration::ZERO,
    });
}

#[test]
#[ignore = "it takes a minute; stage `soak` of `cargo xtask ci` runs it beside other stages"]
fn soak_of_a_minute() {
    soak(Plan {
        duration: Duration::from_secs(60),
        connections: 2000,
        between_checks: Duration::from_secs(10),
        // Other stages need the processors.
        pause: Duration::from_millis(5),
    });
}

#[test]
#[ignore = "it takes ten minutes"]
fn soak_of_ten_minutes() {
    soak(Plan {
        duration: Duration::from_secs(600),
        connections: 5000,
        between_checks: Duration::from_secs(20),
        pause: Duration::ZERO,
    });
}

#[test]
fn reloads_and_hand_overs_lose_nothing() {
    operation::soak(
        "short",
        operation::Plan {
            duration: Duration::from_secs(6),
            connections: 80,
            between_reloads: Duration::from_secs(1),
            // Nobody may come near the rates.
            pause: Duration::from_millis(1),
        },
    );
}

#[test]
#[ignore = "it takes a minute; stage `soak` of `cargo xtask ci` runs it beside `soak_of_a_minute`"]
fn operation_of_a_minute() {
    operation::soak(
        "minute",
        operation::Plan {
            duration: Duration::from_secs(60),
            connections: 500,
            between_reloads: Duration::from_secs(10),
            // Other stages need the processors.
            pause: Duration::from_millis(10),
        },
    );
}

#[test]
#[ignore = "it takes ten minutes"]
fn operation_of_ten_minutes() {
    operation::soak(
        "long",
        operation::Plan {
            duration: Duration::from_secs(600),
            connections: 5000,
            between_reloads: Duration::from_secs(10),
            pause: Duration::from_millis(1),
        },
    );
}

/// Lets this process and its servers have as many descriptors as they may.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("up to the hard limit");
}

fn soak(plan: Plan) {
    raise_limit();
    let arguments = "serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --workers 3 --drain-timeout 0 \
                     --deflate off --ping-interval 0 --idle-timeout 0 --write-timeout 0 \
                     --buffer 600000 --message-max 500000 --log-level info";
    let server = Server::of_several(windlass(&arguments.split(' ').collect::<Vec<_>>()), 2);
    let site = Site::new(&server);
    let watcher = Watcher::start(server.address);
    let pauses = Arc::new(Pauses::new(DRIVERS + 2));
    let slow = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..DRIVERS + 2)
        .map(|index| {
            let (pauses, slow, address) = (Arc::clone(&pauses), Arc::clone(&slow), server.address);
            thread::spawn(move || match index {
                DRIVERS => rooms(address, plan, &pauses),
                index if index > DRIVERS => slow_members(address, plan, &pauses, &slow),
                index => driver(address, plan, &pauses, index),
            })
        })
        .collect();
    let begin = Instant::now();
    let mut checks = 0;
    while begin.elapsed() < plan.duration {
        // sleep: the time between two checks is part of the plan.
        thread::sleep(plan.between_checks);
        let tally = pauses.pause();
        site.check(&tally, &watcher, None);
        checks += 1;
        pauses.resume();
    }
    pauses.stop();
    let mut tally = Tally::default();
    for thread in threads {
        tally.add(&thread.join().expect("no client panics"));
    }
    // The slow members read what waits for them, and everybody leaves.
    let slow = std::mem::take(&mut *slow.lock().expect("no thread panicked"));
    site.drain_slow(slow, &mut tally);
    site.check(&tally, &watcher, Some("the end"));
    println!("{checks} checks in {:?}: {tally:?}", begin.elapsed());
    watcher.end();
    server.stop_cleanly();
}

/// A small generator, so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn driver(server: SocketAddr, plan: Plan, pauses: &Pauses, index: usize) -> Tally {
    let mut tally = Tally::default();
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (index as u64 + 1));
    let open = |tally: &mut Tally| Client::open(server, "/echo", tally);
    let mut clients: Vec<_> = (0..plan.connections / DRIVERS).map(|_| open(&mut tally)).collect();
    let bytes = pattern(index as u64, 200_000);
    let text = "ü".repeat(100_000);
    while pauses.goes_on(&tally) {
        let at = random.below(clients.len());
        // Long messages are rare, as they are in practice.
        let most = if random.below(20) == 0 { SIZES.len() } else { 6 };
        let len = SIZES[random.below(most)];
        let client = &mut clients[at];
        let (opcode, payload) = match random.below(2) {
            0 => (TEXT, &text.as_bytes()[..len / 2 * 2]),
            _ => (BINARY, &bytes[..len]),
        };
        client.send(opcode, payload, &mut tally);
        assert!(client.receive(&mut tally) == (opcode, payload.to_vec()), "{len} bytes");
        let ending = match random.below(60) {
            0 => Ending::Code(1000),
            1 => Ending::NoCode,
            2 => Ending::Code(3456),
            3 => Ending::Lost,
            4 => {
                clients[at].ping(&mut tally);
                continue;
            }
            _ => {
                // sleep: it limits the load.
                thread::sleep(plan.pause);
                continue;
            }
        };
        let new = open(&mut tally);
        std::mem::replace(&mut clients[at], new).end(ending, &mut tally);
    }
    clients.into_iter().for_each(|client| client.end(Ending::Code(1000), &mut tally));
    tally
}

fn rooms(server: SocketAddr, plan: Plan, pauses: &Pauses) -> Tally {
    let mut tally = Tally::default();
    let mut rooms: Vec<Vec<Client>> = (0..ROOMS)
        .map(|room| {
            let path = format!("/room/soak-{room}");
            (0..MEMBERS).map(|_| Client::open(server, &path, &mut tally)).collect()
        })
        .collect();
    let mut random = Random(7);
    let bytes = pattern(8, 70_000);
    while pauses.goes_on(&tally) {
        let room = random.below(ROOMS);
        let members = &mut rooms[room];
        let payload = &bytes[..SIZES[random.below(7)]];
        let from = random.below(MEMBERS);
        members[from].send(BINARY, payload, &mut tally);
        for (at, member) in members.iter_mut().enumerate() {
            if at != from {
                assert_eq!(member.receive(&mut tally).1.len(), payload.len());
            }
        }
        // sleep: it limits the load.
        thread::sleep(plan.pause);
    }
    for client in rooms.into_iter().flatten() {
        client.end(Ending::Code(1000), &mut tally);
    }
    tally
}

/// Publishes to members that do not read. They stay in `slow`.
fn slow_members(
    server: SocketAddr,
    plan: Plan,
    pauses: &Pauses,
    slow: &Mutex<Vec<Client>>,
) -> Tally {
    let mut tally = Tally::default();
    let mut publisher = Client::open(server, "/room/slow", &mut tally);
    let members = (0..SLOW).map(|_| Client::open(server, "/room/slow", &mut tally)).collect();
    *slow.lock().expect("no thread panicked") = members;
    let payload = pattern(3, SLOW_LEN);
    while pauses.goes_on(&tally) {
        publisher.send(BINARY, &payload, &mut tally);
        tally.slow_published += 1;
        publisher.ping(&mut tally);
        // sleep: a few dozens of messages a second are enough to fill the buffers.
        thread::sleep(plan.pause.max(Duration::from_millis(20)));
    }
    publisher.end(Ending::Code(1000), &mut tally);
    tally
}
