//! Receivers that do not read.

use std::time::Duration;

use windlass_server::{CloseReason, Options, SlowConsumerPolicy};
use windlass_ws::CloseCode;

use crate::{
    bed::{AMPLIFIED, Bed, options},
    peer::{BINARY, CLOSE, Frame, PING, PONG, Peer, masked},
};

const SIZE: usize = 8 << 10;
const BUFFER: usize = 64 << 10;

fn with(slow: SlowConsumerPolicy) -> Options {
    let mut options = options();
    options.slow = slow;
    options.receiver_buffer_max = BUFFER;
    options.limits.message_max = BUFFER / 2;
    options
}

/// A message in which every place can be told from its neighbours, and its number be read.
fn numbered(number: u64) -> Vec<u8> {
    let mut message = Vec::with_capacity(SIZE);
    for word in (number..).take(SIZE / 8) {
        message.extend_from_slice(&word.to_be_bytes());
    }
    message
}

/// The number of a message, all of which is checked.
fn number(frame: &Frame) -> u64 {
    assert_eq!(frame.first, BINARY);
    let number = u64::from_be_bytes(*frame.payload.first_chunk().expect("a number"));
    assert!(frame.payload == numbered(number), "message {number} was changed");
    number
}

/// A room with one that speaks, one that reads, and one that does not.
struct Scene {
    bed: Bed,
    speaker: Peer,
    reader: Peer,
    slow: Peer,
    said: u64,
}

impl Scene {
    fn new(slow: SlowConsumerPolicy) -> Self {
        let mut bed = Bed::new(&with(slow));
        let speaker = bed.open("/room");
        let reader = bed.open("/room");
        let slow = Peer::with_small_window(bed.address);
        let slow = bed.shake(slow, "/room");
        Self { bed, speaker, reader, slow, said: 0 }
    }

    /// Says one thing, which the reader hears.
    fn say(&mut self) {
        self.speaker.send_frame(BINARY, numbered(self.said));
        let frame = self.bed.frame(&mut self.reader);
        assert_eq!(number(&frame), self.said, "who reads misses nothing");
        self.said += 1;
    }

    fn say_until(&mut self, is_enough: impl Fn(&Bed) -> bool) {
        while !is_enough(&self.bed) {
            self.say();
            assert!(
                self.said < 10_000,
                "the server keeps without bound what a receiver does not read"
            );
        }
    }

    fn waiting(&mut self) -> usize {
        let id = self.bed.last_opened();
        self.bed.buffered(id)
    }

    /// What the slow one has got when it reads at last, up to this message.
    fn catch_up(&mut self, last: u64) -> Vec<u64> {
        let mut heard = Vec::new();
        while heard.last() != Some(&last) {
            heard.push(number(&self.bed.frame(&mut self.slow)));
        }
        heard
    }
}

#[test]
fn drop_newest_gives_a_slow_receiver_all_up_to_a_point_whole_and_in_order() {
    let mut scene = Scene::new(SlowConsumerPolicy::DropNewest);
    scene.say_until(|bed| bed.stats().dropped >= 100);
    assert!(scene.waiting() <= BUFFER, "{}", scene.waiting());
    let dropped = scene.bed.stats().dropped;
    let first_dropped = scene.said - dropped;
    assert_eq!(scene.catch_up(first_dropped - 1), (0..first_dropped).collect::<Vec<_>>());
    // It hears again what is said from here on.
    scene.say();
    assert_eq!(scene.catch_up(scene.said - 1), [scene.said - 1]);
    assert_eq!(scene.bed.stats().dropped, dropped);
    drop((scene.speaker, scene.reader, scene.slow));
    scene.bed.expect_empty();
}

#[test]
fn drop_oldest_gives_a_slow_receiver_the_newest_whole_and_in_order() {
    let mut scene = Scene::new(SlowConsumerPolicy::DropOldest);
    scene.say_until(|bed| bed.stats().dropped >= 100);
    assert!(scene.waiting() <= BUFFER, "{}", scene.waiting());
    let heard = scene.catch_up(scene.said - 1);
    assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
    assert_eq!(
        heard.len() as u64 + scene.bed.stats().dropped,
        scene.said,
        "each was heard or is counted as dropped"
    );
    let newest = heard
        .iter()
        .rev()
        .zip((0..scene.said).rev())
        .take_while(|(heard, said)| **heard == *said)
        .count();
    // Half of the buffer is the stream's, out of which nothing can be dropped; the other half has
    // room for three.
    assert!(newest >= 3, "it is the oldest that go: {heard:?}");
    scene.say();
    assert_eq!(scene.catch_up(scene.said - 1), [scene.said - 1]);
    drop((scene.speaker, scene.reader, scene.slow));
    scene.bed.expect_empty();
}

