//! Servers as nodes of a cluster, over the bus in memory. Each test names a guarantee.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, OnceLock, mpsc},
    time::{Duration, Instant},
};

use tungstenite::Message as WsMessage;
use windlass_flow::Bounds;
use windlass_server::{
    Options, Server,
    bus::{Bus, BusError, BusSink, BusState, Cluster, MemoryBus, MemoryNetwork},
};
use windlass_testkit::waiting::until;

use crate::cluster_member::{Client, Commands, Member, WAIT_MAX, wait_for_messages};

fn members<const N: usize>(network: &MemoryNetwork, workers: usize) -> [(Member, MemoryBus); N] {
    [(); N].map(|()| {
        let bus = network.bus();
        (Member::new(bus.clone(), workers), bus)
    })
}

fn end(members: impl IntoIterator<Item = (Member, MemoryBus)>) {
    members.into_iter().for_each(|(member, _)| member.end());
}

#[test]
fn a_publication_crosses_once_for_each_interested_node_and_arrives_once() {
    let network = MemoryNetwork::new(1);
    let nodes: [_; 3] = members(&network, 2);
    let mut clients: Vec<_> =
        nodes[..2].iter().flat_map(|(member, _)| (0..4).map(|_| Client::of(member, "t"))).collect();
    let mut publisher = nodes[0].0.client();
    publisher.publish("t", "from a connection");
    wait_for_messages(&network, 1);
    // By another thread: every worker gets it, and one sends it to the bus.
    nodes[0].0.running.sender().publish("t", "from a thread").unwrap();
    wait_for_messages(&network, 2);
    nodes[2].0.running.sender().publish("t", "from a node without receivers").unwrap();
    wait_for_messages(&network, 4);
    assert_eq!(network.deliver_all(), 4);
    for client in &mut clients {
        let mut texts = [(); 3].map(|()| client.next());
        texts.sort();
        assert_eq!(texts, ["from a connection", "from a node without receivers", "from a thread"]);
    }
    // A second copy would come before this.
    publisher.publish("t", "last");
    wait_for_messages(&network, 1);
    network.deliver_all();
    clients.iter_mut().for_each(|client| assert_eq!(client.next(), "last"));
    // A publisher counts after the bus has the message.
    let [first, second, third] =
        [(0, 3), (1, 0), (2, 1)].map(|(at, sent)| nodes[at].0.stats_when(|s| s.sent == sent));
    assert_eq!((first.sent, first.received), (3, 1));
    assert_eq!((second.sent, second.received), (0, 4));
    assert_eq!((third.sent, third.received, third.unwanted), (1, 0, 0));
    for stats in [first, second, third] {
        assert_eq!((stats.missed, stats.stale, stats.own, stats.malformed), (0, 0, 0, 0));
    }
    end(nodes);
}

/// A bus that returns everything to the node that has published it, as one without `no_echo`.
#[derive(Default)]
struct Echo(OnceLock<BusSink>);

impl Bus for Echo {
    fn start(&self, sink: BusSink) -> io::Result<()> {
        sink.set_state(BusState::Connected);
        let _ = self.0.set(sink);
        Ok(())
    }
    fn subscribe(&self, _: &str) {}
    fn unsubscribe(&self, _: &str) {}
    fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BusError> {
        self.0.get().unwrap().deliver(subject, &payload);
        // What is no publication is dropped.
        self.0.get().unwrap().deliver("elsewhere", &payload);
        self.0.get().unwrap().deliver(subject, b"");
        Ok(())
    }
}

#[test]
fn own_publications_never_arrive_twice() {
    let member = Member::new(Echo::default(), 2);
    let mut client = Client::of(&member, "t");
    let mut publisher = member.client();
    for number in 0..10 {
        publisher.publish("t", &number.to_string());
        assert_eq!(client.next(), number.to_string());
    }
    let stats = member.stats_when(|stats| stats.sent == 10);
    assert_eq!((stats.own, stats.malformed, stats.received), (10, 20, 0));
    member.end();
}

