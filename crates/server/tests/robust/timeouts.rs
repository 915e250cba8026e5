//! Clients that are slow in time.

use std::time::Duration;

use windlass_server::{CloseReason, Options};

use crate::{
    fixture::{Fixture, options},
    raw_client::{BINARY, CLOSE, Frame, PING, PONG, RawClient, masked, upgrade},
};

const SECOND: Duration = Duration::from_secs(1);

fn with(change: impl FnOnce(&mut Options)) -> Fixture {
    let mut options = options();
    change(&mut options);
    Fixture::new(&options)
}

/// Sends these bytes, one each second. Each arrives in its second.
fn trickle(fixture: &mut Fixture, client: &mut RawClient, bytes: &[u8]) {
    for byte in bytes {
        send_now(fixture, client, &[*byte]);
        fixture.advance_time(SECOND);
    }
}

/// Sends some bytes, and waits until the service has the first ones.
fn send_now(fixture: &mut Fixture, client: &mut RawClient, bytes: &[u8]) {
    let before = fixture.stats().wire_received;
    client.send(bytes);
    fixture.until("a byte", |fixture| (fixture.stats().wire_received > before).then_some(()));
}

#[test]
pub(crate) fn a_request_of_one_byte_a_second_is_cut_off_at_the_handshake_timeout() {
    let mut fixture = with(|options| options.handshake_timeout = 10 * SECOND);
    let mut client = RawClient::connect(fixture.address);
    fixture.until_connections(1);
    let request = upgrade("/echo", "");
    trickle(&mut fixture, &mut client, &request[..9]);
    assert_eq!(client.received(), b"", "not before");
    // What comes after the timeout is not received.
    for byte in &request[9..12] {
        client.send(&[*byte]);
        fixture.settle();
        fixture.advance_time(SECOND);
    }
    let head = fixture.head(&mut client);
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    fixture.read_to_end(client);
    assert_eq!(fixture.stats().handshake_timeouts, 1);
    fixture.expect_empty();
}

