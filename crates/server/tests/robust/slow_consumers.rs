//! Receivers that do not read.

use std::time::Duration;

use windlass_server::{CloseReason, Options, SlowConsumerPolicy};
use windlass_ws::CloseCode;

use crate::{
    fixture::{AMPLIFIED, Fixture, options},
    raw_client::{BINARY, CLOSE, Frame, PING, PONG, RawClient, masked},
};

const SIZE: usize = 8 << 10;
const BUFFER: usize = 64 << 10;
const UNBOUNDED: &str = "the server keeps without bound what a receiver does not read";

fn with(slow: SlowConsumerPolicy) -> Options {
    let mut options = options();
    options.slow = slow;
    options.receiver_buffer_max = BUFFER;
    options.limits.message_max = BUFFER / 2;
    options
}

/// Returns a message that contains its number, and in which each position differs from its
/// neighbours.
fn numbered(number: u64) -> Vec<u8> {
    let mut message = Vec::with_capacity(SIZE);
    for word in (number..).take(SIZE / 8) {
        message.extend_from_slice(&word.to_be_bytes());
    }
    message
}

/// Checks the whole message, and returns its number.
fn number(frame: &Frame) -> u64 {
    assert_eq!(frame.first, BINARY);
    let number = u64::from_be_bytes(*frame.payload.first_chunk().expect("a number"));
    assert!(frame.payload == numbered(number), "message {number} was changed");
    number
}

/// A room with three clients: one sends, one reads, and one does not read.
struct SlowReader {
    fixture: Fixture,
    speaker: RawClient,
    reader: RawClient,
    slow: RawClient,
    said: u64,
}

impl SlowReader {
    fn new(slow: SlowConsumerPolicy) -> Self {
        let mut fixture = Fixture::new(&with(slow));
        let speaker = fixture.open("/room");
        let reader = fixture.open("/room");
        let slow = RawClient::with_small_window(fixture.address);
        let slow = fixture.handshake(slow, "/room");
        Self { fixture, speaker, reader, slow, said: 0 }
    }

    /// Sends one message, which the reader receives.
    fn say(&mut self) {
        self.speaker.send_frame(BINARY, numbered(self.said));
        let frame = self.heard();
        assert_eq!(number(&frame), self.said, "who reads misses nothing");
        self.said += 1;
    }

    /// Returns the next frame of the reader. The kernel may accept what the speaker sends in parts.
    fn heard(&mut self) -> Frame {
        self.fixture.until("a frame", |_| {
            self.speaker.push();
            self.reader.frame()
        })
    }

    fn say_until(&mut self, is_enough: impl Fn(&Fixture) -> bool) {
        while !is_enough(&self.fixture) {
            self.say();
            assert!(self.said < 10_000, "{UNBOUNDED}");
        }
    }

    fn waiting(&mut self) -> usize {
        let id = self.fixture.last_opened();
        self.fixture.buffered(id)
    }

    /// Returns the numbers that the slow client receives when it reads up to this message.
    fn catch_up(&mut self, last: u64) -> Vec<u64> {
        let mut heard = Vec::new();
        while heard.last() != Some(&last) {
            heard.push(number(&self.fixture.frame(&mut self.slow)));
        }
        heard
    }
}

#[test]
pub(crate) fn drop_newest_delivers_the_oldest_messages_in_order() {
    let mut slow_reader = SlowReader::new(SlowConsumerPolicy::DropNewest);
    let mut kept = Vec::new();
    let mut dropped = 0;
    while dropped < 100 {
        slow_reader.say();
        match slow_reader.fixture.stats().dropped {
            // The kernel may take more messages later, when it has time.
            now if now == dropped => kept.push(slow_reader.said - 1),
            now => dropped = now,
        }
        assert!(slow_reader.said < 10_000, "{UNBOUNDED}");
    }
    assert!(slow_reader.waiting() <= BUFFER, "{}", slow_reader.waiting());
    assert_eq!(slow_reader.catch_up(*kept.last().unwrap()), kept);
    // The slow client receives all messages from here on.
    slow_reader.say();
    assert_eq!(slow_reader.catch_up(slow_reader.said - 1), [slow_reader.said - 1]);
    assert_eq!(slow_reader.fixture.stats().dropped, dropped);
    drop((slow_reader.speaker, slow_reader.reader, slow_reader.slow));
    slow_reader.fixture.expect_empty();
}

