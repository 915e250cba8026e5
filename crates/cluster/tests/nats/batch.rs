//! Connections that end at a byte that a test has chosen. They need no nats-server.

use windlass_cluster::NatsBus;
use windlass_server::bus::Bus as _;

use crate::{
    fake::Fake,
    node::{Member, Wanted, fast},
};

/// The largest buffer of a socket here.
pub(crate) fn socket_buffer_max() -> usize {
    let sizes = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap();
    sizes.split_whitespace().next_back().unwrap().parse().unwrap()
}

pub(crate) fn publish(node: &Member, names: impl Iterator<Item = &'static str>, length: usize) {
    names.for_each(|name| node.bus.publish(name, vec![0; length]).unwrap());
}

/// The client was given three publications together. The server has read the beginning of the
/// first, and no socket can hold the last.
pub(crate) fn what_was_in_hand_when_the_connection_ended_is_counted() {
    let server = Fake::start();
    let mut wanted = Wanted::at(&server.url());
    let large = 4 * socket_buffer_max() + (8 << 20);
    wanted.bus = fast(NatsBus::builder([server.url()]))
        .queue_bytes(2 * large)
        // Its rule for silent connections would end this one.
        .ping_interval(std::time::Duration::from_secs(3600))
        .answer_timeout(std::time::Duration::from_secs(3600))
        .connect_timeout(std::time::Duration::from_secs(30));
    let node = wanted.start();
    publish(&node, ["a", "b"].into_iter(), 10);
    publish(&node, ["c"].into_iter(), large);
    publish(&node, ["d", "e"].into_iter(), 10);
    assert_eq!(node.stats().send_lost, 0);
    let mut peer = server.accept().unwrap();
    assert_eq!(peer.head(), Some(("a".to_owned(), 10)));
    peer.cut();
    // What waited is sent by the next connection, and nothing is sent again.
    let mut peer = server.accept().unwrap();
    for subject in ["d", "e"] {
        assert_eq!(peer.publication().as_deref(), Some(subject));
    }
    assert_eq!(node.stats().send_lost, 3);
    let end = std::thread::spawn(move || peer.publication());
    node.end();
    assert_eq!(end.join().unwrap(), None);
}
