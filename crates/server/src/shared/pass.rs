//! The pass that is under way, and the output that must be taken care of first.

use core::cell::Cell;

use crate::api::NO_CONN;

/// Output that a call of a connection must take care of first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingOutput(u8);

impl PendingOutput {
    const NONE: Self = Self(0);
    /// Publications wait in the batch.
    pub(crate) const BATCH: Self = Self(1);
    /// Others have sent messages to the connection that is in a pass.
    pub(crate) const REENTRANT: Self = Self(1 << 1);
    /// Some connection has a backlog.
    pub(crate) const BACKLOG: Self = Self(1 << 2);

    #[inline]
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The pass that is under way. At most one connection is in a pass at a time.
pub(crate) struct CurrentPass {
    /// The connection, or [`NO_CONN`].
    index: Cell<u32>,
    /// Bytes that it has sent in the pass.
    output: Cell<u32>,
    pending: Cell<PendingOutput>,
}

impl CurrentPass {
    pub(super) fn new() -> Self {
        let pending = Cell::new(PendingOutput::NONE);
        Self { index: Cell::new(NO_CONN), output: Cell::new(0), pending }
    }

    #[inline]
    pub(crate) fn begin(&self, index: u32) {
        self.index.set(index);
        self.output.set(0);
    }

    #[inline]
    pub(crate) fn end(&self) {
        self.index.set(NO_CONN);
    }

    /// The connection that is in a pass, or [`NO_CONN`].
    pub(crate) fn index(&self) -> u32 {
        self.index.get()
    }

    /// Bytes that the connection in a pass has sent in it.
    pub(crate) fn output(&self) -> usize {
        self.output.get() as usize
    }

    #[inline]
    pub(crate) fn set_output(&self, bytes: u32) {
        self.output.set(bytes);
    }

    #[inline]
    pub(crate) fn has_pending(&self, of: PendingOutput) -> bool {
        self.pending.get().0 & of.0 != 0
    }

    pub(crate) fn set_pending(&self, those: PendingOutput) {
        self.pending.set(self.pending.get().or(those));
    }

    pub(crate) fn clear_pending(&self, those: PendingOutput) {
        self.pending.set(PendingOutput(self.pending.get().0 & !those.0));
    }
}
