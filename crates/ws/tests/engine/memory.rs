//! The memory of an engine.

use windlass_ws::{Engine, EngineEvent};

use crate::fixture::{Handler, Session, masked, noise};

#[test]
fn an_idle_engine_is_at_most_48_bytes() {
    assert!(size_of::<Engine>() <= 48, "{}", size_of::<Engine>());
    assert!(size_of::<EngineEvent<'_>>() <= 64, "{}", size_of::<EngineEvent<'_>>());
    assert_eq!(Session::server(Handler::Echo).engine.buffered(), 0);
}

#[test]
fn the_fast_path_takes_complete_binary_messages() {
    let config = std::sync::Arc::new(windlass_ws::Config::server());
    let (mut engine, mut scratch) = (Engine::new(&config), windlass_ws::Scratch::new());
    let (one, two, text) = (masked(0x82, b"one"), masked(0x82, &[7; 1000]), masked(0x81, b"text"));

    // All of it takes the fast path. The output is one range of the input.
    let mut input = [&one[..], &two].concat();
    let mut pass = engine.process(&mut input, &mut scratch);
    for len in [3, 1000] {
        let bytes = pass.next_fast().expect("a whole message");
        assert_eq!(bytes.len(), len);
        bytes.reply().expect("it is open");
    }
    assert!(pass.next_fast().is_none());
    let range = pass.finish_fast().expect("nothing else has come");
    assert_eq!(input[range], [&[0x82, 3][..], b"one", &[0x82, 126, 3, 232], &[7; 1000]].concat());

    // The slow path handles a text and an incomplete frame, and keeps the earlier replies.
    for (rest, event) in [(&text[..], Some("text")), (&one[..4], None)] {
        let mut input = [&one[..], rest].concat();
        let mut pass = engine.process(&mut input, &mut scratch);
        assert!(pass.next_fast().expect("the first").reply().is_ok());
        assert!(pass.next_fast().is_none());
        let mut pass = pass.finish_fast().expect_err("there is more to come");
        match (pass.next(), event) {
            (Some(EngineEvent::Text(text)), Some(expected)) => assert_eq!(&*text, expected),
            (None, None) => {}
            (other, _) => panic!("{other:?}"),
        }
        let outcome = pass.finish();
        assert_eq!(outcome.consumed, one.len() + rest.len());
        assert_eq!(input[outcome.in_place.expect("one range")], *b"\x82\x03one");
    }
    // While a frame is incomplete, nothing takes the fast path.
    let mut input = [&one[4..], &one].concat();
    let mut pass = engine.process(&mut input, &mut scratch);
    assert!(pass.next_fast().is_none());
    assert!(pass.finish_fast().is_err());
}

#[test]
fn memory_grows_by_received_bytes_not_by_announced_ones() {
    let announced = 1 << 20;
    for first in [0x82, 0x81, 0x02] {
        let mut session = Session::server(Handler::Echo);
        let header = [&[first, 0xff][..], &(announced as u64).to_be_bytes(), &[0; 4]].concat();
        session.feed(&header);
        session.feed(b"x");
        assert_eq!(session.end, None);
        assert!(session.engine.buffered() < 1024, "{} bytes for one", session.engine.buffered());
        let mut came = 1;
        while came + 5000 < announced {
            session.feed(&[b'x'; 5000]);
            came += 5000;
            assert!(
                session.engine.buffered() < 1024 + 3 * came,
                "{} for {came}",
                session.engine.buffered()
            );
        }
    }
}

#[test]
fn nothing_is_held_between_messages() {
    let mut session = Session::server(Handler::Echo);
    for (first, payload) in
        [(0x82, noise(5000)), (0x89, noise(100)), (0x01, vec![b'a'; 9]), (0x80, vec![b'b'; 900])]
    {
        for byte in masked(first, &payload).chunks(7) {
            session.feed(byte);
        }
        let open = first == 0x01;
        assert_eq!(session.engine.buffered() > 0, open, "after {first:x}");
    }
    // An incomplete header is kept in the engine itself.
    session.feed(&masked(0x82, &noise(70_000))[..13]);
    assert_eq!(session.engine.buffered(), 0);
}
