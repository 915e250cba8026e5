//! Certificates: by name, of clients, and reloaded.

use std::{fs, path::PathBuf, time::SystemTime};

use windlass::stream::{DisconnectReason, TlsFailure, TlsSessionFactory as _};
use windlass_tls::{TlsAcceptor, TlsConfigError};

use crate::{
    Build,
    bed::{Client, Log, Said, both, config, file, localhost, serve, until},
};

/// The certificate that a client gets, by its last bytes.
fn certificate(client: &Client) -> Vec<u8> {
    client.tls.peer_certificates().unwrap()[0].to_vec()
}

fn the_certificate_is_chosen_by_the_server_name(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let acceptor = localhost().certificate(file("example.pem"), file("example.key"));
    let address = serve(&mut reactor, acceptor.clone().build().unwrap(), &log);
    let mut found = Vec::new();
    for name in ["localhost", "example.org", "www.example.org"] {
        let mut client = Client::new(address, both(), name);
        client.until(&mut reactor, |client| !client.tls.is_handshaking());
        found.push(certificate(&client));
    }
    assert!(found[0] != found[1] && found[1] == found[2]);

    // An unknown name gets the first one, unless it is rejected.
    let mut client = Client::new(address, both(), "example.net");
    client.until(&mut reactor, |client| client.error.is_some());
    assert!(matches!(client.error, Some(rustls::Error::InvalidCertificate(_))));
    let strict = acceptor.reject_unknown_names(true).build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, strict, &log);
    let mut client = Client::new(address, both(), "example.net");
    client.until(&mut reactor, |client| client.error.is_some());
    assert!(matches!(client.error, Some(rustls::Error::AlertReceived(_))), "{:?}", client.error);
    drop(client);
    until(&mut reactor, || log.closed().is_some());
    let reason = DisconnectReason::Tls(TlsFailure::UnknownName);
    assert_eq!(log.closed(), Some(reason));
}

fn clients_prove_who_they_are(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let required = localhost().require_client_certificates(file("ca.pem")).build().unwrap();
    let address = serve(&mut reactor, required, &log);
    for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
        for (name, failure) in
            [(None, TlsFailure::CertificateRequired), (Some("stranger"), TlsFailure::UnknownIssuer)]
        {
            let mut client = Client::new(address, config(name, versions), "localhost");
            client.until(&mut reactor, |client| client.error.is_some());
            drop(client);
            until(&mut reactor, || log.closed().is_some());
            assert_eq!(log.take(), [Said::Close(DisconnectReason::Tls(failure))]);
        }
        let mut client = Client::new(address, config(Some("client"), versions), "localhost");
        client.send(b"x");
        client.until(&mut reactor, |client| client.received == b"x");
        let said = log.take();
        let Said::Open(_, _, subject, ..) = &said[0] else { panic!("{said:?}") };
        assert_eq!(subject.as_deref(), Some("CN=client 1,O=Windlass\\, tests"));
        drop(client);
        until(&mut reactor, || log.closed().is_some());
        log.take();
    }
    let requested = localhost().request_client_certificates(file("ca.pem")).build().unwrap();
    let address = serve(&mut reactor, requested, &log);
    let mut client = Client::new(address, both(), "localhost");
    client.send(b"x");
    client.until(&mut reactor, |client| client.received == b"x");
    assert!(matches!(&log.take()[0], Said::Open(_, _, None, ..)));
}

fn certificates_come_from_memory_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let read = |name| fs::read(file(name)).unwrap();
    let builder = TlsAcceptor::builder();
    let acceptor = builder.certificate_pem(read("localhost.pem"), read("localhost.key"));
    let shown = format!("{acceptor:?}");
    assert!(shown.contains("PEM in memory") && shown.len() < 400, "{shown}");
    let acceptor = acceptor.build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    for _ in 0..2 {
        let mut client = Client::new(address, both(), "localhost");
        client.send(b"x");
        client.until(&mut reactor, |client| client.received == b"x");
        acceptor.reload().unwrap();
    }
    let error = TlsAcceptor::builder().certificate_pem("", "").build().unwrap_err();
    assert!(error.to_string().starts_with("PEM in memory: no certificate;"), "{error}");
}

