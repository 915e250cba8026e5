//! Streams: bytes in and out, and the order of callbacks.

use std::{cell::Cell, io::IoSlice, rc::Rc};

use windlass::{
    AddReason, Key, NotFound, interest,
    stream::{DisconnectReason, SharedBytes, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{Log, NOW, counter, noting, ready, run_dry, slot},
    script::{Peer, Said, Script, both_families, open, segments_sent, tcp, turn, until},
};

const PLAIN: StreamOptions = StreamOptions::new();

fn what_is_received_is_sent_back_out_of_the_buffer(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        open(&mut reactor, PLAIN, ours, Script::echo(&log));
        assert_eq!(log.take(), [Said::Open]);
        for text in ["hello", "and", "again"] {
            peer.write(text.as_bytes());
            until(&mut reactor, &log, 1);
            assert_eq!(log.take(), [Said::data(text.as_bytes())]);
            assert_eq!(peer.read_all(), text.as_bytes());
        }
    }
}

fn a_part_of_the_input_is_sent_as_it_was_changed(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let script = Script::new(&log).on_data(|stream, mut input| {
        input.make_ascii_uppercase();
        stream.send(b"<").unwrap();
        stream.reply(input, 2..=3).unwrap();
        stream.send(b">").unwrap();
    });
    open(&mut reactor, PLAIN, ours, script);
    peer.write(b"abcdef");
    until(&mut reactor, &log, 2);
    assert_eq!(peer.read_all(), b"<CD>");
}

fn what_a_callback_sends_goes_out_in_one_write(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let sent = ours.try_clone().unwrap();
    let script = Script::new(&log).on_data(|stream, _| {
        stream.send(b"one ").unwrap();
        stream
            .send_vectored(&[IoSlice::new(b"two "), IoSlice::new(b""), IoSlice::new(b"three ")])
            .unwrap();
        stream.send_shared(&SharedBytes::new(&[b'x'; 1000])).unwrap();
        stream.send(b"").unwrap();
        assert_eq!(stream.buffered(), 1014);
    });
    open(&mut reactor, PLAIN, ours, script);
    peer.write(b"?");
    until(&mut reactor, &log, 2);
    assert_eq!((peer.read_all().len(), segments_sent(&sent)), (1014, 1));
}

fn what_others_send_goes_out_at_the_end_of_the_turn_in_one_write(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (target, mut peer) = tcp();
    let sent = target.try_clone().unwrap();
    let target = open(&mut reactor, PLAIN, target, Script::new(&log));
    let (ours, mut sender) = tcp();
    let before = Rc::new(Cell::new(9));
    let (noted, copy) = (before.clone(), sent.try_clone().unwrap());
    let script = Script::new(&log).on_data(move |stream, _| {
        for text in [&b"a"[..], b"b", b"c"] {
            stream.turn().stream(target).unwrap().send(text).unwrap();
        }
        noted.set(segments_sent(&copy));
    });
    open(&mut reactor, PLAIN, ours, script);
    sender.write(b"?");
    until(&mut reactor, &log, 3);
    assert_eq!(
        (before.get(), segments_sent(&sent)),
        (0, 1),
        "in the same turn, after the handler, once"
    );
    assert_eq!(peer.read_all(), b"abc");
    // From timers, from closures, and from outside a turn.
    reactor
        .after(NOW, move |mut turn: windlass::Turn<'_>| {
            turn.stream(target).unwrap().send(b"t").unwrap()
        })
        .unwrap();
    turn(&mut reactor);
    assert_eq!(peer.read_all(), b"t");
    reactor.stream(target).unwrap().send(b"o").unwrap();
    assert_eq!(peer.drain().0, b"", "outside a turn it waits for the next");
    turn(&mut reactor);
    assert_eq!(peer.read_all(), b"o");
    reactor.before_wait(move |mut turn| turn.stream(target).unwrap().send(b"h").unwrap()).unwrap();
    turn(&mut reactor);
    assert_eq!(peer.read_all(), b"h");
}

