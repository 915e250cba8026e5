//! Each violation of a peer: its close code, and the byte at which it is found.

use windlass_ws::{CloseCode, Config, End, EngineLimits, FrameSendError, MessageRef, Violation};

use crate::fixture::{Handler, Seen, Session, close_payload, entropy, masked, plain};

/// For a server: bytes, the violation, and the number of bytes after which it is certain.
fn cases() -> Vec<(Violation, Vec<u8>, usize)> {
    use Violation::*;
    let long = |len: u64| [&[0x82, 0xff][..], &len.to_be_bytes()].concat();
    let fragments = |count: usize| [masked(0x02, b""), masked(0x00, b"").repeat(count)].concat();
    vec![
        (ReservedBits, vec![0x91], 1),
        (ReservedBits, vec![0xa2], 1),
        (ReservedBits, vec![0xc1], 1),
        (ReservedOpcode, vec![0x83], 1),
        (ReservedOpcode, vec![0x8f], 1),
        (Unmasked, vec![0x81, 0x05], 2),
        (Unmasked, vec![0x89, 0x00], 2),
        (FragmentedControl, vec![0x09], 1),
        (FragmentedControl, vec![0x08], 1),
        (LongControl, vec![0x89, 0xfe], 2),
        (LongControl, vec![0x88, 0xff], 2),
        (BadLength, vec![0x82, 0xfe, 0, 125], 4),
        (BadLength, vec![0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], 10),
        (BadLength, long(1 << 63), 10),
        (UnexpectedContinuation, vec![0x80], 1),
        (UnexpectedContinuation, vec![0x00], 1),
        (ExpectedContinuation, [&masked(0x01, b"a")[..], &[0x82]].concat(), 8),
        (InvalidUtf8, masked(0x81, b"ok \xff"), 10),
        (InvalidUtf8, masked(0x81, b"\xc3"), 7),
        (InvalidUtf8, [masked(0x01, b"\xc3"), masked(0x80, b"")].concat(), 13),
        (ShortClose, masked(0x88, b"x"), 7),
        (BadCloseCode, masked(0x88, &close_payload(1006, "")), 8),
        (BadCloseCode, masked(0x88, &close_payload(999, "")), 8),
        (InvalidUtf8, masked(0x88, &[&close_payload(1000, "")[..], b"\xff"].concat()), 9),
        (FrameTooBig, [long((1 << 20) + 1), vec![0; 4]].concat(), 14),
        (TooManyFragments, fragments(1 << 18), 6 * ((1 << 18) + 1)),
    ]
}

fn code_of(violation: Violation) -> u16 {
    use Violation::*;
    match violation {
        InvalidUtf8 | BadDeflate => 1007,
        FrameTooBig | MessageTooBig => 1009,
        TooManyFragments | TooManyControls => 1008,
        _ => 1002,
    }
}

#[test]
fn every_violation_is_answered_with_its_code_and_ends_the_connection() {
    for (violation, bytes, _) in cases() {
        let mut session = Session::server(Handler::Silent);
        session.feed(&bytes);
        assert_eq!(session.seen.last(), Some(&Seen::Violation(violation)));
        assert_eq!(session.end, Some(End::Failed(violation)));
        assert_eq!(
            session.output,
            plain(0x88, &close_payload(code_of(violation), "")),
            "{violation:?}"
        );
        // Nothing more is received or sent.
        let seen = session.seen.len();
        session.feed(&masked(0x82, b"after the end"));
        assert_eq!((session.seen.len(), session.output.len()), (seen, 4));
        let sent = session.engine.send(MessageRef::Text("x"), &mut session.scratch);
        assert_eq!(sent, Err(FrameSendError::Closed));
        assert!(session.engine.buffered() == 0, "nothing is kept of a message that never ends");
    }
}

#[test]
fn a_violation_is_seen_at_the_first_byte_that_makes_it_certain() {
    for (violation, bytes, at) in cases() {
        if bytes.len() > 1000 {
            continue;
        }
        let mut session = Session::server(Handler::Silent);
        for (before, byte) in bytes.iter().enumerate() {
            assert_eq!(session.end, None, "{violation:?} at byte {before}, too early");
            session.feed(&[*byte]);
            if before + 1 == at {
                break;
            }
        }
        assert_eq!(session.end, Some(End::Failed(violation)), "{violation:?} not at byte {at}");
    }
}

