//! Each limit is met exactly.

use windlass_ws::{Config, End, EngineLimits, Violation};

use crate::fixture::{Handler, Session, masked, noise};

fn server(change: impl FnOnce(&mut EngineLimits)) -> Session {
    let mut limits = EngineLimits::default();
    change(&mut limits);
    Session::new(Config::server().with_limits(limits), Handler::Echo)
}

fn end_of(mut session: Session, frames: &[Vec<u8>]) -> Option<End> {
    session.feed(&frames.concat());
    session.end
}

#[test]
fn a_frame_has_a_longest_payload() {
    for max in [0, 1, 50, 125, 126, 1000, 70_000] {
        let new = || server(|limits| limits.frame_max = max);
        for first in [0x81, 0x82, 0x02] {
            assert_eq!(
                end_of(new(), &[masked(first, &vec![b'x'; max])]),
                None,
                "{max} at the limit"
            );
            let above = masked(first, &vec![b'x'; max + 1]);
            assert_eq!(
                end_of(new(), std::slice::from_ref(&above)),
                Some(End::Failed(Violation::FrameTooBig)),
                "{max} above"
            );
            let header = above.len() - max - 1;
            assert_eq!(
                end_of(new(), &[above[..header].to_vec()]),
                Some(End::Failed(Violation::FrameTooBig)),
                "by its header"
            );
        }
    }
    assert_eq!(
        end_of(server(|limits| limits.frame_max = 3), &[masked(0x89, b"four")]),
        Some(End::Failed(Violation::FrameTooBig)),
        "control frames are frames"
    );
}

#[test]
fn a_message_has_a_longest_payload() {
    let failed = Some(End::Failed(Violation::MessageTooBig));
    for max in [0, 1, 50, 125, 126, 1000, 70_000] {
        let new = || server(|limits| limits.message_max = max);
        assert_eq!(end_of(new(), &[masked(0x82, &noise(max))]), None);
        assert_eq!(end_of(new(), &[masked(0x82, &noise(max + 1))]), failed);
        assert_eq!(end_of(new(), &[masked(0x02, &noise(max)), masked(0x80, b"")]), None);
        assert_eq!(end_of(new(), &[masked(0x02, &noise(max)), masked(0x80, b"x")]), failed);
        let mut session = new();
        session.feed(&masked(0x02, &noise(max)));
        session.feed(&masked(0x80, b"x")[..6]);
        assert_eq!(session.end, failed, "by the header of the fragment");
        // The next message starts at zero.
        assert_eq!(
            end_of(
                new(),
                &[masked(0x02, &noise(max)), masked(0x80, b""), masked(0x82, &noise(max))]
            ),
            None
        );
    }
}

#[test]
fn a_message_has_so_many_frames() {
    let failed = Some(End::Failed(Violation::TooManyFragments));
    for max in [1, 2, 5] {
        let new = || server(|limits| limits.fragments_max = max);
        let message = |frames: u32| -> Vec<Vec<u8>> {
            let middle = masked(0x00, b"m").repeat(frames.saturating_sub(2) as usize);
            if frames == 1 {
                vec![masked(0x82, b"a")]
            } else {
                vec![masked(0x02, b"a"), middle, masked(0x80, b"z")]
            }
        };
        assert_eq!(end_of(new(), &message(max)), None, "{max}");
        assert_eq!(end_of(new(), &[message(max), message(max)].concat()), None, "{max}, twice");
        assert_eq!(end_of(new(), &message(max + 1)), failed, "{max}");
    }
    assert_eq!(end_of(server(|limits| limits.fragments_max = 0), &[masked(0x82, b"a")]), failed);
}

#[test]
fn control_frames_are_counted_by_the_second() {
    let new = || server(|limits| limits.controls_per_second_max = 5);
    assert_eq!(end_of(new(), &[masked(0x89, b"").repeat(5)]), None);
    assert_eq!(
        end_of(new(), &[masked(0x8a, b"").repeat(6)]),
        Some(End::Failed(Violation::TooManyControls))
    );
    let mut session = new();
    for second in [0, 0, 1, 7, 7, 8] {
        session.scratch.set_second(second);
        session.feed(&masked(0x89, b"").repeat(if second == 0 || second == 7 { 2 } else { 5 }));
        assert_eq!(session.end, None, "second {second}");
    }
    session.feed(&masked(0x89, b""));
    assert_eq!(session.end, Some(End::Failed(Violation::TooManyControls)));
    let mut session = new();
    for byte in masked(0x89, b"pieces count once").repeat(5) {
        session.feed(&[byte]);
    }
    assert_eq!(session.end, None);
}

#[test]
fn a_flood_of_the_default_size_is_stopped() {
    let mut session = Session::server(Handler::Silent);
    session.feed(&masked(0x89, b"").repeat(1000));
    assert_eq!((session.end, session.seen.len()), (None, 1000));
    session.feed(&masked(0x89, b"").repeat(1000));
    assert_eq!(session.end, Some(End::Failed(Violation::TooManyControls)));
    assert_eq!(session.seen.len(), 1001);
}

#[test]
fn other_limits_apply_from_the_next_pass_on() {
    let mut session = server(|_| {});
    session.feed(&masked(0x82, &[7; 100]));
    assert_eq!(session.output.len(), 102);
    let mut limits = EngineLimits::DEFAULT;
    limits.message_max = 99;
    session.engine.set_config(&Config::server().with_limits(limits).into());
    session.feed(&masked(0x82, &[7; 99]));
    assert_eq!((session.output.len(), session.end), (203, None));
    session.feed(&masked(0x82, &[7; 100]));
    assert_eq!(session.end, Some(End::Failed(Violation::MessageTooBig)));
}

#[test]
#[should_panic(expected = "an engine keeps its role")]
fn a_role_is_for_life() {
    server(|_| {}).engine.set_config(&Config::client(crate::fixture::entropy).into());
}
