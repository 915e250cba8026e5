//! [`VsockListener`] and [`VsockStream`].

use core::task::{Context, Poll};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketType},
};
use windlass::{
    stream::{Address, ListenError},
    vsock::{self, VsockAddr},
};

use crate::{
    fd::{
        AsyncFd, Direction,
        source::{ShortRead, Waiting},
    },
    io::{Socket, impl_reading, impl_writing},
    net::common::{self, Descriptor as _, FLAGS, impl_raw_stream, impl_socket},
};

/// Connections that wait to be accepted. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Accepts connections between a virtual machine and its host (vsock(7)).
///
/// ```no_run
/// // Not run: many kernels lack vsock, or its loopback.
/// use windlass::vsock::VsockAddr;
/// use windlass_task::{block_on, net::{VsockListener, VsockStream}};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let listener = VsockListener::bind("any:1024".parse()?)?;
///     let local = VsockAddr { cid: VsockAddr::CID_LOCAL, port: 1024 };
///     let mut client = VsockStream::connect(local).await?;
///     let (mut server, _) = listener.accept().await?;
///     client.write_all(b"hello").await?;
///     let mut buffer = [0; 5];
///     server.read_exact(&mut buffer).await
/// })
/// # }
/// ```
pub struct VsockListener {
    io: AsyncFd<Socket<OwnedFd>>,
}

impl_socket!(VsockListener, OwnedFd, ShortRead::SaysNothing);

impl VsockListener {
    /// Listens at an address. [`CID_ANY`](VsockAddr::CID_ANY) are all contexts of this machine, and
    /// [`PORT_ANY`](VsockAddr::PORT_ANY) is a free port.
    ///
    /// # Errors
    /// A [`ListenError`] with that of socket(2), bind(2) or listen(2), or if no executor runs on
    /// this thread. A simulated executor has none.
    pub fn bind(address: VsockAddr) -> io::Result<Self> {
        let named = |errno| ListenError { address: Address::Vsock(address), errno };
        let socket = open().map_err(named)?;
        rustix::net::bind(&socket, &address).map_err(named)?;
        rustix::net::listen(&socket, BACKLOG).map_err(named)?;
        Ok(Self { io: common::fresh(Socket::Kernel(socket), ShortRead::SaysNothing)? })
    }

    /// Accepts a connection, and returns the address of its peer. Any number of futures may wait. A
    /// future that is dropped has accepted none.
    ///
    /// # Errors
    /// That of accept(2). `EMFILE` and `ENFILE` mean that there are no descriptors: wait before the
    /// next call.
    pub async fn accept(&self) -> io::Result<(VsockStream, VsockAddr)> {
        Self::open(self.io.source().io(Direction::Read, || self.accept_now()).await?)
    }

    /// Polls for a connection. One waiter, which [`poll_ready`](Self::poll_ready) shares.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(VsockStream, VsockAddr)>> {
        let accept = || self.accept_now();
        let accepted = self.io.source().poll_io(Direction::Read, context, Waiting::One, accept);
        accepted.map(|accepted| Self::open(accepted?))
    }

    fn accept_now(&self) -> io::Result<OwnedFd> {
        Ok(rustix::net::accept_with(self.io.get_ref().kernel()?, FLAGS)?)
    }

    fn open(socket: OwnedFd) -> io::Result<(VsockStream, VsockAddr)> {
        let peer = peer_of(&socket)?;
        let io = common::fresh(Socket::Kernel(socket), ShortRead::SaysNothing)?;
        Ok((VsockStream { io }, peer))
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<VsockAddr> {
        Ok(rustix::net::getsockname(self.io.get_ref().kernel()?)?.try_into()?)
    }
}

/// A connection between a virtual machine and its host (vsock(7)). [`windlass::vsock`] has its
/// options. See [`VsockListener`] for an example.
pub struct VsockStream {
    io: AsyncFd<Socket<OwnedFd>>,
}

impl_socket!(VsockStream, OwnedFd, ShortRead::SaysNothing);

impl VsockStream {
    /// Connects. The kernel gives up after two seconds.
    ///
    /// # Errors
    /// That of socket(2) or connect(2), or if no executor runs on this thread. `ETIMEDOUT`,
    /// `ENODEV` or `EHOSTUNREACH` if no transport reaches the context.
    pub async fn connect(to: VsockAddr) -> io::Result<Self> {
        Self::start(open()?, to).await
    }

    /// Connects, and gives up after this time, which is at least a microsecond.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and `ERANGE` if the time is too long for the kernel.
    pub async fn connect_timeout(to: VsockAddr, longest: Duration) -> io::Result<Self> {
        let socket = open()?;
        // Zero is the kernel's default of two seconds.
        vsock::set_connect_timeout(&socket, longest.max(Duration::from_micros(1)))?;
        Self::start(socket, to).await
    }

    async fn start(socket: OwnedFd, to: VsockAddr) -> io::Result<Self> {
        let connected = rustix::net::connect(&socket, &to);
        let socket = Socket::Kernel(socket);
        let io = common::connecting(socket, ShortRead::SaysNothing, connected).await?;
        // A ring's poll reports room when the packet that asks for the connection is freed. The
        // other backends ask the socket once more before they report it.
        while is_connecting(&io)? {
            io.source().clear_after_eagain(Direction::Write);
            common::connect_result(&io).await?;
        }
        io.get_ref().take_error()?.map_or(Ok(Self { io }), Err)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// That of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<VsockAddr> {
        peer_of(self.io.get_ref().kernel()?)
    }

    /// The local address.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<VsockAddr> {
        Ok(rustix::net::getsockname(self.io.get_ref().kernel()?)?.try_into()?)
    }
}

fn open() -> rustix::io::Result<OwnedFd> {
    common::socket(AddressFamily::VSOCK, SocketType::STREAM)
}

/// Whether poll(2) does not report a result of connect(2) yet.
fn is_connecting(socket: impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
    Ok(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0)
}

fn peer_of(socket: &OwnedFd) -> io::Result<VsockAddr> {
    let peer = rustix::net::getpeername(socket)?.ok_or(rustix::io::Errno::NOTCONN)?;
    Ok(peer.try_into()?)
}

impl_reading!([] VsockStream);
impl_writing!([] VsockStream);

impl_raw_stream!(VsockStream);
