//! Descriptors over Unix sockets (unix(7), `SCM_RIGHTS`), in blocking code and in any other.
//!
//! ```
//! use std::{fs::File, io::Read, os::{fd::AsFd, unix::net::UnixStream}};
//! use windlass::fd_passing::{recv_with_fds, send_all_with_fds};
//!
//! # fn main() -> std::io::Result<()> {
//! let (here, there) = UnixStream::pair()?;
//! let file = File::open("/proc/self/comm")?;
//! send_all_with_fds(&here, b"the name", &[file.as_fd()])?;
//!
//! let mut buffer = [0; 64];
//! let (count, fds) = recv_with_fds(&there, &mut buffer, 1)?;
//! assert_eq!(&buffer[..count], b"the name");
//! let mut name = String::new();
//! File::from(fds.into_iter().next().expect("one came")).read_to_string(&mut name)?;
//! # assert!(!name.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! 1. Descriptors travel with the first byte of their message. A stream of bytes is read up to the
//!    end of at most one such message at a time, so a read brings the descriptors of one message,
//!    perhaps behind bytes that were sent before them.
//! 2. A received descriptor is closed on execve(2) from the beginning (`MSG_CMSG_CLOEXEC`).
//! 3. The kernel always finds room for [`FDS_MAX`] descriptors. So those that nobody expects are
//!    received, counted and closed.
//! 4. The descriptors of a message come all or none. An error closes every one of them.
//!
//! [`Stream::send_with_fds`](crate::stream::Stream::send_with_fds) is the same for the streams of a
//! reactor.

use core::fmt;
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
    },
};

use crate::error::{Errno, plain_error};

/// The maximum number of descriptors in a message, which the kernel sets (unix(7)).
#[doc(alias = "SCM_MAX_FD")]
pub const FDS_MAX: usize = 253;

/// Room for the descriptors of a message, and for the credentials that precede them if the socket
/// asks for those (`SO_PASSCRED`).
const SPACE: usize = rustix::cmsg_space!(ScmRights(FDS_MAX), ScmCredentials(1));

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendFdsError {
    /// There are more than [`FDS_MAX`] descriptors.
    TooMany,
    /// There are descriptors, and no byte that they could go with.
    NoBytes,
    /// The socket is no Unix socket. The kernel would drop the descriptors, and report success.
    NotUnix,
    /// An error of sendmsg(2). `ETOOMANYREFS`: as many descriptors as the process may have open
    /// (`RLIMIT_NOFILE`) are on their way already, because peers do not read.
    Os(Errno),
}

plain_error!(
    SendFdsError,
    |e| match e {
        Self::TooMany => "a message has at most 253 descriptors; divide them among messages",
        Self::NoBytes => "descriptors go with a byte, and there is none; send at least one",
        Self::NotUnix => "only a Unix socket takes descriptors",
        Self::Os(Errno::TOOMANYREFS) =>
            "more descriptors are on their way than RLIMIT_NOFILE allows; wait until the peers \
             receive them, or raise the limit (ulimit -n)",
        Self::Os(_) => "cannot send descriptors",
    },
    match e {
        SendFdsError::TooMany | SendFdsError::NoBytes | SendFdsError::NotUnix =>
            Err(io::ErrorKind::InvalidInput),
        SendFdsError::Os(errno) => Ok(*errno),
    },
    match e {
        Self::Os(errno) => Some(errno),
        _ => None,
    }
);

/// Why a message was not received with its descriptors. All of them are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvFdsError {
    /// The peer has sent more descriptors than were expected. The bytes are in the buffer.
    TooMany {
        /// The number of bytes that were received.
        bytes: usize,
        /// The number of descriptors that were received, and closed.
        fds: usize,
    },
    /// Some descriptors of the message are missing, because this process may have no more open
    /// (`MSG_CTRUNC`). Or a packet was longer than the buffer (`MSG_TRUNC`), on a socket that is no
    /// stream of bytes. What there was room for is in the buffer.
    #[doc(alias = "MSG_CTRUNC")]
    Truncated {
        /// The number of bytes that were received.
        bytes: usize,
    },
    /// An error of recvmsg(2). Nothing was received.
    Os(Errno),
}

plain_error!(
    RecvFdsError,
    |e| match e {
        Self::TooMany { .. } => "the peer has sent more descriptors than were expected",
        Self::Truncated { .. } => "a message or its descriptors were cut off",
        Self::Os(_) => "cannot receive descriptors",
    },
    match e {
        RecvFdsError::TooMany { .. } | RecvFdsError::Truncated { .. } =>
            Err(io::ErrorKind::InvalidData),
        RecvFdsError::Os(errno) => Ok(*errno),
    },
    match e {
        Self::Os(errno) => Some(errno),
        _ => None,
    }
);

