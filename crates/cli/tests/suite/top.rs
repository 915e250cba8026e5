//! `windlass top` in a terminal and elsewhere.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Command, Stdio},
};

use crate::harness::{Running, Server, windlass};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use windlass_testkit::waiting::until;

fn start() -> (Server, String) {
    start_with(&[])
}

fn start_with(more: &[&str]) -> (Server, String) {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"];
    let admin = ["--admin", "127.0.0.1:0", "--workers", "2"];
    let server = Server::of_several(windlass(&[arguments.as_slice(), &admin, more].concat()), 2);
    let line = server.wait_for_error("admin listener");
    let (_, address) = line.split_once("address=").expect("the line has it");
    (server, address.trim_matches('"').to_owned())
}

/// Opens a WebSocket that stays open with the returned value.
fn client(server: &Server) -> std::net::TcpStream {
    let mut socket = server.connect();
    let head = "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(head.as_bytes()).expect("it reads");
    let mut start = [0; 12];
    socket.read_exact(&mut start).expect("it answers");
    assert_eq!(&start, b"HTTP/1.1 101");
    socket
}

/// A terminal of this size: the program's side, and the side that shows it.
pub(crate) fn terminal(columns: u16, rows: u16) -> (OwnedFd, File) {
    let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .expect("there are terminals");
    grantpt(&shown).expect("it can be granted");
    unlockpt(&shown).expect("it can be unlocked");
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&shown, size).expect("it has a size");
    let name = ptsname(&shown, Vec::new()).expect("it has a name");
    let path = name.to_str().expect("the name is text");
    let inside = OpenOptions::new().read(true).write(true).open(path).expect("it can be opened");
    (inside.into(), File::from(shown))
}

/// Reads what a terminal shows until its program has ended.
fn read_to_end(mut shown: File) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let patience = Timespec::try_from(crate::harness::WAIT_MAX).expect("seconds fit");
        let ready = poll(&mut [PollFd::new(&shown, PollFlags::IN)], Some(&patience));
        assert_eq!(ready, Ok(1), "nothing comes");
        match shown.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            // The other side is closed.
            Err(error) if error.raw_os_error() == Some(5) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    String::from_utf8(text).expect("it is text")
}

fn top(address: &str, arguments: &[&str]) -> Command {
    let mut command = windlass(&[&["top", address], arguments].concat());
    // Where the test runs there may be a terminal, whose keys are no concern of it.
    command.stdin(Stdio::null());
    command
}

#[test]
fn in_a_terminal_each_view_replaces_the_previous_one() {
    let (server, address) = start();
    let _client = client(&server);
    let (inside, shown) = terminal(60, 40);
    let mut command = top(&address, &["--samples", "2"]);
    let mut running = Running(command.stdout(inside).spawn().expect("it starts"));
    // The descriptor of the command would keep the terminal open.
    drop(command);
    let text = read_to_end(shown);
    assert!(running.wait().success());
    let views: Vec<&str> = text.split("\x1b[H").skip(1).collect();
    assert_eq!(views.len(), 2, "{text:?}");
    for view in &views {
        assert!(view.ends_with("\x1b[J"), "{view:?}");
        assert!(view.contains(": ready, up 0:00:0"), "{view:?}");
        assert!(view.contains("connections  1 open, 0 in handshake"), "{view:?}");
        // A headline and a row for each worker.
        let workers = view.split_once("worker  connections").expect("it has a table").1;
        assert_eq!(workers.matches("\r\n").count(), 2, "{view:?}");
        for line in view.split("\r\n") {
            let visible = line.replace("\x1b[K", "").replace("\x1b[J", "");
            assert!(visible.chars().count() <= 60, "{visible:?}");
        }
    }
    assert!(views[0].contains("- in, - out a second"), "{text:?}");
    assert!(views[1].contains("0 in, 0 out a second"), "{text:?}");
    server.stop_cleanly();
}

/// The program in a terminal that has its input too.
struct WithKeys {
    running: Running,
    shown: File,
    text: String,
    inside: OwnedFd,
}

impl WithKeys {
    fn start(address: &str, arguments: &[&str]) -> Self {
        Self::start_command(top(address, arguments))
    }

    fn start_command(mut command: Command) -> Self {
        let (inside, shown) = terminal(200, 40);
        let copy = || inside.try_clone().expect("there are descriptors");
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let running = Running(command.spawn().expect("it starts"));
        Self { running, shown, text: String::new(), inside }
    }

    /// Waits until this is shown, after what was waited for before.
    #[track_caller]
    fn until(&mut self, words: &str) {
        let mut buffer = [0; 4096];
        loop {
            if let Some((_, rest)) = self.text.split_once(words) {
                self.text = rest.to_owned();
                return;
            }
            let patience = Timespec::try_from(crate::harness::WAIT_MAX).expect("seconds fit");
            let ready = poll(&mut [PollFd::new(&self.shown, PollFlags::IN)], Some(&patience));
            assert_eq!(ready, Ok(1), "no {words:?} in {:?}", self.text);
            let count = self.shown.read(&mut buffer).expect("it is open");
            self.text += std::str::from_utf8(&buffer[..count]).expect("it is ASCII here");
        }
    }

