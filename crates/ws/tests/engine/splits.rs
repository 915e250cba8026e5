//! The division of the bytes into passes does not change the result.

use proptest::prelude::*;

use crate::fixture::{Handler, Seen, Session, close_payload, frame, masked, noise, plain, text};

type Maker = fn(u8, &[u8]) -> Vec<u8>;

/// Sessions with all kinds of messages, and their events. `make` builds the frames.
fn sessions(make: Maker) -> Vec<(Vec<u8>, Vec<Seen>)> {
    let mut sessions = Vec::new();
    let mut add = |frames: &[Vec<u8>], seen: Vec<Seen>| sessions.push((frames.concat(), seen));
    add(
        &[
            make(0x82, b""),
            make(0x81, b"short"),
            make(0x82, &noise(20)),
            make(0x81, "κόσμε 🦀".as_bytes()),
        ],
        vec![Seen::Binary(vec![]), text("short"), Seen::Binary(noise(20)), text("κόσμε 🦀")],
    );
    for len in [124, 125, 126, 127, 128, 200, 300] {
        add(
            &[make(0x82, &noise(len)), make(0x81, &vec![b'a'; len]), make(0x82, &noise(3))],
            vec![Seen::Binary(noise(len)), text(&"a".repeat(len)), Seen::Binary(noise(3))],
        );
    }
    // Fragments, some of them empty, with control frames between them.
    add(
        &[
            make(0x01, b"in "),
            make(0x89, b"are you there"),
            make(0x00, b""),
            make(0x8a, b""),
            make(0x00, b"three \xf0\x9f"),
            make(0x89, b""),
            make(0x80, b"\xa6\x80 pieces"),
            make(0x82, b"next"),
        ],
        vec![
            Seen::Ping(b"are you there".to_vec()),
            Seen::Pong(vec![]),
            Seen::Ping(vec![]),
            text("in three 🦀 pieces"),
            Seen::Binary(b"next".to_vec()),
        ],
    );
    add(
        &[
            make(0x02, &noise(130)),
            make(0x00, &noise(20)),
            make(0x80, b""),
            make(0x01, b""),
            make(0x80, b""),
        ],
        vec![Seen::Binary([noise(130), noise(20)].concat()), text("")],
    );
    add(
        &[
            make(0x89, &noise(125)),
            make(0x8a, &noise(125)),
            make(0x82, b"x"),
            make(0x89, b"y"),
            make(0x82, b"z"),
        ],
        vec![
            Seen::Ping(noise(125)),
            Seen::Pong(noise(125)),
            Seen::Binary(b"x".to_vec()),
            Seen::Ping(b"y".to_vec()),
            Seen::Binary(b"z".to_vec()),
        ],
    );
    // Connections that end, and bytes after the end, which are ignored.
    for (payload, seen) in [
        (vec![], Seen::Close(None, String::new())),
        (close_payload(1000, ""), Seen::Close(Some(1000), String::new())),
        (close_payload(4999, "done: ✓"), Seen::Close(Some(4999), "done: ✓".to_owned())),
    ] {
        add(
            &[make(0x81, b"last"), make(0x88, &payload), make(0x81, b"too late")],
            vec![text("last"), seen.clone()],
        );
        add(&[make(0x01, b"never ends"), make(0x88, &payload), vec![0xff; 9]], vec![seen]);
    }
    use windlass_ws::Violation::*;
    for (bytes, violation) in [
        (make(0x81, b"\xff"), InvalidUtf8),
        (make(0x81, &[&vec![b'a'; 300][..], b"\xc3"].concat()), InvalidUtf8),
        ([make(0x01, b"\xe2\x82"), make(0x80, b"")].concat(), InvalidUtf8),
        (make(0x83, b""), ReservedOpcode),
        (make(0xc1, b"x"), ReservedBits),
        (make(0x80, b"x"), UnexpectedContinuation),
        ([make(0x01, b""), make(0x81, b"x")].concat(), ExpectedContinuation),
        (make(0x09, b"x"), FragmentedControl),
        (make(0x88, b"x"), ShortClose),
        (make(0x88, &close_payload(1005, "")), BadCloseCode),
    ] {
        add(
            &[make(0x82, b"before"), bytes, make(0x82, b"after")],
            vec![Seen::Binary(b"before".to_vec()), Seen::Violation(violation)],
        );
    }
    sessions
}

/// A frame with a key of its own, so that a key used for the wrong frame is noticed.
fn masked_by_turns(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [first, payload.len() as u8, payload.first().copied().unwrap_or(9), 0x33];
    frame(first, Some(key), payload)
}

