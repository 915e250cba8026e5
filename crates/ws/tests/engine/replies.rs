//! Where replies are built, and in which order they are sent.

use std::{ops::Range, sync::Arc};

use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, FrameSendError, MessageRef, Outcome, Scratch,
};

use crate::fixture::{Handler, Session, masked, noise, plain, unmasked};

/// Echoes everything. Returns the range of the output.
fn echo(engine: &mut Engine, scratch: &mut Scratch, input: &mut [u8]) -> Option<Range<usize>> {
    echo_all(engine, scratch, input).in_place
}

fn echo_all(engine: &mut Engine, scratch: &mut Scratch, input: &mut [u8]) -> Outcome {
    let mut pass = engine.process(input, scratch);
    while let Some(event) = pass.next() {
        match event {
            EngineEvent::Text(text) => text.reply().unwrap(),
            EngineEvent::Binary(bytes) => bytes.reply().unwrap(),
            _ => {}
        }
    }
    pass.finish()
}

fn server() -> (Engine, Scratch) {
    (Engine::new(&Arc::new(Config::server())), Scratch::new())
}

#[test]
fn echoes_of_all_lengths_are_one_range_of_the_input() {
    let lens = [0, 1, 20, 125, 126, 127, 1000, 65_535, 65_536, 70_000];
    for len in lens {
        for count in [1, 2, 16] {
            let (mut engine, mut scratch) = server();
            let mut input = masked(0x82, &noise(len)).repeat(count);
            let range = echo(&mut engine, &mut scratch, &mut input).expect("one range");
            assert_eq!(input[range], plain(0x82, &noise(len)).repeat(count), "{count} of {len}");
        }
    }
    let (mut engine, mut scratch) = server();
    let frames = lens.map(|len| (0x81, "x".repeat(len).into_bytes()));
    let mut input: Vec<u8> =
        frames.iter().flat_map(|(first, payload)| masked(*first, payload)).collect();
    let range = echo(&mut engine, &mut scratch, &mut input).expect("one range");
    assert_eq!(unmasked(&input[range]), frames);
}

#[test]
fn pongs_and_the_answer_to_close_join_the_range() {
    let (mut engine, mut scratch) = server();
    let frames = [
        (0x82, noise(300)),
        (0x89, noise(9)),
        (0x81, b"x".to_vec()),
        (0x8a, b"no answer".to_vec()),
        (0x89, vec![]),
    ];
    let mut input: Vec<u8> =
        frames.iter().flat_map(|(first, payload)| masked(*first, payload)).collect();
    input.extend(masked(0x88, &[3, 232]));
    let range = echo(&mut engine, &mut scratch, &mut input).expect("one range");
    let answers = [
        (0x82, noise(300)),
        (0x8a, noise(9)),
        (0x81, b"x".to_vec()),
        (0x8a, vec![]),
        (0x88, vec![3, 232]),
    ];
    assert_eq!(unmasked(&input[range]), answers);
}

#[test]
fn messages_that_get_no_reply_leave_no_gap() {
    let (mut engine, mut scratch) = server();
    let mut input: Vec<u8> = (0..30).flat_map(|at| masked(0x82, &noise(at * 11))).collect();
    let mut pass = engine.process(&mut input, &mut scratch);
    let mut answered = Vec::new();
    let mut at = 0;
    while let Some(EngineEvent::Binary(bytes)) = pass.next() {
        assert_eq!(*bytes, noise(at * 11)[..]);
        if at % 3 == 1 {
            answered.push((0x82, bytes.to_vec()));
            bytes.reply().unwrap();
        }
        at += 1;
    }
    assert_eq!(at, 30);
    let range = pass.finish().in_place.expect("one range");
    assert_eq!(unmasked(&input[range]), answered);
}

