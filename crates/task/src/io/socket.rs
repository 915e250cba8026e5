//! [`Socket`]: a socket of the kernel, or with the feature `sim` a simulated one.

use core::fmt;
use std::{
    io::{self, IoSlice},
    net::Shutdown,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use rustix::net::{RecvFlags, SendFlags, sockopt};
#[cfg(feature = "sim")]
use windlass::sim::SimFd;

use crate::{fd::source::Place, io::Unfilled};

/// A socket of type `S` of the standard library, or a simulated one in its place.
pub(crate) enum Socket<S> {
    Kernel(S),
    #[cfg(feature = "sim")]
    Simulated(SimFd),
}

/// Makes a call of the kernel, or with the feature `sim` one of the simulated kernel.
macro_rules! either {
    ($socket:expr, |$of_kernel:ident| $call:expr, |$sim:ident, $fd:ident| $simulated:expr) => {
        match $socket {
            $crate::io::Socket::Kernel($of_kernel) => $call,
            #[cfg(feature = "sim")]
            $crate::io::Socket::Simulated(object) => object.call(|$sim, $fd| $simulated),
        }
    };
}
pub(crate) use either;

impl<S: AsFd> Socket<S> {
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Kernel(socket) => Place::Kernel(socket.as_fd().as_raw_fd()),
            #[cfg(feature = "sim")]
            Self::Simulated(object) => Place::Simulated(object.id()),
        }
    }

    /// The socket of the kernel, for options and for closures of the user.
    ///
    /// # Errors
    /// `Unsupported` if it is simulated.
    #[inline]
    #[cfg_attr(not(feature = "sim"), expect(clippy::unnecessary_wraps, reason = "of `sim`"))]
    pub(crate) fn kernel(&self) -> io::Result<&S> {
        match self {
            Self::Kernel(socket) => Ok(socket),
            #[cfg(feature = "sim")]
            Self::Simulated(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a simulated socket has no descriptor, and lacks this option",
            )),
        }
    }

    /// Sets an option, which a simulated socket does not have.
    #[inline]
    pub(crate) fn set(&self, set: impl FnOnce(&S) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => set(socket),
            #[cfg(feature = "sim")]
            Self::Simulated(_) => Ok(()),
        }
    }

    /// # Errors
    /// Returns itself if it is simulated.
    #[cfg_attr(not(feature = "sim"), expect(clippy::unnecessary_wraps, reason = "of `sim`"))]
    pub(crate) fn into_kernel(self) -> Result<S, Self> {
        match self {
            Self::Kernel(socket) => Ok(socket),
            #[cfg(feature = "sim")]
            simulated @ Self::Simulated(_) => Err(simulated),
        }
    }

    #[inline(always)]
    pub(crate) fn receive<B: Unfilled + ?Sized>(
        &self,
        buffer: &mut B,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        either!(self, |socket| Ok(buffer.receive(socket.as_fd(), flags)?), |kernel, fd| {
            let mut bytes = vec![0; buffer.room()];
            let count = if flags.contains(RecvFlags::PEEK) {
                kernel.peek(fd, &mut bytes)?
            } else {
                kernel.recv(fd, &mut bytes)?
            };
            Ok(buffer.put(&bytes[..count]))
        })
    }

    #[inline(always)]
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(
            self,
            |socket| Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?),
            |kernel, fd| kernel.send(fd, bytes)
        )
    }

    pub(crate) fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(
            self,
            |socket| {
                let mut control = rustix::net::SendAncillaryBuffer::default();
                Ok(rustix::net::sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL)?)
            },
            |kernel, fd| kernel.send_vectored(fd, parts)
        )
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let of_kernel = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        either!(self, |socket| Ok(rustix::net::shutdown(socket, of_kernel)?), |kernel, fd| kernel
            .shutdown(fd, how))
    }

    /// `SO_ERROR`.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        either!(
            self,
            |socket| Ok(sockopt::socket_error(socket)?.err().map(Into::into)),
            |kernel, fd| kernel.take_error(fd)
        )
    }

    /// Whether an event for writing says nothing of the connect. The kernel reports none before its
    /// result; a simulation does.
    pub(crate) fn is_connecting(&self) -> bool {
        match self {
            Self::Kernel(_) => false,
            #[cfg(feature = "sim")]
            Self::Simulated(object) => {
                let ready = object.call(|kernel, fd| kernel.poll(fd));
                ready.is_ok_and(|ready| ready & OUT == 0)
            }
        }
    }
}

/// `EPOLLOUT`.
#[cfg(feature = "sim")]
const OUT: u32 = 4;

impl<S: AsFd> AsFd for Socket<S> {
    /// # Panics
    /// If it is simulated.
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(socket) => socket.as_fd(),
            #[cfg(feature = "sim")]
            Self::Simulated(object) => object.as_fd(),
        }
    }
}

/// As the socket itself.
impl<S: fmt::Debug> fmt::Debug for Socket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(socket) => socket.fmt(f),
            #[cfg(feature = "sim")]
            Self::Simulated(object) => object.fmt(f),
        }
    }
}
