//! A server as it is operated: reloads and two hand-overs, while clients of every kind use it.
//!
//! 1. *Drivers* echo numbered messages over connections with and without TLS, and open and close
//!    some of them all the time.
//! 2. A *room* has a publisher, and receivers that check the order. The members of another room
//!    never read.
//! 3. *Hostile* clients make rooms, break the protocol, flood and reset, beyond all rates.
//! 4. The main thread reloads the configuration, and twice starts the next server.
//!
//! No client that keeps the rules is refused. What it sends comes back, once and in order, until it
//! ends the connection, or a hand-over that began after its opening does. In the end nothing is
//! left: neither descriptors nor memory.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with},
    process::{Signal, kill_process},
};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use windlass_testkit::{
    any_certificate::AnyCertificate,
    frames::{BINARY, CLOSE, PING, masked},
    waiting::until,
};

use crate::{
    Random,
    harness::{Server, WAIT_MAX, pattern, windlass},
    raise_limit,
};

const DRIVERS: u8 = 8;
const HOSTILE: u8 = 2;
const RECEIVERS: usize = 3;
const SLOW: usize = 5;
const SIZES: [usize; 6] = [8, 20, 125, 126, 1000, 20_000];

/// How long, how much, and how often.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) duration: Duration,
    pub(crate) connections: usize,
    pub(crate) between_reloads: Duration,
    /// Time between two messages of a thread.
    pub(crate) pause: Duration,
}

/// What all clients know.
struct Shared {
    plan: Plan,
    https: SocketAddr,
    http: SocketAddr,
    tls: Arc<ClientConfig>,
    has_ended: AtomicBool,
    /// Hand-overs that have begun, and those after which the old server has ended.
    begun: AtomicUsize,
    finished: AtomicUsize,
    opened: AtomicU64,
    messages: AtomicU64,
    handed_over: AtomicU64,
}

trait Socket: Read + Write + Send {}
impl<S: Read + Write + Send> Socket for S {}

/// An open WebSocket.
struct Client {
    socket: Box<dyn Socket>,
    /// The hand-overs that had finished before it was opened.
    hand_overs: usize,
    next: u64,
}

/// The end of a connection by a hand-over.
struct HandedOver;

impl Shared {
    fn goes_on(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }

    /// Opens a WebSocket from an address of its own. A server that keeps its word refuses none.
    fn open(&self, from: Ipv4Addr, path: &str, has_tls: bool) -> Client {
        let hand_overs = self.finished.load(Ordering::SeqCst);
        let client = self.try_open(from, path, has_tls, hand_overs);
        let client = client.unwrap_or_else(|error| panic!("{path} is refused: {error}"));
        self.opened.fetch_add(1, Ordering::Relaxed);
        client
    }

    fn try_open(
        &self,
        from: Ipv4Addr,
        path: &str,
        has_tls: bool,
        hand_overs: usize,
    ) -> io::Result<Client> {
        let socket = connect_from(from, if has_tls { self.https } else { self.http })?;
        let mut socket: Box<dyn Socket> = if has_tls {
            let name = "localhost".try_into().map_err(io::Error::other)?;
            let session = ClientConnection::new(Arc::clone(&self.tls), name);
            Box::new(StreamOwned::new(session.map_err(io::Error::other)?, socket))
        } else {
            Box::new(socket)
        };
        socket.write_all(upgrade(path).as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        match head.starts_with(b"HTTP/1.1 101 ") {
            true => Ok(Client { socket, hand_overs, next: 0 }),
            false => Err(io::Error::other(String::from_utf8_lossy(&head).into_owned())),
        }
    }

    /// Checks that a connection may have ended.
    fn ended(&self, client: &Client, why: &dyn std::fmt::Display) -> HandedOver {
        let has_begun = self.begun.load(Ordering::SeqCst) > client.hand_overs;
        assert!(has_begun, "a connection has ended without a hand-over: {why}");
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        HandedOver
    }

    /// Sends the next message of a connection, which begins with its number.
    fn send(&self, client: &mut Client, filler: &[u8]) -> Result<(), HandedOver> {
        let message = [&client.next.to_be_bytes()[..], filler].concat();
        match client.socket.write_all(&masked(BINARY, &message)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.ended(client, &error)),
        }
    }

