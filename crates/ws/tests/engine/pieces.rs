//! Messages that are passed on in pieces.

use std::sync::Arc;

use windlass_ws::{Config, Engine, EngineEvent, EngineLimits, Scratch, Violation};

use crate::fixture::{masked, noise};

/// What was received of the messages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Log {
    /// The complete messages, put together.
    messages: Vec<(bool, Vec<u8>)>,
    /// What has arrived of the current one.
    current: Vec<u8>,
    pings: usize,
    violation: Option<Violation>,
}

impl Log {
    fn feed(&mut self, engine: &mut Engine, bytes: &[u8]) {
        let (mut input, mut scratch) = (bytes.to_vec(), Scratch::new());
        let mut pass = engine.process(&mut input, &mut scratch);
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Piece(piece) => {
                    self.current.extend_from_slice(piece.bytes);
                    if piece.is_last {
                        self.messages.push((piece.is_text, std::mem::take(&mut self.current)));
                    }
                }
                EngineEvent::Text(text) => self.messages.push((true, text.as_bytes().to_vec())),
                EngineEvent::Binary(bytes) => self.messages.push((false, bytes.to_vec())),
                EngineEvent::Ping(_) => self.pings += 1,
                EngineEvent::Violation(violation) => self.violation = Some(violation),
                other => panic!("{other:?}"),
            }
        }
        let _ = pass.finish();
    }
}

fn engine() -> Engine {
    let mut engine = Engine::new(&Arc::new(Config::server()));
    engine.set_pieces(true);
    engine
}

/// A long binary message, a ping between the frames of a text, an empty last frame.
fn conversation() -> (Vec<u8>, Vec<(bool, Vec<u8>)>) {
    let bytes = [
        masked(0x82, &noise(300)),
        masked(0x01, "zwö".as_bytes()),
        masked(0x89, b"ping"),
        masked(0x00, b""),
        masked(0x00, b"lf"),
        masked(0x80, b""),
        masked(0x82, b""),
    ];
    let messages = vec![(false, noise(300)), (true, "zwölf".into()), (false, Vec::new())];
    (bytes.concat(), messages)
}

#[test]
fn the_pieces_are_the_message_wherever_the_input_is_cut() {
    let (bytes, messages) = conversation();
    for first in 0..bytes.len() {
        for second in [first, first + 1, bytes.len() - 1] {
            let second = second.clamp(first, bytes.len());
            let (mut engine, mut log) = (engine(), Log::default());
            log.feed(&mut engine, &bytes[..first]);
            // Nothing of the message is held, but for a partial control frame.
            log.feed(&mut engine, &bytes[first..second]);
            log.feed(&mut engine, &bytes[second..]);
            assert_eq!((&log.messages, log.pings), (&messages, 1), "cut at {first}, {second}");
            assert_eq!((engine.buffered(), engine.end()), (0, None));
        }
    }
    let (mut engine, mut log) = (engine(), Log::default());
    bytes.chunks(1).for_each(|byte| log.feed(&mut engine, byte));
    assert_eq!((log.messages, log.pings), (messages, 1));
}

#[test]
fn a_piece_is_passed_on_at_once_and_not_held() {
    let (mut engine, mut log) = (engine(), Log::default());
    let bytes = masked(0x82, &noise(100_000));
    for (count, chunk) in bytes.chunks(10_000).enumerate() {
        log.feed(&mut engine, chunk);
        let received = ((count + 1) * 10_000).min(bytes.len()) - 14;
        assert_eq!(log.current.len() % 100_000, received % 100_000);
        assert!(engine.buffered() < 1000, "{} bytes are held", engine.buffered());
    }
    assert_eq!(log.messages, [(false, noise(100_000))]);
}

#[test]
fn what_was_assembled_before_comes_as_the_first_piece() {
    let bytes = masked(0x82, &noise(1000));
    let (mut engine, mut log) = (Engine::new(&Arc::new(Config::server())), Log::default());
    log.feed(&mut engine, &bytes[..500]);
    assert_eq!(log, Log::default());
    engine.set_pieces(true);
    log.feed(&mut engine, &bytes[500..501]);
    assert_eq!(log.current.len(), 501 - 8);
    log.feed(&mut engine, &bytes[501..]);
    assert_eq!(log.messages, [(false, noise(1000))]);
}

#[test]
fn the_rest_of_a_message_is_discarded_when_pieces_are_not_wanted_any_more() {
    let bytes = masked(0x81, &[b'x'; 1000]);
    let (mut engine, mut log) = (engine(), Log::default());
    log.feed(&mut engine, &bytes[..500]);
    engine.set_pieces(false);
    log.feed(&mut engine, &[&bytes[500..], &masked(0x81, b"next")].concat());
    assert_eq!(log.messages, [(true, b"next".to_vec())]);
    assert_eq!((engine.buffered(), engine.end()), (0, None));
}

#[test]
fn the_limits_count_the_whole_message() {
    let mut limits = EngineLimits::DEFAULT;
    limits.message_max = 1000;
    let mut engine = Engine::new(&Arc::new(Config::server().with_limits(limits)));
    engine.set_pieces(true);
    let mut log = Log::default();
    log.feed(&mut engine, &masked(0x02, &noise(600)));
    log.feed(&mut engine, &masked(0x00, &noise(400)));
    assert_eq!((log.current.len(), log.violation), (1000, None));
    log.feed(&mut engine, &masked(0x80, &noise(1)));
    assert_eq!(log.violation, Some(Violation::MessageTooBig));
}

#[test]
fn a_text_is_validated_piece_by_piece() {
    for (good, bad) in [(&b"zw\xc3"[..], &b"("[..]), (b"zw", b"\xff"), (b"", b"\xc3")] {
        let (mut engine, mut log) = (engine(), Log::default());
        log.feed(&mut engine, &masked(0x01, good));
        assert_eq!(log.violation, None);
        log.feed(&mut engine, &masked(0x80, bad));
        assert_eq!(log.violation, Some(Violation::InvalidUtf8), "{good:?} {bad:?}");
    }
}
