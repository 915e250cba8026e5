//! The settings of a ring, its features, and why there is none. A build without the ring has them
//! too.

use core::fmt;
use std::io;

use rustix::io::Errno;

/// Optional features that make a ring faster and that older kernels lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFeatures(u32);

impl RingFeatures {
    /// The submission queue has no array of indices (`IORING_SETUP_NO_SQARRAY`, Linux 6.6).
    pub const NO_SQARRAY: Self = Self(1);
    /// The kernel delivers completions when the owner asks for them, and not whenever the owner is
    /// in the kernel (`IORING_SETUP_DEFER_TASKRUN`, 6.1). It needs
    /// [`SINGLE_ISSUER`](Self::SINGLE_ISSUER).
    pub const DEFER_TASKRUN: Self = Self(1 << 1);
    /// Only one thread submits, so the kernel need not lock (`IORING_SETUP_SINGLE_ISSUER`, 6.0).
    pub const SINGLE_ISSUER: Self = Self(1 << 2);
    /// A flag in memory tells whether completions can be delivered (`IORING_SETUP_TASKRUN_FLAG`,
    /// 5.19), so a check costs no system call. It is used only with
    /// [`DEFER_TASKRUN`](Self::DEFER_TASKRUN); without that, the kernel delivers completions on its
    /// own.
    pub const TASKRUN_FLAG: Self = Self(1 << 3);
    /// Submission continues after a rejected entry (`IORING_SETUP_SUBMIT_ALL`, 5.18).
    pub const SUBMIT_ALL: Self = Self(1 << 4);
    /// The ring is addressed by an index, which saves the lookup of its descriptor
    /// (`IORING_REGISTER_RING_FDS`, 5.18).
    pub const REGISTERED: Self = Self(1 << 5);
    /// Successful cancellations and sends post no completion (`IORING_FEAT_CQE_SKIP`, 5.17).
    pub const SKIP_SUCCESS: Self = Self(1 << 6);

    /// Receive buffers are filled incrementally (`IOU_PBUF_RING_INC`, 6.12).
    pub const INCREMENTAL: Self = Self(1 << 7);

    /// None of them.
    pub(crate) const NONE: Self = Self(0);

    /// All of them.
    pub const ALL: Self = Self(0xff);

    /// Whether this set contains all of the other.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set without the other, and without features that depend on it.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        let mut left = self.0 & !other.0;
        if left & Self::SINGLE_ISSUER.0 == 0 {
            left &= !Self::DEFER_TASKRUN.0;
        }
        if left & Self::DEFER_TASKRUN.0 == 0 {
            left &= !Self::TASKRUN_FLAG.0;
        }
        Self(left)
    }
}

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

/// The sizes of a ring, and the features to request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSettings {
    /// The size of the submission queue; a power of two.
    pub(crate) submissions: u32,
    /// The size of the completion queue; a power of two, and not smaller than the submission queue.
    /// Further completions wait in the kernel's memory.
    pub(crate) completions: u32,
    /// The features to request.
    pub(crate) features: RingFeatures,
    /// The buffers that streams receive into. `None`: a size that suits the kernel.
    pub(crate) buffers: Option<PoolSize>,
    /// For tests: the number of initial submitting system calls that take no entry, as if the
    /// kernel had no memory for them.
    pub(crate) stalls: u32,
    /// For tests: a feature to treat as missing, as if the kernel were older.
    pub(crate) missing: Option<RingFeature>,
}

impl RingSettings {
    /// 8 KiB for submissions, since a turn of streams has about twenty of them; if the queue is
    /// full, an extra call submits it. 64 KiB for completions: the kernel has one hash bucket for
    /// every 32 of them, and scans a bucket to find a request to cancel.
    pub(crate) const DEFAULT: Self = Self {
        submissions: 128,
        completions: 4096,
        features: RingFeatures::ALL,
        stalls: 0,
        missing: None,
        buffers: None,
    };
}

/// The number and the size of the buffers that streams receive into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSize {
    /// A power of two, at least two.
    pub(crate) count: u16,
    /// Bytes.
    pub(crate) size: u32,
}

impl PoolSize {
    /// For incremental buffers. A message that crosses the end of a buffer arrives in two parts and
    /// must be reassembled. With messages of 16 KiB, that is one in sixteen.
    pub(crate) const INCREMENTAL: Self = Self { count: 16, size: 256 << 10 };
    /// If each receive takes a buffer of its own.
    pub(crate) const PLAIN: Self = Self { count: 256, size: 16 << 10 };

    pub(crate) const COUNT_MAX: u16 = 1 << 15;
    pub(crate) const SIZE_MIN: u32 = 256;
    pub(crate) const SIZE_MAX: u32 = 1 << 20;

    /// The nearest valid size.
    pub(crate) const fn of(count: u16, size: u32) -> Self {
        let mut to = 2;
        while to < count && to < Self::COUNT_MAX {
            to *= 2;
        }
        let size = if size < Self::SIZE_MIN { Self::SIZE_MIN } else { size };
        Self { count: to, size: if size > Self::SIZE_MAX { Self::SIZE_MAX } else { size } }
    }

    /// With the kernel's entry for each buffer.
    pub(crate) const fn bytes(self) -> usize {
        self.count as usize * (self.size as usize + ENTRY_BYTES)
    }
}

/// The size of `struct io_uring_buf`.
pub(crate) const ENTRY_BYTES: usize = 16;
