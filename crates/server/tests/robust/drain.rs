//! The end of a service that is busy.

use std::{net::TcpStream, time::Duration};

use windlass_server::{CloseReason, SlowConsumerPolicy};

use crate::{
    bed::{Bed, options},
    peer::{BINARY, CLOSE, Peer, upgrade},
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn everybody_is_told_and_it_is_over_when_the_last_has_gone() {
    let mut bed = Bed::new(&options());
    let mut peers: Vec<Peer> = (0..10).map(|_| bed.open("/echo")).collect();
    let silent = Peer::connect(bed.address);
    let mut begun = Peer::connect(bed.address);
    begun.send(&upgrade("/echo", "")[..20]);
    bed.until_connections(12);
    peers[0].send_frame(BINARY, b"just now");
    bed.settle();
    let is_over = bed.drain(100 * SECOND);
    assert!(TcpStream::connect(bed.address).is_err(), "nobody comes any more");
    assert_eq!(bed.rest(silent), b"");
    assert!(!bed.rest(begun).starts_with(b"HTTP/1.1 101"));
    assert_eq!(bed.frame(&mut peers[0]).payload, b"just now", "what was asked for is answered");
    for (index, mut peer) in peers.into_iter().enumerate() {
        assert!(!is_over.get(), "{index} is there");
        assert_eq!(bed.frame(&mut peer).close_code(), 1001);
        peer.send_frame(CLOSE, 1001_u16.to_be_bytes());
        assert!(bed.end(peer));
    }
    bed.until("it is over", |_| is_over.get().then_some(()));
    assert_eq!(bed.log.closed(), [CloseReason::Local; 10]);
    bed.expect_empty();
}

#[test]
fn who_does_not_go_is_sent_away_at_the_deadline() {
    let mut options = options();
    options.close_timeout = 1000 * SECOND;
    let mut bed = Bed::new(&options);
    let mut stays = bed.open("/echo");
    let is_over = bed.drain(10 * SECOND);
    assert_eq!(bed.frame(&mut stays).close_code(), 1001);
    bed.pass(9 * SECOND);
    assert!(!is_over.get(), "not before");
    bed.pass(2 * SECOND);
    bed.until("it is over", |_| is_over.get().then_some(()));
    assert!(!bed.rest_is_in_order(stays));
    bed.expect_empty();
}

#[test]
fn a_slow_receiver_gets_what_waits_for_it_before_the_goodbye() {
    for policy in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let mut options = options();
        options.slow = policy;
        let mut bed = Bed::new(&options);
        let mut speaker = bed.open("/room");
        let slow = Peer::with_small_window(bed.address);
        let mut slow = bed.shake(slow, "/room");
        let id = bed.last_opened();
        let mut said = 0_u32;
        while bed.buffered(id) < 100_000 {
            speaker.send_frame(BINARY, [&said.to_be_bytes()[..], &[0; 16_000]].concat());
            bed.settle();
            said += 1;
        }
        let is_over = bed.drain(100 * SECOND);
        for number in 0..said {
            let frame = bed.frame(&mut slow);
            assert_eq!(
                (frame.first, frame.payload.first_chunk::<4>()),
                (BINARY, Some(&number.to_be_bytes())),
                "{policy:?}"
            );
        }
        assert_eq!(bed.frame(&mut slow).close_code(), 1001);
        slow.send_frame(CLOSE, 1001_u16.to_be_bytes());
        assert!(bed.end(slow));
        drop(speaker);
        bed.until("it is over", |_| is_over.get().then_some(()));
        bed.expect_empty();
    }
}
