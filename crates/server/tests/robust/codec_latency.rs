//! Measures how long a light client waits for its echo while other clients make the server compress
//! and decompress as much as they may. The test asserts nothing, because times depend on the
//! machine. `codec_budget.rs` checks the guarantees by counts.
//!
//! `cargo test --release -p windlass-server --test robust -- --ignored --nocapture codec_latency`

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, poll};
use windlass_server::{
    Connection, Handler, Message, Options, Server,
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_ws::deflate::{Agreement, Codec, CodecPool, DeflateConfig};

use crate::{
    fixture::Random,
    raw_client::{BINARY, COMPRESSED, TEXT, masked, upgrade},
};

const CLIENTS: usize = 40;
const LEN: usize = 1 << 20;
/// Duration of each measurement.
const SPAN: Duration = Duration::from_secs(4);
/// Interval between the messages of the light client.
const PERIOD: Duration = Duration::from_millis(2);

struct Echo;

impl Handler for Echo {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        // It fails only if the connection is closing.
        let _ = connection.reply_in_place(message);
    }
}

fn compressed(payload: &[u8]) -> Vec<u8> {
    let (mut config, mut agreement) = (DeflateConfig::DEFAULT, Agreement::DEFAULT);
    config.threshold = 0;
    agreement.client_no_context_takeover = true;
    let mut out = Vec::new();
    assert!(
        Codec::new(false, &agreement, &config).compress(&mut CodecPool::new(), payload, &mut out),
        "it is shorter"
    );
    out
}

/// As many zeros as the ratio of 100 allows, after bytes that cannot be compressed.
fn zeros() -> Vec<u8> {
    let mut random = Random::new(1);
    let mut bytes: Vec<u8> = (0..9600).map(|_| random.below(256) as u8).collect();
    bytes.resize(LEN, 0);
    bytes
}

/// Words in random order.
fn text() -> Vec<u8> {
    let mut random = Random::new(2);
    let words: Vec<String> = (0..2000)
        .map(|_| {
            (0..2 + random.below(9)).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
        })
        .collect();
    let mut text = String::new();
    while text.len() < LEN {
        text.push_str(&words[random.below(words.len()).min(random.below(words.len()))]);
        text.push(' ');
    }
    text.truncate(LEN);
    text.into_bytes()
}

fn connect(to: SocketAddr, lines: &str) -> TcpStream {
    let mut socket = TcpStream::connect(to).expect("the server listens");
    socket.set_nodelay(true).expect("the option can be set");
    socket.write_all(&upgrade("/", lines)).expect("the kernel takes it");
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("an answer comes");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    socket
}

const DEFLATE: &str =
    "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover\r\n";

/// A client that sends its message again as soon as the echo has arrived.
struct LoadClient {
    socket: TcpStream,
    sent: usize,
    received: Vec<u8>,
}

impl LoadClient {
    /// Reads and writes as much as possible. Returns true when a whole echo has arrived.
    fn go_on(&mut self, frame: &[u8], buffer: &mut [u8]) -> bool {
        while self.sent < frame.len() {
            match self.socket.write(&frame[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        match self.socket.read(buffer) {
            Ok(0) => panic!("the server has closed"),
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        if frame_len(&self.received).is_none_or(|len| self.received.len() < len) {
            return false;
        }
        assert_eq!(self.received[0] & 0x0f, 2, "an echo, and no Close frame");
        self.received.clear();
        self.sent = 0;
        true
    }
}

/// Returns the length of the frame at the start of the bytes.
fn frame_len(bytes: &[u8]) -> Option<usize> {
    let (&[_, second], rest) = bytes.split_first_chunk::<2>()?;
    Some(match second {
        126 => 4 + usize::from(u16::from_be_bytes(*rest.first_chunk()?)),
        127 => 10 + u64::from_be_bytes(*rest.first_chunk()?) as usize,
        len => 2 + usize::from(len),
    })
}

fn load_clients(
    to: SocketAddr,
    frame: &[u8],
    count: usize,
    is_over: &AtomicBool,
    echoes: &AtomicU64,
) {
    let mut load_clients: Vec<LoadClient> = (0..count)
        .map(|_| {
            let socket = connect(to, DEFLATE);
            socket.set_nonblocking(true).expect("the option can be set");
            LoadClient { socket, sent: 0, received: Vec::new() }
        })
        .collect();
    let mut buffer = vec![0; 256 << 10];
    while !is_over.load(Ordering::Relaxed) {
        for load_client in &mut load_clients {
            while load_client.go_on(frame, &mut buffer) {
                echoes.fetch_add(1, Ordering::Relaxed);
            }
        }
        let wanted = |load_client: &LoadClient| match load_client.sent < frame.len() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut fds: Vec<PollFd<'_>> = load_clients
            .iter()
            .map(|load_client| PollFd::new(&load_client.socket, wanted(load_client)))
            .collect();
        let longest = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        poll(&mut fds, Some(&longest)).expect("poll works");
    }
}

/// Returns the latencies of a client that sends a message now and then.
fn light_client(to: SocketAddr, has_deflate: bool) -> Vec<Duration> {
    let said = b"is anybody there? anybody?";
    let (mut socket, frame) = match has_deflate {
        true => (connect(to, DEFLATE), masked(TEXT | COMPRESSED, &compressed(said))),
        false => (connect(to, ""), masked(TEXT, said)),
    };
    let (mut latencies, begin) = (Vec::new(), Instant::now());
    let mut echo = [0; 28];
    while begin.elapsed() < SPAN {
        let start = Instant::now();
        socket.write_all(&frame).expect("the kernel takes it");
        socket.read_exact(&mut echo).expect("the echo comes");
        latencies.push(start.elapsed());
        assert_eq!(&echo[2..], said);
        // sleep: the client sends at intervals, and does not load the server.
        thread::sleep(PERIOD);
    }
    latencies.sort_unstable();
    latencies
}

#[test]
#[ignore = "a measurement of half a minute, for a build with --release"]
fn stall_of_a_stranger() {
    let cases = [("nobody", 0, zeros()), ("zeros", CLIENTS, zeros()), ("text", CLIENTS, text())];
    for (name, count, payload) in cases {
        let frame = masked(BINARY | COMPRESSED, &compressed(&payload));
        for has_deflate in [false, true] {
            let mut options = Options::new();
            options.deflate = Some(DeflateConfig::DEFAULT);
            let address = "127.0.0.1:0".parse().expect("an address");
            let running = Server::new(options, |_| Echo)
                .backend(crate::backend::chosen())
                .listen(address)
                .start()
                .expect("it starts");
            let to = running.addresses()[0].socket_addr().expect("an IP address");
            let (is_over, echoes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            let load = {
                let (is_over, echoes, frame) =
                    (Arc::clone(&is_over), Arc::clone(&echoes), frame.clone());
                thread::spawn(move || load_clients(to, &frame, count, &is_over, &echoes))
            };
            let latencies = light_client(to, has_deflate);
            is_over.store(true, Ordering::Relaxed);
            load.join().expect("the clients are well");
            let counts = running.stats_handle();
            running.stop();
            running.join().expect("it ends");
            let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
            let stats = counts.stats();
            println!(
                "{name} of {CLIENTS} clients, {} bytes each; light client {}: p50 {:?} p99 {:?} \
                 p99.9 {:?} max {:?} of {}; {} echoes; per turn {} inflated, {} deflated at most",
                frame.len(),
                if has_deflate { "compressed" } else { "plain" },
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                latencies.len(),
                echoes.load(Ordering::Relaxed),
                stats.inflated_per_turn_most,
                stats.deflated_per_turn_most,
            );
        }
    }
}
