//! The features that a ring requests of the kernel, the optional ones and the required ones.

#![cfg_attr(miri, allow(dead_code, reason = "Miri has no rings"))]

use core::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use std::{io, sync::OnceLock, thread, time::Instant};

use io_uring::{IoUring, Parameters};
use rustix::io::Errno;

use super::buffer_ring::PoolSize;

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

    /// In the order in which they are dropped: the newest first.
    const SETUP: [Self; 5] = [
        Self::NO_SQARRAY,
        Self::DEFER_TASKRUN,
        Self::SINGLE_ISSUER,
        Self::TASKRUN_FLAG,
        Self::SUBMIT_ALL,
    ];

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
            Self::Missing(_) => Errno::NOSYS,
        }
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(errno) => write!(f, "io_uring is forbidden or absent here: {errno}"),
            Self::Missing(feature) => write!(f, "this kernel's io_uring lacks {feature}"),
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

/// The sizes of the queues if little memory may be locked: three pages, including the kernel's own.
const SMALL: (u32, u32) = (64, 256);

/// The kernel releases the locked memory of a closed ring 20 to 60 ms later, when it has freed the
/// ring, and over 200 ms later if all processors are busy. If a new ring is rejected meanwhile,
/// this is the longest wait, counted from the last close.
const RELEASE_MAX: Duration = Duration::from_secs(1);
const RELEASE_STEP: Duration = Duration::from_millis(2);

/// The time when a ring of this process was last closed, in milliseconds since [`epoch`] plus one;
/// zero if none was.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// A time before any ring was closed.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Records that a ring is about to be closed.
pub(super) fn note_close() {
    let elapsed = u64::try_from(epoch().elapsed().as_millis()).unwrap_or(u64::MAX - 1);
    CLOSED.store(elapsed + 1, Ordering::Relaxed);
}

/// Whether the kernel may still be freeing a ring of this process.
fn is_releasing() -> bool {
    let closed = CLOSED.load(Ordering::Relaxed);
    closed > 0 && epoch().elapsed() < Duration::from_millis(closed) + RELEASE_MAX
}

/// Creates a ring with the requested features, or with fewer if the kernel rejects some. Returns
/// the features that it has.
///
/// If the limit of locked memory is reached, it waits for rings that this process has closed. Then
/// it tries smaller queues.
pub(super) fn set_up(mut settings: RingSettings) -> Result<(IoUring, RingFeatures), RingError> {
    loop {
        match try_set_up(settings) {
            Err(RingError::Os(Errno::NOMEM)) if is_releasing() => {
                // sleep: the kernel does not report when it has released the memory.
                thread::sleep(RELEASE_STEP);
            }
            Err(RingError::Os(Errno::NOMEM))
                if (settings.submissions, settings.completions) > SMALL =>
            {
                (settings.submissions, settings.completions) = SMALL;
            }
            outcome => return outcome,
        }
    }
}

fn try_set_up(settings: RingSettings) -> Result<(IoUring, RingFeatures), RingError> {
    let mut features = settings.features.without(RingFeatures(0));
    let mut to_drop = RingFeatures::SETUP.iter();
    let ring = loop {
        match build(settings, features) {
            Ok(ring) => break ring,
            // The kernel does not know one of the flags, and does not tell which.
            Err(Errno::INVAL) => match to_drop.next() {
                Some(next) => features = features.without(*next),
                None => return Err(RingError::Os(Errno::INVAL)),
            },
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                return Err(RingError::Forbidden(errno));
            }
            Err(errno) => return Err(RingError::Os(errno)),
        }
    };
    if let Some(missing) = settings.missing.or_else(|| missing(ring.params())) {
        return Err(RingError::Missing(missing));
    }
    if !ring.params().is_feature_skip_cqe_on_success() {
        features = features.without(RingFeatures::SKIP_SUCCESS);
    }
    Ok((ring, features))
}

fn missing(params: &Parameters) -> Option<RingFeature> {
    if !params.is_feature_nodrop() {
        return Some(RingFeature::NoDrop);
    }
    if !params.is_feature_ext_arg() {
        return Some(RingFeature::ExtArg);
    }
    // No flag indicates multishot polls. They came with the same kernel as tagged resources.
    (!params.is_feature_resource_tagging()).then_some(RingFeature::MultishotPoll)
}

fn build(settings: RingSettings, features: RingFeatures) -> Result<IoUring, Errno> {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(settings.completions);
    if features.has(RingFeatures::SUBMIT_ALL) {
        builder.setup_submit_all();
    }
    if features.has(RingFeatures::SINGLE_ISSUER) {
        builder.setup_single_issuer();
    }
    if features.has(RingFeatures::DEFER_TASKRUN) {
        builder.setup_defer_taskrun();
    }
    if features.has(RingFeatures::TASKRUN_FLAG) {
        builder.setup_taskrun_flag();
    }
    if features.has(RingFeatures::NO_SQARRAY) {
        builder.setup_no_sqarray();
    }
    builder.build(settings.submissions).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}
