//! How streams end: half-close, close, abort, reset, panics.

use std::{
    cell::RefCell,
    io::ErrorKind,
    os::fd::{IntoRawFd, OwnedFd},
    rc::Rc,
};

use rustix::event::PollFlags;
use windlass::{
    Errno, Key,
    stream::{DisconnectReason, Stream, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, close, counter, duplicate_from, own_numbers, pair, run_dry},
    script::{
        Peer, Said, Script, await_conditions, both_families, open, quiet, tcp, turn, until,
        until_subscribers,
    },
};

const PLAIN: StreamOptions = StreamOptions::new();

const CLOSED: [Said; 2] = [Said::Close(DisconnectReason::Closed), Said::Dropped];

fn data_and_end_in_one_segment_are_data_then_end(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        open(&mut reactor, PLAIN, ours, Script::echo(&log));
        peer.write(b"bye");
        peer.finish();
        run_dry(&mut reactor);
        let said = log.take();
        assert_eq!(said[..3], [Said::Open, Said::data(b"bye"), Said::End]);
        assert_eq!(said[3..], CLOSED, "the default is to close");
        assert_eq!(peer.drain(), (b"bye".to_vec(), Ok(0)));
        assert_eq!(reactor.stats().subscribers, 0);
    }
}

fn a_stream_can_be_sent_to_after_the_peers_end(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_end(|stream| stream.send(b"still").unwrap());
        let key = open(&mut reactor, PLAIN, ours, script);
        peer.finish();
        assert!(run_dry(&mut reactor) < 4, "the end is told once and wakes nobody again");
        assert_eq!(log.take(), [Said::Open, Said::End]);
        reactor.stream(key).unwrap().send(b" here").unwrap();
        reactor.stream(key).unwrap().finish();
        assert_eq!(reactor.stream(key).unwrap().send(b"!"), Err(StreamWriteError::Closed));
        run_dry(&mut reactor);
        assert_eq!(log.take(), CLOSED, "both halves are closed");
        assert_eq!(peer.drain(), (b"still here".to_vec(), Ok(0)));
    }
}

fn a_finished_stream_goes_on_receiving(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_open(|stream| {
            stream.send(b"all").unwrap();
            stream.finish();
        });
        open(&mut reactor, PLAIN, ours, script);
        assert_eq!(peer.drain(), (b"all".to_vec(), Ok(0)), "the output, then the end");
        peer.write(b"answer");
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Open, Said::data(b"answer")]);
        peer.finish();
        run_dry(&mut reactor);
        assert_eq!(log.take()[..2], [Said::End, CLOSED[0].clone()]);
    }
}

/// Sends until the socket takes no more.
pub(crate) fn stuff(stream: &mut Stream<'_>) -> usize {
    let mut sum = 0;
    while !stream.is_full() {
        stream.send(&[7; 20_000]).unwrap();
        sum += 20_000;
    }
    sum
}

fn the_end_waits_for_the_output(build: Build) {
    for how in [(|s| s.finish()) as fn(&mut Stream<'_>), |s| s.close()] {
        for (ours, mut peer) in both_families() {
            let mut reactor = build().build().unwrap();
            let log = Log::new();
            let key = open(&mut reactor, PLAIN, ours, Script::new(&log));
            let mut stream = reactor.stream(key).unwrap();
            let sent = stuff(&mut stream);
            how(&mut stream);
            let mut got = 0;
            let last = loop {
                run_dry(&mut reactor);
                let (bytes, last) = peer.drain();
                got += bytes.len();
                if last.is_ok() {
                    break last;
                }
            };
            assert_eq!((got, last), (sent, Ok(0)));
            drop(peer);
            until_subscribers(&mut reactor, 0);
            run_dry(&mut reactor);
            assert_eq!(log.take().last(), Some(&Said::Dropped));
        }
    }
}

fn closing_with_unread_input_is_no_reset(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_open(|stream| stream.pause());
        let key = open(&mut reactor, PLAIN, ours, script);
        peer.write(b"nobody reads this");
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"last words").unwrap();
        stream.close();
        stream.close();
        assert_eq!(stream.send(b"!"), Err(StreamWriteError::Closed));
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Open], "it lingers");
        peer.write(b"nor this");
        run_dry(&mut reactor);
        assert_eq!(peer.drain(), (b"last words".to_vec(), Ok(0)));
        peer.finish();
        run_dry(&mut reactor);
        assert_eq!(log.take(), CLOSED, "and no data is told");
    }
}

