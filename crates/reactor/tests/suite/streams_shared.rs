//! Streams: bytes that are sent to many streams, and notifications of other streams' handlers.

use std::{cell::Cell, rc::Rc, sync::Arc};

use rustix::{event::PollFlags, net::sockopt};
use windlass::stream::{DisconnectReason, SharedBytes, StreamOptions, StreamWriteError};

use crate::{
    Build,
    bed::{Log, NOW},
    script::{
        Said, Script, await_conditions, both_families, open, segments_sent, tcp, turn, unix, until,
    },
};

const PLAIN: StreamOptions = StreamOptions::new();

fn what_is_written_for_many_goes_out_at_once_behind_what_waits(build: Build) {
    let mut reactor = build().build().unwrap();
    let by_ring = reactor.backend() == windlass::Backend::Uring;
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let sent = ours.try_clone().unwrap();
    let target = open(&mut reactor, PLAIN, ours, Script::new(&log));
    let (others, mut sender) = tcp();
    let seen = Rc::new(Cell::new((9, 9)));
    let (noted, copy) = (seen.clone(), sent.try_clone().unwrap());
    let script = Script::new(&log).on_data(move |stream, _| {
        let mut turn = stream.turn();
        let mut target = turn.stream(target).unwrap();
        target.send(b"first ").unwrap();
        let waiting = target.write_shared(&SharedBytes::new(b"second ")).unwrap();
        noted.set((waiting, segments_sent(&copy)));
        let again = target.write_shared(&SharedBytes::new(b"third")).unwrap();
        // A ring sends it when the turn ends.
        assert_eq!(
            (again, target.buffered(), segments_sent(&copy)),
            (0, 0, if by_ring { 1 } else { 2 })
        );
        assert_eq!(target.write_shared(&SharedBytes::new(b"")), Ok(0));
    });
    open(&mut reactor, PLAIN, others, script);
    sender.write(b"?");
    until(&mut reactor, &log, 3);
    assert_eq!(seen.get(), (0, 1), "both in one write, and not at the end of the turn");
    assert_eq!(peer.read_all(), b"first second third");
    assert_eq!(segments_sent(&sent), 2);
}

fn what_many_sockets_do_not_take_waits_once_for_all(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let bytes: Arc<[u8]> = (0..4_000_000_u32).map(|at| (at % 251) as u8).collect();
    let options = StreamOptions::new().output_max(9 << 20);
    let mut peers = Vec::new();
    for (ours, peer) in both_families() {
        // The kernel may let the queue of a TCP socket grow to all of these bytes.
        sockopt::set_socket_send_buffer_size(&ours, 64 << 10).unwrap();
        peers.push((open(&mut reactor, options, ours, Script::new(&log)), peer));
    }
    let mut waiting = Vec::new();
    for (key, _) in &peers {
        let mut stream = reactor.stream(*key).unwrap();
        stream.send(b"before").unwrap();
        waiting.push(stream.write_shared(&SharedBytes::of(&bytes)).unwrap());
        assert_eq!(stream.buffered(), *waiting.last().unwrap());
        stream.send_shared(&SharedBytes::of(&bytes)).unwrap();
        stream.send(b"behind").unwrap();
    }
    assert!(
        waiting.iter().all(|waiting| (1..4_000_000).contains(waiting)),
        "some of it went out: {waiting:?}"
    );
    assert_eq!(Arc::strong_count(&bytes), 1 + 2 * peers.len(), "nobody has a copy");
    let mut expected = b"before".to_vec();
    expected.extend_from_slice(&bytes);
    expected.extend_from_slice(&bytes);
    expected.extend_from_slice(b"behind");
    for (_, peer) in &mut peers {
        let mut got = Vec::new();
        while got.len() < expected.len() {
            turn(&mut reactor);
            got.extend_from_slice(&peer.drain().0);
        }
        assert!(got == expected);
    }
    assert_eq!(Arc::strong_count(&bytes), 1, "it is given back");
}

fn what_is_written_for_many_is_refused_as_other_output_is(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN.output_max(10), ours, Script::new(&log));
    let mut stream = reactor.stream(key).unwrap();
    stream.send(b"12345").unwrap();
    assert_eq!(
        stream.write_shared(&SharedBytes::new(b"67890")),
        Ok(0),
        "what was gathered makes room"
    );
    assert_eq!(stream.write_shared(&SharedBytes::new(b"12345678901")), Err(StreamWriteError::Full));
    stream.finish();
    assert_eq!(stream.write_shared(&SharedBytes::new(b"late")), Err(StreamWriteError::Closed));
    turn(&mut reactor);
    assert_eq!(peer.read_all(), b"1234567890");
}

fn a_peer_that_is_gone_ends_the_stream_when_it_is_written_to(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, peer) = tcp();
    let socket = ours.try_clone().unwrap();
    let key = open(&mut reactor, PLAIN, ours, Script::new(&log));
    log.take();
    reactor.stream(key).unwrap().pause();
    peer.reset();
    await_conditions(&socket, PollFlags::HUP);
    let sent = reactor.stream(key).unwrap().write_shared(&SharedBytes::new(b"nobody"));
    assert_eq!(sent, Err(StreamWriteError::Closed));
    until(&mut reactor, &log, 1);
    assert!(matches!(log.take()[0], Said::Close(DisconnectReason::Error(_))));
}

