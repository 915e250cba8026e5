//! Compressed messages that are decompressed while they arrive.

use proptest::prelude::*;
use windlass_ws::{
    Engine, EngineEvent, EngineLimits, MessageRef, Scratch, Violation, deflate::Agreement,
};

use crate::{
    compressed::{compressed, server, settings},
    fixture::{masked, noise, unmasked},
    pair::{Said, deflate_pair, said},
};

/// The longest piece that is made by decompression.
const PIECE_MAX: usize = 64 << 10;

type Messages = Vec<(bool, Vec<u8>)>;

/// What was received.
#[derive(Debug, Default)]
struct Log {
    messages: Messages,
    /// What has arrived of the current message.
    current: Vec<u8>,
    pieces: usize,
    violation: Option<Violation>,
}

impl Log {
    fn feed(&mut self, engine: &mut Engine, scratch: &mut Scratch, bytes: &[u8]) {
        let mut input = bytes.to_vec();
        let mut pass = engine.process(&mut input, scratch);
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Piece(piece) => {
                    assert!(piece.bytes.len() <= PIECE_MAX, "{} bytes", piece.bytes.len());
                    assert!(piece.is_last || !piece.bytes.is_empty());
                    self.pieces += 1;
                    self.current.extend_from_slice(piece.bytes);
                    piece.bytes.fill(0);
                    if piece.is_last {
                        self.messages.push((piece.is_text, std::mem::take(&mut self.current)));
                    }
                }
                EngineEvent::Text(text) => self.messages.push((true, text.as_bytes().to_vec())),
                EngineEvent::Binary(bytes) => self.messages.push((false, bytes.to_vec())),
                EngineEvent::Violation(violation) => self.violation = Some(violation),
                _ => {}
            }
        }
        assert_eq!(pass.finish().consumed, input.len());
    }
}

fn received(mut engine: Engine, parts: &[&[u8]]) -> Log {
    let (mut log, mut scratch) = (Log::default(), Scratch::new());
    parts.iter().for_each(|part| log.feed(&mut engine, &mut scratch, part));
    assert!(engine.end().is_some() || engine.buffered() == 0 || !log.current.is_empty());
    log
}

fn in_pieces(setting: usize, limits: EngineLimits) -> Engine {
    let mut engine = server(setting, limits);
    engine.set_pieces(true);
    engine
}

/// Final blocks (RFC 7692 section 7.2.3.4), the second of which refers to the bytes of the first.
/// An empty block follows, or none.
fn with_final_blocks() -> [Vec<u8>; 2] {
    let whole = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xf3, 0x00, 0x11, 0x00];
    [[&whole[..], &[0]].concat(), whole.to_vec()]
}

#[test]
fn the_pieces_are_the_message_wherever_the_input_is_cut() {
    let words = "zwölf Boxkämpfer ".repeat(9);
    let payload = compressed(MessageRef::Text(&words));
    let (half, rest) = payload.split_at(payload.len() / 2);
    let [final_blocks, without_an_empty_one] = with_final_blocks();
    let framings = [
        (masked(0xc1, &payload), true),
        ([masked(0x41, half), masked(0x89, b"p"), masked(0x80, rest)].concat(), true),
        ([masked(0x41, b""), masked(0x00, &payload), masked(0x80, b"")].concat(), true),
        (masked(0xc2, &[0]), false),
        (masked(0xc2, &final_blocks), false),
        (masked(0xc2, &without_an_empty_one), false),
        ([masked(0x42, &without_an_empty_one), masked(0x80, b"")].concat(), false),
    ];
    for (framing, is_text) in framings {
        let bytes = [framing, masked(0x81, b"plain")].concat();
        for setting in 0..3 {
            let whole = received(server(setting, EngineLimits::DEFAULT), &[&bytes]).messages;
            assert_eq!((whole.len(), whole[0].0), (2, is_text));
            let new = || in_pieces(setting, EngineLimits::DEFAULT);
            for cut in 0..=bytes.len() {
                let (early, late) = bytes.split_at(cut);
                assert_eq!(received(new(), &[early, late]).messages, whole, "cut at {cut}");
            }
            let bytes: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(received(new(), &bytes).messages, whole);
        }
    }
}