#[test]
pub(crate) fn drop_oldest_delivers_the_newest_messages_in_order() {
    let mut slow_reader = SlowReader::new(SlowConsumerPolicy::DropOldest);
    slow_reader.say_until(|fixture| fixture.stats().dropped >= 100);
    assert!(slow_reader.waiting() <= BUFFER, "{}", slow_reader.waiting());
    let heard = slow_reader.catch_up(slow_reader.said - 1);
    assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
    assert_eq!(
        heard.len() as u64 + slow_reader.fixture.stats().dropped,
        slow_reader.said,
        "each was heard or is counted as dropped"
    );
    let newest = heard
        .iter()
        .rev()
        .zip((0..slow_reader.said).rev())
        .take_while(|(heard, said)| **heard == *said)
        .count();
    // Half of the buffer belongs to the stream, and its messages cannot be dropped. The other half
    // has room for three messages.
    assert!(newest >= 3, "it is the oldest that go: {heard:?}");
    slow_reader.say();
    assert_eq!(slow_reader.catch_up(slow_reader.said - 1), [slow_reader.said - 1]);
    drop((slow_reader.speaker, slow_reader.reader, slow_reader.slow));
    slow_reader.fixture.expect_empty();
}

#[test]
pub(crate) fn evict_closes_only_the_slow_receiver() {
    let mut slow_reader = SlowReader::new(SlowConsumerPolicy::Evict);
    let id = slow_reader.fixture.last_opened();
    slow_reader.say_until(|fixture| fixture.stats().evicted > 0);
    slow_reader.fixture.until_connections(2);
    let closed = slow_reader.fixture.log.closed.borrow().clone();
    assert_eq!(closed, [(id, CloseReason::Evicted, None)]);
    for _ in 0..100 {
        slow_reader.say();
    }
    assert_eq!(slow_reader.fixture.stats().evicted, 1);
    // The client now reads the first messages, and then the end.
    let mut expected = 0;
    slow_reader.fixture.until("the end of the evicted", |_| {
        while let Some(frame) = slow_reader.slow.frame() {
            if frame.first == BINARY {
                assert_eq!(number(&frame), expected);
                expected += 1;
            }
        }
        // The last message may have been cut.
        let _ = slow_reader.slow.received();
        slow_reader.slow.has_ended().then_some(())
    });
    assert!(expected < slow_reader.said);
    drop((slow_reader.speaker, slow_reader.reader));
    slow_reader.fixture.expect_empty();
}

#[test]
pub(crate) fn control_frames_are_not_dropped_where_messages_are() {
    for policy in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut slow_reader = SlowReader::new(policy);
        slow_reader.say_until(|fixture| fixture.stats().dropped >= 10);
        let id = slow_reader.fixture.last_opened();
        for number in 0..20_u8 {
            slow_reader.slow.send_frame(PING, [number]);
        }
        slow_reader.fixture.settle();
        slow_reader.say_until(|fixture| fixture.stats().dropped >= 20);
        slow_reader
            .fixture
            .with_hub(move |hub| hub.close(id, CloseCode::GOING_AWAY, "bye"))
            .expect("it is open");
        slow_reader.fixture.settle();
        let (mut pongs, mut last) = (Vec::new(), None);
        let close = loop {
            let frame = slow_reader.fixture.frame(&mut slow_reader.slow);
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
                Some(slow_reader.said - 1),
                "what was said before the close comes before it"
            );
        }
        // Pings that were not read before the Close frame need no answer (RFC 6455 section 5.5.1).
        // Those that were read are answered in order.
        assert_eq!(pongs, (0..pongs.len() as u8).collect::<Vec<_>>(), "{policy:?}");
        slow_reader.slow.send_frame(CLOSE, 1001_u16.to_be_bytes());
        assert!(slow_reader.fixture.closes_in_order(slow_reader.slow));
        slow_reader.fixture.until_connections(2);
        assert_eq!(
            slow_reader.fixture.log.closed.borrow().as_slice(),
            [(id, CloseReason::Local, Some(1001))]
        );
    }
}