#[test]
fn evict_ends_a_slow_receiver_and_nobody_else() {
    let mut scene = Scene::new(SlowConsumerPolicy::Evict);
    let id = scene.bed.last_opened();
    scene.say_until(|bed| bed.stats().evicted > 0);
    scene.bed.until_connections(2);
    let closed = scene.bed.log.closed.borrow().clone();
    assert_eq!(closed, [(id, CloseReason::Evicted, None)]);
    for _ in 0..100 {
        scene.say();
    }
    assert_eq!(scene.bed.stats().evicted, 1);
    // What it reads now is the beginning of what was said, and then the end.
    let mut expected = 0;
    scene.bed.until("the end of the evicted", |_| {
        while let Some(frame) = scene.slow.frame() {
            if frame.first == BINARY {
                assert_eq!(number(&frame), expected);
                expected += 1;
            }
        }
        // A message may have been cut.
        let _ = scene.slow.received();
        scene.slow.has_ended().then_some(())
    });
    assert!(expected < scene.said);
    drop((scene.speaker, scene.reader));
    scene.bed.expect_empty();
}

#[test]
fn control_frames_are_not_dropped_where_messages_are() {
    for policy in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut scene = Scene::new(policy);
        scene.say_until(|bed| bed.stats().dropped >= 10);
        let id = scene.bed.last_opened();
        for number in 0..20_u8 {
            scene.slow.send_frame(PING, [number]);
        }
        scene.bed.settle();
        scene.say_until(|bed| bed.stats().dropped >= 20);
        scene.bed.hub(move |hub| hub.close(id, CloseCode::GOING_AWAY, "bye")).expect("it is open");
        scene.bed.settle();
        let (mut pongs, mut last) = (Vec::new(), None);
        let close = loop {
            let frame = scene.bed.frame(&mut scene.slow);
            match frame.first {
                PONG => pongs.extend(frame.payload),
                CLOSE => break frame,
                _ => {
                    let number = number(&frame);
                    assert!(last.is_none_or(|last| last < number));
                    last = Some(number);
                }
            }
        };
        assert_eq!((close.close_code(), &close.payload[2..]), (1001, &b"bye"[..]));
        if policy == SlowConsumerPolicy::DropOldest {
            assert_eq!(
                last,
                Some(scene.said - 1),
                "what was said before the close comes before it"
            );
        }
        // Pings that were not read before the close need no answer (RFC 6455 section 5.5.1), but
        // those that were are answered in order.
        assert_eq!(pongs, (0..pongs.len() as u8).collect::<Vec<_>>(), "{policy:?}");
        scene.slow.send_frame(CLOSE, 1001_u16.to_be_bytes());
        assert!(scene.bed.end(scene.slow));
        scene.bed.until_connections(2);
        assert_eq!(
            scene.bed.log.closed.borrow().as_slice(),
            [(id, CloseReason::Local, Some(1001))]
        );
    }
}

#[test]
fn every_ping_of_a_slow_receiver_is_answered_once_it_reads() {
    for policy in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut scene = Scene::new(policy);
        scene.say_until(|bed| bed.stats().dropped >= 10);
        for number in 0..20_u8 {
            scene.slow.send_frame(PING, [number]);
        }
        scene.bed.settle();
        let mut pongs = Vec::new();
        while pongs.len() < 20 {
            let frame = scene.bed.frame(&mut scene.slow);
            if frame.first == PONG {
                pongs.extend(frame.payload);
            }
        }
        assert_eq!(pongs, (0..20).collect::<Vec<_>>(), "{policy:?}");
    }
}

