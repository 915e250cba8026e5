//! Streams on a ring whose queues and buffers are too small. No bytes may be lost, duplicated or
//! reordered, and no stream may block another.

use std::{cell::Cell, os::fd::OwnedFd, rc::Rc};

use windlass::{
    Backend, Builder, Key, Reactor,
    stream::{DisconnectReason, SharedBytes, StreamOptions},
};

use crate::{
    bed::{Log, NOW, panic_of, run_dry},
    pattern::bytes,
    script::{Peer, Said, Script, both_families, open, tcp},
    streams_random,
};

const PLAIN: StreamOptions = StreamOptions::new();

pub(crate) fn ring() -> Builder {
    Reactor::builder().backend(Backend::Uring)
}

/// Two buffers, the minimum.
pub(crate) fn starving() -> Builder {
    ring().ring_buffers(2, 256)
}

/// All limits too small.
fn cramped() -> Builder {
    starving().ring_entries(2, 4).ring_stalls(3)
}

fn unix() -> (OwnedFd, Peer) {
    let [_, unix] = both_families();
    unix
}

/// The peer's end of an echo.
struct Client {
    peer: Peer,
    sent: usize,
    got: usize,
}

impl Client {
    fn open(reactor: &mut Reactor, (ours, peer): (OwnedFd, Peer)) -> (Self, Key) {
        let log = Log::new();
        let key = open(reactor, PLAIN, ours, Script::echo(&log));
        (Self { peer, sent: 0, got: 0 }, key)
    }

    fn write(&mut self, count: usize) {
        self.sent += self.peer.write_some(&bytes(self.sent, count));
    }

    fn read(&mut self) {
        let (got, _) = self.peer.drain();
        assert!(got == bytes(self.got, got.len()), "what is sent comes back in order");
        self.got += got.len();
    }

    fn is_done(&self) -> bool {
        self.sent == self.got
    }
}

fn the_pools_memory_is_what_was_asked_for_and_made_with_the_first_stream() {
    for (builder, bytes) in [
        (ring(), 16 * (262_144 + 16)),
        (starving(), 2 * (256 + 16)),
        (ring().ring_buffers(3, 1_000), 4 * 1_016),
    ] {
        let mut reactor = builder.build().unwrap();
        assert_eq!(reactor.stats().buffer_bytes, 0);
        let (_client, _) = Client::open(&mut reactor, tcp());
        assert_eq!(reactor.stats().buffer_bytes, bytes);
    }
}

fn many_streams_share_two_buffers() {
    for builder in [starving(), cramped(), ring().ring_buffers(2, 4_096)] {
        let mut reactor = builder.build().unwrap();
        let mut clients: Vec<_> = (0..40)
            .map(|at| Client::open(&mut reactor, if at % 2 == 0 { tcp() } else { unix() }).0)
            .collect();
        for round in 1..6 {
            for client in &mut clients {
                client.write(round * 700);
            }
            for _ in 0..10_000 {
                run_dry(&mut reactor);
                clients.iter_mut().for_each(Client::read);
                if clients.iter().all(Client::is_done) {
                    break;
                }
            }
            assert!(clients.iter().all(|client| client.sent > 0 && client.is_done()));
        }
    }
}

/// A receive without a buffer must be tried again, and no completion would end a wait for it.
fn nobody_sleeps_while_receives_wait_for_buffers() {
    let mut reactor = starving().build().unwrap();
    let mut clients: Vec<_> = (0..20)
        .map(|at| Client::open(&mut reactor, if at % 2 == 0 { tcp() } else { unix() }).0)
        .collect();
    for _ in 0..5 {
        clients.iter_mut().for_each(|client| client.write(700));
        while !clients.iter().all(Client::is_done) {
            let start = std::time::Instant::now();
            reactor.run_once(std::time::Duration::from_secs(20)).unwrap();
            assert!(
                start.elapsed() < std::time::Duration::from_secs(15),
                "somebody's bytes have come"
            );
            clients.iter_mut().for_each(Client::read);
        }
    }
}

