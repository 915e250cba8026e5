//! Requests that are accepted in any pieces, and the bytes that follow them.

use windlass_testkit::frames::{CLOSE, PING, TEXT, masked};

use super::{
    heads::{ACCEPT, Head},
    peer::Peer,
};
use crate::harness::Server;

fn check_accepted(peer: &mut Peer) {
    let answer = peer.answer(0);
    let head = answer.head();
    assert_eq!(answer.status(), Some(101), "{head}");
    assert!(head.contains(&format!("sec-websocket-accept: {ACCEPT}\r\n")), "{head}");
    assert!(answer.body().is_empty(), "nothing was asked yet");
}

#[test]
fn a_request_may_come_in_any_pieces() {
    let server = Server::start(&["--mode", "echo"]);
    let request = Head::good().bytes();
    for at in 0..=request.len() {
        let mut peer = Peer::new(&server);
        let (first, second) = request.split_at(at);
        peer.send([first, second]);
        check_accepted(&mut peer);
    }
    let mut peer = Peer::new(&server);
    peer.send(request.chunks(1));
    check_accepted(&mut peer);
    peer.send([&masked(TEXT, b"hello")[..]]);
    assert_eq!(peer.read(7), b"\x81\x05hello");
    drop(peer);
    server.stop_cleanly();
}

#[test]
fn unusual_requests_are_accepted() {
    let server = Server::start(&["--mode", "echo"]);
    let requests = [
        Head::good().with("Connection", "keep-alive, Upgrade"),
        Head::good().with("Connection", "UPGRADE"),
        Head::good().with("Upgrade", "WebSocket"),
        Head::good().with("Upgrade", "h2c, websocket"),
        Head::good().with("Connection", "keep-alive").and("Connection: Upgrade"),
        Head::good().line("GET /any/path?with=query HTTP/1.1"),
        Head::good().line("GET http://localhost:1/absolute HTTP/1.1"),
        Head::good().with("Host", "[::1]:9001"),
        Head::good().and("Content-Length: 0"),
        Head::good().and("X-Spaces:   \t a b \t "),
        Head::good().and("X-Beyond-Ascii: \u{e9}"),
        Head::good().and("Origin: https://localhost").and("Cookie: a=b").and("Cookie: c=d"),
        Head::good().and("Sec-WebSocket-Extensions: x-unknown; a=\"b\"; c, x-other"),
        Head::good().and("Sec-WebSocket-Protocol: chat, superchat"),
    ];
    for request in requests {
        let mut peer = Peer::new(&server);
        peer.send([&request.bytes()[..]]);
        check_accepted(&mut peer);
    }
    server.stop_cleanly();
}

#[test]
fn frames_may_follow_the_request_in_the_same_segment() {
    let server = Server::start(&["--mode", "echo"]);
    let frames = [masked(TEXT, b"one"), masked(PING, b"two"), masked(TEXT, b"three")].concat();
    let bytes = [Head::good().bytes(), frames].concat();
    let answers = b"\x81\x03one\x8a\x03two\x81\x05three";
    // The cuts are also within the frames, whose beginning follows the request.
    for at in Head::good().bytes().len()..=bytes.len() {
        let mut peer = Peer::new(&server);
        let (first, second) = bytes.split_at(at);
        peer.send([first, second]);
        let answer = peer.answer(answers.len());
        assert_eq!(answer.status(), Some(101));
        assert_eq!(answer.body(), answers, "cut at {at}");
    }
    server.stop_cleanly();
}

#[test]
fn a_whole_session_may_come_in_one_segment() {
    let server = Server::start(&["--mode", "echo"]);
    let close = masked(CLOSE, &[&1000_u16.to_be_bytes()[..], b"bye"].concat());
    let bytes = [Head::good().bytes(), masked(TEXT, b"hello"), close].concat();
    let mut peer = Peer::new(&server);
    peer.send([&bytes[..]]);
    let answer = peer.answer(7 + 7);
    assert_eq!(answer.body(), b"\x81\x05hello\x88\x05\x03\xe8bye");
    assert_eq!(peer.rest(), b"", "the server closes first");
    server.stop_cleanly();
}

#[test]
fn a_violation_after_the_request_is_reported() {
    let server = Server::start(&["--mode", "echo"]);
    for (name, wrong, code) in [
        ("unmasked", b"\x81\x02hi".to_vec(), 1002_u16),
        ("reserved opcode", masked(0x83, b""), 1002),
        ("not UTF-8", masked(TEXT, b"\xff"), 1007),
        (
            "a length beyond all limits",
            [&[0x82, 0xff, 0x7f][..], &[0xff; 7], &[0; 4]].concat(),
            1009,
        ),
    ] {
        let mut peer = Peer::new(&server);
        peer.send([&Head::good().bytes()[..], &wrong]);
        let answer = peer.answer(4);
        assert_eq!(answer.status(), Some(101), "{name}");
        assert_eq!(answer.body()[0], CLOSE, "{name}");
        assert_eq!(answer.body()[2..4], code.to_be_bytes(), "{name}");
        peer.rest();
    }
    server.stop_cleanly();
}