fn large_pieces_are_written_at_once_and_in_order(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let got = Rc::new(Cell::new(0));
        let noted = got.clone();
        let script = Script::new(&log).on_data(move |stream, _| {
            stream.send(&[1; 100]).unwrap();
            stream.send(&[2; 20_000]).unwrap();
            noted.set(stream.buffered());
            stream.send_shared(&SharedBytes::new(&[3; 20_000])).unwrap();
            stream.send(&[4; 10]).unwrap();
        });
        open(&mut reactor, PLAIN, ours, script);
        peer.write(b"?");
        until(&mut reactor, &log, 2);
        assert_eq!(got.get(), 0, "the small piece went out with the large one");
        let parts = [(1, 100), (2, 20_000), (3, 20_000), (4, 10)];
        let expected: Vec<u8> =
            parts.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
        assert!(peer.read_all() == expected);
    }
}

/// Sends to a stream whose peer does not read.
fn fill(stream: &mut windlass::stream::Stream<'_>, bytes: usize) {
    for _ in 0..bytes / 4096 {
        stream.send(&[7; 4096]).unwrap();
    }
}

const MARKS: StreamOptions =
    StreamOptions::new().watermarks(64 << 10, 1 << 20).output_max(32 << 20);

fn crossing_a_mark_is_told_once_and_after_the_handler(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let depth = Rc::default();
        let script = Script::nested(&log, &depth).on_data(|stream, _| fill(stream, 24 << 20));
        let key = open(&mut reactor, MARKS, ours, script);
        log.take();
        peer.write(b"?");
        until(&mut reactor, &log, 2);
        assert_eq!(log.take(), [Said::data(b"?"), Said::Full]);
        assert!(reactor.stream(key).unwrap().is_full());
        reactor.stream(key).unwrap().send(b"more").unwrap();
        run_dry(&mut reactor);
        assert_eq!(log.take(), [], "it is above the mark already");
        let mut sum = 0;
        while sum < (24 << 20) + 4 {
            let (bytes, last) = peer.drain();
            assert!(
                bytes.iter().rev().skip(4).all(|byte| *byte == 7)
                    && last == Err(std::io::ErrorKind::WouldBlock)
            );
            sum += bytes.len();
            turn(&mut reactor);
        }
        assert_eq!(log.take(), [Said::Drained]);
        let mut stream = reactor.stream(key).unwrap();
        assert_eq!((stream.buffered(), stream.is_full()), (0, false));
        // Again, from outside the handler.
        fill(&mut stream, 24 << 20);
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Full]);
    }
}

fn output_that_the_socket_takes_crosses_no_mark(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let script = Script::new(&log).on_data(|stream, _| {
        stream.send(&[1; 100]).unwrap();
        assert!(!stream.is_full(), "it is only gathered");
        stream.set_watermarks(0, 20);
        assert!(!stream.is_full());
    });
    open(&mut reactor, PLAIN.watermarks(0, 10), ours, script);
    peer.write(b"?");
    run_dry(&mut reactor);
    assert_eq!((log.take(), peer.read_all().len()), (vec![Said::Open, Said::data(b"?")], 100));
}

fn what_is_more_than_the_bound_is_refused_whole(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN.output_max(100_000), ours, Script::new(&log));
    let mut stream = reactor.stream(key).unwrap();
    assert_eq!(
        stream.send(&[0; 100_001]),
        Err(StreamWriteError::Full),
        "it could not wait if the socket took none of it"
    );
    let mut sent = 0;
    while stream.send(&[1; 30_000]).is_ok() {
        sent += 30_000;
    }
    assert!(stream.buffered() <= 100_000 && stream.buffered() > 70_000);
    stream.send(&[2; 10]).unwrap();
    let mut got = Vec::new();
    while got.len() < sent + 10 {
        got.extend(peer.read_all());
        turn(&mut reactor);
    }
    assert!(got[..sent].iter().all(|byte| *byte == 1) && got[sent..] == [2; 10]);
}

fn gathered_output_makes_room_before_any_is_refused(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let key = open(&mut reactor, PLAIN.output_max(10_000), ours, Script::new(&log));
    let mut stream = reactor.stream(key).unwrap();
    for _ in 0..5 {
        stream.send(&[1; 6_000]).unwrap();
    }
    turn(&mut reactor);
    assert_eq!(peer.read_all().len(), 30_000);
}

