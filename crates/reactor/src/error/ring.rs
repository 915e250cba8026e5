//! Why there is no ring. A build without the ring has it too.

use core::fmt;
use std::io;

use crate::Errno;

/// A required feature: without it the reactor cannot use a ring.
///
/// ```
/// use windlass::{RingError, RingFeature};
///
/// let error = RingError::Missing(RingFeature::MultishotPoll);
/// println!("{error}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingFeature {
    /// Completions without room in the queue are kept (`IORING_FEAT_NODROP`, Linux 5.5).
    NoDrop,
    /// Waits with a timeout (`IORING_FEAT_EXT_ARG`, Linux 5.11).
    ExtArg,
    /// Multishot polls (`IORING_POLL_ADD_MULTI`, Linux 5.13).
    MultishotPoll,
}

impl fmt::Display for RingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoDrop => "IORING_FEAT_NODROP (Linux 5.5)",
            Self::ExtArg => "IORING_FEAT_EXT_ARG (Linux 5.11)",
            Self::MultishotPoll => "IORING_POLL_ADD_MULTI (Linux 5.13)",
        })
    }
}

/// Why a ring cannot be created.
///
/// ```
/// use windlass::{Backend, BuildError, Reactor, RingError};
///
/// # fn main() -> std::io::Result<()> {
/// let reactor = match Reactor::builder().backend(Backend::Uring).build() {
///     Err(BuildError::Ring(error)) => {
///         if let RingError::Missing(feature) = error {
///             println!("this kernel lacks {feature}");
///         }
///         println!("{error}; using epoll instead");
///         Reactor::new()?
///     }
///     outcome => outcome?,
/// };
/// # drop(reactor);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "io_uring_setup")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// Rings are forbidden or not available. A container's seccomp filter returns `EPERM` or
    /// `ENOSYS`, the sysctl `kernel.io_uring_disabled` returns `EPERM`, a security module returns
    /// `EACCES`. A kernel that was built without rings returns `ENOSYS`.
    Forbidden(Errno),
    /// The kernel is too old: its rings lack this feature.
    Missing(RingFeature),
    /// This build of the crate has no ring: its cargo feature `uring` is off.
    NotCompiled,
    /// Any other error of the kernel. `ENOMEM` usually means the limit of locked memory
    /// (`RLIMIT_MEMLOCK`). Without `CAP_IPC_LOCK` the queues of all rings of a user count against
    /// it, over all the user's processes. (Linux 5.12 to 6.13 do not count them.)
    Os(Errno),
}

impl RingError {
    /// The kernel's error, or the one that it would return.
    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::Forbidden(errno) | Self::Os(errno) => errno,
            Self::Missing(_) | Self::NotCompiled => Errno::NOSYS,
        }
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(errno) => write!(f, "io_uring is forbidden or absent here: {errno}"),
            Self::Missing(feature) => write!(f, "this kernel's io_uring lacks {feature}"),
            Self::NotCompiled => f.write_str(
                "this build has no io_uring: enable the feature `uring` of the crate `windlass`",
            ),
            Self::Os(errno) => {
                write!(f, "the kernel refused an io_uring: {errno}")?;
                if *errno == Errno::NOMEM {
                    f.write_str(
                        "; its queues count as locked memory of the user: raise RLIMIT_MEMLOCK \
                         (ulimit -l, LimitMEMLOCK= \
                         of systemd), grant CAP_IPC_LOCK, or use fewer rings",
                    )?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for RingError {}

impl From<RingError> for io::Error {
    fn from(e: RingError) -> Self {
        e.errno().into()
    }
}
