//! The WebSocket engine in a loop of mio: an echo server with back-pressure.
//!
//! Run `cargo run --example ws_mio -- 127.0.0.1:9025`, and connect with any WebSocket client.
//!
//! It shows:
//! - The engine does no I/O: the loop reads, passes the bytes to `process`, and writes the output.
//! - All connections share one buffer and one `Scratch`. An idle connection holds neither.
//! - Nothing is read while output waits, so a client that does not read cannot fill the memory.
//! - mio registers edge-triggered. So a connection goes on until the kernel says `WouldBlock`.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read as _, Write as _},
    net::SocketAddr,
    sync::Arc,
};

use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use windlass_ws::{
    Config, Engine, EngineEvent, Scratch,
    handshake::{AcceptOptions, HeadLimits, HeadReader},
};

const LISTENER: Token = Token(0);

/// Maximum number of bytes per read.
const READ_MAX: usize = 64 << 10;

/// What all connections share.
struct Shared {
    buffer: Vec<u8>,
    scratch: Scratch,
    config: Arc<Config>,
}

enum State {
    Handshake(Box<HeadReader>),
    Open(Box<Engine>),
    /// The output is the last one.
    Ended,
}

struct Connection {
    socket: TcpStream,
    state: State,
    output: Vec<u8>,
}

