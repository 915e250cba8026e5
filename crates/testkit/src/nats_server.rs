//! nats-server, as a process of a test.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

pub use crate::waiting::{WAIT_MAX, until};

/// The program, if there is one. Debian has it in a directory that is not in everyone's `PATH`.
pub fn program() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("nats-server")).find(|path| path.is_file())
}

/// A port that is free, and that no connection gets by itself: it is below those. So a server that
/// starts again gets it again.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let below: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    let count = below.saturating_sub(10_000).max(1);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Other processes begin elsewhere.
        let place = (std::process::id() as u16).wrapping_mul(37).wrapping_add(number) % count;
        let port = below - 1 - place;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A server. It ends with its value.
pub struct Nats {
    child: Child,
    settings: String,
    pub port: u16,
    monitor: u16,
}

impl Nats {
    pub fn start() -> Self {
        Self::with("")
    }

    /// A server with further lines of configuration.
    pub fn with(settings: &str) -> Self {
        loop {
            let (port, monitor) = (free_port(), free_port());
            if let Some(child) = start(port, monitor, settings) {
                return Self { child, settings: settings.to_owned(), port, monitor };
            }
        }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, at the same port.
    pub fn restart(&mut self) {
        self.restart_with(&self.settings.clone());
    }

    pub fn restart_with(&mut self, settings: &str) {
        self.kill();
        self.settings = settings.to_owned();
        let started = || start(self.port, self.monitor, settings);
        self.child = until(started, || format!("nats-server at port {}", self.port));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// It does nothing until `resume`.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// What it tells about its connections.
    fn connections(&self, query: &str) -> serde_json::Value {
        self.ask(&format!("/connz{query}"))
    }

    /// The numbers of messages that it has got from its clients, and has given to them.
    pub fn messages(&self) -> (u64, u64) {
        let answer = self.ask("/varz");
        (answer["in_msgs"].as_u64().unwrap(), answer["out_msgs"].as_u64().unwrap())
    }

    /// Asks its monitoring.
    fn ask(&self, path: &str) -> serde_json::Value {
        let mut socket = TcpStream::connect(("127.0.0.1", self.monitor)).unwrap();
        write!(socket, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str(body).unwrap()
    }

    /// The number of subscriptions to a subject.
    fn subscriptions_to(&self, subject: &str) -> usize {
        let answer = self.connections("?subs=1");
        let connections = answer["connections"].as_array().unwrap().iter();
        let subscribed = |connection: &&serde_json::Value| {
            let list = connection["subscriptions_list"].as_array();
            list.is_some_and(|list| list.iter().any(|one| one == subject))
        };
        connections.filter(subscribed).count()
    }

    /// Waits until so many nodes are subscribed to a subject.
    #[track_caller]
    pub fn wait_for_subscriptions(&self, subject: &str, count: usize) {
        until(
            || (self.subscriptions_to(subject) == count).then_some(()),
            || format!("{} are subscribed to {subject}", self.subscriptions_to(subject)),
        );
    }

    /// The number of all subscriptions of its connections.
    pub fn subscriptions(&self) -> u64 {
        let answer = self.connections("");
        let connections = answer["connections"].as_array().unwrap().iter();
        connections.map(|connection| connection["subscriptions"].as_u64().unwrap()).sum()
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start(port: u16, monitor: u16, settings: &str) -> Option<Child> {
    let config = Folder::new("config");
    let path = config.write(
        "nats.conf",
        &format!("listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n{settings}\n"),
    );
    let mut command = Command::new(program().unwrap());
    command.arg("-c").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    loop {
        let ready =
            [port, monitor].iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok());
        if ready && child.try_wait().unwrap().is_none() {
            return Some(child);
        }
        if child.try_wait().unwrap().is_some() {
            // Another process has the port, or had it until now.
            return None;
        }
        if begin.elapsed() > WAIT_MAX {
            let _ = child.kill();
            panic!("nats-server does not start at port {port}");
        }
        // sleep: the state has no event to wait for.
        thread::sleep(Duration::from_millis(2));
    }
}

/// A folder for files. It is deleted with its value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass-cluster-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A client of NATS that shows what crosses.
pub struct Plain(BufReader<TcpStream>);

impl Plain {
    pub fn new(nats: &Nats) -> Self {
        let socket = TcpStream::connect(nats.address()).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut plain = Self(BufReader::new(socket));
        assert!(plain.line().starts_with("INFO "));
        plain.write(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n");
        plain.sync();
        plain
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn subscribe(&mut self, subject: &str) {
        self.write(format!("SUB {subject} 1\r\n").as_bytes());
        self.sync();
    }

    pub fn publish(&mut self, subject: &str, payload: &[u8]) {
        self.write(format!("PUB {subject} {}\r\n", payload.len()).as_bytes());
        self.write(payload);
        self.write(b"\r\n");
        self.sync();
    }

    /// Returns the payloads that have arrived, when the server has answered.
    pub fn sync(&mut self) -> Vec<Vec<u8>> {
        self.write(b"PING\r\n");
        let mut payloads = Vec::new();
        loop {
            let line = self.line();
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["PONG"] => return payloads,
                ["MSG", .., len] => {
                    let mut payload = vec![0; len.parse::<usize>().unwrap() + 2];
                    self.0.read_exact(&mut payload).unwrap();
                    payload.truncate(payload.len() - 2);
                    payloads.push(payload);
                }
                ["PING"] => self.write(b"PONG\r\n"),
                _ => assert!(line.starts_with("INFO "), "{line}"),
            }
        }
    }
}