#[test]
fn every_session_is_seen_as_it_was_meant() {
    for (bytes, seen) in sessions(masked).into_iter().chain(sessions(masked_by_turns)) {
        assert_eq!(Session::server(Handler::Silent).feed_all([&bytes[..]]).seen, seen);
    }
    for (bytes, seen) in sessions(plain) {
        assert_eq!(Session::client(Handler::Silent).feed_all([&bytes[..]]).seen, seen);
    }
}

fn check_cuts(new: impl Fn() -> Session, bytes: &[u8], cuts: impl Iterator<Item = usize>) {
    let whole = new().feed_all([bytes]);
    for cut in cuts {
        let (first, second) = bytes.split_at(cut);
        let session = new().feed_all([first, second]);
        assert_eq!(session.result(), whole.result(), "{:?} cut at {cut}", whole.handler);
    }
    let session = new().feed_all(bytes.chunks(1));
    assert_eq!(session.result(), whole.result(), "{:?} byte by byte", whole.handler);
}

#[test]
fn every_session_cut_at_every_byte_and_byte_by_byte() {
    for handler in [Handler::Echo, Handler::Mixed, Handler::Silent] {
        for (bytes, _) in sessions(masked_by_turns) {
            check_cuts(|| Session::server(handler), &bytes, 0..=bytes.len());
        }
        for (bytes, _) in sessions(plain) {
            check_cuts(|| Session::client(handler), &bytes, 0..=bytes.len());
        }
    }
}

#[test]
fn every_session_in_three_pieces() {
    for (bytes, _) in sessions(masked).into_iter().filter(|(bytes, _)| bytes.len() < 80) {
        let whole = Session::server(Handler::Mixed).feed_all([&bytes[..]]);
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let session = Session::server(Handler::Mixed).feed_all(pieces);
                assert_eq!(session.result(), whole.result(), "cut at {first} and {second}");
            }
        }
    }
}

#[test]
fn long_messages_cut_around_everything_that_matters() {
    for len in [65_535, 65_536, 70_000] {
        for (make, client_sends) in [(masked as Maker, true), (plain, false)] {
            let letters = "ü".repeat(len / 2);
            let bytes = [
                make(0x82, b"a"),
                make(0x82, &noise(len)),
                make(0x81, letters.as_bytes()),
                make(0x82, b"z"),
            ]
            .concat();
            let new = || {
                if client_sends {
                    Session::server(Handler::Echo)
                } else {
                    Session::client(Handler::Echo)
                }
            };
            let (middle, end) = (bytes.len() / 2, bytes.len());
            let cuts =
                (0..40).chain(middle - 20..middle + 20).chain([4096, 65_536]).chain(end - 20..end);
            let whole = new().feed_all([&bytes[..]]);
            assert_eq!(whole.seen[1], Seen::Binary(noise(len)));
            assert_eq!(whole.seen[2], text(&letters));
            check_cuts(new, &bytes, cuts);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(windlass_testkit::random::cases(70)))]

    #[test]
    fn random_messages_in_random_pieces(
        messages in prop::collection::vec(
            (0usize..6, prop::collection::vec(any::<u8>(), 0..300)),
            1..12,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        echo in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        let mut open = false;
        for (kind, payload) in &messages {
            let control = &payload[..payload.len().min(125)];
            let fin = if open { 0x80 } else { 0x82 };
            match kind {
                0 => bytes.extend(masked(0x89, control)),
                1 => bytes.extend(masked(0x8a, control)),
                2 if !open => {
                    bytes.extend(masked(0x02, payload));
                    open = true;
                }
                3 if open => bytes.extend(masked(0x00, payload)),
                _ => {
                    bytes.extend(masked(fin, payload));
                    open = false;
                }
            }
        }
        let handler = if echo { Handler::Echo } else { Handler::Mixed };
        let whole = Session::server(handler).feed_all([&bytes[..]]);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for place in places {
            pieces.push(&bytes[from..place]);
            from = place;
        }
        pieces.push(&bytes[from..]);
        let session = Session::server(handler).feed_all(pieces);
        prop_assert_eq!(session.result(), whole.result());
    }

    #[test]
    fn any_bytes_at_all_end_in_events_and_never_in_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cut in any::<prop::sample::Index>(),
        server in any::<bool>(),
    ) {
        let new = || match server {
            true => Session::server(Handler::Mixed),
            false => Session::client(Handler::Mixed),
        };
        let whole = new().feed_all([&bytes[..]]);
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        let session = new().feed_all([first, second]);
        prop_assert_eq!(session.result(), whole.result());
    }
}