/// Delivers each message of the other node twice, and the first one once more in the end.
#[derive(Clone, Default)]
struct Repeating {
    sinks: Arc<Mutex<Vec<BusSink>>>,
    first: Arc<OnceLock<Vec<u8>>>,
}

impl Bus for Repeating {
    fn start(&self, sink: BusSink) -> io::Result<()> {
        self.sinks.lock().unwrap().push(sink);
        Ok(())
    }
    fn subscribe(&self, _: &str) {}
    fn unsubscribe(&self, _: &str) {}
    fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BusError> {
        let first = self.first.get_or_init(|| payload.clone());
        for sink in self.sinks.lock().unwrap().iter() {
            for payload in [&payload, &payload, first] {
                sink.deliver(subject, payload);
            }
        }
        Ok(())
    }
}

#[test]
fn what_arrives_twice_or_late_is_dropped_and_counted() {
    let bus = Repeating::default();
    let (one, other) = (Member::new(bus.clone(), 1), Member::new(bus, 1));
    let mut receiver = Client::of(&other, "t");
    let mut publisher = one.client();
    (0..5).for_each(|number| publisher.publish("t", &number.to_string()));
    assert_eq!([(); 5].map(|()| receiver.next()), ["0", "1", "2", "3", "4"]);
    let stats = other.stats_when(|stats| stats.received + stats.stale == 15);
    assert_eq!((stats.received, stats.stale, stats.missed), (5, 10, 0));
    one.end();
    other.end();
}

#[test]
fn publications_of_each_publisher_arrive_in_order() {
    let network = MemoryNetwork::new(3);
    let nodes: [_; 3] = members(&network, 1);
    let mut receiver = Client::of(&nodes[2].0, "t");
    let mut publishers = [nodes[0].0.client(), nodes[1].0.client()];
    let mut is_mixed = false;
    for round in 0..4 {
        for number in 0..25 {
            for (publisher, name) in publishers.iter_mut().zip(["a", "b"]) {
                publisher.publish("t", &format!("{name} {}", round * 25 + number));
            }
        }
        wait_for_messages(&network, 50);
        network.deliver_all();
        let texts: Vec<_> = (0..50).map(|_| receiver.next()).collect();
        for name in ["a", "b"] {
            let numbers: Vec<u32> = texts
                .iter()
                .filter_map(|text| text.strip_prefix(name))
                .map(|number| number.trim().parse().unwrap())
                .collect();
            assert_eq!(numbers, (round * 25..round * 25 + 25).collect::<Vec<_>>());
        }
        is_mixed |= texts.chunks(2).any(|pair| pair[0][..1] == pair[1][..1]);
    }
    assert!(is_mixed, "the bus reorders publishers");
    let stats = nodes[2].0.stats();
    assert_eq!((stats.received, stats.missed, stats.stale), (200, 0, 0));
    end(nodes);
}

#[test]
fn what_is_lost_with_a_connection_is_counted_and_not_replayed() {
    let network = MemoryNetwork::new(4);
    let nodes: [_; 2] = members(&network, 1);
    let mut receiver = Client::of(&nodes[1].0, "t");
    let mut publisher = nodes[0].0.client();
    let mut publish = |from: usize, to: usize, arrive: usize| {
        (from..to).for_each(|number| publisher.publish("t", &number.to_string()));
        nodes[0].0.stats_when(|stats| stats.sent == to as u64);
        wait_for_messages(&network, arrive);
    };
    publish(0, 5, 5);
    network.deliver_all();
    // Four are on their way.
    publish(5, 9, 4);
    nodes[1].1.disconnect();
    assert_eq!((network.waiting(), nodes[1].0.stats().state), (0, BusState::Connecting));
    publish(9, 16, 0);
    nodes[1].1.connect();
    publish(16, 19, 3);
    network.deliver_all();
    let expected: Vec<_> = (0..5).chain(16..19).map(|number| number.to_string()).collect();
    assert_eq!(expected.iter().map(|_| receiver.next()).collect::<Vec<_>>(), expected);
    let stats = nodes[1].0.stats();
    assert_eq!((stats.received, stats.missed, stats.connects), (8, 11, 2));
    end(nodes);
}

