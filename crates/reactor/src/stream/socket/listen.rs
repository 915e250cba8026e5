//! The socket of a listener in the kernel.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};

use crate::{
    Errno,
    stream::{Address, ListenOptions, StreamOptions, socket::stream::StreamSocket},
    vsock::VsockAddr,
};

/// The longest wait of `accept4` if another owner has made the listener blocking. It is the
/// shortest time that `SO_RCVTIMEO` accepts (socket(7)). The kernel rounds it up to a tick, 1 to 10
/// ms.
const ACCEPT_TIMEOUT: Duration = Duration::from_micros(1);

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

#[derive(Debug)]
pub(crate) struct ListenSocket(OwnedFd);

impl ListenSocket {
    /// See [`ListenOptions::tcp`].
    pub(in crate::stream) fn tcp(
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = open(family)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if options.reuse_port {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, options.backlog)?;
        Ok(Self(socket))
    }

    /// See [`ListenOptions::unix`].
    pub(in crate::stream) fn unix(path: &Path, options: &ListenOptions) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let socket = open(AddressFamily::UNIX)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, options.backlog)?;
        Ok(Self(socket))
    }

    /// See [`ListenOptions::vsock`].
    pub(in crate::stream) fn vsock(
        address: VsockAddr,
        options: &ListenOptions,
    ) -> Result<Self, Errno> {
        let socket = open(AddressFamily::VSOCK)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, options.backlog)?;
        Ok(Self(socket))
    }

    /// A socket that listens already. See [`ListenOptions::from_fd`].
    pub(in crate::stream) fn adopt(socket: OwnedFd) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&socket)?
            || sockopt::socket_type(&socket)? != SocketType::STREAM
        {
            return Err(Errno::INVAL.into());
        }
        Ok(Self(socket))
    }

    /// Keeps accepting from blocking the loop. Sets the options that connections inherit.
    pub(in crate::stream) fn prepare(&self, options: &StreamOptions) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&self.0, true)?;
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(ACCEPT_TIMEOUT))?;
        // A Unix socket has neither option. A listener works without them, so an error is ignored.
        let _ = options.apply_to(&self.0);
        Ok(())
    }

    /// Sets `O_NONBLOCK` again if another owner has cleared it. The flag belongs to the open file
    /// description, which duplicates in this and other processes share.
    ///
    /// If it is cleared after this call, an `accept4` that finds no connection blocks for the
    /// socket's receive timeout, one kernel tick.
    pub(in crate::stream) fn keep_nonblocking(&self) {
        // Neither call fails on an open descriptor. Other flags keep their values.
        if let Ok(flags) = fcntl_getfl(&self.0) {
            if !flags.contains(OFlags::NONBLOCK) {
                let _ = fcntl_setfl(&self.0, flags | OFlags::NONBLOCK);
            }
        }
    }

    pub(in crate::stream) fn accept(&self) -> Result<(StreamSocket, Address), Errno> {
        let (socket, address) = rustix::net::acceptfrom_with(&self.0, FLAGS)?;
        Ok((socket.into(), Address::of(address).unwrap_or(Address::Unix(None))))
    }

    /// Lets other sockets listen at its address from now on.
    pub(in crate::stream) fn set_reuse_port(&self) -> Result<(), Errno> {
        sockopt::set_socket_reuseport(&self.0, true)
    }

    pub(super) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The number by which it is registered.
    #[cfg(not(feature = "sim"))]
    pub(in crate::stream) fn number_in(
        &self,
        _: &crate::kernel::Kernel,
    ) -> Result<RawFd, crate::AddReason> {
        Ok(self.number())
    }

    pub(in crate::stream) fn local_addr(&self) -> io::Result<Address> {
        Address::local_of(&self.0)
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open(family: AddressFamily) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)
}