#[test]
pub(crate) fn every_ping_of_a_slow_receiver_is_answered_once_it_reads() {
    for policy in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut slow_reader = SlowReader::new(policy);
        slow_reader.say_until(|fixture| fixture.stats().dropped >= 10);
        for number in 0..20_u8 {
            slow_reader.slow.send_frame(PING, [number]);
        }
        slow_reader.fixture.settle();
        let mut pongs = Vec::new();
        while pongs.len() < 20 {
            let frame = slow_reader.fixture.frame(&mut slow_reader.slow);
            if frame.first == PONG {
                pongs.extend(frame.payload);
            }
        }
        assert_eq!(pongs, (0..20).collect::<Vec<_>>(), "{policy:?}");
    }
}

#[test]
pub(crate) fn an_echo_client_that_does_not_read_is_held_back_and_loses_nothing() {
    for policy in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let mut fixture = Fixture::new(&with(policy));
        let client = RawClient::with_small_window(fixture.address);
        let mut client = fixture.handshake(client, "/echo");
        let id = fixture.last_opened();
        // More than all socket buffers on the way can hold (net.ipv4.tcp_wmem, tcp_rmem).
        const COUNT: u64 = 3072;
        for number in 0..COUNT {
            client.send_frame(BINARY, numbered(number));
        }
        fixture.until("the server is held back", |fixture| {
            client.push();
            (fixture.stats().reading_paused > 0).then_some(())
        });
        // Sends until the server accepts no more.
        let mut before = usize::MAX;
        while client.unsent() < before {
            before = client.unsent();
            fixture.settle();
            client.push();
        }
        assert!(
            client.unsent() > 0,
            "the server keeps without bound what its client does not read"
        );
        let waiting = fixture.buffered(id);
        assert!(waiting <= BUFFER + (64 << 10) + SIZE, "{waiting} bytes wait");
        // Other clients are served meanwhile.
        let mut other = fixture.open("/echo");
        fixture.exchange(&mut other, b"hello");
        for expected in 0..COUNT {
            assert_eq!(number(&fixture.frame(&mut client)), expected);
        }
        assert_eq!(
            (fixture.stats().dropped, fixture.stats().evicted, fixture.log.refused.get()),
            (0, 0, 0),
            "{policy:?}"
        );
    }
}