#[test]
fn publications_wait_for_a_connection_in_a_bounded_queue() {
    let network = MemoryNetwork::new(5).queue_max(4);
    let nodes: [_; 2] = members(&network, 1);
    let mut receiver = Client::of(&nodes[1].0, "t");
    let mut publisher = nodes[0].0.client();
    publisher.publish("t", "first");
    wait_for_messages(&network, 1);
    network.deliver_all();
    nodes[0].1.disconnect();
    (0..10).for_each(|number| publisher.publish("t", &number.to_string()));
    assert_eq!(nodes[0].0.stats_when(|stats| stats.sent == 11).send_lost, 6);
    nodes[0].1.connect();
    assert_eq!(network.deliver_all(), 4);
    // The oldest were dropped.
    assert_eq!([(); 5].map(|()| receiver.next()), ["first", "6", "7", "8", "9"]);
    assert_eq!(nodes[1].0.stats().missed, 6);
    end(nodes);
}

#[test]
fn a_node_has_one_subscription_for_each_topic_until_a_second_after_the_last_receiver() {
    let network = MemoryNetwork::new(6);
    let [(member, bus)] = members(&network, 3);
    let subject = ["test.v1.t.dA"];
    let mut clients: Vec<_> = (0..6).map(|_| Client::of(&member, "t")).collect();
    assert_eq!(bus.subjects(), subject);
    let mut last = clients.pop().unwrap();
    for client in &mut clients[1..] {
        assert_eq!(client.command("unsubscribe t"), "true");
    }
    // A connection that ends leaves too.
    drop(clients);
    let asked = Instant::now();
    assert_eq!(last.command("unsubscribe t"), "true");
    let kept = bus.subjects();
    assert!(kept == subject || asked.elapsed() >= Duration::from_secs(1), "{kept:?}");
    assert_eq!(last.command("subscribe t"), "true");
    let left = Instant::now();
    assert_eq!(last.command("unsubscribe t"), "true");
    until(|| bus.subjects().is_empty().then_some(()), || format!("{:?}", bus.subjects()));
    // The server leaves after the client has asked for it.
    assert!(left.elapsed() > Duration::from_millis(900), "{:?}", left.elapsed());
    assert_eq!(member.stats().subscriptions, 0);
    assert_eq!(last.command("subscribe t"), "true");
    assert_eq!(bus.subjects(), subject);
    member.end();
    assert!(!bus.is_connected() && bus.subjects().is_empty(), "the bus ends with the server");
}

#[test]
fn reserved_topics_never_reach_the_bus() {
    let network = MemoryNetwork::new(7);
    let nodes = [(); 2].map(|()| {
        let bus = network.bus();
        (Member::with(bus.clone(), 2, None, |options| options.live_status = true), bus)
    });
    let mut watcher = nodes[0].0.client();
    assert_eq!(watcher.command("watch"), "true");
    let _receiver = Client::of(&nodes[1].0, "t");
    let mut client = nodes[1].0.client();
    for topic in ["$windlass/status", "$windlass/x"] {
        assert_eq!(client.command(&format!("subscribe {topic}")), "false");
        client.publish(topic, "x");
        nodes[1].0.running.sender().publish(topic, "x").unwrap();
    }
    // Two statuses have gone to their watcher.
    assert!(watcher.next().starts_with('{') && watcher.next().starts_with('{'));
    client.publish("t", "ordinary");
    nodes[1].0.stats_when(|stats| stats.sent == 1);
    assert_eq!((nodes[0].1.subjects(), network.waiting()), (vec![], 0));
    assert_eq!(nodes[1].1.subjects(), ["test.v1.t.dA"]);
    end(nodes);
}

