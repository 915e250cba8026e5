//! Compressed messages that are small in transit and large after decompression.

use windlass_server::CloseReason;
use windlass_ws::{
    Violation,
    deflate::{Agreement, Codec, CodecPool, DeflateConfig},
};

use crate::{
    fixture::{Fixture, options},
    own_process::{is_own_process, peak_of},
    raw_client::{BINARY, COMPRESSED, Frame, RawClient, TEXT, masked, upgrade},
};

const MESSAGE_MAX: usize = 1 << 20;

fn fixture() -> Fixture {
    let mut options = options();
    options.deflate = Some(DeflateConfig::DEFAULT);
    options.limits.message_max = MESSAGE_MAX;
    // These tests are about the length limit.
    options.limits.inflate_ratio_max = None;
    Fixture::new(&options)
}

fn open(fixture: &mut Fixture, path: &str) -> RawClient {
    let mut client = RawClient::connect(fixture.address);
    client.send(&upgrade(path, "Sec-WebSocket-Extensions: permessage-deflate\r\n"));
    let head = fixture.head(&mut client);
    assert!(head.contains("\r\nSec-WebSocket-Extensions: permessage-deflate"), "{head}");
    client
}

/// Returns the payload of a compressed message that does not depend on others.
fn compressed(payload: &[u8]) -> Vec<u8> {
    let mut codec = Codec::new(false, &Agreement::DEFAULT, &DeflateConfig::DEFAULT);
    let mut out = Vec::new();
    assert!(codec.compress(&mut CodecPool::new(), payload, &mut out), "it becomes shorter");
    out
}

#[test]
fn a_bomb_is_ended_with_1009_and_takes_no_more_memory_than_a_message() {
    if !is_own_process(
        "decompression_bombs::a_bomb_is_ended_with_1009_and_takes_no_more_memory_than_a_message",
    ) {
        return;
    }
    let mut fixture = fixture();
    let bomb = compressed(&vec![0; 64 << 20]);
    assert!(bomb.len() < MESSAGE_MAX, "{} bytes on the way", bomb.len());
    let whole = masked(BINARY | COMPRESSED, &bomb);
    // The same message in three frames.
    let (first, second) = bomb.split_at(1000);
    let cut = [masked(2 | COMPRESSED, first), masked(0, b""), masked(0x80, second)].concat();
    for bytes in [whole, cut] {
        let mut client = open(&mut fixture, "/sink");
        let peak = peak_of(|| {
            client.send(&bytes);
            let close = fixture.frame(&mut client);
            assert_eq!(close.close_code(), 1009);
        });
        // The message up to the limit, twice while its buffer grows. The client's buffers are
        // included.
        assert!(peak < 4 * MESSAGE_MAX, "{peak} bytes");
        fixture.read_to_end(client);
        fixture.until_connections(0);
    }
    assert_eq!(fixture.log.closed(), [CloseReason::Violation(Violation::MessageTooBig); 2]);
    assert_eq!(fixture.log.messages.get(), 0);
    fixture.expect_empty();
}

#[test]
fn bombs_of_many_at_once_take_no_memory_that_stays() {
    if !is_own_process("decompression_bombs::bombs_of_many_at_once_take_no_memory_that_stays") {
        return;
    }
    let mut fixture = fixture();
    // A message of the maximum length is not a bomb.
    let bytes = masked(BINARY | COMPRESSED, &compressed(&vec![0; MESSAGE_MAX]));
    let mut clients: Vec<RawClient> = (0..100).map(|_| open(&mut fixture, "/sink")).collect();
    let peak = peak_of(|| {
        for client in &mut clients {
            client.send(&bytes);
        }
        fixture.until("all of them", |fixture| (fixture.log.messages.get() == 100).then_some(()));
    });
    assert_eq!(fixture.log.bytes.get(), 100 * MESSAGE_MAX);
    // One message at a time is decompressed, in memory that all connections share. Each connection
    // has a window of 32 KiB.
    assert!(peak < 4 * MESSAGE_MAX + 100 * (64 << 10), "{peak} bytes");
    drop(clients);
    fixture.expect_empty();
}

#[test]
fn a_message_may_be_as_long_as_the_limit_and_not_a_byte_longer() {
    let mut fixture = fixture();
    let mut client = open(&mut fixture, "/sink");
    client.send_frame(BINARY | COMPRESSED, compressed(&vec![b'a'; MESSAGE_MAX]));
    fixture.until("the message", |fixture| (fixture.log.bytes.get() == MESSAGE_MAX).then_some(()));
    let mut longer = open(&mut fixture, "/sink");
    longer.send_frame(BINARY | COMPRESSED, compressed(&vec![b'a'; MESSAGE_MAX + 1]));
    assert_eq!(fixture.frame(&mut longer).close_code(), 1009);
    assert_eq!(fixture.log.messages.get(), 1);
}

#[test]
fn by_default_a_message_may_become_100_times_as_long_and_then_it_is_ended_with_1008() {
    let mut options = options();
    options.deflate = Some(DeflateConfig::DEFAULT);
    let mut fixture = Fixture::new(&options);
    let mut client = open(&mut fixture, "/sink");
    client.send_frame(BINARY | COMPRESSED, compressed(&vec![b'a'; 256 << 10]));
    fixture.until("the message", |fixture| (fixture.log.messages.get() == 1).then_some(()));
    client.send_frame(BINARY | COMPRESSED, compressed(&vec![b'a'; 257 << 10]));
    let close = fixture.frame(&mut client);
    assert_eq!(close.close_code(), 1008);
    assert_eq!(
        &close.payload[2..],
        b"compression ratio of the message is too high; send it uncompressed"
    );
    fixture.read_to_end(client);
    fixture.until_connections(0);
    assert_eq!(fixture.log.closed(), [CloseReason::Violation(Violation::RatioTooHigh)]);
}

#[test]
fn invalid_deflate_data_is_closed_with_1007_and_others_are_unaffected() {
    let mut fixture = fixture();
    let mut good = open(&mut fixture, "/echo");
    let text = "the same words again, the same words again, the same words again";
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\x07", &[0x55; 5000]] {
        let mut bad = open(&mut fixture, "/echo");
        bad.send_frame(TEXT | COMPRESSED, garbage);
        assert_eq!(
            fixture.frame(&mut bad).close_code(),
            1007,
            "{:?}",
            &garbage[..garbage.len().min(9)]
        );
        good.send_frame(TEXT, text);
        let answer = fixture.frame(&mut good);
        if answer.first & COMPRESSED == 0 {
            assert_eq!(answer, Frame::new(TEXT, text));
        }
    }
}
