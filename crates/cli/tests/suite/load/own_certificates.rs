//! `windlass load --cacert` with a server's own certificate that is also an authority, made in
//! several ways, good and bad.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use super::runs::{Loaded, load};
use crate::harness::{Server, windlass};

/// A certificate with its key, in a folder of its own.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let name = format!("own-{name}-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("it can be made");
        Self(folder)
    }

    /// Makes an authority with the name `localhost`, valid from the beginning of a year to that of
    /// another.
    fn valid(from: i32, until: i32) -> Self {
        let files = Self::new(&format!("{from}-{until}"));
        let key = rcgen::KeyPair::generate().expect("there is entropy");
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let made = params.self_signed(&key).expect("it can be signed");
        fs::write(files.certificate(), made.pem()).expect("it can be written");
        fs::write(files.key(), key.serialize_pem()).expect("it can be written");
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("it is text").to_owned()
    }

    fn certificate(&self) -> String {
        self.path("cert.pem")
    }

    fn key(&self) -> String {
        self.path("key.pem")
    }

    /// Starts a server with this certificate.
    fn serve(&self) -> Server {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--mode", "echo"];
        let (certificate, key) = (self.certificate(), self.key());
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        Server::of(windlass(&[&listen[..], &tls].concat()))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What is left is in the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Sends four messages to the server, by its name `localhost`.
fn load_at(server: &Server, options: &[&str]) -> Loaded {
    let url = format!("wss://{}/", server.address);
    let has_name = options.contains(&"--server-name");
    let name: &[&str] = if has_name { &[] } else { &["--server-name", "localhost"] };
    load(&[&[&*url, "--connections", "1", "--messages", "4"], name, options].concat())
}

#[test]
fn the_dates_of_a_given_certificate_are_verified() {
    for (from, until, fault) in [
        (2020, 2120, None),
        (2020, 2021, Some("the server's certificate has expired; renew it")),
        (2119, 2120, Some("the server's certificate is not valid yet; check the clock")),
    ] {
        let files = Files::valid(from, until);
        let server = files.serve();
        let loaded = load_at(&server, &["--cacert", &files.certificate()]);
        match fault {
            None => assert_eq!(loaded.expect_clean().verified(), 4),
            Some(words) => _ = loaded.expect_fault("tls", words),
        }
        let loaded = load_at(&server, &["--insecure"]);
        assert_eq!(loaded.expect_clean().json()["tls"]["is_verified"], false);
        server.stop_cleanly();
    }
}

#[test]
fn another_certificate_with_the_same_names_is_not_the_given_one() {
    let (files, impostor) = (Files::valid(2020, 2119), Files::valid(2021, 2119));
    let server = impostor.serve();
    let words = "the server's own certificate is that of an authority";
    load_at(&server, &["--cacert", &files.certificate()]).expect_fault("tls", words);
    server.stop_cleanly();
}

#[test]
fn a_certificate_by_openssl_is_trusted_for_its_name() {
    let files = Files::new("openssl");
    let (certificate, key) = (files.certificate(), files.key());
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost", "-out", &certificate]);
    match openssl.args(["-keyout", &key]).output() {
        Ok(made) => assert!(made.status.success(), "{made:?}"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let test = "a_certificate_by_openssl_is_trusted_for_its_name";
            let line = format!("skipped here: {test}: openssl is not installed\n");
            return std::io::stderr().write_all(line.as_bytes()).expect("it can be written");
        }
        Err(error) => panic!("openssl: {error}"),
    }
    let server = files.serve();
    let given = ["--cacert", &certificate];
    assert_eq!(load_at(&server, &given).expect_clean().verified(), 4);
    load_at(&server, &[&given[..], &["--server-name", "example.org"]].concat())
        .expect_fault("tls", "not valid for `example.org`");
    server.stop_cleanly();
}
