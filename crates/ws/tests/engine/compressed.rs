//! Messages with RSV1 (RFC 7692).

use std::sync::Arc;

use proptest::prelude::*;
use windlass_ws::{
    Config, End, Engine, EngineEvent, EngineLimits, MessageRef, Scratch, Violation,
    deflate::{Agreement, Codec, CodecPool, Compressor, DeflateConfig},
};

use crate::{
    fixture::{
        Handler, Seen, Session, close_payload, entropy, masked, noise, plain, text, unmasked,
    },
    pair::{deflate_pair, padded, said, talk},
};

pub(crate) fn settings() -> [(Agreement, DeflateConfig); 3] {
    let mut dedicated = DeflateConfig::DEFAULT;
    dedicated.compressor = Compressor::Dedicated;
    dedicated.threshold = 0;
    let mut forgetful = Agreement::DEFAULT;
    forgetful.server_no_context_takeover = true;
    forgetful.client_no_context_takeover = true;
    forgetful.server_max_window_bits = 9;
    let mut eager = DeflateConfig::DEFAULT;
    eager.threshold = 1;
    [(forgetful, eager), (Agreement::DEFAULT, dedicated), (forgetful, DeflateConfig::DEFAULT)]
}

pub(crate) fn server(setting: usize, limits: EngineLimits) -> Engine {
    let (agreement, config) = settings()[setting];
    Engine::with_deflate(&Arc::new(Config::server().with_limits(limits)), &agreement, &config)
}

/// The compressed payload that a client sends for `message`.
pub(crate) fn compressed(message: MessageRef<'_>) -> Vec<u8> {
    let (agreement, config) = settings()[0];
    let [mut client, _] = deflate_pair(&agreement, &config);
    let mut scratch = Scratch::new();
    let frame = client.send(message, &mut scratch).unwrap();
    assert_eq!(frame[0] & 0x40, 0x40, "it pays to compress it");
    unmasked(frame).remove(0).1
}

const LYRICS: &str = "ding dong ding dong ding dong ding dong ";

#[test]
fn a_compressed_message_is_seen_however_it_is_framed_and_cut() {
    let payload = compressed(MessageRef::Text(LYRICS));
    let (half, rest) = payload.split_at(payload.len() / 2);
    let framings = [
        masked(0xc1, &payload),
        [masked(0x41, half), masked(0x89, b"p"), masked(0x80, rest)].concat(),
        [masked(0x41, b""), masked(0x00, &payload), masked(0x80, b"")].concat(),
    ];
    for framing in framings {
        let bytes = [framing, masked(0x81, b"plain")].concat();
        for handler in [Handler::Echo, Handler::Silent] {
            let new = || Session::with(server(0, EngineLimits::DEFAULT), handler);
            let whole = new().feed_all([&bytes[..]]);
            let messages: Vec<&Seen> =
                whole.seen.iter().filter(|seen| !matches!(seen, Seen::Ping(_))).collect();
            assert_eq!(messages, [&text(LYRICS), &text("plain")]);
            for cut in 0..=bytes.len() {
                let session = new().feed_all([&bytes[..cut], &bytes[cut..]]);
                assert_eq!(session.result(), whole.result(), "cut at {cut}");
            }
            assert_eq!(new().feed_all(bytes.chunks(1)).result(), whole.result());
        }
    }
}

#[test]
fn replies_are_compressed_from_the_threshold_on() {
    let (agreement, mut config) = settings()[0];
    for threshold in [1, 20, 40, 41, 125, 126, 300] {
        config.threshold = threshold;
        let new = || Engine::with_deflate(&Arc::new(Config::server()), &agreement, &config);
        for times in [1, 7, 20] {
            let message = LYRICS.repeat(times);
            let mut session = Session::with(new(), Handler::Echo);
            session.feed(&masked(0x81, message.as_bytes()));
            let first = if message.len() >= threshold { 0xc1 } else { 0x81 };
            assert_eq!(session.output[0], first, "{} bytes, threshold {threshold}", message.len());
            // The result is the same in pieces.
            let pieces = masked(0x81, message.as_bytes());
            let in_pieces = Session::with(new(), Handler::Echo).feed_all(pieces.chunks(9));
            assert_eq!(in_pieces.output, session.output);
        }
    }
}