/// A peer that does not read its answers holds no buffer.
fn as_many_stalled_peers_as_buffers_harm_no_other() {
    // The last cases: more failing sends than the completion queue has room for, and partial sends.
    for (count, builder, size) in [
        (2u16, ring().ring_buffers(2, 4_096), 8_000),
        (8, ring().ring_buffers(8, 4_096), 8_000),
        (30, ring().ring_buffers(32, 4_096).ring_entries(2, 4), 8_000),
        (8, ring().ring_buffers(8, 65_536), 60_000),
    ] {
        // Less than the maximum output of a stream.
        let rounds = if size > 10_000 { 12 } else { 400 };
        let mut reactor = builder.build().unwrap();
        let mut stalled: Vec<_> = (0..count)
            .map(|at| Client::open(&mut reactor, if at % 2 == 0 { tcp() } else { unix() }).0)
            .collect();
        // They send until no more is accepted. The answers fill their own socket buffers, and the
        // rest waits as output.
        for _ in 0..rounds {
            stalled.iter_mut().for_each(|client| client.write(size));
            run_dry(&mut reactor);
        }
        let (mut other, _) = Client::open(&mut reactor, tcp());
        for _ in 0..50 {
            other.write(3_000);
            while !other.is_done() {
                run_dry(&mut reactor);
                other.read();
            }
        }
        for _ in 0..10_000 {
            run_dry(&mut reactor);
            stalled.iter_mut().for_each(Client::read);
            if stalled.iter().all(Client::is_done) {
                break;
            }
        }
        assert!(stalled.iter().all(Client::is_done));
    }
}

fn what_a_paused_stream_has_received_comes_when_it_is_resumed_and_starves_nobody() {
    let mut reactor = starving().build().unwrap();
    let log = Log::new();
    let mut paused = Vec::new();
    for _ in 0..4 {
        let (ours, mut peer) = tcp();
        let key =
            open(&mut reactor, PLAIN, ours, Script::new(&log).on_data(|stream, _| stream.pause()));
        peer.write(&[1; 2_000]);
        peer.finish();
        paused.push((key, peer));
    }
    run_dry(&mut reactor);
    let (mut other, _) = Client::open(&mut reactor, tcp());
    other.write(5_000);
    run_dry(&mut reactor);
    other.read();
    assert!(other.is_done());
    // Each resume delivers some of it, and the handler pauses again.
    for _ in 0..100 {
        for (key, _) in &paused {
            if let Ok(mut stream) = reactor.stream(*key) {
                stream.resume();
            }
        }
        run_dry(&mut reactor);
    }
    let said = log.take();
    let count: usize =
        said.iter().map(|said| if let Said::Data(bytes) = said { bytes.len() } else { 0 }).sum();
    assert_eq!(count, 4 * 2_000);
    assert_eq!(said.iter().filter(|said| **said == Said::End).count(), 4);
    assert_eq!(
        said.iter().filter(|said| **said == Said::Close(DisconnectReason::Closed)).count(),
        4
    );
}

fn random_programs_with_two_buffers_and_small_queues_keep_the_order_of_calls_and_bytes() {
    for seed in 0..60 {
        streams_random::program(starving, seed);
        streams_random::program(cramped, seed);
    }
}

/// Answers and gathered output are submitted when the turn has returned, without another turn.
fn what_a_turn_has_sent_is_submitted_when_it_ends() {
    for (ours, mut peer) in both_families() {
        let mut reactor = ring().build().unwrap();
        let log = Log::new();
        open(
            &mut reactor,
            PLAIN,
            ours,
            Script::echo(&log).on_open(|stream| stream.send(b"hello ").unwrap()),
        );
        assert_eq!(peer.read_all(), b"hello ");
        peer.write(b"world");
        reactor.run_once(None).unwrap();
        assert_eq!(peer.read_all(), b"world");
        // Sent by another stream, at the end of the turn.
        let (mut client, key) = Client::open(&mut reactor, tcp());
        reactor.stream(key).unwrap().send(b"\0").unwrap();
        client.sent = 1;
        reactor.run_once(NOW).unwrap();
        client.read();
        assert!(client.is_done());
    }
}

