//! Early data (RFC 8446 section 2.3) is off. A client that sends it all the same, with a ticket of
//! another server, is told so in the handshake, and sends its data again.

use std::{io::Write as _, sync::Arc};

use rustls::{
    ClientConfig, ClientConnection, ServerConfig, ServerConnection,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    version::TLS13,
};
use windlass::{
    Reactor,
    stream::{DisconnectReason, TlsFailure},
};

use crate::{
    Build,
    bed::{Client, Log, Said, config, file, localhost, serve, until},
};

/// The settings of a client that may send early data.
fn eager() -> ClientConfig {
    let mut settings = config(None, &[&TLS13]);
    settings.enable_early_data = true;
    settings
}

/// Another server for the same name, which accepts early data and gives tickets that say so.
fn other_server() -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(file("localhost.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("localhost.key")).unwrap();
    let mut settings = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    settings.max_early_data_size = 1 << 20;
    Arc::new(settings)
}

/// Gets tickets of another server, in memory.
fn get_tickets(settings: &ClientConfig, server: &Arc<ServerConfig>) {
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(settings.clone()), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    while client.wants_write() || server.wants_write() {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        server.read_tls(&mut &to_server[..]).unwrap();
        server.process_new_packets().unwrap();
        while server.wants_write() {
            server.write_tls(&mut to_client).unwrap();
        }
        client.read_tls(&mut &to_client[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
}

/// A client that has sent early data in these records.
fn early(settings: &ClientConfig, address: std::net::SocketAddr, records: &[usize]) -> Client {
    let mut client = Client::new(address, settings.clone(), "localhost");
    for len in records {
        let mut early = client.tls.early_data().expect("it has a ticket for early data");
        early.write_all(&vec![b'e'; *len]).unwrap();
        client.queue();
    }
    client
}

fn run(reactor: &mut Reactor, log: &Log, mut client: Client) {
    client.until(reactor, |client| !client.tls.is_handshaking());
    assert!(!client.tls.is_early_data_accepted());
    client.send(b"again");
    client.until(reactor, |client| client.received == b"again");
    drop(client);
    until(reactor, || log.closed().is_some());
    let mut said = log.take();
    said.pop();
    let is_full = matches!(said[0], Said::Open(.., false));
    assert!(is_full && said[1..] == [Said::Data(b"again".to_vec())], "{said:?}");
}

fn tickets_do_not_invite_early_data(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let acceptor = localhost().build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    let settings = eager();
    for resumed in [false, true] {
        let mut client = Client::new(address, settings.clone(), "localhost");
        assert!(client.tls.early_data().is_none());
        client.send(b"x");
        client.until(&mut reactor, |client| client.received == b"x");
        assert_eq!(acceptor.handshakes().resumed, u64::from(resumed));
    }
}

fn rejected_early_data_is_skipped_and_sent_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let acceptor = localhost().build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    let (settings, other) = (eager(), other_server());
    // A record is counted when it comes, and again with each later one, up to 16 KiB.
    for records in [&[1][..], &[8_000], &[500; 3], &[200; 10]] {
        get_tickets(&settings, &other);
        run(&mut reactor, &log, early(&settings, address, records));
        // In pieces.
        get_tickets(&settings, &other);
        let mut client = early(&settings, address, records);
        client.step = 100;
        run(&mut reactor, &log, client);
    }
    let counts = acceptor.handshakes();
    assert_eq!((counts.completed, counts.resumed, counts.failed), (8, 0, 0));
    assert_eq!(reactor.stream_memory(), 0);
}

fn too_much_rejected_early_data_ends_the_handshake(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let acceptor = localhost().build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    let (settings, other) = (eager(), other_server());
    for (round, records) in [&[8_300][..], &[16_384], &[300; 10], &[16_384; 8]].iter().enumerate() {
        get_tickets(&settings, &other);
        let mut client = early(&settings, address, records);
        client.until(&mut reactor, |client| client.error.is_some() || client.has_ended);
        drop(client);
        until(&mut reactor, || log.closed().is_some());
        let reason = DisconnectReason::Tls(TlsFailure::DecryptionFailed);
        assert_eq!(log.take(), [Said::Close(reason)], "{records:?}");
        assert_eq!(acceptor.handshakes().failed, round as u64 + 1);
        assert_eq!(reactor.stream_memory(), 0);
    }
    // As RFC 8446 section 4.2.10 says, the client connects again without.
    let mut client = Client::new(address, config(None, &[&TLS13]), "localhost");
    client.send(b"x");
    client.until(&mut reactor, |client| client.received == b"x");
}

scenarios! {
    tickets_do_not_invite_early_data,
    rejected_early_data_is_skipped_and_sent_again,
    too_much_rejected_early_data_ends_the_handshake,
}
