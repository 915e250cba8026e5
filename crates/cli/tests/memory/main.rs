//! The memory of `windlass serve` while clients do not read, and after they have disconnected.

#[path = "../suite/harness.rs"]
mod harness;

use std::{
    cell::Cell,
    io::{ErrorKind, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use harness::{Server, WAIT_MAX, number_before};

const MIB: u64 = 1 << 20;

/// Maximum time until the server returns memory to the kernel.
const SOON: Duration = Duration::from_secs(30);

/// Returns the resident memory of the server.
fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let text = std::fs::read_to_string(path).expect("the server runs");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("it says how much is resident");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A client of the echo that sends as much as the server takes, and does not read.
struct Stalled {
    socket: TcpStream,
    frame: Vec<u8>,
    sent: usize,
}

impl Stalled {
    fn new(server: &Server) -> Self {
        let mut socket = server.connect();
        let request = "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                   Connection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        socket.write_all(request.as_bytes()).expect("the server reads");
        socket.set_nonblocking(true).expect("it can be set");
        let mut frame = vec![0x82, 0xfe, 0x40, 0, 0, 0, 0, 0];
        frame.resize(8 + 0x4000, 7);
        Self { socket, frame, sent: 0 }
    }

    /// Sends as much as the server takes. Returns false if the client was evicted.
    fn push(&mut self) -> bool {
        loop {
            match self.socket.write(&self.frame[self.sent..]) {
                Ok(count) => self.sent = (self.sent + count) % self.frame.len(),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

/// Adds stalled clients until the condition holds for the resident memory and the number of evicted
/// clients.
fn load(server: &Server, count: usize, is_enough: impl Fn(u64, usize) -> bool) -> Vec<Stalled> {
    let mut clients: Vec<Stalled> = (0..count).map(|_| Stalled::new(server)).collect();
    let start = Instant::now();
    loop {
        clients.retain_mut(Stalled::push);
        let (now, evicted) = (resident(server), count - clients.len());
        if is_enough(now, evicted) {
            return clients;
        }
        assert!(start.elapsed() < WAIT_MAX, "{} MiB resident, {evicted} evicted", now / MIB);
        // sleep: the server works meanwhile.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the resident memory of the server after it has served some clients.
fn idle(server: &Server) -> u64 {
    drop(load(server, 2, |_, _| true));
    resident(server)
}

#[test]
fn memory_is_given_back_after_a_load() {
    // Several workers, because the allocator has an arena per thread.
    let server = Server::start(&["--workers", "2", "--memory", "1073741824"]);
    let idle = idle(&server);
    let clients = load(&server, 300, |now, _| now > idle + 150 * MIB);
    let loaded = resident(&server);
    drop(clients);
    let start = Instant::now();
    while resident(&server) > idle + 32 * MIB {
        let now = resident(&server) / MIB;
        assert!(
            start.elapsed() < SOON,
            "{} MiB idle, {} MiB under load, {now} MiB after it",
            idle / MIB,
            loaded / MIB
        );
        // sleep: no event tells that the resident memory has changed.
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
    let idle = idle(&server);
    let most = Cell::new(0);
    let clients = load(&server, 200, |now, evicted| {
        most.set(now.max(most.get()));
        evicted >= 50
    });
    let most = most.get();
    assert!(
        most < idle + (32 + 64) * MIB,
        "{} MiB idle, {} MiB under load",
        idle / MIB,
        most / MIB
    );
    drop(clients);
    let line = server.stop_cleanly();
    assert!(number_before("for memory", &line.replace('(', "")) > 0, "{line}");
}
