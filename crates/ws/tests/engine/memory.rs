//! What an engine holds.

use windlass_ws::{Engine, Event};

use crate::bed::{Handler, Session, masked, noise};

#[test]
fn an_idle_engine_is_at_most_64_bytes() {
    assert!(size_of::<Engine>() <= 48, "{}", size_of::<Engine>());
    assert!(size_of::<Event<'_>>() <= 64, "{}", size_of::<Event<'_>>());
    assert_eq!(Session::server(Handler::Echo).engine.buffered(), 0);
}

#[test]
fn memory_grows_by_what_came_not_by_what_was_announced() {
    let announced = 16 << 20;
    for first in [0x82, 0x81, 0x02] {
        let mut session = Session::server(Handler::Echo);
        let header = [&[first, 0xff][..], &(announced as u64).to_be_bytes(), &[0; 4]].concat();
        session.feed(&header);
        session.feed(b"x");
        assert_eq!(session.end, None);
        assert!(session.engine.buffered() < 1024, "{} bytes for one", session.engine.buffered());
        let mut came = 1;
        while came < 1 << 20 {
            session.feed(&[b'x'; 5000]);
            came += 5000;
            assert!(session.engine.buffered() < 1024 + 3 * came, "{} for {came}", session.engine.buffered());
        }
    }
}

#[test]
fn nothing_is_held_between_messages() {
    let mut session = Session::server(Handler::Echo);
    for (first, payload) in [(0x82, noise(5000)), (0x89, noise(100)), (0x01, vec![b'a'; 9]), (0x80, vec![b'b'; 900])] {
        for byte in masked(first, &payload).chunks(7) {
            session.feed(byte);
        }
        let open = first == 0x01;
        assert_eq!(session.engine.buffered() > 0, open, "after {first:x}");
    }
    // A header alone is kept in the engine itself.
    session.feed(&masked(0x82, &noise(70_000))[..13]);
    assert_eq!(session.engine.buffered(), 0);
}
