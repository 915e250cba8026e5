//! TLS sessions that leave their stream: released ones, and those of failed registrations.

use std::{sync::Arc, time::Duration};

use windlass::{
    AddReason, Group, GroupReason, Key, Reactor, TimerReason,
    stream::{
        DisconnectReason, Input, MemberStreamHandler, Released, Stream, StreamOptions, StreamTls,
        TlsFailure,
    },
};

use crate::{
    Build,
    bed::{Log, panic_of, run_dry},
    script::{Peer, Said, Script, both_families, fill, quiet, tcp},
    streams_tls::{open, register},
    streams_tls_session::{CLOSE, DATA, HELLO, Sessions, contents, data, record},
};

const LATER: Duration = Duration::from_secs(1000);
const PLAIN: StreamOptions = StreamOptions::new();

/// Registers the released stream with the reactor.
fn again(reactor: &mut Reactor, released: Released, script: Script) -> Key {
    let Released { socket, read_buf, tls, .. } = released;
    let with_fd = PLAIN.with_fd(socket.unwrap()).with_read_buf(read_buf);
    let with_tls = with_fd.with_released_tls(tls.unwrap());
    with_tls.with_handler(script).register_into(reactor).unwrap()
}

/// At every byte of what the peer sends, the stream moves to another reactor.
fn a_released_session_goes_on_in_another_reactor(build: Build) {
    let all = [record(HELLO, b""), record(DATA, b"hello"), record(DATA, b"!"), record(CLOSE, b"")];
    let all = all.concat();
    let (mut first, mut second) = (build().build().unwrap(), build().build().unwrap());
    for cut in 0..=all.len() {
        for pauses in [false, true] {
            let [_, (ours, mut peer)] = both_families();
            let log = Log::new();
            let key = register(&mut first, PLAIN, ours, Sessions::Server, Script::echo(&log));
            if pauses {
                run_dry(&mut first);
                first.stream(key).unwrap().pause();
            }
            peer.write(&all[..cut]);
            quiet(&mut first);
            let mut sent = peer.read_all();
            let Ok(mut stream) = first.stream(key) else {
                // The end of the session has closed it.
                assert!(cut == all.len() && !pauses);
                continue;
            };
            let released = stream.release().unwrap();
            let session = released.tls.as_ref().unwrap().session();
            assert_eq!(session.alpn(), Some(&b"test"[..]));
            assert_eq!(log.take().last(), Some(&Said::Dropped));
            again(&mut second, released, Script::echo(&log));
            peer.write(&all[cut..]);
            quiet(&mut second);
            let said = log.take();
            assert_eq!(said[0], Said::Open, "cut at {cut}");
            sent.extend(peer.read_all());
            assert_eq!(contents(&sent).iter().filter(|(kind, _)| *kind == HELLO).count(), 1);
            assert_eq!(data(&sent), b"hello!", "cut at {cut}");
            assert!(said.contains(&Said::End), "{said:?}");
        }
    }
    assert_eq!((first.stream_memory(), second.stream_memory()), (0, 0));
}

/// Sends until output waits for the peer. Returns the number of bytes.
fn send_until_full(reactor: &mut Reactor, key: Key) -> usize {
    let mut sent = 0;
    while reactor.stream(key).unwrap().buffered() == 0 {
        reactor.stream(key).unwrap().send(&[7; 16 << 10]).unwrap();
        sent += 16 << 10;
        run_dry(reactor);
    }
    sent
}

fn a_released_session_takes_the_rest_of_its_records_along(build: Build) {
    let (mut first, mut second) = (build().build().unwrap(), build().build().unwrap());
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let key = open(&mut first, ours, &mut peer, Script::new(&log));
    let sent = send_until_full(&mut first, key);
    // A part of the last record is with the kernel. What was never encrypted is discarded.
    let mut stream = first.stream(key).unwrap();
    stream.send(&[8; 1000]).unwrap();
    let released = stream.release().unwrap();
    again(&mut second, released, Script::new(&log).on_open(|stream| stream.send(b"end").unwrap()));
    let mut received = Vec::new();
    for round in 0.. {
        if received.ends_with(&record(DATA, b"end")) {
            break;
        }
        assert!(round < 10_000, "{} bytes of {sent}", received.len());
        received.extend(peer.read_all());
        run_dry(&mut second);
    }
    let received = data(&received);
    assert_eq!(received.len(), sent + 3, "each byte that was encrypted");
    assert!(received[..sent].iter().all(|byte| *byte == 7));
}

/// Reads until the stream's end. Returns the bytes.
fn read_to_end(reactor: &mut Reactor, peer: &mut Peer) -> Vec<u8> {
    let mut received = Vec::new();
    for round in 0.. {
        let (bytes, outcome) = peer.drain();
        received.extend(bytes);
        if outcome.is_ok() {
            break;
        }
        assert!(round < 10_000, "no end after {} bytes", received.len());
        run_dry(reactor);
    }
    received
}