#[test]
fn an_echo_client_that_does_not_read_is_held_back_and_loses_nothing() {
    for policy in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let mut bed = Bed::new(&with(policy));
        let peer = Peer::with_small_window(bed.address);
        let mut peer = bed.shake(peer, "/echo");
        let id = bed.last_opened();
        // More than all socket buffers on the way hold (net.ipv4.tcp_wmem, tcp_rmem).
        const COUNT: u64 = 3072;
        for number in 0..COUNT {
            peer.send_frame(BINARY, numbered(number));
        }
        // Until the server takes no more.
        let mut before = usize::MAX;
        while peer.unsent() < before {
            before = peer.unsent();
            bed.settle();
            peer.push();
        }
        assert!(peer.unsent() > 0, "the server keeps without bound what its client does not read");
        let waiting = bed.buffered(id);
        assert!(waiting <= BUFFER + (64 << 10) + SIZE, "{waiting} bytes wait");
        assert!(bed.stats().reading_paused > 0);
        // Others are served meanwhile.
        let mut other = bed.open("/echo");
        bed.exchange(&mut other, b"hello");
        for expected in 0..COUNT {
            assert_eq!(number(&bed.frame(&mut peer)), expected);
        }
        assert_eq!(
            (bed.stats().dropped, bed.stats().evicted, bed.log.refused.get()),
            (0, 0, 0),
            "{policy:?}"
        );
    }
}

#[test]
fn a_receiver_that_takes_nothing_is_ended_by_the_write_stall_timeout() {
    let mut options = with(SlowConsumerPolicy::DropNewest);
    options.write_stall_timeout = Some(Duration::from_secs(10));
    let mut bed = Bed::new(&options);
    let peer = Peer::with_small_window(bed.address);
    let mut peer = bed.shake(peer, "/echo");
    for number in 0..2048 {
        peer.send_frame(BINARY, numbered(number));
    }
    let mut witness = bed.open("/echo");
    bed.until("the server is held back", |bed| (bed.stats().reading_paused > 0).then_some(()));
    bed.settle();
    bed.pass(Duration::from_secs(9));
    assert_eq!(bed.log.closed(), []);
    bed.pass(Duration::from_secs(2));
    assert_eq!(bed.log.closed(), [CloseReason::WriteStall]);
    bed.exchange(&mut witness, b"still here");
    drop((peer, witness));
    bed.expect_empty();
}

#[test]
fn a_receiver_that_takes_a_little_now_and_then_is_not_stalled() {
    let mut options = with(SlowConsumerPolicy::DropNewest);
    options.write_stall_timeout = Some(Duration::from_secs(10));
    let mut bed = Bed::new(&options);
    let peer = Peer::with_small_window(bed.address);
    let mut peer = bed.shake(peer, "/echo");
    for number in 0..1024 {
        peer.send_frame(BINARY, numbered(number));
    }
    let mut next = 0;
    while next < 1024 {
        // What a socket buffer takes at a time is more than one message.
        for _ in 0..64.min(1024 - next) {
            assert_eq!(number(&bed.frame(&mut peer)), next);
            next += 1;
        }
        bed.settle();
        bed.pass(Duration::from_secs(6));
    }
    assert_eq!(bed.log.closed(), []);
}

#[test]
fn a_slow_receiver_that_leaves_takes_what_waits_for_it_along() {
    for policy in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut scene = Scene::new(policy);
        scene.say_until(|bed| bed.stats().dropped >= 10);
        scene.slow.reset();
        scene.bed.until_connections(2);
        let dropped = scene.bed.stats().dropped;
        for _ in 0..10 {
            scene.speaker.send_frame(BINARY, numbered(scene.said));
            assert_eq!(number(&scene.bed.frame(&mut scene.reader)), scene.said);
            scene.said += 1;
        }
        assert_eq!(scene.bed.stats().dropped, dropped);
        drop((scene.speaker, scene.reader));
        scene.bed.expect_empty();
    }
}

