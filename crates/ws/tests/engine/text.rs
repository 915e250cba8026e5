//! Text on the fast paths, compared with `str::from_utf8` of the standard library.

use windlass_ws::{End, Violation};

use crate::fixture::{Handler, Seen, Session, masked, plain};

/// Characters of all lengths, and bytes that no text contains in this place.
const SEQUENCES: [&[u8]; 14] = [
    b"a",
    "\u{e4}".as_bytes(),
    "\u{6f22}".as_bytes(),
    "\u{1f980}".as_bytes(),
    b"\x80",
    b"\xc3",
    b"\xc1\xbf",
    b"\xe6\xbc",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xf0\x9f\xa6",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xff",
];

/// Echoes `frames`, which carry `payload`, and compares with the standard library's verdict.
fn check(frames: &[u8], payload: &[u8]) {
    let mut session = Session::server(Handler::Echo);
    session.feed(frames);
    match std::str::from_utf8(payload) {
        Ok(text) => {
            assert_eq!(session.seen, [Seen::Text(text.to_owned())]);
            assert_eq!((session.output, session.end), (plain(0x81, payload), None));
        }
        Err(_) => {
            assert_eq!(session.seen, [Seen::Violation(Violation::InvalidUtf8)], "{payload:x?}");
            assert_eq!(session.end, Some(End::Failed(Violation::InvalidUtf8)));
        }
    }
}

#[test]
fn every_sequence_at_every_place_of_a_short_message() {
    for sequence in SEQUENCES {
        for len in (0..=36).chain([63, 64, 65, 124, 125]) {
            for at in 0..=len {
                let mut payload = vec![b'x'; len];
                payload.splice(at..at, sequence.iter().copied());
                check(&masked(0x81, &payload), &payload);
            }
        }
    }
}