#[test]
fn output_keeps_the_order_of_the_calls() {
    let (mut engine, mut scratch) = server();
    let mut input: Vec<u8> =
        [masked(0x82, b"1"), masked(0x82, b"2"), masked(0x81, b"3"), masked(0x82, &noise(400))]
            .concat();
    let mut pass = engine.process(&mut input, &mut scratch);
    pass.send(MessageRef::Text("first")).unwrap();
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!() };
    bytes.reply().unwrap();
    pass.ping(b"between").unwrap();
    pass.send(MessageRef::Binary(&noise(70_000))).unwrap();
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!() };
    bytes.reply().unwrap();
    let Some(EngineEvent::Text(text)) = pass.next() else { panic!() };
    let (text, mut outbox) = text.split();
    outbox.send(MessageRef::Text(text)).unwrap();
    outbox.pong(b"").unwrap();
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!() };
    bytes.reply().unwrap();
    pass.outbox().send(MessageRef::Text("last")).unwrap();
    let outcome = pass.finish();
    assert_eq!(outcome.in_place, None);
    let output: Vec<u8> = scratch.output(&outcome, &input).flatten().copied().collect();
    assert_eq!(outcome.len, output.len());
    let expected = [
        (0x81, b"first".to_vec()),
        (0x82, b"1".to_vec()),
        (0x89, b"between".to_vec()),
        (0x82, noise(70_000)),
        (0x82, b"2".to_vec()),
        (0x81, b"3".to_vec()),
        (0x8a, vec![]),
        (0x82, noise(400)),
        (0x81, b"last".to_vec()),
    ];
    assert_eq!(unmasked(&output), expected);
}

#[test]
fn a_pass_that_ends_early_says_how_far_it_came() {
    let frames = [
        masked(0x82, b"one"),
        masked(0x89, b"two"),
        masked(0x81, &[b'3'; 200]),
        masked(0x82, b"four"),
    ];
    for taken in 0..=4 {
        let (mut engine, mut scratch) = server();
        let mut input = frames.concat();
        let mut pass = engine.process(&mut input, &mut scratch);
        for _ in 0..taken {
            assert!(pass.next().is_some());
        }
        let outcome = pass.finish();
        assert_eq!(outcome.consumed, frames[..taken].concat().len(), "after {taken}");
        let mut rest = input[outcome.consumed..].to_vec();
        let mut pass = engine.process(&mut rest, &mut scratch);
        let mut left = 0;
        while pass.next().is_some() {
            left += 1;
        }
        assert_eq!(taken + left, 4);
    }
}

#[test]
fn a_dropped_pass_leaves_nothing_behind_for_another_connection() {
    let (mut engine, mut scratch) = server();
    let mut input = masked(0x82, &noise(300));
    let (first, second) = input.split_at_mut(100);
    engine.process(first, &mut scratch).next();
    let mut pass = engine.process(second, &mut scratch);
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!() };
    bytes.reply().unwrap();
    pass.send(MessageRef::Text("secret")).unwrap();
    drop(pass);
    let mut other = Engine::new(&Arc::new(Config::server()));
    let mut input = masked(0x82, b"hello");
    let range = echo(&mut other, &mut scratch, &mut input).expect("one range");
    assert_eq!(input[range], plain(0x82, b"hello"));
    assert_eq!(other.ping(b"x", &mut scratch).unwrap(), plain(0x89, b"x"));
}

#[test]
fn outside_a_pass_each_call_returns_its_own_frame() {
    let mut session = Session::server(Handler::Silent);
    let (engine, scratch) = (&mut session.engine, &mut session.scratch);
    for len in [0, 125, 126, 65_535, 65_536] {
        assert_eq!(
            engine.send(MessageRef::Binary(&noise(len)), scratch).unwrap(),
            plain(0x82, &noise(len))
        );
    }
    assert_eq!(engine.send(MessageRef::Text("ü"), scratch).unwrap(), plain(0x81, "ü".as_bytes()));
    assert_eq!(engine.ping(b"a", scratch).unwrap(), plain(0x89, b"a"));
    assert_eq!(engine.pong(b"", scratch).unwrap(), plain(0x8a, b""));
}

