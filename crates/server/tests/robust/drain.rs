//! Graceful shutdown of a busy service.

use std::{net::TcpStream, time::Duration};

use windlass_server::{CloseReason, SlowConsumerPolicy};

use crate::{
    fixture::{Fixture, options},
    raw_client::{BINARY, CLOSE, RawClient, upgrade},
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
pub(crate) fn a_drain_notifies_all_and_ends_with_the_last() {
    let mut fixture = Fixture::new(&options());
    let mut clients: Vec<RawClient> = (0..10).map(|_| fixture.open("/echo")).collect();
    let silent = RawClient::connect(fixture.address);
    let mut begun = RawClient::connect(fixture.address);
    begun.send(&upgrade("/echo", "")[..20]);
    fixture.until_connections(12);
    clients[0].send_frame(BINARY, b"just now");
    fixture.until("the message", |fixture| (fixture.log.messages.get() == 1).then_some(()));
    let is_over = fixture.drain(100 * SECOND);
    assert!(TcpStream::connect(fixture.address).is_err(), "nobody comes any more");
    assert_eq!(fixture.read_to_end(silent), b"");
    assert!(!fixture.read_to_end(begun).starts_with(b"HTTP/1.1 101"));
    assert_eq!(
        fixture.frame(&mut clients[0]).payload,
        b"just now",
        "what was asked for is answered"
    );
    for (index, mut client) in clients.into_iter().enumerate() {
        assert!(!is_over.get(), "{index} is there");
        assert_eq!(fixture.frame(&mut client).close_code(), 1001);
        client.send_frame(CLOSE, 1001_u16.to_be_bytes());
        assert!(fixture.closes_in_order(client));
    }
    fixture.until("it is over", |_| is_over.get().then_some(()));
    assert_eq!(fixture.log.closed(), [CloseReason::Local; 10]);
    fixture.expect_empty();
}

#[test]
pub(crate) fn remaining_connections_are_reset_at_the_deadline() {
    let mut options = options();
    options.close_timeout = 1000 * SECOND;
    let mut fixture = Fixture::new(&options);
    let mut stays = fixture.open("/echo");
    let is_over = fixture.drain(10 * SECOND);
    assert_eq!(fixture.frame(&mut stays).close_code(), 1001);
    fixture.advance_time(9 * SECOND);
    assert!(!is_over.get(), "not before");
    fixture.advance_time(2 * SECOND);
    fixture.until("it is over", |_| is_over.get().then_some(()));
    assert!(!fixture.closes_in_order_after_output(stays));
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_slow_receiver_gets_waiting_messages_before_the_close() {
    for policy in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let mut options = options();
        options.slow = policy;
        let mut fixture = Fixture::new(&options);
        let mut speaker = fixture.open("/room");
        let slow = RawClient::with_small_window(fixture.address);
        let mut slow = fixture.handshake(slow, "/room");
        let id = fixture.last_opened();
        let mut said = 0_u32;
        while fixture.buffered(id) < 100_000 {
            speaker.send_frame(BINARY, [&said.to_be_bytes()[..], &[0; 16_000]].concat());
            said += 1;
            fixture.until("the message", |fixture| {
                (fixture.log.messages.get() == said as usize).then_some(())
            });
        }
        let is_over = fixture.drain(100 * SECOND);
        for number in 0..said {
            let frame = fixture.frame(&mut slow);
            assert_eq!(
                (frame.first, frame.payload.first_chunk::<4>()),
                (BINARY, Some(&number.to_be_bytes())),
                "{policy:?}"
            );
        }
        assert_eq!(fixture.frame(&mut slow).close_code(), 1001);
        slow.send_frame(CLOSE, 1001_u16.to_be_bytes());
        assert!(fixture.closes_in_order(slow));
        drop(speaker);
        fixture.until("it is over", |_| is_over.get().then_some(()));
        fixture.expect_empty();
    }
}
