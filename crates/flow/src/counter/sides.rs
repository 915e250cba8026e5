//! The two pollable descriptors, and how they follow the word: rules 6 to 10 of [`counter`](super).

use std::sync::OnceLock;

#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(not(loom))]
use super::flag::Flag;
use super::{core::Core, word::Word};
use crate::{Errno, sync::Ordering, sys::EventFd};

/// The reader's side is exposed and may be polled.
pub(super) const READER: u32 = 1;
/// The writer's side is exposed and may be polled.
pub(super) const WRITER: u32 = 2;
/// A writer was rejected and may wait for an edge of its side (rule 9).
pub(super) const REJECTED: u32 = 4;

/// Makes an empty eventfd unwritable for poll(2): the kernel's maximum.
const FULL: u64 = u64::MAX - 1;

/// Makes the next read of an eventfd an edge for writable pollers. The eventfd stays writable until
/// then.
const EDGE: u64 = 1;

/// After this many rounds, a shared side is left at "ready" (rule 12). A round shows one side, or
/// moves from one side to the other.
const ROUNDS_MAX: u32 = 64;

/// The descriptor of one side.
#[derive(Debug)]
pub(super) enum SideFd {
    /// Between threads.
    Event(EventFd),
    /// Between processes.
    #[cfg(not(loom))]
    Flag(Flag),
}

impl SideFd {
    /// Makes the next call an edge, or causes an edge itself. Meanwhile the descriptor shows only
    /// "ready".
    fn trigger_edge(&self) {
        match self {
            Self::Event(fd) => _ = fd.write(EDGE),
            #[cfg(not(loom))]
            Self::Flag(flag) => flag.set(),
        }
    }
}

#[cfg(not(loom))]
impl AsFd for SideFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Event(fd) => fd.as_fd(),
            Self::Flag(flag) => flag.as_fd(),
        }
    }
}

/// A side of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Reader,
    Writer,
}

impl Side {
    const fn bit(self) -> u32 {
        match self {
            Self::Reader => READER,
            Self::Writer => WRITER,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Reader => Self::Writer,
            Self::Writer => Self::Reader,
        }
    }

    /// Makes the descriptor show whether the side is ready.
    fn show(self, fd: &SideFd, ready: bool) {
        let fd = match fd {
            SideFd::Event(fd) => fd,
            #[cfg(not(loom))]
            SideFd::Flag(flag) => {
                return match (self, ready) {
                    (_, false) => flag.clear(),
                    (Self::Reader, true) => flag.set(),
                    // A needless edge would wake a writer of several again and again, because its
                    // own rejection leads here.
                    (Self::Writer, true) if flag.is_set() => {}
                    (Self::Writer, true) => flag.set(),
                };
            }
        };
        // The results of the calls only tell the previous state of the descriptor.
        match (self, ready) {
            (Self::Reader, true) => _ = fd.write(1),
            (Self::Reader, false) | (Self::Writer, true) => _ = fd.read(),
            // The write fails if the descriptor already shows "not writable", or holds the one that
            // `trigger_edge` has added (rule 9).
            (Self::Writer, false) => {
                if !fd.write(FULL) && fd.is_writable() {
                    fd.read();
                    fd.write(FULL);
                }
            }
        }
    }
}

impl Core {
    const fn cell(&self, side: Side) -> &OnceLock<SideFd> {
        match side {
            Side::Reader => &self.reader,
            Side::Writer => &self.writer,
        }
    }

    /// The side's descriptor. It exists once the side is exposed.
    pub(super) fn fd(&self, side: Side) -> Option<&SideFd> {
        self.cell(side).get()
    }

    /// The level that the side's descriptor should show. For a corrupt page this is "ready", so
    /// that pollers wake up and get the error (rule 11).
    fn level(&self, side: Side) -> bool {
        let word = Word::unpack(self.page.live.word.load(Ordering::Acquire));
        word.is_ok_and(|word| match side {
            Side::Reader => word.is_readable(),
            Side::Writer => word.is_writable(),
        }) || word.is_err()
    }

    /// Rule 6: from now on the descriptor follows the word.
    pub(super) fn expose(&self, side: Side) -> Result<(), Errno> {
        if self.fd(side).is_none() {
            // If two threads race, the later one closes its own descriptor. A shared counter has
            // descriptors from the start.
            let _ = self.cell(side).set(SideFd::Event(EventFd::new()?));
        }
        self.page.live.exposed.fetch_or(side.bit(), Ordering::AcqRel);
        self.page.look_again();
        if self.is_shared() {
            // A process may have died before it notified the other side. The state of this side may
            // be the only trace of that.
            self.resync(side);
        } else {
            self.reconcile(side);
        }
        Ok(())
    }

    /// Rule 7, after a step that made the side ready or not ready. If another thread has undone the
    /// step, that thread notifies.
    #[cold]
    pub(super) fn follow(&self, side: Side, ready: bool) {
        if self.level(side) == ready {
            self.settle(side);
        }
    }

    /// Rule 7: shows the level until the word agrees afterwards, and returns it.
    fn reconcile(&self, side: Side) -> bool {
        let mut level = self.level(side);
        let Some(fd) = self.fd(side) else {
            return level;
        };
        let mut rounds = 0;
        loop {
            side.show(fd, level);
            let now = self.level(side);
            if now == level {
                return level;
            }
            level = now;
            rounds += 1;
            if rounds == ROUNDS_MAX && self.is_shared() {
                side.show(fd, true);
                return true;
            }
        }
    }

    /// Reconciles the side. If it now shows "not ready", looks at the other side afterwards: rule
    /// 10.
    fn settle(&self, side: Side) {
        let mut side = side;
        let mut rounds = 0;
        while !self.reconcile(side) && self.is_shared() {
            rounds += 1;
            if rounds == ROUNDS_MAX {
                return self.fd(side).into_iter().for_each(|fd| side.show(fd, true));
            }
            side = side.other();
            if self.page.live.exposed.load(Ordering::Acquire) & side.bit() == 0 || self.is_shut() {
                return;
            }
        }
    }

    /// Whether neither side is ready at the same moment. This happens in an empty counter whose
    /// maximum is one.
    fn is_shut(&self) -> bool {
        let word = Word::unpack(self.page.live.word.load(Ordering::Acquire));
        word.is_ok_and(|word| !word.is_readable() && !word.is_writable())
    }

    /// Rule 9, the writer's part. True if its side may be polled, so that it must try once more.
    pub(super) fn mark_rejected(&self) -> bool {
        let exposed = self.page.live.exposed.load(Ordering::Acquire);
        if exposed & WRITER == 0 {
            return false;
        }
        if exposed & REJECTED == 0 {
            self.page.live.exposed.fetch_or(REJECTED, Ordering::AcqRel);
        }
        self.page.look_again();
        true
    }

    /// Rule 9: gives the writer's side an edge, unless another thread is about to, and reconciles
    /// it.
    #[cold]
    pub(super) fn notify_rejected(&self) {
        let exposed = self.page.live.exposed.fetch_and(!REJECTED, Ordering::AcqRel);
        let Some(fd) = self.fd(Side::Writer) else {
            return;
        };
        if exposed & REJECTED != 0 {
            fd.trigger_edge();
        }
        self.settle(Side::Writer);
    }

    /// Rule 10: repairs the state that a dead process may have left, the other side first.
    pub(super) fn resync(&self, own: Side) {
        if !self.is_shared() {
            return;
        }
        let exposed = self.page.live.exposed.load(Ordering::Acquire);
        for side in [own.other(), own] {
            if exposed & side.bit() != 0 {
                self.settle(side);
            }
        }
    }
}
