//! The settings of a ring and its features. A build without the ring has them too.

use crate::RingFeature;

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
    pub(crate) const COMPLETIONS: u32 = 4096;

    /// 8 KiB for submissions, since a turn of streams has about twenty of them; if the queue is
    /// full, an extra call submits it. 64 KiB for completions: the kernel has one hash bucket for
    /// every 32 of them, and scans a bucket to find a request to cancel.
    pub(crate) const DEFAULT: Self = Self {
        submissions: 128,
        completions: Self::COMPLETIONS,
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
