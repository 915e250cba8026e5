//! `windlass load wss://`: with servers of other people's libraries, good and bad ones.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tungstenite::{Message, WebSocket};

use super::runs::{Load, Loaded, load};
use crate::harness::{Running, Server, WAIT_MAX, number_before, windlass};

type TlsSocket = StreamOwned<ServerConnection, TcpStream>;

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/tests/certificates");
    folder.join(name).to_str().expect("it is text").to_owned()
}

/// A server with the certificate and the key of this name.
fn config(name: &str) -> Arc<ServerConfig> {
    let pem = |extension: &str| file(&format!("{name}.{extension}"));
    let chain = CertificateDer::from_pem_file(pem("pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(pem("key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for them")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("the key belongs to the certificate");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn tls_server(serve: impl Fn(TlsSocket) + Clone + Send + 'static) -> SocketAddr {
    tls_server_of("localhost", serve)
}

/// Serves each connection in a thread, until the test ends.
fn tls_server_of(name: &str, serve: impl Fn(TlsSocket) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it has an address");
    let config = config(name);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.expect("a client connects");
            socket.set_nodelay(true).expect("it can be set");
            socket.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
            let connection = ServerConnection::new(Arc::clone(&config)).expect("the settings fit");
            let serve = serve.clone();
            thread::spawn(move || serve(StreamOwned::new(connection, socket)));
        }
    });
    address
}

