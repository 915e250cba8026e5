//! Every way of sending has the same order, limit and errors, whatever the socket accepts.

use std::{
    cell::{Cell, RefCell},
    io::IoSlice,
    net::TcpListener,
    rc::Rc,
    time::Duration,
};

use windlass::{
    Reactor, Turn,
    stream::{Connector, Input, SharedBytes, Stream, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{Log, NOW, idle, noting, pair, panic_of, run_dry},
    script::{Peer, Script, both_families, fill, open},
    streams_ends::stuff,
};

const PLAIN: StreamOptions = StreamOptions::new();

/// Sends the input back.
type Answer = fn(&mut Stream<'_>, Input<'_>) -> Result<(), StreamWriteError>;

const ANSWERS: [Answer; 5] = [
    |stream, input| stream.reply(input, ..),
    |stream, input| stream.send(&input),
    |stream, input| send_in_pieces(stream, &input),
    |stream, input| stream.send_shared(&SharedBytes::new(&input)),
    |stream, input| stream.write_shared(&SharedBytes::new(&input)).map(drop),
];

fn send_in_pieces(stream: &mut Stream<'_>, bytes: &[u8]) -> Result<(), StreamWriteError> {
    let (one, two) = bytes.split_at(bytes.len() / 3);
    stream.send_vectored(&[IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)])
}

/// Short ones, ones that are shared and not copied, and ones that are written at once.
fn messages() -> impl Iterator<Item = Vec<u8>> {
    (1..=6_u8).map(|n| vec![n; [3, 5_000, 20_000][usize::from(n % 3)]])
}

/// Reads from the peer until it has so many bytes.
fn read(reactor: &mut Reactor, peer: &mut Peer, count: usize) -> Vec<u8> {
    let mut got = Vec::new();
    for _ in 0..10_000 {
        got.extend(peer.read_all());
        if got.len() >= count {
            return got;
        }
        reactor.run_once(Duration::from_millis(10)).unwrap();
    }
    panic!("{} of {count} bytes have come", got.len());
}

fn bytes_keep_their_order_in_every_mixture_of_ways(build: Build) {
    let pairs = ANSWERS.into_iter().flat_map(|one| ANSWERS.map(|two| [one, two]));
    for (at, answers) in pairs.enumerate() {
        for is_full in [false, true] {
            for (ours, mut peer) in both_families() {
                let mut reactor = build().build().unwrap();
                let calls = Cell::new(0);
                let script = Script::new(&Log::new()).on_data(move |stream, input| {
                    answers[calls.get() % 2](stream, input).unwrap();
                    calls.set(calls.get() + 1);
                });
                let key = open(&mut reactor, PLAIN, ours, script);
                let mut expected = Vec::new();
                if is_full {
                    let mut stream = reactor.stream(key).unwrap();
                    expected.resize(stuff(&mut stream), 7);
                    run_dry(&mut reactor);
                }
                for message in messages() {
                    peer.write(&message);
                    expected.extend(message);
                    if is_full {
                        run_dry(&mut reactor);
                    }
                }
                let got = read(&mut reactor, &mut peer, expected.len());
                assert!(got == expected, "pair {at}, full: {is_full}");
                assert_eq!(
                    (reactor.stream(key).unwrap().buffered(), reactor.stream_memory()),
                    (0, 0)
                );
            }
        }
    }
}

/// The socket accepts a part of a payload only if it was free before.
fn the_rest_of_a_payload_follows_when_the_socket_accepts_a_part(build: Build) {
    let bytes: Vec<u8> = (0..12_000_000_u32).map(|at| (at % 251) as u8).collect();
    for answer in ANSWERS {
        for (ours, mut peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let script = Script::new(&Log::new())
                .on_data(move |stream, input| answer(stream, input).unwrap());
            let key = open(&mut reactor, PLAIN, ours, script);
            let mut written = 0;
            while reactor.stream(key).unwrap().buffered() == 0 {
                assert!(written + 10_007 <= bytes.len(), "the socket accepts everything");
                written += peer.write_some(&bytes[written..][..10_007]);
                run_dry(&mut reactor);
            }
            assert!(read(&mut reactor, &mut peer, written) == bytes[..written]);
        }
    }
}

