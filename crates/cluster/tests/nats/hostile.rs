//! A server of NATS that wants to harm its node. It needs no nats-server.

use std::{sync::mpsc, thread, time::Duration};

use windlass_cluster::{NatsBus, NatsBusBuilder, NatsEvent};
use windlass_server::bus::{Bus as _, BusState, ClusterStats};

use crate::{
    batch::{publish, socket_buffer_max},
    fake::{Fake, Peer},
    node::{Client, Member, Wanted, fast, subject},
    server::{WAIT_MAX, until},
};

/// What a node takes at most from a server that sends without end, with the buffers of both
/// sockets. A node without a limit takes everything.
const TAKEN_MAX: usize = 48 << 20;

/// A node that gives the server all the time that it wants.
fn patient_node(server: &Fake) -> Member {
    let mut wanted = Wanted::at(&server.url());
    wanted.bus = patient(NatsBus::builder([server.url()]));
    wanted.start()
}

fn patient(bus: NatsBusBuilder) -> NatsBusBuilder {
    fast(bus)
        .ping_interval(Duration::from_secs(3600))
        .answer_timeout(Duration::from_secs(3600))
        .connect_timeout(Duration::from_secs(30))
}

/// Sends a beginning, and then more of it until the node ends the connection.
fn flood(peer: &mut Peer, begin: &str) {
    let sent = peer.flood(begin, TAKEN_MAX);
    assert!(sent < TAKEN_MAX, "{begin}: the node took {sent} bytes");
}

pub(crate) fn a_first_line_without_end_is_refused() {
    for begin in ["INFO {\"server_name\":\"", "+OK", "x", ""] {
        let server = Fake::start();
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
        let server = Fake::start();
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
    let server = Fake::start();
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
    let server = Fake::start().named(FORGED);
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
    let server = Fake::start();
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

/// A server that reads nothing fills the sockets, and then what is published is dropped.
pub(crate) fn a_server_that_reads_nothing_is_lost() {
    let server = Fake::start();
    let large = 4 * socket_buffer_max() + (8 << 20);
    let mut wanted = Wanted::at(&server.url());
    wanted.bus = patient(NatsBus::builder([server.url()]))
        .queue_bytes(2 * large)
        .answer_timeout(Duration::from_millis(200));
    let node = wanted.start();
    let peer = server.accept().unwrap();
    node.wait_for(BusState::Connected);
    let chatter = peer.chatter();
    publish(&node, ["a"].into_iter(), large);
    let event = node.event_when(|event| matches!(event, NatsEvent::Disconnected { .. }));
    assert!(event.to_string().contains("does not read"), "{event}");
    chatter.join().unwrap();
    end(node, server);
}

pub(crate) fn a_server_that_answers_nothing_is_lost() {
    let server = Fake::start();
    let mut wanted = Wanted::at(&server.url());
    wanted.bus = patient(NatsBus::builder([server.url()]))
        .ping_interval(Duration::from_millis(10))
        .answer_timeout(Duration::from_millis(200));
    let node = wanted.start();
    let mut peer = server.accept().unwrap();
    // Answers in advance count for nothing.
    peer.send(&"PONG\r\n".repeat(100_000));
    let chatter = peer.chatter();
    assert_eq!(peer.line().unwrap(), "PING");
    let event = node.event_when(|event| matches!(event, NatsEvent::Disconnected { .. }));
    assert!(event.to_string().contains("does not answer"), "{event}");
    chatter.join().unwrap();
    end(node, server);
}

/// The same server answers, and stays.
pub(crate) fn a_server_that_answers_is_kept() {
    let server = Fake::start();
    let mut wanted = Wanted::at(&server.url());
    wanted.bus = patient(NatsBus::builder([server.url()])).ping_interval(Duration::from_millis(1));
    let node = wanted.start();
    let mut peer = server.accept().unwrap();
    for _ in 0..20 {
        assert_eq!(peer.line().unwrap(), "PING");
        // The second answer is to no question.
        peer.send("PONG\r\nPONG\r\n");
    }
    assert_eq!(node.stats().connects, 1);
    end(node, server);
}

pub(crate) fn an_announced_end_is_told_once() {
    let server = Fake::start();
    let node = patient_node(&server);
    let is_told = |event: &NatsEvent| matches!(event, NatsEvent::LameDuck);
    for connection in 1..=2 {
        let mut peer = server.accept().unwrap();
        peer.send(&"INFO {\"ldm\":true}\r\nINFO {}\r\n".repeat(1000));
        peer.finish();
        let is_end = |event: &&NatsEvent| matches!(event, NatsEvent::Disconnected { .. });
        let ends = || node.events.lock().unwrap().iter().filter(is_end).count();
        until(|| (ends() == connection).then_some(()), || format!("{} ends", ends()));
        let told = node.events.lock().unwrap().iter().filter(|event| is_told(event)).count();
        assert_eq!(told, connection);
    }
    end(node, server);
}

/// Such as a service that sends back what it gets.
pub(crate) fn credentials_that_come_back_are_not_shown() {
    let server = Fake::start();
    let mut wanted = Wanted::at(&server.url());
    wanted.bus = patient(NatsBus::builder([server.url()])).token("s3cret");
    let node = wanted.start();
    let mut peer = server.accept_silently();
    peer.send("INFO {}\r\n");
    let connect = peer.connect_line().unwrap();
    assert!(connect.contains("s3cret"));
    peer.send(&format!("{connect}\r\n"));
    node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    let mut peer = server.accept().unwrap();
    peer.send(&format!("{connect}\r\n"));
    node.event_when(|event| matches!(event, NatsEvent::Disconnected { .. }));
    let events = format!("{:?}", node.events.lock().unwrap());
    assert!(events.contains("begins with CONNECT") && !events.contains("s3cret"), "{events}");
    end(node, server);
}

/// The protocol allows a question before the first answer.
pub(crate) fn a_server_may_ask_first() {
    let server = Fake::start();
    let node = patient_node(&server);
    let mut peer = server.accept_silently();
    peer.send("INFO {}\r\n");
    peer.connect_line().unwrap();
    peer.send("PING\r\n");
    assert_eq!(peer.line().unwrap(), "PONG");
    peer.send("PONG\r\n");
    // Its INFO has no maximum, so it is the default of nats-server.
    let event = node.event_when(|event| matches!(event, NatsEvent::Connected { .. }));
    assert!(event.to_string().contains("1048576"), "{event}");
    publish(&node, ["a"].into_iter(), 10);
    assert_eq!(peer.publication().as_deref(), Some("a"));
    end(node, server);
}

pub(crate) fn a_bus_may_be_stopped_in_an_event() {
    let server = Fake::start();
    let (stopped, is_stopped) = mpsc::channel();
    let mut wanted = Wanted::at(&server.url());
    wanted.react = Some(Box::new(move |bus, _| {
        bus.stop();
        stopped.send(()).unwrap();
    }));
    let node = wanted.start();
    let peer = server.accept().unwrap();
    is_stopped.recv_timeout(WAIT_MAX).expect("`stop` returns");
    peer.cut();
    node.wait_for(BusState::Closed);
    end(node, server);
}

/// Ends a node, whose last attempts to connect nobody answers.
pub(crate) fn end(node: Member, server: Fake) {
    let end = thread::spawn(move || node.end());
    drop(server);
    end.join().unwrap();
}
