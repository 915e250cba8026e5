//! Peers that take their time.

use std::time::Duration;

use windlass_server::{CloseReason, Options};

use crate::{
    bed::{Bed, options},
    peer::{BINARY, CLOSE, Frame, PING, PONG, Peer, masked, upgrade},
};

const SECOND: Duration = Duration::from_secs(1);

fn with(change: impl FnOnce(&mut Options)) -> Bed {
    let mut options = options();
    change(&mut options);
    Bed::new(&options)
}

/// Sends these bytes one a second.
fn trickle(bed: &mut Bed, peer: &mut Peer, bytes: &[u8]) {
    for byte in bytes {
        peer.send(&[*byte]);
        bed.settle();
        bed.pass(SECOND);
    }
}

#[test]
fn a_request_of_one_byte_a_second_is_cut_off_at_the_handshake_timeout() {
    let mut bed = with(|options| options.handshake_timeout = 10 * SECOND);
    let mut peer = Peer::connect(bed.address);
    bed.until_connections(1);
    let request = upgrade("/echo", "");
    trickle(&mut bed, &mut peer, &request[..9]);
    assert_eq!(peer.received(), b"", "not before");
    trickle(&mut bed, &mut peer, &request[9..12]);
    let head = bed.head(&mut peer);
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    bed.rest(peer);
    assert_eq!(bed.stats().handshake_timeouts, 1);
    bed.expect_empty();
}

#[test]
fn who_connects_and_says_nothing_is_cut_off_at_the_handshake_timeout() {
    let mut bed = with(|options| options.handshake_timeout = 10 * SECOND);
    let peers: Vec<Peer> = (0..20).map(|_| Peer::connect(bed.address)).collect();
    bed.until_connections(20);
    let mut witness = bed.open("/echo");
    bed.pass(Duration::from_millis(9900));
    assert_eq!((bed.stats().connections, bed.stats().handshake_timeouts), (21, 0), "not before");
    bed.pass(2 * SECOND);
    for peer in peers {
        assert_eq!(bed.rest(peer), b"");
    }
    bed.until_connections(1);
    bed.pass(100 * SECOND);
    bed.exchange(&mut witness, b"who has shaken hands is left alone");
    drop(witness);
    bed.expect_empty();
}

#[test]
fn a_request_that_comes_byte_by_byte_in_time_is_answered() {
    let mut bed = with(|options| options.handshake_timeout = 10 * SECOND);
    let mut peer = Peer::connect(bed.address);
    for byte in upgrade("/echo", "") {
        peer.send(&[byte]);
        bed.settle();
        bed.advance(SECOND / 50);
    }
    let head = bed.head(&mut peer);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    bed.exchange(&mut peer, b"hello");
}

#[test]
fn a_message_of_one_byte_a_second_is_taken_whole_and_its_sender_is_not_idle() {
    let mut bed = with(|options| {
        options.ping_interval = Some(3 * SECOND);
        options.idle_timeout = Some(6 * SECOND);
    });
    let mut peer = bed.open("/echo");
    let message = b"one byte a second, and not idle";
    trickle(&mut bed, &mut peer, &masked(BINARY, message));
    assert_eq!(bed.frame(&mut peer), Frame::new(BINARY, message));
    assert_eq!((bed.stats().pings, bed.stats().idle_timeouts), (0, 0));
}

#[test]
fn a_silent_peer_is_pinged_and_lives_as_long_as_it_answers() {
    let mut bed = with(|options| {
        options.ping_interval = Some(3 * SECOND);
        options.idle_timeout = Some(8 * SECOND);
    });
    let mut peer = bed.open("/sink");
    for _ in 0..10 {
        bed.pass(2 * SECOND);
        assert_eq!(peer.received(), b"", "not before");
        bed.pass(2 * SECOND);
        assert_eq!(bed.frame(&mut peer), Frame::new(PING, b""));
        peer.send_frame(PONG, b"");
        bed.settle();
    }
    assert_eq!(bed.log.closed(), []);
}

#[test]
fn a_peer_that_is_not_heard_of_is_closed_at_the_idle_timeout() {
    let mut bed = with(|options| {
        options.ping_interval = Some(3 * SECOND);
        options.idle_timeout = Some(8 * SECOND);
    });
    let mut peer = bed.open("/sink");
    let mut talker = bed.open("/echo");
    for _ in 0..7 {
        bed.pass(SECOND);
        bed.exchange(&mut talker, b"I am");
        while talker.frame().is_some() {}
    }
    bed.pass(Duration::from_millis(900));
    assert_eq!(bed.log.closed(), [], "not before");
    for _ in 0..10 {
        bed.pass(SECOND);
        bed.exchange(&mut talker, b"I am");
    }
    assert_eq!(bed.log.closed(), [CloseReason::Idle]);
    let mut frames = Vec::new();
    bed.until("the end", |_| {
        frames.extend(peer.frame());
        peer.end().map(|_| ())
    });
    assert!(frames.iter().filter(|frame| frame.first == PING).count() >= 2, "{frames:?}");
    assert_eq!(bed.stats().idle_timeouts, 1);
    drop(talker);
    bed.expect_empty();
}