fn one_event_is_one_receive(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        open(&mut reactor, PLAIN, ours, Script::new(&log));
        log.take();
        peer.write(&[9; 100_000]);
        let mut sum = 0;
        while sum < 100_000 {
            let events = reactor.run_once(None).unwrap();
            // A ring may have received more than once by now. It may also receive more at a time
            // than a handler gets in one callback.
            let is_ring = reactor.backend() == windlass::Backend::Uring;
            assert!(events == 1 || (events > 1 && is_ring));
            let said = log.take();
            assert!(said.len() == events || (said.len() > events && is_ring));
            for said in said {
                let Said::Data(bytes) = said else { panic!("{said:?}") };
                assert!(bytes.len() <= 64 << 10);
                sum += bytes.len();
            }
        }
        assert_eq!((sum, turn(&mut reactor)), (100_000, 0));
    }
}

fn a_prefix_comes_before_what_is_in_the_socket_and_after_the_call(build: Build) {
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        peer.write(b"second");
        peer.finish();
        let script = Script::echo(&log);
        PLAIN.adopt(ours, *b"first", script, &mut reactor).unwrap();
        assert_eq!(log.take(), [], "not before the call has returned");
        run_dry(&mut reactor);
        let said = [Said::Open, Said::data(b"first"), Said::data(b"second"), Said::End];
        assert_eq!(
            log.take(),
            [&said[..], &[Said::Close(DisconnectReason::Closed), Said::Dropped]].concat()
        );
        assert_eq!(peer.read_all(), b"firstsecond");
    }
}

fn a_prefix_waits_while_reading_is_paused(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    peer.write(b"second");
    let script = Script::new(&log).on_open(|stream| stream.pause());
    let key = PLAIN.adopt(ours, vec![b'1'; 100_000], script, &mut reactor).unwrap();
    // A ring also reports the opening, earlier receives and the end of the receive.
    assert!(run_dry(&mut reactor) <= 3);
    assert_eq!(log.take(), [Said::Open]);
    reactor.stream(key).unwrap().resume();
    run_dry(&mut reactor);
    assert_eq!(
        log.take(),
        [Said::Data(vec![b'1'; 100_000]), Said::data(b"second")],
        "whole, however long"
    );
}

fn a_stream_registered_in_a_turn_opens_in_the_next(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    peer.write(b"early");
    let (fd, script) = (Cell::new(Some(ours)), Cell::new(Some(Script::new(&log))));
    let noted = log.clone();
    interest()
        .read()
        .one_shot()
        .with_fd(ready())
        .with_handler(move |_: &mut _, mut turn: windlass::Turn<'_>| {
            PLAIN.register(fd.take().unwrap(), script.take().unwrap(), &mut turn).unwrap();
            assert_eq!(noted.take(), []);
        })
        .register_into(&mut reactor)
        .unwrap();
    turn(&mut reactor);
    assert_eq!(log.take(), []);
    reactor.run_once(None).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::Open, Said::data(b"early")]);
}

fn a_refused_stream_gives_socket_and_handler_back(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let log = Log::new();
    let (ours, _peer) = tcp();
    open(&mut reactor, PLAIN, ours, Script::new(&log));
    let (ours, mut peer) = tcp();
    let registration = PLAIN.with_fd(ours).with_handler(Script::new(&log));
    let e = registration.try_register_into(&mut reactor).err().unwrap();
    assert_eq!(e.reason, AddReason::LimitReached);
    let (with_fd, script) = e.subscriber.into_parts();
    let socket = with_fd.into_parts().socket;
    rustix::io::write(&socket, b"alive").unwrap();
    assert_eq!(peer.read_all(), b"alive");
    assert_eq!(log.take(), [Said::Open]);
    drop(script);
    assert_eq!(log.take(), [Said::Dropped]);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let mut reactor = build().build().unwrap();
    let e = PLAIN.register(file, Script::new(&log), &mut reactor).err().unwrap();
    assert_eq!(e, AddReason::NotPollable);
}