#[test]
fn a_message_that_is_wrong_ends_the_connection_wherever_it_is_cut() {
    let text = [&b"ok ".repeat(30)[..], b"zw\xc3"].concat();
    let cut_short = compressed(MessageRef::Binary(&text));
    let cut_short = &cut_short[..cut_short.len() - 2];
    let mut limits = EngineLimits::DEFAULT;
    limits.message_max = 1999;
    for (first, payload, violation) in [
        (0xc2, vec![0xff; 20], Violation::BadDeflate),
        (0xc2, cut_short.to_vec(), Violation::BadDeflate),
        (0xc2, Vec::new(), Violation::BadDeflate),
        (0xc1, compressed(MessageRef::Binary(&text)), Violation::InvalidUtf8),
        (0xc2, compressed(MessageRef::Binary(&[7; 2000])), Violation::MessageTooBig),
    ] {
        let bytes = masked(first, &payload);
        for chunk in [bytes.len(), 5, 1] {
            let parts: Vec<&[u8]> = bytes.chunks(chunk).collect();
            let log = received(in_pieces(0, limits), &parts);
            assert_eq!((log.violation, log.messages), (Some(violation), Vec::new()), "{chunk}");
        }
    }
}

#[test]
fn a_long_message_comes_in_bounded_pieces_and_within_the_limits() {
    let mut limits = EngineLimits::DEFAULT;
    (limits.message_max, limits.frame_max) = (16 << 20, 16 << 20);
    limits.inflate_ratio_max = None;
    let long = vec![b'a'; 10 << 20];
    let bytes = masked(0xc1, &compressed(MessageRef::Binary(&long)));
    let log = received(in_pieces(0, limits), &[&bytes]);
    assert!(log.messages == [(true, long)] && log.pieces > 100, "{} pieces", log.pieces);

    limits.inflate_ratio_max = Some(100);
    let log = received(in_pieces(0, limits), &[&bytes]);
    assert_eq!((log.violation, log.messages), (Some(Violation::RatioTooHigh), Vec::new()));
    // The ratio counts from this length on.
    let free = EngineLimits::RATIO_FREE_LEN_MAX;
    assert!(log.current.len() <= free && log.current.len() + PIECE_MAX > free);
}

/// The last byte of what has arrived holds several matches. The message ends with the first piece,
/// or a few bytes later.
#[test]
fn no_output_is_left_behind_when_the_input_is_consumed() {
    for len in (PIECE_MAX - 1200..PIECE_MAX + 1200).step_by(5) {
        let long = vec![b'a'; len];
        let bytes = masked(0xc2, &compressed(MessageRef::Binary(&long)));
        for chunk in [bytes.len(), 1] {
            let parts: Vec<&[u8]> = bytes.chunks(chunk).collect();
            let log = received(in_pieces(0, EngineLimits::DEFAULT), &parts);
            assert_eq!(log.violation, None, "{len} bytes");
            assert!(log.messages.len() == 1 && log.messages[0].1 == long, "{len} bytes");
        }
    }
}

/// Each stream has its own decompressor while its message is incomplete, and goes on with its own
/// window afterwards.
#[test]
fn streams_of_several_connections_do_not_meet() {
    let (agreement, config) = settings()[1];
    let (mut scratch, mut sides) = (Scratch::new(), Vec::new());
    for side in 0..3 {
        let [mut client, server] = deflate_pair(&agreement, &config);
        let said = [0, 1].map(|at| format!("{side} said {at}, ").repeat(20_000));
        let mut bytes = Vec::new();
        for text in &said {
            bytes.extend(client.send(MessageRef::Text(text), &mut scratch).unwrap());
        }
        sides.push((server, Log::default(), said, bytes));
    }
    // The third connection receives whole messages in between.
    sides[..2].iter_mut().for_each(|side| side.0.set_pieces(true));
    let mut at = 0;
    while sides.iter().any(|side| at < side.3.len()) {
        for (engine, log, _, bytes) in &mut sides {
            let end = bytes.len().min(at + 70);
            log.feed(engine, &mut scratch, &bytes[at.min(end)..end]);
        }
        at += 70;
    }
    for (_, log, said, _) in sides {
        let said: Messages = said.map(|text| (true, text.into_bytes())).into();
        assert!(log.messages == said, "{:?}", log.violation);
    }
}