fn every_way_rejects_what_exceeds_the_limit_and_what_follows_the_end(build: Build) {
    for answer in ANSWERS {
        for (ours, mut peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let said = Rc::new(RefCell::new(Vec::new()));
            let noted = Rc::clone(&said);
            let script = Script::new(&Log::new()).on_data(move |stream, input| {
                let before = stream.buffered();
                let result = answer(stream, input);
                assert_eq!(stream.buffered(), before, "a rejected payload is not buffered in part");
                noted.borrow_mut().push(result);
            });
            let key = open(&mut reactor, PLAIN.output_max(50_000), ours, script);
            for len in [20_000, 1] {
                let mut stream = reactor.stream(key).unwrap();
                while stream.send(&vec![7; len]).is_ok() {}
            }
            let sent = reactor.stream(key).unwrap().buffered();
            assert_eq!(sent, 50_000);
            peer.write(b"?");
            run_dry(&mut reactor);
            reactor.stream(key).unwrap().finish();
            peer.write(b"!");
            run_dry(&mut reactor);
            assert_eq!(said.take(), [Err(StreamWriteError::Full), Err(StreamWriteError::Closed)]);
        }
    }
}

fn what_is_sent_before_the_connection_goes_out_in_order(build: Build) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connector = Connector::tcp(listener.local_addr().unwrap());
    let mut reactor = build().build().unwrap();
    let key = connector.connect(Script::new(&Log::new()), &mut reactor).unwrap();
    let mut stream = reactor.stream(key).unwrap();
    let mut expected = Vec::new();
    for (at, message) in messages().enumerate() {
        match at % 4 {
            0 => stream.send(&message).unwrap(),
            1 => send_in_pieces(&mut stream, &message).unwrap(),
            2 => stream.send_shared(&SharedBytes::new(&message)).unwrap(),
            _ => drop(stream.write_shared(&SharedBytes::new(&message)).unwrap()),
        }
        expected.extend(message);
        assert_eq!(stream.buffered(), expected.len(), "nothing goes out before it is connected");
    }
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let got = read(&mut reactor, &mut Peer::Tcp(accepted), expected.len());
    assert!(got == expected);
}

/// On a ring, output is queued. The failure of a queued send may become known after the last
/// handler of a turn has touched another stream, and before that one is written.
fn a_stream_whose_send_fails_late_is_written_to_later(build: Build) {
    for ends_by_panic in [true, false] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let [(full, full_peer), (other, other_peer)] = [pair(), pair()];
        let full = open(&mut reactor, PLAIN, full.into(), Script::new(&log));
        let other = open(&mut reactor, PLAIN, other.into(), Script::new(&log));
        let [mut full_peer, mut other_peer] = [Peer::Unix(full_peer), Peer::Unix(other_peer)];
        let polled = noting(&mut reactor, &idle(), &Log::new(), ());
        run_dry(&mut reactor);
        let filled = fill(&mut reactor, full);
        let send = move |mut turn: Turn<'_>| {
            turn.stream(full).unwrap().write_shared(&SharedBytes::new(b"first")).unwrap();
            turn.stream(other).unwrap().send(b"other").unwrap();
            assert!(!ends_by_panic, "bad");
        };
        reactor.defer(send).map_err(drop).unwrap();
        if ends_by_panic {
            // What is queued is submitted.
            assert_eq!(panic_of(|| reactor.run_once(NOW)), "bad");
        } else {
            // The ring submits what is queued after some calls, and a deletion looks at the result.
            (0..100).for_each(|_| _ = reactor.defer(|_: Turn<'_>| ()));
            let delete = move |mut turn: Turn<'_>| turn.delete(polled).unwrap();
            reactor.defer(delete).map_err(drop).unwrap();
        }
        run_dry(&mut reactor);
        assert_eq!(other_peer.read_all(), b"other");
        let got = read(&mut reactor, &mut full_peer, filled + 5);
        assert_eq!(got[filled..], *b"first");
        reactor.stream(full).unwrap().send(b"second").unwrap();
        run_dry(&mut reactor);
        assert_eq!(full_peer.read_all(), b"second", "ends by panic: {ends_by_panic}");
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_whose_send_fails_late_is_written_to_later,
    #[cfg_attr(miri, ignore = "sockets")]
    bytes_keep_their_order_in_every_mixture_of_ways,
    #[cfg_attr(miri, ignore = "sockets")]
    the_rest_of_a_payload_follows_when_the_socket_accepts_a_part,
    #[cfg_attr(miri, ignore = "sockets")]
    every_way_rejects_what_exceeds_the_limit_and_what_follows_the_end,
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_sent_before_the_connection_goes_out_in_order,
}
