//! The load run of the page: who may start it, and what it says.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use windlass_testkit::waiting::until;

use crate::harness::{Server, windlass};

/// Asks for a run with further headers. Returns the status and the connection.
pub(super) fn ask(server: &Server, headers: impl AsRef<[u8]>) -> (u16, TcpStream) {
    let mut client = server.connect();
    let request = format!(
        "GET /load HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        server.address
    );
    let request = [request.as_bytes(), headers.as_ref(), b"\r\n"].concat();
    client.write_all(&request).expect("the server reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("the response comes");
        head.push(byte[0]);
    }
    let status = String::from_utf8_lossy(&head[9..12]).parse().expect("a status");
    (status, client)
}

/// The payload of the next frame. Those of this path are short, or have a length of 16 bits.
fn frame(client: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    client.read_exact(&mut head).expect("a frame comes");
    let mut len = u16::from(head[1]);
    if len == 126 {
        let mut long = [0; 2];
        client.read_exact(&mut long).expect("it has a length");
        len = u16::from_be_bytes(long);
    }
    let mut payload = vec![0; len.into()];
    client.read_exact(&mut payload).expect("it is whole");
    (head[0] & 0xf, payload)
}

fn text(client: &mut TcpStream) -> String {
    let (opcode, payload) = frame(client);
    assert_eq!(opcode, 1, "{payload:?}");
    String::from_utf8(payload).expect("it is text")
}

/// A process that the server has started, when there is one.
fn child_of(server: &Server) -> i32 {
    let threads = format!("/proc/{}/task", server.pid().as_raw_nonzero());
    let child = || {
        let mut threads = fs::read_dir(&threads).expect("it runs").flatten();
        threads.find_map(|thread| {
            let children = fs::read_to_string(thread.path().join("children")).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
    };
    until(child, || "there is no child".to_owned())
}

/// The processors that the main thread of a process may use.
fn processors(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
    line.expect("every Linux has it").to_owned()
}

#[test]
fn a_run_measures_the_server_once_at_a_time() {
    for options in [&[][..], &["--tls-self-signed", "--listen", "http://127.0.0.1:0"]] {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"];
        let lines = if options.is_empty() { 1 } else { 3 };
        let command = windlass(&[&listen[..], &["--workers", "2"], options].concat());
        let (server, _) = Server::with_lines(command, lines);
        let page = format!("Origin: http://{}\r\n", server.address);
        let (status, mut client) = ask(&server, &page);
        assert_eq!((status, text(&mut client)), (101, "Running for five seconds".to_owned()));
        assert_eq!(ask(&server, &page).0, 503, "one at a time");
        let results = text(&mut client);
        let words = results.split([':', '.', ' ']).filter_map(|word| word.parse::<u64>().ok());
        assert!(words.take(1).all(|rate| rate > 0), "{results}");
        assert!(results.starts_with("Echo: ") && results.contains(" A room: "), "{results}");
        assert!(results.ends_with("Every byte verified."), "{results}");
        assert_eq!(frame(&mut client), (8, 1000_u16.to_be_bytes().to_vec()));
        assert_eq!(ask(&server, &page).0, 101, "the next one");
        server.stop_cleanly();
    }
}

#[test]
fn a_run_is_refused_to_other_sites_and_through_proxies() {
    let server = Server::start(&["--origin", "any", "--pin"]);
    for headers in [
        &b"Origin: https://evil.example\r\n"[..],
        b"Origin: \xff\r\n",
        b"X-Forwarded-For: 192.0.2.1\r\n",
        b"X-Forwarded-For: \xff\r\n",
        b"Forwarded: for=192.0.2.1\r\n",
        b"Via: 1.1 proxy\r\n",
        b"X-Real-IP: 127.0.0.1\r\n",
    ] {
        assert_eq!(ask(&server, headers).0, 403, "{}", headers.escape_ascii());
    }
    let (status, mut client) = ask(&server, "");
    assert_eq!((status, text(&mut client)), (101, "Running for five seconds".to_owned()));
    // It has the processors of the server, not that of a worker.
    assert_eq!(processors(child_of(&server)), processors(server.pid().as_raw_nonzero().get()));
    server.stop_cleanly();
}

#[test]
fn a_server_for_others_has_no_runs() {
    let tokens = std::env::temp_dir().join(format!("windlass-runs-{}", std::process::id()));
    fs::write(&tokens, "0123456789abcdef\n").expect("it can be written");
    let of = |name| format!("{}/../tls/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"));
    let (cert, key, ca) = (of("localhost.pem"), of("localhost.key"), of("ca.pem"));
    let client_ca = "--tls-client-ca";
    let of_file = ["--token-file", tokens.to_str().expect("it is text")];
    for options in [
        &["--host", "example.com"][..],
        &["--forwarded-from", "192.0.2.0/24"],
        &["--proxy-protocol-from", "192.0.2.0/24"],
        &["--no-status"],
        &[
            "--listen",
            "https://127.0.0.1:0",
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            client_ca,
            &ca,
        ],
        &["--listen", "0.0.0.0:0", "--host", "any"],
        &of_file,
    ] {
        // The last address is that of loopback.
        let listen = ["--listen", "http://127.0.0.1:0", "--drain-timeout", "0"];
        let places = 1 + options.iter().filter(|option| **option == "--listen").count();
        let command = windlass(&[&["serve"], options, &listen].concat());
        let (server, _) = Server::with_lines(command, places);
        assert_eq!(ask(&server, "").0, 404, "{options:?}");
        let mut client = server.connect();
        let request = format!("GET / HTTP/1.0\r\nHost: {}\r\n\r\n", server.address);
        client.write_all(request.as_bytes()).expect("the server reads");
        let mut page = String::new();
        client.read_to_string(&mut page).expect("the page comes");
        assert!(page.contains("data-load=\"off\""), "{options:?}");
        server.stop_cleanly();
    }
    fs::remove_file(&tokens).expect("it is there");
}