fn a_close_before_the_first_turn_of_a_continued_session_is_a_graceful_one(build: Build) {
    let (mut first, mut second) = (build().build().unwrap(), build().build().unwrap());
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let key = open(&mut first, ours, &mut peer, Script::new(&log));
    let sent = send_until_full(&mut first, key);
    let released = first.stream(key).unwrap().release().unwrap();
    log.take();
    let key = again(&mut second, released, Script::new(&log));
    let mut stream = second.stream(key).unwrap();
    stream.send(b"end").unwrap();
    stream.close();
    let received = read_to_end(&mut second, &mut peer);
    assert_eq!(contents(&received).last(), Some(&(CLOSE, vec![])));
    let received = data(&received);
    assert_eq!((received.len(), &received[sent..]), (sent + 3, &b"end"[..]));
    peer.finish();
    quiet(&mut second);
    assert_eq!(log.take(), [Said::Close(DisconnectReason::Closed), Said::Dropped]);
}

/// The alert waits for a full socket when the session leaves its stream.
fn a_continued_session_closes_the_writing_half_behind_its_close_notify(build: Build) {
    let (mut first, mut second) = (build().build().unwrap(), build().build().unwrap());
    let [_, (ours, mut peer)] = both_families();
    let log = Log::new();
    let key = open(&mut first, ours, &mut peer, Script::new(&log));
    let filled = fill(&mut first, key);
    first.stream(key).unwrap().finish();
    quiet(&mut first);
    assert!(first.stream(key).unwrap().buffered() > 0, "the alert waits");
    let released = first.stream(key).unwrap().release().unwrap();
    log.take();
    again(&mut second, released, Script::new(&log));
    quiet(&mut second);
    let received = read_to_end(&mut second, &mut peer);
    assert_eq!(contents(&received[filled..]), [(CLOSE, vec![])]);
    peer.write(&record(CLOSE, b""));
    quiet(&mut second);
    let closed = Said::Close(DisconnectReason::Closed);
    assert_eq!(log.take(), [Said::Open, Said::End, closed, Said::Dropped]);
}

fn the_end_of_a_released_session_is_kept(build: Build) {
    // The session has failed: it fails again.
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let key = open(&mut reactor, ours, &mut peer, Script::new(&log));
    peer.write(&record(HELLO, b"twice"));
    run_dry(&mut reactor);
    let released = reactor.stream(key).unwrap().release().unwrap();
    log.take();
    again(&mut reactor, released, Script::new(&log));
    peer.finish_quietly();
    quiet(&mut reactor);
    let reason = DisconnectReason::Tls(TlsFailure::ProtocolViolation);
    assert_eq!(log.take(), [Said::Close(reason), Said::Dropped]);
    // The peer has ended, and then this side: nothing is left to do.
    let (ours, mut peer) = tcp();
    let stays = Script::new(&log).on_end(|_| ());
    let key = open(&mut reactor, ours, &mut peer, stays);
    peer.write(&record(CLOSE, b""));
    run_dry(&mut reactor);
    let released = reactor.stream(key).unwrap().release().unwrap();
    assert_eq!(log.take(), [Said::Open, Said::End, Said::Dropped]);
    again(&mut reactor, released, Script::new(&log).on_open(|stream| stream.send(b"x").unwrap()));
    quiet(&mut reactor);
    assert_eq!(log.take()[..2], [Said::Open, Said::End]);
    let sent = peer.read_all();
    assert_eq!(contents(&sent), [(DATA, b"x".to_vec()), (CLOSE, vec![])]);
    // This side has sent its `close_notify`: nothing more can be sent.
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, ours, &mut peer, Script::new(&log));
    reactor.stream(key).unwrap().finish();
    run_dry(&mut reactor);
    let released = reactor.stream(key).unwrap().release().unwrap();
    log.take();
    let script = Script::new(&log).on_open(|stream| {
        stream.send(b"x").unwrap_err();
    });
    again(&mut reactor, released, script);
    peer.write(&[record(DATA, b"late"), record(CLOSE, b"")].concat());
    quiet(&mut reactor);
    let end = [Said::Close(DisconnectReason::Closed), Said::Dropped];
    let said = [vec![Said::Open, Said::data(b"late"), Said::End], end.to_vec()].concat();
    assert_eq!(log.take(), said);
    assert_eq!(contents(&peer.read_all()), [(CLOSE, vec![])]);
}

fn a_session_that_has_panicked_does_not_go_on(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let log = Log::new();
    let key = register(&mut reactor, PLAIN, ours, Sessions::Panics, Script::new(&log));
    peer.write(&record(HELLO, b""));
    quiet(&mut reactor);
    let long = vec![0; 20_000];
    assert_eq!(
        panic_of(|| reactor.stream(key).unwrap().send(&long).unwrap()),
        "the session panics"
    );
    let released = reactor.stream(key).unwrap().release().unwrap();
    log.take();
    again(&mut reactor, released, Script::new(&log));
    quiet(&mut reactor);
    let reason = DisconnectReason::Tls(TlsFailure::Internal);
    assert_eq!(log.take(), [Said::Close(reason), Said::Dropped]);
}

