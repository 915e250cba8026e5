//! Within a connection no message is lost or reordered, however messages are cut, gathered and
//! mixed.

use std::collections::VecDeque;

use crate::{
    fixture::{Fixture, Random, options},
    raw_client::{BINARY, Frame, PING, PONG, RawClient, TEXT, masked},
};

/// A message: its sender, its number at that sender, and bytes that depend on both.
fn message(sender: usize, number: usize, size: usize) -> Vec<u8> {
    let mut message = format!("{sender} {number} ").into_bytes();
    let len = size.saturating_sub(message.len());
    let alphabet = b"abcdefghijklmnopqrstuvwxyz";
    // Copied from whole alphabets, because tests are not optimised.
    let filler = alphabet.repeat(len / alphabet.len() + 2);
    let begin = (sender * 7 + number) % alphabet.len();
    message.extend_from_slice(&filler[begin..begin + len]);
    message
}

fn size(random: &mut Random) -> usize {
    match random.below(10) {
        0 => 20_000 + random.below(60_000),
        1 | 2 => 100 + random.below(2000),
        _ => random.below(130),
    }
}

/// A client that sends its bytes in pieces of any size.
struct Speaker {
    client: RawClient,
    /// Bytes that the kernel has not been given yet.
    bytes: Vec<u8>,
    expected: VecDeque<Frame>,
    heard: Vec<Vec<u8>>,
}

impl Speaker {
    fn new(client: RawClient) -> Self {
        Self { client, bytes: Vec::new(), expected: VecDeque::new(), heard: Vec::new() }
    }

    /// Sends a message in one frame or in several.
    fn say(&mut self, random: &mut Random, payload: &[u8]) {
        if random.below(4) > 0 || payload.len() < 3 {
            return self.bytes.extend(masked(TEXT, payload));
        }
        let (first, rest) = payload.split_at(1 + random.below(payload.len() - 2));
        let (second, third) = rest.split_at(random.below(rest.len()));
        self.bytes.extend(masked(1, first));
        self.bytes.extend(masked(0, second));
        self.bytes.extend(masked(0x80, third));
    }

    fn send_some(&mut self, random: &mut Random) {
        let count = match random.below(3) {
            0 => 1 + random.below(20),
            1 => random.below(5000),
            _ => usize::MAX,
        };
        let piece: Vec<u8> = self.bytes.drain(..count.min(self.bytes.len())).collect();
        self.client.send(&piece);
    }
}

#[test]
pub(crate) fn echoes_and_pongs_keep_the_order_of_the_messages() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new(&options());
        let mut speakers: Vec<Speaker> =
            (0..4).map(|_| Speaker::new(fixture.open("/echo"))).collect();
        for number in 0..100 {
            for (index, speaker) in speakers.iter_mut().enumerate() {
                if random.below(5) == 0 {
                    let payload = format!("{number}");
                    speaker.bytes.extend(masked(PING, payload.as_bytes()));
                    speaker.expected.push_back(Frame::new(PONG, payload));
                } else {
                    let payload = message(index, number, size(&mut random));
                    speaker.say(&mut random, &payload);
                    speaker.expected.push_back(Frame::new(TEXT, payload));
                }
                speaker.send_some(&mut random);
            }
            if random.below(2) == 0 {
                fixture.settle();
            }
        }
        for speaker in &mut speakers {
            speaker.client.send(&core::mem::take(&mut speaker.bytes));
            while let Some(expected) = speaker.expected.pop_front() {
                assert!(
                    fixture.frame(&mut speaker.client) == expected,
                    "seed {seed}: {} to come",
                    speaker.expected.len()
                );
            }
            assert_eq!(speaker.client.received(), b"");
        }
    }
}

#[test]
pub(crate) fn all_in_a_room_hear_the_same_in_the_same_order_but_not_themselves() {
    const SPEAKERS: usize = 5;
    const MESSAGES: usize = 60;
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut options = options();
        options.receiver_buffer_max = 64 << 20;
        let mut fixture = Fixture::new(&options);
        let mut speakers: Vec<Speaker> =
            (0..SPEAKERS).map(|_| Speaker::new(fixture.open("/room"))).collect();
        for number in 0..MESSAGES {
            for (index, speaker) in speakers.iter_mut().enumerate() {
                let payload = message(index, number, size(&mut random));
                speaker.say(&mut random, &payload);
                speaker.send_some(&mut random);
            }
            if random.below(3) == 0 {
                fixture.settle();
            }
        }
        for speaker in &mut speakers {
            speaker.client.send(&core::mem::take(&mut speaker.bytes));
        }
        for index in 0..SPEAKERS {
            while speakers[index].heard.len() < (SPEAKERS - 1) * MESSAGES {
                // It may wait for what the kernel has not taken of another one yet.
                let frame = fixture.until("a frame", |_| {
                    speakers.iter_mut().for_each(|speaker| speaker.client.push());
                    speakers[index].client.frame()
                });
                assert_eq!(frame.first, TEXT);
                speakers[index].heard.push(frame.payload);
            }
        }
        judge(&speakers, MESSAGES, seed);
    }
}

/// Returns the sender and the number of a message.
fn parts(message: &[u8]) -> (usize, usize) {
    let mut parts =
        message.split(|&byte| byte == b' ').map(|part| core::str::from_utf8(part).expect("text"));
    let mut number = || parts.next().and_then(|part| part.parse().ok()).expect("a number");
    (number(), number())
}

fn judge(speakers: &[Speaker], messages: usize, seed: u64) {
    let count = speakers.len();
    for (index, speaker) in speakers.iter().enumerate() {
        let mut next = vec![0; count];
        for heard in &speaker.heard {
            let (sender, number) = parts(heard);
            assert_ne!(sender, index, "seed {seed}: nobody hears what it says itself");
            assert_eq!(number, next[sender], "seed {seed}: {index} hears {sender}");
            assert!(
                *heard == message(sender, number, heard.len()),
                "seed {seed}: a message was changed"
            );
            next[sender] += 1;
        }
        next[index] = messages;
        assert_eq!(next, vec![messages; count], "seed {seed}: {index} hears all of it");
    }
    // Two clients that receive the same messages receive them in the same order.
    for (one, other) in (0..count).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let both = |index: usize| -> Vec<(usize, usize)> {
            let all = speakers[index].heard.iter().map(|heard| parts(heard));
            all.filter(|(sender, _)| *sender != one && *sender != other).collect()
        };
        assert!(both(one) == both(other), "seed {seed}: {one} and {other} hear another order");
    }
}

#[test]
pub(crate) fn a_message_arrives_whole_wherever_it_is_cut() {
    let mut fixture = Fixture::new(&options());
    let mut client = fixture.open("/echo");
    let bytes =
        [masked(BINARY, &[7; 130]), masked(TEXT, "h\u{e9}llo".as_bytes()), masked(PING, b"p")]
            .concat();
    for cut in 0..=bytes.len() {
        client.send(&bytes[..cut]);
        fixture.settle();
        client.send(&bytes[cut..]);
        assert_eq!(fixture.frame(&mut client), Frame::new(BINARY, [7; 130]), "cut at {cut}");
        assert_eq!(fixture.frame(&mut client).text(), "h\u{e9}llo");
        assert_eq!(fixture.frame(&mut client), Frame::new(PONG, "p"));
    }
}