    /// Receives a message, which must be the next one of its sender.
    fn receive(&self, client: &mut Client, filler: &[u8]) -> Result<(), HandedOver> {
        let frame = match frame(&mut client.socket) {
            Ok(frame) => frame,
            Err(error) => return Err(self.ended(client, &error)),
        };
        match frame {
            (BINARY, payload) => {
                let (number, rest) = payload.split_at(8);
                assert_eq!(number, client.next.to_be_bytes(), "lost, doubled or reordered");
                assert!(rest == filler, "message {} is changed", client.next);
                client.next += 1;
                self.messages.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            (CLOSE, reason) => {
                assert_eq!(reason[..2], 1001_u16.to_be_bytes(), "{reason:?}");
                // It fails if the server has not waited for it.
                let _ = client.socket.write_all(&masked(CLOSE, &reason));
                Err(self.ended(client, &"a Close frame"))
            }
            (first, _) => panic!("a frame {first:#x}"),
        }
    }
}

/// Connects from an address of the loopback network.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    // The next server must not inherit it.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &to)?;
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(WAIT_MAX))?;
    socket.set_write_timeout(Some(WAIT_MAX))?;
    Ok(socket)
}

fn upgrade(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// The first byte of a frame of the server, and its payload.
fn frame(socket: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    socket.read_exact(&mut head)?;
    let mut len = usize::from(head[1]);
    if len == 126 {
        let mut long = [0; 2];
        socket.read_exact(&mut long)?;
        len = u16::from_be_bytes(long).into();
    }
    let mut payload = vec![0; len];
    socket.read_exact(&mut payload)?;
    Ok((head[0], payload))
}

fn driver(shared: &Shared, index: u8) {
    let from = Ipv4Addr::new(127, 0, 2, index + 1);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (u64::from(index) + 1));
    let open = |at: usize| shared.open(from, "/echo", at.is_multiple_of(2));
    let mut clients: Vec<_> =
        (0..shared.plan.connections / usize::from(DRIVERS)).map(open).collect();
    let bytes = pattern(index.into(), 20_000);
    while shared.goes_on() {
        let at = random.below(clients.len());
        let filler = &bytes[..SIZES[random.below(SIZES.len())]];
        let client = &mut clients[at];
        let exchanged = shared.send(client, filler).and_then(|()| shared.receive(client, filler));
        if exchanged.is_err() {
            clients[at] = open(at);
        } else if random.below(30) == 0 {
            // Half of them end in order.
            if random.below(2) == 0 {
                end(shared, &mut clients[at]);
            }
            clients[at] = open(at);
        }
        // sleep: it limits the load.
        thread::sleep(shared.plan.pause);
    }
    clients.iter_mut().for_each(|client| end(shared, client));
}

/// Ends a connection in order.
fn end(shared: &Shared, client: &mut Client) {
    let close = masked(CLOSE, &1000_u16.to_be_bytes());
    let ended = client.socket.write_all(&close).and_then(|()| frame(&mut client.socket));
    match ended {
        Ok((first, _)) => assert_eq!(first, CLOSE, "nothing is left"),
        Err(error) => drop(shared.ended(client, &error)),
    }
}

