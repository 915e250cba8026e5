//! Output that a socket has not accepted: where it goes when its stream, or the reactor, ends.

use std::{io::ErrorKind, time::Duration};

use windlass::stream::{DisconnectReason, SharedBytes, StreamOptions};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, pair},
    pattern,
    script::{Peer, Said, Script, both_families, open, quiet, tcp},
    streams_tls::open as open_tls,
    streams_tls_session::{CLOSE, DATA, contents, data},
};

const PLAIN: StreamOptions = StreamOptions::new();
const SECOND: Duration = Duration::from_secs(1);

fn a_released_stream_returns_what_its_socket_has_not_accepted(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let key = open(&mut reactor, PLAIN, ours, Script::new(&Log::new()));
        let bytes = pattern::bytes(0, 12 << 20);
        let mut stream = reactor.stream(key).unwrap();
        for (round, part) in bytes.chunks(1 << 20).enumerate() {
            if round % 2 == 0 {
                stream.send(part).unwrap();
            } else {
                stream.send_shared(&SharedBytes::new(part)).unwrap();
            }
        }
        assert!(stream.buffered() > 0);
        let released = stream.release().unwrap();
        assert!(!released.unsent.is_empty());
        drop(released.socket);
        let mut received = Vec::new();
        let last = loop {
            let (some, last) = peer.drain();
            received.extend(some);
            if last != Err(ErrorKind::WouldBlock) {
                break last;
            }
        };
        assert_eq!(last, Ok(0));
        assert!([received, released.unsent].concat() == bytes);
        assert_eq!(reactor.stream_memory(), 0);
    }
}

fn a_released_stream_without_output_returns_none(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let key = open(&mut reactor, PLAIN, ours, Script::new(&Log::new()));
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"gathered").unwrap();
        assert_eq!(stream.buffered(), 8);
        let released = stream.release().unwrap();
        assert!(released.unsent.is_empty());
        while peer.read_all() != b"gathered" {}
    }
}

/// Receives until the end of the connection.
fn end(peer: &mut Peer) -> (Vec<u8>, Result<usize, ErrorKind>) {
    let mut received = Vec::new();
    loop {
        let (bytes, last) = peer.drain();
        received.extend(bytes);
        if last != Err(ErrorKind::WouldBlock) {
            break (received, last);
        }
    }
}

/// What is gathered is written, and what the socket does not accept is not taken for complete.
fn a_reactor_that_ends_resets_streams_with_output(build: Build) {
    let mut reactor = build().build().unwrap();
    let ((short, mut of_short), (long, mut of_long)) = (tcp(), tcp());
    let short = open(&mut reactor, PLAIN, short, Script::new(&Log::new()));
    let long = open(&mut reactor, PLAIN, long, Script::new(&Log::new()));
    reactor.stream(short).unwrap().send(b"gathered").unwrap();
    reactor.stream(long).unwrap().send(&vec![7; 16 << 20]).unwrap();
    assert!(reactor.stream(long).unwrap().buffered() > 0);
    drop(reactor);
    assert_eq!(end(&mut of_short), (b"gathered".to_vec(), Ok(0)));
    assert_eq!(end(&mut of_long).1, Err(ErrorKind::ConnectionReset));
}

/// What is left of records, or of output that is not encrypted, is never taken for complete.
fn a_reactor_that_ends_closes_tls_and_resets_it_with_output(build: Build) {
    for is_closed in [false, true] {
        let mut reactor = build().build().unwrap();
        let (ours, mut peer) = tcp();
        let key = open_tls(&mut reactor, ours, &mut peer, Script::new(&Log::new()));
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"all of it").unwrap();
        if is_closed {
            stream.close();
        }
        drop(reactor);
        let (records, last) = end(&mut peer);
        assert_eq!((data(&records), last), (b"all of it".to_vec(), Ok(0)));
        let last = contents(&records).last().map(|(kind, _)| *kind);
        assert_eq!(last, Some(if is_closed { CLOSE } else { DATA }));
    }
    for (len, is_closed) in [(16 << 20, false), (16 << 20, true), (2000, false), (2000, true)] {
        let mut reactor = build().build().unwrap();
        let (ours, mut peer) = tcp();
        let key = open_tls(&mut reactor, ours, &mut peer, Script::new(&Log::new()));
        let mut stream = reactor.stream(key).unwrap();
        // So that a short output leaves records alone.
        while stream.buffered() == 0 {
            stream.send(&vec![7; len]).unwrap();
            stream.send_now();
        }
        if is_closed {
            stream.close();
        }
        drop(reactor);
        assert_eq!(end(&mut peer).1, Err(ErrorKind::ConnectionReset), "{len} {is_closed}");
    }
}

