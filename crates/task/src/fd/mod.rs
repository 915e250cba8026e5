//! Descriptors: readiness for any of them, and the base of all sockets.
//!
//! A [`Source`](source::Source) is shared by an object that owns a descriptor and by a cell of the
//! reactor. The cell stores readiness and wakes. The object tries the system call when the
//! descriptor counts as ready.

mod async_fd;
mod ready;
pub(crate) mod source;
pub(crate) mod waiters;

pub use async_fd::{AsyncFd, RegisterError};
pub(crate) use ready::{ready_methods, ready_of};
pub use source::Direction;
