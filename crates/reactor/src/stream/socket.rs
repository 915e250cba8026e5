//! The socket of a stream: its own, or one that its handler owns.
//!
//! # The protocol of this module
//!
//! 1. A socket of the stream's own is closed when this value is dropped, and not before.
//! 2. The handler of a lent socket keeps it open until the handler is dropped. The core, which uses
//!    the number, is removed before that. So the number names this socket as long as it is used.
//!    Code that closes the descriptor nevertheless makes the number name another file, as it may
//!    with every subscriber. No memory depends on it.

#![allow(unsafe_code, reason = "a socket that the handler owns is used by its number")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// The number of an own socket, or the complement of that of a lent one. So it takes four bytes.
#[derive(Debug)]
pub(crate) struct StreamSocket(RawFd);

impl StreamSocket {
    /// A socket that the stream's handler owns (protocol 2). `None` if its number is negative: safe
    /// code has such descriptors, which stand for directories, and the complement would be an own
    /// socket.
    pub(super) fn lent(socket: BorrowedFd<'_>) -> Option<Self> {
        let number = socket.as_raw_fd();
        (number >= 0).then(|| Self(!number))
    }

    pub(super) const fn is_lent(&self) -> bool {
        self.0 < 0
    }

    const fn number(&self) -> RawFd {
        if self.is_lent() { !self.0 } else { self.0 }
    }

    /// The socket, if it is the stream's own.
    pub(super) fn into_own(self) -> Option<OwnedFd> {
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
