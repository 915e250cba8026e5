//! Detects whether this process is the one that built the reactor.
//!
//! A child of fork(2) has a copy of the reactor's memory. It shares the epoll set or ring with the
//! parent, and every registered descriptor. An entry made by the child carries an address that
//! means something else in the parent (rule 11). On a ring, its entries would also mix with the
//! parent's, because both processes map the same queues. So a reactor does not work in a child.
//! It detects one by a page that the kernel wipes in the child, at the cost of one load. On epoll
//! the page holds the size of the batch. A wait passes it to the kernel, which rejects a size of
//! zero, so it takes no branch.
//!
//! In a child:
//!
//! 1. Waits, `add` and `modify` fail with [`NOT_OWNER`].
//! 2. Operations that cannot fail (`delete`, removing a subscriber, dropping the reactor) free
//!    memory and close the child's descriptors. They do not change the epoll set or the ring.
//! 3. Streams send nothing and change nothing of their sockets.

use rustix::io::Errno;
pub(crate) use windlass_flow::process::ForkGuard;

/// The error of a reactor in a child of fork(2): the child is not its owner.
pub(crate) const NOT_OWNER: Errno = Errno::STALE;

/// # Errors
/// [`NOT_OWNER`] in a child.
#[inline(always)]
pub(crate) fn check(guard: &ForkGuard) -> Result<(), Errno> {
    if guard.is_child() { Err(NOT_OWNER) } else { Ok(()) }
}
