//! Peers that have completed the handshake, or not yet, and then send records that cost the server
//! something.

use rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion,
    crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage},
    version::{TLS12, TLS13},
};
use windlass::{
    Reactor,
    stream::{DisconnectReason, TlsFailure},
};

use crate::{
    Build,
    bed::{Client, Log, Said, config, localhost, serve, serve_with, until},
};

/// A client that has completed its handshake by rustls, and then makes records of its own.
struct Forger {
    encrypter: Box<dyn MessageEncrypter>,
    number: u64,
}

impl Forger {
    /// Takes the keys of a client. Its socket stays.
    fn new(client: &mut Client, reactor: &mut Reactor, log: &Log) -> Self {
        client.until(reactor, |client| !client.tls.is_handshaking() && log.is_open());
        client.until(reactor, Client::is_sent);
        let tls = client.forge();
        let suite = tls.negotiated_cipher_suite().unwrap().tls13().unwrap();
        let (number, secrets) = tls.dangerous_extract_secrets().unwrap().tx;
        let (ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
        else {
            panic!("another suite");
        };
        Self { encrypter: suite.aead_alg.encrypter(key, iv), number }
    }

    fn record(&mut self, typ: ContentType, content: &[u8]) -> Vec<u8> {
        let payload = OutboundChunks::Single(content);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        self.number += 1;
        self.encrypter.encrypt(message, self.number - 1).unwrap().encode()
    }
}

fn forgeable() -> rustls::ClientConfig {
    let mut settings = config(None, &[&TLS13]);
    settings.enable_secret_extraction = true;
    settings
}

/// Sends the records until the server ends the connection. Returns the most memory that the stream
/// has held meanwhile, and the reason of the end.
fn flood(
    reactor: &mut Reactor,
    client: &mut Client,
    log: &Log,
    mut next: impl FnMut() -> Vec<u8>,
) -> (usize, DisconnectReason) {
    let mut most = 0;
    for _ in 0..4000 {
        client.inject(&next());
        client.pump_socket();
        reactor.run_once(std::time::Duration::from_millis(1)).unwrap();
        most = most.max(reactor.stream_memory());
        if let Some(reason) = log.closed() {
            return (most, reason);
        }
        if client.has_ended {
            break;
        }
    }
    client.hang_up();
    until(reactor, || log.closed().is_some());
    (most, log.closed().unwrap())
}

fn a_cut_message_after_the_handshake_is_bounded_and_counted(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut client = Client::new(address, forgeable(), "localhost");
    let mut forger = Forger::new(&mut client, &mut reactor, &log);
    let idle = reactor.stream_memory();
    // A message of 60,000 bytes that never ends.
    client.inject(&forger.record(ContentType::Handshake, &[24, 0, 0xea, 0x60, 0]));
    client.inject(&forger.record(ContentType::Handshake, &[0; 4000]));
    until(&mut reactor, || {
        client.pump_socket();
        true
    });
    for _ in 0..200 {
        reactor.run_once(std::time::Duration::from_millis(1)).unwrap();
        if reactor.stream_memory() >= idle + 4000 {
            break;
        }
    }
    assert!(reactor.stream_memory() >= idle + 4000, "{}", reactor.stream_memory());
    let next = || forger.record(ContentType::Handshake, &[0; 1000]);
    let (most, reason) = flood(&mut reactor, &mut client, &log, next);
    assert_eq!(reason, DisconnectReason::Tls(TlsFailure::HandshakeTooLong));
    assert!(most < 40 << 10, "{most}");
}

/// Each forged record, repeated, and what the server makes of it.
fn floods_of_records_end_the_session(build: Build) {
    let violation = TlsFailure::ProtocolViolation;
    for (typ, content, failure) in [
        (ContentType::ApplicationData, &[][..], violation),
        (ContentType::Handshake, &[], violation),
        // `user_canceled`, which alone is only a warning.
        (ContentType::Alert, &[1, 90], violation),
        (ContentType::Alert, &[2, 40], TlsFailure::AlertReceived(40)),
        (ContentType::Alert, &[1], violation),
        (ContentType::ChangeCipherSpec, &[1], violation),
        (ContentType::Heartbeat, &[1, 0, 3, 1, 2, 3], violation),
        (ContentType::Unknown(99), &[1], violation),
        // A key update that is none, and a ClientHello in place of one.
        (ContentType::Handshake, &[24, 0, 0, 1, 7], violation),
        (ContentType::Handshake, &[1, 0, 0, 2, 3, 3], violation),
        // A message that is cut by data.
        (ContentType::Handshake, &[24, 0], violation),
    ] {
        let mut reactor = build().build().unwrap();
        let log = Log::default();
        let address = serve(&mut reactor, localhost().build().unwrap(), &log);
        let mut client = Client::new(address, forgeable(), "localhost");
        let mut forger = Forger::new(&mut client, &mut reactor, &log);
        let mut count = 0;
        let (most, reason) = flood(&mut reactor, &mut client, &log, || {
            count += 1;
            if count > 1 && content == [24, 0] {
                return forger.record(ContentType::ApplicationData, b"x");
            }
            forger.record(typ, content)
        });
        assert_eq!(reason, DisconnectReason::Tls(failure), "{typ:?} {content:?}");
        assert!(most < 40 << 10 && count < 200, "{typ:?} {content:?}: {most}, {count}");
        assert_eq!(log.data(), b"");
    }
}

fn a_forged_record_is_rejected(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut client = Client::new(address, forgeable(), "localhost");
    let mut forger = Forger::new(&mut client, &mut reactor, &log);
    let mut good = forger.record(ContentType::ApplicationData, b"good");
    let mut bad = forger.record(ContentType::ApplicationData, b"bad");
    *bad.last_mut().unwrap() ^= 1;
    good.extend(bad);
    good.extend(forger.record(ContentType::ApplicationData, b"never"));
    client.inject(&good);
    until(&mut reactor, || {
        client.pump_socket();
        log.closed().is_some()
    });
    let said = log.take();
    let reason = DisconnectReason::Tls(TlsFailure::DecryptionFailed);
    assert_eq!(said[1..], [Said::Data(b"good".to_vec()), Said::Close(reason)]);
}

fn a_flood_of_key_updates_is_bounded(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut client = Client::new(address, config(None, &[&TLS13]), "localhost");
    client.until(&mut reactor, |client| !client.tls.is_handshaking() && log.is_open());
    // With data between them they may go on.
    for round in 1..=100 {
        client.tls.refresh_traffic_keys().unwrap();
        client.send(b"x");
        client.until(&mut reactor, |client| client.received.len() == round);
    }
    for _ in 0..100 {
        client.tls.refresh_traffic_keys().unwrap();
    }
    client.until(&mut reactor, |client| client.has_ended || client.error.is_some());
    assert!(reactor.stream_memory() < 40 << 10, "{}", reactor.stream_memory());
    drop(client);
    until(&mut reactor, || log.closed().is_some());
    let reason = DisconnectReason::Tls(TlsFailure::ProtocolViolation);
    assert_eq!(log.closed(), Some(reason));
}

/// Each asks for an answer. A server that answered each at once would keep the answers.
fn key_updates_of_a_peer_that_never_reads_cost_nothing(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve_with(&mut reactor, localhost().build().unwrap(), &log, false);
    let mut client = Client::new(address, config(None, &[&TLS13]), "localhost");
    client.until(&mut reactor, |client| !client.tls.is_handshaking() && log.is_open());
    log.take();
    let mut most = 0;
    for _ in 0..1000 {
        client.tls.refresh_traffic_keys().unwrap();
        client.send(b"x");
        client.queue();
        until(&mut reactor, || {
            client.push_socket();
            log.data() == b"x"
        });
        log.take();
        most = most.max(reactor.stream_memory());
    }
    assert!(most < 1000 && log.closed().is_none(), "{most}");
}

/// Plain records behind the ClientHello, where the server waits for encrypted ones.
fn floods_in_the_handshake_end_it(build: Build) {
    for versions in [&[&TLS12], &[&TLS13]] {
        for record in [
            &[20, 3, 3, 0, 1, 1][..],
            &[21, 3, 3, 0, 2, 1, 90],
            &[22, 3, 3, 0, 0],
            &[23, 3, 3, 0, 1, 0],
            &[23, 3, 3, 0, 0],
        ] {
            let mut reactor = build().build().unwrap();
            let log = Log::default();
            let address = serve(&mut reactor, localhost().build().unwrap(), &log);
            let mut client = Client::new(address, config(None, versions), "localhost");
            client.queue();
            let mut count = 0;
            let (most, reason) = flood(&mut reactor, &mut client, &log, || {
                count += 1;
                record.to_vec()
            });
            // The end of the client would be this one.
            let by_client = DisconnectReason::Tls(TlsFailure::HandshakeIncomplete);
            let is_ended = matches!(reason, DisconnectReason::Tls(_)) && reason != by_client;
            assert!(is_ended && count < 200, "{versions:?} {record:?}: {reason:?}, {count}");
            assert!(!log.is_open() && most < 90 << 10, "{record:?}: {most}");
        }
    }
}

scenarios! {
    a_cut_message_after_the_handshake_is_bounded_and_counted,
    floods_of_records_end_the_session,
    a_forged_record_is_rejected,
    a_flood_of_key_updates_is_bounded,
    key_updates_of_a_peer_that_never_reads_cost_nothing,
    floods_in_the_handshake_end_it,
}
