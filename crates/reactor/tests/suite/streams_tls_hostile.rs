//! TLS sessions, handlers and peers that do what they should not.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use windlass::{
    Key, Reactor,
    stream::{DisconnectReason, Stream, StreamOptions, StreamWriteError, TlsFailure, TlsPhase},
};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, panic_of, run_dry},
    script::{Said, Script, both_families, quiet, tcp, until},
    streams_tls::{open, plaintext_of, register},
    streams_tls_session::{CLOSE, DATA, HELLO, Lie, Sessions, contents, data, record},
};

const PLAIN: StreamOptions = StreamOptions::new();

fn an_end_that_came_with_data_waits_while_reading_is_paused(build: Build) {
    for ends in [false, true] {
        for (ours, mut peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let log = Log::new();
            let script = Script::new(&log).on_data(|stream, _| stream.pause());
            let key = open(&mut reactor, ours, &mut peer, script);
            peer.write(&[record(DATA, b"x"), record(CLOSE, b""), record(DATA, b"y")].concat());
            if ends {
                peer.finish();
            }
            quiet(&mut reactor);
            assert_eq!(log.take(), [Said::Open, Said::data(b"x")]);
            reactor.stream(key).unwrap().resume();
            quiet(&mut reactor);
            assert_eq!(log.take()[0], Said::End);
            assert_eq!(contents(&peer.read_all()), [(CLOSE, vec![])]);
        }
    }
}

/// A piece that was kept, behind a partial record, is longer than the buffer for both.
fn a_pause_in_on_data_holds_back_the_rest_of_a_long_piece(build: Build) {
    let mut reactor = build().build().unwrap();
    let [_, (ours, mut peer)] = both_families();
    let log = Log::new();
    let script = Script::new(&log).on_data(|stream, _| stream.pause());
    let key = open(&mut reactor, ours, &mut peer, script);
    let records: Vec<u8> = (0..9).flat_map(|i| record(DATA, &[i; 10_000])).collect();
    let (begin, rest) = records.split_at(9_000);
    peer.write(begin);
    run_dry(&mut reactor);
    reactor.stream(key).unwrap().pause();
    peer.write(rest);
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
    let mut all = Vec::new();
    while all.len() < 90_000 {
        reactor.stream(key).unwrap().resume();
        quiet(&mut reactor);
        let said = log.take();
        assert_eq!(said.len(), 1, "each piece of data pauses the stream");
        all.extend(plaintext_of(&said));
    }
    assert!(all == data(&records));
}

fn a_close_before_the_first_turn_ends_the_stream_at_once(build: Build) {
    for (ours, mut peer) in both_families() {
        let clock = HandClock::new();
        let mut reactor = build().clock(clock).build().unwrap();
        let log = Log::new();
        let key = register(&mut reactor, PLAIN, ours, Sessions::Server, Script::new(&log));
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"never encrypted").unwrap();
        stream.close();
        quiet(&mut reactor);
        assert_eq!(log.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
        assert_eq!(peer.drain(), (vec![], Ok(0)));
    }
}

fn a_write_stall_timeout_leaves_the_time_of_the_handshake(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let options = PLAIN.tls_handshake_timeout(Duration::from_secs(3));
    let (ours, _peer) = tcp();
    let log = Log::new();
    let key = register(&mut reactor, options, ours, Sessions::Server, Script::new(&log));
    quiet(&mut reactor);
    for _ in 0..2 {
        clock.advance(Duration::from_secs(1));
        reactor.stream(key).unwrap().set_write_stall_timeout(Some(Duration::from_secs(9)));
        quiet(&mut reactor);
    }
    assert_eq!(log.take(), []);
    clock.advance(Duration::from_millis(1100));
    quiet(&mut reactor);
    let reason = DisconnectReason::Tls(TlsFailure::HandshakeTimeout);
    assert_eq!(log.take(), [Said::Close(reason), Said::Dropped]);
}

