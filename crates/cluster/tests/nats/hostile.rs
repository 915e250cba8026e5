//! A server of NATS that wants to harm its node. It needs no nats-server.

use std::{thread, time::Duration};

use windlass_cluster::{NatsBus, NatsEvent};
use windlass_server::bus::{BusState, ClusterStats};

use crate::{
    fake::{Fake, Peer},
    node::{Client, Member, Wanted, fast, subject},
};

/// What a node takes at most from a server that sends without end, with the buffers of both
/// sockets. A node without a limit takes everything.
const TAKEN_MAX: usize = 48 << 20;

/// A node that gives the server all the time that it wants.
fn patient_node(server: &Fake) -> Member {
    let mut wanted = Wanted::at(&server.url());
    let patient = fast(NatsBus::builder([server.url()])).ping_interval(Duration::from_secs(3600));
    wanted.bus = patient.connect_timeout(Duration::from_secs(30));
    wanted.start()
}

/// Sends a beginning, and then more of it until the node ends the connection.
fn flood(peer: &mut Peer, begin: &str) {
    let sent = peer.flood(begin, TAKEN_MAX);
    assert!(sent < TAKEN_MAX, "{begin}: the node took {sent} bytes");
}

pub(crate) fn a_first_line_without_end_is_refused() {
    for begin in ["INFO {\"server_name\":\"", "+OK", "x", ""] {
        let server = Fake::new();
        let node = patient_node(&server);
        flood(&mut server.accept_silently(), begin);
        let event = node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
        assert!(event.to_string().contains("line"), "{event}");
        end(node, server);
    }
}

pub(crate) fn endless_lines_and_messages_end_the_connection() {
    let topic = subject("t");
    for begin in [
        format!("MSG {topic} 1 2000000000\r\n"),
        format!("MSG {topic} 1 18446744073709551615\r\n"),
        format!("MSG {topic} 1 99999999999999999999\r\n"),
        "MSG ".to_owned(),
        "INFO ".to_owned(),
        "-ERR '".to_owned(),
        "PING".to_owned(),
    ] {
        let server = Fake::new();
        let node = patient_node(&server);
        let mut peer = server.accept().unwrap();
        node.wait_for(BusState::Connected);
        flood(&mut peer, &begin);
        node.event_when(|event| matches!(event, NatsEvent::Disconnected { .. }));
        end(node, server);
    }
}

/// The longest message that arrives is a good one all the same.
pub(crate) fn a_long_message_arrives() {
    let server = Fake::new();
    let node = patient_node(&server);
    let mut receiver = Client::of(&node, "t");
    let mut peer = server.accept().unwrap();
    node.wait_for(BusState::Connected);
    let text = "x".repeat(3 << 20);
    peer.deliver(&subject("t"), &text);
    assert!(receiver.next() == text);
    end(node, server);
}

pub(crate) fn texts_of_the_server_forge_no_line() {
    const FORGED: &str = "fake\\nERROR forged\\u001b[2J\\u0085\\u2028\\u202e";
    let server = Fake::new().named(FORGED);
    let node = patient_node(&server);
    let mut peer = server.accept().unwrap();
    node.wait_for(BusState::Connected);
    peer.send("-ERR 'a\x1b[2Jb\rERROR forged'\r\n");
    node.event_when(|event| matches!(event, NatsEvent::ServerError { .. }));
    peer.send("\x1b[2J\nERROR forged\r\n");
    node.event_when(|event| matches!(event, NatsEvent::Disconnected { .. }));
    let mut peer = server.accept_silently();
    peer.send("-ERR '\x1b[2J\rERROR forged'\r\n");
    let failed = |event: &NatsEvent| {
        matches!(event, NatsEvent::ConnectFailed { .. }) && event.to_string().contains("forged")
    };
    node.event_when(failed);
    for event in &*node.events.lock().unwrap() {
        let text = event.to_string();
        let is_plain = |char: char| !char.is_control() && !"\u{2028}\u{202e}".contains(char);
        assert!(text.chars().all(is_plain), "{text:?}");
        assert!(text.chars().count() < 1000);
    }
    end(node, server);
}

/// A server may ask as often as it likes.
pub(crate) fn many_questions_do_not_add_up() {
    let server = Fake::new();
    let node = patient_node(&server);
    let mut peer = server.accept().unwrap();
    node.wait_for(BusState::Connected);
    peer.send(&"PING\r\n".repeat(100_000));
    peer.send("+OK\r\n");
    let mut pongs = 0;
    while pongs < 100_000 {
        pongs += usize::from(peer.line().unwrap() == "PONG");
    }
    let ClusterStats { state, connects, .. } = node.stats();
    assert_eq!((state, connects), (BusState::Connected, 1));
    end(node, server);
}

/// Ends a node, whose last attempts to connect nobody answers.
fn end(node: Member, server: Fake) {
    let end = thread::spawn(move || node.end());
    drop(server);
    end.join().unwrap();
}
