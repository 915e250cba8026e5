//! Creates a ring with the features that the kernel has, of those requested.

use core::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use std::{sync::OnceLock, thread, time::Instant};

use io_uring::{IoUring, Parameters};
use rustix::io::Errno;

use crate::{
    RingError, RingFeature,
    backend::ring_settings::{RingFeatures, RingSettings},
};

/// The features that the kernel may reject when it creates a ring, in the order in which they are
/// dropped: the newest first.
const SETUP: [RingFeatures; 5] = [
    RingFeatures::NO_SQARRAY,
    RingFeatures::DEFER_TASKRUN,
    RingFeatures::SINGLE_ISSUER,
    RingFeatures::TASKRUN_FLAG,
    RingFeatures::SUBMIT_ALL,
];

/// The sizes of the queues if little memory may be locked: three pages, including the kernel's own.
const SMALL: (u32, u32) = (64, 256);

/// The kernel releases the locked memory of a closed ring when it has freed the ring, which takes
/// longer if all processors are busy. If a new ring is rejected meanwhile, this is the longest
/// wait, counted from the last close.
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
    let mut features = settings.features.without(RingFeatures::NONE);
    let mut to_drop = SETUP.iter();
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
