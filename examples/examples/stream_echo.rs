//! An echo server on streams: output that waits is bounded, and a slow client is not read from.
//!
//! The guide shows it: `docs/guide/streams.md`. Run it with
//! `cargo run --example stream_echo -- 127.0.0.1:9031`, then `nc 127.0.0.1 9031`.

use std::{io, net::SocketAddr, time::Duration};

use windlass::stream::{
    DisconnectReason, Input, ListenOptions, Peer, Stream, StreamHandler, StreamOptions,
};
use windlass::{Key, Reactor, Turn};

struct Echo;

impl StreamHandler for Echo {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        if let Err(error) = stream.reply(input, ..) {
            // None of these bytes will be sent. A reset tells the client so.
            eprintln!("no echo: {error}");
            stream.abort();
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        stream.pause();
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        stream.resume();
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        println!("the end: {reason:?}");
    }
}

fn start(address: SocketAddr) -> io::Result<(Reactor, SocketAddr)> {
    let mut reactor = Reactor::new()?;
    let options = StreamOptions::new()
        .watermarks(64 << 10, 256 << 10)
        .idle_timeout(Some(Duration::from_secs(60)))
        .write_stall_timeout(Some(Duration::from_secs(10)));
    let listener = ListenOptions::new().stream(options).connections_max(1000).tcp(address)?;
    let address = listener.local_addr()?.socket_addr().unwrap_or(address);
    listener.with_handler(|_: &Peer<'_>| Some(Echo)).register_into(&mut reactor)?;
    Ok((reactor, address))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9031".to_owned());
    let (mut reactor, address) = start(address.parse()?)?;
    println!("echoing on {address}");
    Ok(reactor.run()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpStream};
    use std::thread;

    /// More than the sockets and the watermarks hold, so the server pauses and resumes.
    #[test]
    fn all_bytes_of_a_client_that_reads_late_come_back() {
        let (mut reactor, address) = start("127.0.0.1:0".parse().unwrap()).unwrap();
        let remote = reactor.remote();
        let client = thread::spawn(move || {
            let sent: Vec<u8> = (0..8u32 << 20).map(|at| (at % 251) as u8).collect();
            let mut reading = TcpStream::connect(address).unwrap();
            let mut writing = reading.try_clone().unwrap();
            let (bytes, mut got) = (sent.clone(), Vec::new());
            let writer = thread::spawn(move || {
                writing.write_all(&bytes).unwrap();
                writing.shutdown(Shutdown::Write).unwrap();
            });
            reading.read_to_end(&mut got).unwrap();
            writer.join().unwrap();
            remote.stop();
            got == sent
        });
        reactor.run().unwrap();
        assert!(client.join().unwrap());
    }
}