#[test]
fn answers_that_are_longer_than_their_questions_are_bounded_and_none_is_lost() {
    const COUNT: u64 = 2000;
    for policy in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let mut bed = Bed::new(&with(policy));
        let peer = Peer::with_small_window(bed.address);
        let mut peer = bed.shake(peer, "/amplify");
        let id = bed.last_opened();
        // All of it comes at once, and is answered as the peer reads.
        for number in 0..COUNT {
            peer.send_frame(BINARY, number.to_be_bytes());
        }
        bed.until("the server is held back", |bed| (bed.stats().reading_paused > 0).then_some(()));
        bed.settle();
        let waiting = bed.buffered(id);
        assert!(waiting <= BUFFER + 8 * AMPLIFIED, "{waiting} bytes wait");
        let mut other = bed.open("/amplify");
        other.send_frame(BINARY, [1; 8]);
        assert!(bed.frame(&mut other).payload == [1; 8 * AMPLIFIED]);
        for number in 0..COUNT {
            let frame = bed.frame(&mut peer);
            assert!(
                frame.payload == number.to_be_bytes().repeat(AMPLIFIED),
                "{policy:?}: answer {number}"
            );
        }
        assert_eq!(
            (bed.stats().dropped, bed.stats().evicted, bed.log.refused.get()),
            (0, 0, 0),
            "{policy:?}"
        );
    }
}

#[test]
fn drop_oldest_keeps_the_order_for_a_receiver_that_reads_a_little_now_and_then() {
    let mut scene = Scene::new(SlowConsumerPolicy::DropOldest);
    scene.say_until(|bed| bed.stats().dropped >= 10);
    let mut heard = Vec::new();
    for round in 0..300 {
        for _ in 0..round % 5 {
            heard.push(number(&scene.bed.frame(&mut scene.slow)));
        }
        scene.say();
    }
    heard.extend(scene.catch_up(scene.said - 1));
    assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
    assert_eq!(
        heard.len() as u64 + scene.bed.stats().dropped,
        scene.said,
        "each was heard or is counted as dropped"
    );
}

/// A scene where the kernel's buffers are full, and next to nothing waits here.
fn barely_slow() -> Scene {
    let mut scene = Scene::new(SlowConsumerPolicy::DropOldest);
    while scene.waiting() == 0 {
        scene.say();
    }
    assert!(scene.waiting() <= SIZE + 8);
    scene
}

#[test]
fn drop_oldest_brings_a_large_message_that_finds_little_before_it() {
    let mut scene = barely_slow();
    scene.speaker.send_frame(BINARY, vec![7; BUFFER / 2]);
    assert_eq!(scene.bed.frame(&mut scene.reader).payload.len(), BUFFER / 2);
    assert_eq!(scene.catch_up(scene.said - 1), (0..scene.said).collect::<Vec<_>>());
    assert!(scene.bed.frame(&mut scene.slow).payload == [7; BUFFER / 2]);
    assert_eq!(scene.bed.stats().dropped, 0);
}

#[test]
fn drop_oldest_lets_no_small_message_overtake_a_large_one() {
    let mut scene = barely_slow();
    // In the stream there is no room for the first, but for the second.
    scene.speaker.send(&[masked(BINARY, &[7; BUFFER / 2]), masked(BINARY, b"small")].concat());
    assert_eq!(scene.bed.frame(&mut scene.reader).payload.len(), BUFFER / 2);
    assert_eq!(scene.bed.frame(&mut scene.reader).payload, b"small");
    assert_eq!(scene.catch_up(scene.said - 1), (0..scene.said).collect::<Vec<_>>());
    assert!(scene.bed.frame(&mut scene.slow).payload == [7; BUFFER / 2]);
    assert_eq!(scene.bed.frame(&mut scene.slow).payload, b"small");
    scene.say();
    assert_eq!(scene.catch_up(scene.said - 1), [scene.said - 1]);
    assert_eq!(scene.bed.stats().dropped, 0);
}

#[test]
fn what_was_held_back_of_one_that_has_left_is_nobody_elses() {
    let mut bed = Bed::new(&with(SlowConsumerPolicy::DropNewest));
    // Each has the place of the one before.
    for round in 0..3_u8 {
        let peer = Peer::with_small_window(bed.address);
        let mut peer = bed.shake(peer, "/amplify");
        let paused = bed.stats().reading_paused;
        for number in 0..2000_u16 {
            peer.send_frame(BINARY, [&[round; 6][..], &number.to_be_bytes()].concat());
        }
        bed.until("the server is held back", |bed| {
            (bed.stats().reading_paused > paused).then_some(())
        });
        bed.settle();
        if round == 1 {
            for number in 0..2000_u16 {
                let expected = [&[round; 6][..], &number.to_be_bytes()].concat().repeat(AMPLIFIED);
                assert!(bed.frame(&mut peer).payload == expected, "answer {number}");
            }
        }
        peer.reset();
        bed.until_connections(0);
    }
    bed.expect_empty();
}
