//! What the reactor notes about a registration, one bit each.

use crate::cell::inflight::COUNTS;

/// CellFlags of a registration. They share a word with the kernel's mask, which uses other bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellFlags(pub(super) u32);

impl CellFlags {
    /// A merged `modify` waits for the flush.
    pub(crate) const DIRTY: Self = Self(1 << 16);
    /// A one-shot registration has fired and is disabled in the kernel.
    pub(crate) const FIRED: Self = Self(1 << 17);
    /// The kernel does not watch this registration: a fired one-shot after a rebuild, a one-shot
    /// that was kicked, one that is paused, or a failed re-add.
    pub(crate) const ABSENT: Self = Self(1 << 18);
    /// Added or modified while its number was tainted (rule 7).
    pub(crate) const TAINTED: Self = Self(1 << 19);
    /// The reactor's own subscriber. The user's keys cannot name it.
    pub(crate) const INTERNAL: Self = Self(1 << 20);
    /// An event that the kernel does not report is pending.
    pub(crate) const SYNTHETIC: Self = Self(1 << 21);
    /// Re-armed while an event fetched earlier was still undelivered. That event must not count as
    /// the firing.
    pub(crate) const REARMED: Self = Self(1 << 22);
    /// The cell of a stream or listener, which has a key of another kind. The user's descriptor
    /// keys cannot name it.
    pub(crate) const HIDDEN: Self = Self(1 << 23);
    /// On a ring: a poll of the cell's current generation is in flight or queued.
    pub(crate) const IN_FLIGHT: Self = Self(1 << 26);
    /// On a ring: the cell is in the list of cells that need a poll. The list stores its address.
    pub(crate) const TO_ARM: Self = Self(1 << 27);
    /// On a ring: watched for changes only, because no requested condition holds now.
    pub(crate) const QUIET: Self = Self(1 << 14);
    /// On a ring: no longer watched.
    pub(crate) const DROPPED: Self = Self(1 << 15);
    /// On a ring: a second poll, for writing only, is in flight or queued.
    pub(crate) const OUT_IN_FLIGHT: Self = Self(1 << 7);
    /// On a ring: the conditions that the current poll waits for, while it is in flight.
    pub(crate) const AWAITS_IN: Self = Self(1 << 9);
    pub(crate) const AWAITS_OUT: Self = Self(1 << 10);
    /// All flags, and the counts of `cell/inflight.rs`.
    pub(super) const ALL: u32 = 0xff << 16 | 0b11 << 26 | 0b11 << 14 | 1 << 7 | 0b11 << 9 | COUNTS;

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}