fn an_abort_that_the_reactor_did_not_come_to_is_a_reset(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN, ours, Script::new(&Log::new()));
    reactor.stream(key).unwrap().abort();
    drop(reactor);
    let mut last = Err(ErrorKind::WouldBlock);
    while last == Err(ErrorKind::WouldBlock) {
        last = peer.drain().1;
    }
    assert_eq!(last, Err(ErrorKind::ConnectionReset));
}

/// The peer reads less than the kernel waits for before it reports the socket as writable.
fn a_close_whose_time_restarts_waits_for_a_peer_that_goes_on_reading(build: Build) {
    for reads_all in [true, false] {
        let clock = HandClock::new();
        let mut reactor = build().clock(clock.clone()).build().unwrap();
        let log = Log::new();
        let (ours, peer) = pair();
        let mut peer = Peer::Unix(peer);
        let options = PLAIN.linger(SECOND).linger_restarts(true);
        let key = open(&mut reactor, options, ours.into(), Script::new(&log));
        let bytes = pattern::bytes(0, 1 << 20);
        let mut stream = reactor.stream(key).unwrap();
        stream.send(&bytes).unwrap();
        stream.close_after_output();
        quiet(&mut reactor);
        let (mut received, mut rounds) = (Vec::new(), 0);
        while let Ok(stream) = reactor.stream(key) {
            if !reads_all && stream.buffered() < bytes.len() / 2 {
                break;
            }
            // A few of the pieces in which the kernel has it.
            let mut buffer = vec![0; 1 << 17];
            let count = peer.try_read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
            clock.advance(SECOND + SECOND / 2);
            quiet(&mut reactor);
            rounds += 1;
        }
        if reads_all {
            received.extend(peer.read_all());
            assert!(rounds > 5 && received == bytes, "{rounds}: {}", received.len());
            assert_eq!(log.take()[1..], [Said::Close(DisconnectReason::Closed), Said::Dropped]);
            continue;
        }
        assert_eq!(log.take(), [Said::Open]);
        // The last progress was just now.
        clock.advance(SECOND / 2);
        quiet(&mut reactor);
        assert!(reactor.stream(key).is_ok());
        clock.advance(SECOND);
        quiet(&mut reactor);
        assert_eq!(log.take(), [Said::Close(DisconnectReason::WriteStall), Said::Dropped]);
    }
}

fn a_close_whose_time_restarts_still_waits_for_the_peers_end(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let options = PLAIN.linger(SECOND).linger_restarts(true);
    let key = open(&mut reactor, options, ours, Script::new(&log));
    reactor.stream(key).unwrap().send(b"x").unwrap();
    reactor.stream(key).unwrap().close();
    quiet(&mut reactor);
    clock.advance(SECOND - Duration::from_millis(100));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
    clock.advance(Duration::from_millis(200));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
    let mut last = peer.drain();
    while last.1.is_err() {
        reactor.run_once(NOW).unwrap();
        last = peer.drain();
    }
    assert_eq!(last.1, Ok(0));
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_released_stream_returns_what_its_socket_has_not_accepted,
    #[cfg_attr(miri, ignore = "sockets")]
    a_released_stream_without_output_returns_none,
    #[cfg_attr(miri, ignore = "sockets")]
    a_reactor_that_ends_resets_streams_with_output,
    a_reactor_that_ends_closes_tls_and_resets_it_with_output,
    #[cfg_attr(miri, ignore = "sockets")]
    an_abort_that_the_reactor_did_not_come_to_is_a_reset,
    #[cfg_attr(miri, ignore = "a megabyte")]
    a_close_whose_time_restarts_waits_for_a_peer_that_goes_on_reading,
    #[cfg_attr(miri, ignore = "sockets")]
    a_close_whose_time_restarts_still_waits_for_the_peers_end,
}
