//! Every way of sending has the same order, limit and errors, whatever the socket accepts.

use std::{
    cell::{Cell, RefCell},
    io::IoSlice,
    net::TcpListener,
    rc::Rc,
    time::Duration,
};

use windlass::{
    Reactor,
    stream::{Connector, Input, SharedBytes, Stream, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{Log, run_dry},
    script::{Peer, Script, both_families, open},
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
    let key =
        connector.connect(Script::new(&Log::new()), &mut reactor).map_err(|e| e.reason).unwrap();
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

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    bytes_keep_their_order_in_every_mixture_of_ways,
    #[cfg_attr(miri, ignore = "sockets")]
    the_rest_of_a_payload_follows_when_the_socket_accepts_a_part,
    #[cfg_attr(miri, ignore = "sockets")]
    every_way_rejects_what_exceeds_the_limit_and_what_follows_the_end,
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_sent_before_the_connection_goes_out_in_order,
}