#[test]
pub(crate) fn a_receiver_that_takes_nothing_is_ended_by_the_write_stall_timeout() {
    let mut options = with(SlowConsumerPolicy::DropNewest);
    options.write_stall_timeout = Some(Duration::from_secs(10));
    let mut fixture = Fixture::new(&options);
    let client = RawClient::with_small_window(fixture.address);
    let mut client = fixture.handshake(client, "/echo");
    for number in 0..2048 {
        client.send_frame(BINARY, numbered(number));
    }
    let mut witness = fixture.open("/echo");
    fixture.until("the server is held back", |fixture| {
        client.push();
        (fixture.stats().reading_paused > 0).then_some(())
    });
    fixture.settle();
    // The kernel may accept a little more later, and the time counts from there.
    let id = fixture.log.opened.borrow()[0];
    let (mut waiting, mut seconds) = (fixture.buffered(id), 0);
    while fixture.log.closed().is_empty() {
        fixture.advance_time(Duration::from_secs(1));
        seconds += 1;
        let now = fixture.buffered(id);
        if now != waiting && fixture.log.closed().is_empty() {
            (waiting, seconds) = (now, 0);
        }
        assert!(seconds <= 11, "it may take nothing for {seconds} s");
    }
    assert!(seconds > 9, "ended after {seconds} s");
    assert_eq!(fixture.log.closed(), [CloseReason::WriteStall]);
    fixture.exchange(&mut witness, b"still here");
    drop((client, witness));
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_receiver_that_takes_a_little_now_and_then_is_not_stalled() {
    let mut options = with(SlowConsumerPolicy::DropNewest);
    options.write_stall_timeout = Some(Duration::from_secs(10));
    let mut fixture = Fixture::new(&options);
    let client = RawClient::with_small_window(fixture.address);
    let mut client = fixture.handshake(client, "/echo");
    for number in 0..1024 {
        client.send_frame(BINARY, numbered(number));
    }
    let mut next = 0;
    while next < 1024 {
        // Reads until the server has sent more and reads again. The kernel decides how much that
        // takes.
        let before = fixture.log.messages.get();
        while next < 1024 && [before, 1024].contains(&fixture.log.messages.get()) {
            assert_eq!(number(&fixture.frame(&mut client)), next);
            next += 1;
        }
        fixture.advance_time(Duration::from_secs(6));
    }
    assert!(fixture.stats().reading_paused > 0, "all of it fits into the buffers");
    assert_eq!(fixture.log.closed(), []);
}

#[test]
pub(crate) fn waiting_messages_are_dropped_with_their_receiver() {
    for policy in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut slow_reader = SlowReader::new(policy);
        slow_reader.say_until(|fixture| fixture.stats().dropped >= 10);
        slow_reader.slow.reset();
        slow_reader.fixture.until_connections(2);
        let dropped = slow_reader.fixture.stats().dropped;
        for _ in 0..10 {
            slow_reader.speaker.send_frame(BINARY, numbered(slow_reader.said));
            assert_eq!(
                number(&slow_reader.fixture.frame(&mut slow_reader.reader)),
                slow_reader.said
            );
            slow_reader.said += 1;
        }
        assert_eq!(slow_reader.fixture.stats().dropped, dropped);
        drop((slow_reader.speaker, slow_reader.reader));
        slow_reader.fixture.expect_empty();
    }
}

#[test]
pub(crate) fn answers_that_are_longer_than_their_questions_are_bounded_and_none_is_lost() {
    const COUNT: u64 = 2000;
    for policy in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let mut fixture = Fixture::new(&with(policy));
        let client = RawClient::with_small_window(fixture.address);
        let mut client = fixture.handshake(client, "/amplify");
        let id = fixture.last_opened();
        // All messages arrive at once, and are answered as the client reads.
        for number in 0..COUNT {
            client.send_frame(BINARY, number.to_be_bytes());
        }
        fixture.until("the server is held back", |fixture| {
            (fixture.stats().reading_paused > 0).then_some(())
        });
        fixture.settle();
        let waiting = fixture.buffered(id);
        assert!(waiting <= BUFFER + 8 * AMPLIFIED, "{waiting} bytes wait");
        let mut other = fixture.open("/amplify");
        other.send_frame(BINARY, [1; 8]);
        assert!(fixture.frame(&mut other).payload == [1; 8 * AMPLIFIED]);
        for number in 0..COUNT {
            let frame = fixture.frame(&mut client);
            assert!(
                frame.payload == number.to_be_bytes().repeat(AMPLIFIED),
                "{policy:?}: answer {number}"
            );
        }
        assert_eq!(
            (fixture.stats().dropped, fixture.stats().evicted, fixture.log.refused.get()),
            (0, 0, 0),
            "{policy:?}"
        );
    }
}

