//! The memory of an idle connection. It is a separate program because it replaces the global
//! allocator, which counts for each thread: the server's thread has no client.

#![allow(clippy::unwrap_used, reason = "what fails in a test ends it")]

use windlass_testkit::alloc::{Counting, bytes_of_thread};

use std::{
    cell::Cell,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    rc::Rc,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    pki_types::{CertificateDer, pem::PemObject},
    version::{TLS12, TLS13},
};
use windlass::{
    Reactor,
    stream::{Input, Listener, Stream, StreamHandler, TlsSessionFactory as _},
};
use windlass_tls::TlsAcceptor;

/// What TLS may add to an idle connection.
const ADDED_MAX: usize = 4 << 10;

const CONNECTIONS: usize = 64;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

struct Echo(Rc<Cell<usize>>);

impl StreamHandler for Echo {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.0.set(self.0.get() + input.len());
        stream.reply(input, ..).unwrap();
    }
}

/// A connection of the clients.
trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

fn config(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

fn connect(address: SocketAddr, config: Option<&Arc<ClientConfig>>) -> Box<dyn Peer> {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    match config {
        None => Box::new(socket),
        Some(config) => {
            let name = "localhost".try_into().unwrap();
            Box::new(StreamOwned::new(
                ClientConnection::new(Arc::clone(config), name).unwrap(),
                socket,
            ))
        }
    }
}

/// Bytes for each idle connection: after one byte of echo, and after each of these messages.
fn bytes(version: Option<&'static SupportedProtocolVersion>, messages: &[usize]) -> Vec<usize> {
    let mut reactor = Reactor::new().unwrap();
    let received = Rc::new(Cell::new(0));
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let handler = Rc::clone(&received);
    let with_handler =
        |listener: Listener| listener.with_handler(move |_| Some(Echo(Rc::clone(&handler))));
    let registered = match version {
        None => with_handler(listener),
        Some(_) => {
            let acceptor =
                TlsAcceptor::builder().certificate(file("localhost.pem"), file("localhost.key"));
            with_handler(listener.with_tls(Arc::new(acceptor.build().unwrap())))
        }
    };
    registered.register_into(&mut reactor).unwrap();
    let (order, orders) = mpsc::channel::<Option<usize>>();
    let (done, dones) = mpsc::channel();
    // Each order is a message for all connections; none is a new set of connections.
    let clients = thread::spawn(move || {
        let config = version.map(config);
        let mut peers = Vec::new();
        for order in orders {
            if order.is_none() {
                peers.extend((0..CONNECTIONS).map(|_| connect(address, config.as_ref())));
            }
            let mut message = vec![7; order.unwrap_or(1)];
            for peer in &mut peers {
                peer.write_all(&message).unwrap();
                peer.flush().unwrap();
                peer.read_exact(&mut message).unwrap();
            }
            done.send(()).unwrap();
        }
    });
    let mut run = |what| {
        order.send(what).unwrap();
        while dones.try_recv().is_err() {
            reactor.run_once(Duration::from_millis(1)).unwrap();
        }
        // What is shared by all connections, and waits to be freed, is settled.
        for _ in 0..10 {
            reactor.run_once(Duration::ZERO).unwrap();
        }
        bytes_of_thread()
    };
    // The first set makes what all connections share.
    run(None);
    run(None);
    let before = run(Some(1));
    let mut measured = vec![run(None) - before];
    for len in messages {
        measured.push(run(Some(*len)) - before);
    }
    drop(order);
    drop(reactor);
    drop(clients.join());
    let each = |bytes: isize| usize::try_from(bytes).unwrap() / CONNECTIONS;
    measured.into_iter().map(each).collect()
}

/// Bytes for each connection in its handshake: one that has sent nothing, or one whose ClientHello
/// was answered.
fn pending(version: &'static SupportedProtocolVersion, speaks: bool) -> usize {
    let mut reactor = Reactor::new().unwrap();
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let acceptor = TlsAcceptor::builder().certificate(file("localhost.pem"), file("localhost.key"));
    let key = listener
        .with_tls(Arc::new(acceptor.build().unwrap()))
        .with_handler(|_| Some(Echo(Rc::default())))
        .register_into(&mut reactor)
        .unwrap();
    let config = config(version);
    let connect = || {
        let mut socket = TcpStream::connect(address).unwrap();
        if speaks {
            let name = "localhost".try_into().unwrap();
            let mut tls = ClientConnection::new(Arc::clone(&config), name).unwrap();
            tls.write_tls(&mut socket).unwrap();
            socket.set_nonblocking(true).unwrap();
        }
        socket
    };
    let mut sockets: Vec<TcpStream> = Vec::new();
    let mut run = |reactor: &mut Reactor| {
        // The clients keep nothing but their sockets.
        sockets.extend((0..CONNECTIONS).map(|_| connect()));
        let is_answered = |socket: &TcpStream| !speaks || socket.peek(&mut [0]).is_ok();
        while reactor.listener(key).unwrap().connections() < sockets.len()
            || !sockets.iter().all(is_answered)
        {
            reactor.run_once(Duration::from_millis(1)).unwrap();
        }
        for _ in 0..10 {
            reactor.run_once(Duration::ZERO).unwrap();
        }
        bytes_of_thread()
    };
    run(&mut reactor);
    let before = run(&mut reactor);
    let bytes = run(&mut reactor) - before;
    usize::try_from(bytes).unwrap() / CONNECTIONS
}

/// Servers count the estimate in their budgets.
#[test]
fn the_estimate_of_a_handshake_is_close() {
    let acceptor = TlsAcceptor::builder().certificate(file("localhost.pem"), file("localhost.key"));
    let estimate = acceptor.build().unwrap().handshake_memory();
    let kinds = [(&TLS12, false), (&TLS12, true), (&TLS13, false), (&TLS13, true)];
    let measured = kinds.map(|(version, speaks)| pending(version, speaks));
    println!("measured {measured:?}, estimate {estimate}");
    let most = measured.into_iter().max().unwrap();
    assert!(most <= estimate && estimate <= 2 * most, "{measured:?}, {estimate}");
}

/// The goal is in the README of the crate.
#[test]
fn tls_adds_at_most_4_kib_to_an_idle_connection() {
    let messages = [64, 16 << 10, 100 << 10, 1];
    let plain = bytes(None, &messages);
    for version in [&TLS12, &TLS13] {
        let with_tls = bytes(Some(version), &messages);
        println!("{:?}: plain {plain:?}, with TLS {with_tls:?}", version.version);
        for (with_tls, plain) in with_tls.iter().zip(&plain) {
            assert!(with_tls - plain <= ADDED_MAX, "{:?}: {with_tls} - {plain}", version.version);
        }
    }
}