impl Connection {
    /// Writes and reads until the kernel says `WouldBlock`. Returns false at the end.
    fn advance(&mut self, shared: &mut Shared) -> io::Result<bool> {
        loop {
            while !self.output.is_empty() {
                match self.socket.write(&self.output) {
                    Ok(count) => drop(self.output.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.output = Vec::new();
            if matches!(self.state, State::Ended) {
                return Ok(false);
            }
            match self.socket.read(&mut shared.buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.process(count, shared),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Processes what was read: the request, frames, or both.
    fn process(&mut self, count: usize, shared: &mut Shared) {
        let Shared { buffer, scratch, config } = shared;
        let mut frames = 0..count;
        if let State::Handshake(head) = &mut self.state {
            let upgrade = match head.request(&buffer[..count]) {
                Ok(None) => return,
                Ok(Some((request, used))) => request.upgrade().map(|upgrade| (upgrade, used)),
                Err(rejection) => Err(rejection),
            };
            self.state = match upgrade {
                Ok((upgrade, used)) => {
                    let accepted = upgrade.accept(&AcceptOptions::DEFAULT, &mut self.output);
                    accepted.expect("it has nothing of ours in it");
                    frames = used..count;
                    State::Open(Box::new(Engine::new(config)))
                }
                Err(rejection) => {
                    rejection.write(&mut self.output);
                    State::Ended
                }
            };
        }
        let State::Open(engine) = &mut self.state else { return };
        let received = &mut buffer[frames];
        let mut pass = engine.process(received, scratch);
        while let Some(event) = pass.next() {
            // A reply fails at the end of the connection, and then no client waits for it.
            let _ = match event {
                EngineEvent::Text(text) => text.reply(),
                EngineEvent::Binary(bytes) => bytes.reply(),
                _ => Ok(()),
            };
        }
        let outcome = pass.finish();
        for piece in scratch.output(&outcome, received) {
            self.output.extend_from_slice(piece);
        }
        if outcome.end.is_some() {
            self.state = State::Ended;
        }
    }
}

struct Server {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    connections: HashMap<Token, Connection>,
    last: Token,
    shared: Shared,
}

impl Server {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let (poll, mut listener) = (Poll::new()?, TcpListener::bind(address)?);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let config = Arc::new(Config::server());
        let shared = Shared { buffer: vec![0; READ_MAX], scratch: Scratch::new(), config };
        let (events, connections) = (Events::with_capacity(256), HashMap::new());
        Ok(Self { poll, events, listener, connections, last: LISTENER, shared })
    }

    /// Waits for events and handles them.
    fn round(&mut self) -> io::Result<()> {
        match self.poll.poll(&mut self.events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        let tokens: Vec<Token> = self.events.iter().map(|event| event.token()).collect();
        for token in tokens {
            if token == LISTENER {
                self.accept()?;
            } else if let Some(connection) = self.connections.get_mut(&token) {
                match connection.advance(&mut self.shared) {
                    Ok(true) => {}
                    // It is closed. A token is used once, so a late event finds nobody.
                    Ok(false) => drop(self.connections.remove(&token)),
                    Err(error) => {
                        eprintln!("connection {}: {error}", token.0);
                        self.connections.remove(&token);
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (mut socket, _) = match self.listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                accepted => accepted?,
            };
            socket.set_nodelay(true)?;
            self.last.0 += 1;
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut socket, self.last, both)?;
            let state = State::Handshake(Box::new(HeadReader::new(HeadLimits::DEFAULT)));
            let connection = Connection { socket, state, output: Vec::new() };
            self.connections.insert(self.last, connection);
        }
    }
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9025".to_owned());
    let address = address.parse().map_err(io::Error::other)?;
    let mut server = Server::new(address)?;
    println!("listening on ws://{}/", server.listener.local_addr()?);
    loop {
        server.round()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_recv_buffer_size;
    use std::{net, sync::mpsc, thread};
    use tungstenite::{Message, client};

    fn start() -> Server {
        Server::new("127.0.0.1:0".parse().expect("an address")).expect("it starts")
    }

    #[test]
    fn messages_come_back_in_order_to_every_client() {
        let mut server = start();
        let address = server.listener.local_addr().expect("it has an address");
        let clients = [20, 2000].map(|len| {
            thread::spawn(move || {
                let stream = net::TcpStream::connect(address).expect("it listens");
                let (mut socket, _) = client("ws://localhost/", stream).expect("it accepts");
                let message = |number| Message::text("ä".repeat(len + number));
                // So few that the sockets hold them: the server reads no more while its client
                // does not.
                const IN_FLIGHT: usize = 3;
                for number in 0..100 + IN_FLIGHT {
                    if number < 100 {
                        socket.send(message(number)).expect("it reads");
                    }
                    if let Some(number) = number.checked_sub(IN_FLIGHT) {
                        assert_eq!(socket.read().expect("it answers"), message(number));
                    }
                }
                socket.close(None).expect("it reads");
                assert!(matches!(socket.read(), Ok(Message::Close(None))), "it is answered");
            })
        });
        while server.last.0 < 2 || !server.connections.is_empty() {
            server.round().expect("the kernel is well");
        }
        for client in clients {
            client.join().expect("every message came back");
        }
    }

    #[test]
    fn a_client_that_does_not_read_yet_takes_no_more_than_one_read_of_memory() {
        /// More than the kernel takes for a client that does not read.
        const COUNT: usize = 512;
        let mut server = start();
        let address = server.listener.local_addr().expect("it has an address");
        let (reads_now, may_read) = mpsc::channel();
        let client = thread::spawn(move || {
            let stream = net::TcpStream::connect(address).expect("it listens");
            set_socket_recv_buffer_size(&stream, 64 << 10).expect("it is a socket");
            let mut raw = stream.try_clone().expect("there is a descriptor");
            let (mut socket, _) = client("ws://localhost/", stream).expect("it accepts");
            // A binary message of 64 KiB, with a key of zeros.
            let mut frame = vec![0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            frame.resize(frame.len() + (64 << 10), b'x');
            let writer = thread::spawn(move || {
                for _ in 0..COUNT {
                    raw.write_all(&frame).expect("it reads in the end");
                }
            });
            may_read.recv().expect("the server waits");
            for _ in 0..COUNT {
                assert_eq!(socket.read().expect("it answers").len(), 64 << 10);
            }
            writer.join().expect("it has written everything");
        });
        let waits = |server: &Server| server.connections.values().any(|it| !it.output.is_empty());
        while !waits(&server) {
            server.round().expect("the kernel is well");
        }
        reads_now.send(()).expect("the client is there");
        while !server.connections.is_empty() {
            // One read, and the end of the message before it.
            let most = server.connections.values().map(|it| it.output.len()).max();
            assert!(most <= Some(3 * READ_MAX), "{most:?}");
            server.round().expect("the kernel is well");
        }
        client.join().expect("every message came back");
    }

    #[test]
    fn what_is_no_upgrade_is_answered_and_closed() {
        let mut server =
            Server::new("127.0.0.1:0".parse().expect("an address")).expect("it starts");
        let address = server.listener.local_addr().expect("it has an address");
        let client = thread::spawn(move || {
            let mut stream = net::TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it is answered");
            answer
        });
        while server.last.0 < 1 || !server.connections.is_empty() {
            server.round().expect("the kernel is well");
        }
        let answer = client.join().expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
    }
}
