//! How large publications may be.

use windlass_server::bus::{Bus as _, BusError, BusState};

use crate::{
    node::{Client, Member, subject},
    server::Nats,
};

/// The length of an envelope without its payload.
const HEAD: usize = 28;

pub(crate) fn two_mebibytes_cross_if_the_server_allows_them() {
    let nats = Nats::with("max_payload: 4MB");
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let large: String =
        (0..2_u32 << 20).map(|place| char::from(b'a' + (place % 23) as u8)).collect();
    let mut publisher = here.client();
    for text in [&large, "small", &large] {
        publisher.publish("t", text);
    }
    for text in [&large, "small", &large] {
        assert!(receiver.next() == *text, "it arrives as it was");
    }
    here.end();
    there.end();
}

pub(crate) fn what_is_too_large_is_refused_and_counted() {
    let nats = Nats::with("max_payload: 1024");
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let mut receivers = [&here, &there].map(|node| Client::of(node, "t"));
    nats.wait_for_subscriptions(&subject("t"), 2);
    assert_eq!(here.bus.payload_max(), 1024);
    let (fits, large) = ("x".repeat(1024 - HEAD), "y".repeat(1025 - HEAD));
    let mut publisher = here.client();
    for text in [&large, &fits] {
        publisher.publish("t", text);
    }
    assert_eq!([receivers[0].next(), receivers[0].next()], [large, fits.clone()]);
    assert_eq!(receivers[1].next(), fits);
    let stats = here.stats_when(|stats| stats.sent == 1);
    assert_eq!((stats.send_too_large, stats.connects), (1, 1));
    let error = here.bus.publish("test", vec![0; 1025]).unwrap_err();
    assert_eq!(error, BusError::TooLarge);
    assert_eq!(error.to_string(), "the message is longer than the bus allows");
    here.end();
    there.end();
}

pub(crate) fn a_server_with_a_smaller_maximum_takes_over() {
    let mut nats = Nats::with("max_payload: 65536");
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let (small, large) = ("s".repeat(1000), "l".repeat(50_000));
    let mut publisher = here.client();
    for text in [&small, &large] {
        publisher.publish("t", text);
        assert_eq!(receiver.next(), *text);
    }
    nats.kill();
    for node in [&here, &there] {
        node.wait_for(BusState::Connecting);
    }
    // They wait: the server that comes is not known.
    publisher.publish("t", &large);
    assert_eq!(here.stats_when(|stats| stats.sent == 3).send_too_large, 0);
    nats.restart_with("max_payload: 4096");
    for node in [&here, &there] {
        node.wait_for(BusState::Connected);
    }
    nats.wait_for_subscriptions(&subject("t"), 1);
    here.stats_when(|stats| stats.send_lost == 1);
    assert_eq!(here.bus.payload_max(), 4096);
    publisher.publish("t", &large);
    publisher.publish("t", &small);
    assert_eq!(receiver.next(), small);
    let stats = here.stats_when(|stats| stats.send_too_large == 1);
    assert_eq!((stats.send_lost, stats.connects), (1, 2));
    // The one that was refused is missed too: it has a number.
    assert_eq!(there.stats().missed, 2);
    here.end();
    there.end();
}
