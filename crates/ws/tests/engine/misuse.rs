//! Mistakes of the caller: omitted calls and calls in the wrong order.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use windlass_ws::{
    CloseCode, Config, End, Engine, EngineEvent, FrameSendError, MessageRef, Outcome, Scratch,
    Violation,
};

use crate::fixture::{close_payload, masked, noise, plain};

fn server() -> Engine {
    Engine::new(&Arc::new(Config::server()))
}

/// Replies to every message and ignores the errors.
fn echo(engine: &mut Engine, scratch: &mut Scratch, input: &mut [u8]) -> Outcome {
    let mut pass = engine.process(input, scratch);
    while let Some(event) = pass.next() {
        match event {
            EngineEvent::Text(text) => _ = text.reply(),
            EngineEvent::Binary(bytes) => _ = bytes.reply(),
            _ => {}
        }
    }
    pass.finish()
}

fn gathered(scratch: &Scratch, outcome: &Outcome, input: &[u8]) -> Vec<u8> {
    scratch.output(outcome, input).flatten().copied().collect()
}

/// A message in two frames, long enough that its reply is sent from the assembly buffer. The pong
/// between them keeps it off the fast path.
fn long_message() -> (Vec<u8>, Vec<u8>) {
    let payload = noise(10_000);
    let frames = [masked(0x02, &payload[..10]), masked(0x8a, b""), masked(0x80, &payload[10..])];
    (frames.concat(), plain(0x82, &payload))
}

#[test]
fn the_output_of_one_connection_is_not_given_out_for_anothers() {
    let (mut one, mut other, mut scratch) = (server(), server(), Scratch::new());
    let (mut input, expected) = long_message();
    let outcome = echo(&mut one, &mut scratch, &mut input);
    assert_eq!(outcome.in_place, None);
    assert_eq!(gathered(&scratch, &outcome, &input), expected);
    // A rejected call leaves the output unchanged.
    assert_eq!(other.ping(&[0; 126], &mut scratch).map(<[u8]>::len), Err(FrameSendError::TooLong));
    assert_eq!(
        other.close(CloseCode::NO_STATUS, "", &mut scratch).map(<[u8]>::len),
        Err(FrameSendError::BadCloseCode)
    );
    assert_eq!(
        other.close(CloseCode::NORMAL, &"r".repeat(124), &mut scratch).map(<[u8]>::len),
        Err(FrameSendError::TooLong)
    );
    assert_eq!(gathered(&scratch, &outcome, &input), expected);

    other.send(MessageRef::Text("to somebody else"), &mut scratch).unwrap();
    let payload =
        catch_unwind(AssertUnwindSafe(|| gathered(&scratch, &outcome, &input))).unwrap_err();
    let text = payload.downcast_ref::<&str>().unwrap();
    assert!(text.contains("the scratch has been used since"), "{text}");
    // A pass whose output lies at the same place of the scratch is still another pass.
    let (mut input, _) = long_message();
    let _ = echo(&mut other, &mut scratch, &mut input);
    assert!(catch_unwind(AssertUnwindSafe(|| gathered(&scratch, &outcome, &input))).is_err());
}

#[test]
fn a_dropped_pass_does_no_harm() {
    let (mut engine, mut scratch) = (server(), Scratch::new());
    let (mut input, expected) = long_message();
    let mut pass = engine.process(&mut input, &mut scratch);
    assert!(matches!(pass.next(), Some(EngineEvent::Pong(b""))));
    let Some(EngineEvent::Binary(bytes)) = pass.next() else { panic!("no message") };
    bytes.reply().unwrap();
    drop(pass);
    // Its output is lost. The next output is complete.
    let (mut input, _) = long_message();
    let outcome = echo(&mut engine, &mut scratch, &mut input);
    assert_eq!(gathered(&scratch, &outcome, &input), expected);
}

#[test]
fn pings_are_not_counted_by_who_was_never_told_of_seconds() {
    let (mut engine, mut scratch) = (server(), Scratch::new());
    let ping = || masked(0x89, b"x");
    for _ in 0..3000 {
        assert_eq!(echo(&mut engine, &mut scratch, &mut ping()).end, None);
    }
    // They are counted once a second was set.
    scratch.set_second(0);
    for _ in 0..1000 {
        assert_eq!(echo(&mut engine, &mut scratch, &mut ping()).end, None);
    }
    // A Close frame is always accepted, because a peer is expected to send it.
    let mut closing = masked(0x88, &close_payload(1000, ""));
    let mut other = server();
    for _ in 0..1000 {
        assert_eq!(echo(&mut other, &mut scratch, &mut ping()).end, None);
    }
    assert_eq!(echo(&mut other, &mut scratch, &mut closing).end, Some(End::Closed));
    assert_eq!(
        echo(&mut engine, &mut scratch, &mut ping()).end,
        Some(End::Failed(Violation::TooManyControls))
    );
}

#[test]
fn after_a_close_replies_fail_and_the_peers_close_is_seen() {
    let (mut engine, mut scratch) = (server(), Scratch::new());
    engine.close(CloseCode::NORMAL, "", &mut scratch).unwrap();
    let mut input = [masked(0x81, b"late"), masked(0x88, &close_payload(1000, ""))].concat();
    let outcome = echo(&mut engine, &mut scratch, &mut input);
    assert_eq!((outcome.end, outcome.len), (Some(End::Closed), 0));
}

#[test]
fn many_short_messages_in_pieces_have_one_piece_of_output() {
    let (mut engine, mut scratch) = (server(), Scratch::new());
    let message = [masked(0x02, b"a"), masked(0x80, b"b")].concat();
    let mut input = message.repeat(2000);
    let outcome = echo(&mut engine, &mut scratch, &mut input);
    assert_eq!(scratch.output(&outcome, &input).count(), 1);
    assert_eq!(gathered(&scratch, &outcome, &input), plain(0x82, b"ab").repeat(2000));
}