#[test]
fn any_topic_and_both_kinds_of_messages_cross() {
    let network = MemoryNetwork::new(8);
    let nodes: [_; 2] = members(&network, 1);
    let long = "l\u{f6}ng ".repeat(700);
    for topic in ["", "a b", "a.b", ">", "*", "\0", "\r\nPUB x 0", "\u{10ffff}", &long] {
        let mut receiver = Client::of(&nodes[1].0, topic);
        let mut publisher = nodes[0].0.client();
        publisher.publish(topic, "text \u{e4}");
        publisher.0.send(WsMessage::binary(format!("publish {topic}|\0"))).unwrap();
        assert_eq!(publisher.next(), "published");
        wait_for_messages(&network, 2);
        network.deliver_all();
        assert_eq!(receiver.0.read().unwrap(), WsMessage::text("text \u{e4}"), "{topic:?}");
        assert_eq!(receiver.0.read().unwrap(), WsMessage::binary(vec![0]), "{topic:?}");
    }
    assert_eq!(nodes[1].0.stats().malformed, 0);
    end(nodes);
}

#[test]
fn what_is_too_large_for_the_bus_goes_to_the_local_receivers_alone() {
    let network = MemoryNetwork::new(9);
    let nodes: [_; 2] = members(&network, 1);
    let mut clients = [0, 1].map(|index| Client::of(&nodes[index].0, "t"));
    let mut publisher = nodes[0].0.client();
    // An envelope has 28 bytes.
    nodes[0].1.set_payload_max(128);
    let (fits, large) = ("x".repeat(100), "y".repeat(101));
    publisher.publish("t", &large);
    publisher.publish("t", &fits);
    wait_for_messages(&network, 1);
    network.deliver_all();
    assert_eq!([clients[0].next(), clients[0].next()], [large, fits.clone()]);
    assert_eq!(clients[1].next(), fits);
    let stats = nodes[0].0.stats_when(|stats| stats.sent == 1);
    assert_eq!(stats.send_too_large, 1);
    end(nodes);
}

#[test]
fn a_busy_worker_loses_what_its_queue_has_no_room_for_and_counts_it() {
    let network = MemoryNetwork::new(10);
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let slow = Member::with(network.bus(), 1, Some((blocked, released)), |options| {
        options.sender_bounds = Bounds::items(3);
    });
    let quick = Member::new(network.bus(), 1);
    let mut receiver = Client::of(&slow, "t");
    let mut publisher = quick.client();
    let mut blocker = slow.client();
    blocker.0.send(WsMessage::text("block")).unwrap();
    is_blocked.recv_timeout(WAIT_MAX).unwrap();
    (0..10).for_each(|number| publisher.publish("t", &number.to_string()));
    wait_for_messages(&network, 10);
    // It waits for nothing.
    assert_eq!(network.deliver_all(), 10);
    let stats = slow.stats();
    assert_eq!((stats.received, stats.receive_full, stats.missed), (3, 7, 0));
    release.send(()).unwrap();
    assert_eq!(blocker.next(), "released");
    assert_eq!([(); 3].map(|()| receiver.next()), ["0", "1", "2"]);
    publisher.publish("t", "10");
    wait_for_messages(&network, 1);
    network.deliver_all();
    assert_eq!(receiver.next(), "10");
    slow.end();
    quick.end();
}