#[test]
pub(crate) fn silent_clients_are_closed_at_the_handshake_timeout() {
    let mut fixture = with(|options| options.handshake_timeout = 10 * SECOND);
    let clients: Vec<RawClient> = (0..20).map(|_| RawClient::connect(fixture.address)).collect();
    fixture.until_connections(20);
    let mut witness = fixture.open("/echo");
    fixture.advance_time(Duration::from_millis(9900));
    assert_eq!(
        (fixture.stats().connections, fixture.stats().handshake_timeouts),
        (21, 0),
        "not before"
    );
    fixture.advance_time(2 * SECOND);
    for client in clients {
        assert_eq!(fixture.read_to_end(client), b"");
    }
    fixture.until_connections(1);
    fixture.advance_time(100 * SECOND);
    fixture.exchange(&mut witness, b"who has shaken hands is left alone");
    drop(witness);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_request_that_comes_byte_by_byte_in_time_is_answered() {
    let mut fixture = with(|options| options.handshake_timeout = 10 * SECOND);
    let mut client = RawClient::connect(fixture.address);
    for byte in upgrade("/echo", "") {
        send_now(&mut fixture, &mut client, &[byte]);
        fixture.advance(SECOND / 50);
    }
    let head = fixture.head(&mut client);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    fixture.exchange(&mut client, b"hello");
}

#[test]
pub(crate) fn a_message_of_one_byte_a_second_arrives_and_its_sender_is_not_idle() {
    let mut fixture = with(|options| {
        options.ping_interval = Some(3 * SECOND);
        options.idle_timeout = Some(6 * SECOND);
    });
    let mut client = fixture.open("/echo");
    let message = b"one byte a second, and not idle";
    trickle(&mut fixture, &mut client, &masked(BINARY, message));
    assert_eq!(fixture.frame(&mut client), Frame::new(BINARY, message));
    assert_eq!((fixture.stats().pings, fixture.stats().idle_timeouts), (0, 0));
}

#[test]
pub(crate) fn a_silent_peer_is_pinged_and_lives_as_long_as_it_answers() {
    let mut fixture = with(|options| {
        options.ping_interval = Some(3 * SECOND);
        options.idle_timeout = Some(8 * SECOND);
    });
    let mut client = fixture.open("/sink");
    for _ in 0..10 {
        fixture.advance_time(2 * SECOND);
        assert_eq!(client.received(), b"", "not before");
        fixture.advance_time(2 * SECOND);
        assert_eq!(fixture.frame(&mut client), Frame::new(PING, b""));
        send_now(&mut fixture, &mut client, &masked(PONG, b""));
    }
    assert_eq!(fixture.log.closed(), []);
}

#[test]
pub(crate) fn a_silent_peer_is_closed_at_the_idle_timeout() {
    let mut fixture = with(|options| {
        options.ping_interval = Some(3 * SECOND);
        options.idle_timeout = Some(8 * SECOND);
    });
    let mut client = fixture.open("/sink");
    let mut talker = fixture.open("/echo");
    for _ in 0..7 {
        fixture.advance_time(SECOND);
        fixture.exchange(&mut talker, b"I am");
        while talker.frame().is_some() {}
    }
    fixture.advance_time(Duration::from_millis(900));
    assert_eq!(fixture.log.closed(), [], "not before");
    for _ in 0..10 {
        fixture.advance_time(SECOND);
        fixture.exchange(&mut talker, b"I am");
    }
    assert_eq!(fixture.log.closed(), [CloseReason::Idle]);
    let mut frames = Vec::new();
    fixture.until("the end", |_| {
        frames.extend(client.frame());
        client.end().map(|_| ())
    });
    assert!(frames.iter().filter(|frame| frame.first == PING).count() >= 2, "{frames:?}");
    assert_eq!(fixture.stats().idle_timeouts, 1);
    drop(talker);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_connection_is_closed_when_it_has_lived_for_long_enough() {
    let mut fixture = with(|options| options.lifetime_max = Some(10 * SECOND));
    let mut first = fixture.open("/echo");
    fixture.advance_time(5 * SECOND);
    let mut second = fixture.open("/echo");
    for _ in 0..4 {
        fixture.exchange(&mut first, b"busy");
        fixture.advance_time(SECOND);
    }
    fixture.exchange(&mut first, b"not before");
    fixture.advance_time(2 * SECOND);
    let frame = fixture.frame(&mut first);
    assert_eq!(frame.close_code(), 1001);
    first.send_frame(CLOSE, &frame.payload);
    assert!(fixture.closes_in_order(first));
    fixture.until_connections(1);
    assert_eq!(fixture.log.closed(), [CloseReason::Lifetime]);
    fixture.exchange(&mut second, b"it is younger");
    drop(second);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_peer_that_does_not_answer_a_close_is_ended_at_the_close_timeout() {
    let mut fixture = with(|options| {
        options.lifetime_max = Some(10 * SECOND);
        options.close_timeout = 5 * SECOND;
    });
    let mut client = fixture.open("/echo");
    fixture.advance_time(12 * SECOND);
    assert_eq!(fixture.frame(&mut client).close_code(), 1001);
    // Messages that the client sends now are no answer to the Close frame.
    for second in 0..8 {
        assert_eq!(client.received(), b"");
        assert!(second > 4 || fixture.stats().connections == 1, "not before");
        client.send_frame(BINARY, b"as if nothing had happened");
        fixture.advance_time(SECOND);
    }
    assert_eq!(fixture.stats().connections, 0, "talking does not help");
    fixture.read_to_end(client);
    assert_eq!(fixture.log.closed(), [CloseReason::Lifetime]);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_connection_that_is_kept_for_another_request_is_not_kept_for_ever() {
    let mut options = options();
    options.routes = crate::pages::routes();
    options.handshake_timeout = 10 * SECOND;
    let mut fixture = Fixture::new(&options);
    let mut client = RawClient::connect(fixture.address);
    client.send(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = fixture.head(&mut client);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    fixture.until("the page", |_| client.bytes(36));
    fixture.advance_time(25 * SECOND);
    assert_eq!(fixture.read_to_end(client), b"");
    fixture.expect_empty();
}

#[test]
pub(crate) fn by_the_clock_of_the_system_timeouts_come_as_well() {
    let mut options = options();
    // Long enough for a machine with other load.
    options.handshake_timeout = SECOND;
    options.idle_timeout = Some(3 * SECOND / 2);
    options.ping_interval = Some(SECOND / 5);
    let mut fixture = Fixture::by_the_systems_clock(&options);
    let silent = RawClient::connect(fixture.address);
    let mut idle = fixture.open("/sink");
    let first = fixture.frame(&mut idle);
    assert_eq!(first, Frame::new(PING, b""));
    assert_eq!(fixture.read_to_end(silent), b"");
    fixture.read_to_end(idle);
    fixture.expect_empty();
    assert_eq!((fixture.stats().handshake_timeouts, fixture.stats().idle_timeouts), (1, 1));
}

#[test]
pub(crate) fn the_time_for_a_request_begins_anew_with_each_answer() {
    let mut options = options();
    options.routes = crate::pages::routes();
    options.handshake_timeout = 10 * SECOND;
    let mut fixture = Fixture::new(&options);
    let mut client = RawClient::connect(fixture.address);
    for _ in 0..4 {
        fixture.advance_time(8 * SECOND);
        client.send(b"HEAD /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = fixture.head(&mut client);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    fixture.advance_time(8 * SECOND);
    let mut client = fixture.handshake(client, "/echo");
    fixture.exchange(&mut client, b"hello");
}

#[test]
pub(crate) fn a_connection_closed_by_its_handler_ends_at_the_close_timeout() {
    let mut fixture = with(|options| options.close_timeout = 20 * SECOND);
    let mut speaker = fixture.open("/room");
    let mut witness = fixture.open("/room");
    let mut client = fixture.open("/bye");
    client.send_frame(BINARY, b"close me");
    assert_eq!(fixture.frame(&mut client).close_code(), 1000);
    fixture.exchange_room(&mut speaker, &mut witness);
    fixture.advance_time(19 * SECOND);
    assert_eq!(client.received(), b"", "nothing comes after a close");
    assert_eq!(fixture.stats().connections, 3, "not before");
    fixture.advance_time(6 * SECOND);
    fixture.read_to_end(client);
    fixture.until_connections(2);
    assert_eq!(fixture.log.closed(), [CloseReason::Local]);
}

#[test]
pub(crate) fn a_peer_that_does_not_hang_up_after_a_violation_is_ended_at_the_close_timeout() {
    let mut fixture = with(|options| options.close_timeout = 20 * SECOND);
    let mut client = fixture.open("/echo");
    client.send(b"\xff\xff");
    assert_eq!(fixture.frame(&mut client).close_code(), 1002);
    fixture.advance_time(19 * SECOND);
    assert_eq!(fixture.stats().connections, 1, "not before");
    fixture.advance_time(6 * SECOND);
    fixture.until_connections(0);
    drop(client);
    fixture.expect_empty();
}

#[test]
pub(crate) fn after_the_closing_handshake_the_socket_is_closed_at_once() {
    let mut fixture = with(|_| {});
    let mut client = fixture.open("/echo");
    client.send_frame(CLOSE, b"");
    assert_eq!(fixture.frame(&mut client), Frame::new(CLOSE, b""));
    fixture.until_connections(0);
    assert!(fixture.closes_in_order(client));
    fixture.expect_empty();
}