#[test]
fn a_client_masks_everything_with_a_key_of_its_own() {
    fn counting(bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
    }
    let mut engine = Engine::new(&Arc::new(Config::client(counting)));
    let mut scratch = Scratch::new();
    let mut keys = Vec::new();
    for len in [0, 5, 126, 65_536] {
        let frame = engine.send(MessageRef::Binary(&noise(len)), &mut scratch).unwrap().to_vec();
        assert_eq!(unmasked(&frame), [(0x82, noise(len))]);
        let header = frame.len() - len;
        keys.push(frame[header - 4..header].to_vec());
    }
    let mut input =
        [plain(0x81, b"to echo"), plain(0x89, b"to answer"), plain(0x82, &noise(300))].concat();
    let outcome = echo_all(&mut engine, &mut scratch, &mut input);
    assert_eq!(outcome.in_place, None, "a reply needs a key, for which there is no room");
    let output: Vec<u8> = scratch.output(&outcome, &input).flatten().copied().collect();
    let answers = [(0x81, b"to echo".to_vec()), (0x8a, b"to answer".to_vec()), (0x82, noise(300))];
    assert_eq!(unmasked(&output), answers);
    // The keys of the three frames, whose headers have 6, 6 and 8 bytes.
    for at in [2, 2 + 4 + 7 + 2, (2 + 4 + 7) + (2 + 4 + 9) + 4] {
        keys.push(output[at..at + 4].to_vec());
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 7);
}

/// A frame that is sent while a message is borrowed goes out before the reply to it.
#[test]
fn the_reply_to_a_detached_message_follows_earlier_output() {
    for len in [0, 20, 125, 126, 4_000, 5_000, 70_000] {
        for first in [0x81, 0x82] {
            let payload = vec![b'x'; len];
            let whole = masked(first, &payload);
            for cut in [0, 1, whole.len() / 2, whole.len()] {
                let (mut engine, mut scratch) = server();
                let mut sent = Vec::new();
                let follower = [whole.clone(), masked(0x82, b"after")].concat();
                let (early, late) = follower.split_at(cut);
                for part in [early, late] {
                    let mut input = part.to_vec();
                    let mut pass = engine.process(&mut input, &mut scratch);
                    while let Some(event) = pass.next() {
                        let (message, mut outbox) = match event {
                            EngineEvent::Text(text) => text.detach(),
                            EngineEvent::Binary(bytes) => bytes.detach(),
                            other => panic!("{other:?}"),
                        };
                        assert_eq!(message.is_text(), message.as_str().is_some());
                        outbox
                            .send(MessageRef::Binary(
                                &message.as_bytes()[..message.as_bytes().len().min(3)],
                            ))
                            .unwrap();
                        outbox.send_encoded(&plain(0x81, b"made elsewhere")).unwrap();
                        outbox.reply(message).unwrap();
                        outbox.ping(b"").unwrap();
                    }
                    let outcome = pass.finish();
                    scratch
                        .output(&outcome, &input)
                        .for_each(|piece| sent.extend_from_slice(piece));
                }
                let expected = |first, payload: &[u8]| {
                    let start = payload[..payload.len().min(3)].to_vec();
                    let own = (0x81, b"made elsewhere".to_vec());
                    [(0x82, start), own, (first, payload.to_vec()), (0x89, vec![])]
                };
                let expected = [expected(first, &payload), expected(0x82, b"after")].concat();
                assert_eq!(unmasked(&sent), expected, "{len} bytes, cut at {cut}");
            }
        }
    }
}

