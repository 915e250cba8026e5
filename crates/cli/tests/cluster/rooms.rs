//! Rooms over two servers.

use serde_json::{Value, json};
use windlass_server::bus::SubjectMap;
use windlass_ws::MessageRef;

use crate::{
    client::{Client, Received},
    harness::windlass,
    nats::{Nats, until},
    node::{Node, get},
};

/// The subject of a room.
pub(crate) fn subject(prefix: &str, room: &str) -> String {
    SubjectMap::new(prefix).expect("it is a prefix").subject(room)
}

pub(crate) fn a_message_goes_to_the_members_at_both_servers_and_crosses_once() {
    let nats = Nats::start();
    let [here, there] = [(); 2].map(|()| Node::of(&nats, &["--workers", "2"]));
    let mut at_here: Vec<_> = (0..4).map(|_| here.enter("/room/a%20b")).collect();
    let mut at_there: Vec<_> = (0..4).map(|_| there.enter("/room/a%20b")).collect();
    let mut elsewhere = there.enter("/room/other");
    nats.wait_for_subscriptions(&subject("windlass", "/room/a%20b"), 2);
    let before = nats.messages();
    for number in 0..20 {
        at_here[0].say(&number.to_string());
    }
    for member in at_here[1..].iter_mut().chain(&mut at_there) {
        (0..20).for_each(|number| member.hears(&number.to_string()));
    }
    at_there[0].say("back");
    at_here.iter_mut().for_each(|member| member.hears("back"));
    at_here[0].hears_nothing();
    elsewhere.hears_nothing();
    // Each publication went to nats-server once, and from there to the other node once.
    assert_eq!(nats.messages(), (before.0 + 21, before.1 + 21));
    let sums = |node: &Node| {
        let cluster = node.cluster();
        ["published", "received", "dropped", "missed"].map(|name| cluster[name].as_u64())
    };
    assert_eq!(sums(&here), [20, 1, 0, 0].map(Some));
    assert_eq!(sums(&there), [1, 20, 0, 0].map(Some));
    here.server.stop_cleanly();
    there.server.stop_cleanly();
}

pub(crate) fn notices_about_members_stay_at_their_server() {
    let nats = Nats::start();
    let [here, there] = [(); 2].map(|()| Node::of(&nats, &["--no-status"]));
    let mut page = Client::open(here.server.connect(), "/live/a?as=Ada", None);
    let _members = [there.enter("/room/a"), there.enter("/room/a")];
    let mut page_there = Client::open(there.server.connect(), "/live/a?as=Bob", None);
    let mut notice_until = |members: u64| loop {
        let Received::Text(text) = page_there.receive() else { panic!("a notice comes") };
        let notice: Value = serde_json::from_str(&text).expect("it is JSON");
        if notice["members"] == members {
            return;
        }
    };
    notice_until(2);
    let _here = here.enter("/room/a");
    let notice = loop {
        let Received::Text(text) = page.receive() else { panic!("a notice comes") };
        let notice: Value = serde_json::from_str(&text).expect("it is JSON");
        if notice["members"] == 1 {
            break notice;
        }
        assert_eq!((&notice["members"], &notice["joined"]), (&json!(0), &json!(["Ada"])));
    };
    assert_eq!(notice["left"], json!([]));
    assert_eq!(nats.messages(), (0, 0));
    here.server.stop_cleanly();
    there.server.stop_cleanly();
}

pub(crate) fn a_lost_nats_server_is_seen_and_comes_back() {
    let mut nats = Nats::start();
    let [here, there] = [(); 2].map(|()| Node::of(&nats, &[]));
    let easy = Node::start_ready(&["--cluster", &nats.url()]);
    until(|| (easy.get("/readyz").1 == "ready\n").then_some(()), String::new);
    let line = here.server.wait_for_error("cluster: connected");
    let port = format!("(port {})", nats.port);
    assert!(line.contains("payload_max=1048576") && line.contains(&port), "{line}");
    let (mut ada, mut bob) = (here.enter("/room/a"), there.enter("/room/a"));
    nats.kill();
    let lost = until(|| Some(here.get("/readyz")).filter(|answer| answer.0 == 503), String::new);
    let reason = "not connected: the bus of the cluster cannot be reached\n";
    assert_eq!(lost.1, reason);
    let without = (200, format!("ready, but {reason}"));
    until(|| (easy.get("/readyz") == without).then_some(()), String::new);
    assert!(easy.get("/metrics").1.contains("\nwindlass_cluster_connected 0\n"));
    easy.server.wait_for_error("cluster: the connection was lost");
    easy.server.stop_cleanly();
    here.server.wait_for_error("cluster: the connection was lost");
    // The servers go on by themselves.
    let mut eve = here.enter("/room/a");
    eve.say("is anybody here?");
    ada.hears("is anybody here?");
    assert_eq!(here.get("/healthz").0, 200);
    nats.restart();
    here.wait_until_ready();
    there.wait_until_ready();
    here.server.wait_for_error("cluster: connected");
    nats.wait_for_subscriptions(&subject("windlass", "/room/a"), 2);
    assert_eq!(here.cluster()["connects"], 2);
    bob.say("I am");
    ada.hears("I am");
    eve.hears("I am");
    here.server.stop_cleanly();
    there.server.stop_cleanly();
}

pub(crate) fn the_cluster_is_shown_where_the_server_is() {
    let nats = Nats::start();
    let node = Node::of(&nats, &[]);
    let page = get(&node.server.address.to_string(), "/").1;
    assert!(page.contains(" data-cluster=\"on\" "));
    let mut live = Client::open(node.server.connect(), "/live/a", None);
    loop {
        let Received::Text(text) = live.receive() else { panic!("a text comes") };
        let status: Value = serde_json::from_str(&text).expect("it is JSON");
        if status.get("cluster").is_some() {
            assert_eq!(status["cluster"]["state"], "connected");
            break;
        }
        // A notice about the members.
        assert!(status.get("members").is_some(), "{text}");
    }
    let metrics = node.get("/metrics").1;
    assert!(metrics.contains("\nwindlass_cluster_connected 1\n"), "{metrics}");
    // Without a terminal, `windlass top` has the state alone.
    drop(nats);
    until(|| (node.get("/readyz").0 == 503).then_some(()), String::new);
    let url = format!("http://{}", node.admin);
    let output = windlass(&["top", &url, "--samples", "1"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("disconnected ")), "{text}");
    node.server.stop_cleanly();
}

pub(crate) fn the_longest_message_is_what_nats_takes() {
    let nats = Nats::with("max_payload: 4096");
    let [here, there] = [(); 2].map(|()| Node::of(&nats, &["--message-max", "5000"]));
    let line = here.server.wait_for_error("--message-max 5000 is lowered");
    assert!(line.contains("message_max=4068"), "{line}");
    let (mut ada, mut bob) = (here.enter("/room/a"), there.enter("/room/a"));
    nats.wait_for_subscriptions(&subject("windlass", "/room/a"), 2);
    let longest = "x".repeat(4068);
    ada.say(&longest);
    bob.hears(&longest);
    ada.0.send(MessageRef::Text(&"y".repeat(4069)));
    assert!(matches!(ada.0.receive(), Received::Close(Some(1009), _)));
    bob.hears_nothing();
    assert_eq!(here.cluster()["dropped"], 0);
    here.server.stop_cleanly();
    there.server.stop_cleanly();
}
