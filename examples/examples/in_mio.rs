//! A reactor inside a loop of mio: its TCP clients get the datagrams that mio receives.
//!
//! Run `cargo run --example in_mio -- 127.0.0.1:9015`, then `nc 127.0.0.1 9015`, and in another
//! terminal `nc -u 127.0.0.1 9015`. Each line of the second appears in the first.
//!
//! It shows:
//! - `Embedded` is one descriptor, which mio watches through `SourceFd`. Timers, streams and calls
//!   of other threads wake mio through it.
//! - mio registers edge-triggered, and a turn may leave work over. So mio waits only if `is_due` is
//!   false. Otherwise it polls, so that both make progress.
//! - `with` lends the reactor to the loop: here to send.

use std::{
    cell::RefCell, error::Error, io, net::SocketAddr, os::fd::AsRawFd as _, rc::Rc, time::Duration,
};

use mio::{Events, Interest, Poll, Token, net::UdpSocket, unix::SourceFd};
use windlass::{
    Builder, Embedded, Key, Turn,
    stream::{DisconnectReason, Input, Listener, Peer, SharedBytes, Stream, StreamHandler},
};

const GUEST: Token = Token(0);
const SOCKET: Token = Token(1);

/// The open streams, which the loop and the handlers share.
type Clients = Rc<RefCell<Vec<Key>>>;

struct Client(Clients);

impl StreamHandler for Client {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.0.borrow_mut().push(stream.key());
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}

    fn on_close(&mut self, key: Key, _: DisconnectReason, _: Turn<'_>) {
        self.0.borrow_mut().retain(|client| *client != key);
    }
}

struct Host {
    poll: Poll,
    events: Events,
    socket: UdpSocket,
    /// Registered by its number, so it stays here as long as `poll`.
    guest: Embedded,
    clients: Clients,
}

impl Host {
    /// Receives and listens on the same address. A port of 0 is a free one for each.
    fn new(builder: Builder, address: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let (mut guest, clients) = (builder.build()?.embed()?, Clients::default());
        let (listener, shared) = (Listener::tcp(address)?, Rc::clone(&clients));
        let listening = listener.local_addr()?.socket_addr().unwrap_or(address);
        let accept = move |_: &Peer<'_>| Some(Client(Rc::clone(&shared)));
        listener.with_handler(accept).register_into(&mut guest)?;
        let (poll, mut socket) = (Poll::new()?, UdpSocket::bind(address)?);
        let registry = poll.registry();
        registry.register(&mut SourceFd(&guest.as_raw_fd()), GUEST, Interest::READABLE)?;
        registry.register(&mut socket, SOCKET, Interest::READABLE)?;
        Ok((Self { poll, events: Events::with_capacity(64), socket, guest, clients }, listening))
    }

    /// One round of the loop: waits, then runs what is due of both.
    fn round(&mut self) -> io::Result<()> {
        let timeout = self.guest.is_due().then_some(Duration::ZERO);
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        if self.events.iter().any(|event| event.token() == SOCKET) {
            self.forward()?;
        }
        // An event of `GUEST` only ends the wait: not every turn that is due has one.
        if self.guest.is_due() {
            self.guest.run_once(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Sends all waiting datagrams to all clients.
    fn forward(&mut self) -> io::Result<()> {
        let mut buffer = [0; 2048];
        loop {
            let length = match self.socket.recv(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                received => received?,
            };
            let bytes = SharedBytes::new(&buffer[..length]);
            self.guest.with(|reactor| {
                for key in self.clients.borrow().iter() {
                    let Ok(mut stream) = reactor.stream(*key) else { continue };
                    if stream.send_shared(&bytes).is_err() {
                        stream.abort();
                    }
                }
            });
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9015".to_owned());
    let (mut host, address) = Host::new(windlass_examples::builder()?, address.parse()?)?;
    println!("datagrams to {} go to clients of {address}", host.socket.local_addr()?);
    loop {
        host.round()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read as _, net};

    #[test]
    fn a_datagram_of_mio_goes_to_every_stream_of_the_reactor() {
        let builder = windlass_examples::builder().unwrap().events_per_turn(1);
        let (mut host, address) = Host::new(builder, "127.0.0.1:0".parse().unwrap()).unwrap();
        let remote = host.guest.with(|reactor| reactor.remote());
        let mut clients = [(); 3].map(|()| net::TcpStream::connect(address).unwrap());
        // The loop waits without a timeout, so a lost edge hangs.
        while host.clients.borrow().len() < 3 {
            host.round().unwrap();
        }
        let sender = net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = host.socket.local_addr().unwrap();
        ["one", "two"].iter().for_each(|word| _ = sender.send_to(word.as_bytes(), to).unwrap());
        let reader = std::thread::spawn(move || {
            let mut got = [[0; 6]; 3];
            clients.iter_mut().zip(&mut got).for_each(|(from, to)| from.read_exact(to).unwrap());
            remote.stop();
            (clients, got)
        });
        while !host.guest.with(|reactor| reactor.stop_requested()) {
            host.round().unwrap();
        }
        let (clients, got) = reader.join().unwrap();
        assert_eq!(got, [*b"onetwo"; 3]);
        // They end at once, and each turn serves one of them.
        drop(clients);
        while !host.clients.borrow().is_empty() {
            host.round().unwrap();
        }
    }
}
