//! A TCP proxy that is tested in the simulator.
//!
//! `cargo run --release -p windlass-examples --features sim --example sim_proxy` looks for the
//! fault that is planted here, and prints how it comes about.
//!
//! It shows:
//! - A handler of streams runs in the simulator as it is. Only the test knows of the simulator.
//! - Three hosts in one test: a client, the proxy, and a server that reads slowly.
//! - A property: every byte arrives, in order. `sim::check` tries it with many seeds.
//! - A fault that about one seed in a thousand finds, that seed, and its shrunk trace.

use std::{
    cell::Cell,
    io::{Read, Write},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use windlass::{
    Key, Reactor, Turn,
    sim::{self, Faults, Sim},
    stream::{
        Connector, DisconnectReason, Input, ListenOptions, Peer, Stream, StreamHandler,
        StreamOptions, StreamWriteError,
    },
};

/// The high watermark of the output of either side. A side that has reached it pauses the other.
const HIGH: usize = 16 << 10;

/// A receive brings at most this much. It may come when the output is right below the watermark.
const RECEIVE_MAX: usize = 64 << 10;

/// The keys of the two sides of a connection.
#[derive(Default)]
struct Link {
    client: Cell<Option<Key>>,
    server: Cell<Option<Key>>,
}

/// One side of a connection.
struct Side {
    link: Rc<Link>,
    options: StreamOptions,
    /// The address to connect to. Only the side of the client has it.
    server: Option<SocketAddr>,
}

impl Side {
    /// Calls a function on the other side, if it is still open.
    fn with_other(&self, mut turn: Turn<'_>, act: impl FnOnce(&mut Stream<'_>)) {
        let Link { client, server } = &*self.link;
        let other = if self.server.is_some() { server } else { client };
        if let Some(mut stream) = other.get().and_then(|key| turn.stream(key).ok()) {
            act(&mut stream);
        }
    }
}

impl StreamHandler for Side {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let Some(server) = self.server else {
            return self.with_other(stream.turn(), |client| client.resume());
        };
        stream.pause();
        self.link.client.set(Some(stream.key()));
        let side = Self { link: Rc::clone(&self.link), options: self.options, server: None };
        match Connector::tcp(server).stream(self.options).connect(side, &mut stream.turn()) {
            Ok(key) => self.link.server.set(Some(key)),
            Err(_) => stream.abort(),
        }
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let mut sent = Err(StreamWriteError::Closed);
        self.with_other(stream.turn(), |other| sent = other.send(&input));
        // The planted fault: output that does not fit is not sent. "That cannot happen, because
        // the other side is paused before."
        if sent == Err(StreamWriteError::Closed) {
            stream.abort();
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        self.with_other(stream.turn(), |other| other.pause());
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        self.with_other(stream.turn(), |other| other.resume());
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.with_other(stream.turn(), |other| other.finish());
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, turn: Turn<'_>) {
        if reason != DisconnectReason::Closed {
            self.with_other(turn, |other| other.abort());
        }
    }
}

/// Forwards the connections of an address to a server. Each side holds at most `output_max` bytes.
fn proxy(
    reactor: &mut Reactor,
    address: SocketAddr,
    server: SocketAddr,
    output_max: usize,
) -> std::io::Result<()> {
    let options = StreamOptions::new().watermarks(HIGH / 4, HIGH).output_max(output_max);
    let accept =
        move |_: &Peer<'_>| Some(Side { link: Rc::default(), options, server: Some(server) });
    let listener = ListenOptions::new().stream(options).tcp(address)?;
    listener.with_handler(accept).register_into(reactor)?;
    Ok(())
}

/// The server of the test: it reads slowly, checks each byte, and answers with their number.
#[derive(Default)]
struct Server {
    count: u64,
}

/// The byte at a place.
fn byte(place: u64) -> u8 {
    (place % 251) as u8
}

impl StreamHandler for Server {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        for found in &input[..] {
            assert_eq!(*found, byte(self.count), "at byte {}", self.count);
            self.count += 1;
        }
        stream.pause();
        let key = stream.key();
        let go_on = move |mut turn: Turn<'_>| {
            if let Ok(mut stream) = turn.stream(key) {
                stream.resume();
            }
        };
        stream.turn().after_with(Duration::from_micros(200), go_on).unwrap();
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        let _ = stream.send(&self.count.to_ne_bytes());
        stream.finish();
    }
}

/// Bad luck that ends no connection. Without descriptors a proxy could not connect.
fn bad_luck() -> Faults {
    Faults { too_many_files: 0, no_buffers: 0, ..Faults::rough() }
}

/// The length of what a client sends is below this.
const LEN_MAX: u64 = 32_800;

/// Sends bytes through a proxy, and expects that the server has got all of them.
fn every_byte_arrives(sim: &Sim, output_max: usize) {
    let at: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let server: SocketAddr = "10.0.0.3:80".parse().unwrap();

    let mut origin = Reactor::builder().sim(&sim.host(server.ip())).build().unwrap();
    let listener = ListenOptions::new().tcp(server).unwrap();
    listener.with_handler(|_| Some(Server::default())).register_into(&mut origin).unwrap();
    sim.spawn(origin);
    let mut reactor = Reactor::builder().sim(&sim.host(at.ip())).build().unwrap();
    proxy(&mut reactor, at, server, output_max).unwrap();
    sim.spawn(reactor);

    let len = sim.kernel().choose(LEN_MAX);
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    let mut client = sim.connect(at).unwrap();
    client.write_all(&bytes).unwrap();
    client.shutdown_write().unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, len.to_ne_bytes(), "the server has got another number of bytes");
}

/// What a reader of `on_data` takes for enough. With [`LEN_MAX`] it nearly is.
const CARELESS: usize = 2 * HIGH;
/// What is enough, whenever a receive comes.
const CAREFUL: usize = HIGH + RECEIVE_MAX;

fn main() {
    for output_max in [CARELESS, CAREFUL] {
        let check = sim::check(|sim| every_byte_arrives(sim, output_max)).seeds(5_000);
        match check.faults(bad_luck()).outcome().failure {
            Some(failure) => println!("{failure}"),
            None => println!("no fault is found with outputs of {output_max} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_loses_no_byte() {
        sim::check(|sim| every_byte_arrives(sim, CAREFUL)).seeds(300).faults(bad_luck()).run();
    }

    #[test]
    fn the_planted_fault_is_found_replayed_and_shrunk() {
        let check = sim::check(|sim| every_byte_arrives(sim, CARELESS)).seeds(20_000);
        let check = check.faults(bad_luck());
        let failure = check.outcome().failure.expect("it is found");
        let seed = failure.seed.expect("it was no replay");
        assert!(seed > 100, "seed {seed}: it is easy to find");
        let again = check.replay(&failure.case).expect("it fails again");
        assert_eq!(again.trace.hash, failure.trace.hash);
        assert!(failure.case.faults() <= 3, "{failure}");
        println!("{failure}");
    }
}