fn lingering_is_bounded(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let options = PLAIN.linger(std::time::Duration::from_secs(1));
    let script = Script::new(&log).on_data(|stream, _| stream.close());
    let key = open(&mut reactor, options, ours, script);
    peer.write(b"?");
    until(&mut reactor, &log, 2);
    for _ in 0..9 {
        clock.advance(std::time::Duration::from_millis(100));
        // Input does not extend the time.
        peer.write(b"more");
        quiet(&mut reactor);
        assert!(reactor.stream(key).is_ok());
    }
    log.take();
    clock.advance(std::time::Duration::from_millis(151));
    quiet(&mut reactor);
    assert_eq!(log.take(), CLOSED);
}

fn a_closed_stream_whose_peer_takes_nothing_is_reset_in_the_end(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(
        &mut reactor,
        PLAIN.linger(std::time::Duration::from_secs(1)),
        ours,
        Script::new(&log),
    );
    let mut stream = reactor.stream(key).unwrap();
    stuff(&mut stream);
    stream.close();
    quiet(&mut reactor);
    clock.advance(std::time::Duration::from_millis(900));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open]);
    clock.advance(std::time::Duration::from_millis(200));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Close(DisconnectReason::WriteStall), Said::Dropped]);
    assert_eq!(peer.drain().1, Err(ErrorKind::ConnectionReset));
}

/// Regression: progress restarted the wait. A peer that read a little from time to time kept a
/// closed stream open without limit.
fn a_closed_stream_whose_peer_takes_a_little_now_and_then_is_reset_in_the_end(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    // A Unix socket holds a hundredth of the output at a time.
    let (ours, peer) = pair();
    let mut peer = Peer::Unix(peer);
    let key = open(
        &mut reactor,
        PLAIN.linger(std::time::Duration::from_secs(3)),
        ours.into(),
        Script::new(&log),
    );
    reactor.stream(key).unwrap().send(&vec![7; 16 << 20]).unwrap();
    reactor.stream(key).unwrap().close();
    quiet(&mut reactor);
    for _ in 0..5 {
        let before = reactor.stream(key).unwrap().buffered();
        assert!(!peer.read_all().is_empty());
        quiet(&mut reactor);
        let after = reactor.stream(key).unwrap().buffered();
        assert!(
            (1..before).contains(&after),
            "the socket takes more, again and again: {before} {after}"
        );
        clock.advance(std::time::Duration::from_millis(550));
        quiet(&mut reactor);
    }
    assert_eq!(log.take(), [Said::Open]);
    clock.advance(std::time::Duration::from_millis(301));
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Close(DisconnectReason::WriteStall), Said::Dropped]);
}

/// The output is sent first, and the stream does not wait for the peer's end.
fn a_close_after_output_is_over_when_the_output_is_out(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN, ours, Script::new(&log));
    let bytes = vec![7; 8 << 20];
    reactor.stream(key).unwrap().send(&bytes).unwrap();
    assert!(reactor.stream(key).unwrap().buffered() > 0, "it has to wait");
    reactor.stream(key).unwrap().close_after_output();
    turn(&mut reactor);
    assert!(reactor.stream(key).is_ok());
    let mut got = 0;
    let mut end = Err(std::io::ErrorKind::WouldBlock);
    while end.is_err() {
        turn(&mut reactor);
        let (some, now) = peer.drain();
        (got, end) = (got + some.len(), now);
    }
    assert_eq!((got, end), (bytes.len(), Ok(0)));
    // The peer's own half is still open.
    until(&mut reactor, &log, 3);
    assert_eq!(log.take()[1..], CLOSED);
}

fn without_lingering_a_close_is_over_at_once(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN.linger(NOW), ours, Script::new(&log));
    reactor.stream(key).unwrap().send(b"x").unwrap();
    reactor.stream(key).unwrap().close();
    turn(&mut reactor);
    turn(&mut reactor);
    assert_eq!(log.take()[1..], CLOSED);
    assert_eq!(peer.drain(), (b"x".to_vec(), Ok(0)));
}

fn an_abort_is_a_reset_and_loses_the_output(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let script = Script::new(&log).on_data(|stream, _| {
        stream.send(b"lost").unwrap();
        stream.abort();
        assert_eq!(stream.send(b"x"), Err(StreamWriteError::Closed));
    });
    open(&mut reactor, PLAIN, ours, script);
    peer.write(b"?");
    until(&mut reactor, &log, 3);
    assert_eq!(log.take()[2], Said::Close(DisconnectReason::Aborted));
    assert_eq!(peer.drain(), (vec![], Err(ErrorKind::ConnectionReset)));
    // From outside a handler, and after a close.
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN, ours, Script::new(&log));
    log.take();
    reactor.stream(key).unwrap().close();
    run_dry(&mut reactor);
    assert_eq!(log.take(), []);
    reactor.stream(key).unwrap().abort();
    run_dry(&mut reactor);
    assert_eq!(log.take()[0], Said::Close(DisconnectReason::Aborted));
    assert_eq!(peer.drain().1, Ok(0), "the end was out before");
}

