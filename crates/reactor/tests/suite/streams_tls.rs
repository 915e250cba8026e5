//! Streams with TLS: handshakes, records, their output and their ends, with a session of the test's
//! own. The sessions of `windlass-tls` are tested there.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use windlass::{
    Key, Reactor,
    stream::{Connector, DisconnectReason, Listener, SharedBytes, StreamOptions, TlsFailure},
};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, panic_of, run_dry},
    script::{Peer, Said, Script, both_families, quiet, tcp, turn},
    streams_tls_session::{ALERT, CLOSE, DATA, HELLO, PANIC, Sessions, contents, data, record},
};

const PLAIN: StreamOptions = StreamOptions::new();

pub(crate) fn register(
    reactor: &mut Reactor,
    options: StreamOptions,
    socket: std::os::fd::OwnedFd,
    sessions: Sessions,
    script: Script,
) -> Key {
    let with_tls = options.with_fd(socket).with_tls(Arc::new(sessions));
    with_tls.with_handler(script).register_into(reactor).unwrap()
}

/// Registers a server's stream and completes its handshake.
pub(crate) fn open(
    reactor: &mut Reactor,
    socket: std::os::fd::OwnedFd,
    peer: &mut Peer,
    script: Script,
) -> Key {
    let key = register(reactor, PLAIN, socket, Sessions::Server, script);
    peer.write(&record(HELLO, b""));
    run_dry(reactor);
    assert_eq!(contents(&peer.read_all()), [(HELLO, vec![])]);
    key
}

pub(crate) fn plaintext_of(said: &[Said]) -> Vec<u8> {
    let of = |said: &Said| match said {
        Said::Data(bytes) => bytes.clone(),
        _ => Vec::new(),
    };
    said.iter().flat_map(of).collect()
}

fn a_handshake_comes_before_the_handler_and_plaintexts_come_together(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_open(|stream| {
            assert_eq!(stream.tls().unwrap().alpn(), Some(&b"test"[..]));
        });
        register(&mut reactor, PLAIN, ours, Sessions::Server, script);
        run_dry(&mut reactor);
        assert_eq!(log.take(), [], "a connection alone opens nothing");
        peer.write(&record(HELLO, b""));
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Open]);
        // A message in two records, as one of 16 KiB with its header.
        let (one, other) = (vec![1; 16 << 10], vec![2; 4]);
        peer.write(&[record(DATA, &one), record(DATA, &other)].concat());
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Data([one, other].concat())]);
    }
}

fn records_may_be_cut_at_every_byte(build: Build) {
    let all = [record(HELLO, b""), record(DATA, b"hello"), record(DATA, b" "), record(DATA, b"!")];
    let all = all.concat();
    let mut reactor = build().build().unwrap();
    for cut in 1..all.len() {
        // A TCP socket would gather what is sent in parts.
        let [_, (ours, mut peer)] = both_families();
        let log = Log::new();
        register(&mut reactor, PLAIN, ours, Sessions::Server, Script::echo(&log));
        for part in [&all[..cut], &all[cut..]] {
            peer.write(part);
            run_dry(&mut reactor);
        }
        let said = log.take();
        assert_eq!((said[0].clone(), plaintext_of(&said)), (Said::Open, b"hello !".to_vec()));
        assert_eq!(data(&peer.read_all()), b"hello !", "cut at {cut}");
    }
    let [_, (ours, mut peer)] = both_families();
    let log = Log::new();
    register(&mut reactor, PLAIN, ours, Sessions::Server, Script::echo(&log));
    for byte in &all {
        peer.write(&[*byte]);
        run_dry(&mut reactor);
    }
    assert_eq!(data(&peer.read_all()), b"hello !", "one byte at a time");
}

fn a_partial_record_costs_what_came_of_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let [_, (ours, mut peer)] = both_families();
    let log = Log::new();
    let key = open(&mut reactor, ours, &mut peer, Script::echo(&log));
    let long = record(DATA, &[7; 16_000]);
    peer.write(&long[..10]);
    run_dry(&mut reactor);
    let memory = reactor.stream(key).unwrap().memory();
    assert!((10..100).contains(&memory), "{memory}: 16,000 bytes were announced");
    for part in long[10..].chunks(900) {
        peer.write(part);
        run_dry(&mut reactor);
    }
    let sent = peer.read_all();
    assert_eq!(log.len(), 2, "{}", sent.len());
    assert!(data(&sent) == [7; 16_000]);
    assert_eq!(reactor.stream(key).unwrap().memory(), 0);
    assert_eq!(reactor.stream_memory(), 0);
}

