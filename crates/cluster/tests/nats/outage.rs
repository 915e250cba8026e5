//! What happens when the connection, or the server, does not work.

use std::{
    thread,
    time::{Duration, Instant},
};

use windlass_cluster::{NatsBus, NatsEvent};
use windlass_server::bus::BusState;

use crate::{
    node::{Client, Member, Wanted, fast, quick_to_notice, subject},
    relay::Relay,
    server::{Nats, WAIT_MAX, free_port, until},
};

/// Publishes numbers to the topic `t` until one has arrived, and all before it have arrived or are
/// counted. One may be lost, because connections may break again on a busy machine. Appends what
/// has arrived, which must be in order.
pub(crate) fn publish_until_one_arrives(
    publisher: &mut Client,
    receiver: &mut Client,
    numbers: &mut impl Iterator<Item = u64>,
    node: &Member,
    arrived: &mut Vec<u64>,
) {
    let begin = Instant::now();
    loop {
        let last = numbers.next().unwrap();
        publisher.publish_numbers(last..=last);
        let published = Instant::now();
        while published.elapsed() < Duration::from_millis(300) {
            let stats = node.stats();
            if stats.received + stats.receive_full + stats.missed == last + 1 {
                return receiver.numbers_until(last, arrived);
            }
            // sleep: the state has no event to wait for.
            thread::sleep(Duration::from_millis(2));
        }
        assert!(begin.elapsed() < WAIT_MAX, "{last}: {:?}", node.stats());
    }
}

pub(crate) fn a_killed_server_loses_the_oldest_and_counts_them() {
    let mut nats = Nats::start();
    let relay = Relay::new(nats.address());
    let mut wanted = Wanted::at(&relay.url());
    wanted.bus = quick_to_notice(wanted.bus).queue_messages(40);
    let here = wanted.start();
    here.wait_for(BusState::Connected);
    let there = Member::new(&nats);
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let mut publisher = here.client();
    publisher.publish_numbers(0..10);
    assert_eq!(receiver.numbers(10), (0..10).collect::<Vec<_>>());
    nats.kill();
    [&here, &there].iter().for_each(|node| node.wait_for(BusState::Connecting));
    there.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    publisher.publish_numbers(10..110);
    let stats = here.stats_when(|stats| stats.sent == 110);
    assert_eq!((stats.send_lost, stats.send_full), (60, 0), "the queue has room for 40");
    // The receiver's node is there first.
    relay.cut();
    nats.restart();
    there.wait_for(BusState::Connected);
    nats.wait_for_subscriptions(&subject("t"), 1);
    relay.heal();
    assert_eq!(receiver.numbers(40), (70..110).collect::<Vec<_>>());
    publisher.publish_numbers(110..111);
    assert_eq!(receiver.numbers(1), [110]);
    let stats = there.stats_when(|stats| stats.received == 51);
    assert_eq!((stats.missed, stats.stale), (60, 0));
    assert!(stats.connects >= 2 && here.stats().connects >= 2);
    here.end();
    there.end();
}

pub(crate) fn a_connection_that_ends_under_load_repeats_nothing() {
    let mut nats = Nats::start();
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let mut publisher = here.client();
    publisher.publish_numbers(0..1);
    let mut arrived = receiver.numbers(1);
    let mut numbers = 1..;
    for _ in 0..3 {
        // Some of these are on their way when the server ends.
        publisher.publish_numbers(numbers.by_ref().take(300));
        let before = [&here, &there].map(|node| (node, node.stats().connects));
        nats.restart();
        publisher.publish_numbers(numbers.by_ref().take(300));
        // Even if the server is back at once, it is another connection.
        for (node, connects) in before {
            node.stats_when(|stats| {
                stats.state == BusState::Connected && stats.connects > connects
            });
        }
        // It checks the order, and that the lost ones are counted.
        let numbers = &mut numbers;
        publish_until_one_arrives(&mut publisher, &mut receiver, numbers, &there, &mut arrived);
    }
    let stats = there.stats();
    assert_eq!((stats.stale, stats.own, stats.receive_full), (0, 0, 0), "{stats:?}");
    here.end();
    there.end();
}

pub(crate) fn a_stopped_server_is_noticed_and_nothing_arrives_twice() {
    stopped(quick_to_notice, |here| here.wait_for(BusState::Connecting));
}

/// With the default times.
pub(crate) fn stopped_for(seconds: u64) {
    let begin = Instant::now();
    stopped(
        |bus| bus,
        |here| {
            here.wait_for(BusState::Connecting);
            // sleep: the issue wants this time.
            thread::sleep(Duration::from_secs(seconds).saturating_sub(begin.elapsed()));
        },
    );
}

fn stopped(
    times: impl Fn(windlass_cluster::NatsBusBuilder) -> windlass_cluster::NatsBusBuilder,
    wait: impl Fn(&Member),
) {
    let nats = Nats::start();
    let [here, there] = [(); 2].map(|()| {
        let mut wanted = Wanted::at(&nats.url());
        wanted.bus = times(NatsBus::builder([nats.url()]));
        let node = wanted.start();
        node.wait_for(BusState::Connected);
        node
    });
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let mut publisher = here.client();
    publisher.publish_numbers(0..10);
    let mut arrived = receiver.numbers(10);
    assert_eq!(arrived, (0..10).collect::<Vec<_>>());
    nats.pause();
    // These are in the buffers of the kernel when it is noticed. The server may still read them.
    publisher.publish_numbers(10..60);
    wait(&here);
    publisher.publish_numbers(60..110);
    there.wait_for(BusState::Connecting);
    nats.resume();
    for node in [&here, &there] {
        node.wait_for(BusState::Connected);
    }
    let numbers = &mut (110..);
    publish_until_one_arrives(&mut publisher, &mut receiver, numbers, &there, &mut arrived);
    let was_silent = |event: &NatsEvent| event.to_string().contains("does not answer");
    here.event_when(was_silent);
    there.event_when(was_silent);
    here.end();
    there.end();
}

