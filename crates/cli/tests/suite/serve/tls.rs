//! `windlass serve` with TLS: clients by rustls and tungstenite.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::SystemTime,
};

use rustix::process::{Signal, kill_process};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use tungstenite::{Message, WebSocket};
use windlass_testkit::any_certificate::AnyCertificate;

use super::hangup::with_default_hangup;
use crate::harness::{Server, windlass};

pub(crate) type TlsSocket = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/tests/certificates");
    folder.join(name).to_str().expect("it is text").to_owned()
}

/// A folder for files of a test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("it can be made");
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("it is text").to_owned()
    }

    /// Copies a certificate of the tests and its key.
    fn put(&self, name: &str) {
        fs::copy(file(&format!("{name}.pem")), self.path("cert.pem")).expect("it is there");
        fs::copy(file(&format!("{name}.key")), self.path("key.pem")).expect("it is there");
    }

    /// Makes a certificate for `localhost` that is valid until a year begins, and its key.
    fn make(&self, year: i32) {
        let key = rcgen::KeyPair::generate().expect("there is entropy");
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let made = params.self_signed(&key).expect("it can be signed");
        fs::write(self.path("cert.pem"), made.pem()).expect("it can be written");
        fs::write(self.path("key.pem"), key.serialize_pem()).expect("it can be written");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn with_roots() -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(file("ca.pem")).expect("a certificate");
    roots.add(authority).expect("a good one");
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for them")
        .with_root_certificates(roots)
}

fn with_certificate(name: &str) -> ClientConfig {
    let chain = CertificateDer::from_pem_file(file(&format!("{name}.pem"))).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).expect("a key");
    with_roots().with_client_auth_cert(vec![chain], key).expect("the key belongs to it")
}

fn trusting() -> ClientConfig {
    with_roots().with_no_client_auth()
}

/// Accepts every certificate.
fn trusting_all() -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for them")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth()
}

fn connect_as(server: &Server, name: &'static str, config: ClientConfig) -> TlsSocket {
    let name = ServerName::try_from(name).expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("the settings fit");
    StreamOwned::new(client, server.connect())
}

fn websocket(server: &Server, socket: TlsSocket) -> WebSocket<TlsSocket> {
    let url = format!("wss://localhost:{}/echo", server.address.port());
    tungstenite::client(url, socket).expect("it is a WebSocket server").0
}

fn echo(client: &mut WebSocket<TlsSocket>, text: &str) {
    client.send(Message::text(text)).expect("it takes a message");
    assert_eq!(client.read().expect("it answers"), Message::text(text));
}

/// Arguments with the certificate for `localhost`.
pub(crate) fn with_localhost<'a>(cert: &'a str, key: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--tls-cert", cert, "--tls-key", key], more].concat()
}

fn certificate(client: &TlsSocket) -> Vec<u8> {
    client.conn.peer_certificates().expect("the handshake has ended")[0].to_vec()
}

/// What the program says when it does not start.
fn refusal(arguments: &[&str]) -> String {
    let output = windlass(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat()).output();
    let output = output.expect("the program starts");
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn messages_and_pages_by_tls_with_several_workers() {
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let server = Server::start(&with_localhost(&cert, &key, &["--workers", "2"]));
    let mut clients: Vec<_> =
        (0..4).map(|_| websocket(&server, connect_as(&server, "localhost", trusting()))).collect();
    let long = "x".repeat(100_000);
    for client in &mut clients {
        echo(client, "hello");
        echo(client, &long);
    }
    let mut page = connect_as(&server, "localhost", trusting());
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    page.write_all(request.as_bytes()).expect("it takes a request");
    let mut answer = String::new();
    // `UnexpectedEof` would say that `close_notify` is missing.
    page.read_to_string(&mut answer).expect("the end is no truncation");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("</html>\n"), "{answer}");
    server.stop_cleanly();
}

#[test]
fn a_graceful_shutdown_says_close_and_close_notify() {
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let server = Server::start(&with_localhost(&cert, &key, &["--drain-timeout", "30"]));
    let mut client = websocket(&server, connect_as(&server, "localhost", trusting()));
    echo(&mut client, "hello");
    // A connection in its TLS handshake does not hold it up.
    let _pending = server.connect();
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    let Message::Close(Some(close)) = client.read().expect("it says why") else { panic!() };
    assert_eq!(u16::from(close.code), 1001);
    client.flush().expect("the answer leaves");
    let socket = client.get_mut();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).expect("the end is no truncation");
    assert_eq!(rest, b"");
}

#[test]
fn plain_http_is_told_to_use_https() {
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let server = Server::start(&with_localhost(&cert, &key, &[]));
    let mut client = server.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it takes a request");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(answer.contains("Content-Type: text/plain") && answer.contains("use https://"));
    drop(client);
    let line = server.wait_for_error("refused");
    assert!(line.contains("the client sent plain HTTP to a TLS port"), "{line}");
}

