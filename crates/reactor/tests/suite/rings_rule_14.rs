//! Rule 14 on a ring: a request that is queued reaches the file that it was meant for.

use std::{cell::RefCell, os::fd::AsRawFd, rc::Rc};

use windlass::stream::StreamOptions;

use crate::{
    bed::{Log, NOW, pair, panic_of, run_dry},
    rings::{ring, starving},
    script::{Script, both_families, open, tcp},
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
        let key = PLAIN
            .register(ours, Script::new(&Log::new()), &mut reactor)
            .map_err(|e| e.reason)
            .unwrap();
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
        keys.push(
            PLAIN
                .register(ours, Script::new(&Log::new()), &mut reactor)
                .map_err(|e| e.reason)
                .unwrap(),
        );
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

with_rings! {
    rule_14_a_receive_that_is_still_queued_steals_nothing_from_who_has_the_number_next,
    rule_14_a_receive_that_waits_for_a_buffer_steals_nothing_from_who_has_the_number_next,
    rule_14_an_answer_goes_to_who_asked_and_not_to_who_has_the_number_next,
    rule_14_an_answer_goes_out_before_the_socket_of_a_handler_that_panics_is_closed,
}
