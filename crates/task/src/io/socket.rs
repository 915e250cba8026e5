//! [`Socket`]: a socket of the kernel, or with the feature `sim` a simulated one.

use core::fmt;
use std::{
    io::{self, IoSlice},
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, sockopt},
};
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

/// The same with the number of the error.
macro_rules! number {
    ($socket:expr, |$of_kernel:ident| $call:expr, |$sim:ident, $fd:ident| $simulated:expr) => {
        match $socket {
            Self::Kernel($of_kernel) => $call,
            #[cfg(feature = "sim")]
            Self::Simulated(object) => object
                .call(|$sim, $fd| $simulated)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    };
}

impl Socket<TcpStream> {
    /// Another owner of the socket.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        match self {
            Self::Kernel(socket) => socket.try_clone().map(Self::Kernel),
            #[cfg(feature = "sim")]
            Self::Simulated(object) => Ok(Self::Simulated(object.clone())),
        }
    }
}

impl<S: AsFd> Socket<S> {
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Kernel(socket) => Place::Kernel(socket.as_fd().as_raw_fd()),
            #[cfg(feature = "sim")]
            Self::Simulated(object) => Place::Simulated(object.id()),
        }
    }

    #[cfg(feature = "sim")]
    pub(crate) fn simulated(&self) -> Option<&SimFd> {
        if let Self::Simulated(object) = self { Some(object) } else { None }
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
            Self::Simulated(_) => Err(no_descriptor()),
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

    /// The socket of the kernel, to be given away.
    ///
    /// # Errors
    /// `Unsupported` if it is simulated. It is closed then.
    #[cfg_attr(not(feature = "sim"), expect(clippy::unnecessary_wraps, reason = "of `sim`"))]
    pub(crate) fn give_away(self) -> io::Result<S> {
        match self {
            Self::Kernel(socket) => Ok(socket),
            #[cfg(feature = "sim")]
            Self::Simulated(_) => Err(no_descriptor()),
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
    ) -> Result<usize, Errno> {
        number!(self, |socket| buffer.receive(socket.as_fd(), flags), |kernel, fd| {
            let mut bytes = vec![0; buffer.room()];
            let count = loop {
                let result = match flags.contains(RecvFlags::PEEK) {
                    true => kernel.peek(fd, &mut bytes),
                    false => kernel.recv(fd, &mut bytes),
                };
                match result {
                    // A call that does not wait is not interrupted, but for the fault.
                    Err(error) if is_interrupted(&error, flags) => {}
                    result => break result?,
                }
            };
            Ok(buffer.put(&bytes[..count]))
        })
    }

    #[inline(always)]
    pub(crate) fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
        let flags = flags | SendFlags::NOSIGNAL;
        number!(self, |socket| rustix::net::send(socket, bytes, flags), |kernel, fd| kernel
            .send(fd, bytes))
    }

    /// Whether a close resets the connection: `SO_LINGER` with a time of zero.
    pub(crate) fn resets_on_close(&self) -> bool {
        number!(
            self,
            |socket| sockopt::socket_linger(socket).map(|linger| linger == Some(Duration::ZERO)),
            |kernel, fd| kernel.resets_on_close(fd)
        )
        .unwrap_or(false)
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

#[cfg(feature = "sim")]
fn is_interrupted(error: &io::Error, flags: RecvFlags) -> bool {
    flags.contains(RecvFlags::DONTWAIT) && error.kind() == io::ErrorKind::Interrupted
}

#[cfg(feature = "sim")]
#[cold]
fn no_descriptor() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "a simulated socket has no descriptor, and lacks this option",
    )
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