    fn press(&mut self, keys: &str) {
        self.shown.write_all(keys.as_bytes()).expect("it is open");
    }

    fn local_modes(&self) -> LocalModes {
        tcgetattr(&self.inside).expect("it is a terminal").local_modes
    }

    #[track_caller]
    fn expect_end(mut self) {
        assert!(self.running.wait().success());
        assert!(self.local_modes().contains(LocalModes::ICANON | LocalModes::ECHO));
    }
}

#[test]
fn keys_list_connections_and_disconnect_them() {
    let folder = std::env::temp_dir().join(format!("windlass-keys-{}", std::process::id()));
    std::fs::write(&folder, "a-token-in-a-file-1\n").expect("it can be written");
    let token = folder.to_str().expect("it is text");
    let (server, address) = start_with(&["--admin-token-file", token]);
    let mut client = client(&server);
    // No second read of its own: the keys alone change the view.
    let mut top = WithKeys::start(&address, &["--token-file", token, "--interval", "3600"]);
    top.until("connections by bytes: 1");
    top.until(&client.local_addr().expect("it has one").to_string());
    top.until("q quit  s sort");
    assert!(!top.local_modes().contains(LocalModes::ICANON));
    top.press("s");
    top.until("connections by age: 1");
    top.press("r/room/none\n");
    top.until("connections by age: 0 in /room/none");
    top.press("r\n");
    top.until("connections by age: 1\u{1b}");
    top.press("d");
    top.until("? y/n");
    top.press("n");
    top.until("nobody was disconnected");
    top.press("d");
    top.until("? y/n");
    top.press("y");
    top.until("\"disconnected\":1,\"complete\":true");
    let line = server.wait_for_error("clients disconnected by the operator");
    assert!(line.contains("by=\"id\"") && line.contains("count=1"), "{line}");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("it answers");
        head.push(byte[0].into());
    }
    let mut close = [0; 4];
    client.read_exact(&mut close).expect("a frame");
    assert_eq!((close[0], &close[2..]), (0x88, &1008_u16.to_be_bytes()[..]));
    top.press("q");
    top.expect_end();
    std::fs::remove_file(folder).expect("it can be removed");
    server.stop_cleanly();
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let (server, address) = start();
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let mut top = WithKeys::start(&address, &["--interval", "3600"]);
        top.until("q quit");
        kill_process(top.running.pid(), signal).expect("it runs");
        top.expect_end();
    }
    // Without a token nobody can be disconnected, and the answer says why.
    let _client = client(&server);
    let mut top = WithKeys::start(&address, &["--interval", "3600"]);
    top.until("connections by bytes: 1");
    top.press("dy");
    top.until("status 403: to disconnect clients, the listener must have a token");
    top.press("q");
    top.expect_end();
    server.stop_cleanly();
}

#[test]
fn a_stop_is_for_the_shell_and_without_one_the_program_goes_on() {
    let (server, address) = start();
    // The parent of a group's leader is in another group of the session, so it can be continued.
    let mut command = top(&address, &["--interval", "3600"]);
    command.process_group(0);
    let mut under_shell = WithKeys::start_command(command);
    under_shell.until("q quit");
    kill_process(under_shell.running.pid(), Signal::TSTP).expect("it runs");
    let status = format!("/proc/{}/status", under_shell.running.pid().as_raw_nonzero());
    let text = || std::fs::read_to_string(&status).expect("it is there");
    until(|| text().contains("State:\tT").then_some(()), text);
    assert!(under_shell.local_modes().contains(LocalModes::ICANON | LocalModes::ECHO));
    kill_process(under_shell.running.pid(), Signal::CONT).expect("it is stopped");
    // A session of its own.
    let mut command = Command::new("setsid");
    command.args([env!("CARGO_BIN_EXE_windlass"), "top", &address, "--interval", "3600"]);
    let mut orphan = WithKeys::start_command(command);
    orphan.until("q quit");
    kill_process(orphan.running.pid(), Signal::TSTP).expect("it runs");
    for mut top in [under_shell, orphan] {
        top.press("s");
        top.until("connections by age");
        top.press("q");
        top.expect_end();
    }
    server.stop_cleanly();
}

