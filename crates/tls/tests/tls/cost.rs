//! What handshakes cost, in processor time of the server's thread. Run it with optimization:
//!
//! ```sh
//! cargo test --release -p windlass-tls --test tls -- --ignored --nocapture cost::the cost::a
//! ```

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use rustls::{
    ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned,
    client::Resumption,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use windlass::{
    Reactor,
    stream::{Input, Listener, Stream, StreamHandler},
};
use windlass_tls::TlsAcceptor;

use crate::{any_certificate::AnyCertificate, bed::file};

/// The longest turn that a flood of handshakes may cause, for 99 of 100 turns.
const TURN_MAX: Duration = Duration::from_millis(10);

/// A sanity bound for the processor time of a handshake, over that of rustls and of a plain
/// connection together.
const RATIO_MAX: f64 = 2.0;

struct Echo;

impl StreamHandler for Echo {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        stream.reply(input, ..).unwrap();
    }
}

/// The first read of rustix' clock ends the program under valgrind.
static IS_COUNTED: AtomicBool = AtomicBool::new(false);

/// The processor time of this thread.
fn used() -> Duration {
    if IS_COUNTED.load(Relaxed) {
        return Duration::ZERO;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A client without resumption.
fn client() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

fn new_client(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap()
}

/// The settings of a server by rustls alone.
fn server_config(certificate: &Path, key: &Path) -> Arc<ServerConfig> {
    let provider = rustls::crypto::ring::default_provider();
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(certificate).unwrap()],
            PrivateKeyDer::from_pem_file(key).unwrap(),
        )
        .unwrap();
    config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
    Arc::new(config)
}

