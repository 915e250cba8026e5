//! An echo server whose handlers are tested without a reactor and without a socket.
//!
//! It shows:
//! - Handlers are plain functions. They take a trait instead of a socket (`impl Accept`), and
//!   `Turn<'_, impl ReactorOps>` instead of the turn of the real reactor.
//! - So the tests below call them with mocks: `MockReactor` (the dev-dependency `windlass` has the
//!   feature `mock`), and mockall's mocks of the two traits. A test does not build arguments that a
//!   handler does not take.
//! - The registered object need not be a plain socket. It can be any type that implements `AsFd`,
//!   with the state that it needs.
//! - Both directions are edge-triggered. This takes one `epoll_ctl` in the life of a connection, if
//!   the handler continues until it would block. It has one buffer, and does not read while that
//!   contains unsent bytes.
//!
//! Run it with `cargo run --example echo_server`, and its tests with
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

/// The operations on a client's stream.
trait Stream: Read + Write + AsFd + 'static {}
impl<T: Read + Write + AsFd + 'static> Stream for T {}

/// The source of connections.
trait Accept {
    type Stream: Stream;

    /// Returns the next connection, non-blocking, or `WouldBlock` if there is none.
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

/// Accepts until no connection waits, because the listener is edge-triggered.
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
                // Out of descriptors: `windlass serve` continues, but this example ends.
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
        // The error contains the connection, which is closed here.
        eprintln!("cannot register a connection: {error}");
    }
}

/// A client: its stream, and the bytes that were read but not sent.
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

    /// Echoes until reading and writing would block (`WouldBlock`), or until the client's end of
    /// stream (`Ok`).
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

/// Echoes, and deletes the registration at the end of the connection.
fn on_ready<S: Stream, R: ReactorOps>(
    connection: &mut Connection<S>,
    event: Event,
    mut turn: Turn<'_, R>,
) {
    match connection.pump() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return,
        Err(error) => eprintln!("a connection failed: {error}"),
        Ok(()) => {}
    }
    // After the return of this handler the connection is dropped, which closes its socket.
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
            unreachable!("a mock reactor does not use the descriptor")
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

    /// A socket from which one read succeeds, and the next would block.
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
        // A second read would panic, because no expectation matches it.
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
