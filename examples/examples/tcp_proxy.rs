//! A TCP proxy with back-pressure.
//!
//! `cargo run --example tcp_proxy -- 127.0.0.1:9006 127.0.0.1:80` forwards connections to a server.
//!
//! It shows:
//! - Back-pressure: when the output of one side is above its high watermark, `on_full` pauses
//!   reading from the other side, and `on_drained` resumes it. The proxy buffers a bounded number
//!   of bytes, and the kernel makes the sender wait. (A pause that depends on `is_full` without
//!   `on_full` never ends, because `on_drained` is called only after `on_full`.)
//! - A `Connector` returns a key at once. `on_open` tells that the connection is established.
//! - Half-close: `finish` forwards the end of one direction, and the other direction continues.
//! - A reset is forwarded, too.

use std::{cell::Cell, error::Error, io, net::SocketAddr, rc::Rc};

use windlass::{
    Builder, Key, Reactor, Turn,
    stream::{
        Connector, DisconnectReason, Input, ListenOptions, Peer, Stream, StreamHandler,
        StreamOptions,
    },
};

/// The watermarks of the output of either side.
const LOW: usize = 64 << 10;
const HIGH: usize = 256 << 10;

fn options() -> StreamOptions {
    StreamOptions::new().watermarks(LOW, HIGH)
}

/// The keys of a connection's two sides, which both handlers share.
#[derive(Default)]
struct Link {
    client: Cell<Option<Key>>,
    server: Cell<Option<Key>>,
}

/// Calls a function on a stream, if it is still open.
fn with(key: &Cell<Option<Key>>, mut turn: Turn<'_>, act: impl FnOnce(&mut Stream<'_>)) {
    if let Some(mut stream) = key.get().and_then(|key| turn.stream(key).ok()) {
        act(&mut stream);
    }
}

/// One side of a connection. Both handle data alike, and begin differently.
struct Side {
    link: Rc<Link>,
    /// The address to connect to; only the client's side has it.
    server: Option<SocketAddr>,
}

impl Side {
    fn other(&self) -> &Cell<Option<Key>> {
        if self.server.is_some() { &self.link.server } else { &self.link.client }
    }
}

impl StreamHandler for Side {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let Some(server) = self.server else {
            // The connection to the server is established, so reading from the client can begin.
            return with(&self.link.client, stream.turn(), |client| client.resume());
        };
        self.link.client.set(Some(stream.key()));
        stream.pause();
        let handler = Side { link: Rc::clone(&self.link), server: None };
        match Connector::tcp(server).stream(options()).connect(handler, &mut stream.turn()) {
            Ok(key) => self.link.server.set(Some(key)),
            Err(error) => {
                eprintln!("cannot connect to {server}: {error}");
                stream.abort();
            }
        }
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let mut is_sent = false;
        with(self.other(), stream.turn(), |other| is_sent = other.send(&input).is_ok());
        if !is_sent {
            // The other side is gone and its bytes are lost. This side must be reset, so that its
            // peer learns of it.
            stream.abort();
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        with(self.other(), stream.turn(), |other| other.pause());
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        with(self.other(), stream.turn(), |other| other.resume());
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        with(self.other(), stream.turn(), |other| other.finish());
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, turn: Turn<'_>) {
        // An orderly end: both directions have ended, and the other side knows it.
        if reason != DisconnectReason::Closed {
            with(self.other(), turn, |other| other.abort());
        }
    }
}

