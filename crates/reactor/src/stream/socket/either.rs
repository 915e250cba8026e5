//! A socket of the kernel, or a simulated one, for builds with the feature `sim`.
//!
//! 1. A simulated socket has no descriptor, and calls that ask for one panic. So a simulated stream
//!    is not released, unless its socket is lent: it could not be given away.
//! 2. A reactor takes sockets of its own kind alone: [`number_in`](StreamSocket::number_in) rejects
//!    others as `Unsupported`, before any state changes.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use windlass_sim::SimAddr;

use crate::{
    AddReason, Errno,
    fd_passing::{RecvFdsError, SendFdsError},
    kernel::Kernel,
    stream::{
        Address, ListenOptions, StreamOptions, TcpBytes,
        socket::{listen, stream},
    },
    vsock::VsockAddr,
    world::{SimId, SimObject, World},
};

/// A path as the simulation has it.
fn unix_addr(path: &Path) -> Result<SimAddr, Errno> {
    Ok(SimAddr::Unix(Some(path.to_str().ok_or(Errno::INVAL)?.into())))
}

fn address_of(address: SimAddr) -> Address {
    match address {
        SimAddr::Inet(address) => Address::Ip(address),
        SimAddr::Unix(path) => Address::Unix(path.map(|path| PathBuf::from(&*path))),
    }
}

const NO_DESCRIPTOR: &str = "a simulated socket has no descriptor";

/// See [`stream::StreamSocket`].
#[derive(Debug)]
pub(crate) enum StreamSocket {
    Kernel(stream::StreamSocket),
    Simulated(SimObject),
}

use StreamSocket::{Kernel as OfKernel, Simulated};

impl StreamSocket {
    pub(in crate::stream) fn lent(socket: BorrowedFd<'_>) -> Option<Self> {
        stream::StreamSocket::lent(socket).map(OfKernel)
    }

    pub(in crate::stream) const fn lent_simulated(socket: SimId) -> Self {
        Simulated(SimObject::lent(socket))
    }

    pub(in crate::stream) const fn is_lent(&self) -> bool {
        match self {
            OfKernel(socket) => socket.is_lent(),
            Simulated(socket) => socket.is_lent(),
        }
    }

    /// Whether it could be given away, or need not be (rule 1).
    pub(in crate::stream) const fn may_be_released(&self) -> bool {
        matches!(self, OfKernel(_)) || self.is_lent()
    }

    /// The descriptor, if the stream owns one.
    pub(in crate::stream) fn into_own(self) -> Option<OwnedFd> {
        match self {
            OfKernel(socket) => socket.into_own(),
            Simulated(_) => None,
        }
    }

    pub(in crate::stream) fn number_in(&self, kernel: &Kernel) -> Result<i32, AddReason> {
        match (self, kernel.sim()) {
            (OfKernel(socket), None) => Ok(socket.number()),
            (Simulated(socket), Some(sim)) => sim.number_of(socket.id()),
            _ => Err(AddReason::Unsupported),
        }
    }

    pub(in crate::stream) fn to_tcp(
        to: SocketAddr,
        options: &StreamOptions,
        kernel: &Kernel,
    ) -> Result<(Self, Result<(), Errno>), Errno> {
        let Some(sim) = kernel.sim() else {
            return stream::StreamSocket::to_tcp(to, options, kernel)
                .map(|(socket, begun)| (OfKernel(socket), begun));
        };
        sim.connect(&SimAddr::Inet(to)).map(|(socket, begun)| (Simulated(socket), begun))
    }

    pub(in crate::stream) fn to_unix(
        path: &Path,
        options: &StreamOptions,
        kernel: &Kernel,
    ) -> Result<(Self, Result<(), Errno>), Errno> {
        let Some(sim) = kernel.sim() else {
            return stream::StreamSocket::to_unix(path, options, kernel)
                .map(|(socket, begun)| (OfKernel(socket), begun));
        };
        sim.connect(&unix_addr(path)?).map(|(socket, begun)| (Simulated(socket), begun))
    }

    pub(in crate::stream) fn to_vsock(
        to: VsockAddr,
        options: &StreamOptions,
        timeout: Option<Duration>,
        kernel: &Kernel,
    ) -> Result<(Self, Result<(), Errno>), Errno> {
        if kernel.sim().is_some() {
            return Err(Errno::AFNOSUPPORT);
        }
        stream::StreamSocket::to_vsock(to, options, timeout, kernel)
            .map(|(socket, begun)| (OfKernel(socket), begun))
    }

    #[inline]
    pub(in crate::stream) fn recv(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match self {
            OfKernel(socket) => socket.recv(room),
            Simulated(socket) => socket.recv(room),
        }
    }

