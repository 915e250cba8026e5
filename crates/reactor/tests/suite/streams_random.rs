//! Random programs of several streams that send to, pause and end one another. Checks the
//! properties that hold for every stream.

use std::{
    cell::RefCell,
    io::ErrorKind,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    Key, Reactor,
    stream::{DisconnectReason, SharedBytes, Stream, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::Log,
    pattern::bytes,
    script::{Peer, Said, Script, both_families, quiet, turn},
};

const SEEDS: u64 = 150;
const STEPS: u32 = 60;

/// Reproducible pseudo-random numbers (xorshift64*, Vigna 2016).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

struct World {
    dice: Dice,
    keys: Vec<Option<Key>>,
    /// The number of bytes that each stream has accepted for output.
    taken: Vec<usize>,
}

/// Performs an action on a stream.
fn act(world: &mut World, at: usize, stream: &mut Stream<'_>) {
    match world.dice.roll(24) {
        0 => stream.close(),
        1 => stream.abort(),
        2 => stream.finish(),
        3..=5 => stream.pause(),
        6..=9 => stream.resume(),
        10 => {
            let high = usize::try_from(world.dice.roll(100_000)).unwrap();
            stream.set_watermarks(high / 2, high);
        }
        sort => {
            let longest = if sort > 20 { 300_000 } else { 3_000 };
            let count = usize::try_from(world.dice.roll(longest)).unwrap();
            let piece = bytes(world.taken[at], count);
            let sent = match sort % 3 {
                0 => stream.send(&piece),
                1 => stream.send_shared(&SharedBytes::new(&piece)),
                _ => stream
                    .write_shared(&SharedBytes::new(&piece))
                    .map(|waiting| assert_eq!(waiting, stream.buffered())),
            };
            match sent {
                Ok(()) => world.taken[at] += count,
                Err(StreamWriteError::Full | StreamWriteError::Closed) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

/// Performs an action on any stream, from a callback of this one.
fn meddle(world: &RefCell<World>, stream: &mut Stream<'_>) {
    let world = &mut *world.borrow_mut();
    let at = usize::try_from(world.dice.roll(world.keys.len() as u64)).unwrap();
    let Some(key) = world.keys[at] else { return };
    if let Ok(mut other) = stream.turn().stream(key) {
        act(world, at, &mut other);
    }
}

struct End {
    peer: Option<Peer>,
    log: Log<Said>,
    /// The bytes that the peer has sent and received.
    sent: usize,
    received: usize,
    last: Result<usize, ErrorKind>,
}

impl End {
    /// The peer writes, reads, or ends.
    fn act(&mut self, dice: &mut Dice) {
        let Some(peer) = &mut self.peer else { return };
        match dice.roll(30) {
            0 => peer.finish_quietly(),
            1 => drop(self.peer.take()),
            2..=14 => {
                let count = usize::try_from(dice.roll(5_000)).unwrap();
                self.sent += peer.write_some(&bytes(self.sent, count));
            }
            _ => self.read(),
        }
    }

    fn read(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        let (got, last) = peer.drain();
        assert!(got == bytes(self.received, got.len()), "what is sent arrives in order");
        self.received += got.len();
        self.last = last;
    }
}

/// Checks the properties that hold for the callbacks of any handler.
fn check(said: &[Said], end: &End, taken: usize) {
    let mut got = Vec::new();
    let (mut is_full, mut has_ended) = (false, false);
    for (place, one) in said.iter().enumerate() {
        match one {
            Said::Open => assert_eq!(place, 0),
            Said::Data(bytes) => {
                assert!(!has_ended && !bytes.is_empty());
                got.extend_from_slice(bytes);
            }
            Said::End => assert!(!std::mem::replace(&mut has_ended, true)),
            Said::Full => assert!(!std::mem::replace(&mut is_full, true)),
            Said::Drained => assert!(std::mem::replace(&mut is_full, false)),
            Said::Close(_) => assert_eq!(place + 2, said.len(), "last but for the destructor"),
            Said::Dropped => assert_eq!(place + 1, said.len()),
            Said::Timeout(_) => panic!("no timeout was set"),
            Said::Notify => panic!("nobody has notified it"),
        }
    }
    assert!(
        got.len() <= end.sent && got == bytes(0, got.len()),
        "what the peer sends is received in order"
    );
    assert!(end.received <= taken);
    let is_closed = matches!(said[said.len() - 2], Said::Close(DisconnectReason::Closed));
    if is_closed && end.last == Ok(0) {
        assert_eq!(end.received, taken, "an orderly end comes after all of the output");
    }
}

pub(crate) fn program(build: Build, seed: u64) {
    let mut reactor = build().build().unwrap();
    let mut ends = Vec::new();
    let world = Rc::new(RefCell::new(World {
        dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        keys: Vec::new(),
        taken: Vec::new(),
    }));
    let options = StreamOptions::new().watermarks(1_000, 30_000).output_max(1 << 20);
    let depth = Rc::default();
    for (socket, peer) in both_families().into_iter().chain(both_families()) {
        let log = Log::new();
        let of = || world.clone();
        let (data, open, end, full, drained) = (of(), of(), of(), of(), of());
        let script = Script::nested(&log, &depth)
            .on_open(move |stream| meddle(&open, stream))
            .on_data(move |stream, _| meddle(&data, stream))
            .on_end(move |stream| meddle(&end, stream))
            .on_full(move |stream| meddle(&full, stream))
            .on_drained(move |stream| meddle(&drained, stream));
        let key = options.register(socket, script, &mut reactor).unwrap();
        world.borrow_mut().keys.push(Some(key));
        world.borrow_mut().taken.push(0);
        ends.push(End { peer: Some(peer), log, sent: 0, received: 0, last: Ok(1) });
    }
    for _ in 0..STEPS {
        step(&mut reactor, &world, &mut ends);
    }
    finish(&mut reactor, &world, &mut ends);
    assert_eq!(reactor.stats().subscribers, 0, "seed {seed}");
    for (end, taken) in ends.iter().zip(&world.borrow().taken) {
        check(&end.log.take(), end, *taken);
    }
}

fn step(reactor: &mut Reactor, world: &RefCell<World>, ends: &mut [End]) {
    let at = usize::try_from(world.borrow_mut().dice.roll(ends.len() as u64)).unwrap();
    if world.borrow_mut().dice.roll(6) == 0 {
        let world = &mut *world.borrow_mut();
        if let Some(Ok(mut stream)) = world.keys[at].map(|key| reactor.stream(key)) {
            act(world, at, &mut stream);
        }
    }
    ends[at].act(&mut world.borrow_mut().dice);
    turn(reactor);
}

/// Closes the open streams, lets the peers read everything, and then ends the peers.
fn finish(reactor: &mut Reactor, world: &RefCell<World>, ends: &mut [End]) {
    for key in world.borrow().keys.iter().flatten() {
        if let Ok(mut stream) = reactor.stream(*key) {
            stream.close();
        }
    }
    // Each round moves one socket buffer of the output, which is bounded. But TCP decides when it
    // sends.
    let begun = Instant::now();
    let is_late = || begun.elapsed() > Duration::from_secs(30);
    while ends
        .iter()
        .any(|end| end.peer.is_some() && matches!(end.last, Ok(1) | Err(ErrorKind::WouldBlock)))
    {
        assert!(!is_late(), "a closed stream does not end");
        quiet(reactor);
        ends.iter_mut().for_each(End::read);
        reactor.run_once(Duration::from_millis(1)).unwrap();
    }
    ends.iter_mut().for_each(|end| end.peer = None);
    while reactor.stats().subscribers > 0 && !is_late() {
        quiet(reactor);
        reactor.run_once(Duration::from_millis(1)).unwrap();
    }
}

fn random_programs_keep_the_order_of_calls_and_bytes(build: Build) {
    for seed in 0..SEEDS {
        program(build, seed);
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    random_programs_keep_the_order_of_calls_and_bytes,
}