#[test]
fn text_fails_within_a_frame_that_is_not_whole() {
    for (announced, sent) in
        [(100, &b"fine so far \xed\xa0"[..]), (1000, b"\xf8"), (70_000, b"\xf4\x90")]
    {
        let whole = masked(0x01, &[sent, &vec![b'x'; announced - sent.len()]].concat());
        let header = whole.len() - announced;
        let mut session = Session::server(Handler::Silent);
        session.feed(&whole[..header + sent.len() - 1]);
        assert_eq!(session.end, None);
        session.feed(&whole[header + sent.len() - 1..header + sent.len()]);
        assert_eq!(session.end, Some(End::Failed(Violation::InvalidUtf8)));
    }
}

#[test]
fn a_client_rejects_masked_frames_and_masks_its_answer() {
    let mut session = Session::client(Handler::Silent);
    session.feed(&masked(0x81, b"hello")[..2]);
    assert_eq!(session.end, Some(End::Failed(Violation::Masked)));
    let key = Some([0x5c; 4]);
    assert_eq!(session.output, crate::fixture::frame(0x88, key, &close_payload(1002, "")));
}

#[test]
fn no_second_close_frame_goes_out() {
    let mut session = Session::server(Handler::Silent);
    session.engine.close(CloseCode::NORMAL, "", &mut session.scratch).unwrap();
    session.feed(&[0x83]);
    assert_eq!(session.end, Some(End::Failed(Violation::ReservedOpcode)));
    assert!(session.output.is_empty());
}

#[test]
fn every_violation_of_the_table_has_a_case_somewhere() {
    let mut limits = EngineLimits::default();
    limits.message_max = 4;
    limits.controls_per_second_max = 0;
    let config = Config::server().with_limits(limits);
    for (bytes, violation) in [
        (masked(0x82, b"12345"), Violation::MessageTooBig),
        (masked(0x89, b""), Violation::TooManyControls),
    ] {
        let mut session = Session::new(config, Handler::Silent);
        session.feed(&bytes);
        assert_eq!(session.end, Some(End::Failed(violation)));
        assert_eq!(session.output, plain(0x88, &close_payload(code_of(violation), "")));
    }
}

#[test]
fn a_header_that_fails_says_more_about_it() {
    let limits = {
        let mut limits = EngineLimits::DEFAULT;
        (limits.frame_max, limits.message_max) = (300, 400);
        limits
    };
    let fragment = masked(0x01, &[b'x'; 300]);
    let cases = [
        (vec![0x83, 0x80], Some((0x83, 0))),
        (vec![0x8f], Some((0x8f, 0))),
        ([&masked(0x01, b"a")[..], &[0x82]].concat(), Some((0x82, 0))),
        (masked(0x82, &[0; 301]), Some((0x82, 301))),
        ([fragment, masked(0x80, &[b'x'; 101])].concat(), Some((0x80, 401))),
        (masked(0x81, b"\xff"), None),
        (masked(0x88, b"x"), None),
    ];
    for (bytes, expected) in cases {
        for size in [1, bytes.len()] {
            let session = Session::new(Config::server().with_limits(limits), Handler::Silent);
            let session = session.feed_all(bytes.chunks(size));
            assert!(session.end.is_some(), "{bytes:x?}");
            assert_eq!(session.engine.failed_header(), expected, "{:x?}", session.end);
        }
    }
    let mut open = Session::server(Handler::Silent);
    open.feed(&[0x82, 0xff, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(open.engine.failed_header(), None, "nine bytes of an incomplete header");
}

#[test]
fn a_server_takes_unmasked_frames_only_if_it_is_configured_to() {
    let frames =
        [plain(0x81, b"hi"), masked(0x82, b"there"), plain(0x01, b"a"), plain(0x80, b"b")].concat();
    let mut config = Config::server();
    config.accept_unmasked = true;
    let seen =
        [Seen::Text("hi".to_owned()), Seen::Binary(b"there".to_vec()), Seen::Text("ab".to_owned())];
    let echoes = [plain(0x81, b"hi"), plain(0x82, b"there"), plain(0x81, b"ab")].concat();
    for size in [1, 2, 3, frames.len()] {
        let session = Session::new(config, Handler::Echo).feed_all(frames.chunks(size));
        assert_eq!((&session.seen[..], &session.output, session.end), (&seen[..], &echoes, None));
    }
    let mut client = Config::client(entropy);
    client.accept_unmasked = true;
    let session = Session::new(client, Handler::Echo).feed_all([&masked(0x81, b"hi")[..]]);
    assert_eq!(session.end, Some(End::Failed(Violation::Masked)), "a client takes no masked ones");
}
