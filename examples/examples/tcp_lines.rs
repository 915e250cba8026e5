//! A TCP server of plain descriptors: a listener registers the connections that it accepts.
//!
//! The guide shows it: `docs/guide/first-reactor.md`. Run it with
//! `cargo run --example tcp_lines -- 127.0.0.1:9030`, then `nc 127.0.0.1 9030`.

use std::{
    io::{self, ErrorKind, Read as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use windlass::{Event, Key, Reactor, Turn, interest};

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9030".to_owned());
    let (mut reactor, address) = start(&address)?;
    println!("listening on {address}");
    reactor.every_with(Duration::from_secs(10), |turn| {
        println!("{} connections", turn.stats().subscribers - 1);
    })?;
    reactor.run()
}

fn start(address: &str) -> io::Result<(Reactor, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let mut reactor = Reactor::new()?;
    interest().read().with_fd(listener).with_handler(on_connection).register_into(&mut reactor)?;
    Ok((reactor, address))
}

fn on_connection(listener: &mut TcpListener, turn: Turn<'_>) {
    match listener.accept().and_then(|(stream, peer)| register(stream, peer, turn)) {
        Ok(key) => println!("{key:?} is new"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => eprintln!("no connection: {error}"),
    }
}

fn register(stream: TcpStream, peer: SocketAddr, mut turn: Turn<'_>) -> io::Result<Key> {
    stream.set_nonblocking(true)?;
    let on_readable = move |stream: &mut TcpStream, event: Event, mut turn: Turn<'_>| {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => {
                return print!("{peer}: {}", String::from_utf8_lossy(&buffer[..count]));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Ok(_) => println!("{peer} has ended"),
            Err(error) => eprintln!("{peer}: {error}"),
        }
        // The stream is dropped, and so closed, when this handler has returned.
        turn.delete(event.key()).expect("a running handler is registered");
    };
    Ok(interest().read().with_fd(stream).with_handler(on_readable).register_into(&mut turn)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_connection_is_registered_until_its_end() {
        let (mut reactor, address) = start("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let mut run_until = |count| {
            while reactor.stats().subscribers != count {
                let events = reactor.run_once(Duration::from_secs(20)).unwrap();
                assert_ne!(events, 0, "nothing happens");
            }
        };
        run_until(2);
        client.write_all(b"one line\n").unwrap();
        drop(client);
        run_until(1);
    }
}
