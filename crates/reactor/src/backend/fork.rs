//! Whether this process is the one that built the reactor.
//!
//! A child of fork(2) has a copy of the reactor's memory and shares its epoll set or ring with the
//! parent, and every registered descriptor. What it enters there carries an address that means
//! something else in the parent (rule 11), and entries of its would mix with the parent's in the
//! ring's queues, which are one memory for both. So a reactor refuses to work in a child. A page
//! that the kernel wipes in the child tells it, for the price of a load.
//!
//! In a child:
//!
//! 1. A wait is refused, and so are `add` and `modify`: [`REFUSAL`].
//! 2. What cannot fail (`delete`, taking a subscriber out, the reactor's end) frees memory and
//!    closes the child's descriptors. The epoll set and the ring are not told.
//! 3. Streams send nothing and change nothing of their sockets.

#![allow(unsafe_code, reason = "one page of memory, mapped, read and unmapped")]

use core::{ffi::c_void, ptr};
use std::rc::Rc;

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};

/// What a reactor says in a child of fork(2): it is not the owner's any more.
pub(crate) const REFUSAL: Errno = Errno::STALE;

const LENGTH: usize = 4096;

/// One page that holds 1 in the process that made it and 0 in its children. It lives until the last
/// clone is dropped, and nobody else has its address.
#[derive(Clone)]
pub(crate) struct ForkGuard {
    /// That of the mapping, a step nearer.
    page: *mut c_void,
    _mapping: Rc<Mapping>,
}

struct Mapping(*mut c_void);

impl ForkGuard {
    /// # Errors
    /// What mmap(2) and madvise(2) say: no memory, or a kernel before 4.14.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let page = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                LENGTH,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let guard = Self { page, _mapping: Rc::new(Mapping(page)) };
        // SAFETY: the page is ours, and being wiped in a child harms nobody.
        unsafe { madvise(page, LENGTH, Advice::LinuxWipeOnFork) }?;
        // SAFETY: the page is mapped, writable and ours alone.
        unsafe { page.cast::<u32>().write_volatile(1) };
        Ok(guard)
    }

    #[inline(always)]
    pub(crate) fn is_child(&self) -> bool {
        // SAFETY: the page is mapped until the mapping is dropped, which this is a part of.
        // Volatile, for the kernel changes it behind the compiler's back.
        unsafe { self.page.cast::<u32>().read_volatile() == 0 }
    }

    /// # Errors
    /// [`REFUSAL`] in a child.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.is_child() { Err(REFUSAL) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no clone is left that could use it again. It cannot fail
        // for a whole mapping of ours.
        let _ = unsafe { munmap(self.0, LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_no_child() {
        let guard = ForkGuard::new().unwrap();
        let other = guard.clone();
        assert_eq!((guard.check(), other.check()), (Ok(()), Ok(())));
        // SAFETY: the page is the guard's, which is ours.
        unsafe { guard.page.cast::<u32>().write_volatile(0) };
        assert_eq!(guard.check(), Err(REFUSAL), "a wiped page");
        drop(guard);
        assert_eq!(other.check(), Err(REFUSAL), "the page lives as long as its last clone");
    }
}