#[test]
fn a_connection_is_closed_when_it_has_lived_for_long_enough() {
    let mut bed = with(|options| options.lifetime_max = Some(10 * SECOND));
    let mut first = bed.open("/echo");
    bed.pass(5 * SECOND);
    let mut second = bed.open("/echo");
    for _ in 0..4 {
        bed.exchange(&mut first, b"busy");
        bed.pass(SECOND);
    }
    bed.exchange(&mut first, b"not before");
    bed.pass(2 * SECOND);
    let frame = bed.frame(&mut first);
    assert_eq!(frame.close_code(), 1001);
    first.send_frame(CLOSE, &frame.payload);
    assert!(bed.end(first));
    bed.until_connections(1);
    assert_eq!(bed.log.closed(), [CloseReason::Lifetime]);
    bed.exchange(&mut second, b"it is younger");
    drop(second);
    bed.expect_empty();
}

#[test]
fn a_peer_that_does_not_answer_a_close_is_ended_at_the_close_timeout() {
    let mut bed = with(|options| {
        options.lifetime_max = Some(10 * SECOND);
        options.close_timeout = 5 * SECOND;
    });
    let mut peer = bed.open("/echo");
    bed.pass(12 * SECOND);
    assert_eq!(bed.frame(&mut peer).close_code(), 1001);
    // What it sends now is no answer.
    for second in 0..8 {
        assert_eq!(peer.received(), b"");
        assert!(second > 4 || bed.stats().connections == 1, "not before");
        peer.send_frame(BINARY, b"as if nothing had happened");
        bed.pass(SECOND);
    }
    assert_eq!(bed.stats().connections, 0, "talking does not help");
    bed.rest(peer);
    assert_eq!(bed.log.closed(), [CloseReason::Lifetime]);
    bed.expect_empty();
}

#[test]
fn a_connection_that_is_kept_for_another_request_is_not_kept_for_ever() {
    let mut options = options();
    options.routes = crate::pages::routes();
    options.handshake_timeout = 10 * SECOND;
    let mut bed = Bed::new(&options);
    let mut peer = Peer::connect(bed.address);
    peer.send(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = bed.head(&mut peer);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    bed.until("the page", |_| peer.bytes(36));
    bed.pass(25 * SECOND);
    assert_eq!(bed.rest(peer), b"");
    bed.expect_empty();
}

#[test]
fn by_the_clock_of_the_system_timeouts_come_as_well() {
    let mut options = options();
    // Long enough for a machine that does other things as well.
    options.handshake_timeout = SECOND;
    options.idle_timeout = Some(3 * SECOND / 2);
    options.ping_interval = Some(SECOND / 5);
    let mut bed = Bed::by_the_systems_clock(&options);
    let silent = Peer::connect(bed.address);
    let mut idle = bed.open("/sink");
    let first = bed.frame(&mut idle);
    assert_eq!(first, Frame::new(PING, b""));
    assert_eq!(bed.rest(silent), b"");
    bed.rest(idle);
    bed.expect_empty();
    assert_eq!((bed.stats().handshake_timeouts, bed.stats().idle_timeouts), (1, 1));
}

#[test]
fn the_time_for_a_request_begins_anew_with_each_answer() {
    let mut options = options();
    options.routes = crate::pages::routes();
    options.handshake_timeout = 10 * SECOND;
    let mut bed = Bed::new(&options);
    let mut peer = Peer::connect(bed.address);
    for _ in 0..4 {
        bed.pass(8 * SECOND);
        peer.send(b"HEAD /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = bed.head(&mut peer);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    bed.pass(8 * SECOND);
    let mut peer = bed.shake(peer, "/echo");
    bed.exchange(&mut peer, b"hello");
}

#[test]
fn a_connection_that_is_closed_by_its_handler_hears_nothing_more_and_ends_at_the_close_timeout() {
    let mut bed = with(|options| options.close_timeout = 20 * SECOND);
    let mut speaker = bed.open("/room");
    let mut witness = bed.open("/room");
    let mut peer = bed.open("/bye");
    peer.send_frame(BINARY, b"close me");
    assert_eq!(bed.frame(&mut peer).close_code(), 1000);
    bed.exchange_room(&mut speaker, &mut witness);
    bed.pass(19 * SECOND);
    assert_eq!(peer.received(), b"", "nothing comes after a close");
    assert_eq!(bed.stats().connections, 3, "not before");
    bed.pass(6 * SECOND);
    bed.rest(peer);
    bed.until_connections(2);
    assert_eq!(bed.log.closed(), [CloseReason::Local]);
}

#[test]
fn a_peer_that_does_not_hang_up_after_a_violation_is_ended_at_the_close_timeout() {
    let mut bed = with(|options| options.close_timeout = 20 * SECOND);
    let mut peer = bed.open("/echo");
    peer.send(b"\xff\xff");
    assert_eq!(bed.frame(&mut peer).close_code(), 1002);
    bed.pass(19 * SECOND);
    assert_eq!(bed.stats().connections, 1, "not before");
    bed.pass(6 * SECOND);
    bed.until_connections(0);
    drop(peer);
    bed.expect_empty();
}

#[test]
fn after_the_closing_handshake_nobody_is_waited_for() {
    let mut bed = with(|_| {});
    let mut peer = bed.open("/echo");
    peer.send_frame(CLOSE, b"");
    assert_eq!(bed.frame(&mut peer), Frame::new(CLOSE, b""));
    bed.until_connections(0);
    assert!(bed.end(peer));
    bed.expect_empty();
}
