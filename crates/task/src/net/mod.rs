//! TCP, UDP, Unix and vsock sockets.
//!
//! All of them belong to the executor on whose thread they were made, and are `!Send`. On epoll
//! each is registered once, edge-triggered, and its readiness is cached: a request and its response
//! cost one `recv` and one `send`. On a ring the registration is a multishot poll, except for TCP:
//! it goes by completion, so a turn with any number of requests is one system call. [`TcpStream`]
//! says what differs.
//!
//! | to | use |
//! |---|---|
//! | serve and connect over TCP | [`TcpListener`], [`TcpStream`] |
//! | read and write in two tasks | [`TcpStream::split`], [`TcpStream::into_split`] |
//! | send datagrams | [`UdpSocket`], [`UnixDatagram`] |
//! | talk on one machine | [`UnixListener`], [`UnixStream`] |
//! | talk with a virtual machine, or with its host | [`VsockListener`], [`VsockStream`] |
//! | try without waiting | `ready`, `readable`, `writable`; then `try_read`, `try_write`, `try_recv` |
//! | resolve a name | [`lookup_host`] |
//! | set options before `bind` or `connect` | make a socket of the standard library; `from_std` |

mod addresses;
mod buffered_tcp;
mod common;
mod lookup;
#[cfg(feature = "sim")]
mod simulated;
mod split;
mod tcp_listener;
mod tcp_socket;
mod tcp_stream;
mod udp;
mod unix_address;
mod unix_datagram;
mod unix_listener;
mod unix_stream;
mod vsock;

pub use addresses::ToAddresses;
pub use lookup::lookup_host;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use tcp_listener::TcpListener;
pub use tcp_stream::{IntoStdError, TcpStream};
pub use udp::UdpSocket;
pub use unix_datagram::UnixDatagram;
pub use unix_listener::UnixListener;
pub use unix_stream::{PeerCredentials, UnixStream};
pub use vsock::{VsockListener, VsockStream};
/// From [`windlass`]: the error of [`TcpListener::bind`] and [`UnixListener::bind`].
pub use windlass::stream::ListenError;