fn output_before_the_handshake_waits_for_it(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_open(|stream| stream.send(b", then this").unwrap());
        let key = register(&mut reactor, PLAIN, ours, Sessions::Server, script);
        reactor.stream(key).unwrap().send(b"first").unwrap();
        run_dry(&mut reactor);
        reactor.stream(key).unwrap().send_shared(&SharedBytes::new(&[b'!'; 300])).unwrap();
        reactor.stream(key).unwrap().notify();
        run_dry(&mut reactor);
        assert_eq!((log.take(), peer.read_all()), (vec![], vec![]));
        assert!(reactor.stream(key).unwrap().buffered() >= 305);
        peer.write(&record(HELLO, b""));
        run_dry(&mut reactor);
        let sent = peer.read_all();
        assert_eq!(contents(&sent)[0], (HELLO, vec![]));
        let expected = [&b"first"[..], &[b'!'; 300], b", then this"].concat();
        assert_eq!(data(&sent), expected);
        assert_eq!(log.take(), [Said::Open, Said::Notify]);
        assert_eq!(reactor.stream(key).unwrap().buffered(), 0);
    }
}

fn a_client_speaks_first_and_its_connection_opens_after_the_handshake(build: Build) {
    let mut reactor = build().build().unwrap();
    let (server, client) = (Log::new(), Log::new());
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let log = server.clone();
    listener
        .with_tls(Arc::new(Sessions::Server))
        .with_handler(move |_| Some(Script::echo(&log)))
        .register_into(&mut reactor)
        .unwrap();
    let script = Script::new(&client).on_open(|stream| stream.send(b"hello").unwrap());
    let script = script.on_data(|stream, _| stream.close());
    Connector::tcp(address)
        .with_tls(Arc::new(Sessions::Client))
        .connect(script, &mut reactor)
        .unwrap();
    while client.len() < 3 || server.len() < 4 {
        reactor.run_once(None).unwrap();
    }
    let closed = Said::Close(DisconnectReason::Closed);
    assert_eq!(client.take()[..3], [Said::Open, Said::data(b"hello"), closed.clone()]);
    assert_eq!(server.take()[..4], [Said::Open, Said::data(b"hello"), Said::End, closed]);
}

fn a_listener_closes_its_handshakes_alone(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listen = |reactor: &mut Reactor| {
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap().socket_addr().unwrap();
        let log = log.clone();
        let with_tls = listener.with_tls(Arc::new(Sessions::Server));
        let with_handler = with_tls.with_handler(move |_| Some(Script::echo(&log)));
        (with_handler.register_into(reactor).unwrap(), address)
    };
    let (key, address) = listen(&mut reactor);
    let (other, its_address) = listen(&mut reactor);
    let mut peers: Vec<_> = [address, address, its_address]
        .map(|address| Peer::Tcp(std::net::TcpStream::connect(address).unwrap()))
        .into();
    // One of them opens.
    peers[0].write(&record(HELLO, b""));
    while log.len() < 1 {
        reactor.run_once(None).unwrap();
    }
    while reactor.listener(key).unwrap().connections() < 2
        || reactor.listener(other).unwrap().connections() < 1
    {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), [Said::Open]);
    assert_eq!(reactor.listener(key).unwrap().close_handshakes(), 1);
    assert_eq!(log.take(), [], "its callback has a turn of its own");
    while log.len() < 2 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
    assert_eq!(reactor.listener(key).unwrap().connections(), 1);
    assert_eq!(reactor.listener(other).unwrap().connections(), 1);
    peers[0].write(&record(DATA, b"still there"));
    while log.len() < 1 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), [Said::data(b"still there")]);
}

/// A socket that keeps the limits of writes shows them.
fn an_answer_leaves_together_with_the_end_of_the_handshake(build: Build) {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, peer) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    register(&mut reactor, PLAIN, ours, Sessions::Server, Script::echo(&log));
    let both = [record(HELLO, b""), record(DATA, b"hello")].concat();
    rustix::net::send(&peer, &both, SendFlags::empty()).unwrap();
    run_dry(&mut reactor);
    let mut bytes = [0; 100];
    let (len, _) = rustix::net::recv(&peer, &mut bytes, RecvFlags::DONTWAIT).unwrap();
    assert_eq!(contents(&bytes[..len]), [(HELLO, vec![]), (DATA, b"hello".to_vec())]);
}