#[test]
fn a_change_of_the_form_loses_no_message_that_has_shown_nothing() {
    let words = "twelve boxers ".repeat(9);
    let bytes = masked(0xc1, &compressed(MessageRef::Text(&words)));
    let next = masked(0x81, b"next");
    for cut in 0..=bytes.len() {
        for pieces_first in [false, true] {
            let mut engine = server(1, EngineLimits::DEFAULT);
            let (mut log, mut scratch) = (Log::default(), Scratch::new());
            engine.set_pieces(pieces_first);
            log.feed(&mut engine, &mut scratch, &bytes[..cut]);
            let has_shown = !log.current.is_empty();
            engine.set_pieces(!pieces_first);
            log.feed(&mut engine, &mut scratch, &[&bytes[cut..], &next].concat());
            let (whole, next) = ((true, words.clone().into_bytes()), (true, b"next".to_vec()));
            let expected = if has_shown { vec![next] } else { vec![whole, next] };
            assert_eq!(log.messages, expected, "cut at {cut}, pieces first: {pieces_first}");
        }
    }
    // Back and forth: what was decompressed for a whole message comes as the first piece.
    for cut in 0..bytes.len() - 1 {
        let mut engine = in_pieces(1, EngineLimits::DEFAULT);
        let (mut log, mut scratch) = (Log::default(), Scratch::new());
        log.feed(&mut engine, &mut scratch, &bytes[..7]);
        assert!(log.current.is_empty());
        engine.set_pieces(false);
        log.feed(&mut engine, &mut scratch, &bytes[7..cut.max(7)]);
        engine.set_pieces(true);
        log.feed(&mut engine, &mut scratch, &bytes[cut.max(7)..]);
        assert_eq!(log.messages, [(true, words.clone().into_bytes())], "cut at {cut}");
    }
}

/// The frames that a client sends for what it says, fragmented.
fn sent(said: &[Said], agreement: &Agreement, setting: usize, fragments: &[usize]) -> Vec<u8> {
    let [mut client, _] = deflate_pair(agreement, &settings()[setting].1);
    let (mut scratch, mut bytes) = (Scratch::new(), Vec::new());
    let mut lens = fragments.iter().copied().cycle();
    for said in said {
        let message = match said {
            Said::Text(text) => MessageRef::Text(text),
            Said::Binary(bytes) => MessageRef::Binary(bytes),
            Said::Ping(_) => continue,
        };
        let frame = client.send(message, &mut scratch).unwrap();
        let (first, payload) = unmasked(frame).remove(0);
        let mut rest = &payload[..];
        let mut head = first;
        while let Some(len) = lens.next().filter(|len| *len < rest.len()) {
            bytes.extend(masked(head & 0x7f, &rest[..len]));
            (head, rest) = (0x80, &rest[len..]);
        }
        bytes.extend(masked(head, rest));
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(windlass_testkit::random::cases(30)))]

    #[test]
    fn the_pieces_are_what_is_received_whole(
        mut said in prop::collection::vec(said(), 0..6),
        long in (any::<u8>(), 0usize..400_000, any::<bool>()),
        at in any::<prop::sample::Index>(),
        fragments in prop::collection::vec(prop_oneof![1usize..50, 1usize..70_000], 1..5),
        sizes in prop::collection::vec(prop_oneof![1usize..50, 1usize..70_000], 1..9),
        setting in 0usize..3,
    ) {
        let (byte, len, varies) = long;
        let long = if varies { noise(len) } else { vec![byte; len] };
        said.insert(at.index(said.len() + 1), Said::Binary(long));
        let (agreement, _) = settings()[setting];
        let bytes = sent(&said, &agreement, setting, &fragments);
        let mut limits = EngineLimits::DEFAULT;
        limits.inflate_ratio_max = None;
        let whole = received(server(setting, limits), &[&bytes]);
        let (mut parts, mut rest) = (Vec::new(), &bytes[..]);
        for size in sizes.iter().cycle() {
            let (part, others) = rest.split_at((*size).min(rest.len()));
            parts.push(part);
            rest = others;
            if rest.is_empty() {
                break;
            }
        }
        let in_pieces = received(in_pieces(setting, limits), &parts);
        prop_assert_eq!(whole.violation, None);
        prop_assert_eq!(in_pieces.violation, None);
        prop_assert!(in_pieces.messages == whole.messages);
    }
}