#[test]
fn incompressible_messages_are_echoed_uncompressed() {
    let noise: Vec<u8> = (0..300u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (at * at) as u8)
        .collect();
    let mut engine = server(0, EngineLimits::DEFAULT);
    let mut scratch = Scratch::new();
    let mut input = masked(0x82, &noise);
    let mut pass = engine.process(&mut input, &mut scratch);
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!("no message") };
    bytes.reply().unwrap();
    let range = pass.finish().in_place.expect("in place");
    assert_eq!(unmasked(&input[range]), [(0x82, noise)]);
}

#[test]
fn rsv1_belongs_on_the_first_frame_of_a_message_alone() {
    for bytes in
        [masked(0xc9, b""), masked(0xc8, b""), [masked(0x41, b""), masked(0xc0, b"")].concat()]
    {
        let session =
            Session::with(server(0, EngineLimits::DEFAULT), Handler::Silent).feed_all([&bytes[..]]);
        assert_eq!(session.end, Some(End::Failed(Violation::ReservedBits)));
    }
}

#[test]
fn invalid_or_too_long_compressed_messages_end_the_connection() {
    let cases = [
        (masked(0xc2, &[0xff; 20]), Violation::BadDeflate),
        (masked(0xc1, &compressed(MessageRef::Binary(&[0xfe; 500]))), Violation::InvalidUtf8),
        (masked(0xc2, &compressed(MessageRef::Binary(&[7; 2000]))), Violation::MessageTooBig),
    ];
    for (bytes, violation) in cases {
        let mut limits = EngineLimits::DEFAULT;
        limits.message_max = 1999;
        for chunk in [bytes.len(), 5] {
            let session =
                Session::with(server(0, limits), Handler::Silent).feed_all(bytes.chunks(chunk));
            assert_eq!(session.end, Some(End::Failed(violation)));
            assert_eq!(session.seen, [Seen::Violation(violation)]);
        }
        limits.message_max = 2000;
        let session = Session::with(server(0, limits), Handler::Silent).feed_all([&bytes[..]]);
        assert_eq!(session.end.is_none(), violation == Violation::MessageTooBig, "at the limit");
    }
}

#[test]
fn a_message_that_becomes_too_many_times_longer_ends_the_connection() {
    let free = EngineLimits::RATIO_FREE_LEN_MAX;
    let (at_limit, beyond) = (vec![b'a'; free], vec![b'a'; free + 1]);
    let close = |bytes: &[u8], limits: EngineLimits| {
        let session = Session::with(server(0, limits), Handler::Silent).feed_all([bytes]);
        (session.end, session.output)
    };
    let beyond = masked(0xc1, &compressed(MessageRef::Binary(&beyond)));
    assert!(beyond.len() * 100 < free, "{} bytes", beyond.len());
    let (end, output) = close(&beyond, EngineLimits::DEFAULT);
    assert_eq!(end, Some(End::Failed(Violation::RatioTooHigh)));
    let reason = "compression ratio of the message is too high; send it uncompressed";
    assert_eq!(output, plain(0x88, &close_payload(1008, reason)));
    // Up to this length, any ratio is allowed.
    assert_eq!(
        close(&masked(0xc1, &compressed(MessageRef::Binary(&at_limit))), EngineLimits::DEFAULT).0,
        None
    );
    // A high limit, and no limit.
    let mut limits = EngineLimits::DEFAULT;
    limits.inflate_ratio_max = Some(2000);
    assert_eq!(close(&beyond, limits).0, None);
    limits.inflate_ratio_max = None;
    assert_eq!(close(&beyond, limits).0, None);
    // If the message exceeds `message_max` too, that is the reason.
    limits.inflate_ratio_max = Some(100);
    limits.message_max = free;
    assert_eq!(close(&beyond, limits).0, Some(End::Failed(Violation::MessageTooBig)));
}

