//! Handshakes, data, and the end of sessions.

use std::{cell::RefCell, net::Shutdown, rc::Rc, sync::Arc};

use rustls::version::{TLS12, TLS13};
use windlass::stream::{
    DisconnectReason, Input, Listener, SharedBytes, Stream, StreamHandler, TlsFailure,
};
use windlass_tls::MinimumVersion;

use crate::{
    Build,
    bed::{Client, Log, Said, both, config, localhost, serve, until},
};

fn an_echo_of_any_length(build: Build) {
    for version in [&TLS12, &TLS13] {
        let mut reactor = build().build().unwrap();
        let log = Log::default();
        let acceptor = localhost().alpn([b"http/1.1"]).build().unwrap();
        let address = serve(&mut reactor, acceptor.clone(), &log);
        let mut settings = config(None, &[version]);
        settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut client = Client::new(address, settings, "localhost");
        let mut all = Vec::new();
        for len in [1, 64, 16_384, 16_388, 100_000, 1_000_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            all.extend_from_slice(&bytes);
            client.send(&bytes);
            client.until(&mut reactor, |client| client.received.len() == all.len());
        }
        assert!(client.received == all && log.data() == all);
        let version = if *version == TLS12 { "TLSv1.2" } else { "TLSv1.3" };
        let name = Some("localhost".into());
        let open = Said::Open(Some(b"http/1.1".to_vec()), name, None, Some(version), false);
        assert_eq!(log.take()[0], open);
        let counts = acceptor.handshakes();
        assert_eq!((counts.started, counts.completed, counts.resumed), (1, 1, 0));
    }
}

fn a_message_in_two_records_is_delivered_in_one_piece(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut client = Client::new(address, both(), "localhost");
    client.until(&mut reactor, |client| !client.tls.is_handshaking() && log.is_open());
    client.send(&[7; 16_388]);
    client.until(&mut reactor, |client| client.received.len() == 16_388);
    let data = log.take().into_iter().filter(|said| matches!(said, Said::Data(_))).count();
    assert_eq!(data, 1);
}

fn records_come_one_byte_at_a_time(build: Build) {
    for version in [&TLS12, &TLS13] {
        let mut reactor = build().build().unwrap();
        let log = Log::default();
        let address = serve(&mut reactor, localhost().build().unwrap(), &log);
        let mut client = Client::new(address, config(None, &[version]), "localhost");
        client.step = 1;
        client.send(b"slow");
        client.until(&mut reactor, |client| client.received == b"slow");
        client.tls.refresh_traffic_keys().ok();
        client.send(b"er");
        client.until(&mut reactor, |client| client.received == b"slower");
    }
}

fn records_of_one_byte_each(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut settings = both();
    // The header and one byte more than it; handshake messages are cut too.
    settings.max_fragment_size = Some(33);
    let mut client = Client::new(address, settings, "localhost");
    let bytes: Vec<u8> = (0..600).map(|i| i as u8).collect();
    for byte in &bytes {
        client.send(&[*byte]);
    }
    client.until(&mut reactor, |client| client.received.len() == bytes.len());
    assert_eq!(client.received, bytes);
}

fn keys_are_updated_in_both_directions(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut client = Client::new(address, config(None, &[&TLS13]), "localhost");
    client.until(&mut reactor, |client| !client.tls.is_handshaking());
    for round in 1..=5 {
        client.tls.refresh_traffic_keys().unwrap();
        client.send(&[round; 10]);
        client.until(&mut reactor, |client| client.received.len() == 10 * usize::from(round));
    }
    assert_eq!(client.received, log.data());
}

/// A handler that sends in all ways, of all lengths, and notes what it has sent.
struct Mixing {
    sent: Rc<RefCell<Vec<u8>>>,
    random: u64,
}

/// Sends some bytes in one of the ways.
fn send_somehow(stream: &mut Stream<'_>, random: &mut u64, sent: &RefCell<Vec<u8>>) {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
    let number = (*random >> 33) as usize;
    let len = [1, 20, 3_990, 4_001, 9_000, 17_000, 40_000][number % 7];
    let bytes: Vec<u8> = (0..len).map(|i| (i * 3 + number) as u8).collect();
    match number / 7 % 4 {
        0 => stream.send(&bytes).unwrap(),
        1 => stream.send_shared(&SharedBytes::new(&bytes)).unwrap(),
        2 => drop(stream.write_shared(&SharedBytes::new(&bytes)).unwrap()),
        _ => {
            let count = stream.send_some(&bytes).unwrap();
            return sent.borrow_mut().extend_from_slice(&bytes[..count]);
        }
    }
    sent.borrow_mut().extend_from_slice(&bytes);
}

impl StreamHandler for Mixing {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let before = self.random % 2 == 0;
        if before {
            send_somehow(stream, &mut self.random, &self.sent);
        }
        self.sent.borrow_mut().extend_from_slice(&input);
        stream.reply(input, ..).unwrap();
        if !before {
            send_somehow(stream, &mut self.random, &self.sent);
        }
    }
}

