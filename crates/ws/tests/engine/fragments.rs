//! Fragmented messages that lie complete in the input.

use std::sync::Arc;

use windlass_ws::{Config, Engine, EngineEvent, EngineLimits, Scratch};

use crate::fixture::{Handler, Session, masked, noise, plain};

/// A client's message in frames that end at `cuts` and at its end.
fn fragmented(first: u8, payload: &[u8], cuts: &[usize]) -> Vec<u8> {
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([payload.len()]);
    let frames = starts.zip(ends).enumerate().map(|(number, (start, end))| {
        let fin = if number == cuts.len() { 0x80 } else { 0 };
        let opcode = if number == 0 { first } else { 0 };
        masked(fin | opcode, &payload[start..end])
    });
    frames.collect::<Vec<_>>().concat()
}

/// Echoes one input. Returns the output, and whether it was one range of the input.
fn echo(input: &[u8]) -> (Vec<u8>, bool) {
    let (mut engine, mut scratch) = (Engine::new(&Arc::new(Config::server())), Scratch::new());
    let mut input = input.to_vec();
    let mut pass = engine.process(&mut input, &mut scratch);
    while let Some(event) = pass.next() {
        match event {
            EngineEvent::Text(text) => text.reply().unwrap(),
            EngineEvent::Binary(bytes) => bytes.reply().unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let outcome = pass.finish();
    let output = scratch.output(&outcome, &input).flatten().copied().collect();
    assert_eq!((outcome.end, engine.buffered()), (None, 0));
    (output, outcome.in_place.is_some())
}

#[test]
fn they_are_joined_and_answered_in_the_input() {
    for len in [0, 1, 4, 100, 124, 125, 126, 127, 250, 300, 1024, 65_535, 65_536, 70_000] {
        for frames in [2, 3, 4, 9] {
            let cuts: Vec<usize> = (1..frames).map(|frame| len * frame / frames).collect();
            let bytes = fragmented(2, &noise(len), &cuts);
            // The header of a reply of 64 KiB is longer than that of the first frame.
            let in_place = len < 65_536;
            assert_eq!(echo(&bytes), (plain(0x82, &noise(len)), in_place), "{len} in {frames}");
            let text = vec![b'x'; len];
            let bytes = [masked(0x81, b"before"), fragmented(1, &text, &cuts)].concat();
            let bytes = [&bytes[..], &bytes].concat();
            let replies = [plain(0x81, b"before"), plain(0x81, &text)].concat().repeat(2);
            let (output, is_one_range) = echo(&bytes);
            assert_eq!(output, replies, "{len} in {frames}");
            // The bytes that earlier headers have left are enough for the longer header.
            assert!(is_one_range || len >= 65_536, "{len} in {frames}");
        }
    }
}

#[test]
fn empty_frames_are_joined_too() {
    let payload = b"empty frames";
    for cuts in [&[0][..], &[0, 0], &[12], &[12, 12], &[0, 5, 5, 5, 12]] {
        let bytes = fragmented(1, payload, cuts);
        assert_eq!(echo(&bytes), (plain(0x81, payload), true), "{cuts:?}");
    }
}

/// All results are the same as for single bytes, which take the slow path.
#[test]
fn anything_unusual_among_them_is_left_to_the_slow_path() {
    let mut limits = EngineLimits::DEFAULT;
    (limits.frame_max, limits.message_max, limits.fragments_max) = (200, 300, 4);
    let config = Config::server().with_limits(limits);
    let wrong_length = [0x80, 0xfe, 0, 125].into_iter().chain([7; 129]).collect::<Vec<u8>>();
    let unmasked = plain(0x80, b"end");
    let tails: [(&str, Vec<u8>); 15] = [
        ("the last frame", masked(0x80, b"end")),
        ("a ping", [masked(0x89, b"ping"), masked(0x80, b"end")].concat()),
        ("a close", masked(0x88, b"")),
        ("a new message", masked(0x82, b"new")),
        ("a new fragmented message", masked(0x02, b"new")),
        ("a reserved bit", masked(0xc0, b"end")),
        ("a reserved opcode", masked(0x83, b"end")),
        ("no mask", unmasked),
        ("a length in a longer form", wrong_length),
        ("a frame at its limit", masked(0x80, &[b'x'; 200])),
        ("a frame above its limit", masked(0x80, &[b'x'; 201])),
        ("a message at its limit", [masked(0, &[b'x'; 90]), masked(0x80, &[b'x'; 200])].concat()),
        ("a message above it", [masked(0, &[b'x'; 91]), masked(0x80, &[b'x'; 200])].concat()),
        ("frames at their limit", [masked(0, b"a").repeat(2), masked(0x80, b"")].concat()),
        ("frames above it", [masked(0, b"a").repeat(3), masked(0x80, b"")].concat()),
    ];
    for (name, tail) in tails {
        for first in [0x01, 0x02] {
            let bytes =
                [masked(first, b"0123456789"), tail.clone(), masked(0x82, b"after")].concat();
            for cut in 0..=tail.len() {
                // The end of the input within the tail is unusual as well.
                let bytes = &bytes[..bytes.len() - cut];
                let new = || Session::new(config, Handler::Echo);
                let (whole, single) = (new().feed_all([bytes]), new().feed_all(bytes.chunks(1)));
                assert_eq!(whole.result(), single.result(), "{name} without {cut} bytes");
            }
        }
    }
}