/// Sends bytes with descriptors by one call of sendmsg(2), and returns how many bytes the socket
/// has accepted. The descriptors have gone with the first of them, and stay open here. Send the
/// rest without them, or use [`send_all_with_fds`].
///
/// # Errors
/// Nothing was sent, neither bytes nor descriptors. [`Os`](SendFdsError::Os) with `EAGAIN` means
/// that a non-blocking socket is full.
#[doc(alias("sendmsg", "SCM_RIGHTS"))]
pub fn send_with_fds(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, SendFdsError> {
    let socket = socket.as_fd();
    if !fds.is_empty() {
        check_send(socket, bytes.len(), fds.len())?;
    }
    send_parts(socket, &[IoSlice::new(bytes)], fds, SendFlags::NOSIGNAL).map_err(SendFdsError::Os)
}

/// Sends all bytes on a blocking socket, and the descriptors with the first of them. However many
/// calls that takes, they are sent once.
///
/// # Errors
/// That of [`send_with_fds`]. After an error of a later call ([`Os`](SendFdsError::Os)), a part of
/// the bytes and the descriptors have been sent.
pub fn send_all_with_fds(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), SendFdsError> {
    send_all(bytes, fds, |bytes, fds| send_with_fds(&socket, bytes, fds))
}

fn send_all(
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    mut send: impl FnMut(&[u8], &[BorrowedFd<'_>]) -> Result<usize, SendFdsError>,
) -> Result<(), SendFdsError> {
    let mut sent = send(bytes, fds)?;
    while sent < bytes.len() {
        sent += send(&bytes[sent..], &[])?;
    }
    Ok(())
}

/// Receives bytes and the descriptors of at most one message, by one call of recvmsg(2). Returns
/// the number of bytes at the front of the buffer, and the descriptors in the order in which they
/// were sent. No bytes are the end of the stream, or an empty buffer.
///
/// `fds_max` is the number of descriptors that the caller expects at most. A peer may send up to
/// [`FDS_MAX`] at any time. Do not set `SO_PASSPIDFD` on the socket: the descriptor of a process
/// that the kernel then adds stays open.
///
/// # Errors
/// All descriptors of the message are closed. The other messages are as they were.
#[doc(alias("recvmsg", "SCM_RIGHTS"))]
pub fn recv_with_fds(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds_max: usize,
) -> Result<(usize, Vec<OwnedFd>), RecvFdsError> {
    if buffer.is_empty() {
        // The kernel would take the descriptors of a message off, and leave its bytes.
        return Ok((0, Vec::new()));
    }
    recv_flags(socket.as_fd(), buffer, fds_max, RecvFlags::empty())
}

/// Whether so many descriptors may go with so many bytes.
pub(crate) fn check_send(
    socket: BorrowedFd<'_>,
    bytes: usize,
    fds: usize,
) -> Result<(), SendFdsError> {
    if fds > FDS_MAX {
        return Err(SendFdsError::TooMany);
    }
    if bytes == 0 {
        return Err(SendFdsError::NoBytes);
    }
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::UNIX) => Ok(()),
        Ok(_) => Err(SendFdsError::NotUnix),
        Err(errno) => Err(SendFdsError::Os(errno)),
    }
}

/// One sendmsg(2), after [`check_send`].
pub(crate) fn send_parts(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    retry_on_intr(|| sendmsg(socket, parts, &mut control, flags))
}

/// As [`recv_with_fds`].
pub(crate) fn recv_flags(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds_max: usize,
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), RecvFdsError> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    // It closes what is not taken out of it, also if a panic comes before.
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let RecvMsg { bytes, flags, .. } = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(buffer)];
        recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(RecvFdsError::Os)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(RecvFdsError::Truncated { bytes });
    }
    if fds.len() > fds_max {
        return Err(RecvFdsError::TooMany { bytes, fds: fds.len() });
    }
    Ok((bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel makes short writes when a signal interrupts them, which no test can time.
    #[test]
    fn short_writes_send_the_descriptors_once() {
        let fds = [rustix::stdio::stdin(); 2];
        let mut calls = Vec::new();
        let sent = send_all(b"seven b", &fds, |bytes, fds| {
            calls.push((bytes.to_vec(), fds.len()));
            Ok(bytes.len().min(3))
        });
        assert_eq!(sent, Ok(()));
        let expected = [(&b"seven b"[..], 2), (b"en b", 0), (b"b", 0)];
        assert_eq!(calls, expected.map(|(bytes, fds)| (bytes.to_vec(), fds)));
    }
}