/// A WebSocket server by rustls and tungstenite. `respond` gets each message and its number, and
/// returns false to disconnect without a Close frame.
fn websocket_server(
    respond: impl Fn(&mut WebSocket<TlsSocket>, u64, Message) -> bool + Clone + Send + 'static,
) -> SocketAddr {
    tls_server(move |socket| {
        // A client that rejects the certificate disconnects.
        let Ok(mut websocket) = tungstenite::accept(socket) else { return };
        assert_eq!(websocket.get_ref().conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        let mut number = 0;
        while let Ok(message) = websocket.read() {
            if message.is_text() || message.is_binary() {
                number += 1;
                if !respond(&mut websocket, number, message) {
                    return;
                }
            } else if message.is_close() {
                // Sends the answer.
                let _ = websocket.flush();
                let tls = websocket.get_mut();
                tls.conn.send_close_notify();
                let _ = tls.flush();
                return;
            }
        }
    })
}

fn echo() -> SocketAddr {
    websocket_server(|websocket, _, message| websocket.send(message).is_ok())
}

fn wss(address: SocketAddr) -> String {
    format!("wss://{address}/echo")
}

/// Sends twenty messages over one connection.
fn load_at(url: &str, options: &[&str]) -> Loaded {
    let counts = ["--connections", "1", "--messages", "20", "--depth", "4", "--timeout", "30"];
    load(&[&[url], &counts[..], options].concat())
}

#[test]
fn every_size_and_content_comes_back_over_tls() {
    let (url, ca) = (wss(echo()), file("ca.pem"));
    // A record has at most 16 KiB.
    for size in ["0", "64", "16384", "20000", "300000"] {
        for content in [&[][..], &["--text", "utf8"]] {
            let counts = ["--connections", "3", "--messages", "12", "--depth", "2", "--size", size];
            let loaded = load(&[&[&*url, "--cacert", &ca], &counts[..], content].concat());
            assert_eq!(loaded.expect_clean().verified(), 12, "{size} {content:?}");
            assert_eq!(loaded.number("/tls/handshakes"), 3.0);
            assert_eq!(loaded.json()["tls"]["server_name"], "127.0.0.1");
        }
    }
}

#[test]
fn several_workers_share_the_sessions() {
    let (url, ca) = (wss(echo()), file("ca.pem"));
    let counts = ["--connections", "7", "--workers", "3", "--messages", "210", "--depth", "4"];
    let loaded = load(&[&[&*url, "--cacert", &ca], &counts[..]].concat());
    assert_eq!(loaded.expect_clean().verified(), 210);
    assert_eq!(loaded.number("/tls/handshakes"), 7.0);
}

#[test]
fn the_certificate_is_verified_unless_it_need_not_be() {
    let (url, ca, other) = (wss(echo()), file("ca.pem"), file("other-ca.pem"));
    for options in [
        &["--cacert", &ca][..],
        &["--cacert", &ca, "--server-name", "localhost"],
        &["--insecure"],
        &["--insecure", "--server-name", "example.org"],
    ] {
        assert_eq!(load_at(&url, options).expect_clean().verified(), 20, "{options:?}");
    }
    for (options, words) in [
        (
            &["--cacert", &*other][..],
            "the issuer of the server's certificate is not trusted; name a file with the issuer's \
             certificate by --cacert, or accept any certificate by --insecure",
        ),
        (
            &["--cacert", &ca, "--server-name", "example.org"],
            "not valid for `example.org`; set a name that it contains by --server-name",
        ),
    ] {
        load_at(&url, options).expect_fault("tls", words);
    }
}

#[test]
fn a_servers_own_certificate_of_an_authority_is_trusted_if_it_is_given() {
    let address = tls_server_of("own", |socket| {
        // A client that rejects the certificate disconnects.
        let Ok(mut websocket) = tungstenite::accept(socket) else { return };
        while let Ok(message) = websocket.read() {
            let _ = if message.is_close() { websocket.flush() } else { websocket.send(message) };
        }
    });
    let (own, ca) = (file("own.pem"), file("ca.pem"));
    let loaded = load_at(&wss(address), &["--cacert", &own]);
    assert_eq!(loaded.expect_clean().json()["tls"]["is_verified"], true);
    let words = "the server's own certificate is that of an authority, as `openssl req -x509` \
                 makes it; trust it by --cacert FILE";
    load_at(&wss(address), &["--cacert", &ca]).expect_fault("tls", words);
    load_at(&wss(address), &["--cacert", &own, "--server-name", "example.org"])
        .expect_fault("tls", "not valid for `example.org`");
    // Another server has no key of it.
    load_at(&wss(echo()), &["--cacert", &own]).expect_fault("tls", "the issuer of the server's");
    let loaded = load_at(&wss(address), &["--insecure"]);
    assert_eq!(loaded.expect_clean().json()["tls"]["is_verified"], false);
    let counts = ["--connections", "1", "--messages", "1", "--insecure"];
    let loaded = Load::start(&[&[&*wss(address)], &counts[..]].concat()).wait();
    let words = "the server's certificate was not verified (--insecure)";
    assert!(loaded.output.contains(words), "{loaded:?}");
}

#[test]
fn the_name_of_the_url_is_verified_and_not_the_address_that_it_resolves_to() {
    let url = format!("wss://localhost:{}/", echo().port());
    let loaded = load_at(&url, &["--cacert", &file("ca.pem")]);
    assert_eq!(loaded.expect_clean().json()["tls"]["server_name"], "localhost");
}

#[test]
fn files_and_names_that_cannot_be_used_are_named() {
    for (options, words) in [
        (&["--cacert", "/no/such/ca.pem"][..], "/no/such/ca.pem: cannot be read"),
        (&["--cacert", &file("localhost.key")], "localhost.key: no certificate"),
        (&["--insecure", "--server-name", "two words"], "\"two words\" is neither a DNS name"),
    ] {
        let loaded = Load::start(&[&["wss://127.0.0.1:1/"], options].concat()).wait();
        assert_eq!(loaded.status, Some(1), "{options:?}: {}", loaded.errors);
        assert!(loaded.errors.contains(words), "`{words}` is not in: {}", loaded.errors);
        assert!(loaded.errors.contains("; --"), "an option helps: {}", loaded.errors);
    }
}

#[test]
fn a_wrong_byte_inside_of_tls_is_found() {
    let address = websocket_server(|websocket, number, message| {
        let mut bytes = message.into_data().to_vec();
        bytes[7] ^= u8::from(number == 5);
        websocket.send(Message::binary(bytes)).is_ok()
    });
    let loaded = load_at(&wss(address), &["--insecure"]);
    let words = "connection 1: the answer to message 5 has a wrong byte: ";
    assert_eq!(loaded.expect_fault("wrong_content", words).verified(), 4);
}

#[test]
fn a_connection_that_is_cut_is_told_from_one_that_was_closed() {
    let address = websocket_server(|websocket, number, message| {
        number < 5 && websocket.send(message).is_ok()
    });
    let counts = ["--connections", "1", "--messages", "20", "--insecure"];
    let loaded = load(&[&[&*wss(address)], &counts[..]].concat());
    loaded.expect_fault("broken", "the connection ended without close_notify");
    assert_eq!(loaded.verified(), 4);
}

#[test]
fn after_the_close_frames_a_missing_close_notify_is_no_fault() {
    let address = tls_server(|socket| {
        let mut websocket = tungstenite::accept(socket).expect("a client");
        while let Ok(message) = websocket.read() {
            if message.is_binary() {
                websocket.send(message).expect("the client reads");
            }
        }
    });
    assert_eq!(load_at(&wss(address), &["--insecure"]).expect_clean().verified(), 20);
}

#[test]
fn after_all_responses_a_missing_close_notify_is_no_fault() {
    for (responses, is_cut) in [(u64::MAX, false), (5, false), (5, true)] {
        let address = tls_server(move |mut socket| {
            let (mut head, mut byte) = (Vec::new(), [0]);
            let mut number = 0_u64;
            while matches!(socket.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
                if head.ends_with(b"\r\n\r\n") {
                    head.clear();
                    number += 1;
                    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello";
                    if number > responses {
                        let start = if is_cut { response.len() - 1 } else { 0 };
                        socket.write_all(&response[..start]).expect("the client reads");
                        return;
                    }
                    socket.write_all(response).expect("the client reads");
                }
            }
        });
        let counts = ["--connections", "1", "--messages", "20", "--insecure"];
        let loaded = load(&[&[&*format!("https://{address}/")], &counts[..]].concat());
        if !is_cut {
            assert_eq!(loaded.expect_clean().verified(), 20);
            let reconnects = if responses == 5 { 3.0 } else { 0.0 };
            assert_eq!(loaded.number("/connections/reconnects"), reconnects);
        } else {
            loaded.expect_fault("broken", "the connection ended without close_notify");
            assert_eq!(loaded.verified(), 5);
        }
    }
}

#[test]
fn windlass_serve_with_tls() {
    for (mode, scheme, path) in [("echo", "wss", "/echo"), ("raw", "tls", "")] {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--mode", mode, "--tls-self-signed"];
        let server = Server::of_several(windlass(&listen), 2);
        let url = format!("{scheme}://{}{path}", server.address);
        let counts = ["--connections", "20", "--messages", "2000", "--depth", "4", "--insecure"];
        for size in ["64", "40000"] {
            let loaded = load(&[&[&*url], &counts[..], &["--size", size]].concat());
            assert_eq!(loaded.expect_clean().verified(), 2000);
        }
        load_at(&url, &["--cacert", &file("ca.pem")]).expect_fault("tls", "is not trusted");
        let broken = number_before("broken off", &server.stop_cleanly());
        assert!(broken <= 1, "only the client that rejected the certificate: {broken}");
    }
}

#[test]
fn requests_over_tls() {
    let listen = ["serve", "--listen", "127.0.0.1:0", "--tls-self-signed"];
    let server = Server::of_several(windlass(&listen), 2);
    let url = format!("https://{}/", server.address);
    let loaded = load(&[&url, "--connections", "2", "--messages", "40", "--insecure"]);
    assert_eq!(loaded.expect_clean().verified(), 40);
    assert_eq!(loaded.number("/tls/handshakes"), 2.0);
    server.stop_cleanly();
}

#[test]
fn a_plain_server_is_told_apart() {
    let server = Server::start(&["--mode", "echo"]);
    let words = "the server does not speak TLS on this port; use ws:// or http:// for a plain one";
    load_at(&wss(server.address), &["--insecure"]).expect_fault("tls", words);
    server.stop_cleanly();
}

#[test]
fn a_tls_server_is_told_apart() {
    let url = format!("ws://{}/", echo());
    let words = "the server speaks TLS on this port: use wss://";
    load_at(&url, &[]).expect_fault("handshake", words);
    let url = format!("http://{}/", echo());
    let words = "the server speaks TLS on this port: use https://";
    load_at(&url, &[]).expect_fault("protocol", words);
    let listen = ["serve", "--listen", "127.0.0.1:0", "--tls-self-signed"];
    let server = Server::of_several(windlass(&listen), 2);
    let url = format!("http://{}/", server.address);
    load(&[&url, "--connections", "1", "--messages", "4"]).expect_fault("protocol", words);
    server.stop_cleanly();
}

#[test]
fn a_handshake_has_a_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = wss(listener.local_addr().expect("it has an address"));
    let options = ["--connections", "1", "--timeout", "0.2", "--insecure"];
    let words = "no end of the TLS handshake within 0.2 s; --timeout sets the limit";
    let begun = Instant::now();
    load(&[&[&*url], &options[..]].concat()).expect_fault("tls", words);
    // Without the option it would be ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(8));
}