fn what_a_turn_has_sent_is_submitted_though_run_returns_or_panics_or_the_reactor_goes() {
    for how in ["stop", "panic", "drop"] {
        let mut reactor = ring().build().unwrap();
        let log = Log::new();
        let ((ours, mut peer), (others, mut other)) = (tcp(), tcp());
        let target = open(&mut reactor, PLAIN, ours, Script::new(&log));
        let script = Script::new(&log).on_data(move |stream, _| {
            let mut turn = stream.turn();
            turn.stream(target).unwrap().write_shared(&SharedBytes::new(b"answer")).unwrap();
            turn.stop();
            assert!(how != "panic", "bad");
        });
        open(&mut reactor, PLAIN, others, script);
        other.write(b"?");
        match how {
            "stop" => reactor.run().unwrap(),
            "panic" => assert_eq!(panic_of(|| reactor.run()), "bad"),
            _ => {
                reactor.run_once(None).unwrap();
                drop(reactor);
            }
        }
        assert_eq!(peer.read_all(), b"answer", "{how}");
    }
}

/// Bytes that the kernel does not take at once are kept unchanged until it does.
fn what_is_sent_is_what_it_was_though_the_kernel_takes_it_turns_later() {
    for stalls in 0..20 {
        let mut reactor = ring().ring_stalls(stalls).build().unwrap();
        let log = Log::new();
        let mut peers = Vec::new();
        for byte in 1..6u8 {
            let (ours, peer) = if byte % 2 == 0 { tcp() } else { unix() };
            open(
                &mut reactor,
                PLAIN,
                ours,
                Script::new(&log).on_open(move |stream| stream.send(&[byte; 100]).unwrap()),
            );
            peers.push((byte, peer));
        }
        (0..30).for_each(|_| _ = reactor.run_once(NOW).unwrap());
        for (byte, peer) in &mut peers {
            assert_eq!(peer.read_all(), [*byte; 100], "after {stalls} calls that took nothing");
        }
    }
}

fn a_peer_sees_the_end_of_a_stream_that_was_receiving() {
    for how in ["close", "abort", "panic", "reactor"] {
        for (ours, mut peer) in both_families() {
            let mut reactor = ring().build().unwrap();
            let log = Log::new();
            let script = Script::new(&log).on_data(move |stream, _| match how {
                "close" => stream.close_after_output(),
                "abort" => stream.abort(),
                "panic" => panic!("bad"),
                _ => {}
            });
            open(&mut reactor, PLAIN, ours, script);
            peer.write(b"?");
            if how == "panic" {
                assert_eq!(panic_of(|| reactor.run_once(None)), "bad");
            } else {
                reactor.run_once(None).unwrap();
            }
            if how == "reactor" {
                drop(reactor);
            }
            // Without another turn: the socket must have been released already.
            let (got, end) = peer.drain();
            assert!(got.is_empty() && end != Err(std::io::ErrorKind::WouldBlock), "{how}: {end:?}");
        }
    }
}

/// A handler's panic leaves completions in the batch. They and their buffers are not lost.
fn completions_that_a_panic_leaves_behind_are_given_out_and_their_buffers_come_back() {
    let mut reactor = starving().build().unwrap();
    let log = Log::new();
    for round in 0..20u8 {
        let ((bad, mut worse), (good, mut better)) = (tcp(), tcp());
        open(&mut reactor, PLAIN, bad, Script::new(&log).on_data(|_, _| panic!("bad")));
        open(&mut reactor, PLAIN, good, Script::echo(&log));
        worse.write(&[round; 300]);
        better.write(&[round; 300]);
        assert_eq!(panic_of(|| run_dry(&mut reactor)), "bad");
        run_dry(&mut reactor);
        assert_eq!(better.read_all(), [round; 300]);
    }
}

/// The completions of a stream come in one batch, and the first of them closes the stream.
fn what_comes_behind_the_end_of_a_stream_is_nobodys() {
    let mut reactor = starving().build().unwrap();
    let log = Log::new();
    let calls = Rc::new(Cell::new(0));
    for _ in 0..30 {
        let (ours, mut peer) = tcp();
        let counted = calls.clone();
        let script = Script::new(&log).on_data(move |stream, _| {
            counted.set(counted.get() + 1);
            stream.abort();
        });
        open(&mut reactor, PLAIN, ours, script);
        peer.write(&[1; 512]);
        run_dry(&mut reactor);
    }
    assert_eq!(calls.get(), 30);
    let (mut client, _) = Client::open(&mut reactor, tcp());
    client.write(2_000);
    run_dry(&mut reactor);
    client.read();
    assert!(client.is_done(), "all buffers are there");
}

