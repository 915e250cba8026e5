//! [`Unfilled`]: memory that a read fills, whether it is initialized or not.

use core::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::net::RecvFlags;

/// Memory for the bytes of a read: `[u8]`, or `[MaybeUninit<u8>]` of libraries that do not clear
/// their buffers. Both methods fill it from the front.
pub trait Unfilled {
    /// Its size in bytes.
    fn room(&self) -> usize;

    /// Copies as many of the bytes as there is room for. Returns their number.
    fn put(&mut self, bytes: &[u8]) -> usize;

    /// Receives from a socket. Returns the number of bytes, which are initialized then.
    fn receive(&mut self, fd: BorrowedFd<'_>, flags: RecvFlags) -> rustix::io::Result<usize>;
}

impl Unfilled for [u8] {
    #[inline]
    fn room(&self) -> usize {
        self.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.len());
        self[..count].copy_from_slice(&bytes[..count]);
        count
    }

    #[inline]
    fn receive(&mut self, fd: BorrowedFd<'_>, flags: RecvFlags) -> rustix::io::Result<usize> {
        Ok(rustix::net::recv(fd, self, flags)?.1)
    }
}

impl Unfilled for [MaybeUninit<u8>] {
    #[inline]
    fn room(&self) -> usize {
        self.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.len());
        // A copy of a slice, as the compiler sees it.
        for (to, from) in self[..count].iter_mut().zip(bytes) {
            to.write(*from);
        }
        count
    }

    #[inline]
    fn receive(&mut self, fd: BorrowedFd<'_>, flags: RecvFlags) -> rustix::io::Result<usize> {
        let ((filled, _), _) = rustix::net::recv(fd, self, flags)?;
        Ok(filled.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_put_at_the_front_as_far_as_there_is_room() {
        let mut plain = [9_u8; 4];
        assert_eq!((plain.room(), plain.put(b"ab")), (4, 2));
        assert_eq!(&plain, b"ab\x09\x09");
        assert_eq!(plain.put(b"cdefg"), 4);
        assert_eq!(&plain, b"cdef");
        let mut memory = [const { MaybeUninit::uninit() }; 4];
        assert_eq!((memory.room(), memory.put(b"ab")), (4, 2));
        assert_eq!(memory.put(b"cdefg"), 4);
        // Initialized now, which Miri checks.
        #[allow(unsafe_code, reason = "a test reads what was put")]
        // SAFETY: `put` has initialized all four bytes.
        let bytes = memory.map(|byte| unsafe { byte.assume_init() });
        assert_eq!(&bytes, b"cdef");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot receive with flags")]
    fn a_receive_initializes_as_many_bytes_as_it_returns() {
        use std::{
            io::Write as _,
            os::{fd::AsFd as _, unix::net::UnixStream},
        };
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"hello").unwrap();
        let mut memory = [const { MaybeUninit::<u8>::uninit() }; 8];
        assert_eq!(memory.receive(there.as_fd(), RecvFlags::PEEK).unwrap(), 5);
        let mut plain = [0_u8; 8];
        assert_eq!(plain.receive(there.as_fd(), RecvFlags::empty()).unwrap(), 5);
        assert_eq!(&plain[..5], b"hello");
    }
}