#[test]
fn the_state_of_the_bus_is_in_the_metrics() {
    let network = MemoryNetwork::new(11);
    let [(member, bus)] = members(&network, 1);
    let metrics = || member.running.stats_handle().prometheus();
    assert!(metrics().contains("\nwindlass_cluster_connected 1\n"), "{}", metrics());
    bus.disconnect();
    assert!(metrics().contains("\nwindlass_cluster_connected 0\n"), "{}", metrics());
    bus.connect();
    let text = metrics();
    for line in ["windlass_cluster_connected 1", "windlass_cluster_connects_total 2"] {
        assert!(text.contains(&format!("\n{line}\n")), "{text}");
    }
    assert!(text.contains("windlass_cluster_messages_total{direction=\"out\",result=\"sent\"} 0"));
    member.end();
}

/// A bus that cannot be started.
struct Broken;

impl Bus for Broken {
    fn start(&self, _: BusSink) -> io::Result<()> {
        Err(io::Error::other("broken"))
    }
    fn subscribe(&self, _: &str) {}
    fn unsubscribe(&self, _: &str) {}
    fn publish(&self, _: &str, _: Vec<u8>) -> Result<(), BusError> {
        Err(BusError::Closed)
    }
}

#[test]
fn a_bus_that_cannot_be_started_is_an_error_of_the_start() {
    let started = Server::new(Options::new(), |_| Commands { gate: None })
        .cluster(Cluster::new(Broken))
        .listen("127.0.0.1:0".parse().unwrap())
        .start();
    assert_eq!(started.err().map(|error| error.to_string()), Some("broken".to_owned()));
}

/// Connections break at any time, publishers are reordered, and messages are late. Whatever
/// happens: nothing arrives twice or out of order, and what is missing is counted exactly.
#[test]
fn random_faults_break_no_guarantee() {
    for seed in 0..6 {
        let network = MemoryNetwork::new(seed).queue_max(8);
        let nodes: [_; 3] = members(&network, 1);
        let mut receivers = [0, 1, 2].map(|index| Client::of(&nodes[index].0, "t"));
        let mut publishers = [0, 1, 2].map(|index| nodes[index].0.client());
        let mut published = [0_u64; 3];
        let mut publish = |index: usize, published: &mut [u64; 3]| {
            publishers[index].publish("t", &format!("{index} {}", published[index]));
            published[index] += 1;
            let sent = published[index];
            nodes[index].0.stats_when(|stats| stats.sent == sent);
        };
        // Each node knows each publisher from its first publication on.
        (0..3).for_each(|index| publish(index, &mut published));
        network.deliver_all();
        let mut random = seed.wrapping_mul(0x9e37_79b9) + 1;
        for _ in 0..150 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (random >> 40) as usize % 3;
            match (random >> 50) % 8 {
                0 => nodes[index].1.disconnect(),
                1 => nodes[index].1.connect(),
                2..5 => _ = network.deliver_one(),
                _ => publish(index, &mut published),
            }
        }
        nodes.iter().for_each(|(_, bus)| {
            if !bus.is_connected() {
                bus.connect()
            }
        });
        (0..3).for_each(|index| publish(index, &mut published));
        network.deliver_all();
        for (index, receiver) in receivers.iter_mut().enumerate() {
            let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
            let mut last: BTreeMap<usize, u64> = BTreeMap::new();
            // The last publication of each node has arrived.
            while (0..3).any(|from| last.get(&from) != Some(&(published[from] - 1))) {
                let text = receiver.next();
                let (from, number) = text.split_once(' ').unwrap();
                let (from, number): (usize, u64) = (from.parse().unwrap(), number.parse().unwrap());
                let before = last.insert(from, number);
                assert!(before < Some(number), "seed {seed}: {before:?} then {text}");
                *counts.entry(from).or_default() += 1;
            }
            assert_eq!(counts[&index], published[index], "the own ones all arrive");
            let lost = |from: usize| published[from] - counts[&from];
            let missing: u64 = (0..3).filter(|from| *from != index).map(lost).sum();
            let stats = nodes[index].0.stats();
            assert_eq!((stats.missed, stats.stale), (missing, 0), "seed {seed}: {stats:?}");
        }
        end(nodes);
    }
}