/// Changes all messages and sends them back. Those that end with `!` lose their UTF-8.
fn shout(engine: Engine, bytes: &[u8], cut: usize) -> Vec<(u8, Vec<u8>)> {
    let (mut engine, mut scratch, mut sent) = (engine, Scratch::new(), Vec::new());
    for part in [&bytes[..cut], &bytes[cut..]] {
        let mut input = part.to_vec();
        let mut pass = engine.process(&mut input, &mut scratch);
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Text(text) => {
                    let (mut message, mut outbox) = text.detach();
                    assert!(message.bytes_mut().is_none(), "text has a door of its own");
                    let changed = message.change_text(|bytes| {
                        bytes.make_ascii_uppercase();
                        if let Some(last @ b'!') = bytes.last_mut() {
                            *last = 0xff;
                        }
                    });
                    if let Ok(message) = changed {
                        assert!(!message.as_str().unwrap().contains('x'));
                        outbox.reply(message).unwrap();
                    }
                }
                EngineEvent::Binary(bytes) => {
                    let (mut message, mut outbox) = bytes.detach();
                    message.bytes_mut().expect("it is binary").reverse();
                    let message = message.change_text(|bytes| bytes.fill(0xff)).unwrap();
                    outbox.reply(message).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        let outcome = pass.finish();
        scratch.output(&outcome, &input).for_each(|piece| sent.extend_from_slice(piece));
    }
    unmasked(&sent)
}

#[test]
fn a_changed_message_is_sent_back_with_its_bytes_of_then() {
    fn entropy(_: &mut [u8]) {}
    for len in [1, 20, 125, 126, 4_000, 5_000, 70_000] {
        let (text, broken) = ("xü".repeat(len), format!("{}!", "x".repeat(len)));
        let answers = [
            (0x81, "Xü".repeat(len).into_bytes()),
            (0x82, vec![0xff; len]),
            (0x81, b"AFTER".into()),
        ];
        for is_client in [false, true] {
            let frame = if is_client { plain } else { masked };
            let bytes = [
                frame(0x81, text.as_bytes()),
                frame(0x81, broken.as_bytes()),
                frame(0x82, &noise(len)),
                frame(0x81, b"after"),
            ]
            .concat();
            for cut in [0, 1, 8, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
                let config = if is_client { Config::client(entropy) } else { Config::server() };
                let engine = Engine::new(&Arc::new(config));
                let sent = shout(engine, &bytes, cut);
                assert_eq!(sent, answers, "{len} bytes, cut at {cut}, a client: {is_client}");
            }
        }
    }
}

#[test]
fn nothing_is_sent_back_after_a_close_that_was_sent_meanwhile() {
    let (mut engine, mut scratch) = server();
    let mut input = masked(0x82, b"bye?");
    let mut pass = engine.process(&mut input, &mut scratch);
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!() };
    let (message, mut outbox) = bytes.detach();
    outbox.close(CloseCode::GOING_AWAY, "").unwrap();
    assert_eq!(outbox.send_encoded(&plain(0x82, b"late")), Err(FrameSendError::Closed));
    assert_eq!(outbox.reply(message), Err(FrameSendError::Closed));
    let outcome = pass.finish();
    let sent: Vec<u8> = scratch.output(&outcome, &input).flatten().copied().collect();
    assert_eq!(unmasked(&sent), [(0x88, vec![3, 233])]);
}

#[test]
#[should_panic(expected = "a client masks every frame by itself")]
fn a_client_sends_nothing_that_was_encoded_elsewhere() {
    fn entropy(_: &mut [u8]) {}
    let (mut engine, mut scratch) =
        (Engine::new(&Arc::new(Config::client(entropy))), Scratch::new());
    let _ = engine.process(&mut [], &mut scratch).outbox().send_encoded(&plain(0x82, b"x"));
}

#[test]
fn a_message_is_encoded_as_the_engine_sends_it() {
    for len in [0, 125, 126, 65_535, 65_536] {
        let bytes = noise(len);
        let mut out = b"before".to_vec();
        MessageRef::Binary(&bytes).encode(&mut out);
        assert_eq!(out, [&b"before"[..], &plain(0x82, &bytes)].concat());
    }
    let mut out = Vec::new();
    MessageRef::Text("text").encode(&mut out);
    assert_eq!(out, plain(0x81, b"text"));
}
