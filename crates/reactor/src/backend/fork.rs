//! Detects whether this process is the one that built the reactor.
//!
//! A child of fork(2) has a copy of the reactor's memory. It shares the epoll set or ring with the
//! parent, and every registered descriptor. An entry made by the child carries an address that
//! means something else in the parent (rule 11). On a ring, its entries would also mix with the
//! parent's, because both processes map the same queues. So a reactor refuses to work in a child.
//! It detects one by a page that the kernel wipes in the child, at the cost of one load. On epoll
//! the page holds the size of the batch. A wait passes it to the kernel, which refuses a size of
//! zero, so it takes no branch.
//!
//! In a child:
//!
//! 1. Waits, `add` and `modify` fail with [`REFUSAL`].
//! 2. Operations that cannot fail (`delete`, removing a subscriber, dropping the reactor) free
//!    memory and close the child's descriptors. They do not change the epoll set or the ring.
//! 3. Streams send nothing and change nothing of their sockets.

#![allow(unsafe_code, reason = "one page of memory, mapped, read and unmapped")]

use core::{ffi::c_void, ptr};
use std::rc::Rc;

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};

/// The error of a reactor in a child of fork(2): the child is not its owner.
pub(crate) const REFUSAL: Errno = Errno::STALE;

const LENGTH: usize = 4096;

/// One page that holds a number in the process that made it and 0 in its children. It lives until
/// the last clone is dropped, and only this type uses its address.
#[derive(Clone)]
pub(crate) struct ForkGuard {
    /// The address of the mapping, stored here to save an indirection.
    page: *mut c_void,
    _mapping: Rc<Mapping>,
}

struct Mapping(*mut c_void);

impl ForkGuard {
    /// A guard whose page holds `number`, which is not zero.
    ///
    /// # Errors
    /// The errors of mmap(2) and madvise(2): no memory, or a kernel before 4.14.
    pub(crate) fn new(number: u32) -> Result<Self, Errno> {
        debug_assert!(number != 0, "zero marks a child");
        // SAFETY: A mapping at an address that the kernel chooses replaces no other mapping.
        let page = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                LENGTH,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let guard = Self { page, _mapping: Rc::new(Mapping(page)) };
        // SAFETY: The page is ours and holds only the guard's value, so wiping it in a child
        // affects no other data.
        unsafe { madvise(page, LENGTH, Advice::LinuxWipeOnFork) }?;
        // SAFETY: The page is mapped, writable and used only by this guard.
        unsafe { page.cast::<u32>().write_volatile(number) };
        Ok(guard)
    }

    #[inline(always)]
    pub(crate) fn is_child(&self) -> bool {
        self.number_or_zero() == 0
    }

    /// The number that the guard was made with; zero in a child.
    #[inline(always)]
    pub(crate) fn number_or_zero(&self) -> u32 {
        // SAFETY: The page stays mapped until the mapping is dropped, and `self` keeps the mapping
        // alive. The read is volatile, because the kernel changes the page without the compiler's
        // knowledge.
        unsafe { self.page.cast::<u32>().read_volatile() }
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
        // SAFETY: The mapping is ours, and no clone is left that could use it again. munmap(2)
        // cannot fail for a whole mapping of ours.
        let _ = unsafe { munmap(self.0, LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_no_child() {
        let guard = ForkGuard::new(1024).unwrap();
        let other = guard.clone();
        assert_eq!((guard.check(), other.check()), (Ok(()), Ok(())));
        assert_eq!(guard.number_or_zero(), 1024);
        // SAFETY: The page belongs to the guard, which this test owns.
        unsafe { guard.page.cast::<u32>().write_volatile(0) };
        assert_eq!(guard.check(), Err(REFUSAL), "a wiped page");
        drop(guard);
        assert_eq!(other.check(), Err(REFUSAL), "the page lives as long as its last clone");
    }
}