fn a_reset_is_told_while_reading_and_while_paused(build: Build) {
    for pauses in [false, true] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let (ours, peer) = tcp();
        let script = Script::new(&log).on_open(move |stream| {
            if pauses {
                stream.pause();
            }
        });
        open(&mut reactor, PLAIN, ours, script);
        peer.reset();
        until(&mut reactor, &log, 3);
        assert_eq!(
            log.take()[1..],
            [Said::Close(DisconnectReason::Error(Errno::CONNRESET)), Said::Dropped]
        );
    }
}

fn a_reset_is_told_when_output_waits(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, peer) = tcp();
    let socket = ours.try_clone().unwrap();
    let script = Script::new(&log).on_open(|stream| {
        stream.pause();
        stuff(stream);
    });
    open(&mut reactor, PLAIN, ours, script);
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::Open, Said::Full]);
    peer.reset();
    await_conditions(&socket, PollFlags::HUP);
    run_dry(&mut reactor);
    let said = log.take();
    let failed =
        [Errno::CONNRESET, Errno::PIPE].map(|errno| Said::Close(DisconnectReason::Error(errno)));
    assert!(failed.contains(&said[0]), "{said:?}");
}

fn a_peer_that_is_gone_does_not_wake_a_paused_stream_again_and_again(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let key =
            open(&mut reactor, PLAIN, ours, Script::new(&log).on_open(|stream| stream.pause()));
        peer.write(b"read me");
        drop(peer);
        assert!(run_dry(&mut reactor) <= 2, "a hang-up is told once");
        assert_eq!(log.take(), [Said::Open]);
        reactor.stream(key).unwrap().resume();
        run_dry(&mut reactor);
        assert_eq!(log.take()[..2], [Said::data(b"read me"), Said::End]);
    }
}

/// Regression (rule 7): a stream's descriptor was closed by other code and its number reused. The
/// next change of its interest failed. That came as an error event, but the new socket has no
/// error. So the stream stayed registered, got no events and never closed.
fn a_stream_whose_number_was_replaced_is_closed(build: Build) {
    let number = own_numbers();
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _peer) = tcp();
    let socket = duplicate_from(&ours, number);
    drop(ours);
    let (other, _quiet) = tcp();
    let (sender, mut poke) = tcp();
    let key = open(&mut reactor, PLAIN, socket, Script::new(&log));
    let thief = Script::new(&Log::new()).on_data(move |stream, _| {
        close(number);
        // The stream itself closes the number in the end.
        assert_eq!(duplicate_from(&other, number).into_raw_fd(), number);
        // More than the socket takes, so that output must be watched too.
        stream.turn().stream(key).unwrap().send(&vec![7; 12 << 20]).unwrap();
    });
    open(&mut reactor, PLAIN, sender, thief);
    log.take();
    poke.write(b"x");
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::Close(DisconnectReason::Error(Errno::IO)), Said::Dropped]);
}

fn what_is_no_stream_socket_ends_and_does_not_spin(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"x").unwrap();
    let unconnected = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let alone = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let fds: [OwnedFd; 5] = [reader, writer, counter(1), unconnected, alone];
    for fd in fds {
        let key = PLAIN.register(fd, Script::new(&log), &mut reactor).unwrap();
        quiet(&mut reactor);
        if let Ok(mut stream) = reactor.stream(key) {
            // The write end of a pipe reports nothing by itself.
            stream.send(b"x").unwrap();
        }
        quiet(&mut reactor);
        let said = log.take();
        assert!(
            matches!(
                said[..],
                [Said::Open, Said::Close(DisconnectReason::Error(_)), Said::Dropped]
            ),
            "{said:?}"
        );
    }
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let refused =
        PLAIN.register(file, Script::new(&log), &mut reactor).expect_err("a file is always ready");
    assert_eq!(refused, windlass::AddReason::NotPollable);
}

fn pausing_in_a_callback_stops_the_data_until_it_is_resumed(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let key =
            open(&mut reactor, PLAIN, ours, Script::new(&log).on_data(|stream, _| stream.pause()));
        log.take();
        peer.write(b"one");
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::data(b"one")]);
        peer.write(b"two");
        assert_eq!((run_dry(&mut reactor), log.take()), (0, vec![]));
        assert!(reactor.stream(key).unwrap().is_paused());
        reactor.stream(key).unwrap().resume();
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::data(b"two")]);
    }
}

/// The event of the paused stream was fetched before the other stream pauses it.
fn a_stream_paused_by_another_in_the_same_batch_gets_no_data(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let keys: Rc<RefCell<Vec<Key>>> = Rc::default();
    let mut peers = Vec::new();
    for _ in 0..2 {
        let (ours, peer) = tcp();
        let all = keys.clone();
        let script = Script::new(&log).on_data(move |stream, _| {
            let own = stream.key();
            for key in all.borrow().iter().filter(|key| **key != own) {
                stream.turn().stream(*key).unwrap().pause();
            }
        });
        let key = open(&mut reactor, PLAIN, ours, script);
        keys.borrow_mut().push(key);
        peers.push(peer);
    }
    log.take();
    for peer in &mut peers {
        peer.write(b"x");
    }
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::data(b"x")]);
}

