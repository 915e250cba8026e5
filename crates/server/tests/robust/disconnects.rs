//! Clients that disconnect, in every way and at every moment.

use std::panic::{AssertUnwindSafe, catch_unwind};

use windlass::stream::TlsFailure;
use windlass_server::CloseReason;

use crate::{
    fixture::{Fixture, PANIC, options},
    raw_client::{BINARY, CLOSE, Frame, PING, PONG, RawClient, TEXT, masked, upgrade},
};

#[test]
pub(crate) fn a_half_closed_client_gets_all_that_it_has_asked_for_and_then_the_end() {
    let mut fixture = Fixture::new(&options());
    for (count, size) in [(1, 1), (1, 100_000), (1000, 100), (40, 100_000)] {
        let mut client = fixture.open("/echo");
        let message =
            |number: u32| -> Vec<u8> { (number..).flat_map(u32::to_be_bytes).take(size).collect() };
        for number in 0..count {
            client.send_frame(BINARY, message(number));
        }
        let mut next = 0;
        fixture
            .until("all of it, and the end", |_| {
                client.push();
                if client.unsent() == 0 {
                    client.finish_once();
                }
                while let Some(frame) = client.frame() {
                    assert!(frame == Frame::new(BINARY, message(next)), "message {next}");
                    next += 1;
                }
                client.end()
            })
            .expect("it ends in order");
        assert_eq!(next, count, "{count} of {size} bytes");
        fixture.until_connections(0);
    }
    assert_eq!(fixture.log.closed(), [CloseReason::Lost; 4]);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_client_may_disconnect_within_its_request() {
    let mut fixture = Fixture::new(&options());
    let request = upgrade("/echo", "");
    for at in 0..request.len() {
        let mut client = RawClient::connect(fixture.address);
        client.send(&request[..at]);
        fixture.until_connections(1);
        if at % 2 == 0 {
            client.finish();
            let answer = fixture.read_to_end(client);
            assert!(!answer.starts_with(b"HTTP/1.1 101"), "cut at {at}");
        } else {
            client.reset();
        }
        fixture.until_connections(0);
    }
    assert_eq!(fixture.stats().opened, 0);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_client_may_disconnect_within_a_frame_and_earlier_messages_are_answered() {
    let mut fixture = Fixture::new(&options());
    let whole = masked(TEXT, b"whole");
    let frames =
        [masked(BINARY, &[7; 300]), masked(PING, b"ping"), masked(CLOSE, &1000_u16.to_be_bytes())];
    for frame in frames {
        for at in (0..frame.len()).step_by(if frame.len() > 100 { 17 } else { 1 }) {
            let mut client = fixture.open("/echo");
            client.send(&[&whole[..], &frame[..at]].concat());
            assert_eq!(fixture.frame(&mut client).text(), "whole");
            if at % 2 == 0 {
                client.finish();
                assert_eq!(fixture.read_to_end(client), b"", "cut at {at}");
            } else {
                client.reset();
            }
            fixture.until_connections(0);
        }
    }
    // With TLS a FIN alone is a truncation.
    let truncated = CloseReason::Tls(TlsFailure::Truncated);
    let lost = |reason: &CloseReason| {
        matches!(reason, CloseReason::Lost | CloseReason::Failed(_)) || *reason == truncated
    };
    assert!(fixture.log.closed().iter().all(lost), "{:?}", fixture.log.closed());
    fixture.expect_empty();
}

#[test]
pub(crate) fn request_message_and_close_may_come_at_once_with_the_end() {
    let mut fixture = Fixture::new(&options());
    let mut client = RawClient::connect(fixture.address);
    let bytes = [
        upgrade("/echo", ""),
        masked(TEXT, b"first"),
        masked(PING, b"second"),
        masked(CLOSE, &[&1000_u16.to_be_bytes()[..], b"third"].concat()),
        masked(TEXT, b"after the end"),
    ];
    client.send(&bytes.concat());
    client.finish();
    let head = fixture.head(&mut client);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(fixture.frame(&mut client), Frame::new(TEXT, "first"));
    assert_eq!(fixture.frame(&mut client), Frame::new(PONG, "second"));
    assert_eq!(fixture.frame(&mut client).close_code(), 1000);
    assert!(fixture.closes_in_order(client));
    fixture.until_connections(0);
    assert_eq!(fixture.log.closed.borrow()[0].1, CloseReason::Peer);
    assert_eq!(fixture.log.closed.borrow()[0].2, Some(1000));
    assert_eq!(fixture.log.messages.get(), 1, "nothing counts after a close");
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_close_is_answered_and_the_connection_ended_in_order() {
    let mut fixture = Fixture::new(&options());
    for (payload, code) in
        [(&b""[..], None), (&b"\x03\xe8"[..], Some(1000)), (&b"\x0b\xb8why"[..], Some(3000))]
    {
        let mut client = fixture.open("/echo");
        client.send_frame(CLOSE, payload);
        let answer = fixture.frame(&mut client);
        assert_eq!((answer.first, answer.payload.get(..2)), (CLOSE, payload.get(..2)));
        assert!(
            fixture.closes_in_order(client),
            "the server closes first (RFC 6455 section 7.1.1)"
        );
        fixture.until_connections(0);
        let closed = fixture.log.closed.borrow().last().copied().expect("it is closed");
        assert_eq!((closed.1, closed.2), (CloseReason::Peer, code));
    }
    fixture.expect_empty();
}

#[test]
pub(crate) fn resets_do_not_disturb_other_connections() {
    let mut fixture = Fixture::new(&options());
    let mut witness = fixture.open("/room");
    let mut speaker = fixture.open("/room");
    for round in 0..50_u8 {
        let mut clients: Vec<RawClient> = (0..5).map(|_| fixture.open("/room")).collect();
        // They disconnect while the message is on its way to them.
        speaker.send_frame(BINARY, [round]);
        if round % 2 == 0 {
            fixture.settle();
        }
        clients.drain(..).for_each(RawClient::reset);
        assert_eq!(fixture.frame(&mut witness), Frame::new(BINARY, [round]));
    }
    fixture.until_connections(2);
    assert_eq!(fixture.stats().closed, 250);
    drop((witness, speaker));
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_handler_that_panics_costs_its_own_connection_and_no_other() {
    let mut fixture = Fixture::new(&options());
    let mut witness = fixture.open("/room");
    let mut speaker = fixture.open("/room");
    for round in 0..3_u8 {
        let mut victim = fixture.open("/panic");
        victim.send_frame(BINARY, b"now");
        // This message may arrive in the same turn, and must not be lost.
        speaker.send_frame(BINARY, [round]);
        let panic = fixture.until("the panic", |fixture| {
            catch_unwind(AssertUnwindSafe(|| fixture.settle())).err()
        });
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(PANIC));
        assert_eq!(fixture.read_to_end(victim), b"");
        assert_eq!(fixture.frame(&mut witness), Frame::new(BINARY, [round]));
    }
    fixture.until_connections(2);
    fixture.exchange_room(&mut speaker, &mut witness);
    assert_eq!(fixture.log.closed(), [], "on_close is not called where a callback has panicked");
    drop((witness, speaker));
    fixture.until_connections(0);
    assert_eq!(fixture.log.alive(), 0, "the data of each is dropped");
}

#[test]
pub(crate) fn a_half_closed_client_that_reads_late_gets_all_of_it() {
    let mut options = options();
    options.receiver_buffer_max = 64 << 10;
    let mut fixture = Fixture::new(&options);
    let client = RawClient::with_small_window(fixture.address);
    let mut client = fixture.handshake(client, "/echo");
    let message =
        |number: u32| -> Vec<u8> { (number..).flat_map(u32::to_be_bytes).take(10_000).collect() };
    const COUNT: u32 = 1000;
    for number in 0..COUNT {
        client.send_frame(BINARY, message(number));
    }
    fixture.until("the server is held back", |fixture| {
        // The sockets take only a part at once, perhaps too little to hold the server back.
        client.push();
        (fixture.stats().reading_paused > 0).then_some(())
    });
    let mut next = 0;
    fixture
        .until("all of it, and the end", |_| {
            client.push();
            if client.unsent() == 0 {
                client.finish_once();
            }
            // Reads a little at a time.
            if let Some(frame) = client.frame() {
                assert!(frame == Frame::new(BINARY, message(next)), "message {next}");
                next += 1;
            }
            client.end()
        })
        .expect("it ends in order");
    assert_eq!((next, fixture.stats().dropped), (COUNT, 0));
    drop(client);
    fixture.expect_empty();
}
