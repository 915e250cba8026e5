//! Requests in flight of a cell on a ring. They carry the cell's address and have not posted their
//! final completion (rule 2).
//!
//! The counts are in the header's `armed` word, in bits that epoll's masks and [`CellFlags`] leave
//! free. They are zero on the other backends.

use crate::{
    api::{
        interest::{IN, OUT},
        ops::ReactorOps,
    },
    cell::{CellFlags, CellPtr},
};

/// Polls in flight, up to [`POLLS_MAX`].
const POLLS: BitCount = BitCount { shift: 5, bits: 2 };
/// Other requests in flight: receives.
const REQUESTS: BitCount = BitCount { shift: 8, bits: 1 };
/// The age, in generations, of the oldest poll that may be in flight, up to [`AGE_MAX`].
const AGE: BitCount = BitCount { shift: 11, bits: 2 };
/// The poll generation, which each poll carries. A completion of another generation is ignored.
const GENERATION: BitCount = BitCount { shift: 24, bits: 2 };

/// All bits of the counts.
pub(crate) const COUNTS: u32 = POLLS.mask() | REQUESTS.mask() | AGE.mask() | GENERATION.mask();

/// At this age no poll is armed until the older ones have completed, because there are only four
/// generations. Polls do not complete in the order in which they were armed, so counting them is
/// not enough.
const AGE_MAX: u32 = 3;

/// The most polls of one cell in flight: the current one, and cancelled ones.
const POLLS_MAX: u32 = AGE_MAX;

/// The most other requests that can be counted.
pub(crate) const REQUESTS_MAX: u32 = REQUESTS.mask() >> REQUESTS.shift;

/// A number in some bits of a word.
#[derive(Clone, Copy)]
struct BitCount {
    shift: u32,
    bits: u32,
}

impl BitCount {
    const fn mask(self) -> u32 {
        ((1 << self.bits) - 1) << self.shift
    }

    const fn get(self, word: u32) -> u32 {
        (word & self.mask()) >> self.shift
    }

    /// Adds to the number, modulo its size.
    const fn add(self, word: u32, step: u32) -> u32 {
        let sum = (word & self.mask()).wrapping_add(step << self.shift) & self.mask();
        word & !self.mask() | sum
    }
}

impl<R: ReactorOps> CellPtr<R> {
    /// Whether a request in flight or queued, or the ring's list, has the cell's address (rule 2).
    #[inline]
    pub(crate) fn has_inflight(self) -> bool {
        let word = self.armed_bits();
        word & (POLLS.mask() | REQUESTS.mask()) != 0 || self.has_flag(CellFlags::TO_ARM)
    }

    /// Whether a request in flight or queued has the cell's address.
    pub(crate) fn has_requests(self) -> bool {
        self.armed_bits() & (POLLS.mask() | REQUESTS.mask()) != 0
    }

    /// The number of polls in flight, including cancelled ones.
    #[inline]
    pub(crate) fn polls(self) -> u32 {
        POLLS.get(self.armed_bits())
    }

    /// True if no poll may be armed now. The new poll could be mistaken for a cancelled one in
    /// flight, or the count is at its maximum. The current poll must not be in flight.
    #[inline]
    pub(crate) fn is_too_old(self) -> bool {
        debug_assert!(!self.has_flag(CellFlags::IN_FLIGHT), "the current poll is not in flight");
        let cancelled = self.polls() - u32::from(self.has_flag(CellFlags::OUT_IN_FLIGHT));
        cancelled > 0 && (AGE.get(self.armed_bits()) >= AGE_MAX || self.polls() >= POLLS_MAX)
    }

    /// Records that a poll of the current generation is queued. For a single-shot poll, also
    /// records whether it waits for reading or writing.
    #[inline]
    pub(crate) fn poll_begins(self, mask: u32) {
        debug_assert!(self.polls() < POLLS_MAX, "the generations do not tell so many polls apart");
        let word =
            self.armed_bits() & !(CellFlags::AWAITS_IN.bits() | CellFlags::AWAITS_OUT.bits());
        let reads = if mask & IN != 0 { CellFlags::AWAITS_IN.bits() } else { 0 };
        let writes = if mask & OUT != 0 { CellFlags::AWAITS_OUT.bits() } else { 0 };
        self.set_armed_bits(POLLS.add(word, 1) | CellFlags::IN_FLIGHT.bits() | reads | writes);
    }

