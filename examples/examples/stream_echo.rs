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
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::TcpStream;
    use std::thread;

    /// Writes while the server echoes, until neither goes on: the server has paused. Returns the
    /// number of bytes, which are those of `byte`.
    fn fill(reactor: &mut Reactor, client: &mut TcpStream) -> usize {
        client.set_nonblocking(true).unwrap();
        let mut sent = 0;
        loop {
            let bytes: Vec<u8> = (sent..sent + 4096).map(byte).collect();
            match client.write(&bytes) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    if reactor.run_once(Duration::ZERO).unwrap() == 0 {
                        return sent;
                    }
                }
            }
        }
    }

    fn byte(at: usize) -> u8 {
        (at % 251) as u8
    }

    #[test]
    fn all_bytes_of_a_client_that_reads_late_come_back() {
        let (mut reactor, address) = start("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let sent = fill(&mut reactor, &mut client);
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let remote = reactor.remote();
        let reader = thread::spawn(move || {
            let mut got = vec![0; sent];
            let read = client.read_exact(&mut got);
            remote.stop();
            read.map(|()| got.into_iter().eq((0..sent).map(byte)))
        });
        reactor.run().unwrap();
        assert!(reader.join().unwrap().expect("the server resumes"));
    }
}
