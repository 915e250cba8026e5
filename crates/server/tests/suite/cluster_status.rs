//! What an operator sees of a cluster, and what stays on its node.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::{Value, json};
use windlass_server::{
    Admin,
    bus::{Cluster, MemoryNetwork},
};

use crate::cluster_member::{Client, Member, wait_for_messages};

const DASHBOARD: &str = include_str!("../../../../docs/grafana-dashboard.json");

fn status(member: &Member) -> Value {
    serde_json::from_str(&member.running.stats_handle().status_json()).unwrap()
}

#[test]
fn the_status_has_the_state_and_the_sums_of_the_cluster() {
    let network = MemoryNetwork::new(20);
    let buses = [network.bus(), network.bus()];
    let [here, there] = buses.clone().map(|bus| Member::new(bus, 1));
    let mut publisher = here.client();
    let mut receiver = Client::of(&there, "t");
    (0..3).for_each(|number| publisher.publish("t", &number.to_string()));
    wait_for_messages(&network, 3);
    network.deliver_all();
    (0..3).for_each(|number| assert_eq!(receiver.next(), number.to_string()));
    // A publisher counts after the bus has the message.
    here.stats_when(|stats| stats.sent == 3);
    assert_eq!(status(&here)["state"], "ready");
    let expected = |connects: u64, published: u64, received: u64| {
        json!({"state": "connected", "connects": connects, "subscriptions": received.min(1),
               "published": published, "received": received, "dropped": 0, "missed": 0})
    };
    assert_eq!(status(&here)["cluster"], expected(1, 3, 0));
    assert_eq!(status(&there)["cluster"], expected(1, 0, 3));

    // One is lost on its way, and one is too large. The receiver misses both.
    publisher.publish("t", "lost");
    wait_for_messages(&network, 1);
    buses[1].disconnect();
    assert_eq!(status(&there)["state"], "disconnected");
    assert_eq!(status(&there)["cluster"]["state"], "connecting");
    buses[1].connect();
    buses[0].set_payload_max(128);
    publisher.publish("t", &"x".repeat(200));
    publisher.publish("t", "last");
    wait_for_messages(&network, 1);
    network.deliver_all();
    assert_eq!(receiver.next(), "last");
    here.stats_when(|stats| stats.sent == 5);
    let (of_publisher, of_receiver) = (&status(&here)["cluster"], &status(&there)["cluster"]);
    assert_eq!((&of_publisher["published"], &of_publisher["dropped"]), (&json!(5), &json!(1)));
    assert_eq!((&of_receiver["connects"], &of_receiver["missed"]), (&json!(2), &json!(2)));
    here.end();
    there.end();
}

#[test]
fn the_live_status_has_it_too() {
    let network = MemoryNetwork::new(21);
    let bus = network.bus();
    let member = Member::with(bus.clone(), 1, None, |options| options.live_status = true);
    let mut watcher = member.client();
    assert_eq!(watcher.command("watch"), "true");
    let mut live = || serde_json::from_str::<Value>(&watcher.next()).unwrap();
    assert_eq!(live()["cluster"]["state"], "connected");
    bus.disconnect();
    let found = std::iter::from_fn(|| Some(live())).take(40);
    let mut found = found.filter(|status| status["cluster"]["state"] == "connecting");
    assert_eq!(found.next().map(|status| status["state"].clone()), Some(json!("disconnected")));
    member.end();
}

/// The clients of a node still reach each other, so it stays ready unless that is not enough.
#[test]
fn a_lost_cluster_makes_a_node_unready_if_it_is_required() {
    let bus = MemoryNetwork::new(23).bus();
    let member = Member::new(bus.clone(), 1);
    let ready = |is_required: bool| {
        let admin = Admin::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let admin = admin.cluster_required(is_required).start(member.running.stats_handle());
        let admin = admin.unwrap();
        let mut socket = TcpStream::connect(admin.address().socket_addr().unwrap()).unwrap();
        socket.write_all(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head[9..12].to_owned(), body.to_owned())
    };
    assert_eq!(ready(true), ("200".to_owned(), "ready\n".to_owned()));
    bus.disconnect();
    let reason = "not connected: the bus of the cluster cannot be reached\n";
    assert_eq!(ready(true), ("503".to_owned(), reason.to_owned()));
    assert_eq!(ready(false), ("200".to_owned(), format!("ready, but {reason}")));
    member.end();
}

#[test]
fn a_server_without_a_cluster_shows_none() {
    let alone = Member::alone(|_| {});
    let handle = alone.running.stats_handle();
    assert_eq!(status(&alone).get("cluster"), None);
    assert!(!handle.prometheus().contains("cluster"));
    alone.end();
}

#[test]
fn the_dashboard_shows_the_metrics_of_the_cluster() {
    let network = MemoryNetwork::new(22);
    let member = Member::new(network.bus(), 1);
    let text = member.running.stats_handle().prometheus();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = families.filter_map(|line| line.split(' ').next());
    let names: Vec<_> = names.filter(|name| name.starts_with("windlass_cluster_")).collect();
    assert_eq!(names.len(), 5, "{text}");
    for name in names {
        assert!(DASHBOARD.contains(&format!("{name}{{")), "{name}");
    }
    member.end();
}

#[test]
fn local_topics_stay_on_their_node() {
    let network = MemoryNetwork::new(23);
    let buses = [network.bus(), network.bus()];
    let [here, there] = buses
        .clone()
        .map(|bus| Member::in_cluster(Cluster::new(bus).local_topics("$members"), 1, None, |_| {}));
    let mut publisher = here.client();
    let mut of_both = [&here, &there].map(|member| Client::of(member, "$members/room/a"));
    assert_eq!(buses.each_ref().map(|bus| bus.subjects().len()), [0, 0]);
    publisher.publish("$members/room/a", "here alone");
    assert_eq!(of_both[0].next(), "here alone");
    // A thread publishes too.
    here.running.sender().publish("$members/room/a", "by a thread").unwrap();
    assert_eq!(of_both[0].next(), "by a thread");
    // Other topics of the same worker cross. It publishes in the order of the calls.
    assert_eq!(of_both[1].command("subscribe t"), "true");
    publisher.publish("t", "crosses");
    wait_for_messages(&network, 1);
    network.deliver_all();
    assert_eq!(of_both[1].next(), "crosses");
    here.stats_when(|stats| stats.sent == 1);
    assert_eq!(of_both[1].command("unsubscribe $members/room/a"), "true");
    here.end();
    there.end();
}