#[test]
pub(crate) fn drop_oldest_keeps_the_order_for_a_receiver_that_reads_a_little_now_and_then() {
    let mut slow_reader = SlowReader::new(SlowConsumerPolicy::DropOldest);
    slow_reader.say_until(|fixture| fixture.stats().dropped >= 10);
    let mut heard = Vec::new();
    for round in 0..300 {
        for _ in 0..round % 5 {
            heard.push(number(&slow_reader.fixture.frame(&mut slow_reader.slow)));
        }
        // Two a round, as many as it reads: so there is always something to read.
        slow_reader.say();
        slow_reader.say();
    }
    heard.extend(slow_reader.catch_up(slow_reader.said - 1));
    assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
    assert_eq!(
        heard.len() as u64 + slow_reader.fixture.stats().dropped,
        slow_reader.said,
        "each was heard or is counted as dropped"
    );
}

/// Returns a fixture in which the kernel's buffers are full and very little waits in the server.
fn barely_slow() -> SlowReader {
    let mut slow_reader = SlowReader::new(SlowConsumerPolicy::DropOldest);
    while slow_reader.waiting() == 0 {
        slow_reader.say();
    }
    assert!(slow_reader.waiting() <= SIZE + 8);
    slow_reader
}

#[test]
pub(crate) fn drop_oldest_brings_a_large_message_that_finds_little_before_it() {
    let mut slow_reader = barely_slow();
    slow_reader.speaker.send_frame(BINARY, vec![7; BUFFER / 2]);
    assert_eq!(slow_reader.heard().payload.len(), BUFFER / 2);
    assert_eq!(
        slow_reader.catch_up(slow_reader.said - 1),
        (0..slow_reader.said).collect::<Vec<_>>()
    );
    assert!(slow_reader.fixture.frame(&mut slow_reader.slow).payload == [7; BUFFER / 2]);
    assert_eq!(slow_reader.fixture.stats().dropped, 0);
}

#[test]
pub(crate) fn drop_oldest_lets_no_small_message_overtake_a_large_one() {
    let mut slow_reader = barely_slow();
    // The stream has room for the second message, but not for the first.
    slow_reader
        .speaker
        .send(&[masked(BINARY, &[7; BUFFER / 2]), masked(BINARY, b"small")].concat());
    assert_eq!(slow_reader.heard().payload.len(), BUFFER / 2);
    assert_eq!(slow_reader.heard().payload, b"small");
    assert_eq!(
        slow_reader.catch_up(slow_reader.said - 1),
        (0..slow_reader.said).collect::<Vec<_>>()
    );
    assert!(slow_reader.fixture.frame(&mut slow_reader.slow).payload == [7; BUFFER / 2]);
    assert_eq!(slow_reader.fixture.frame(&mut slow_reader.slow).payload, b"small");
    slow_reader.say();
    assert_eq!(slow_reader.catch_up(slow_reader.said - 1), [slow_reader.said - 1]);
    assert_eq!(slow_reader.fixture.stats().dropped, 0);
}

#[test]
pub(crate) fn held_input_is_not_passed_to_the_next_connection() {
    let mut fixture = Fixture::new(&with(SlowConsumerPolicy::DropNewest));
    // Each connection uses the slot of the one before.
    for round in 0..3_u8 {
        let client = RawClient::with_small_window(fixture.address);
        let mut client = fixture.handshake(client, "/amplify");
        let paused = fixture.stats().reading_paused;
        for number in 0..2000_u16 {
            client.send_frame(BINARY, [&[round; 6][..], &number.to_be_bytes()].concat());
        }
        fixture.until("the server is held back", |fixture| {
            (fixture.stats().reading_paused > paused).then_some(())
        });
        fixture.settle();
        if round == 1 {
            for number in 0..2000_u16 {
                let expected = [&[round; 6][..], &number.to_be_bytes()].concat().repeat(AMPLIFIED);
                assert!(fixture.frame(&mut client).payload == expected, "answer {number}");
            }
        }
        client.reset();
        fixture.until_connections(0);
    }
    fixture.expect_empty();
}
