//! SIGHUP, and what it changes in a running server.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
};

use rustix::process::{Signal, kill_process};

use super::{
    hangup::{with_default_hangup, with_terminal},
    load_run, ping,
    tls::Folder,
};
use crate::{
    harness::{Server, number_before, windlass, with_arguments},
    top::terminal,
};

/// The beginning of each file.
const PLACES: &str = "listen = '127.0.0.1:0'\ndrain-timeout = 0\n";

/// A server with a configuration file.
struct Configured {
    folder: Folder,
    server: Server,
}

impl Configured {
    fn start(name: &str, text: &str, lines: usize) -> Self {
        let folder = Folder::new(name);
        let file = folder.path("windlass.toml");
        fs::write(&file, PLACES.to_owned() + text).expect("it can be written");
        let command = with_default_hangup(windlass(&["serve", "--config", &file]));
        Self { folder, server: Server::of_several(command, lines) }
    }

    /// Changes the file, and waits for a line of the log.
    fn reload(&self, text: &str, words: &str) -> String {
        fs::write(self.folder.path("windlass.toml"), PLACES.to_owned() + text)
            .expect("it can be written");
        kill_process(self.server.pid(), Signal::HUP).expect("it runs");
        self.server.wait_for_error(words)
    }

    /// Asks for an upgrade. Returns the status of the answer.
    fn upgrade(&self, origin: &str) -> (String, TcpStream) {
        let mut client = self.server.connect();
        let request = format!(
            "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nOrigin: {origin}\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        client.write_all(request.as_bytes()).expect("it reads");
        (read_head(&mut client)[9..12].to_owned(), client)
    }
}

/// Reads the head of a response.
fn read_head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("it answers");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("it is text")
}

/// Sends a message of this length on an upgraded connection. Returns the first byte of the answer.
fn first_byte_after(client: &mut TcpStream, len: u8) -> u8 {
    assert!(len < 126, "it has a short header");
    let mut frame = vec![0x82, 0x80 | len, 0, 0, 0, 0];
    frame.resize(6 + usize::from(len), b'x');
    client.write_all(&frame).expect("it reads");
    let mut start = [0; 2];
    client.read_exact(&mut start).expect("it answers");
    client.read_exact(&mut vec![0; usize::from(start[1])]).expect("it goes on");
    start[0]
}

const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;

#[test]
fn a_hang_up_takes_the_options_of_the_file_that_may_change() {
    let shop = "https://shop.example";
    let configured = Configured::start("options", "workers = 2\n", 1);
    assert_eq!(configured.upgrade(shop).0, "403");
    let mut old = configured.upgrade("http://localhost").1;
    let text = "workers = 2\norigin = ['https://shop.example']\nmessage-max = 50\n\
                log-level = 'debug'\n";
    configured.reload(text, "configuration reloaded");
    assert_eq!(configured.upgrade("http://localhost").0, "403");
    let (status, mut new) = configured.upgrade(shop);
    assert_eq!(status, "101");
    configured.server.wait_for_error("DEBUG open");
    // The limit of a message is that of connections that begin afterwards.
    assert_eq!(first_byte_after(&mut new, 50), BINARY);
    assert_eq!(first_byte_after(&mut new, 51), CLOSE);
    assert_eq!(first_byte_after(&mut old, 51), BINARY);
    // What the file no longer says has its default again.
    configured.reload("workers = 2\n", "configuration reloaded");
    assert_eq!(configured.upgrade(shop).0, "403");
    assert_eq!(configured.upgrade("http://localhost").0, "101");
    configured.server.stop_cleanly();
}

#[test]
fn a_configuration_for_others_ends_the_load_runs_of_the_page() {
    let configured = Configured::start("runs", "", 1);
    let status = || load_run::ask(&configured.server, "").0;
    let network = "['192.0.2.0/24']";
    for others in [
        "host = ['any']",
        &format!("forwarded-from = {network}"),
        &format!("proxy-protocol-from = {network}"),
    ] {
        configured.reload(&format!("{others}\n"), "configuration reloaded");
        assert_eq!(status(), 403, "{others}");
    }
    configured.reload("", "configuration reloaded");
    assert_eq!(status(), 101);
    configured.server.stop_cleanly();
}