/// Publishes to a room, and checks that all receivers get all of it in order.
fn room(shared: &Shared) {
    let from = Ipv4Addr::new(127, 0, 3, 1);
    let bytes = pattern(8, 5000);
    while shared.goes_on() {
        let open = |at: usize| shared.open(from, "/room/ordered", at.is_multiple_of(2));
        let finished = shared.finished.load(Ordering::SeqCst);
        let mut members: Vec<_> = (0..=RECEIVERS).map(open).collect();
        if shared.begun.load(Ordering::SeqCst) > finished {
            // They may be at two servers.
            // sleep: it limits the load.
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        let mut publish = || {
            let (publisher, receivers) = members.split_first_mut().expect("there are some");
            shared.send(publisher, &bytes)?;
            publisher.next += 1;
            receivers.iter_mut().try_for_each(|receiver| shared.receive(receiver, &bytes))
        };
        while shared.goes_on() && publish().is_ok() {
            // sleep: it limits the load.
            thread::sleep(shared.plan.pause);
        }
    }
}

/// Publishes to members that do not read.
fn slow_readers(shared: &Shared) {
    let from = Ipv4Addr::new(127, 0, 3, 2);
    let bytes = pattern(9, 40_000);
    while shared.goes_on() {
        let open = |at: usize| shared.open(from, "/room/slow", at.is_multiple_of(2));
        let mut members: Vec<_> = (0..=SLOW).map(open).collect();
        while shared.goes_on() && shared.send(&mut members[0], &bytes).is_ok() {
            members[0].next += 1;
            // sleep: a few dozens of messages a second are enough to fill the buffers.
            thread::sleep(shared.plan.pause.max(Duration::from_millis(20)));
        }
    }
}

/// Breaks rules, and is refused or ended. Whatever comes back is ignored.
fn hostile(shared: &Shared, index: u8) {
    let from = Ipv4Addr::new(127, 0, 4, index + 1);
    let mut random = Random(77 + u64::from(index));
    while shared.goes_on() {
        let has_tls = random.below(4) == 0;
        let name: String = (0..random.below(300)).map(|_| 'n').collect();
        let path = format!("/room/{}{name}", random.below(100_000));
        // sleep: it limits the load.
        thread::sleep(shared.plan.pause);
        let to = if has_tls { shared.https } else { shared.http };
        match random.below(4) {
            0 => {
                let Ok(mut socket) = connect_from(from, to) else { continue };
                let garbage = pattern(random.below(1000) as u64, 500);
                let _ = socket.write_all(&garbage);
            }
            1 => {
                // A request that never ends.
                let Ok(mut socket) = connect_from(from, to) else { continue };
                let _ = socket.write_all(b"GET / HTTP/1.1\r\nX: ");
            }
            _ => {
                let Ok(mut client) = shared.try_open(from, &path, has_tls, 0) else { continue };
                let socket = &mut client.socket;
                let _ = match random.below(3) {
                    // Frames of a client are masked.
                    0 => socket.write_all(&[BINARY, 1, 0]),
                    1 => socket.write_all(&masked(PING, b"").repeat(200)),
                    _ => socket.write_all(&masked(BINARY, b"flood").repeat(5000)),
                };
                if random.below(2) == 0 {
                    let _ = frame(socket);
                }
            }
        }
    }
}

/// The next server of the chain, with its two addresses.
fn start(folder: &Path, takes_over: bool) -> (Server, SocketAddr, SocketAddr) {
    let path = |name: &str| folder.join(name).to_str().expect("it is text").to_owned();
    let (config, hand_over) = (path("windlass.toml"), path("hand-over"));
    let mut arguments = vec!["serve", "--config", &config, "--hand-over", &hand_over];
    if takes_over {
        arguments.extend(["--take-over", &hand_over]);
    }
    let (server, lines) = Server::with_lines(windlass(&arguments), 3);
    let address = |line: &str| {
        let (_, place) = line.split_once("://").expect("it is an address");
        place.trim_end_matches('/').parse().expect("an address")
    };
    let (https, http) = (address(&lines[1]), address(&lines[2]));
    (server, https, http)
}

/// Writes the configuration. Each one differs from the one before.
fn configure(folder: &Path, number: usize) {
    let limit = 30_000 + number;
    let text = format!(
        "listen = ['https://127.0.0.2:0', 'http://127.0.0.1:0']\n\
         tls-self-signed = true\nworkers = 2\ndrain-timeout = 5\nbuffer = 600000\n\
         message-max = {}\nconnections = {limit}\nhandshake-timeout = 5\nmemory = 200000000\n\
         ping-interval = 0\nidle-timeout = 0\n\
         connection-rate-per-address = '2000:6000'\nrequest-rate-per-address = '2000:6000'\n\
         tls-handshake-rate-per-address = '2000:6000'\n\
         message-rate = '1000:3000'\nmessage-byte-rate = '20000000:60000000'\n",
        100_000 + number
    );
    fs::write(folder.join("windlass.toml"), text).expect("it can be written");
}

fn descriptors(server: &Server) -> usize {
    let folder = format!("/proc/{}/fd", server.pid().as_raw_nonzero());
    fs::read_dir(folder).expect("it runs").count()
}

/// The resident memory in KiB.
fn resident(server: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero()));
    let text = text.expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