/// The end of a turn admits the next handshakes. A panic keeps it from that.
fn handshakes_that_wait_go_on_after_a_panic(build: Build) {
    let mut reactor = build().build().unwrap();
    let opened = Rc::new(Cell::new(0));
    let mut peers = Vec::new();
    for _ in 0..5 {
        let (ours, peer) = tcp();
        let opened = Rc::clone(&opened);
        let script = Script::new(&Log::new()).on_open(move |_| opened.set(opened.get() + 1));
        register(&mut reactor, PLAIN, ours, Sessions::Server, script);
        peers.push(peer);
    }
    let (ours, mut last) = tcp();
    let script = Script::new(&Log::new()).on_data(|_, _| panic!("the last one of the turn"));
    PLAIN.register(ours, script, &mut reactor).unwrap();
    run_dry(&mut reactor);
    for peer in &mut peers {
        peer.write(&record(HELLO, b""));
    }
    last.write(b"x");
    let panic = panic_of(|| {
        loop {
            reactor.run_once(NOW).unwrap();
        }
    });
    assert_eq!(panic, "the last one of the turn");
    let begin = Instant::now();
    while opened.get() < 5 {
        reactor.run_once(Duration::from_secs(9)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(8), "a turn slept beside handshakes");
    }
}

/// A stream went back to the front of the queue, and is released before the next one goes back.
fn a_queue_of_handshakes_may_become_shorter_within_a_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let mut streams: Vec<_> = (0..4)
        .map(|_| {
            let ((ours, peer), log) = (tcp(), Log::new());
            let script = Script::new(&log);
            (register(&mut reactor, PLAIN, ours, Sessions::Slow, script), peer, log)
        })
        .collect();
    let [(_, late, _), (_, early, early_log), (one, first, _), (other, second, log)] =
        &mut streams[..]
    else {
        panic!("there are four")
    };
    let (one, other) = (*one, *other);
    let (ours, mut peer) = tcp();
    let script = Script::new(&Log::new()).on_data(move |stream, _| {
        stream.turn().stream(one).unwrap().release().unwrap();
    });
    let releases = PLAIN.register(ours, script, &mut reactor).unwrap();
    reactor.stream(releases).unwrap().pause();
    quiet(&mut reactor);
    // The first one uses the turn's time. The others get their places, and are paused.
    for peer in [early, first, second] {
        peer.write(&record(HELLO, b""));
    }
    until(&mut reactor, early_log, 1);
    for key in [one, other] {
        reactor.stream(key).unwrap().pause();
    }
    quiet(&mut reactor);
    // In the next turn another one uses the time.
    late.write(&record(HELLO, b""));
    peer.write(b"x");
    for key in [one, releases, other] {
        reactor.stream(key).unwrap().resume();
    }
    quiet(&mut reactor);
    assert!(reactor.stream(one).is_err());
    assert_eq!(log.take(), [Said::Open]);
}

/// Output of 16 KiB is encrypted by the call that sends it, here outside of the stream's frame.
fn a_session_that_panics_in_a_call_loses_its_stream(build: Build) {
    for is_long in [true, false] {
        let mut reactor = build().build().unwrap();
        let (ours, mut peer) = tcp();
        let log = Log::new();
        let key = register(&mut reactor, PLAIN, ours, Sessions::Panics, Script::new(&log));
        peer.write(&record(HELLO, b""));
        quiet(&mut reactor);
        let bytes = if is_long { vec![0; 20_000] } else { vec![0; 10] };
        let panic = panic_of(|| {
            reactor.stream(key).unwrap().send(&bytes).unwrap();
            reactor.run_once(NOW).unwrap();
        });
        assert_eq!(panic, "the session panics");
        // It is reset by the next turn, which does not wait for the peer.
        reactor.run_once(Duration::from_secs(2)).unwrap();
        quiet(&mut reactor);
        let reason = DisconnectReason::Tls(TlsFailure::Internal);
        assert_eq!(log.take(), [Said::Open, Said::Close(reason), Said::Dropped], "{is_long}");
        assert_eq!(reactor.stats().subscribers, 0);
    }
}

/// The records of the handshake wait in the output, which has room for less.
fn output_in_on_open_has_room_behind_the_handshake(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let script = Script::new(&log).on_open(|stream| {
        assert!(stream.buffered() > 3);
        assert_eq!(stream.send_some(b"hello"), Ok(3));
    });
    register(&mut reactor, PLAIN.output_max(3), ours, Sessions::Server, script);
    peer.write(&record(HELLO, b""));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
    assert_eq!(data(&peer.read_all()), b"hel");
}