fn answers_and_what_else_is_sent_in_a_turn_keep_their_order() {
    for (ours, mut peer) in both_families() {
        let mut reactor = ring().build().unwrap();
        let log = Log::new();
        let script = Script::new(&log).on_data(|stream, input| {
            stream.reply(input, 0..1).unwrap();
            stream.write_shared(&SharedBytes::new(b"b")).unwrap();
            stream.send(b"c").unwrap();
            stream.send_shared(&SharedBytes::new(&[b'd'; 5_000])).unwrap();
            stream.write_shared(&SharedBytes::new(b"e")).unwrap();
            stream.send(&[b'f'; 20_000]).unwrap();
            stream.send(b"g").unwrap();
            stream.finish();
        });
        open(&mut reactor, PLAIN, ours, script);
        peer.write(b"a?");
        run_dry(&mut reactor);
        let expected =
            [b"abc".to_vec(), vec![b'd'; 5_000], vec![b'e'], vec![b'f'; 20_000], vec![b'g']]
                .concat();
        let (got, end) = peer.drain();
        assert!(got == expected, "{} bytes", got.len());
        assert_eq!(end, Ok(0));
    }
}

fn what_is_sent_to_many_is_what_it_was_though_the_input_it_came_from_is_changed_afterwards() {
    let mut reactor = ring().build().unwrap();
    let log = Log::new();
    for (ours, mut peer) in both_families() {
        let script = Script::new(&log).on_data(|stream, mut input| {
            stream.write_shared(&SharedBytes::new(&input)).unwrap();
            input.fill(b'x');
        });
        open(&mut reactor, PLAIN, ours, script);
        for length in [5, 5000] {
            let sent = vec![7; length];
            peer.write(&sent);
            let mut came = Vec::new();
            while came.len() < length {
                reactor.run_once(NOW).unwrap();
                came.extend(peer.drain().0);
            }
            assert_eq!(came, sent);
        }
    }
}

/// A turn handles completions while they are in the processor's cache, and sends the answers,
/// before it receives more.
fn a_turn_receives_no_more_than_the_kernel_makes_ready_at_once() {
    let mut reactor = ring().build().unwrap();
    let mut clients: Vec<_> = (0..60).map(|_| Client::open(&mut reactor, unix()).0).collect();
    run_dry(&mut reactor);
    clients.iter_mut().for_each(|client| client.write(100));
    let mut events = 0;
    while events < 60 {
        let count = reactor.run_once(None).unwrap();
        // An older kernel posts completions without being entered.
        assert!(count <= 24 || !has_deferred(&reactor), "{count} events in a turn");
        events += count;
    }
    run_dry(&mut reactor);
    clients.iter_mut().for_each(Client::read);
    assert!(clients.iter().all(Client::is_done));
}

fn has_deferred(reactor: &Reactor) -> bool {
    reactor.ring_features().is_some_and(|had| had.has(windlass::RingFeatures::DEFER_TASKRUN))
}

/// Makes tests of functions that build their rings themselves.
macro_rules! with_rings {
    ($($name:ident,)*) => {
        mod uring {
            $(
                #[test]
                fn $name() {
                    let name = concat!(module_path!(), "::", stringify!($name));
                    if windlass_testkit::rings::are_to_be_had(name) {
                        super::$name();
                    }
                }
            )*
        }
    };
}

with_rings! {
    the_pools_memory_is_what_was_asked_for_and_made_with_the_first_stream,
    a_turn_receives_no_more_than_the_kernel_makes_ready_at_once,
    many_streams_share_two_buffers,
    nobody_sleeps_while_receives_wait_for_buffers,
    as_many_stalled_peers_as_buffers_harm_no_other,
    what_a_paused_stream_has_received_comes_when_it_is_resumed_and_starves_nobody,
    random_programs_with_two_buffers_and_small_queues_keep_the_order_of_calls_and_bytes,
    what_a_turn_has_sent_is_submitted_when_it_ends,
    what_a_turn_has_sent_is_submitted_though_run_returns_or_panics_or_the_reactor_goes,
    what_is_sent_is_what_it_was_though_the_kernel_takes_it_turns_later,
    a_peer_sees_the_end_of_a_stream_that_was_receiving,
    completions_that_a_panic_leaves_behind_are_given_out_and_their_buffers_come_back,
    what_comes_behind_the_end_of_a_stream_is_nobodys,
    answers_and_what_else_is_sent_in_a_turn_keep_their_order,
    what_is_sent_to_many_is_what_it_was_though_the_input_it_came_from_is_changed_afterwards,
}