#[test]
fn the_oldest_version_and_client_certificates_are_required() {
    let (cert, key, ca) = (file("localhost.pem"), file("localhost.key"), file("ca.pem"));
    let more = ["--tls-client-ca", &ca, "--tls-min-version", "1.3", "--admin", "127.0.0.1:0"];
    let all = with_localhost(&cert, &key, &more);
    let command = windlass(
        &[&["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"], &all[..]].concat(),
    );
    let server = Server::of_several(command, 2);
    let mut known =
        websocket(&server, connect_as(&server, "localhost", with_certificate("client")));
    echo(&mut known, "hello");
    assert_eq!(known.get_ref().conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    for (config, line) in [
        (trusting(), "the client sent no certificate"),
        (with_certificate("stranger"), "the issuer of the peer's certificate is not trusted"),
    ] {
        let mut client = connect_as(&server, "localhost", config);
        // With TLS 1.3 the client learns it after its own handshake has ended.
        let failed = client.write_all(b"GET").and_then(|()| client.read(&mut [0]).map(|_| ()));
        let failed = failed.expect_err("it is rejected");
        assert_eq!(failed.kind(), ErrorKind::InvalidData, "{failed}");
        drop(client);
        // A line a second, so the second one may be suppressed.
        if line.contains("no certificate") {
            server.wait_for_error(line);
        }
    }
    let old = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("it has ciphers")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    let mut old = connect_as(&server, "localhost", old);
    let failed = old.write_all(b"GET").expect_err("it is rejected");
    assert!(failed.to_string().contains("ProtocolVersion"), "{failed}");
}

#[test]
fn a_hang_up_reloads_the_certificates_for_new_connections() {
    let folder = Folder::new("reload");
    folder.put("localhost");
    let (cert, key) = (folder.path("cert.pem"), folder.path("key.pem"));
    let admin = folder.path("admin");
    // What both workers share counts once.
    let more = ["--admin", &admin, "--drain-timeout", "0", "--workers", "2"];
    let all = with_localhost(&cert, &key, &more);
    let command = windlass(&[&["serve", "--listen", "127.0.0.1:0"], &all[..]].concat());
    let server = Server::of_several(with_default_hangup(command), 2);
    let metric = |sample: &str| {
        let mut client = std::os::unix::net::UnixStream::connect(&admin).expect("it listens");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.write_all(request.as_bytes()).expect("it takes a request");
        let mut text = String::new();
        client.read_to_string(&mut text).expect("it answers");
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {sample} in {text}")).parse::<u64>().expect("a number")
    };
    let mut old = websocket(&server, connect_as(&server, "localhost", trusting()));
    echo(&mut old, "before");
    let first = certificate(old.get_ref());
    let expiry = metric("windlass_tls_certificate_expiry_timestamp_seconds");
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is late").as_secs();
    let hang_up = || kill_process(server.pid(), Signal::HUP).expect("it runs");

    // A broken file changes nothing.
    fs::write(&cert, "-----BEGIN CERTIFICATE-----\nnot base64!\n").expect("it can be written");
    hang_up();
    let line = server.wait_for_error("configuration not reloaded");
    assert!(line.contains("cert.pem: damaged PEM") && line.contains("ERROR"), "{line}");
    let mut still = websocket(&server, connect_as(&server, "localhost", trusting()));
    echo(&mut still, "still");
    assert!(certificate(still.get_ref()) == first);

    folder.make(2040);
    hang_up();
    server.wait_for_error("configuration reloaded");
    let mut new = websocket(&server, connect_as(&server, "localhost", trusting_all()));
    echo(&mut new, "new");
    assert!(certificate(new.get_ref()) != first);
    echo(&mut old, "after");
    assert_eq!(metric("windlass_reloads_total{result=\"success\"}"), 1);
    assert_eq!(metric("windlass_reloads_total{result=\"failure\"}"), 1);
    assert!(expiry > now);
    // The beginning of the year 2040.
    assert_eq!(metric("windlass_tls_certificate_expiry_timestamp_seconds"), 2_208_988_800);
    let version = "windlass_tls_handshakes_total{version=\"1.3\",resumed=\"false\"}";
    assert_eq!(metric(version), 3);
    drop((old, still, new));
    server.stop_cleanly();
}

#[test]
fn several_certificates_are_chosen_by_name() {
    let files = ["localhost.pem", "localhost.key", "example.pem", "example.key"].map(file);
    let [cert, key, other_cert, other_key] = files.each_ref().map(String::as_str);
    let more = ["--tls-cert", other_cert, "--tls-key", other_key, "--host", "any"];
    let server = Server::start(&with_localhost(cert, key, &more));
    let mut certificates = ["localhost", "www.example.org"].map(|name| {
        let mut client = websocket(&server, connect_as(&server, name, trusting()));
        echo(&mut client, name);
        certificate(client.get_ref())
    });
    certificates.sort();
    assert!(certificates[0] != certificates[1]);
    server.stop_cleanly();
}

#[test]
fn a_self_signed_certificate_is_made_for_the_run() {
    let arguments = ["--tls-self-signed", "--host", "trial.example"];
    let listen = ["serve", "--listen", "127.0.0.1:0", "--admin", "https://127.0.0.2:0"];
    let command = windlass(&[&listen[..], &arguments].concat());
    let (server, lines) = Server::with_lines(command, 3);
    let mut client = websocket(&server, connect_as(&server, "localhost", trusting_all()));
    echo(&mut client, "hello");
    let der = certificate(client.get_ref());
    let hex = Sha256::digest(&der).iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>();
    assert_eq!(lines[1], format!("self-signed certificate, SHA-256 {}", hex.join(":")));
    assert!(lines[2].starts_with("listening on https://127.0.0.1:"), "{}", lines[2]);
    // Whoever trusts it explicitly can check its names.
    for name in ["localhost", "127.0.0.1", "127.0.0.2", "::1", "trial.example"] {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(der.clone())).expect("it is a certificate");
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has ciphers for them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = websocket(&server, connect_as(&server, name, config));
        echo(&mut client, name);
    }
}