fn a_session_that_lies_is_ended(build: Build) {
    let failed = |failure| Said::Close(DisconnectReason::Tls(failure));
    for (lie, failure) in [
        (Lie::Consumed, TlsFailure::Internal),
        (Lie::Plaintext, TlsFailure::Internal),
        (Lie::EarlyPlaintext, TlsFailure::Internal),
        (Lie::Missing, TlsFailure::Internal),
        (Lie::TakesNothing, TlsFailure::Internal),
        (Lie::FailsToEncrypt, TlsFailure::KeyExhausted),
    ] {
        for (ours, mut peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let log = Log::new();
            let script = Script::echo(&log).on_open(|stream| stream.send(b"hello").unwrap());
            register(&mut reactor, PLAIN, ours, Sessions::Lies(lie), script);
            let mut most = 0;
            for _ in 0..60 {
                peer.write_some(&record(DATA, &[1; 1000]));
                quiet(&mut reactor);
                most = most.max(reactor.stream_memory());
            }
            peer.finish_quietly();
            quiet(&mut reactor);
            let said = log.take();
            assert!(said.contains(&failed(failure)), "{lie:?}: {said:?}");
            assert!(most < 64 << 10, "{lie:?}: {most}");
            assert_eq!((reactor.stream_memory(), reactor.stats().subscribers), (0, 0));
        }
    }
}

fn the_memory_of_a_session_is_counted(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let key = register(&mut reactor, PLAIN, ours, Sessions::Lies(Lie::Holds), Script::new(&log));
    for held in [1000, 2000, 3000] {
        peer.write(&[0; 1000]);
        run_dry(&mut reactor);
        assert_eq!(reactor.stream(key).unwrap().memory(), held);
        assert_eq!(reactor.stream_memory(), held);
    }
    let released = reactor.stream(key).unwrap().release().unwrap();
    assert_eq!(reactor.stream_memory(), 0);
    let again = PLAIN.with_fd(released.socket.unwrap()).with_released_tls(released.tls.unwrap());
    let key = again.with_handler(Script::new(&log)).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.stream_memory(), 3000);
    reactor.stream(key).unwrap().abort();
    quiet(&mut reactor);
    assert_eq!(reactor.stream_memory(), 0);
    // A session may say anything.
    let (ours, mut peer) = tcp();
    register(&mut reactor, PLAIN, ours, Sessions::Lies(Lie::Memory), Script::new(&log));
    peer.write(&[0; 10]);
    run_dry(&mut reactor);
    assert!(reactor.stream_memory() > 1 << 30);
    drop(peer);
    quiet(&mut reactor);
    assert_eq!(reactor.stream_memory(), 0);
}

