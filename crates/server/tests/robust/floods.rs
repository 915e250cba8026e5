//! Peers that send too much of what is small.

use std::time::Duration;

use windlass_server::CloseReason;
use windlass_ws::Violation;

use crate::{
    bed::{Bed, options},
    peer::{BINARY, CLOSE, Frame, PING, PONG, Peer, TEXT, masked},
};

/// Reads up to the Close frame, and checks that nothing comes after it.
fn frames_until_close(bed: &mut Bed, mut peer: Peer) -> (Vec<Frame>, u16) {
    let mut frames = Vec::new();
    loop {
        let frame = bed.frame(&mut peer);
        if frame.first == CLOSE {
            peer.send_frame(CLOSE, &frame.payload);
            assert_eq!(bed.rest(peer), b"");
            return (frames, frame.close_code());
        }
        frames.push(frame);
    }
}

#[test]
fn a_flood_of_pings_is_ended_with_1008_and_others_are_served_meanwhile() {
    let mut bed = Bed::new(&options());
    let mut witness = bed.open("/echo");
    let mut peer = bed.open("/echo");
    // The tests' clock stands: all of it is in one second.
    for number in 0..2000_u16 {
        peer.send_frame(PING, number.to_be_bytes());
    }
    bed.exchange(&mut witness, b"hello");
    let (frames, code) = frames_until_close(&mut bed, peer);
    assert_eq!(code, 1008);
    bed.until_connections(1);
    assert_eq!(bed.log.closed(), [CloseReason::Violation(Violation::TooManyControls)]);
    let expected: Vec<Frame> =
        (0..1000_u16).map(|number| Frame::new(PONG, number.to_be_bytes())).collect();
    assert!(frames == expected, "the first 1000 are answered, in order: {}", frames.len());
    bed.exchange(&mut witness, b"hello");
    drop(witness);
    bed.expect_empty();
}

#[test]
fn pings_within_the_limit_are_answered_second_by_second() {
    let mut bed = Bed::new(&options());
    let mut peer = bed.open("/echo");
    for second in 0..3_u16 {
        for number in 0..999_u16 {
            peer.send_frame(PING, (second * 1000 + number).to_be_bytes());
        }
        for number in 0..999_u16 {
            assert_eq!(
                bed.frame(&mut peer),
                Frame::new(PONG, (second * 1000 + number).to_be_bytes())
            );
        }
        bed.pass(Duration::from_secs(2));
    }
    bed.exchange(&mut peer, b"still open");
}

#[test]
fn a_flood_of_pongs_is_a_flood_too() {
    let mut bed = Bed::new(&options());
    let mut peer = bed.open("/echo");
    peer.send(&masked(PONG, b"").repeat(1001));
    assert_eq!(frames_until_close(&mut bed, peer), (vec![], 1008));
    bed.expect_empty();
}

#[test]
fn empty_messages_are_messages() {
    const COUNT: usize = 100_000;
    let mut bed = Bed::new(&options());
    let mut peer = bed.open("/echo");
    let mut witness = bed.open("/echo");
    peer.send(&masked(TEXT, b"").repeat(COUNT));
    bed.exchange(&mut witness, b"hello");
    for _ in 0..COUNT {
        assert_eq!(bed.frame(&mut peer), Frame::new(TEXT, b""));
    }
    bed.exchange(&mut peer, b"hello");
}

#[test]
fn a_message_in_too_many_fragments_is_ended_with_1008() {
    let mut options = options();
    options.limits.fragments_max = 100;
    let mut bed = Bed::new(&options);
    let mut peer = bed.open("/echo");
    let continuation = masked(0, b"");
    let message = |continuations: usize| {
        [masked(2, b"begin"), continuation.repeat(continuations), masked(0x80, b"end")].concat()
    };
    peer.send(&message(98));
    assert_eq!(bed.frame(&mut peer), Frame::new(BINARY, "beginend"));
    peer.send(&message(99));
    assert_eq!(frames_until_close(&mut bed, peer), (vec![], 1008));
    bed.expect_empty();
    assert_eq!(bed.stats().violations, 1);
}

#[test]
fn what_is_too_long_is_ended_with_1009_when_its_length_is_known() {
    let mut options = options();
    (options.limits.frame_max, options.limits.message_max) = (1000, 2000);
    let mut bed = Bed::new(&options);
    // The head of a frame of a mebibyte, and nothing of it.
    let mut peer = bed.open("/echo");
    peer.send(&masked(BINARY, &[0; 1 << 20])[..14]);
    assert_eq!(frames_until_close(&mut bed, peer), (vec![], 1009));
    let mut peer = bed.open("/echo");
    peer.send(&[masked(2, &[0; 1000]), masked(0, &[0; 1000]), masked(0x80, &[0; 1])].concat());
    assert_eq!(frames_until_close(&mut bed, peer), (vec![], 1009));
    let mut peer = bed.open("/echo");
    peer.send(&[masked(2, &[0; 1000]), masked(0x80, &[0; 1000])].concat());
    assert_eq!(bed.frame(&mut peer), Frame::new(BINARY, [0; 2000]));
    drop(peer);
    bed.expect_empty();
}

#[test]
fn a_head_without_an_end_is_refused_with_431() {
    let mut bed = Bed::new(&options());
    for line in ["X: y\r\n".to_owned(), format!("X: {}\r\n", "y".repeat(100)), "y".repeat(1000)] {
        let mut peer = Peer::connect(bed.address);
        peer.send(b"GET / HTTP/1.1\r\n");
        peer.send(line.repeat(20_000 / line.len()).as_bytes());
        let head = bed.head(&mut peer);
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
        bed.rest(peer);
    }
    bed.expect_empty();
}

#[test]
fn no_bytes_after_a_violation_count() {
    let mut bed = Bed::new(&options());
    let mut peer = bed.open("/echo");
    let bytes =
        [masked(TEXT, b"good"), masked(TEXT, b"\xff"), masked(TEXT, b"lost").repeat(10_000)];
    peer.send(&bytes.concat());
    assert_eq!(frames_until_close(&mut bed, peer), (vec![Frame::new(TEXT, "good")], 1007));
    assert_eq!(bed.log.messages.get(), 1);
    bed.expect_empty();
}
