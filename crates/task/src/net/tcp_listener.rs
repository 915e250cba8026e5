//! [`TcpListener`].

use core::task::{Context, Poll};
use std::{io, net::SocketAddr};

use rustix::net::{AddressFamily, SocketType};
#[cfg(feature = "sim")]
use windlass::sim::SocketKind;
use windlass::stream::{Address, ListenError};

#[cfg(feature = "sim")]
use crate::net::simulated;
use crate::{
    fd::{
        AsyncFd, Direction,
        source::{ShortRead, Waiting},
    },
    io::{Socket, either},
    net::{
        TcpStream, ToAddresses,
        common::{self, FLAGS, impl_socket},
    },
};

/// A connection, and the peer's address.
type Accepted = (Socket<std::net::TcpStream>, Option<SocketAddr>);

/// Connections that wait to be accepted. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Accepts TCP connections.
///
/// ```
/// use windlass_task::{block_on, net::{TcpListener, TcpStream}, spawn};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let address = listener.local_addr()?;
///     let server = spawn(async move {
///         let (mut stream, _peer) = listener.accept().await?;
///         let mut buffer = [0; 5];
///         stream.read_exact(&mut buffer).await?;
///         stream.write_all(&buffer).await
///     });
///     let mut client = TcpStream::connect(address).await?;
///     client.write_all(b"hello").await?;
///     let mut echo = [0; 5];
///     client.read_exact(&mut echo).await?;
///     assert_eq!(&echo, b"hello");
///     server.await.unwrap()
/// })
/// # }
/// ```
pub struct TcpListener {
    io: AsyncFd<Socket<std::net::TcpListener>>,
}

impl_socket!(TcpListener, std::net::TcpListener, ShortRead::SaysNothing);

impl TcpListener {
    /// Listens on the first address that can be bound, with `SO_REUSEADDR`. For other options,
    /// make a listener of the standard library and use [`from_std`](Self::from_std).
    ///
    /// # Errors
    /// That of the last address, a [`ListenError`]: of socket(2), bind(2) or listen(2). That of
    /// [`lookup_host`](crate::net::lookup_host), or if no executor runs on this thread.
    pub async fn bind(addresses: impl ToAddresses) -> io::Result<Self> {
        let mut last = None;
        for &address in &*addresses.to_addresses().resolve().await? {
            match Self::bind_one(address) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is an address"))
    }

    fn bind_one(address: SocketAddr) -> io::Result<Self> {
        let named = |errno| ListenError { address: Address::Ip(address), errno };
        #[cfg(feature = "sim")]
        if let Some(socket) = simulated::listen(SocketKind::Tcp, address.into()).map_err(named)? {
            return Ok(Self { io: common::fresh(socket, ShortRead::SaysNothing)? });
        }
        let open = || {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = common::socket(family, SocketType::STREAM)?;
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &address)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = Socket::Kernel(open().map_err(named)?.into());
        Ok(Self { io: common::fresh(socket, ShortRead::SaysNothing)? })
    }

    /// Accepts a connection. Any number of futures may wait. A future that is dropped has accepted
    /// none.
    ///
    /// # Errors
    /// That of accept(2). `EMFILE` and `ENFILE` mean that there are no descriptors: wait before the
    /// next call. Errors of a connection, such as `ECONNABORTED`, do not end the listener.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accept = || self.accept_now();
        Self::open(self.io.source().io(Direction::Read, accept).await?)
    }

    fn accept_now(&self) -> io::Result<Accepted> {
        either!(
            self.io.get_ref(),
            |socket| {
                let (socket, address) = rustix::net::acceptfrom_with(socket, FLAGS)?;
                let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                Ok((Socket::Kernel(socket.into()), address))
            },
            |kernel, fd| {
                let (fd, address) = kernel.accept(fd)?;
                Ok((simulated::adopt(kernel, fd)?, address.inet()))
            }
        )
    }

    fn open((socket, address): Accepted) -> io::Result<(TcpStream, SocketAddr)> {
        let Some(address) = address else {
            return Err(io::Error::other("the peer has no internet address"));
        };
        Ok((TcpStream::from_connected(socket)?, address))
    }

    /// Polls for a connection. One waiter, which [`poll_ready`](Self::poll_ready) shares.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accept = || self.accept_now();
        let accepted = self.io.source().poll_io(Direction::Read, context, Waiting::One, accept);
        accepted.map(|accepted| Self::open(accepted?))
    }

    /// The local address, with the port that was chosen.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self.io.get_ref(), |socket| socket.local_addr(), |kernel, fd| {
            simulated::inet(kernel.local_addr(fd)?)
        })
    }
}
