//! The socket of a stream in the kernel: its own, or one that its handler owns.
//!
//! # The protocol of this module
//!
//! 1. A socket of the stream's own is closed when this value is dropped, and not before.
//! 2. The handler of a lent socket keeps it open until the handler is dropped. The core, which uses
//!    the number, is removed before that. So the number names this socket as long as it is used.
//!    Code that closes the descriptor nevertheless makes the number name another file, as it may
//!    with every subscriber. No memory depends on it.

#![allow(unsafe_code, reason = "a socket that the handler owns is used by its number")]

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
        SocketFlags, SocketType, sockopt,
    },
    time::Timespec,
};

use crate::{
    Errno,
    fd_passing::{self, RecvFdsError, SendFdsError},
    kernel::Kernel,
    stream::{Address, StreamOptions, TcpBytes},
    vsock::{self, VsockAddr},
};

/// `DONTWAIT`, because the socket may have been left in blocking mode.
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// The number of an own socket, or the complement of that of a lent one. So it takes four bytes.
#[derive(Debug)]
pub(crate) struct StreamSocket(RawFd);

impl StreamSocket {
    /// A socket that the stream's handler owns (protocol 2). `None` if its number is negative: safe
    /// code has such descriptors, which stand for directories, and the complement would be an own
    /// socket.
    pub(in crate::stream) fn lent(socket: BorrowedFd<'_>) -> Option<Self> {
        let number = socket.as_raw_fd();
        (number >= 0).then(|| Self(!number))
    }

    pub(in crate::stream) const fn is_lent(&self) -> bool {
        self.0 < 0
    }

    pub(super) const fn number(&self) -> RawFd {
        if self.is_lent() { !self.0 } else { self.0 }
    }

    /// The socket, if it is the stream's own.
    pub(in crate::stream) fn into_own(self) -> Option<OwnedFd> {
        let number = self.0;
        core::mem::forget(self);
        if number < 0 {
            return None;
        }
        // SAFETY: an own socket is open, and this value, which would close it, was forgotten
        // (protocol 1).
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// Connecting. The result of connect(2) stands beside the socket.
impl StreamSocket {
    pub(in crate::stream) fn to_tcp(
        to: SocketAddr,
        options: &StreamOptions,
        _: &Kernel,
    ) -> Result<(Self, Result<(), Errno>), Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = open(family, options)?;
        let begun = rustix::net::connect(&socket, &to);
        Ok((socket.into(), begun))
    }

    pub(in crate::stream) fn to_unix(
        path: &Path,
        options: &StreamOptions,
        _: &Kernel,
    ) -> Result<(Self, Result<(), Errno>), Errno> {
        let to = SocketAddrUnix::new(path)?;
        let socket = open(AddressFamily::UNIX, options)?;
        let begun = rustix::net::connect(&socket, &to);
        Ok((socket.into(), begun))
    }

    pub(in crate::stream) fn to_vsock(
        to: VsockAddr,
        options: &StreamOptions,
        timeout: Option<Duration>,
        _: &Kernel,
    ) -> Result<(Self, Result<(), Errno>), Errno> {
        let socket = open(AddressFamily::VSOCK, options)?;
        if let Some(timeout) = timeout {
            // It connects without, within two seconds, so an error is ignored.
            let _ = vsock::set_connect_timeout(&socket, timeout.saturating_add(KERNEL_LATER));
        }
        let begun = rustix::net::connect(&socket, &to);
        Ok((socket.into(), begun))
    }
}

/// How much later than ours the kernel's limit of time to connect comes.
const KERNEL_LATER: Duration = Duration::from_secs(1);

fn open(family: AddressFamily, options: &StreamOptions) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // The connection works without these options, so an error is ignored.
    let _ = options.apply_to(&socket);
    Ok(socket)
}

/// The calls that streams make, each once and without a wait.
impl StreamSocket {
    /// Receives bytes. None are the end of the stream.
    #[inline(always)]
    pub(in crate::stream) fn recv(&self, room: &mut [u8]) -> Result<usize, Errno> {
        // `DONTWAIT`, because the socket may have been left in blocking mode.
        rustix::net::recv(self, room, RecvFlags::DONTWAIT).map(|(count, _)| count)
    }

