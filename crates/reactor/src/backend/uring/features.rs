//! What is asked of the kernel's rings, what can be done without, and what cannot.

#![cfg_attr(miri, allow(dead_code, reason = "Miri has no rings"))]

use core::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use std::{io, sync::OnceLock, thread, time::Instant};

use io_uring::{IoUring, Parameters};
use rustix::io::Errno;

use super::pool::PoolSize;

/// Manners of a ring that make it faster and that older kernels lack. Each can be done without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFeatures(u32);

impl RingFeatures {
    /// The queue of submissions without an array of indices (`IORING_SETUP_NO_SQARRAY`, Linux 6.6).
    pub const NO_SQARRAY: Self = Self(1);
    /// Completions are made ready when the owner asks for them and not whenever he is in the kernel
    /// (`IORING_SETUP_DEFER_TASKRUN`, 6.1). It needs [`SINGLE_ISSUER`](Self::SINGLE_ISSUER).
    pub const DEFER_TASKRUN: Self = Self(1 << 1);
    /// One thread submits, so the kernel need not lock (`IORING_SETUP_SINGLE_ISSUER`, 6.0).
    pub const SINGLE_ISSUER: Self = Self(1 << 2);
    /// A flag in memory says that completions can be made ready (`IORING_SETUP_TASKRUN_FLAG`,
    /// 5.19): asking for nothing costs no system call. Only with
    /// [`DEFER_TASKRUN`](Self::DEFER_TASKRUN) here; without that, completions come by themselves.
    pub const TASKRUN_FLAG: Self = Self(1 << 3);
    /// Submitting goes on after an entry that is refused (`IORING_SETUP_SUBMIT_ALL`, 5.18).
    pub const SUBMIT_ALL: Self = Self(1 << 4);
    /// The ring is named by an index, which spares looking up its descriptor
    /// (`IORING_REGISTER_RING_FDS`, 5.18).
    pub const REGISTERED: Self = Self(1 << 5);
    /// Cancellations that succeed are silent (`IORING_FEAT_CQE_SKIP`, 5.17).
    pub const SKIP_SUCCESS: Self = Self(1 << 6);

    /// Receive buffers are filled bit by bit (`IOU_PBUF_RING_INC`, 6.12).
    pub const INCREMENTAL: Self = Self(1 << 7);

    /// In the order in which they are given up: the newest first.
    const SETUP: [Self; 5] = [
        Self::NO_SQARRAY,
        Self::DEFER_TASKRUN,
        Self::SINGLE_ISSUER,
        Self::TASKRUN_FLAG,
        Self::SUBMIT_ALL,
    ];

    /// All of them.
    pub const ALL: Self = Self(0xff);

    /// Whether this set has all of the other.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set without the other, and without what needs something of it.
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

/// What a ring must have, or the reactor cannot use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingFeature {
    /// Completions that find no room are kept (`IORING_FEAT_NODROP`, Linux 5.5).
    NoDrop,
    /// Waiting with a time limit (`IORING_FEAT_EXT_ARG`, Linux 5.11).
    ExtArg,
    /// Polls that report more than once (`IORING_POLL_ADD_MULTI`, Linux 5.13).
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

/// Why a ring cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// Rings are forbidden or absent: by a container's seccomp filter (`EPERM` or `ENOSYS`), by the
    /// sysctl `kernel.io_uring_disabled` (`EPERM`), by a security module (`EACCES`), or because the
    /// kernel was built without them (`ENOSYS`).
    Forbidden(Errno),
    /// The kernel is too old: its rings lack this.
    Missing(RingFeature),
    /// Any other error of the kernel. `ENOMEM` most often means the limit of locked memory
    /// (`RLIMIT_MEMLOCK`): without `CAP_IPC_LOCK` the queues of rings count against it, for all
    /// processes of a user together. (Linux 5.12 to 6.13 do not count them.)
    Os(Errno),
}

impl RingError {
    /// What the kernel said, or would have said.
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
                        "; its queues count as locked memory of the user: raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK= \
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

/// Sizes of a ring, and what to do without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSettings {
    /// Entries that can wait to be submitted; a power of two.
    pub(crate) submissions: u32,
    /// Completions that can wait in memory that we see; a power of two, and at least as many. More
    /// wait in the kernel's.
    pub(crate) completions: u32,
    /// What is asked for.
    pub(crate) features: RingFeatures,
    /// The buffers that streams receive into; as fits the kernel, if nothing is said.
    pub(crate) buffers: Option<PoolSize>,
    /// How many microseconds a wait may last for more than one completion, where the kernel can.
    pub(crate) batch_wait_us: u32,
    /// So many of the first system calls with entries to submit take none: for tests, as if the
    /// kernel had no memory for them.
    pub(crate) stalls: u32,
    /// What to call missing: for tests, as if the kernel were older.
    pub(crate) missing: Option<RingFeature>,
}

impl RingSettings {
    /// 8 KiB for submissions, since a turn of streams has some twenty of them; what finds no room
    /// is submitted by a call of its own. 64 KiB for completions: the kernel has a hash bucket for
    /// every 32 of them, and walks through one to find what is to be cancelled.
    pub(crate) const DEFAULT: Self = Self {
        submissions: 128,
        completions: 4096,
        features: RingFeatures::ALL,
        stalls: 0,
        missing: None,
        buffers: None,
        batch_wait_us: 0,
    };
}

/// Sizes of the queues where little memory may be locked: three pages, with the kernel's own.
const SMALL: (u32, u32) = (64, 256);

/// The kernel gives back what a closed ring has locked when it has taken the ring apart, 20 to 60
/// ms later. Whoever builds one meanwhile and is refused waits no longer than this after the last
/// one was closed.
const RELEASE_MAX: Duration = Duration::from_millis(200);
const RELEASE_STEP: Duration = Duration::from_millis(2);

/// When a ring of this process was closed last, in milliseconds since [`epoch`], and one more; zero
/// if none was.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// A moment before any ring was closed.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Notes that a ring is about to be closed.
pub(super) fn note_close() {
    let elapsed = u64::try_from(epoch().elapsed().as_millis()).unwrap_or(u64::MAX - 1);
    CLOSED.store(elapsed + 1, Ordering::Relaxed);
}

/// Whether the kernel may still be taking a ring of this process apart.
fn is_releasing() -> bool {
    let closed = CLOSED.load(Ordering::Relaxed);
    closed > 0 && epoch().elapsed() < Duration::from_millis(closed) + RELEASE_MAX
}

/// Sets a ring up with what the settings ask for, or with less where the kernel refuses. Says what
/// it has.
///
/// Where the limit of locked memory is reached, it waits for rings that this process has closed,
/// and then does with smaller queues.
pub(super) fn set_up(mut settings: RingSettings) -> Result<(IoUring, RingFeatures), RingError> {
    loop {
        match try_set_up(settings) {
            Err(RingError::Os(Errno::NOMEM)) if is_releasing() => {
                // sleep: nothing tells when the kernel has given the memory back.
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
            // It does not know one of the flags, and does not say which.
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
    // No flag tells of multishot polls. They came with the same kernel as tagged resources.
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
