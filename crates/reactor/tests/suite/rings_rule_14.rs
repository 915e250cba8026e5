//! Rule 14 on a ring: a request that is queued reaches the file that it was meant for.

use std::{
    cell::RefCell,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use windlass::stream::{Stream, StreamOptions};

use crate::{
    bed::{Log, NOW, pair, panic_of, run_dry},
    rings::{ring, starving},
    script::{Peer, Script, both_families, fill, open, tcp, until},
    streams_tls,
    streams_tls_session::{CLOSE, DATA, record},
};

const PLAIN: StreamOptions = StreamOptions::new();

/// Rule 14: the number of a closed stream may be reused within the same turn.
fn rule_14_an_answer_goes_to_who_asked_and_not_to_who_has_the_number_next() {
    let mut met = 0;
    for (ours, mut peer) in (0..20).flat_map(|_| both_families()) {
        let mut reactor = ring().build().unwrap();
        let log = Log::new();
        let number = ours.as_raw_fd();
        let taken = Rc::new(RefCell::new(Vec::new()));
        let script = Script::new(&log).on_data(|stream, input| {
            stream.reply(input, ..).unwrap();
            stream.abort();
        });
        open(&mut reactor, PLAIN, ours, script);
        let (others, mut other) = tcp();
        let pairs = taken.clone();
        open(
            &mut reactor,
            PLAIN,
            others,
            Script::new(&log).on_data(move |_, _| pairs.borrow_mut().push(pair())),
        );
        // Both are in one batch. The first is closed before the second's handler is called.
        peer.write(b"answer");
        other.write(b"?");
        reactor.run_once(None).unwrap();
        run_dry(&mut reactor);
        assert_eq!(peer.read_all(), b"answer");
        let (a, b) = taken.borrow_mut().pop().unwrap();
        met += u32::from(a.as_raw_fd() == number || b.as_raw_fd() == number);
        for end in [&a, &b] {
            end.set_nonblocking(true).unwrap();
            let error = std::io::Read::read(&mut &*end, &mut [0; 16]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "nobody has written to it");
        }
    }
    // Other tests of this process may take the number first.
    assert!(met > 0, "the number has come back");
}

/// Rule 14 with a kernel that takes queued requests late.
fn rule_14_a_receive_that_is_still_queued_steals_nothing_from_who_has_the_number_next() {
    let mut met = 0;
    for stalls in 1..20 {
        let mut reactor = ring().ring_stalls(stalls).build().unwrap();
        let (ours, _peer) = tcp();
        let number = ours.as_raw_fd();
        let key = PLAIN.register(ours, Script::new(&Log::new()), &mut reactor).unwrap();
        reactor.stream(key).unwrap().abort();
        while reactor.stats().subscribers > 0 {
            reactor.run_once(NOW).unwrap();
        }
        let (mut a, mut b) = pair();
        std::io::Write::write_all(&mut a, b"to b").unwrap();
        std::io::Write::write_all(&mut b, b"to a").unwrap();
        (0..30).for_each(|_| _ = reactor.run_once(NOW).unwrap());
        for (end, expected) in [(&mut a, b"to a"), (&mut b, b"to b")] {
            met += u32::from(end.as_raw_fd() == number);
            end.set_nonblocking(true).unwrap();
            let mut got = [0; 4];
            assert_eq!(
                std::io::Read::read(end, &mut got).map_err(|e| e.kind()),
                Ok(4),
                "after {stalls} calls that took nothing"
            );
            assert_eq!(&got, expected);
        }
    }
    assert!(met > 0, "the number has come back");
}

fn rule_14_a_receive_that_waits_for_a_buffer_steals_nothing_from_who_has_the_number_next() {
    const STREAMS: usize = 30;
    let mut reactor = starving().build().unwrap();
    let (mut keys, mut numbers, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let (ours, mut peer) = tcp();
        numbers.push(ours.as_raw_fd());
        keys.push(PLAIN.register(ours, Script::new(&Log::new()), &mut reactor).unwrap());
        peer.write(&[1; 700]);
        peers.push(peer);
    }
    // With two buffers, most receives must wait for one.
    reactor.run_once(None).unwrap();
    keys.into_iter().for_each(|key| reactor.stream(key).unwrap().abort());
    while reactor.stats().subscribers > 0 {
        reactor.run_once(NOW).unwrap();
    }
    let mut pairs: Vec<_> = (0..STREAMS).map(|_| pair()).collect();
    for (a, b) in &mut pairs {
        std::io::Write::write_all(a, b"to b").unwrap();
        std::io::Write::write_all(b, b"to a").unwrap();
    }
    (0..30).for_each(|_| _ = reactor.run_once(NOW).unwrap());
    let mut met = 0;
    for (end, expected) in pairs.iter_mut().flat_map(|(a, b)| [(a, b"to a"), (b, b"to b")]) {
        met += u32::from(numbers.contains(&end.as_raw_fd()));
        end.set_nonblocking(true).unwrap();
        let mut got = [0; 4];
        assert_eq!(std::io::Read::read(end, &mut got).map_err(|e| e.kind()), Ok(4));
        assert_eq!(&got, expected);
    }
    assert!(met > 0, "numbers have come back");
}

fn rule_14_an_answer_goes_out_before_the_socket_of_a_handler_that_panics_is_closed() {
    for (ours, mut peer) in both_families() {
        let mut reactor = ring().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_data(|stream, input| {
            stream.reply(input, ..).unwrap();
            panic!("bad");
        });
        open(&mut reactor, PLAIN, ours, script);
        peer.write(b"answer");
        assert_eq!(panic_of(|| reactor.run_once(None)), "bad");
        assert_eq!(peer.read_all(), b"answer");
    }
}

type End = fn(&mut Stream<'_>);

/// When the peer sends what ends the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// Right behind what is answered: both have completed when the answer is submitted.
    AtOnce,
    /// Before the answer is submitted.
    InTheHandler,
    AfterTheTurn,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    has_tls: bool,
    /// It is the peer's end.
    is_end: bool,
    when: When,
}

impl Last {
    fn message(self, content: &[u8]) -> Vec<u8> {
        if self.has_tls { record(DATA, content) } else { content.to_vec() }
    }

    fn send(self, peer: &mut Peer) {
        match (self.is_end, self.has_tls) {
            // Longer than the buffers of the ring.
            (false, _) => peer.write(&self.message(&[b'y'; 30]).repeat(20)),
            (true, false) => peer.finish(),
            (true, true) => peer.write(&record(CLOSE, b"")),
        }
    }
}

/// A send that has failed is reported, but what was received before may be reported first.
fn rule_14_an_answer_that_a_full_socket_has_not_accepted_goes_out_before_the_end() {
    let ends: [End; 2] = [|stream| stream.close(), |stream| stream.finish()];
    for when in [When::AtOnce, When::InTheHandler, When::AfterTheTurn] {
        for (has_tls, is_end) in [(false, false), (false, true), (true, false), (true, true)] {
            for end in ends {
                for (ours, peer) in both_families() {
                    an_answer_and_then_the_end(Last { has_tls, is_end, when }, end, ours, peer);
                }
            }
        }
    }
}

fn an_answer_and_then_the_end(last: Last, end: End, ours: OwnedFd, peer: Peer) {
    let mut reactor = starving().events_per_turn(1).build().unwrap();
    let log = Log::new();
    let (peer, answer) = (Rc::new(RefCell::new(peer)), Rc::new(RefCell::new(Vec::new())));
    let (theirs, answered) = (Rc::clone(&peer), Rc::clone(&answer));
    let script = Script::new(&log).on_end(end).on_data(move |stream, input| {
        if !answered.borrow().is_empty() {
            return end(stream);
        }
        *answered.borrow_mut() = last.message(&input);
        stream.reply(input, ..).unwrap();
        if last.when == When::InTheHandler {
            last.send(&mut theirs.borrow_mut());
        }
    });
    let key = if last.has_tls {
        streams_tls::open(&mut reactor, ours, &mut peer.borrow_mut(), script)
    } else {
        open(&mut reactor, PLAIN, ours, script)
    };
    run_dry(&mut reactor);
    let filled = fill(&mut reactor, key);
    log.take();
    peer.borrow_mut().write(&last.message(&[b'x'; 100]));
    if last.when == When::AtOnce {
        last.send(&mut peer.borrow_mut());
    }
    until(&mut reactor, &log, 1);
    if last.when == When::AfterTheTurn {
        last.send(&mut peer.borrow_mut());
    }
    run_dry(&mut reactor);
    let mut received = Vec::new();
    for round in 0.. {
        let (bytes, outcome) = peer.borrow_mut().drain();
        received.extend(bytes);
        if outcome.is_ok() {
            break;
        }
        assert!(round < 10_000, "{last:?}: no end after {} bytes", received.len());
        reactor.run_once(Duration::from_millis(1)).unwrap();
    }
    let close_notify = if last.has_tls { record(CLOSE, b"") } else { vec![] };
    let (behind, answer) = (received.split_off(filled), answer.borrow());
    assert_eq!(behind.len(), answer.len() + close_notify.len(), "{last:?}");
    assert!(behind == [&answer[..], &close_notify].concat(), "{last:?}");
}

with_rings! {
    rule_14_a_receive_that_is_still_queued_steals_nothing_from_who_has_the_number_next,
    rule_14_a_receive_that_waits_for_a_buffer_steals_nothing_from_who_has_the_number_next,
    rule_14_an_answer_goes_to_who_asked_and_not_to_who_has_the_number_next,
    rule_14_an_answer_goes_out_before_the_socket_of_a_handler_that_panics_is_closed,
    rule_14_an_answer_that_a_full_socket_has_not_accepted_goes_out_before_the_end,
}