fn a_stale_key_and_one_of_another_kind_find_nothing(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = Rc::new(counter(0));
    let other = noting(&mut reactor, &fd, &Log::new(), ());
    assert_eq!(reactor.stream(other).err(), Some(NotFound));
    let (ours, _peer) = tcp();
    let closing = slot::<Key>();
    let own = closing.clone();
    let script = Script::new(&log).on_close(move |_, mut turn| {
        assert_eq!(turn.stream(own.get().unwrap()).err(), Some(NotFound), "stale from on_close on");
    });
    let key = open(&mut reactor, PLAIN, ours, script);
    closing.set(Some(key));
    assert_eq!(reactor.stream(key).unwrap().key(), key);
    // A stream's key is not a registration's key, and no key finds its cell.
    assert_eq!(reactor.delete(key), Err(NotFound));
    assert!(reactor.modify(key, interest()).is_err() && reactor.take_boxed(key).is_err());
    for bits in 0..1u64 << 10 {
        let near = Key::from_bits((other.to_bits() & !0x3ff) | bits);
        if near != other {
            assert_eq!(reactor.delete(near), Err(NotFound), "the cell of the stream is hidden");
        }
    }
    reactor.stream(key).unwrap().abort();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Said::Open, Said::Close(DisconnectReason::Aborted), Said::Dropped]);
    assert_eq!(reactor.stream(key).err(), Some(NotFound));
    let (ours, _peer) = tcp();
    let next = open(&mut reactor, PLAIN, ours, Script::new(&log));
    assert_ne!(next, key);
    assert_eq!(reactor.stream(key).err(), Some(NotFound));
    let _ = build().build().unwrap().stream(next).err().unwrap();
}

fn callbacks_never_come_inside_one_another(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let depth: Rc<Cell<u32>> = Rc::default();
    let (ours, _full_peer) = tcp();
    let full = open(&mut reactor, MARKS, ours, Script::nested(&log, &depth));
    let (ours, _closed_peer) = tcp();
    let closed = open(&mut reactor, PLAIN, ours, Script::nested(&log, &depth));
    let (ours, _aborted_peer) = tcp();
    let aborted = open(&mut reactor, PLAIN, ours, Script::nested(&log, &depth));
    let (ours, mut peer) = tcp();
    let script = Script::nested(&log, &depth).on_data(move |stream, input| {
        fill(stream, 24 << 20);
        let mut turn = stream.turn();
        fill(&mut turn.stream(full).unwrap(), 24 << 20);
        turn.stream(closed).unwrap().close();
        turn.stream(aborted).unwrap().abort();
        let own = stream.key();
        stream.turn().stream(own).unwrap().abort();
        assert_eq!(stream.reply(input, ..), Err(StreamWriteError::Closed));
    });
    open(&mut reactor, MARKS, ours, script);
    log.take();
    peer.write(b"?");
    until(&mut reactor, &log, 6);
    let said = log.take();
    let (own, rest) = said.split_at(3);
    assert_eq!(
        own,
        [Said::data(b"?"), Said::Close(DisconnectReason::Aborted), Said::Dropped],
        "at once, for its own"
    );
    assert_eq!(
        rest,
        [Said::Full, Said::Close(DisconnectReason::Aborted), Said::Dropped],
        "in the next turn, for others"
    );
}

fn a_dropped_reactor_drops_handlers_and_closes_sockets_and_calls_nobody(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (mut keys, mut peers) = (Vec::new(), Vec::new());
    for (ours, peer) in both_families() {
        keys.push(open(&mut reactor, PLAIN, ours, Script::new(&log)));
        peers.push(peer);
    }
    for key in keys {
        reactor.stream(key).unwrap().send(b"last").unwrap();
    }
    log.take();
    drop(reactor);
    assert_eq!(log.take(), [Said::Dropped, Said::Dropped]);
    for mut peer in peers {
        assert_eq!(peer.drain(), (b"last".to_vec(), Ok(0)), "closed");
    }
}

fn taking_a_reactor_apart_leaves_no_streams_behind(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    open(&mut reactor, PLAIN, ours, Script::new(&log));
    let fd = Rc::new(counter(0));
    noting(&mut reactor, &fd, &Log::new(), ());
    assert_eq!(reactor.into_subscribers().len(), 1, "streams are not given out");
    assert_eq!(log.take(), [Said::Open, Said::Dropped]);
    assert_eq!(peer.drain().1, Ok(0));
}

