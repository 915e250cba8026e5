//! Byte streams over TCP, Unix and vsock sockets.
//!
//! A [`StreamHandler`] receives bytes in the reactor's own buffer. It may change them in place, and
//! send them back from there without a copy. One readable event costs one receive call, and one
//! send call if the handler answers.
//!
//! ```
//! use windlass::{Reactor, stream::{Input, Listener, Stream, StreamHandler}};
//!
//! struct Echo;
//!
//! impl StreamHandler for Echo {
//!     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
//!         // An error means that the stream is closed or the peer does not read. `on_close` or
//!         // `on_full` follows.
//!         let _ = stream.reply(input, ..);
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let mut reactor = Reactor::new()?;
//! let listener = Listener::tcp(([127, 0, 0, 1], 0).into())?;
//! let address = listener.local_addr()?.socket_addr().expect("an IP address");
//! listener.with_handler(|_| Some(Echo)).register_into(&mut reactor)?;
//!
//! # let client = std::thread::spawn(move || {
//! #     use std::io::{Read, Write};
//! #     let mut client = std::net::TcpStream::connect(address).unwrap();
//! #     client.write_all(b"hello").unwrap();
//! #     let mut answer = [0; 5];
//! #     client.read_exact(&mut answer).unwrap();
//! #     assert_eq!(&answer, b"hello");
//! # });
//! # let stop = reactor.stop_handle();
//! # let waiter = std::thread::spawn(move || { client.join().unwrap(); stop.stop() });
//! reactor.run()?;
//! # waiter.join().unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # The end of a stream
//!
//! It is the same on every backend:
//!
//! - [`Stream::close`] sends the output. A stream whose peer does not take it in time is reset: see
//!   [`linger`](StreamOptions::linger). Once the kernel has all of the output, the socket is closed
//!   plainly, and the kernel sends the rest.
//! - [`Stream::abort`] discards the output, and resets the connection.
//! - [`Stream::release`] returns the output that the socket has not accepted.
//! - Dropping the [`Reactor`](crate::Reactor) writes the output as far as the sockets accept it
//!   without a wait. A stream with output that is left is reset, so that its peer does not take it
//!   for complete. Unix sockets know no reset: their peers read the end. Close the streams and run
//!   the reactor until they are gone if the output matters.
//!
//! # Parts
//!
//! - [`StreamOptions`]: watermarks, limits and timeouts. [`with_fd`](StreamOptions::with_fd) starts
//!   the registration of a connected socket.
//! - [`Listener`] accepts connections, [`Connector`] initiates them. A [`StreamLimit`] limits the
//!   open streams of several listeners together.
//! - [`MemberStreamHandler`]: a handler of a stream in a [`Group`](crate::Group), which shares one
//!   state between streams, listeners, descriptors and timers.
//! - [`Workers`] runs one reactor per thread. [`inherited_sockets`] takes over sockets that the
//!   service manager has opened.
//! - [`Stream`] is the handle to an open stream, in its own callbacks and elsewhere by its key.
//! - A [`TlsSessionFactory`], which `windlass-tls` implements, adds TLS to any of them.

mod api;
mod io;
mod lifecycle;
mod listen;
mod members;
pub(crate) mod parts;
mod pause;
mod release;
mod socket;
mod state;
mod status;
mod timeouts;

pub use crate::backend::shared_bytes::SharedBytes;
pub use api::{
    address::{Address, Peer},
    connector::Connector,
    handler::{DisconnectReason, Input, StreamHandler, StreamWriteError, Timeout},
    member::MemberStreamHandler,
    options::{StreamOptions, StreamParts, StreamRegistration, StreamTls, StreamWithFd},
    stream::{Stream, TcpBytes},
    tls::{
        ReleasedTls, TlsDecrypted, TlsFactoryStatus, TlsFailure, TlsPhase, TlsSession,
        TlsSessionFactory,
    },
};
pub use io::fds::StreamFdsError;
pub(crate) use listen::workers::OnPanic;
pub use listen::{
    error::ListenError,
    inherited::{Inherited, InheritedError, inherited_sockets},
    limit::StreamLimit,
    listener::{ListenOptions, Listener, ListenerKey, ListenerRegistration},
    listening::Listening,
    workers::{RunningWorkers, WORKERS_MAX, Worker, Workers},
};
pub use release::Released;
pub(crate) use state::StreamTable;
pub use timeouts::GRANULE;
