//! An echo server whose handlers are tested without a reactor and without a socket.
//!
//! What to learn:
//! - Handlers are plain functions. They ask for a trait of their own instead of a socket
//!   (`impl Accept`), and for `Turn<'_, impl ReactorOps>` instead of the real reactor's turn.
//! - So the tests below call them with mocks: `MockReactor` (the dev-dependency `windlass` has the
//!   feature `mock`), and mockall's mocks of the two traits. What a handler does not ask for, a
//!   test does not build.
//! - What is registered need not be a bare socket: anything that implements `AsFd` will do, with
//!   the state it needs.
//! - Both directions edge-triggered: one `epoll_ctl` for the whole life of a connection, if the
//!   handler goes on until nothing more goes. It keeps one buffer and does not read while that is
//!   not sent.
//!
//! Run it with `cargo run --example echo_server`, its tests with
//! `cargo test --example echo_server`.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use windlass::{Event, ReactorOps, Turn, interest};

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    println!("echoing on {}", listener.local_addr()?);
    let mut reactor = windlass_examples::builder()?.build()?;
    interest()
        .read()
        .edge_triggered()
        .with_fd(listener)
        .with_handler(on_connection)
        .register_into(&mut reactor)?;
    reactor.run()
}

/// What a client's stream can do.
trait Stream: Read + Write + AsFd + 'static {}
impl<T: Read + Write + AsFd + 'static> Stream for T {}

/// What connections come from.
trait Accept {
    type Stream: Stream;

