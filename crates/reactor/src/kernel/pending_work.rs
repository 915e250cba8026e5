//! Bits of `Kernel::pending_work`: the work beside events.

use crate::kernel::Kernel;

/// The batch holds events that a panicking turn did not dispatch.
pub(crate) const KEPT: u32 = 1;
/// Timers wait that the alarm does not cover.
pub(crate) const TIMERS: u32 = 1 << 1;
pub(crate) const DEFERRED: u32 = 1 << 2;
pub(crate) const DIRTY: u32 = 1 << 3;
/// Events that the kernel does not report.
pub(crate) const SYNTHETIC: u32 = 1 << 4;
pub(crate) const RECLAIM: u32 = 1 << 5;
pub(crate) const REBUILD: u32 = 1 << 6;
pub(crate) const HOOKS: u32 = 1 << 7;
pub(crate) const WATCHDOG: u32 = 1 << 8;
pub(crate) const BUSY_POLL: u32 = 1 << 9;
pub(crate) const WOKEN: u32 = 1 << 10;
pub(crate) const SELF_DELETED: u32 = 1 << 11;
/// The turn's clock has been read.
pub(crate) const CLOCK: u32 = 1 << 12;
/// A [`Remote`](crate::Remote) exists, so the loop reports to the latch when it sleeps.
pub(crate) const REMOTE: u32 = 1 << 13;
/// The latch was woken or calls are left over, and the inbox has not been checked yet.
pub(crate) const CALLS: u32 = 1 << 14;
/// Streams need service, for example because code other than their own handlers sent data to
/// them.
pub(crate) const STREAMS: u32 = 1 << 15;
/// The ring has queued requests and the turn is not part of [`run`](crate::Reactor::run). They
/// are submitted when the turn ends.
pub(crate) const QUEUED: u32 = 1 << 16;
/// The epoll set rejected the reactor's own wake descriptor, so other threads cannot wake the
/// loop.
pub(crate) const DEAF: u32 = 1 << 17;
/// Replies may be queued with a ring. They are submitted between two handlers if they have waited
/// for long enough.
pub(crate) const PACED: u32 = 1 << 18;
/// The alarm of the timers has rung in this turn.
pub(crate) const ALARM: u32 = 1 << 19;
/// The progress of registrations is watched.
pub(crate) const PROGRESS: u32 = 1 << 20;
/// A turn has requested a stop. Only drivers look at it.
pub(crate) const STOP: u32 = 1 << 24;
/// Bits that describe the reactor's configuration, or that stay set until cleared explicitly.
pub(crate) const LASTING: u32 =
    HOOKS | WATCHDOG | BUSY_POLL | REBUILD | REMOTE | DEAF | PACED | PROGRESS;
/// Bits that need a look at every handler.
pub(crate) const WATCHED: u32 = WATCHDOG | PROGRESS;
/// Bits that a short turn serves, and pairs of them.
pub(crate) const SHORT: u32 = REMOTE | PACED | TIMERS;
pub(crate) const REMOTE_PACED: u32 = REMOTE | PACED;
pub(crate) const REMOTE_TIMERS: u32 = REMOTE | TIMERS;
pub(crate) const PACED_TIMERS: u32 = PACED | TIMERS;
/// Work that makes the host of an embedded reactor run another turn at once.
pub(crate) const WORK: u32 = KEPT | DEFERRED | DIRTY | SYNTHETIC | RECLAIM | CALLS | STREAMS | DEAF;

impl Kernel {
    /// Notes work, which a turn with all steps will do.
    #[inline]
    pub(crate) fn note(&mut self, bits: u32) {
        self.pending_work |= bits;
    }

    /// The work is done.
    #[inline]
    pub(crate) fn clear(&mut self, bits: u32) {
        self.pending_work &= !bits;
    }

    /// Whether one of the bits is set.
    #[inline]
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.pending_work & bits != 0
    }

    /// Sets the bits anew from the state: those of the configuration, those of the kernel's lists,
    /// and `others`.
    pub(crate) fn recompute(&mut self, others: u32) {
        self.pending_work = self.pending_work & LASTING | others;
        self.recompute_own();
    }

    /// Sets the bits of the kernel's lists anew. `SYNTHETIC` may also stand for the notifications
    /// of streams, so it is only set.
    pub(super) fn recompute_own(&mut self) {
        self.clear(KEPT | DIRTY | RECLAIM);
        for (bit, is_so) in [
            (KEPT, !self.batch.is_empty()),
            (DIRTY, !self.dirty.is_empty()),
            (SYNTHETIC, self.synthetic.any()),
            (RECLAIM, self.reclaim.has_waiting() || self.reclaim.has_dead()),
        ] {
            self.pending_work |= if is_so { bit } else { 0 };
        }
    }
}