fn an_end_without_close_notify_is_truncation(build: Build) {
    let failed = |failure| [Said::Close(DisconnectReason::Tls(failure)), Said::Dropped];
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        open(&mut reactor, ours, &mut peer, Script::echo(&log));
        peer.write(&record(DATA, b"x"));
        peer.finish();
        quiet(&mut reactor);
        assert_eq!(log.take()[2..], failed(TlsFailure::Truncated), "no end is reported");
    }
    for (ours, peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        register(&mut reactor, PLAIN, ours, Sessions::Server, Script::echo(&log));
        peer.finish();
        quiet(&mut reactor);
        assert_eq!(log.take(), failed(TlsFailure::HandshakeIncomplete));
        assert_eq!(reactor.stats().subscribers, 0);
    }
}

fn close_notify_is_the_peers_end(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::echo(&log).on_end(|stream| stream.send(b"still").unwrap());
        let key = open(&mut reactor, ours, &mut peer, script);
        let ignored = record(DATA, b"ignored");
        peer.write(&[record(DATA, b"x"), record(CLOSE, b""), ignored].concat());
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Open, Said::data(b"x"), Said::End]);
        reactor.stream(key).unwrap().finish();
        quiet(&mut reactor);
        let sent = peer.drain();
        assert_eq!(
            contents(&sent.0),
            [(DATA, b"x".to_vec()), (DATA, b"still".to_vec()), (CLOSE, vec![])]
        );
        assert_eq!(log.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
    }
}

fn a_finished_stream_sends_close_notify_and_goes_on_receiving(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let key = open(&mut reactor, ours, &mut peer, Script::new(&log));
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"all").unwrap();
        stream.finish();
        run_dry(&mut reactor);
        let (sent, end) = peer.drain();
        assert_eq!(contents(&sent), [(DATA, b"all".to_vec()), (CLOSE, vec![])]);
        assert_eq!(end, Ok(0));
        peer.write(&[record(DATA, b"answer"), record(CLOSE, b"")].concat());
        peer.finish();
        quiet(&mut reactor);
        let closed = Said::Close(DisconnectReason::Closed);
        let said = [Said::Open, Said::data(b"answer"), Said::End, closed, Said::Dropped];
        assert_eq!(log.take(), said);
    }
}

fn a_failed_session_sends_its_alert_and_closes(build: Build) {
    for is_open in [false, true] {
        for (ours, mut peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let log = Log::new();
            let script = Script::new(&log);
            if is_open {
                open(&mut reactor, ours, &mut peer, script);
            } else {
                register(&mut reactor, PLAIN, ours, Sessions::Server, script);
            }
            let mut bad = record(DATA, b"bad");
            *bad.last_mut().unwrap() = 0;
            peer.write(&[bad, record(DATA, b"more")].concat());
            run_dry(&mut reactor);
            let (sent, end) = peer.drain();
            assert_eq!((contents(&sent), end), (vec![(ALERT, b"bad".to_vec())], Ok(0)));
            drop(peer);
            quiet(&mut reactor);
            let reason = DisconnectReason::Tls(TlsFailure::DecryptionFailed);
            let said = [Said::Close(reason), Said::Dropped];
            assert_eq!(log.take()[usize::from(is_open)..], said);
        }
    }
}

fn a_peer_that_does_not_read_gets_everything_in_order_later(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let key = open(&mut reactor, ours, &mut peer, Script::new(&log));
        let mut expected = Vec::new();
        for round in 0.. {
            if reactor.stream(key).unwrap().is_full() && round > 400 {
                break;
            }
            let bytes: Vec<u8> = (0..9000).map(|i| (round * 7 + i) as u8).collect();
            expected.extend_from_slice(&bytes);
            let mut stream = reactor.stream(key).unwrap();
            match round % 3 {
                0 => stream.send(&bytes).unwrap(),
                1 => stream.send_shared(&SharedBytes::new(&bytes)).unwrap(),
                _ => drop(stream.write_shared(&SharedBytes::new(&bytes)).unwrap()),
            }
        }
        let mut stream = reactor.stream(key).unwrap();
        assert!(stream.is_full() && stream.buffered() > 256 << 10, "{}", stream.buffered());
        stream.close();
        let mut received = Vec::new();
        let end = loop {
            let (bytes, end) = peer.drain();
            received.extend(bytes);
            if end.is_ok() {
                break end;
            }
            run_dry(&mut reactor);
        };
        assert_eq!(end, Ok(0));
        assert_eq!(contents(&received).last(), Some(&(CLOSE, vec![])));
        assert!(data(&received) == expected, "the bytes are in order");
        peer.finish();
        quiet(&mut reactor);
        assert_eq!(log.take().last(), Some(&Said::Dropped));
        assert_eq!(reactor.stream_memory(), 0);
    }
}