type Act = fn(&mut Stream<'_>);

/// What a handler may do in any callback.
const ACTS: [(&str, Act); 9] = [
    ("close", |stream| stream.close()),
    ("close after output", |stream| stream.close_after_output()),
    ("abort", |stream| stream.abort()),
    ("discard", |stream| stream.discard()),
    ("finish", |stream| stream.finish()),
    ("pause", |stream| stream.pause()),
    ("release", |stream| assert!(stream.release().is_none())),
    ("send", |stream| {
        let sent = stream.send(&[9; 20_000]);
        assert!(matches!(sent, Ok(()) | Err(StreamWriteError::Closed)), "{sent:?}");
    }),
    ("pause and send", |stream| {
        stream.pause();
        let _ = stream.send(b"x");
    }),
];

/// Each act in each callback, while the peer sends all that it may.
fn every_callback_may_end_or_pause_its_stream(build: Build) {
    for (name, act) in ACTS {
        for place in 0..4 {
            let mut reactor = build().build().unwrap();
            let [_, (ours, mut peer)] = both_families();
            let log = Log::new();
            let at = move |here: i32| if here == place { act } else { |_: &mut Stream<'_>| () };
            let script = Script::new(&log)
                .on_open(at(0))
                .on_data(move |stream, _| at(1)(stream))
                .on_end(at(2))
                .on_notify(at(3));
            let key = register(&mut reactor, PLAIN, ours, Sessions::Server, script);
            reactor.stream(key).unwrap().notify();
            let parts = [record(HELLO, b""), record(DATA, b"a"), record(DATA, b"b")];
            let cut = parts[2].len() - 1;
            peer.write(&[&parts[0][..], &parts[1], &parts[2][..cut]].concat());
            quiet(&mut reactor);
            peer.write_some(&[&parts[2][cut..], &record(CLOSE, b"")].concat());
            quiet(&mut reactor);
            peer.read_all();
            peer.finish_quietly();
            end(&mut reactor, key);
            let said = log.take();
            let count = |is: fn(&Said) -> bool| said.iter().filter(|said| is(said)).count();
            assert_eq!(count(|said| matches!(said, Said::Close(_))), 1, "{name} {place} {said:?}");
            assert!(count(|said| matches!(said, Said::End)) <= 1, "{name} {place}: {said:?}");
            assert_eq!(said.last(), Some(&Said::Dropped), "{name} {place}: {said:?}");
            assert_eq!((reactor.stats().subscribers, reactor.stream_memory()), (0, 0));
        }
    }
}

/// Lets the stream go on if it is paused, and then closes it if it is still open.
fn end(reactor: &mut Reactor, key: Key) {
    for _ in 0..4 {
        quiet(reactor);
        if let Ok(mut stream) = reactor.stream(key) {
            stream.resume();
        }
    }
    quiet(reactor);
    if let Ok(mut stream) = reactor.stream(key) {
        stream.abort();
    }
    quiet(reactor);
}

/// Bytes of a random generator, in random pieces, as records and as noise.
fn noise_never_panics(build: Build) {
    let mut reactor = build().build().unwrap();
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..60 {
        let [_, (ours, mut peer)] = both_families();
        let log = Log::new();
        let key = register(&mut reactor, PLAIN, ours, Sessions::Server, Script::echo(&log));
        for _ in 0..random(12) {
            let bytes: Vec<u8> = (0..random(50)).map(|_| random(8) as u8).collect();
            let bytes =
                if random(3) > 0 { record([HELLO, DATA][random(2)], &bytes) } else { bytes };
            let cut = random(bytes.len() + 1);
            for part in [&bytes[..cut], &bytes[cut..]] {
                peer.write_some(part);
                run_dry(&mut reactor);
            }
        }
        peer.finish_quietly();
        peer.read_all();
        end(&mut reactor, key);
        assert_eq!(log.take().last(), Some(&Said::Dropped));
    }
    assert_eq!((reactor.stats().subscribers, reactor.stream_memory()), (0, 0));
}

/// A session whose first call ends it, in each phase.
fn a_session_may_end_in_its_first_call(build: Build) {
    let failed = Said::Close(DisconnectReason::Tls(TlsFailure::NotTls));
    for (phase, expected) in [
        (TlsPhase::Failed(TlsFailure::NotTls), vec![failed, Said::Dropped]),
        (TlsPhase::PeerClosed, vec![Said::Open, Said::End]),
        (TlsPhase::Open, vec![Said::Open]),
    ] {
        for (ours, peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let log = Log::new();
            let sessions = Sessions::Lies(Lie::Begins(phase));
            let with_tls = PLAIN.with_fd(ours).with_tls(Arc::new(sessions));
            with_tls.with_handler(Script::new(&log)).register_into(&mut reactor).unwrap();
            quiet(&mut reactor);
            peer.finish_quietly();
            quiet(&mut reactor);
            assert_eq!(log.take()[..expected.len()], expected, "{phase:?}");
            drop(peer);
        }
    }
}

scenarios! {
    an_end_that_came_with_data_waits_while_reading_is_paused,
    a_pause_in_on_data_holds_back_the_rest_of_a_long_piece,
    a_close_before_the_first_turn_ends_the_stream_at_once,
    a_write_stall_timeout_leaves_the_time_of_the_handshake,
    handshakes_that_wait_go_on_after_a_panic,
    a_queue_of_handshakes_may_become_shorter_within_a_turn,
    a_session_that_panics_in_a_call_loses_its_stream,
    output_in_on_open_has_room_behind_the_handshake,
    a_session_that_lies_is_ended,
    the_memory_of_a_session_is_counted,
    every_callback_may_end_or_pause_its_stream,
    noise_never_panics,
    a_session_may_end_in_its_first_call,
}
