//! What `windlass serve` holds while clients do not read, and what it gives back when they have gone.

#[path = "../serve/harness.rs"]
mod harness;

use std::{
    io::{ErrorKind, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use harness::{Server, number_before};

const MIB: u64 = 1 << 20;

/// How soon memory is given back.
const SOON: Duration = Duration::from_secs(30);

/// What the server has, as the kernel counts it.
fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let text = std::fs::read_to_string(path).expect("the server runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it says how much is resident");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A client of the echo that sends what the server takes, and reads nothing.
struct Stalled {
    socket: TcpStream,
    frame: Vec<u8>,
    sent: usize,
}

impl Stalled {
    fn new(server: &Server) -> Self {
        let mut socket = server.connect();
        let request = "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        socket.write_all(request.as_bytes()).expect("the server reads");
        socket.set_nonblocking(true).expect("it can be set");
        let mut frame = vec![0x82, 0xfe, 0x40, 0, 0, 0, 0, 0];
        frame.resize(8 + 0x4000, 7);
        Self { socket, frame, sent: 0 }
    }

    /// Sends, and says whether anything was taken.
    fn push(&mut self) -> bool {
        let mut is_moved = false;
        loop {
            match self.socket.write(&self.frame[self.sent..]) {
                Ok(count) => (self.sent, is_moved) = ((self.sent + count) % self.frame.len(), true),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return is_moved,
                // It was evicted.
                Err(_) => return false,
            }
        }
    }
}

/// Clients that stall, until the server takes no more from any of them.
fn load(server: &Server, count: usize) -> Vec<Stalled> {
    let mut clients: Vec<Stalled> = (0..count).map(|_| Stalled::new(server)).collect();
    let mut quiet = 0;
    while quiet < 5 {
        let is_moved = clients.iter_mut().fold(false, |moved, client| client.push() | moved);
        quiet = if is_moved { 0 } else { quiet + 1 };
        // sleep: the server works meanwhile, and nothing tells when it has had enough.
        thread::sleep(Duration::from_millis(20));
    }
    clients
}

#[test]
fn memory_is_given_back_after_a_load() {
    // Several workers: each thread has an arena of the allocator's own.
    let server = Server::start(&["--workers", "2", "--memory", "1073741824"]);
    let idle = {
        drop(load(&server, 2));
        resident(&server)
    };
    let clients = load(&server, 300);
    let loaded = resident(&server);
    assert!(loaded > idle + 100 * MIB, "{} MiB idle, {} MiB under load", idle / MIB, loaded / MIB);
    drop(clients);
    let start = Instant::now();
    while resident(&server) > idle + 32 * MIB {
        let now = resident(&server) / MIB;
        assert!(start.elapsed() < SOON, "{} MiB idle, {} MiB under load, {now} MiB after it", idle / MIB, loaded / MIB);
        // sleep: the kernel does not tell of it.
        thread::sleep(Duration::from_millis(100));
    }
    println!(
        "{} MiB idle, {} MiB under load, {} MiB {:?} later",
        idle / MIB,
        loaded / MIB,
        resident(&server) / MIB,
        start.elapsed()
    );
    server.stop_cleanly();
}

#[test]
fn the_budget_holds_for_all_workers_together() {
    let server = Server::start(&["--workers", "2", "--memory", "33554432"]);
    let idle = {
        drop(load(&server, 2));
        resident(&server)
    };
    let clients = load(&server, 200);
    let loaded = resident(&server);
    assert!(loaded < idle + (32 + 64) * MIB, "{} MiB idle, {} MiB under load", idle / MIB, loaded / MIB);
    drop(clients);
    let line = server.stop_cleanly();
    assert!(number_before("for memory", &line.replace('(', "")) > 0, "{line}");
}