#[test]
fn the_bytes_that_a_codec_has_worked_on_are_counted() {
    let (agreement, config) = settings()[0];
    let mut engine = Engine::with_deflate(&Arc::new(Config::server()), &agreement, &config);
    let mut scratch = Scratch::new();
    let long = LYRICS.repeat(100);
    let mut input =
        [masked(0xc1, &compressed(MessageRef::Text(&long))), masked(0x82, b"plain")].concat();
    let mut pass = engine.process(&mut input, &mut scratch);
    let Some(EngineEvent::Text(text)) = pass.next() else { panic!("no message") };
    text.reply().unwrap();
    let bytes = pass.codec_bytes();
    assert_eq!((bytes.inflated, bytes.deflated), (long.len() as u64, long.len() as u64));
    assert!(matches!(pass.next(), Some(EngineEvent::Binary(_))));
    assert!(pass.next().is_none());
    let _ = pass.finish();
    assert_eq!(scratch.codec_bytes(), bytes, "what is not compressed costs nothing");
    // A failed message counts up to the point of failure.
    let mut limits = EngineLimits::DEFAULT;
    limits.message_max = 1000;
    let mut engine = server(0, limits);
    let mut bomb = masked(0xc1, &compressed(MessageRef::Text(&long)));
    let mut pass = engine.process(&mut bomb, &mut scratch);
    assert!(matches!(pass.next(), Some(EngineEvent::Violation(Violation::MessageTooBig))));
    let after = pass.codec_bytes();
    let _ = pass.finish();
    assert_eq!(after.inflated - bytes.inflated, 1000);
}

#[test]
fn without_an_agreement_rsv1_is_reserved() {
    let mut session = Session::server(Handler::Silent);
    session.feed(&masked(0xc2, &noise(3)));
    assert_eq!(session.end, Some(End::Failed(Violation::ReservedBits)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(windlass_testkit::random::cases(15)))]

    #[test]
    fn compressed_messages_arrive(
        client in prop::collection::vec(said(), 0..6),
        server in prop::collection::vec(said(), 0..6),
        sizes in prop::collection::vec(prop_oneof![1usize..200, 1usize..70_000], 1..9),
        setting in 0usize..3,
        echo in any::<bool>(),
    ) {
        let (agreement, config) = settings()[setting];
        let server: &[_] = if echo { &[] } else { &server };
        talk(deflate_pair(&agreement, &config), [&client, server], &padded(sizes), echo);
    }
}

/// A broadcast message is read by every connection whose agreement allows it, in any order and
/// between the connection's own messages.
#[test]
fn a_message_compressed_for_many_is_read_by_each() {
    let config = DeflateConfig::DEFAULT;
    let mut shared = CodecPool::new();
    let mut for_many = Codec::for_broadcast(&config);
    let said = "the same for all of them, the same for all of them, ".repeat(20);
    let mut frame = b"before".to_vec();
    assert!(MessageRef::Text(&said).encode_compressed(&mut for_many, &mut shared, &mut frame));
    let frame = frame.split_off(6);
    assert!(frame.len() < said.len() / 4 && frame[0] == 0xc1);
    let mut short = Vec::new();
    assert!(!MessageRef::Text("short").encode_compressed(&mut for_many, &mut shared, &mut short));
    assert!(short.is_empty(), "it is to be sent as it is");
    let mut agreement = Agreement::DEFAULT;
    assert!(!agreement.can_read_broadcast(&config), "a context is taken over");
    agreement.server_no_context_takeover = true;
    assert!(agreement.can_read_broadcast(&config));
    let engine = Engine::with_deflate(&Arc::new(Config::client(entropy)), &agreement, &config);
    let mut session = Session::with(engine, Handler::Silent);
    session.feed(&frame);
    session.feed(&frame);
    assert_eq!(session.seen, [text(&said), text(&said)]);
    agreement.server_max_window_bits = 14;
    assert!(!agreement.can_read_broadcast(&config), "the window is too large for it");
}