fn a_socket_left_blocking_does_not_block_the_loop(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let key = open(&mut reactor, PLAIN, ours.into(), Script::new(&log));
    let mut stream = reactor.stream(key).unwrap();
    while stream.send(&[0; 20_000]).is_ok() {}
    run_dry(&mut reactor);
    assert!(reactor.stream(key).unwrap().buffered() > 0);
    drop(Peer::Unix(theirs));
}

/// Data that a ring received for a paused stream is delivered after the resume. It may be more than
/// the output accepts at once.
fn an_echo_that_pauses_when_it_is_full_has_one_receive_above_the_mark_at_most(build: Build) {
    const RECEIVED_MAX: usize = 64 << 10;
    let options =
        StreamOptions::new().watermarks(64 << 10, 256 << 10).output_max((256 << 10) + RECEIVED_MAX);
    let bytes: Vec<u8> = (0..12_000_000u32).map(|at| (at / 7 % 251) as u8).collect();
    for (ours, mut peer) in both_families() {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let script = Script::echo(&log)
            .on_full(|stream| stream.pause())
            .on_drained(|stream| stream.resume());
        open(&mut reactor, options, ours, script);
        let (mut sent, mut got, mut buffer) = (0, Vec::new(), vec![0; 100_000]);
        while got.len() < bytes.len() {
            // Writes as much as all buffers on the way take. Reads so little of the echo that the
            // socket is full again at once.
            sent += peer.write_some(&bytes[sent..]);
            turn(&mut reactor);
            if let Ok(count) = peer.try_read(&mut buffer) {
                got.extend_from_slice(&buffer[..count]);
            }
            log.take();
        }
        assert!(got == bytes, "nothing is lost, doubled or moved");
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_received_is_sent_back_out_of_the_buffer,
    #[cfg_attr(miri, ignore = "sockets")]
    a_part_of_the_input_is_sent_as_it_was_changed,
    #[cfg_attr(miri, ignore = "sockets")]
    what_a_callback_sends_goes_out_in_one_write,
    #[cfg_attr(miri, ignore = "sockets")]
    what_others_send_goes_out_at_the_end_of_the_turn_in_one_write,
    #[cfg_attr(miri, ignore = "sockets")]
    large_pieces_are_written_at_once_and_in_order,
    #[cfg_attr(miri, ignore = "sockets")]
    crossing_a_mark_is_told_once_and_after_the_handler,
    #[cfg_attr(miri, ignore = "sockets")]
    output_that_the_socket_takes_crosses_no_mark,
    #[cfg_attr(miri, ignore = "sockets")]
    what_is_more_than_the_bound_is_refused_whole,
    #[cfg_attr(miri, ignore = "sockets")]
    gathered_output_makes_room_before_any_is_refused,
    #[cfg_attr(miri, ignore = "sockets")]
    one_event_is_one_receive,
    #[cfg_attr(miri, ignore = "sockets")]
    a_prefix_comes_before_what_is_in_the_socket_and_after_the_call,
    #[cfg_attr(miri, ignore = "sockets")]
    a_prefix_waits_while_reading_is_paused,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_registered_in_a_turn_opens_in_the_next,
    #[cfg_attr(miri, ignore = "sockets")]
    a_refused_stream_gives_socket_and_handler_back,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stale_key_and_one_of_another_kind_find_nothing,
    #[cfg_attr(miri, ignore = "sockets")]
    callbacks_never_come_inside_one_another,
    #[cfg_attr(miri, ignore = "sockets")]
    a_dropped_reactor_drops_handlers_and_closes_sockets_and_calls_nobody,
    #[cfg_attr(miri, ignore = "sockets")]
    taking_a_reactor_apart_leaves_no_streams_behind,
    #[cfg_attr(miri, ignore = "sockets")]
    a_socket_left_blocking_does_not_block_the_loop,
    #[cfg_attr(miri, ignore = "sockets")]
    an_echo_that_pauses_when_it_is_full_has_one_receive_above_the_mark_at_most,
}
