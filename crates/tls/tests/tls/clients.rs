//! Sessions of clients.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::Arc,
    thread,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use windlass::stream::{Connector, DisconnectReason, TlsFailure, TlsPhase, TlsSessionFactory as _};
use windlass_tls::{TlsConfigError, TlsConnector, TlsConnectorBuilder};

use crate::{
    Build,
    bed::{Log, Noting, Said, file, localhost, serve, until},
};

fn trusting() -> TlsConnectorBuilder {
    TlsConnector::builder().roots(file("ca.pem"))
}

fn a_client_and_a_server_talk(build: Build) {
    let mut reactor = build().build().unwrap();
    let (server, client) = (Log::default(), Log::default());
    let acceptor = localhost().alpn([b"a", b"b"]).require_client_certificates(file("ca.pem"));
    let address = serve(&mut reactor, acceptor.build().unwrap(), &server);
    let tls = trusting().alpn([b"b"]).certificate(file("client.pem"), file("client.key"));
    let tls = tls.build().unwrap();
    for round in 0..2 {
        let greeting = vec![5; 200_000];
        let handler = Noting { log: client.clone(), greeting: greeting.clone(), echoes: false };
        let target = Arc::new(tls.to("localhost").unwrap());
        let connector = Connector::tcp(address).with_tls(target);
        let key = connector.connect(handler, &mut reactor).unwrap();
        until(&mut reactor, || client.data().len() == greeting.len());
        assert!(client.data() == greeting);
        let open = |name: Option<&str>, subject: &str| {
            let name = name.map(Into::into);
            let subject = Some(subject.into());
            Said::Open(Some(b"b".to_vec()), name, subject, Some("TLSv1.3"), round == 1)
        };
        assert_eq!(client.take()[0], open(None, "CN=localhost"));
        let subject = "CN=client 1,O=Windlass\\, tests";
        assert_eq!(server.take()[0], open(Some("localhost"), subject));
        reactor.stream(key).unwrap().close();
        until(&mut reactor, || client.closed().is_some() && server.closed().is_some());
        assert_eq!(server.take().last(), Some(&Said::Close(DisconnectReason::Closed)));
        client.take();
    }
    assert_eq!(tls.handshakes().resumed, 1);
}

fn a_server_is_checked_unless_it_need_not_be(build: Build) {
    let mut reactor = build().build().unwrap();
    let (server, client) = (Log::default(), Log::default());
    let address = serve(&mut reactor, localhost().build().unwrap(), &server);
    let other = TlsConnector::builder().roots(file("other-ca.pem"));
    for (tls, name, failure, alert) in [
        (trusting(), "example.org", TlsFailure::CertificateForOtherName, 42),
        (other, "localhost", TlsFailure::UnknownIssuer, 48),
    ] {
        let target = tls.build().unwrap().to(name).unwrap();
        let handler = Noting { log: client.clone(), ..Noting::default() };
        let connector = Connector::tcp(address).with_tls(Arc::new(target));
        connector.connect(handler, &mut reactor).unwrap();
        until(&mut reactor, || client.closed().is_some() && server.closed().is_some());
        assert_eq!(client.take(), [Said::Close(DisconnectReason::Tls(failure))]);
        let told = TlsFailure::AlertReceived(alert);
        assert_eq!(server.take(), [Said::Close(DisconnectReason::Tls(told))]);
    }
    let target = TlsConnector::builder().insecure().build().unwrap().to("anything").unwrap();
    let handler = Noting { log: client.clone(), greeting: b"hi".to_vec(), echoes: false };
    Connector::tcp(address).with_tls(Arc::new(target)).connect(handler, &mut reactor).unwrap();
    until(&mut reactor, || client.data() == b"hi");
}

/// A server whose handshake messages are cut into many records.
fn server_config() -> ServerConfig {
    let chain = vec![CertificateDer::from_pem_file(file("localhost.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("localhost.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.max_fragment_size = Some(33);
    config.send_tls13_tickets = 4;
    config
}

/// The tickets of this server are cut into many records. rustls remembers places in them, also
/// while something is sent.
fn a_client_sends_while_it_has_half_a_message(build: Build) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = server_config();
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).unwrap();
        }
        // Each record on its own, with an answer of the client between them.
        let mut tickets = Vec::new();
        tls.refresh_traffic_keys().unwrap();
        while tls.wants_write() {
            tls.write_tls(&mut tickets).unwrap();
        }
        for byte in tickets {
            socket.write_all(&[byte]).unwrap();
        }
        let mut stream = StreamOwned::new(tls, socket);
        stream.write_all(b"done").unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"sent");
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    });
    let mut reactor = build().build().unwrap();
    let client = Log::default();
    let target = trusting().build().unwrap().to("localhost").unwrap();
    let handler = Noting { log: client.clone(), greeting: b"sent".to_vec(), echoes: false };
    Connector::tcp(address).with_tls(Arc::new(target)).connect(handler, &mut reactor).unwrap();
    until(&mut reactor, || client.closed().is_some());
    assert_eq!(client.data(), b"done");
    server.join().unwrap();
}

/// The same between any two records. rustls panics if it is not given what it refers to.
#[test]
fn a_session_encrypts_between_the_records_of_one_message() {
    let mut server = ServerConnection::new(Arc::new(server_config())).unwrap();
    let target = trusting().build().unwrap().to("localhost").unwrap();
    let mut client = target.new_session();
    let (mut to_server, mut from_server) = (Vec::new(), Vec::new());
    let (mut is_open, mut between) = (false, 0);
    client.decrypt(&mut [], &mut to_server);
    for _ in 0..20 {
        server.read_tls(&mut &to_server[..]).unwrap();
        server.process_new_packets().unwrap();
        to_server.clear();
        while server.wants_write() {
            server.write_tls(&mut from_server).unwrap();
        }
        while from_server.len() >= 5 {
            let len = 5 + usize::from(u16::from_be_bytes([from_server[3], from_server[4]]));
            let mut record: Vec<u8> = from_server.drain(..len).collect();
            let done = client.decrypt(&mut record, &mut to_server);
            assert_eq!(done.consumed, len);
            is_open |= done.phase == TlsPhase::Open;
            if is_open {
                client.encrypt(b"x", &mut to_server).unwrap();
                between += 1;
            }
        }
    }
    assert!(between > 8, "{between}: the tickets come in many records");
    let mut received = Vec::new();
    let _ = server.reader().read_to_end(&mut received);
    assert_eq!(received, vec![b'x'; between]);
}

#[test]
fn a_bad_server_name_is_an_error() {
    let tls = TlsConnector::builder().insecure().build().unwrap();
    assert!(
        matches!(tls.to("no name"), Err(TlsConfigError::BadServerName(name)) if name == "no name")
    );
    tls.to("127.0.0.1").unwrap();
}

scenarios! {
    a_client_and_a_server_talk,
    a_server_is_checked_unless_it_need_not_be,
    a_client_sends_while_it_has_half_a_message,
}