    /// Records that a second poll, for writing only, is queued.
    pub(crate) fn out_poll_begins(self) {
        debug_assert!(
            self.polls() < POLLS_MAX && !self.has_flag(CellFlags::OUT_IN_FLIGHT),
            "there is one of it"
        );
        self.set_armed_bits(POLLS.add(self.armed_bits(), 1) | CellFlags::OUT_IN_FLIGHT.bits());
    }

    /// Records a poll's final completion.
    #[inline]
    pub(crate) fn poll_ends(self) {
        debug_assert!(self.polls() > 0, "a poll ended that never began");
        self.set_armed_bits(POLLS.add(self.armed_bits(), u32::MAX));
    }

    /// The number of other requests in flight.
    pub(crate) fn requests(self) -> u32 {
        REQUESTS.get(self.armed_bits())
    }

    /// Records that another request is queued.
    pub(crate) fn request_begins(self) {
        assert!(self.requests() < REQUESTS_MAX, "a cell has no more than a few requests under way");
        self.set_armed_bits(REQUESTS.add(self.armed_bits(), 1));
    }

    /// Records the final completion of another request.
    #[inline]
    pub(crate) fn request_ends(self) {
        debug_assert!(self.requests() > 0, "a request ended that never began");
        self.set_armed_bits(REQUESTS.add(self.armed_bits(), u32::MAX));
    }

    /// The generation that the current poll carries beside the address.
    #[inline]
    pub(crate) fn generation(self) -> u32 {
        GENERATION.get(self.armed_bits())
    }

    /// Starts a new generation. Completions of earlier polls are ignored from here on.
    pub(crate) fn next_generation(self) {
        let word = GENERATION.add(self.armed_bits(), 1);
        // If only the current poll is in flight, it is the oldest.
        let age = if self.polls() <= 1 { 1 } else { (AGE.get(word) + 1).min(AGE_MAX) };
        self.set_armed_bits(word & !AGE.mask() | age << AGE.shift);
        self.set_flag(CellFlags::IN_FLIGHT, false);
        self.set_flag(CellFlags::QUIET, false);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::{Event, Interest, Reactor, Subscriber, Subscription, Turn, interest};

    struct Nobody;
    impl Subscriber<Reactor> for Nobody {
        fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("nobody registers it")
        }

        fn interest(&self) -> Interest {
            interest()
        }

        fn handle(&mut self, _: Event, _: Turn<'_, Reactor>) {}
    }

    #[test]
    fn counts_flags_and_masks_do_not_touch_one_another() {
        let subscription = Subscription::new(Nobody);
        let cell = subscription.cell();
        let mask =
            Interest::from_bits(0x2001).one_shot().edge_triggered().exclusive().wakeup().bits();
        cell.set_armed_mask(mask);
        assert!(!cell.has_inflight());
        cell.set_flag(CellFlags::TO_ARM, true);
        assert!(cell.has_inflight() && !cell.has_requests());
        cell.poll_begins(IN);
        cell.next_generation();
        cell.poll_begins(IN);
        (0..REQUESTS_MAX).for_each(|_| cell.request_begins());
        assert_eq!((cell.polls(), cell.requests(), cell.generation()), (2, REQUESTS_MAX, 1));
        assert_eq!(cell.armed_mask(), mask);
        cell.set_armed_mask(0);
        assert_eq!(
            (cell.polls(), cell.requests(), cell.generation(), cell.armed_mask()),
            (2, REQUESTS_MAX, 1, 0)
        );
        assert!(
            cell.has_flag(CellFlags::IN_FLIGHT)
                && cell.has_flag(CellFlags::TO_ARM)
                && !cell.has_flag(CellFlags::DIRTY)
        );
        (0..2).for_each(|_| cell.poll_ends());
        (0..REQUESTS_MAX).for_each(|_| cell.request_ends());
        (0..3).for_each(|_| cell.next_generation());
        assert_eq!(
            (cell.polls(), cell.requests(), cell.generation()),
            (0, 0, 0),
            "four generations come round"
        );
        cell.set_flag(CellFlags::TO_ARM, false);
        assert!(!cell.has_inflight());
    }
}