#[test]
fn raw_bytes_by_tls() {
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let server = Server::start(&with_localhost(&cert, &key, &["--mode", "raw"]));
    let mut client = connect_as(&server, "localhost", trusting());
    client.write_all(b"some bytes").expect("it takes them");
    let mut bytes = [0; 10];
    client.read_exact(&mut bytes).expect("it sends them back");
    assert_eq!(&bytes, b"some bytes");
    drop(client);
    server.stop_cleanly();
}

#[test]
fn wrong_files_and_options_are_named() {
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let other = file("example.key");
    for (arguments, expected) in [
        (&["--tls-cert", &cert][..], "--tls-key 0 times; give one key for each certificate"),
        (&["--tls-key", &key], "--tls-cert was given 0 times and --tls-key 1 times"),
        (&["--tls-cert", &cert, "--tls-key", &other], "the key does not belong to"),
        (&["--tls-cert", "/no/such.pem", "--tls-key", &key], "/no/such.pem: cannot be read: No"),
        (&["--tls-cert", &cert, "--tls-key", &cert], "no private key; it must have a part BEGIN"),
        (&["--tls-client-ca", &cert], "--tls-client-ca needs a certificate of the server"),
        (&["--tls-min-version", "1.3"], "--tls-min-version needs a certificate of the server"),
        (&["--tls-min-version", "1.2"], "--tls-min-version needs a certificate of the server"),
        (&["--tls-self-signed", "--tls-cert", &cert], "cannot be used with '--tls-cert"),
        (&["--tls-self-signed", "--tls-min-version", "1.1"], "[possible values: 1.2, 1.3]"),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn an_expired_certificate_is_warned_about() {
    let folder = Folder::new("expired");
    folder.make(2021);
    let (cert, key) = (folder.path("cert.pem"), folder.path("key.pem"));
    let server = Server::start(&with_localhost(&cert, &key, &[]));
    let line = server.wait_for_error("a certificate has expired");
    assert!(line.contains("WARN") && line.contains("send SIGHUP"), "{line}");
    server.stop_cleanly();
}

/// Runs a program. `None`, with a line that says so, if it is not installed.
fn output(test: &str, command: &mut Command) -> Option<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(done) => {
            Some(String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let line = format!("skipped here: {test}: {program} is not installed\n");
            std::io::stderr().write_all(line.as_bytes()).expect("there is a standard error");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

#[test]
fn curl_gets_the_page() {
    let (cert, key, ca) = (file("localhost.pem"), file("localhost.key"), file("ca.pem"));
    let server = Server::start(&with_localhost(&cert, &key, &[]));
    let url = format!("https://localhost:{}/", server.address.port());
    let resolve = format!("localhost:{}:127.0.0.1", server.address.port());
    let mut curl = Command::new("curl");
    curl.args(["--noproxy", "*", "--silent", "--show-error", "--cacert", &ca, "--include"]);
    let Some(said) = output("curl_gets_the_page", curl.args(["--resolve", &resolve, &url])) else {
        return;
    };
    assert!(said.contains(" 200 ") && said.contains("<title>"), "{said}");
    server.stop_cleanly();
}

#[test]
fn openssl_speaks_both_versions() {
    let (cert, key, ca) = (file("localhost.pem"), file("localhost.key"), file("ca.pem"));
    let server = Server::start(&with_localhost(&cert, &key, &[]));
    let address = server.address.to_string();
    for (version, named) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &address, "-CAfile", &ca, "-brief", version]);
        openssl.args(["-servername", "localhost", "-alpn", "http/1.1", "-verify_return_error"]);
        let Some(said) = output("openssl_speaks_both_versions", &mut openssl) else { return };
        assert!(said.contains(named) && said.contains("Verification: OK"), "{said}");
    }
    server.stop_cleanly();
}

/// A WebSocket by the standard library of Python.
const PYTHON: &str = "
import socket, ssl, sys
port, roots = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=roots)
context.set_alpn_protocols(['http/1.1'])
plain = socket.create_connection(('127.0.0.1', port))
client = context.wrap_socket(plain, server_hostname='localhost')
client.sendall(b'GET /echo HTTP/1.1\\r\\nHost: localhost\\r\\nUpgrade: websocket\\r\\n'
    b'Connection: Upgrade\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n'
    b'Sec-WebSocket-Version: 13\\r\\n\\r\\n'
    b'\\x81\\x85\\0\\0\\0\\0hello\\x88\\x82\\0\\0\\0\\0\\x03\\xe8')