fn a_nudge_calls_the_handler_once_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _peer) = tcp();
    let key = open(&mut reactor, PLAIN, ours, Script::new(&log));
    log.take();
    reactor
        .after(NOW, move |mut turn: windlass::Turn<'_>| {
            turn.stream(key).unwrap().notify();
            turn.stream(key).unwrap().notify();
        })
        .unwrap();
    turn(&mut reactor);
    assert_eq!(log.take(), [], "not in the turn that asks for it");
    turn(&mut reactor);
    assert_eq!(log.take(), [Said::Notify]);
    turn(&mut reactor);
    assert_eq!(log.take(), [], "once");
}

fn a_handler_that_nudges_itself_is_called_after_it_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let script = Script::new(&log)
        .on_data(|stream, _| stream.notify())
        .on_notify(|stream| stream.send(b"!").unwrap());
    open(&mut reactor, PLAIN, ours, script);
    log.take();
    peer.write(b"?");
    until(&mut reactor, &log, 2);
    assert_eq!(log.take(), [Said::data(b"?"), Said::Notify]);
    assert_eq!(peer.read_all(), b"!");
}

fn a_nudge_waits_for_the_stream_to_open_and_a_closed_one_has_none(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _peer) = tcp();
    let key = PLAIN.register(ours, Script::new(&log), &mut reactor).unwrap();
    reactor.stream(key).unwrap().notify();
    until(&mut reactor, &log, 2);
    assert_eq!(log.take(), [Said::Open, Said::Notify]);
    let mut stream = reactor.stream(key).unwrap();
    stream.notify();
    stream.abort();
    until(&mut reactor, &log, 1);
    assert_eq!(log.take()[0], Said::Close(DisconnectReason::Aborted));
}

/// A stream is sent to by another one's handler, and is removed before the turn ends. Then the end
/// of the turn finds no stream at its index, or a new one.
fn a_stream_that_is_gone_before_its_output_is_written_leaves_its_successor_alone(build: Build) {
    for has_successor in [false, true] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let (ours, mut target_peer) = unix();
        let (next, mut next_peer) = unix();
        let (log_next, mut next) = (log.clone(), has_successor.then_some(next));
        let successor = Rc::new(Cell::new(None));
        let noted = successor.clone();
        let script = Script::new(&log).on_close(move |_, mut turn| {
            if let Some(next) = next.take() {
                let script = Script::new(&log_next).on_open(|stream| stream.send(b"new").unwrap());
                noted.set(Some(PLAIN.register(next, script, &mut turn).unwrap()));
            }
        });
        // The sender is registered first, and its event comes first.
        let (others, mut sender) = unix();
        let target = Rc::new(Cell::new(None));
        let found = target.clone();
        let sending = Script::new(&log).on_data(move |stream, _| {
            let mut turn = stream.turn();
            let mut target = turn.stream(found.get().unwrap()).unwrap();
            target.send(b"too late").unwrap();
            target.abort();
        });
        open(&mut reactor, PLAIN, others, sending);
        let old = open(&mut reactor, PLAIN, ours, script);
        target.set(Some(old));
        log.take();
        sender.write(b"?");
        target_peer.write(b"?");
        reactor.run_once(NOW).unwrap();
        let said = log.take();
        assert!(
            said.contains(&Said::Close(DisconnectReason::Aborted)),
            "its own event comes in the same turn: {said:?}"
        );
        assert!(reactor.stream(old).is_err());
        let Some(new) = successor.get() else { continue };
        assert_eq!(new.to_bits() as u32, old.to_bits() as u32, "it has the same index");
        assert_ne!(new, old);
        until(&mut reactor, &log, 1);
        assert_eq!(log.take(), [Said::Open]);
        assert_eq!(next_peer.read_all(), b"new");
        assert!(!reactor.stream(new).unwrap().is_full());
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_written_for_many_goes_out_at_once_behind_what_waits,
    #[cfg_attr(miri, ignore = "sockets")]
    what_many_sockets_do_not_take_waits_once_for_all,
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_written_for_many_is_refused_as_other_output_is,
    #[cfg_attr(miri, ignore = "sockets")]
    a_peer_that_is_gone_ends_the_stream_when_it_is_written_to,
    #[cfg_attr(miri, ignore = "sockets")]
    a_nudge_calls_the_handler_once_in_the_next_turn,
    #[cfg_attr(miri, ignore = "sockets")]
    a_handler_that_nudges_itself_is_called_after_it_has_returned,
    #[cfg_attr(miri, ignore = "sockets")]
    a_nudge_waits_for_the_stream_to_open_and_a_closed_one_has_none,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_that_is_gone_before_its_output_is_written_leaves_its_successor_alone,
}
