//! What reaches other nodes.

use tungstenite::Message as WsMessage;
use windlass_server::bus::Envelope;

use crate::{
    node::{Client, Member, subject},
    server::{Nats, Plain},
};

pub(crate) fn once_for_each_interested_node() {
    let nats = Nats::start();
    let nodes = [(); 3].map(|()| Member::new(&nats));
    let mut clients: Vec<_> =
        nodes[..2].iter().flat_map(|node| (0..4).map(|_| Client::of(node, "t"))).collect();
    nats.wait_for_subscriptions(&subject("t"), 2);
    let mut observer = Plain::new(&nats);
    observer.subscribe(&subject("t"));
    nodes[0].client().publish("t", "from a connection");
    nodes[1].running.sender().publish("t", "from a thread").unwrap();
    nodes[2].running.sender().publish("t", "from a node without receivers").unwrap();
    for client in &mut clients {
        let mut texts = [(); 3].map(|()| client.next());
        texts.sort();
        assert_eq!(texts, ["from a connection", "from a node without receivers", "from a thread"]);
    }
    assert_eq!(observer.sync().len(), 3, "each was published once");
    // A second copy would come before this.
    nodes[2].client().publish("t", "last");
    clients.iter_mut().for_each(|client| assert_eq!(client.next(), "last"));
    // A count comes after what it counts.
    let expected = [(1, 3), (1, 3), (2, 0)];
    for (node, counts) in nodes.iter().zip(expected) {
        let stats = node.stats_when(|stats| (stats.sent, stats.received) == counts);
        assert_eq!(stats.unwanted, 0);
        assert_eq!((stats.missed, stats.stale, stats.own, stats.malformed), (0, 0, 0, 0));
    }
    nodes.into_iter().for_each(Member::end);
}

pub(crate) fn own_publications_never_arrive_twice() {
    let nats = Nats::start();
    let (node, other) = (Member::new(&nats), Member::new(&nats));
    let mut receiver = Client::of(&node, "t");
    let mut remote = Client::of(&other, "t");
    nats.wait_for_subscriptions(&subject("t"), 2);
    let mut publisher = node.client();
    publisher.publish_numbers(0..20);
    assert_eq!(receiver.numbers(20), (0..20).collect::<Vec<_>>());
    assert_eq!(remote.numbers(20), (0..20).collect::<Vec<_>>());
    // What the server had sent back would have arrived before this.
    other.client().publish("t", "20");
    assert_eq!(receiver.numbers(1), [20]);
    let stats = node.stats_when(|stats| stats.received == 1);
    assert_eq!((stats.own, stats.stale), (0, 0), "the server sends none back");
    node.end();
    other.end();
}

pub(crate) fn publications_of_each_publisher_arrive_in_order() {
    const COUNT: u64 = 1000;
    let nats = Nats::start();
    let nodes = [(); 3].map(|()| Member::new(&nats));
    let mut receiver = Client::of(&nodes[2], "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    std::thread::scope(|scope| {
        for (node, name) in nodes.iter().zip(["a", "b"]) {
            let mut publisher = node.client();
            scope.spawn(move || {
                for number in 0..COUNT {
                    publisher.publish("t", &format!("{name} {number}"));
                }
            });
        }
        let mut next = [0, 0];
        for _ in 0..2 * COUNT {
            let text = receiver.next();
            let (name, number) = text.split_once(' ').unwrap();
            let next = &mut next[usize::from(name == "b")];
            assert_eq!(number.parse(), Ok(*next), "{text}");
            *next += 1;
        }
        assert_eq!(next, [COUNT; 2]);
    });
    let stats = nodes[2].stats_when(|stats| stats.received == 2 * COUNT);
    assert_eq!((stats.missed, stats.stale), (0, 0));
    nodes.into_iter().for_each(Member::end);
}

