//! The order of publications by connections and by threads, over the bus in memory.

use std::sync::mpsc;

use tungstenite::Message as WsMessage;
use windlass_server::bus::MemoryNetwork;

use crate::cluster_member::{Client, Member, WAIT_MAX, wait_for_messages};

/// Another node gets the publications of a turn in the order in which the own connections get them.
#[test]
fn publications_by_connections_and_by_threads_keep_their_order() {
    let network = MemoryNetwork::new(12);
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let here = Member::with(network.bus(), 1, Some((blocked, released)), |_| {});
    let there = Member::new(network.bus(), 1);
    let mut receivers = [Client::of(&here, "t"), Client::of(&there, "t")];
    let (mut publisher, mut blocker) = (here.client(), here.client());
    for round in 0..20 {
        blocker.0.send(WsMessage::text("block")).unwrap();
        is_blocked.recv_timeout(WAIT_MAX).unwrap();
        // Both wait until the worker has a turn again, which takes them in some order.
        publisher.0.send(WsMessage::text("publish t|by a connection")).unwrap();
        here.running.sender().publish("t", "by a thread").unwrap();
        release.send(()).unwrap();
        assert_eq!((blocker.next(), publisher.next()), ("released".into(), "published".into()));
        wait_for_messages(&network, 2);
        network.deliver_all();
        let [own, other] = receivers.each_mut().map(|receiver| [receiver.next(), receiver.next()]);
        assert_eq!(own, other, "round {round}");
    }
    let stats = there.stats();
    assert_eq!((stats.received, stats.missed, stats.stale), (40, 0, 0));
    here.end();
    there.end();
}