/// A stream that is registered again must not become a plain one.
fn a_registration_that_fails_keeps_its_tls(build: Build) {
    let log = Log::new();
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let (ours, _peer) = tcp();
    register(&mut reactor, PLAIN, ours, Sessions::Server, Script::new(&log));
    let mut other = build().build().unwrap();
    let check = |other: &mut Reactor, peer: &mut Peer| {
        quiet(other);
        log.take();
        peer.write(&[record(HELLO, b""), record(DATA, b"x")].concat());
        quiet(other);
        assert_eq!(log.take(), [Said::Open, Said::data(b"x")], "the records are decrypted");
    };
    for is_released in [false, true] {
        let (ours, mut peer) = tcp();
        let script = || Script::new(&log);
        let mut with_fd = PLAIN.with_fd(ours).with_tls(Arc::new(Sessions::Server));
        if is_released {
            let new = with_fd.with_handler(script()).register_into(&mut other);
            let released = other.stream(new.unwrap()).unwrap().release().unwrap();
            with_fd = PLAIN.with_fd(released.socket.unwrap());
            with_fd = with_fd.with_released_tls(released.tls.unwrap());
        }
        let refused = with_fd.with_handler(script()).try_register_into(&mut reactor).unwrap_err();
        assert_eq!(refused.reason, AddReason::LimitReached);
        let (with_fd, handler) = refused.subscriber.into_parts();
        drop(handler);
        // It fails again, and is taken apart as far as possible.
        let refused = with_fd.with_handler(script()).try_register_into(&mut reactor).unwrap_err();
        let parts = refused.subscriber.into_parts().0.into_parts();
        let with_fd = parts.options.with_fd(parts.socket);
        let with_tls = match parts.tls.unwrap() {
            StreamTls::New(sessions) => with_fd.with_tls(sessions),
            StreamTls::Released(tls) => with_fd.with_released_tls(tls),
            other => panic!("{other:?}"),
        };
        let key = with_tls.with_handler(script()).register_into(&mut other).unwrap();
        check(&mut other, &mut peer);
        other.stream(key).unwrap().abort();
    }
}

/// Records what it is told, as a member of a group.
struct Member(Log<Said>);

impl MemberStreamHandler<()> for Member {
    fn on_open(&mut self, (): &mut (), _: &mut Stream<'_>) {
        self.0.note(Said::Open);
    }
    fn on_data(&mut self, (): &mut (), _: &mut Stream<'_>, input: Input<'_>) {
        self.0.note(Said::data(&input));
    }
}

/// The other member is rejected after the stream was registered, so the session is taken back.
fn a_group_that_is_refused_keeps_the_tls_of_its_streams(build: Build) {
    let log = Log::new();
    let mut full = build().timers_max(1).build().unwrap();
    full.after(LATER, || {}).unwrap();
    let mut reactor = build().build().unwrap();
    let records = [record(HELLO, b""), record(DATA, b"hello"), record(DATA, b"!")].concat();
    // A new session, and one that was released at every byte.
    for cut in [None].into_iter().chain((0..=records.len()).map(Some)) {
        let [_, (ours, mut peer)] = both_families();
        let mut with_fd = PLAIN.with_fd(ours).with_tls(Arc::new(Sessions::Server));
        if let Some(cut) = cut {
            let script = Script::new(&log);
            let key = with_fd.with_handler(script).register_into(&mut reactor).unwrap();
            peer.write(&records[..cut]);
            quiet(&mut reactor);
            let released = reactor.stream(key).unwrap().release().unwrap();
            with_fd = PLAIN.with_fd(released.socket.unwrap()).with_read_buf(released.read_buf);
            with_fd = with_fd.with_released_tls(released.tls.unwrap());
        }
        let group =
            Group::new(()).stream(with_fd, Member(log.clone())).after(LATER, |(): &mut ()| {});
        peer.write(&records[cut.unwrap_or(0)..]);
        let refused = group.try_register_into(&mut full).unwrap_err();
        assert_eq!(refused.reason, GroupReason::Timer(1, TimerReason::LimitReached));
        assert_eq!(full.stats().subscribers, 0);
        let registered = refused.group.register_into(&mut reactor).unwrap();
        quiet(&mut reactor);
        let said = log.take().into_iter();
        let heard =
            said.filter_map(|said| if let Said::Data(bytes) = said { Some(bytes) } else { None });
        assert_eq!(heard.collect::<Vec<_>>().concat(), b"hello!", "cut at {cut:?}");
        reactor.stream(registered.members[0]).unwrap().abort();
        quiet(&mut reactor);
        reactor.delete_group(registered.group).unwrap();
        log.take();
    }
}

scenarios! {
    a_group_that_is_refused_keeps_the_tls_of_its_streams,
    a_released_session_goes_on_in_another_reactor,
    a_released_session_takes_the_rest_of_its_records_along,
    a_close_before_the_first_turn_of_a_continued_session_is_a_graceful_one,
    a_continued_session_closes_the_writing_half_behind_its_close_notify,
    the_end_of_a_released_session_is_kept,
    a_session_that_has_panicked_does_not_go_on,
    a_registration_that_fails_keeps_its_tls,
}