/// Encrypted early, they would be private copies.
fn waiting_output_is_shared(build: Build) {
    let mut reactor = build().build().unwrap();
    let long = SharedBytes::new(&[5; 1 << 20]);
    let mut peers = Vec::new();
    for _ in 0..8 {
        let (ours, mut peer) = tcp();
        let log = Log::new();
        let key = open(&mut reactor, ours, &mut peer, Script::new(&log));
        let mut stream = reactor.stream(key).unwrap();
        for _ in 0..8 {
            stream.send_shared(&long).unwrap();
        }
        peers.push((key, peer));
        run_dry(&mut reactor);
    }
    let memory = reactor.stream_memory();
    assert!(((1 << 20)..(1 << 20) + 8 * (20 << 10)).contains(&memory), "{memory}");
}

fn a_pause_in_on_open_holds_back_what_came_with_the_handshake(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::echo(&log).on_open(|stream| stream.pause());
        let key = register(&mut reactor, PLAIN, ours, Sessions::Server, script);
        let cut = record(DATA, b"later");
        peer.write(&[record(HELLO, b""), record(DATA, b"now"), cut[..4].to_vec()].concat());
        quiet(&mut reactor);
        assert_eq!(log.take(), [Said::Open]);
        peer.write(&cut[4..]);
        quiet(&mut reactor);
        assert_eq!(log.take(), []);
        reactor.stream(key).unwrap().resume();
        quiet(&mut reactor);
        assert_eq!(plaintext_of(&log.take()), b"nowlater");
        assert_eq!(data(&peer.read_all()), b"nowlater");
    }
}

fn a_pause_stops_the_handshake(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let key = register(&mut reactor, PLAIN, ours, Sessions::Server, Script::new(&log));
    reactor.stream(key).unwrap().pause();
    peer.write(&record(HELLO, b""));
    quiet(&mut reactor);
    assert_eq!((log.take(), peer.read_all()), (vec![], vec![]));
    reactor.stream(key).unwrap().resume();
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
}

fn a_handshake_has_a_time_limit(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let options = PLAIN.tls_handshake_timeout(Duration::from_secs(3));
    let (ours, mut peer) = tcp();
    let log = Log::new();
    register(&mut reactor, options, ours, Sessions::Server, Script::new(&log));
    quiet(&mut reactor);
    clock.advance(Duration::from_secs(2));
    // Progress does not extend it.
    peer.write(&record(HELLO, b"")[..2]);
    quiet(&mut reactor);
    assert_eq!(log.take(), []);
    clock.advance(Duration::from_millis(1100));
    quiet(&mut reactor);
    let reason = DisconnectReason::Tls(TlsFailure::HandshakeTimeout);
    assert_eq!(log.take(), [Said::Close(reason), Said::Dropped]);
}

fn a_turn_reads_from_a_few_handshakes_in_the_order_of_their_arrival(build: Build) {
    handshakes_in_order(build, Sessions::Server, 4);
}

/// Keys may need milliseconds.
fn a_turn_reads_from_no_more_handshakes_after_a_slow_one(build: Build) {
    handshakes_in_order(build, Sessions::Slow, 1);
}

/// The most that a turn may read from is `expected`.
fn handshakes_in_order(build: Build, sessions: Sessions, expected: usize) {
    let mut reactor = build().build().unwrap();
    let order = Log::new();
    let mut peers = Vec::new();
    for number in 0..60 {
        let (ours, peer) = tcp();
        let order = order.clone();
        let script = Script::new(&Log::new()).on_open(move |_| order.note(number));
        let key = register(&mut reactor, PLAIN, ours, sessions, script);
        peers.push((key, peer));
    }
    run_dry(&mut reactor);
    for (_, peer) in &mut peers {
        peer.write(&record(HELLO, b""));
    }
    // All of them ask in these turns: a ring may need more than one to report the bytes.
    let mut most = 0;
    for turns in 0.. {
        let before = order.len();
        if turns == 2 {
            // They lose their places, and nobody else's.
            reactor.stream(peers[40].0).unwrap().pause();
            reactor.stream(peers[41].0).unwrap().abort();
        }
        turn(&mut reactor);
        most = most.max(order.len() - before);
        if order.len() == 58 {
            break;
        }
        assert!(turns < 1000, "{} handshakes ended", order.len());
    }
    assert_eq!(most, expected);
    reactor.stream(peers[40].0).unwrap().resume();
    quiet(&mut reactor);
    let order = order.take();
    assert_eq!(order[58..], [40]);
    assert!(order[..58].is_sorted(), "{order:?}");
}