#[test]
fn the_limit_of_connections_changes_in_both_directions() {
    for mode in ["raw", "chat"] {
        let of = |limit: u32| format!("mode = '{mode}'\nconnections = {limit}\n");
        let configured = Configured::start(&format!("limit-{mode}"), &of(2), 1);
        let exchange = |client: &mut TcpStream| {
            if mode == "raw" {
                return ping(client);
            }
            client.write_all(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
            read_head(client);
        };
        let mut clients: Vec<_> = (0..4).map(|_| configured.server.connect()).collect();
        clients[..2].iter_mut().for_each(exchange);
        configured.server.wait_for_error("connection limit 2 reached");
        configured.reload(&of(4), "configuration reloaded");
        clients[2..].iter_mut().for_each(exchange);
        configured.reload(&of(1), "configuration reloaded");
        let mut waits = configured.server.connect();
        // Those that are open stay so, and there is no room before all of them have gone.
        clients.iter_mut().for_each(exchange);
        drop(clients);
        exchange(&mut waits);
        let line = configured.server.stop_cleanly();
        assert_eq!(number_before("at most at once", &line), 4, "{mode}");
    }
}

/// The value of a metric.
fn metric(address: &str, name: &str) -> String {
    let place = address.trim_start_matches("http://").trim_end_matches('/');
    let mut socket = TcpStream::connect(place).expect("it listens");
    socket.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut response = String::new();
    socket.read_to_string(&mut response).expect("it answers");
    let line = response.lines().find_map(|line| line.strip_prefix(name));
    line.expect("it is there").trim().to_owned()
}

#[test]
fn rates_and_proxies_change_and_each_attempt_is_counted() {
    let admin = "admin = '127.0.0.1:0'\n";
    let configured = Configured::start("rates", admin, 2);
    let line = configured.server.wait_for_error("admin listener");
    let (_, address) = line.split_once("address=").expect("the line has it");
    let address = address.trim_matches('"').to_owned();
    let own = "http://localhost";
    assert_eq!([(); 5].map(|()| configured.upgrade(own).0), ["101"; 5]);
    let rate = format!("{admin}request-rate-per-address = '1'\n");
    let line = configured.reload(&rate, "configuration reloaded");
    assert!(!line.contains("kept"), "{line}");
    // Two of them come within a second.
    assert!((0..1000).any(|_| configured.upgrade(own).0 == "429"));
    let proxies = format!("{admin}proxy-protocol-from = ['127.0.0.0/8']\n");
    configured.reload(&proxies, "configuration reloaded");
    let mut client = configured.server.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    let line = configured.server.wait_for_error("no PROXY header came from a listed proxy");
    assert!(
        line.contains("refused") && line.contains("option=\"--proxy-protocol-from\""),
        "{line}"
    );
    configured.reload(&format!("{admin}message-rate = 'often'\n"), "configuration not reloaded");
    configured.reload(&format!("{admin}when-full = 'reject'\n"), "kept=--when-full");
    assert_eq!([(); 5].map(|()| configured.upgrade(own).0), ["101"; 5]);
    let name = "windlass_configuration_reloads_total{result=";
    let counts =
        ["\"success\"}", "\"failure\"}"].map(|label| metric(&address, &(name.to_owned() + label)));
    assert_eq!(counts, ["3", "1"]);
    configured.server.stop_cleanly();
}

#[test]
fn a_broken_file_changes_nothing_and_one_line_says_why() {
    let folder = Folder::new("broken-token");
    let token = folder.path("token");
    fs::write(&token, "the-first-token-1\n").expect("it can be written");
    let admin = format!("admin = '127.0.0.1:0'\nadmin-token-file = '{token}'\n");
    let configured = Configured::start("broken", &admin, 2);
    let shop = "https://shop.example";
    let origin = format!("{admin}origin = ['{shop}']\n");
    for (text, reasons) in [
        (format!("{origin}workers = \n"), &["windlass.toml", "TOML parse error"][..]),
        (format!("{origin}speed = 1\n"), &["windlass.toml", "there is no option `speed`"]),
        (format!("{origin}buffer = 0\n"), &["windlass.toml", "invalid value '0' for '--buffer"]),
        (format!("{origin}message-max = 4000000\n"), &["--buffer 2097152 cannot hold"]),
        (format!("{origin}host = ['a b']\n"), &["invalid --host"]),
    ] {
        let line = configured.reload(&text, "configuration not reloaded");
        for reason in reasons.iter().chain(&["ERROR", "the old one stays in use"]) {
            assert!(line.contains(reason), "{reason} in {line}");
        }
        assert_eq!(configured.upgrade(shop).0, "403", "{text}");
    }
    // One part is good and comes before the one that is not.
    fs::write(&token, "short\n").expect("it can be written");
    let line = configured.reload(&origin, "configuration not reloaded");
    assert!(line.contains("at least 16 characters"), "{line}");
    assert_eq!(configured.upgrade(shop).0, "403");
    fs::write(&token, "the-second-token\n").expect("it can be written");
    configured.reload(&origin, "configuration reloaded");
    assert_eq!(configured.upgrade(shop).0, "101");
    configured.server.stop_cleanly();
}

#[test]
fn options_that_need_a_restart_are_named() {
    let configured = Configured::start("kept", "", 1);
    let text = "workers = 2\nmode = 'echo'\nbuffer = 5000000\norigin = ['any']\n";
    let line = configured.reload(text, "kept until a restart");
    assert!(line.contains("kept=--buffer --mode --workers"), "{line}");
    assert_eq!(configured.upgrade("https://shop.example").0, "101", "the others are taken");
    configured.server.stop_cleanly();
}

#[test]
fn a_hang_up_with_nothing_to_read_again_ends_nothing() {
    for mode in ["raw", "chat"] {
        let command = windlass(&["serve", "--listen", "127.0.0.1:0", "--mode", mode]);
        let server = Server::of(with_default_hangup(command));
        for _ in 0..2 {
            kill_process(server.pid(), Signal::HUP).expect("it runs");
            server.wait_for_error("configuration reloaded");
        }
        server.connect();
        server.stop_cleanly();
    }
}

/// The end of a terminal is the end of the programs in it.
#[test]
fn a_server_ends_with_its_terminal() {
    let (inside, shown) = terminal(80, 24);
    let arguments = ["serve", "--mode", "raw", "--listen", "127.0.0.1:0"];
    let command = with_terminal(with_default_hangup(windlass(&arguments)));
    let server = Server::with_input(command, Stdio::from(inside));
    // A hang-up alone is no end.
    kill_process(server.pid(), Signal::HUP).expect("it runs");
    server.wait_for_error("configuration reloaded");
    let mut client = server.connect();
    ping(&mut client);
    drop(client);
    drop(shown);
    let line = server.wait_for_error("ending");
    assert!(line.contains("signal=SIGHUP shutdown=graceful"), "{line}");
    let (status, line) = server.ended();
    assert!(status.success() && line.starts_with("stopped by SIGHUP: 1 connections"), "{line}");
}

/// `nohup` starts programs with an ignored signal. Then not even the end of the terminal ends them.
#[test]
fn a_server_that_ignores_hang_ups_outlives_its_terminal() {
    let (inside, shown) = terminal(80, 24);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_windlass")]);
    let arguments = ["serve", "--mode", "raw", "--listen", "127.0.0.1:0"];
    let command = with_terminal(with_arguments(command, &arguments));
    let server = Server::with_input(command, Stdio::from(inside));
    drop(shown);
    server.wait_for_error("configuration reloaded");
    ping(&mut server.connect());
    let (status, line) = server.stop(Signal::TERM);
    assert!(status.success() && line.starts_with("stopped by SIGTERM: "), "{line}");
}

#[test]
fn a_file_is_checked_without_a_server() {
    let folder = Folder::new("check");
    let file = folder.path("windlass.toml");
    let check = |text: &str| {
        fs::write(&file, text).expect("it can be written");
        let output = windlass(&["serve", "--check", &file]).output().expect("it runs");
        let [out, errors] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
        (output.status.code(), out, errors)
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("it has an address");
    // It opens no socket, so one that is taken does not matter.
    let (code, out, errors) = check(&format!("listen = '{address}'\norigin = ['any']\n"));
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(out.contains("windlass.toml is a valid configuration"), "{out}");
    for (text, reason, code) in [
        ("workers = 0", "windlass.toml: error: invalid value '0' for '--workers", 2),
        ("speed = 1", "there is no option `speed`", 2),
        ("check = 'other.toml'", "there is no option `check`", 2),
        ("tls-cert = '/no/such.pem'\ntls-key = '/no/such.key'", "/no/such.pem", 1),
        ("tls-cert = '/no/such.pem'", "--tls-cert was given 1 times", 1),
        ("origin = ['example.com']", "invalid --origin", 1),
        ("host = ['a b']", "invalid --host", 1),
        ("message-max = 4000000", "--buffer 2097152 cannot hold", 1),
        ("admin = '0.0.0.0:9'", "--admin-token-file", 1),
        ("admin-token-file = '/no/such'", "needs --admin", 1),
        ("admin = '127.0.0.1:9'\nadmin-token-file = '/no/such'", "/no/such", 1),
        ("listen = 'https://127.0.0.1:9'", "needs a certificate", 1),
        ("mode = 'raw'\nmessage-rate = '5'", "not available in mode raw", 1),
        ("mode = 'raw'\nforwarded-from = ['unix']", "not available in mode raw", 1),
        ("mode = 'raw'\ntoken-file = '/no/such'", "not available in mode raw", 1),
        ("mode = 'echo'\ncluster = ['nats://127.0.0.1:1']", "only available in mode chat", 1),
    ] {
        let (status, out, errors) = check(text);
        assert_eq!((status, out.as_str()), (Some(code), ""), "{text}: {errors}");
        assert!(errors.contains(reason), "{text}: {errors}");
    }
}
