//! Slow, silent and vanished clients.

use super::{heads::Head, peer::Peer};
use crate::harness::Server;

#[test]
fn a_client_that_leaves_within_its_request_is_forgotten() {
    let server = Server::start(&["--mode", "echo"]);
    let request = Head::good().bytes();
    for at in [0, 1, 16, request.len() - 1] {
        let mut peer = Peer::new(&server);
        peer.send([&request[..at]]);
        peer.finish();
        let rest = peer.rest();
        assert!(!rest.starts_with(b"HTTP/1.1 101"), "cut at {at}: {rest:?}");
    }
    server.stop_cleanly();
}

#[test]
fn a_request_that_never_ends_is_cut_off() {
    let server = Server::start(&["--mode", "echo", "--handshake-timeout", "3"]);
    let mut silent = Peer::new(&server);
    let mut slow = Peer::new(&server);
    slow.send([&b"GET / HTTP/1.1\r\nHost: "[..]]);
    let mut good = Peer::new(&server);
    good.send([&Head::good().bytes()[..]]);
    assert_eq!(good.answer(0).status(), Some(101));
    // A client that has sent a part of a request gets a response. A silent one does not, because a
    // browser opens connections in advance and would take it for the response to its next request.
    assert_eq!(silent.rest(), b"");
    let rest = slow.rest();
    assert!(rest.starts_with(b"HTTP/1.1 408 "), "{rest:?}");
    // A connection after its handshake is not affected.
    good.send([&b"\x89\x80\0\0\0\0"[..]]);
    assert_eq!(good.read(2), b"\x8a\0");
    drop(good);
    server.stop_cleanly();
}
