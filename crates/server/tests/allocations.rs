//! Counts allocations: a message costs none once all buffers have grown. An idle connection takes
//! little memory.
//!
//! The allocator counts for all threads, so there is one test in its own process.

use windlass_testkit::{
    alloc::{Counting, bytes, calls},
    backend,
    frames::{BINARY, masked},
};

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use windlass::{Backend, Reactor};
use windlass_server::{
    Connection, Handler, Message, Options, Prepared, Service,
    http::{Accept, Reject, UpgradeRequest},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Echoes, publishes or sends. The first letter of a message selects which.
struct TestHandler(Prepared);

impl Handler for TestHandler {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_open(&self, connection: &mut Connection<'_>, (): &mut ()) {
        connection.subscribe("room").unwrap();
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        match message.as_bytes().first() {
            Some(b'e') => connection.reply_in_place(message).unwrap(),
            Some(b'p') => _ = connection.publish_to_others("room", message.to_out()),
            Some(b'a') => _ = connection.publish("room", message.to_out()),
            Some(b's') => connection.send(message.to_out()).unwrap(),
            Some(b'b') => connection.send_prepared(&self.0).unwrap(),
            Some(b'h') => {
                let id = connection.id();
                connection.hub().send(id, message.to_out()).unwrap();
            }
            _ => panic!("the test sends no such message"),
        }
    }
}

struct Fixture {
    reactor: Reactor,
    service: Service<TestHandler>,
    address: SocketAddr,
}

impl Fixture {
    fn new(configure: impl FnOnce(&mut Options)) -> Self {
        let mut reactor = Reactor::builder().backend(backend::chosen()).build().unwrap();
        let mut options = Options::new();
        configure(&mut options);
        let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap().socket_addr().unwrap();
        let service =
            Service::new(TestHandler(Prepared::new("prepared")), &options, &mut reactor).unwrap();
        service.listen(listener, &mut reactor).unwrap();
        Self { reactor, service, address }
    }

    fn turn(&mut self) {
        self.reactor.run_once(Duration::ZERO).unwrap();
    }

    fn connect(&mut self) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).unwrap();
        let request =
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        socket.write_all(request).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut head = [0; 512];
        let mut len = 0;
        while !head[..len].ends_with(b"\r\n\r\n") {
            self.turn();
            len += socket.read(&mut head[len..]).unwrap_or(0);
        }
        socket
    }

    /// Reads exactly as many bytes as the slice holds.
    fn read(&mut self, socket: &mut TcpStream, bytes: &mut [u8]) {
        let mut len = 0;
        while len < bytes.len() {
            self.turn();
            len += socket.read(&mut bytes[len..]).unwrap_or(0);
        }
    }
}

/// The size of two receive buffers of a ring. A message is cut where one of them ends. The buffer
/// for its first half grows to the largest half so far.
const TWO_BUFFERS: usize = 128 << 10;

/// Returns the number of allocations for at least 100 messages of this kind. Several times as many
/// messages are sent before, so that all buffers have grown.
fn allocations(letter: u8, len: usize, at_once: usize, answers: &[usize]) -> usize {
    let mut fixture = Fixture::new(|options| options.receiver_buffer_max = 64 << 20);
    let mut sockets: Vec<TcpStream> = answers.iter().map(|_| fixture.connect()).collect();
    let payload = vec![letter; len];
    let frames: Vec<u8> = (0..at_once).flat_map(|_| masked(BINARY, &payload)).collect();
    let mut buffers: Vec<Vec<u8>> = answers.iter().map(|len| vec![0; *len * at_once]).collect();
    let mut before = 0;
    let rounds = 100.max(TWO_BUFFERS.div_ceil(frames.len()));
    for round in 0..5 * rounds {
        if round == 4 * rounds {
            before = calls();
        }
        sockets[0].write_all(&frames).unwrap();
        for (socket, buffer) in sockets.iter_mut().zip(&mut buffers) {
            fixture.read(socket, buffer);
        }
    }
    calls() - before
}

#[test]
fn messages_allocate_nothing_and_an_idle_connection_has_little() {
    for at_once in [1, 16] {
        for (letter, len, answers) in [
            (b'e', 20, &[22, 0][..]),
            (b'e', 1000, &[1004, 0]),
            (b's', 20, &[22, 0]),
            (b's', 1000, &[1004, 0]),
            (b'h', 20, &[22, 0]),
            (b'b', 20, &[10, 0]),
            (b'p', 20, &[0, 22, 22]),
            (b'p', 1000, &[0, 1004, 1004]),
            (b'a', 20, &[22, 22, 22]),
        ] {
            let count = allocations(letter, len, at_once, answers);
            assert_eq!(count, 0, "{} of {len} bytes, {at_once} at once", letter as char);
        }
    }
    an_idle_connection_has_little();
}

fn an_idle_connection_has_little() {
    const COUNT: usize = 400;
    let mut fixture = Fixture::new(|_| {});
    // The first connection allocates everything that all connections share.
    let mut sockets = vec![fixture.connect()];
    let before = bytes();
    sockets.extend((0..COUNT).map(|_| fixture.connect()));
    let each = (bytes() - before) / COUNT;
    // A subscription takes 20 of these bytes. Vacant slots for more connections are an eighth at
    // most. The list for poll(2) takes 28 bytes, and may have as much spare room again.
    let most = if fixture.reactor.backend() == Backend::Poll { 356 } else { 300 };
    assert!(each <= most, "{each} bytes");
    println!("{each} bytes for each of {COUNT} connections");
    assert_eq!(fixture.service.stats().connections, 1 + COUNT as u64);
}