    #[inline]
    pub(in crate::stream) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            OfKernel(socket) => socket.send(bytes),
            Simulated(socket) => socket.send_vectored(&[IoSlice::new(bytes)]),
        }
    }

    pub(in crate::stream) fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match self {
            OfKernel(socket) => socket.send_vectored(slices),
            Simulated(socket) => socket.send_vectored(slices),
        }
    }

    pub(in crate::stream) fn check_fds(
        &self,
        bytes: usize,
        fds: usize,
    ) -> Result<(), SendFdsError> {
        match self {
            OfKernel(socket) => socket.check_fds(bytes, fds),
            Simulated(_) => Err(SendFdsError::Os(Errno::OPNOTSUPP)),
        }
    }

    pub(in crate::stream) fn send_with_fds(
        &self,
        slices: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Result<usize, Errno> {
        match self {
            OfKernel(socket) => socket.send_with_fds(slices, fds),
            Simulated(_) => Err(Errno::OPNOTSUPP),
        }
    }

    pub(in crate::stream) fn recv_with_fds(
        &self,
        room: &mut [u8],
        fds_max: usize,
    ) -> Result<(usize, Vec<OwnedFd>), RecvFdsError> {
        match self {
            OfKernel(socket) => socket.recv_with_fds(room, fds_max),
            Simulated(socket) => {
                socket.recv(room).map(|count| (count, Vec::new())).map_err(RecvFdsError::Os)
            }
        }
    }

    pub(in crate::stream) fn has_input(&self) -> bool {
        match self {
            OfKernel(socket) => socket.has_input(),
            Simulated(socket) => socket.has_input(),
        }
    }

    pub(in crate::stream) fn shutdown_write(&self) -> Result<(), Errno> {
        match self {
            OfKernel(socket) => socket.shutdown_write(),
            Simulated(socket) => socket.shutdown_write(),
        }
    }

    pub(in crate::stream) fn take_error(&self) -> Result<(), Errno> {
        match self {
            OfKernel(socket) => socket.take_error(),
            Simulated(socket) => socket.take_error(),
        }
    }

    pub(in crate::stream) fn is_writable(&self) -> bool {
        match self {
            OfKernel(socket) => socket.is_writable(),
            Simulated(socket) => socket.is_writable(),
        }
    }

    pub(in crate::stream) fn reset_at_close(&self) {
        match self {
            OfKernel(socket) => socket.reset_at_close(),
            Simulated(socket) => socket.reset_at_close(),
        }
    }

    pub(in crate::stream) fn local_addr(&self) -> io::Result<Address> {
        match self {
            OfKernel(socket) => socket.local_addr(),
            Simulated(socket) => Ok(address_of(socket.local_addr()?)),
        }
    }

    pub(in crate::stream) fn peer_addr(&self) -> io::Result<Address> {
        match self {
            OfKernel(socket) => socket.peer_addr(),
            Simulated(socket) => Ok(address_of(socket.peer_addr()?)),
        }
    }

    pub(in crate::stream) fn tcp_bytes(&self) -> io::Result<TcpBytes> {
        match self {
            OfKernel(socket) => socket.tcp_bytes(),
            Simulated(_) => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

impl From<OwnedFd> for StreamSocket {
    fn from(socket: OwnedFd) -> Self {
        OfKernel(socket.into())
    }
}

impl AsFd for StreamSocket {
    /// # Panics
    /// If it is simulated (rule 1).
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            OfKernel(socket) => socket.as_fd(),
            Simulated(_) => panic!("{NO_DESCRIPTOR}"),
        }
    }
}

/// See [`listen::ListenSocket`].
#[derive(Debug)]
pub(crate) enum ListenSocket {
    Kernel(listen::ListenSocket),
    Simulated(SimObject),
}

impl ListenSocket {
    pub(in crate::stream) fn tcp(
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Errno> {
        match World::current() {
            None => listen::ListenSocket::tcp(address, options).map(Self::Kernel),
            Some(world) => world
                .listen(&SimAddr::Inet(address), options.backlog, options.reuse_port)
                .map(Self::Simulated),
        }
    }

    pub(in crate::stream) fn unix(path: &Path, options: &ListenOptions) -> Result<Self, Errno> {
        match World::current() {
            None => listen::ListenSocket::unix(path, options).map(Self::Kernel),
            Some(world) => {
                world.listen(&unix_addr(path)?, options.backlog, false).map(Self::Simulated)
            }
        }
    }

    pub(in crate::stream) fn vsock(
        address: VsockAddr,
        options: &ListenOptions,
    ) -> Result<Self, Errno> {
        match World::current() {
            None => listen::ListenSocket::vsock(address, options).map(Self::Kernel),
            Some(_) => Err(Errno::AFNOSUPPORT),
        }
    }

    pub(in crate::stream) fn adopt(socket: OwnedFd) -> io::Result<Self> {
        listen::ListenSocket::adopt(socket).map(Self::Kernel)
    }

    pub(in crate::stream) fn prepare(&self, options: &StreamOptions) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => socket.prepare(options),
            Self::Simulated(_) => Ok(()),
        }
    }

    pub(in crate::stream) fn keep_nonblocking(&self) {
        match self {
            Self::Kernel(socket) => socket.keep_nonblocking(),
            Self::Simulated(_) => {}
        }
    }

    pub(in crate::stream) fn accept(&self) -> Result<(StreamSocket, Address), Errno> {
        match self {
            Self::Kernel(socket) => {
                socket.accept().map(|(socket, address)| (OfKernel(socket), address))
            }
            Self::Simulated(socket) => {
                let (socket, address) = socket.accept()?;
                Ok((Simulated(socket), address_of(address)))
            }
        }
    }

    pub(in crate::stream) fn set_reuse_port(&self) -> Result<(), Errno> {
        match self {
            Self::Kernel(socket) => socket.set_reuse_port(),
            Self::Simulated(socket) => socket.set_reuse_port(),
        }
    }

    pub(in crate::stream) fn number_in(&self, kernel: &Kernel) -> Result<i32, AddReason> {
        match (self, kernel.sim()) {
            (Self::Kernel(socket), None) => Ok(socket.number()),
            (Self::Simulated(socket), Some(sim)) => sim.number_of(socket.id()),
            _ => Err(AddReason::Unsupported),
        }
    }

    pub(in crate::stream) fn local_addr(&self) -> io::Result<Address> {
        match self {
            Self::Kernel(socket) => socket.local_addr(),
            Self::Simulated(socket) => Ok(address_of(socket.local_addr()?)),
        }
    }
}

impl AsFd for ListenSocket {
    /// # Panics
    /// If it is simulated (rule 1).
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(socket) => socket.as_fd(),
            Self::Simulated(_) => panic!("{NO_DESCRIPTOR}"),
        }
    }
}
