//! What a ring still owes a cell: requests that carry its address and have not completed for good
//! (rule 2).
//!
//! The counts stand in the header's `armed` word, in bits that epoll's masks and [`Flags`] leave
//! free, and are zero on the other backends.

use crate::{
    cell::{CellPtr, Flags},
    interest::{IN, OUT},
    turn::ReactorOps,
};

/// Polls that have not completed for good, up to [`POLLS_MAX`].
const POLLS: Count = Count { shift: 5, bits: 2 };
/// Other requests that have not completed for good: receives.
const REQUESTS: Count = Count { shift: 8, bits: 1 };
/// How many generations ago the oldest poll may have been armed that has not completed for good, up
/// to [`AGE_MAX`].
const AGE: Count = Count { shift: 11, bits: 2 };
/// The poll generation, which is part of what a poll carries: a completion of another generation is
/// nobody's.
const GENERATION: Count = Count { shift: 24, bits: 2 };

/// All bits of the counts.
pub(crate) const COUNTS: u32 = POLLS.mask() | REQUESTS.mask() | AGE.mask() | GENERATION.mask();

/// So many generations later no poll is armed before the older ones have completed for good: four
/// generations come round. Polls do not complete in the order in which they were armed, so to count
/// them would not do.
const AGE_MAX: u32 = 3;

/// As many polls of one cell may be under way: this one, and those that were cancelled.
const POLLS_MAX: u32 = AGE_MAX;

/// The most requests beside polls that can be counted.
pub(crate) const REQUESTS_MAX: u32 = REQUESTS.mask() >> REQUESTS.shift;

/// A number in some bits of a word.
#[derive(Clone, Copy)]
struct Count {
    shift: u32,
    bits: u32,
}

impl Count {
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
    /// Whether anything has the cell's address: a request in the kernel or queued for it, or the
    /// ring's list (rule 2).
    #[inline]
    pub(crate) fn has_inflight(self) -> bool {
        let word = self.armed_bits();
        word & (POLLS.mask() | REQUESTS.mask()) != 0 || self.has_flag(Flags::TO_ARM)
    }

    /// Whether a request in the kernel, or queued for it, has the cell's address.
    pub(crate) fn has_requests(self) -> bool {
        self.armed_bits() & (POLLS.mask() | REQUESTS.mask()) != 0
    }

    /// How many polls have not completed for good, cancelled ones included.
    #[inline]
    pub(crate) fn polls(self) -> u32 {
        POLLS.get(self.armed_bits())
    }

    /// Whether no poll may be armed now: it could be taken for one that was cancelled and has not
    /// completed for good, or there are as many as can be counted. The present poll is not in
    /// flight.
    #[inline]
    pub(crate) fn is_too_old(self) -> bool {
        let cancelled = self.polls() - u32::from(self.has_flag(Flags::OUT_IN_FLIGHT));
        cancelled > 0 && (AGE.get(self.armed_bits()) >= AGE_MAX || self.polls() >= POLLS_MAX)
    }

    /// Notes that a poll of the present generation is queued, and which of reading and writing it
    /// waits for, if it does so once.
    #[inline]
    pub(crate) fn poll_begins(self, mask: u32) {
        debug_assert!(self.polls() < POLLS_MAX, "the generations do not tell so many polls apart");
        let word = self.armed_bits() & !(Flags::AWAITS_IN.bits() | Flags::AWAITS_OUT.bits());
        let reads = if mask & IN != 0 { Flags::AWAITS_IN.bits() } else { 0 };
        let writes = if mask & OUT != 0 { Flags::AWAITS_OUT.bits() } else { 0 };
        self.set_armed_bits(POLLS.add(word, 1) | Flags::IN_FLIGHT.bits() | reads | writes);
    }

    /// Notes that a poll beside the present one is queued, for writing alone.
    pub(crate) fn out_poll_begins(self) {
        debug_assert!(
            self.polls() < POLLS_MAX && !self.has_flag(Flags::OUT_IN_FLIGHT),
            "there is one of it"
        );
        self.set_armed_bits(POLLS.add(self.armed_bits(), 1) | Flags::OUT_IN_FLIGHT.bits());
    }

    /// Notes a poll's final completion.
    #[inline]
    pub(crate) fn poll_ends(self) {
        debug_assert!(self.polls() > 0, "a poll ended that never began");
        self.set_armed_bits(POLLS.add(self.armed_bits(), u32::MAX));
    }

    /// How many requests beside polls have not completed for good.
    pub(crate) fn requests(self) -> u32 {
        REQUESTS.get(self.armed_bits())
    }

    /// Notes that a request beside polls is queued.
    pub(crate) fn request_begins(self) {
        assert!(self.requests() < REQUESTS_MAX, "a cell has no more than a few requests under way");
        self.set_armed_bits(REQUESTS.add(self.armed_bits(), 1));
    }

    /// Notes the final completion of a request beside polls.
    #[inline]
    pub(crate) fn request_ends(self) {
        debug_assert!(self.requests() > 0, "a request ended that never began");
        self.set_armed_bits(REQUESTS.add(self.armed_bits(), u32::MAX));
    }

    /// What the present poll carries beside the address.
    #[inline]
    pub(crate) fn generation(self) -> u32 {
        GENERATION.get(self.armed_bits())
    }

    /// What polls that were armed until now report is nobody's from here on.
    pub(crate) fn next_generation(self) {
        let word = GENERATION.add(self.armed_bits(), 1);
        // Where there is but the poll of until now, it is the oldest.
        let age = if self.polls() <= 1 { 1 } else { (AGE.get(word) + 1).min(AGE_MAX) };
        self.set_armed_bits(word & !AGE.mask() | age << AGE.shift);
        self.set_flag(Flags::IN_FLIGHT, false);
        self.set_flag(Flags::QUIET, false);
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
        cell.set_flag(Flags::TO_ARM, true);
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
            cell.has_flag(Flags::IN_FLIGHT)
                && cell.has_flag(Flags::TO_ARM)
                && !cell.has_flag(Flags::DIRTY)
        );
        (0..2).for_each(|_| cell.poll_ends());
        (0..REQUESTS_MAX).for_each(|_| cell.request_ends());
        (0..3).for_each(|_| cell.next_generation());
        assert_eq!(
            (cell.polls(), cell.requests(), cell.generation()),
            (0, 0, 0),
            "four generations come round"
        );
        cell.set_flag(Flags::TO_ARM, false);
        assert!(!cell.has_inflight());
    }
}