fn a_stream_closed_by_another_in_the_same_batch_gets_no_data(build: Build) {
    for how in [(|s| s.close()) as fn(&mut Stream<'_>), |s| s.abort()] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let keys: Rc<RefCell<Vec<Key>>> = Rc::default();
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (ours, peer) = tcp();
            let all = keys.clone();
            let script = Script::new(&log).on_data(move |stream, _| {
                let own = stream.key();
                for key in all.borrow().iter().filter(|key| **key != own) {
                    how(&mut stream.turn().stream(*key).unwrap());
                }
            });
            let key = open(&mut reactor, PLAIN.linger(NOW), ours, script);
            keys.borrow_mut().push(key);
            peers.push(peer);
        }
        log.take();
        for peer in &mut peers {
            peer.write(b"x");
        }
        until(&mut reactor, &log, 3);
        let said = log.take();
        assert_eq!(said[0], Said::data(b"x"));
        assert!(
            matches!(said[1], Said::Close(DisconnectReason::Closed | DisconnectReason::Aborted)),
            "{said:?}"
        );
    }
}

fn writing_to_a_peer_that_is_gone_ends_the_stream(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, peer) = crate::bed::pair();
    let key =
        open(&mut reactor, PLAIN, ours.into(), Script::new(&log).on_open(|stream| stream.pause()));
    drop(peer);
    reactor.stream(key).unwrap().send(b"x").unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take()[1..], [Said::Close(DisconnectReason::Error(Errno::PIPE)), Said::Dropped]);
}

fn on_close_can_begin_anew_under_any_number(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, peer) = tcp();
    let noted = log.clone();
    let next = Rc::new(RefCell::new(None));
    let theirs = next.clone();
    let script = Script::new(&log).on_close(move |_, mut turn| {
        let (ours, peer) = tcp();
        PLAIN.register(ours, Script::echo(&noted), &mut turn).unwrap();
        *theirs.borrow_mut() = Some(peer);
    });
    open(&mut reactor, PLAIN, ours, script);
    drop(peer);
    while next.borrow().is_none() {
        reactor.run_once(None).unwrap();
    }
    log.take();
    let mut peer = next.take().unwrap();
    peer.write(b"again");
    until(&mut reactor, &log, 1);
    assert_eq!(peer.read_all(), b"again");
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    data_and_end_in_one_segment_are_data_then_end,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_can_be_sent_to_after_the_peers_end,
    #[cfg_attr(miri, ignore = "sockets")]
    a_finished_stream_goes_on_receiving,
    #[cfg_attr(miri, ignore = "sockets")]
    the_end_waits_for_the_output,
    #[cfg_attr(miri, ignore = "sockets")]
    closing_with_unread_input_is_no_reset,
    #[cfg_attr(miri, ignore = "sockets")]
    lingering_is_bounded,
    a_closed_stream_whose_peer_takes_a_little_now_and_then_is_reset_in_the_end,
    #[cfg_attr(miri, ignore = "sockets")]
    a_closed_stream_whose_peer_takes_nothing_is_reset_in_the_end,
    #[cfg_attr(miri, ignore = "sockets")]
    a_close_after_output_is_over_when_the_output_is_out,
    #[cfg_attr(miri, ignore = "sockets")]
    without_lingering_a_close_is_over_at_once,
    #[cfg_attr(miri, ignore = "sockets")]
    an_abort_is_a_reset_and_loses_the_output,
    #[cfg_attr(miri, ignore = "sockets")]
    a_reset_is_told_while_reading_and_while_paused,
    #[cfg_attr(miri, ignore = "sockets")]
    a_reset_is_told_when_output_waits,
    #[cfg_attr(miri, ignore = "sockets")]
    a_peer_that_is_gone_does_not_wake_a_paused_stream_again_and_again,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_whose_number_was_replaced_is_closed except [
        poll "poll(2) knows numbers, not files",
        uring "a ring's poll holds the file and a replaced number is not noticed"
    ],
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_no_stream_socket_ends_and_does_not_spin,
    #[cfg_attr(miri, ignore = "sockets")]
    pausing_in_a_callback_stops_the_data_until_it_is_resumed,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_paused_by_another_in_the_same_batch_gets_no_data,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_closed_by_another_in_the_same_batch_gets_no_data,
    #[cfg_attr(miri, ignore = "sockets")]
    writing_to_a_peer_that_is_gone_ends_the_stream,
    #[cfg_attr(miri, ignore = "sockets")]
    on_close_can_begin_anew_under_any_number,
}
