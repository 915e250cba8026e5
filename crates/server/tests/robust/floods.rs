//! Clients that send too many small frames.

use std::time::Duration;

use windlass_server::CloseReason;
use windlass_ws::Violation;

use crate::{
    fixture::{Fixture, options},
    raw_client::{BINARY, CLOSE, Frame, PING, PONG, RawClient, TEXT, masked},
};

/// Reads up to the Close frame, and checks that nothing follows it.
fn frames_until_close(fixture: &mut Fixture, mut client: RawClient) -> (Vec<Frame>, u16) {
    let mut frames = Vec::new();
    loop {
        let frame = fixture.frame(&mut client);
        if frame.first == CLOSE {
            client.send_frame(CLOSE, &frame.payload);
            assert_eq!(fixture.read_to_end(client), b"");
            return (frames, frame.close_code());
        }
        frames.push(frame);
    }
}

#[test]
pub(crate) fn a_flood_of_pings_is_ended_with_1008_and_others_are_served_meanwhile() {
    let mut fixture = Fixture::new(&options());
    let mut witness = fixture.open("/echo");
    let mut client = fixture.open("/echo");
    // The clock of the test stands still, so all frames arrive in one second.
    for number in 0..2000_u16 {
        client.send_frame(PING, number.to_be_bytes());
    }
    fixture.exchange(&mut witness, b"hello");
    let (frames, code) = frames_until_close(&mut fixture, client);
    assert_eq!(code, 1008);
    fixture.until_connections(1);
    assert_eq!(fixture.log.closed(), [CloseReason::Violation(Violation::TooManyControls)]);
    let expected: Vec<Frame> =
        (0..1000_u16).map(|number| Frame::new(PONG, number.to_be_bytes())).collect();
    assert!(frames == expected, "the first 1000 are answered, in order: {}", frames.len());
    fixture.exchange(&mut witness, b"hello");
    drop(witness);
    fixture.expect_empty();
}

#[test]
pub(crate) fn pings_within_the_limit_are_answered_second_by_second() {
    let mut fixture = Fixture::new(&options());
    let mut client = fixture.open("/echo");
    for second in 0..3_u16 {
        for number in 0..999_u16 {
            client.send_frame(PING, (second * 1000 + number).to_be_bytes());
        }
        for number in 0..999_u16 {
            assert_eq!(
                fixture.frame(&mut client),
                Frame::new(PONG, (second * 1000 + number).to_be_bytes())
            );
        }
        fixture.advance_time(Duration::from_secs(2));
    }
    fixture.exchange(&mut client, b"still open");
}

#[test]
pub(crate) fn a_flood_of_pongs_is_a_flood_too() {
    let mut fixture = Fixture::new(&options());
    let mut client = fixture.open("/echo");
    client.send(&masked(PONG, b"").repeat(1001));
    assert_eq!(frames_until_close(&mut fixture, client), (vec![], 1008));
    fixture.expect_empty();
}

#[test]
pub(crate) fn empty_messages_are_messages() {
    const COUNT: usize = 100_000;
    let mut fixture = Fixture::new(&options());
    let mut client = fixture.open("/echo");
    let mut witness = fixture.open("/echo");
    client.send(&masked(TEXT, b"").repeat(COUNT));
    fixture.exchange(&mut witness, b"hello");
    for _ in 0..COUNT {
        assert_eq!(fixture.frame(&mut client), Frame::new(TEXT, b""));
    }
    fixture.exchange(&mut client, b"hello");
}

#[test]
pub(crate) fn a_message_in_too_many_fragments_is_ended_with_1008() {
    let mut options = options();
    options.limits.fragments_max = 100;
    let mut fixture = Fixture::new(&options);
    let mut client = fixture.open("/echo");
    let continuation = masked(0, b"");
    let message = |continuations: usize| {
        [masked(2, b"begin"), continuation.repeat(continuations), masked(0x80, b"end")].concat()
    };
    client.send(&message(98));
    assert_eq!(fixture.frame(&mut client), Frame::new(BINARY, "beginend"));
    client.send(&message(99));
    assert_eq!(frames_until_close(&mut fixture, client), (vec![], 1008));
    fixture.expect_empty();
    assert_eq!(fixture.stats().violations, 1);
}

#[test]
pub(crate) fn too_long_messages_are_closed_with_1009_when_the_length_is_known() {
    let mut options = options();
    (options.limits.frame_max, options.limits.message_max) = (1000, 2000);
    let mut fixture = Fixture::new(&options);
    // The header of a frame of one mebibyte, without its payload.
    let mut client = fixture.open("/echo");
    client.send(&masked(BINARY, &[0; 1 << 20])[..14]);
    assert_eq!(frames_until_close(&mut fixture, client), (vec![], 1009));
    let mut client = fixture.open("/echo");
    client.send(&[masked(2, &[0; 1000]), masked(0, &[0; 1000]), masked(0x80, &[0; 1])].concat());
    assert_eq!(frames_until_close(&mut fixture, client), (vec![], 1009));
    let mut client = fixture.open("/echo");
    client.send(&[masked(2, &[0; 1000]), masked(0x80, &[0; 1000])].concat());
    assert_eq!(fixture.frame(&mut client), Frame::new(BINARY, [0; 2000]));
    drop(client);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_head_without_an_end_is_rejected_with_431() {
    let mut fixture = Fixture::new(&options());
    for line in ["X: y\r\n".to_owned(), format!("X: {}\r\n", "y".repeat(100)), "y".repeat(1000)] {
        let mut client = RawClient::connect(fixture.address);
        client.send(b"GET / HTTP/1.1\r\n");
        client.send(line.repeat(20_000 / line.len()).as_bytes());
        let head = fixture.head(&mut client);
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
        fixture.read_to_end(client);
    }
    fixture.expect_empty();
}

#[test]
pub(crate) fn no_bytes_after_a_violation_count() {
    let mut fixture = Fixture::new(&options());
    let mut client = fixture.open("/echo");
    let bytes =
        [masked(TEXT, b"good"), masked(TEXT, b"\xff"), masked(TEXT, b"lost").repeat(10_000)];
    client.send(&bytes.concat());
    assert_eq!(frames_until_close(&mut fixture, client), (vec![Frame::new(TEXT, "good")], 1007));
    assert_eq!(fixture.log.messages.get(), 1);
    fixture.expect_empty();
}