/// The server's side of so many handshakes and echoes by rustls alone, in this thread. Returns its
/// processor time. The client has another thread.
fn of_rustls(count: u32, certificate: &Path, key: &Path) -> Duration {
    let config = server_config(certificate, key);
    let (to_server, from_client) = mpsc::channel::<Vec<u8>>();
    let (to_client, from_server) = mpsc::channel::<Vec<u8>>();
    let clients = thread::spawn(move || {
        let settings = client();
        for _ in 0..count {
            let mut client = new_client(&settings);
            let mut echo = Vec::new();
            client.writer().write_all(b"x").unwrap();
            while echo.is_empty() {
                let mut flight = Vec::new();
                while client.wants_write() {
                    client.write_tls(&mut flight).unwrap();
                }
                to_server.send(flight).unwrap();
                client.read_tls(&mut &from_server.recv().unwrap()[..]).unwrap();
                client.process_new_packets().unwrap();
                let _ = client.reader().read_to_end(&mut echo);
            }
        }
    });
    let mut total = Duration::ZERO;
    for _ in 0..count {
        let begin = used();
        let mut server = ServerConnection::new(Arc::clone(&config)).unwrap();
        total += used() - begin;
        let mut is_echoed = false;
        while !is_echoed {
            let (flight, mut answer) = (from_client.recv().unwrap(), Vec::new());
            let begin = used();
            server.read_tls(&mut &flight[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut byte = [0];
            if server.reader().read(&mut byte).is_ok() {
                server.writer().write_all(&byte).unwrap();
                is_echoed = true;
            }
            while server.wants_write() {
                server.write_tls(&mut answer).unwrap();
            }
            total += used() - begin;
            to_client.send(answer).unwrap();
        }
    }
    clients.join().unwrap();
    total
}

/// Connects, sends a byte, reads it and leaves, again and again.
fn connections(address: SocketAddr, count: u32, has_tls: bool) {
    let settings = client();
    for _ in 0..count {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut byte = [0];
        if has_tls {
            let mut tls = StreamOwned::new(new_client(&settings), socket);
            tls.write_all(b"x").unwrap();
            tls.read_exact(&mut byte).unwrap();
        } else {
            (&socket).write_all(b"x").unwrap();
            (&socket).read_exact(&mut byte).unwrap();
        }
    }
}

/// The time of a server for so many connections, and of its turns.
fn of_windlass(
    threads: u32,
    count: u32,
    files: Option<(&Path, &Path)>,
) -> (Duration, Vec<Duration>) {
    let mut reactor = Reactor::new().unwrap();
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let listener = match files {
        None => listener,
        Some((certificate, key)) => {
            let acceptor = TlsAcceptor::builder().certificate(certificate, key);
            listener.with_tls(Arc::new(acceptor.build().unwrap()))
        }
    };
    listener.with_handler(|_| Some(Echo)).register_into(&mut reactor).unwrap();
    let (done, dones) = mpsc::channel();
    for _ in 0..threads {
        let (done, has_tls) = (done.clone(), files.is_some());
        thread::spawn(move || {
            connections(address, count / threads, has_tls);
            done.send(()).unwrap();
        });
    }
    let (begin, mut turns, mut left) = (used(), Vec::new(), threads);
    while left > 0 {
        let before = used();
        reactor.run_once(Duration::from_millis(1)).unwrap();
        turns.push(used() - before);
        left -= u32::from(dones.try_recv().is_ok());
    }
    (used() - begin, turns)
}

#[test]
#[ignore = "a measurement, which needs an optimized build"]
fn the_cost_of_a_handshake() {
    const COUNT: u32 = 1_600;
    let (certificate, key) = (file("localhost.pem"), file("localhost.key"));
    // One client at a time makes the server sleep before each flight. That is more often than for
    // a plain connection, and costs time of the kernel.
    for clients in [1, 16] {
        let mut ratios = Vec::new();
        for _ in 0..3 {
            let (plain, _) = of_windlass(clients, COUNT, None);
            let alone = of_rustls(COUNT, &certificate, &key);
            let (with_tls, _) = of_windlass(clients, COUNT, Some((&certificate, &key)));
            let ratio = with_tls.as_secs_f64() / (plain + alone).as_secs_f64();
            println!(
                "{clients} clients: plain {:?}, rustls {:?}, both {:?}: {ratio:.3}",
                plain / COUNT,
                alone / COUNT,
                with_tls / COUNT
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("{clients} clients, in order: {ratios:.3?}");
        // docs/streams.md has what is measured. In instructions of the program it is 1.006, by
        // `instructions_of_handshakes`.
        assert!(ratios[0] <= RATIO_MAX, "{ratios:?}");
    }
}

/// For callgrind, with `--separate-threads=yes`: the second thread is the server's. `PART` in the
/// environment names what runs (`plain`, `rustls` or `windlass`), and `COUNT` how many handshakes.
#[test]
#[ignore = "a measurement, which needs callgrind"]
fn instructions_of_handshakes() {
    IS_COUNTED.store(true, Relaxed);
    let (what, count) = (std::env::var("PART").unwrap(), std::env::var("COUNT").unwrap());
    let count = count.parse().unwrap();
    let (certificate, key) = (file("localhost.pem"), file("localhost.key"));
    match &what[..] {
        "plain" => drop(of_windlass(1, count, None)),
        "rustls" => drop(of_rustls(count, &certificate, &key)),
        _ => drop(of_windlass(1, count, Some((&certificate, &key)))),
    }
}

/// Connections of many threads at once, with an RSA key of 2048 and of 4096 bits.
#[test]
#[ignore = "a measurement, which needs an optimized build"]
fn a_flood_of_handshakes_leaves_turns_short() {
    let folder = std::env::temp_dir().join(format!("windlass-tls-cost-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for kind in ["ecdsa", "rsa:2048", "rsa:4096"] {
        let (mut certificate, mut key) = (file("localhost.pem"), file("localhost.key"));
        if kind != "ecdsa" {
            (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
            let done = Command::new("openssl")
                .args(["req", "-x509", "-nodes", "-subj", "/CN=localhost", "-newkey", kind])
                .args([Path::new("-keyout"), &key, Path::new("-out"), &certificate])
                .output();
            assert!(done.unwrap().status.success());
        }
        let (total, mut turns) = of_windlass(48, 960, Some((&certificate, &key)));
        turns.sort();
        let (p99, most) = (turns[turns.len() * 99 / 100], turns[turns.len() - 1]);
        println!("{kind}: {:?} each, turns: p99 {p99:?}, longest {most:?}", total / 960);
        assert!(p99 <= TURN_MAX, "{kind}");
    }
    fs::remove_dir_all(&folder).unwrap();
}