/// With key updates between them, whose answers go in the same order. The client would reject a
/// record in another place.
fn output_of_all_kinds_stays_in_order(build: Build) {
    let mut reactor = build().build().unwrap();
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let sent = Rc::new(RefCell::new(Vec::new()));
    let mixing = Rc::clone(&sent);
    listener
        .with_tls(Arc::new(localhost().build().unwrap()))
        .with_handler(move |_| Some(Mixing { sent: Rc::clone(&mixing), random: 3 }))
        .register_into(&mut reactor)
        .unwrap();
    let mut client = Client::new(address, config(None, &[&TLS13]), "localhost");
    client.send(b"x");
    client.until(&mut reactor, |client| !client.received.is_empty());
    for round in 0..150_usize {
        if round % 3 == 0 {
            client.tls.refresh_traffic_keys().unwrap();
        }
        client.send(&vec![round as u8; 1 + round * 37 % 5_000]);
        client.send(b"and more");
        client.pump();
        for _ in 0..round % 4 {
            reactor.run_once(std::time::Duration::ZERO).unwrap();
        }
    }
    client.send(b"the end");
    let is_whole = |client: &Client| {
        let (sent, received) = (sent.borrow(), &client.received);
        received.len() == sent.len() && received.windows(7).rev().any(|part| part == b"the end")
    };
    client.until(&mut reactor, is_whole);
    assert!(client.received == *sent.borrow() && client.error.is_none());
}

fn close_notify_is_told_from_truncation(build: Build) {
    let mut reactor = build().build().unwrap();
    let address_of = |reactor: &mut _, log: &Log| serve(reactor, localhost().build().unwrap(), log);
    let log = Log::default();
    let address = address_of(&mut reactor, &log);
    let mut client = Client::new(address, both(), "localhost");
    client.send(b"x");
    client.until(&mut reactor, |client| client.received == b"x");
    client.tls.send_close_notify();
    client.until(&mut reactor, |client| client.has_ended);
    // The server has answered with its own: rustls would report an unexpected end.
    assert_eq!(client.error, None);
    drop(client);
    until(&mut reactor, || log.closed().is_some());
    let said = log.take();
    assert_eq!(said[2..], [Said::End, Said::Close(DisconnectReason::Closed)]);

    let mut client = Client::new(address, both(), "localhost");
    client.send(b"x");
    client.until(&mut reactor, |client| client.received == b"x");
    client.socket.shutdown(Shutdown::Write).unwrap();
    until(&mut reactor, || log.closed().is_some());
    let truncated = DisconnectReason::Tls(TlsFailure::Truncated);
    assert_eq!(log.take()[2..], [Said::Close(truncated)]);
}

fn sessions_are_resumed(build: Build) {
    for version in [&TLS12, &TLS13] {
        let mut reactor = build().build().unwrap();
        let log = Log::default();
        let acceptor = localhost().build().unwrap();
        let address = serve(&mut reactor, acceptor.clone(), &log);
        let settings = config(None, &[version]);
        for round in 1..=3 {
            let mut client = Client::new(address, settings.clone(), "localhost");
            client.send(b"x");
            client.until(&mut reactor, |client| client.received == b"x");
            assert_eq!(acceptor.handshakes().resumed, round - 1);
        }
        // New keys for tickets.
        acceptor.reload().unwrap();
        let mut client = Client::new(address, settings, "localhost");
        client.send(b"x");
        client.until(&mut reactor, |client| client.received == b"x");
        let counts = acceptor.handshakes();
        assert_eq!((counts.completed, counts.resumed), (4, 2));
    }
}

fn an_old_version_and_an_unknown_protocol_are_rejected(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let acceptor = localhost().minimum_version(MinimumVersion::Tls13).alpn([b"http/1.1"]);
    let acceptor = acceptor.build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    let mut other = config(None, &[&TLS13]);
    other.alpn_protocols = vec![b"h2".to_vec()];
    for (settings, failure) in
        [(config(None, &[&TLS12]), TlsFailure::NoCommonVersion), (other, TlsFailure::NoCommonAlpn)]
    {
        let mut client = Client::new(address, settings, "localhost");
        client.until(&mut reactor, |client| client.error.is_some());
        drop(client);
        until(&mut reactor, || log.closed().is_some());
        assert_eq!(log.take(), [Said::Close(DisconnectReason::Tls(failure))]);
    }
    assert_eq!(acceptor.handshakes().failed, 2);
}

scenarios! {
    an_echo_of_any_length,
    a_message_in_two_records_is_delivered_in_one_piece,
    records_come_one_byte_at_a_time,
    records_of_one_byte_each,
    keys_are_updated_in_both_directions,
    output_of_all_kinds_stays_in_order,
    close_notify_is_told_from_truncation,
    sessions_are_resumed,
    an_old_version_and_an_unknown_protocol_are_rejected,
}