#[test]
fn over_tls_the_certificate_is_verified() {
    let of =
        |name: &str| format!("{}/../tls/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"));
    let (cert, key, ca) = (of("localhost.pem"), of("localhost.key"), of("ca.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--admin", "https://127.0.0.1:0"];
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"];
    let (server, lines) = Server::with_lines(windlass(&[&arguments[..], &tls].concat()), 2);
    let address = lines[0].strip_prefix("admin at ").expect("it is the first line");
    assert!(address.starts_with("https://127.0.0.1:"), "{address}");
    let run = |options: &[&str]| {
        top(address, &[&["--samples", "1"], options].concat()).output().expect("it runs")
    };
    let good = run(&["--cacert", &ca]);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    assert!(String::from_utf8_lossy(&good.stdout).contains("\nready "));
    assert!(run(&["--insecure"]).status.success());
    let bad = run(&["--cacert", &of("other-ca.pem")]);
    let error = String::from_utf8_lossy(&bad.stderr);
    assert!(!bad.status.success() && error.contains("certificate"), "{error}");
    // A handshake that fails is refused as a request is.
    let line = server.wait_for_error("refused by the admin listener");
    assert!(line.contains("TLS: "), "{line}");
    let plain = address.replace("https", "http");
    let output = top(&plain, &["--samples", "1"]).output().expect("it runs");
    assert!(!output.status.success());
    server.stop_cleanly();
}

#[test]
fn a_small_terminal_is_not_scrolled() {
    let (server, address) = start();
    let (inside, shown) = terminal(20, 5);
    let mut command = top(&address, &["--samples", "1"]);
    let mut running = Running(command.stdout(inside).spawn().expect("it starts"));
    drop(command);
    let text = read_to_end(shown);
    assert!(running.wait().success());
    assert_eq!(text.matches("\r\n").count(), 4, "{text:?}");
    server.stop_cleanly();
}

/// A client that asks for much and reads nothing.
#[test]
fn a_slow_receiver_is_shown() {
    let (server, address) = start_with(&["--write-timeout", "0"]);
    let mut client = client(&server);
    client.set_nonblocking(true).expect("it can be set");
    // A binary message of 32 KiB, masked with zeros. The server echoes it.
    let mut frame = vec![0x82, 0xfe, 0x80, 0, 0, 0, 0, 0];
    frame.resize(frame.len() + (32 << 10), b'x');
    let mut sent = 0;
    let mut views = String::new();
    // Once the server does not read either, its output waits until the end.
    while !views.contains("receivers    1 slow") {
        match client.write(&frame[sent..]) {
            Ok(count) => sent = (sent + count) % frame.len(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let (inside, shown) = terminal(60, 40);
                let mut command = top(&address, &["--samples", "1"]);
                let mut running = Running(command.stdout(inside).spawn().expect("it starts"));
                drop(command);
                views = read_to_end(shown);
                assert!(running.wait().success());
                assert!(views.contains("receivers    "), "{views:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    let output = top(&address, &["--samples", "1"]).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("it is text");
    // The seventh column.
    let words: Vec<&str> = text.lines().nth(1).expect("a view").split_whitespace().collect();
    assert!(text.contains(" slow ") && words[6] == "1", "{text}");
    server.stop_cleanly();
}

#[test]
fn elsewhere_each_view_is_a_line_of_plain_text() {
    let (server, address) = start();
    let _client = client(&server);
    let output = top(&address, &["--samples", "2"]).output().expect("it runs");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("it is text");
    assert!(!text.contains('\x1b'), "{text:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("state "), "{text}");
    for line in &lines[1..] {
        assert_eq!(line.split_whitespace().take(2).collect::<Vec<_>>(), ["ready", "1"], "{text}");
    }
    server.stop_cleanly();
}

#[test]
fn what_is_no_admin_listener_is_an_error() {
    let (server, _address) = start();
    let public = format!("http://{}", server.address);
    for (place, expected) in
        [(public.as_str(), "status 404"), ("http://127.0.0.1:1", "cannot read"), ("ws://a", "URL")]
    {
        let output = top(place, &[]).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{place}: {errors}");
    }
    server.stop_cleanly();
}

#[test]
fn a_restart_of_the_server_is_survived() {
    let folder = std::env::temp_dir().join(format!("windlass-top-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("it can be made");
    let admin = folder.join("admin").to_str().expect("it is text").to_owned();
    let start = || {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"];
        let command = windlass(&[&arguments[..], &["--admin", &admin]].concat());
        let server = Server::of_several(command, 2);
        server.wait_for_error("admin listener");
        server
    };
    let server = start();
    let mut command = top(&format!("unix:{admin}"), &[]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().expect("it starts"));
    let lines = crate::harness::lines_of(running.0.stdout.take().expect("piped"));
    let errors = crate::harness::lines_of(running.0.stderr.take().expect("piped"));
    let next = || lines.recv_timeout(crate::harness::WAIT_MAX).expect("a line");
    assert!(next().starts_with("state "));
    assert!(next().starts_with("ready "));
    server.stop_cleanly();
    let error = errors.recv_timeout(crate::harness::WAIT_MAX).expect("it says why");
    assert!(error.contains("cannot read") && error.ends_with("; trying again"), "{error}");
    let server = start();
    // Views of the first server may be queued.
    while lines.try_recv().is_ok() {}
    assert!(next().starts_with("ready "));
    server.stop_cleanly();
    drop(running);
    std::fs::remove_dir_all(folder).expect("it can be removed");
}
