//! Messages that are copied before a pass has changed them. `Session::feed` compares each of them
//! with what the pass finds.

use windlass_ws::{CloseCode, Config, EngineLimits, Violation};

use crate::fixture::{Handler, Seen, Session, entropy, masked, noise, text};

/// A message of so many bytes in a frame that begins with this byte: text, if it is read as such.
fn message(first: u8, len: usize) -> Vec<u8> {
    let payload = if first & 0xf == 1 { "ä".repeat(len / 2).into_bytes() } else { noise(len) };
    masked(first, &payload)
}

/// Whether a copy of the first message is possible.
fn is_offered(session: &Session, input: &[u8]) -> bool {
    session.engine.whole_message(input).is_some()
}

#[test]
fn a_copy_is_what_a_pass_finds() {
    for len in [0, 2, 20, 124, 126, 128, 1000, 1460, 16_384, 65_534] {
        for first in [0x81, 0x82] {
            let mut session = Session::server(Handler::Silent);
            let frame = message(first, len);
            let input = [&frame[..], &masked(0x81, b"rest")].concat();
            let whole = session.engine.whole_message(&input).unwrap();
            assert_eq!((whole.is_text(), whole.payload_len()), (first == 0x81, len));
            assert_eq!(whole.frame_len(), frame.len());
            let copy = whole.to_vec().unwrap();
            let mut other = vec![9; len];
            whole.copy_to(&mut other).unwrap();
            assert!(copy == other && copy.capacity() == len);
            session.feed(&frame);
            assert_eq!(
                session.seen,
                [match first {
                    0x81 => text(core::str::from_utf8(&copy).unwrap()),
                    _ => Seen::Binary(copy),
                }]
            );
        }
    }
}

#[test]
fn a_text_that_is_not_utf8_is_not_copied() {
    for len in [1, 20, 63, 64, 125, 126, 5000] {
        let session = Session::server(Handler::Silent);
        for at in [0, len / 2, len - 1] {
            let mut payload = vec![b'a'; len];
            payload[at] = 0xc3;
            let (as_text, as_bytes) = (masked(0x81, &payload), masked(0x82, &payload));
            let whole = session.engine.whole_message(&as_text).unwrap();
            assert_eq!(whole.to_vec(), Err(Violation::InvalidUtf8), "{at} of {len}");
            assert_eq!(whole.copy_to(&mut payload.clone()), Err(Violation::InvalidUtf8));
            let whole = session.engine.whole_message(&as_bytes).unwrap();
            assert_eq!(whole.to_vec(), Ok(payload));
        }
    }
}

#[test]
fn the_missing_bytes_are_those_up_to_the_end_of_the_frame() {
    let session = Session::server(Handler::Silent);
    for (first, is_long) in [(0x82, true), (0x81, true), (0x82, false), (0x81, false)] {
        let whole = message(first, if is_long { 200 } else { 100 });
        for len in 0..whole.len() {
            let expected = (first == 0x82 && is_long && len >= 8).then(|| whole.len() - len);
            assert_eq!(session.engine.missing(&whole[..len]), expected);
            assert!(!is_offered(&session, &whole[..len]));
        }
        assert!(is_offered(&session, &whole));
    }
    let two = message(0x82, 200).repeat(2);
    assert_eq!(session.engine.missing(&two), Some(0));
}

#[test]
fn other_frames_need_a_pass() {
    let session = Session::server(Handler::Silent);
    let with_len = |second: u8, len: &[u8]| [&[0x82, second], len, &[0; 300]].concat();
    for input in [
        message(0x82, 65_536),
        // A part of a message, a reserved bit, a reserved opcode, control frames.
        message(0x01, 200),
        message(0x02, 20),
        message(0x80, 20),
        message(0xc2, 200),
        message(0xa2, 20),
        message(0x83, 20),
        message(0x88, 20),
        message(0x89, 20),
        message(0x8a, 20),
        // A short length in two bytes, unmasked ones.
        with_len(0xfe, &[0, 125]),
        with_len(0x7e, &[0, 200]),
        with_len(20, &[]),
    ] {
        assert!(!is_offered(&session, &input), "{:x?}", &input[..2]);
        assert_eq!(session.engine.missing(&input), None, "{:x?}", &input[..2]);
    }
}

#[test]
fn the_limits_apply() {
    let offers = |len, frame_max, message_max, fragments_max| {
        let mut limits = EngineLimits::DEFAULT;
        (limits.frame_max, limits.message_max) = (frame_max, message_max);
        limits.fragments_max = fragments_max;
        let session = Session::new(Config::server().with_limits(limits), Handler::Silent);
        let input = message(0x82, len);
        let offers = is_offered(&session, &input);
        assert_eq!(session.engine.missing(&input).is_some(), offers && len > 125);
        offers
    };
    for len in [0, 20, 125, 126, 200, 5000] {
        assert!(offers(len, len, len, 1));
        assert!(!offers(len, len, len, 0));
        assert!(len == 0 || !offers(len, len - 1, len, 1) && !offers(len, len, len - 1, 1));
    }
}

#[test]
fn nothing_is_copied_in_an_unusual_state() {
    for len in [20, 200] {
        let input = message(0x82, len);
        let is_offered = |session: &Session| {
            assert!(
                len < 126
                    || session.engine.missing(&input).is_some() == is_offered(session, &input)
            );
            is_offered(session, &input)
        };
        let begun: [&[u8]; 4] =
            [&input[..1], &input[..15], &message(0x02, 9), &[0x83, 0x80, 0, 0, 0, 0]];
        for bytes in begun {
            let mut session = Session::server(Handler::Silent);
            assert!(is_offered(&session));
            session.feed(bytes);
            assert!(!is_offered(&session), "{:x?}", &bytes[..1]);
        }
        let mut closing = Session::server(Handler::Silent);
        closing.engine.close(CloseCode::NORMAL, "", &mut closing.scratch).unwrap();
        assert!(!is_offered(&closing));
        assert!(!is_offered(&Session::new(Config::client(entropy), Handler::Silent)));
    }
}
