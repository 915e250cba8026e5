//! A page of memory that the kernel wipes in a child of fork(2) (`MADV_WIPEONFORK`). To tell a
//! child from the process that mapped the page costs one load.
//!
//! # The protocol of this module
//!
//! 1. A [`WipedPage`] is the only owner of its mapping. The page is mapped, writable and aligned
//!    for any number until the owner is dropped.
//! 2. Each page is used in one way: as one atomic number of [`WipedPage::leak`], or as one `u32`
//!    of a [`ForkGuard`] and its clones, on one thread.

#![allow(unsafe_code, reason = "one page of memory, mapped, read and unmapped")]

use core::{ptr::NonNull, sync::atomic::AtomicU64};
use std::rc::Rc;

use rustix::io::Errno;

#[cfg(not(miri))]
const LENGTH: usize = 4096;

/// The owner of a page that holds zeros at first.
#[derive(Debug)]
pub(super) struct WipedPage(NonNull<AtomicU64>);

impl WipedPage {
    /// # Errors
    /// The errors of mmap(2) and madvise(2): no memory, or a kernel before 4.14.
    #[cfg(not(miri))]
    fn new() -> Result<Self, Errno> {
        use core::ptr;

        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address that the kernel chooses replaces no other mapping.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), LENGTH, protection, MapFlags::PRIVATE) }?;
        let page = Self(NonNull::new(address.cast()).ok_or(Errno::NOMEM)?);
        // SAFETY: the page is ours and holds only zeros, so wiping it in a child affects no other
        // data.
        unsafe { madvise(address, LENGTH, Advice::LinuxWipeOnFork) }?;
        Ok(page)
    }

    /// Miri has no fork(2) and no advice about memory.
    #[cfg(miri)]
    fn new() -> Result<Self, Errno> {
        Err(Errno::NOSYS)
    }

    /// A number in a page that is never unmapped: zero here and, after it was changed, in children.
    /// `None` if there is no such page: see [`new`](Self::new).
    pub(super) fn leak() -> Option<NonNull<AtomicU64>> {
        let page = Self::new().ok()?;
        let number = page.0;
        core::mem::forget(page);
        Some(number)
    }
}

#[cfg(not(miri))]
impl Drop for WipedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no other code uses it again (protocol 1). munmap(2)
        // cannot fail for a whole mapping of ours.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), LENGTH) };
    }
}

/// One page that holds a number in the process that made it and 0 in its children. It lives until
/// the last clone is dropped, and only this type uses its address.
#[derive(Clone, Debug)]
pub struct ForkGuard {
    /// The address of the mapping, stored here to save an indirection.
    number: NonNull<u32>,
    _page: Rc<WipedPage>,
}

impl ForkGuard {
    /// A guard whose page holds `number`, which is not zero.
    ///
    /// # Errors
    /// The errors of mmap(2) and madvise(2): no memory, or a kernel before 4.14.
    pub fn new(number: u32) -> Result<Self, Errno> {
        debug_assert!(number != 0, "zero marks a child");
        let page = WipedPage::new()?;
        let guard = Self { number: page.0.cast(), _page: Rc::new(page) };
        guard.write(number);
        Ok(guard)
    }

    fn write(&self, number: u32) {
        // SAFETY: the page is mapped and writable (protocol 1), and used only by this guard and its
        // clones, which are on this thread (protocol 2).
        unsafe { self.number.write_volatile(number) };
    }

    /// Whether this process is a child of the one that made the guard.
    #[inline(always)]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.number_or_zero() == 0
    }

    /// The number that the guard was made with; zero in a child.
    #[inline(always)]
    #[must_use]
    pub fn number_or_zero(&self) -> u32 {
        // SAFETY: `self` keeps the page mapped (protocol 1). The read is volatile, because the
        // kernel changes the page without the compiler's knowledge.
        unsafe { self.number.read_volatile() }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_wiped_page_marks_a_child_to_all_clones() {
        let guard = ForkGuard::new(1024).unwrap();
        let other = guard.clone();
        assert!(!guard.is_child() && !other.is_child());
        assert_eq!(guard.number_or_zero(), 1024);
        // As the kernel does.
        guard.write(0);
        assert!(guard.is_child());
        drop(guard);
        assert!(other.is_child(), "the page lives as long as its last clone");
    }
}