pub(crate) fn both_sides_of_a_partition_publish() {
    let nats = Nats::start();
    let relay = Relay::new(nats.address());
    let mut wanted = Wanted::at(&relay.url());
    wanted.bus = quick_to_notice(wanted.bus).queue_messages(20);
    let apart = wanted.start();
    let node = Member::new(&nats);
    apart.wait_for(BusState::Connected);
    let nodes = [&node, &apart];
    let mut receivers = nodes.map(|node| Client::of(node, "t"));
    nats.wait_for_subscriptions(&subject("t"), 2);
    let mut publishers = nodes.map(Member::client);
    // The publications of one side are even, and those of the other odd.
    let numbers = |from: u64, to: u64, side: u64| (from..to).map(move |number| 2 * number + side);
    for side in [0, 1] {
        publishers[side as usize].publish_numbers(numbers(0, 1, side));
        receivers.iter_mut().for_each(|receiver| assert_eq!(receiver.numbers(1), [side]));
    }
    relay.cut();
    apart.wait_for(BusState::Connecting);
    publishers[0].publish_numbers(numbers(1, 51, 0));
    publishers[1].publish_numbers(numbers(1, 51, 1));
    assert_eq!(apart.stats_when(|stats| stats.sent == 51).send_lost, 30);
    assert_eq!(node.stats_when(|stats| stats.sent == 51).send_lost, 0);
    // The own ones arrive meanwhile.
    assert_eq!(receivers[0].numbers(50), numbers(1, 51, 0).collect::<Vec<_>>());
    assert_eq!(receivers[1].numbers(50), numbers(1, 51, 1).collect::<Vec<_>>());
    // The other node is connected all the time, and keeps its subscription.
    relay.heal();
    apart.wait_for(BusState::Connected);
    assert_eq!(receivers[0].numbers(20), numbers(31, 51, 1).collect::<Vec<_>>());
    assert_eq!(node.stats_when(|stats| stats.received == 21).missed, 30);
    // What was published on this side is not sent again. The subscription is there, because the
    // server got it before what has arrived.
    publishers[0].publish_numbers(numbers(51, 52, 0));
    assert_eq!(receivers[1].numbers(1), [102]);
    let stats = apart.stats_when(|stats| stats.received == 2);
    assert_eq!((stats.missed, stats.stale), (50, 0));
    node.end();
    apart.end();
}

pub(crate) fn a_silent_connection_with_traffic_is_noticed() {
    let nats = Nats::start();
    let relay = Relay::new(nats.address());
    let mut wanted = Wanted::at(&relay.url());
    wanted.bus = quick_to_notice(wanted.bus);
    let node = wanted.start();
    node.wait_for(BusState::Connected);
    let mut publisher = node.client();
    relay.cut();
    // Without an end: the client of NATS asks for an answer only when it has nothing to send.
    let mut number = 0;
    until(
        || {
            publisher.publish_numbers(number..=number);
            number += 1;
            (node.stats().state == BusState::Connecting).then_some(())
        },
        || format!("{:?}", node.stats()),
    );
    relay.heal();
    node.wait_for(BusState::Connected);
    node.end();
}

pub(crate) fn a_server_may_start_after_its_nodes() {
    let mut nats = Nats::start();
    nats.kill();
    let [here, there] = [(); 2].map(|()| Wanted::at(&nats.url()).start());
    let mut receiver = Client::of(&there, "t");
    here.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    assert_eq!((here.stats().state, here.stats().connects), (BusState::Connecting, 0));
    nats.restart();
    for node in [&here, &there] {
        node.wait_for(BusState::Connected);
    }
    nats.wait_for_subscriptions(&subject("t"), 1);
    here.client().publish("t", "1");
    assert_eq!(receiver.numbers(1), [1]);
    let event = here.event_when(|event| matches!(event, NatsEvent::Connected { .. }));
    assert!(event.to_string().contains(&nats.port.to_string()), "{event}");
    here.end();
    there.end();
}

pub(crate) fn another_server_takes_over() {
    let (first, second) = (Nats::start(), Nats::start());
    let nowhere = format!("nats://127.0.0.1:{}", free_port());
    let mut wanted = Wanted::at(&nowhere);
    let urls = [nowhere, first.url(), second.url()];
    wanted.bus = fast(NatsBus::builder(urls));
    let node = wanted.start();
    let _receiver = Client::of(&node, "t");
    node.wait_for(BusState::Connected);
    let mut servers = [first, second];
    for _ in 0..3 {
        let connects = node.stats().connects;
        let used = until(
            || servers.iter().position(|server| server.subscriptions() == 1),
            || "no server has the subscription".to_owned(),
        );
        servers[used].restart();
        node.stats_when(|stats| stats.state == BusState::Connected && stats.connects > connects);
    }
    node.end();
}