received = b''
while part := client.recv(65536):
    received += part
head, frames = received.split(b'\\r\\n\\r\\n', 1)
assert head.startswith(b'HTTP/1.1 101 '), head
assert frames == b'\\x81\\x05hello\\x88\\x02\\x03\\xe8', frames
print(client.version(), client.selected_alpn_protocol())
";

#[test]
fn python_opens_a_websocket() {
    let (cert, key, ca) = (file("localhost.pem"), file("localhost.key"), file("ca.pem"));
    let server = Server::start(&with_localhost(&cert, &key, &[]));
    let port = server.address.port().to_string();
    let mut python = Command::new("python3");
    let Some(said) = output("python_opens_a_websocket", python.args(["-c", PYTHON, &port, &ca]))
    else {
        return;
    };
    assert_eq!(said, "TLSv1.3 http/1.1\n");
    server.stop_cleanly();
}

/// A WebSocket by crypto/tls of Go, by both versions, each with a resumed session.
const GO: &str = r#"
package main
import ("bytes"; "crypto/tls"; "crypto/x509"; "fmt"; "io"; "net/http"; "os")
func check(err error) { if err != nil { panic(err) } }
func main() {
    roots := x509.NewCertPool()
    pem, err := os.ReadFile(os.Args[2])
    check(err)
    if !roots.AppendCertsFromPEM(pem) { panic("no authority") }
    for _, version := range []uint16{tls.VersionTLS13, tls.VersionTLS12} {
        config := &tls.Config{RootCAs: roots, ServerName: "localhost", MaxVersion: version,
            NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
        for round := 0; round < 2; round++ {
            conn, err := tls.Dial("tcp", os.Args[1], config)
            check(err)
            request := "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n" +
                "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
                "Sec-WebSocket-Version: 13\r\n\r\n" +
                "\x81\x85\x00\x00\x00\x00hello\x88\x82\x00\x00\x00\x00\x03\xe8"
            _, err = io.WriteString(conn, request)
            check(err)
            // An end without close_notify is an error.
            received, err := io.ReadAll(conn)
            check(err)
            _, frames, _ := bytes.Cut(received, []byte("\r\n\r\n"))
            if string(frames) != "\x81\x05hello\x88\x02\x03\xe8" { panic(string(received)) }
            state := conn.ConnectionState()
            check(conn.Close())
            fmt.Println(tls.VersionName(state.Version), state.NegotiatedProtocol, state.DidResume)
        }
    }
    client := &http.Client{Transport: &http.Transport{
        TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}}
    response, err := client.Get("https://" + os.Args[1] + "/")
    check(err)
    page, err := io.ReadAll(response.Body)
    check(err)
    fmt.Println(response.StatusCode, bytes.Contains(page, []byte("<title>")))
}
"#;

#[test]
#[ignore = "compiles a program for some ten seconds: run it with --ignored"]
fn go_opens_websockets_by_both_versions() {
    let (cert, key, ca) = (file("localhost.pem"), file("localhost.key"), file("ca.pem"));
    let server = Server::start(&with_localhost(&cert, &key, &[]));
    let folder = Folder::new("go");
    let program = folder.path("client.go");
    fs::write(&program, GO).expect("it can be written");
    let mut go = Command::new("go");
    go.args(["run", &program, &server.address.to_string(), &ca]);
    let Some(said) = output("go_opens_websockets_by_both_versions", &mut go) else { return };
    let expected = "TLS 1.3 http/1.1 false\nTLS 1.3 http/1.1 true\n\
        TLS 1.2 http/1.1 false\nTLS 1.2 http/1.1 true\n200 true\n";
    assert_eq!(said, expected);
    server.stop_cleanly();
}
