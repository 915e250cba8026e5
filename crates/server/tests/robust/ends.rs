//! Peers that leave, in every way and at every moment.

use std::panic::{AssertUnwindSafe, catch_unwind};

use windlass_server::CloseReason;

use crate::{
    bed::{Bed, PANIC, options},
    peer::{BINARY, CLOSE, Frame, PING, PONG, Peer, TEXT, masked, upgrade},
};

#[test]
fn a_half_closed_client_gets_all_that_it_has_asked_for_and_then_the_end() {
    let mut bed = Bed::new(&options());
    for (count, size) in [(1, 1), (1, 100_000), (1000, 100), (40, 100_000)] {
        let mut peer = bed.open("/echo");
        let message =
            |number: u32| -> Vec<u8> { (number..).flat_map(u32::to_be_bytes).take(size).collect() };
        for number in 0..count {
            peer.send_frame(BINARY, message(number));
        }
        let mut next = 0;
        bed.until("all of it, and the end", |_| {
            peer.push();
            if peer.unsent() == 0 {
                peer.finish_once();
            }
            while let Some(frame) = peer.frame() {
                assert!(frame == Frame::new(BINARY, message(next)), "message {next}");
                next += 1;
            }
            peer.end()
        })
        .expect("it ends in order");
        assert_eq!(next, count, "{count} of {size} bytes");
        bed.until_connections(0);
    }
    assert_eq!(bed.log.closed(), [CloseReason::Lost; 4]);
    bed.expect_empty();
}

#[test]
fn a_client_may_leave_within_its_request() {
    let mut bed = Bed::new(&options());
    let request = upgrade("/echo", "");
    for at in 0..request.len() {
        let mut peer = Peer::connect(bed.address);
        peer.send(&request[..at]);
        bed.until_connections(1);
        if at % 2 == 0 {
            peer.finish();
            let answer = bed.rest(peer);
            assert!(!answer.starts_with(b"HTTP/1.1 101"), "cut at {at}");
        } else {
            peer.reset();
        }
        bed.until_connections(0);
    }
    assert_eq!(bed.stats().opened, 0);
    bed.expect_empty();
}

#[test]
fn a_client_may_leave_within_a_frame_and_what_was_whole_before_is_answered() {
    let mut bed = Bed::new(&options());
    let whole = masked(TEXT, b"whole");
    let frames =
        [masked(BINARY, &[7; 300]), masked(PING, b"ping"), masked(CLOSE, &1000_u16.to_be_bytes())];
    for frame in frames {
        for at in (0..frame.len()).step_by(if frame.len() > 100 { 17 } else { 1 }) {
            let mut peer = bed.open("/echo");
            peer.send(&[&whole[..], &frame[..at]].concat());
            assert_eq!(bed.frame(&mut peer).text(), "whole");
            if at % 2 == 0 {
                peer.finish();
                assert_eq!(bed.rest(peer), b"", "cut at {at}");
            } else {
                peer.reset();
            }
            bed.until_connections(0);
        }
    }
    let lost = |reason: &CloseReason| matches!(reason, CloseReason::Lost | CloseReason::Failed(_));
    assert!(bed.log.closed().iter().all(lost), "{:?}", bed.log.closed());
    bed.expect_empty();
}

#[test]
fn request_message_and_close_may_come_at_once_with_the_end() {
    let mut bed = Bed::new(&options());
    let mut peer = Peer::connect(bed.address);
    let bytes = [
        upgrade("/echo", ""),
        masked(TEXT, b"first"),
        masked(PING, b"second"),
        masked(CLOSE, &[&1000_u16.to_be_bytes()[..], b"third"].concat()),
        masked(TEXT, b"after the end"),
    ];
    peer.send(&bytes.concat());
    peer.finish();
    let head = bed.head(&mut peer);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(bed.frame(&mut peer), Frame::new(TEXT, "first"));
    assert_eq!(bed.frame(&mut peer), Frame::new(PONG, "second"));
    assert_eq!(bed.frame(&mut peer).close_code(), 1000);
    assert!(bed.end(peer));
    bed.until_connections(0);
    assert_eq!(bed.log.closed.borrow()[0].1, CloseReason::Peer);
    assert_eq!(bed.log.closed.borrow()[0].2, Some(1000));
    assert_eq!(bed.log.messages.get(), 1, "nothing counts after a close");
    bed.expect_empty();
}