/// Handshakes that have begun end with what they began with.
fn a_reload_leaves_the_handshakes_that_are_under_way(build: Build) {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut reactor = build().build().unwrap();
        let log = Log::default();
        let folder = Folder::new(&format!("under-way-{:?}", std::thread::current().id()));
        folder.put("localhost");
        let files = (folder.0.join("cert.pem"), folder.0.join("key.pem"));
        let acceptor = TlsAcceptor::builder().certificate(files.0, files.1).build().unwrap();
        let address = serve(&mut reactor, acceptor.clone(), &log);
        // Each sends a part of its flight before the reload, and the rest after it.
        let mut clients = Vec::new();
        for step in [1, 50, 150, 1000] {
            let mut client = Client::new(address, config(None, &[version]), "localhost");
            client.step = step;
            client.pump();
            clients.push(client);
        }
        let begun = clients.len() as u64;
        until(&mut reactor, || acceptor.handshakes().started == begun);
        folder.put("example");
        acceptor.reload().unwrap();
        for client in &mut clients {
            client.step = usize::MAX;
            client.send(b"x");
            client.until(&mut reactor, |client| client.received == b"x");
        }
        assert_eq!(acceptor.handshakes().completed, begun);
    }
}

/// A folder of its own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = name.replace(['(', ')'], "");
        let path = std::env::temp_dir().join(format!("windlass-tls-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn put(&self, name: &str) {
        fs::copy(file(&format!("{name}.pem")), self.0.join("cert.pem")).unwrap();
        fs::copy(file(&format!("{name}.key")), self.0.join("key.pem")).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn a_reload_counts_for_new_handshakes_and_a_broken_file_changes_nothing(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let thread = format!("{:?}", std::thread::current().id());
    let folder = Folder::new(&thread.replace(['(', ')'], ""));
    folder.put("localhost");
    let (cert, key) = (folder.0.join("cert.pem"), folder.0.join("key.pem"));
    let acceptor = TlsAcceptor::builder().certificate(&cert, &key).build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    let mut old = Client::new(address, both(), "localhost");
    old.until(&mut reactor, |client| !client.tls.is_handshaking());

    fs::write(&cert, "-----BEGIN CERTIFICATE-----\nnot base64!\n").unwrap();
    assert!(matches!(acceptor.reload(), Err(TlsConfigError::NotPem(path)) if path == cert));
    fs::copy(file("example.pem"), &cert).unwrap();
    let error = acceptor.reload().unwrap_err();
    assert!(error.to_string().contains("does not belong to"), "{error}");
    fs::remove_file(&key).unwrap();
    assert!(matches!(acceptor.reload(), Err(TlsConfigError::Read(path, _)) if path == key));
    let mut still = Client::new(address, both(), "localhost");
    still.until(&mut reactor, |client| !client.tls.is_handshaking());
    assert_eq!(certificate(&still), certificate(&old));

    // What was only prepared changes nothing.
    folder.put("example");
    drop(acceptor.prepare(TlsAcceptor::builder().certificate(&cert, &key)).unwrap());
    let mut yet = Client::new(address, both(), "localhost");
    yet.until(&mut reactor, |client| !client.tls.is_handshaking());
    assert_eq!(certificate(&yet), certificate(&old));
    let status = acceptor.status();
    assert_eq!((status.reloads, status.failed_reloads), (0, 3));

    acceptor.reload().unwrap();
    let status = acceptor.status();
    assert_eq!((status.reloads, status.failed_reloads), (1, 3));
    assert!(status.earliest_expiry > Some(SystemTime::now()));
    let mut new = Client::new(address, both(), "example.org");
    new.until(&mut reactor, |client| !client.tls.is_handshaking());
    assert!(certificate(&new) != certificate(&old));
    old.send(b"still here");
    old.until(&mut reactor, |client| client.received == b"still here");
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let of = |cert: &str, key: &str| {
        let error = TlsAcceptor::builder().certificate(file(cert), file(key)).build().unwrap_err();
        error.to_string()
    };
    assert!(of("localhost.key", "localhost.key").ends_with("a part BEGIN CERTIFICATE"));
    assert!(of("localhost.pem", "localhost.pem").ends_with("a part BEGIN PRIVATE KEY"));
    assert!(of("no.pem", "localhost.key").contains("no.pem: cannot be read: No such file"));
    let none = TlsAcceptor::builder().build().unwrap_err();
    assert_eq!(none.to_string(), "a TLS server needs a certificate and its key");
}

scenarios! {
    the_certificate_is_chosen_by_the_server_name,
    clients_prove_who_they_are,
    certificates_come_from_memory_too,
    a_reload_leaves_the_handshakes_that_are_under_way,
    a_reload_counts_for_new_handshakes_and_a_broken_file_changes_nothing,
}