    /// The next connection, non-blocking; `WouldBlock` if there is none.
    fn accept_stream(&mut self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn accept_stream(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

/// Accepts until nobody waits: the listener is edge-triggered, and says nothing twice.
fn on_connection<R: ReactorOps>(listener: &mut impl Accept, mut turn: Turn<'_, R>) {
    loop {
        match listener.accept_stream() {
            Ok(stream) => register(stream, &mut turn),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            Err(error) => {
                // `windlass serve` shows how to live on without descriptors; an example ends.
                eprintln!("cannot accept: {error}");
                return turn.stop();
            }
        }
    }
}

fn register<S: Stream, R: ReactorOps>(stream: S, turn: &mut Turn<'_, R>) {
    let registered = interest()
        .read()
        .write()
        .edge_triggered()
        .with_fd(Connection::new(stream))
        .with_handler(on_ready::<S, R>)
        .register_into(turn);
    if let Err(error) = registered {
        // The connection came back inside the error, and is closed here.
        eprintln!("a connection is refused: {error}");
    }
}

/// A client: its stream, and what has been read but not sent.
struct Connection<S> {
    stream: S,
    buffer: [u8; 4096],
    sent: usize,
    filled: usize,
}

impl<S: Stream> Connection<S> {
    fn new(stream: S) -> Self {
        Self { stream, buffer: [0; 4096], sent: 0, filled: 0 }
    }

    /// Echoes until the client neither sends nor takes any more (`WouldBlock`), or has said all
    /// (`Ok`).
    fn pump(&mut self) -> io::Result<()> {
        loop {
            while self.sent < self.filled {
                self.sent += self.stream.write(&self.buffer[self.sent..self.filled])?;
            }
            self.sent = 0;
            self.filled = 0;
            self.filled = match self.stream.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
        }
    }
}

impl<S: Stream> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Echoes, and closes the connection when it is over.
fn on_ready<S: Stream, R: ReactorOps>(
    connection: &mut Connection<S>,
    event: Event,
    mut turn: Turn<'_, R>,
) {
    match connection.pump() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return,
        Err(error) => eprintln!("a connection broke: {error}"),
        Ok(()) => {}
    }
    // The connection is dropped, and with it the socket closed, when this handler has returned.
    turn.delete(event.key()).expect("a running handler is registered");
}

#[cfg(test)]
mod tests {
    use super::*;
    use mockall::{Sequence, mock, predicate::eq};
    use windlass::{AddError, AddReason, Interest, Key, MockReactor, Ready, Subscription, turn};

    mock! {
        Socket {}
        impl Read for Socket {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
        }
        impl Write for Socket {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
            fn flush(&mut self) -> io::Result<()>;
        }
    }

    impl AsFd for MockSocket {
        fn as_fd(&self) -> BorrowedFd<'_> {
            unreachable!("a mock reactor asks nobody for a descriptor")
        }
    }

    mock! {
        Listener {}
        impl Accept for Listener {
            type Stream = MockSocket;
            fn accept_stream(&mut self) -> io::Result<MockSocket>;
        }
    }

    const BOTH: Interest = interest().read().write().edge_triggered();

    fn would_block<T>() -> io::Result<T> {
        Err(ErrorKind::WouldBlock.into())
    }

    /// A socket that is read from once, and then has no more.
    fn socket_with(bytes: &'static [u8], order: &mut Sequence) -> MockSocket {
        let mut socket = MockSocket::new();
        socket.expect_read().times(1).in_sequence(order).returning(move |buffer| {
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        });
        socket
    }

    fn event() -> Event {
        Event::new(Key::from_bits(5), BOTH, Ready::empty().read())
    }

    #[test]
    fn every_waiting_connection_is_registered_for_both_directions() {
        let mut listener = MockListener::new();
        let mut order = Sequence::new();
        listener
            .expect_accept_stream()
            .times(2)
            .in_sequence(&mut order)
            .returning(|| Ok(MockSocket::new()));
        listener.expect_accept_stream().times(1).in_sequence(&mut order).returning(would_block);
        let mut reactor = MockReactor::new();
        reactor
            .expect_add_cell()
            .withf(|subscription: &Subscription<MockReactor>| subscription.interest() == BOTH)
            .times(2)
            .returning(|_| Ok(Key::from_bits(1)));
        on_connection(&mut listener, turn!(reactor));
    }

    #[test]
    fn a_refused_registration_does_not_end_the_server() {
        let mut listener = MockListener::new();
        let mut order = Sequence::new();
        listener
            .expect_accept_stream()
            .times(1)
            .in_sequence(&mut order)
            .returning(|| Ok(MockSocket::new()));
        listener.expect_accept_stream().times(1).in_sequence(&mut order).returning(would_block);
        let mut reactor = MockReactor::new();
        reactor
            .expect_add_cell()
            .times(1)
            .returning(|s| Err(AddError::new(AddReason::LimitReached, s)));
        on_connection(&mut listener, turn!(reactor));
    }

    #[test]
    fn a_listener_that_fails_stops_the_server() {
        let mut listener = MockListener::new();
        listener.expect_accept_stream().times(1).returning(|| Err(ErrorKind::InvalidInput.into()));
        let mut reactor = MockReactor::new();
        reactor.expect_stop().times(1).return_const(());
        on_connection(&mut listener, turn!(reactor));
    }

    #[test]
    fn what_is_read_is_written_though_in_pieces() {
        let mut order = Sequence::new();
        let mut socket = socket_with(b"hello", &mut order);
        socket
            .expect_write()
            .with(eq(&b"hello"[..]))
            .times(1)
            .in_sequence(&mut order)
            .returning(|_| Ok(2));
        socket
            .expect_write()
            .with(eq(&b"llo"[..]))
            .times(1)
            .in_sequence(&mut order)
            .returning(|_| Ok(3));
        socket.expect_read().times(1).in_sequence(&mut order).returning(|_| would_block());
        on_ready(&mut Connection::new(socket), event(), turn!(MockReactor::new()));
    }

    #[test]
    fn nothing_is_read_while_something_is_unsent() {
        let mut order = Sequence::new();
        let mut socket = socket_with(b"hi", &mut order);
        socket.expect_write().times(2).in_sequence(&mut order).returning(|_| would_block());
        let mut connection = Connection::new(socket);
        on_ready(&mut connection, event(), turn!(MockReactor::new()));
        // A second read would find no expectation, and panic.
        on_ready(&mut connection, event(), turn!(MockReactor::new()));
        assert_eq!(&connection.buffer[connection.sent..connection.filled], b"hi");
    }

    #[test]
    fn the_end_of_the_stream_and_a_reset_delete_the_connection() {
        for outcome in [Ok(0), Err(ErrorKind::ConnectionReset)] {
            let mut socket = MockSocket::new();
            socket.expect_read().times(1).returning(move |_| outcome.map_err(io::Error::from));
            let mut reactor = MockReactor::new();
            reactor.expect_delete().with(eq(Key::from_bits(5))).times(1).returning(|_| Ok(()));
            on_ready(&mut Connection::new(socket), event(), turn!(reactor));
        }
    }
}
