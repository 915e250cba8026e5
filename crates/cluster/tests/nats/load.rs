//! Many topics, slow nodes, and a server that takes nothing.

use std::{sync::mpsc, time::Duration};

use windlass_cluster::NatsBus;
use windlass_server::bus::{Bus as _, BusState};

use crate::{
    node::{Client, Member, Wanted, subject},
    outage::publish_until_one_arrives,
    server::{Nats, WAIT_MAX, until},
};

pub(crate) fn topics_are_subscribed_to_and_given_up_without_a_trace() {
    let nats = Nats::start();
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let subjects: Vec<_> = (0..1000).map(|number| subject(&format!("topic {number}"))).collect();
    let wait = |count: u64| {
        until(
            || (nats.subscriptions() == count).then_some(()),
            || format!("{} of {count} subscriptions", nats.subscriptions()),
        );
    };
    for _ in 0..100 {
        subjects.iter().for_each(|subject| here.bus.subscribe(subject));
        wait(1000);
        subjects.iter().for_each(|subject| here.bus.unsubscribe(subject));
        wait(0);
    }
    // Changes that come faster than they are sent leave the last one.
    for round in 0..100 {
        for subject in &subjects[..10] {
            match round % 2 {
                0 => here.bus.subscribe(subject),
                _ => here.bus.unsubscribe(subject),
            }
        }
    }
    here.bus.subscribe(&subjects[10]);
    wait(1);
    here.bus.unsubscribe(&subjects[10]);
    wait(0);
    let mut receiver = Client::of(&here, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    there.client().publish("t", "1");
    assert_eq!(receiver.numbers(1), [1]);
    let stats = here.stats_when(|stats| stats.received == 1);
    assert_eq!((stats.connects, stats.receive_lost), (1, 0));
    here.end();
    there.end();
}

pub(crate) fn nobody_waits_for_a_slow_node() {
    // The queue of a worker has room for 4096.
    const COUNT: u64 = 5000;
    let nats = Nats::start();
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let mut wanted = Wanted::at(&nats.url());
    wanted.gate = Some((blocked, released));
    let slow = wanted.start();
    let (one, other) = (Member::new(&nats), Member::new(&nats));
    let mut receivers = [&slow, &one, &other].map(|node| Client::of(node, "t"));
    nats.wait_for_subscriptions(&subject("t"), 3);
    let mut publisher = one.client();
    publisher.publish_numbers(0..1);
    receivers.iter_mut().for_each(|receiver| assert_eq!(receiver.numbers(1), [0]));
    let mut blocker = slow.client();
    blocker.block();
    is_blocked.recv_timeout(WAIT_MAX).unwrap();
    let [slow_receiver, receivers @ ..] = &mut receivers;
    std::thread::scope(|scope| {
        for receiver in receivers {
            let all =
                || assert_eq!(receiver.numbers(COUNT as usize), (1..=COUNT).collect::<Vec<_>>());
            scope.spawn(all);
        }
        publisher.publish_numbers(1..=COUNT);
    });
    let stats = slow.stats_when(|stats| stats.received + stats.receive_full == COUNT + 1);
    assert_eq!((stats.missed, stats.stale, stats.connects), (0, 0, 1));
    let taken = stats.received - 1;
    assert!((1..COUNT).contains(&taken), "{stats:?}");
    release.send(()).unwrap();
    assert_eq!(blocker.next(), "released");
    assert_eq!(slow_receiver.numbers(taken as usize), (1..=taken).collect::<Vec<_>>());
    publisher.publish_numbers(COUNT + 1..COUNT + 2);
    assert_eq!(slow_receiver.numbers(1), [COUNT + 1]);
    for node in [&one, &other] {
        let stats = node.stats();
        assert_eq!((stats.missed, stats.receive_full, stats.send_lost), (0, 0, 0));
    }
    [slow, one, other].into_iter().for_each(Member::end);
}

pub(crate) fn what_waits_for_a_full_connection_is_bounded() {
    // More than the kernel's buffers of both sides have.
    const COUNT: u64 = 400;
    let payload = "x".repeat(128 << 10);
    let nats = Nats::start();
    let mut wanted = Wanted::at(&nats.url());
    // It does not notice that the server is stopped.
    let patient = NatsBus::builder([nats.url()]).ping_interval(Duration::from_secs(600));
    let patient = patient.answer_timeout(Duration::from_secs(600));
    wanted.bus = patient.queue_messages(1000).queue_bytes(2 << 20);
    let here = wanted.start();
    here.wait_for(BusState::Connected);
    let mut wanted = Wanted::at(&nats.url());
    wanted.bus = NatsBus::builder([nats.url()]).ping_interval(Duration::from_secs(600));
    let there = wanted.start();
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let mut publisher = here.client();
    publisher.publish_numbers(0..1);
    let mut arrived = receiver.numbers(1);
    nats.pause();
    (1..=COUNT).for_each(|number| publisher.publish("t", &format!("{number} {payload}")));
    let stats = here.stats_when(|stats| stats.sent == COUNT + 1);
    assert!(stats.send_lost > 0, "{stats:?}");
    nats.resume();
    let numbers = &mut (COUNT + 1..);
    publish_until_one_arrives(&mut publisher, &mut receiver, numbers, &there, &mut arrived);
    let (here_stats, stats) = (here.stats(), there.stats());
    assert_eq!(stats.missed, here_stats.send_lost, "what was dropped, and nothing else");
    assert_eq!((here_stats.connects, stats.connects), (1, 1));
    here.end();
    there.end();
}