fn a_session_that_panics_costs_its_own_stream(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let (other_ours, mut other) = tcp();
    let (log, other_log) = (Log::new(), Log::new());
    open(&mut reactor, ours, &mut peer, Script::echo(&log));
    open(&mut reactor, other_ours, &mut other, Script::echo(&other_log));
    peer.write(&record(PANIC, b""));
    let panic = panic_of(|| {
        loop {
            reactor.run_once(None).unwrap();
        }
    });
    assert_eq!(panic, "the session panics");
    other.write(&record(DATA, b"fine"));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open, Said::Dropped]);
    assert_eq!(data(&other.read_all()), b"fine");
}

/// The end of a turn encrypts the output of several streams.
fn a_session_that_panics_at_the_end_of_a_turn_leaves_the_others_their_output(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, other_log) = (Log::new(), Log::new());
    let (ours, mut peer) = tcp();
    let (other_ours, mut other) = tcp();
    let key = register(&mut reactor, PLAIN, ours, Sessions::Panics, Script::new(&log));
    peer.write(&record(HELLO, b""));
    quiet(&mut reactor);
    let other_key = open(&mut reactor, other_ours, &mut other, Script::new(&other_log));
    for key in [key, other_key] {
        reactor.stream(key).unwrap().send(b"sent").unwrap();
    }
    let panic = panic_of(|| reactor.run_once(NOW).map(drop).unwrap());
    assert_eq!(panic, "the session panics");
    quiet(&mut reactor);
    assert_eq!(data(&other.read_all()), b"sent");
    // The marked session is not called again, and its stream does not wait for its peer.
    let reason = DisconnectReason::Tls(TlsFailure::Internal);
    assert_eq!(log.take(), [Said::Open, Said::Close(reason), Said::Dropped]);
}

/// On a ring a reply goes out with the next wait, with TLS as without.
fn a_reply_goes_by_the_same_way_as_a_plain_one(build: Build) {
    let mut seen = Vec::new();
    for len in [20, 4_000, 20_000] {
        for has_tls in [false, true] {
            let mut reactor = build().build().unwrap();
            let (ours, peer) = tcp();
            let peer = Rc::new(RefCell::new(peer));
            let (log, theirs) = (Log::new(), Rc::clone(&peer));
            let sent = Log::new();
            let noted = sent.clone();
            let script = Script::new(&log).on_data(move |stream, _| {
                stream.write_shared(&SharedBytes::new(&vec![5; len])).unwrap();
                noted.note((stream.buffered(), theirs.borrow_mut().read_all().is_empty()));
            });
            let message = if has_tls {
                open(&mut reactor, ours, &mut peer.borrow_mut(), script);
                record(DATA, b"x")
            } else {
                PLAIN.register(ours, script, &mut reactor).unwrap();
                b"x".to_vec()
            };
            peer.borrow_mut().write(&message);
            run_dry(&mut reactor);
            seen.extend(sent.take());
        }
    }
    for pair in seen.chunks(2) {
        assert_eq!(pair[0], pair[1], "{seen:?}");
    }
    assert_eq!(seen.len(), 6);
}

scenarios! {
    a_handshake_comes_before_the_handler_and_plaintexts_come_together,
    records_may_be_cut_at_every_byte,
    a_partial_record_costs_what_came_of_it,
    output_before_the_handshake_waits_for_it,
    a_client_speaks_first_and_its_connection_opens_after_the_handshake,
    a_listener_closes_its_handshakes_alone,
    an_answer_leaves_together_with_the_end_of_the_handshake,
    an_end_without_close_notify_is_truncation,
    close_notify_is_the_peers_end,
    a_finished_stream_sends_close_notify_and_goes_on_receiving,
    a_failed_session_sends_its_alert_and_closes,
    a_peer_that_does_not_read_gets_everything_in_order_later,
    a_reply_goes_by_the_same_way_as_a_plain_one,
    waiting_output_is_shared,
    a_pause_in_on_open_holds_back_what_came_with_the_handshake,
    a_pause_stops_the_handshake,
    a_handshake_has_a_time_limit,
    a_turn_reads_from_a_few_handshakes_in_the_order_of_their_arrival,
    a_turn_reads_from_no_more_handshakes_after_a_slow_one,
    a_session_that_panics_costs_its_own_stream,
    a_session_that_panics_at_the_end_of_a_turn_leaves_the_others_their_output,
}
