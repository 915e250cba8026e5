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

/// Feeds `frames`, which carry `payload`, and compares with the standard library's verdict.
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

/// The cuts fall within the sequences, so a character may be spread over several frames.
#[test]
fn every_sequence_in_fragments_cut_at_every_byte() {
    for sequence in SEQUENCES {
        for (before, after) in [(0, 0), (1, 1), (3, 70), (70, 3), (130, 130)] {
            let payload = [&vec![b'x'; before][..], sequence, &vec![b'y'; after]].concat();
            let near = before.saturating_sub(1)..=before + sequence.len();
            for first in near.clone() {
                for second in first..=*near.end() {
                    let frames = [
                        masked(0x01, &payload[..first]),
                        masked(0x00, &payload[first..second]),
                        masked(0x80, &payload[second..]),
                    ];
                    check(&frames.concat(), &payload);
                    check_cut(&frames.concat(), &payload);
                }
            }
        }
    }
}

/// The same through the slow path: in two passes, cut at every byte.
fn check_cut(frames: &[u8], payload: &[u8]) {
    let is_text = std::str::from_utf8(payload).is_ok();
    for cut in (1..frames.len()).filter(|cut| *cut < 24 || frames.len() - cut < 24) {
        let (first, second) = frames.split_at(cut);
        let session = Session::server(Handler::Echo).feed_all([first, second]);
        assert_eq!(session.end.is_none(), is_text, "{payload:x?} cut at {cut}");
    }
}