    #[inline(always)]
    pub(in crate::stream) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(self, bytes, SEND_FLAGS)
    }

    #[inline]
    pub(in crate::stream) fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        rustix::net::sendmsg(self, slices, &mut SendAncillaryBuffer::default(), SEND_FLAGS)
    }

    /// Whether so many descriptors may go with so many bytes.
    pub(in crate::stream) fn check_fds(
        &self,
        bytes: usize,
        fds: usize,
    ) -> Result<(), SendFdsError> {
        fd_passing::check_send(self.as_fd(), bytes, fds)
    }

    /// Sends bytes with descriptors, after [`check_fds`](Self::check_fds).
    pub(in crate::stream) fn send_with_fds(
        &self,
        slices: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Result<usize, Errno> {
        fd_passing::send_parts(self.as_fd(), slices, fds, SEND_FLAGS)
    }

    pub(in crate::stream) fn recv_with_fds(
        &self,
        room: &mut [u8],
        fds_max: usize,
    ) -> Result<(usize, Vec<OwnedFd>), RecvFdsError> {
        fd_passing::recv_flags(self.as_fd(), room, fds_max, RecvFlags::DONTWAIT)
    }

    /// Whether bytes have arrived that were not received.
    pub(in crate::stream) fn has_input(&self) -> bool {
        rustix::io::ioctl_fionread(self).is_ok_and(|bytes| bytes > 0)
    }

    /// Closes the writing half.
    pub(in crate::stream) fn shutdown_write(&self) -> Result<(), Errno> {
        rustix::net::shutdown(self, Shutdown::Write)
    }

    /// Returns and clears the socket's pending error.
    pub(in crate::stream) fn take_error(&self) -> Result<(), Errno> {
        sockopt::socket_error(self).unwrap_or(Ok(()))
    }

    /// Whether the kernel would report the socket as writable. A trial write instead could still
    /// add bytes to an almost full buffer, and would count as progress.
    pub(in crate::stream) fn is_writable(&self) -> bool {
        let mut asked = [PollFd::new(self, PollFlags::OUT)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }

    /// Lets the end of the socket send a RST. One that cannot is closed without it.
    pub(in crate::stream) fn reset_at_close(&self) {
        let _ = sockopt::set_socket_linger(self, Some(Duration::ZERO));
    }

    /// The number by which it is registered.
    #[inline]
    #[cfg(not(feature = "sim"))]
    pub(in crate::stream) fn number_in(&self, _: &Kernel) -> Result<RawFd, crate::AddReason> {
        Ok(self.number())
    }

    pub(in crate::stream) fn local_addr(&self) -> io::Result<Address> {
        Address::local_of(self)
    }

    pub(in crate::stream) fn peer_addr(&self) -> io::Result<Address> {
        Address::peer_of(self)
    }

    /// The bytes that the kernel has counted on a TCP connection.
    pub(in crate::stream) fn tcp_bytes(&self) -> io::Result<TcpBytes> {
        // The beginning of `struct tcp_info`, whose layout is part of the kernel's interface
        // (include/uapi/linux/tcp.h): 8 bytes, 24 numbers of four bytes, and then numbers of eight.
        let mut info = [0_u64; TCP_INFO_RECEIVED_AT + 1];
        let mut len = size_of_val(&info) as libc::socklen_t;
        // SAFETY: the descriptor is open (protocols 1 and 2). The kernel writes at most `len` bytes
        // to `info`, which has as many, and the length to `len` (getsockopt(2)). Both live until
        // the call returns. Any bytes are values of `u64`.
        let result = unsafe {
            libc::getsockopt(
                self.number(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(TcpBytes { received: info[TCP_INFO_RECEIVED_AT], acked: info[TCP_INFO_ACKED_AT] })
    }
}

/// Where `tcpi_bytes_acked` and `tcpi_bytes_received` are, in units of eight bytes.
const TCP_INFO_ACKED_AT: usize = 15;
const TCP_INFO_RECEIVED_AT: usize = 16;

impl From<OwnedFd> for StreamSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket.into_raw_fd())
    }
}

impl AsFd for StreamSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as this value is used (protocols 1 and 2), and the
        // number is not negative.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        if !self.is_lent() {
            // SAFETY: an own socket is open, and nothing uses it after this drop (protocol 1).
            drop(unsafe { OwnedFd::from_raw_fd(self.0) });
        }
    }
}