#[test]
fn a_close_is_answered_and_the_connection_ended_in_order() {
    let mut bed = Bed::new(&options());
    for (payload, code) in
        [(&b""[..], None), (&b"\x03\xe8"[..], Some(1000)), (&b"\x0b\xb8why"[..], Some(3000))]
    {
        let mut peer = bed.open("/echo");
        peer.send_frame(CLOSE, payload);
        let answer = bed.frame(&mut peer);
        assert_eq!((answer.first, answer.payload.get(..2)), (CLOSE, payload.get(..2)));
        assert!(bed.end(peer), "the server closes first (RFC 6455 section 7.1.1)");
        bed.until_connections(0);
        let closed = bed.log.closed.borrow().last().copied().expect("it is closed");
        assert_eq!((closed.1, closed.2), (CloseReason::Peer, code));
    }
    bed.expect_empty();
}

#[test]
fn resets_harm_nobody_else() {
    let mut bed = Bed::new(&options());
    let mut witness = bed.open("/room");
    let mut speaker = bed.open("/room");
    for round in 0..50_u8 {
        let mut peers: Vec<Peer> = (0..5).map(|_| bed.open("/room")).collect();
        // They leave while the message is on its way to them.
        speaker.send_frame(BINARY, [round]);
        if round % 2 == 0 {
            bed.settle();
        }
        peers.drain(..).for_each(Peer::reset);
        assert_eq!(bed.frame(&mut witness), Frame::new(BINARY, [round]));
    }
    bed.until_connections(2);
    assert_eq!(bed.stats().closed, 250);
    drop((witness, speaker));
    bed.expect_empty();
}

#[test]
fn a_handler_that_panics_costs_its_own_connection_and_no_other() {
    let mut bed = Bed::new(&options());
    let mut witness = bed.open("/room");
    let mut speaker = bed.open("/room");
    for round in 0..3_u8 {
        let mut victim = bed.open("/panic");
        victim.send_frame(BINARY, b"now");
        // In the same turn, perhaps, and not lost.
        speaker.send_frame(BINARY, [round]);
        let panic =
            bed.until("the panic", |bed| catch_unwind(AssertUnwindSafe(|| bed.settle())).err());
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(PANIC));
        assert_eq!(bed.rest(victim), b"");
        assert_eq!(bed.frame(&mut witness), Frame::new(BINARY, [round]));
    }
    bed.until_connections(2);
    bed.exchange_room(&mut speaker, &mut witness);
    assert_eq!(bed.log.closed(), [], "on_close is not called where a callback has panicked");
    drop((witness, speaker));
    bed.until_connections(0);
    assert_eq!(bed.log.alive(), 0, "the data of each is dropped");
}

#[test]
fn a_half_closed_client_that_reads_late_gets_all_of_it() {
    let mut options = options();
    options.receiver_buffer_max = 64 << 10;
    let mut bed = Bed::new(&options);
    let peer = Peer::with_small_window(bed.address);
    let mut peer = bed.shake(peer, "/echo");
    let message =
        |number: u32| -> Vec<u8> { (number..).flat_map(u32::to_be_bytes).take(10_000).collect() };
    const COUNT: u32 = 1000;
    for number in 0..COUNT {
        peer.send_frame(BINARY, message(number));
    }
    bed.until("the server is held back", |bed| (bed.stats().reading_paused > 0).then_some(()));
    let mut next = 0;
    bed.until("all of it, and the end", |_| {
        peer.push();
        if peer.unsent() == 0 {
            peer.finish_once();
        }
        // A little at a time.
        if let Some(frame) = peer.frame() {
            assert!(frame == Frame::new(BINARY, message(next)), "message {next}");
            next += 1;
        }
        peer.end()
    })
    .expect("it ends in order");
    assert_eq!((next, bed.stats().dropped), (COUNT, 0));
    drop(peer);
    bed.expect_empty();
}