/// Creates a reactor that forwards connections. Returns it with its address.
fn start(
    builder: Builder,
    address: SocketAddr,
    server: SocketAddr,
) -> io::Result<(Reactor, SocketAddr)> {
    let mut reactor = builder.build()?;
    let listener = ListenOptions::new().stream(options()).connections_max(1000).tcp(address)?;
    let address = listener.local_addr()?.socket_addr().unwrap_or(address);
    let accept = move |_: &Peer<'_>| Some(Side { link: Rc::default(), server: Some(server) });
    listener.with_handler(accept).register_into(&mut reactor)?;
    Ok((reactor, address))
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = windlass_examples::words();
    let [address, server] = &words[..] else {
        return Err(
            "usage: tcp_proxy ADDRESS SERVER, for example 127.0.0.1:9006 127.0.0.1:80".into()
        );
    };
    let (mut reactor, address) =
        start(windlass_examples::builder()?, address.parse()?, server.parse()?)?;
    println!("forwarding connections from {address} to {server}");
    Ok(reactor.run()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Shutdown, TcpListener, TcpStream},
        os::fd::OwnedFd,
        thread,
    };

    use rustix::net::{AddressFamily, SocketType};

    /// Maximum number of bytes above the high watermark, because `on_full` is called in the next
    /// turn: 64 KiB of a receive, and on a ring the size of the reactor's receive buffers.
    const SLACK: usize = 4 << 20;

    fn anywhere() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    /// The proxy with one connection: reactor, keys, the client's end, and the server's end.
    fn connected() -> (Reactor, Rc<Link>, TcpStream, TcpStream) {
        let server = TcpListener::bind(anywhere()).unwrap();
        let to = server.local_addr().unwrap();
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let (listener, link) = (
            ListenOptions::new().stream(options()).tcp(anywhere()).unwrap(),
            Rc::<Link>::default(),
        );
        let address = listener.local_addr().unwrap().socket_addr().unwrap();
        let known = Rc::clone(&link);
        let accept = move |_: &Peer<'_>| Some(Side { link: Rc::clone(&known), server: Some(to) });
        listener.with_handler(accept).register_into(&mut reactor).unwrap();
        let client = TcpStream::connect(address).unwrap();
        server.set_nonblocking(true).unwrap();
        let there = loop {
            reactor.run_once(None).unwrap();
            match server.accept() {
                Ok((there, _)) => break there,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        };
        for end in [&client, &there] {
            end.set_nonblocking(true).unwrap();
        }
        (reactor, link, client, there)
    }

    /// Writes until the socket would block.
    fn write(to: &mut TcpStream, bytes: &[u8]) -> usize {
        match to.write(bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads until the socket would block. `None` is the end of stream.
    fn read(from: &mut TcpStream, into: &mut Vec<u8>) -> Option<usize> {
        let mut buffer = [0; 1 << 16];
        match from.read(&mut buffer) {
            Ok(0) => None,
            Ok(count) => {
                into.extend_from_slice(&buffer[..count]);
                Some(count)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
            Err(error) => panic!("{error}"),
        }
    }

    fn turn(reactor: &mut Reactor) -> usize {
        reactor.run_once(std::time::Duration::ZERO).unwrap()
    }

    #[test]
    fn a_side_that_does_not_read_makes_the_other_wait() {
        let (mut reactor, link, mut client, mut server) = connected();
        let (client_key, server_key) = (link.client.get().unwrap(), link.server.get().unwrap());
        let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        let mut sent = Vec::new();
        let mut write_on = |client: &mut TcpStream| {
            let at = sent.len() % block.len();
            let count = write(client, &block[at..]);
            sent.extend_from_slice(&block[at..at + count]);
            count
        };
        // Repeat until the proxy waits for the server, and the client for the proxy. The kernel's
        // buffers may grow meanwhile.
        let mut most = 0;
        loop {
            let is_taken = write_on(&mut client) > 0;
            turn(&mut reactor);
            let server = reactor.stream(server_key).unwrap();
            most = most.max(server.buffered());
            if !is_taken && server.is_full() && reactor.stream(client_key).unwrap().is_paused() {
                break;
            }
        }
        assert!(most > HIGH && most < HIGH + SLACK, "{most} bytes waited");
        // All bytes arrive once the other end reads.
        let mut got = Vec::new();
        while got.len() < sent.len() {
            read(&mut server, &mut got).expect("the client is still there");
            turn(&mut reactor);
        }
        assert!(got == sent);
    }

    #[test]
    fn each_direction_ends_by_itself() {
        let (mut reactor, _, mut client, mut server) = connected();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut question = Vec::new();
        while read(&mut server, &mut question).is_some() {
            turn(&mut reactor);
        }
        assert_eq!(question, b"question");
        // The server answers although it has received the end of stream.
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut answer = Vec::new();
        while read(&mut client, &mut answer).is_some() {
            turn(&mut reactor);
        }
        assert_eq!(answer, b"answer");
        // Both streams have ended without a call.
        while reactor.stats().subscribers > subscribers_of_a_proxy() {
            reactor.run_once(None).unwrap();
        }
    }

    /// Number of subscribers without a connection.
    fn subscribers_of_a_proxy() -> usize {
        start(windlass_examples::builder().unwrap(), anywhere(), anywhere())
            .unwrap()
            .0
            .stats()
            .subscribers
    }

    #[test]
    fn much_goes_through_both_ways_at_once() {
        let server = TcpListener::bind(anywhere()).unwrap();
        let to = server.local_addr().unwrap();
        let (mut reactor, address) =
            start(windlass_examples::builder().unwrap(), anywhere(), to).unwrap();
        let stop = reactor.stop_handle();
        let echo = thread::spawn(move || {
            let (mut there, _) = server.accept().unwrap();
            let mut copy = there.try_clone().unwrap();
            io::copy(&mut there, &mut copy).unwrap();
            copy.shutdown(Shutdown::Write).unwrap();
        });
        let client = thread::spawn(move || {
            let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at % 241) as u8).collect();
            let mut client = TcpStream::connect(address).unwrap();
            let (mut writer, written) = (client.try_clone().unwrap(), bytes.clone());
            let writer = thread::spawn(move || {
                writer.write_all(&written).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            writer.join().unwrap();
            stop.stop();
            assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
        });
        reactor.run().unwrap();
        client.join().unwrap();
        echo.join().unwrap();
    }

    /// Returns an address without a listener. The socket keeps its port reserved.
    fn nobody() -> (OwnedFd, SocketAddr) {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &anywhere()).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
        (socket, address)
    }

    #[test]
    fn a_server_that_is_not_there_is_a_reset_for_the_client() {
        let (_port, nobody) = nobody();
        let (mut reactor, address) =
            start(windlass_examples::builder().unwrap(), anywhere(), nobody).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_nonblocking(true).unwrap();
        let error = loop {
            match client.read(&mut [0; 1]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => _ = turn(&mut reactor),
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