pub(crate) fn soak(name: &str, plan: Plan) {
    raise_limit();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("operation-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("it can be made");
    configure(&folder, 0);
    let (mut server, https, http) = start(&folder, false);
    let (idle_descriptors, idle_memory) = (descriptors(&server), resident(&server));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("there are some")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    let shared = Arc::new(Shared {
        plan,
        https,
        http,
        tls: Arc::new(tls),
        has_ended: AtomicBool::new(false),
        begun: AtomicUsize::new(0),
        finished: AtomicUsize::new(0),
        opened: AtomicU64::new(0),
        messages: AtomicU64::new(0),
        handed_over: AtomicU64::new(0),
    });
    let threads: Vec<_> = (0..DRIVERS + HOSTILE + 2)
        .map(|index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || match index {
                0 => room(&shared),
                1 => slow_readers(&shared),
                2..4 => hostile(&shared, index - 2),
                _ => driver(&shared, index - 2 - HOSTILE),
            })
        })
        .collect();
    let begin = Instant::now();
    let mut reloads = 0;
    let mut memory = Vec::new();
    while begin.elapsed() < plan.duration || shared.finished.load(Ordering::SeqCst) < 2 {
        // sleep: the time between two reloads is part of the plan.
        thread::sleep(plan.between_reloads);
        reloads += 1;
        configure(&folder, reloads);
        kill_process(server.pid(), Signal::HUP).expect("it runs");
        server.wait_for_error("configuration reloaded");
        memory.push(resident(&server));
        let begun = shared.begun.load(Ordering::SeqCst);
        if begun < 2 && begin.elapsed() > plan.duration * (begun as u32 + 1) / 3 {
            shared.begun.fetch_add(1, Ordering::SeqCst);
            let (next, ..) = start(&folder, true);
            let (status, line) = std::mem::replace(&mut server, next).ended();
            assert_eq!(status.code(), Some(0), "{line}");
            assert!(line.contains("a hand-over to process"), "{line}");
            println!("{line}");
            shared.finished.fetch_add(1, Ordering::SeqCst);
        }
    }
    shared.has_ended.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no client panics"));
    let counts = [&shared.opened, &shared.messages, &shared.handed_over];
    let [opened, messages, handed_over] = counts.map(|count| count.load(Ordering::Relaxed));
    println!(
        "{opened} connections, {handed_over} ended by hand-overs, {messages} messages, {reloads} \
         reloads; KiB at each: {memory:?}"
    );
    assert!(handed_over > 0 && messages > opened, "{messages} messages");
    // Everybody has left. What the handshakes of hostile clients hold ends with their time limit.
    let left = || descriptors(&server).saturating_sub(idle_descriptors);
    until(
        || (left() <= DESCRIPTORS_LATER_MAX).then_some(()),
        || format!("{} more descriptors", left()),
    );
    let growth = resident(&server).saturating_sub(idle_memory);
    println!("memory before {idle_memory} KiB, and {growth} KiB more in the end");
    assert!(growth < MEMORY_LEFT_MAX, "{growth} KiB of memory are left");
    server.stop_cleanly();
    let _ = fs::remove_dir_all(&folder);
}

/// Descriptors that a server opens after its start: for the size of its memory, and for a hand-over
/// that it has taken.
const DESCRIPTORS_LATER_MAX: usize = 4;

/// Memory in KiB that a server may keep when all clients have gone: caches of its allocator and
/// tables that have grown.
const MEMORY_LEFT_MAX: u64 = 32 << 10;