/// A server on OpenSSL. It prints its port, and serves one connection.
const PYTHON: &str = "
import base64, hashlib, socket, ssl, struct, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
tls = context.wrap_socket(listener.accept()[0], server_side=True)
tls.settimeout(60)
read = tls.makefile('rb').read
head = b''
while not head.endswith(b'\\r\\n\\r\\n'):
    head += read(1)
headers = dict(line.split(b': ', 1) for line in head.split(b'\\r\\n')[1:-2])
key = {name.lower(): value for name, value in headers.items()}[b'sec-websocket-key']
accept = hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest()
tls.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n'
            b'Connection: Upgrade\\r\\nSec-WebSocket-Accept: '
            + base64.b64encode(accept) + b'\\r\\n\\r\\n')
while True:
    first, length = read(2)
    length &= 127
    prefix = bytes([length])
    if length > 125:
        prefix += read(2 if length == 126 else 8)
        length = int.from_bytes(prefix[1:], 'big')
    mask = (read(4) * (length // 4 + 1))[:length]
    masked = read(length)
    plain = int.from_bytes(masked, 'big') ^ int.from_bytes(mask, 'big')
    tls.sendall(bytes([first]) + prefix + plain.to_bytes(length, 'big'))
    if first & 15 == 8:
        tls.unwrap()
        break
";

#[test]
fn a_server_on_openssl_echoes() {
    let mut command = Command::new("python3");
    command.args(["-c", PYTHON, &file("localhost.pem"), &file("localhost.key")]);
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else {
        let line = "skipped here: a_server_on_openssl_echoes: python3 is not installed\n";
        std::io::stderr().write_all(line.as_bytes()).expect("it can be written");
        return;
    };
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut running = Running(child);
    let mut port = String::new();
    output.read_line(&mut port).expect("it prints its port");
    let url = format!("wss://localhost:{}/", port.trim_end());
    let loaded = load_at(&url, &["--size", "40000", "--cacert", &file("ca.pem")]);
    assert_eq!(loaded.expect_clean().verified(), 20);
    assert!(running.wait().success(), "it has got close_notify");
}