pub(crate) fn any_topic_and_both_kinds_of_messages_cross() {
    let nats = Nats::start();
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let long = "l\u{f6}ng ".repeat(700);
    assert!(long.len() > 4096);
    let topics = [
        "",
        " ",
        "a b",
        ".",
        "a.b",
        "a..b",
        ">",
        "*",
        "a.>",
        "\0",
        "\r\nPUB x 0",
        "\t",
        "\u{10ffff}",
    ];
    for topic in topics.into_iter().chain([&*long, &"x".repeat(200), &"x".repeat(201)]) {
        let mut receiver = Client::of(&there, topic);
        nats.wait_for_subscriptions(&subject(topic), 1);
        let mut publisher = here.client();
        publisher.publish(topic, "text \u{e4}");
        publisher.0.send(WsMessage::binary(format!("publish {topic}|\0"))).unwrap();
        assert_eq!(publisher.next(), "published");
        assert_eq!(receiver.0.read().unwrap(), WsMessage::text("text \u{e4}"), "{topic:?}");
        assert_eq!(receiver.0.read().unwrap(), WsMessage::binary(vec![0]), "{topic:?}");
    }
    let stats = there.stats_when(|stats| stats.received == 32);
    assert_eq!((stats.malformed, stats.unwanted), (0, 0));
    here.end();
    there.end();
}

pub(crate) fn what_is_no_publication_is_dropped_and_counted() {
    let nats = Nats::start();
    let node = Member::new(&nats);
    let mut receiver = Client::of(&node, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let mut stranger = Plain::new(&nats);
    for payload in [&b""[..], b"\0", &[1; 27], &[255; 1000]] {
        stranger.publish(&subject("t"), payload);
    }
    let mut envelope = Vec::new();
    let payload = b"7";
    Envelope { node: 1, worker: 0, epoch: 0, sequence: 0, topic: None, is_text: true, payload }
        .encode(&mut envelope);
    stranger.publish(&subject("t"), &envelope);
    assert_eq!(receiver.numbers(1), [7]);
    node.stats_when(|stats| (stats.malformed, stats.received) == (4, 1));
    node.end();
}

/// Issue 29. Who has access to the subjects can send one envelope in the name of a node.
pub(crate) fn an_invented_number_or_epoch_claims_little() {
    let nats = Nats::start();
    let (here, there) = (Member::new(&nats), Member::new(&nats));
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    let mut stranger = Plain::new(&nats);
    stranger.subscribe(&subject("t"));
    let mut publisher = here.client();
    publisher.publish_numbers(0..2);
    assert_eq!(receiver.numbers(2), [0, 1]);
    let seen = stranger.sync();
    let real = Envelope::decode(&seen[1]).unwrap();
    for (round, (epoch, sequence)) in
        (1..).zip([(real.epoch, u64::MAX - 1), (u64::MAX, 0), (u64::MAX, u64::MAX)])
    {
        let mut invented = Vec::new();
        Envelope { epoch, sequence, payload: b"1000", ..real }.encode(&mut invented);
        stranger.publish(&subject("t"), &invented);
        assert_eq!(receiver.numbers(1), [1000]);
        publisher.publish_numbers(2 * round..2 * round + 2);
        assert_eq!(receiver.numbers(2), [2 * round, 2 * round + 1]);
    }
    let stats = there.stats_when(|stats| stats.received == 11);
    assert_eq!((stats.missed, stats.stale), (0, 0));
    here.end();
    there.end();
}

pub(crate) fn what_is_published_right_before_the_end_arrives() {
    let nats = Nats::start();
    let other = Member::new(&nats);
    let mut receiver = Client::of(&other, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    for round in 0..5 {
        let node = Member::new(&nats);
        node.client().publish_numbers(round * 100..round * 100 + 100);
        node.end();
        let expected: Vec<_> = (round * 100..round * 100 + 100).collect();
        assert_eq!(receiver.numbers(100), expected);
    }
    other.end();
}
