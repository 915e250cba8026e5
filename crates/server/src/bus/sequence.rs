//! The numbers of publications: given by publishers, followed by receivers.

use std::collections::HashMap;

/// Number of topics whose numbers a publisher keeps. When there are more, its epoch ends.
const TOPICS_MAX: usize = 1 << 16;

/// Bytes of the names of these topics. With more, the epoch ends too.
const NAME_BYTES_MAX: usize = 4 << 20;

/// Number of publishers that a receiver follows for each topic. A further one takes the place of
/// another, which is then new again.
const PUBLISHERS_MAX: usize = 256;

/// The longest step between two numbers that one publication proves alone. A longer one must be
/// confirmed by the next publication.
const STEP_MAX: u64 = 1024;

/// The number of missing publications that one confirmed step counts at most.
const MISSED_MAX: u64 = 1 << 32;

/// Gives numbers to the publications of one publisher.
pub(super) struct Numbering {
    epoch: u64,
    next: HashMap<Box<str>, u64>,
    topics_max: usize,
    /// The length of all names.
    name_bytes: usize,
    name_bytes_max: usize,
}

impl Numbering {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            next: HashMap::new(),
            topics_max: TOPICS_MAX,
            name_bytes: 0,
            name_bytes_max: NAME_BYTES_MAX,
        }
    }

    /// Returns the epoch and the number of the next publication to a topic.
    pub(super) fn next(&mut self, topic: &str) -> (u64, u64) {
        if let Some(next) = self.next.get_mut(topic) {
            let sequence = *next;
            *next += 1;
            return (self.epoch, sequence);
        }
        let has_room = self.next.len() < self.topics_max
            && self.name_bytes + topic.len() <= self.name_bytes_max;
        if !has_room {
            self.next.clear();
            self.name_bytes = 0;
            self.epoch += 1;
        }
        self.name_bytes += topic.len();
        self.next.insert(topic.into(), 1);
        (self.epoch, 0)
    }
}

/// A publisher: a node and its worker.
pub(super) type PublisherId = (u64, u16);

/// What the number of a publication tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is to be delivered, and so many before it are missing.
    New { missed: u64 },
    /// A later one has arrived before, or it has arrived twice.
    Stale,
}

/// Where a publisher is: its epoch, and the number after the last one that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    epoch: u64,
    next: u64,
}

impl Position {
    fn after(epoch: u64, sequence: u64) -> Self {
        Self { epoch, next: sequence.saturating_add(1) }
    }
}

/// A publisher of a topic.
struct Followed {
    id: PublisherId,
    /// Two publications at least agree on it.
    agreed: Option<Position>,
    /// A later epoch or a long step that one publication alone has shown, and the missing ones
    /// that have not been reported.
    claim: Option<(Position, u64)>,
}

/// The numbers that have arrived for one topic.
///
/// 1. A publication that follows what is known by at most [`STEP_MAX`] numbers moves the position.
/// 2. Every other later one is delivered too, but is only a claim. The next publication that
///    follows it by such a step confirms it.
/// 3. A publication that follows the agreed position instead ends the claim. So one envelope with
///    an invented number silences its publisher for `STEP_MAX` publications at most.
#[derive(Default)]
pub(super) struct Arrivals {
    publishers: Vec<Followed>,
    /// The place that a further publisher takes.
    oldest: usize,
}

impl Arrivals {
    /// Number of publishers that are followed.
    pub(super) fn publishers(&self) -> usize {
        self.publishers.len()
    }

    /// Notes a number.
    pub(super) fn note(&mut self, publisher: PublisherId, epoch: u64, sequence: u64) -> Arrival {
        if let Some(known) = self.publishers.iter_mut().find(|known| known.id == publisher) {
            return known.note(epoch, sequence);
        }
        // Those before it may be from the time before the subscription.
        let claim = Some((Position::after(epoch, sequence), 0));
        let entry = Followed { id: publisher, agreed: None, claim };
        if self.publishers.len() < PUBLISHERS_MAX {
            self.publishers.push(entry);
        } else {
            self.publishers[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % PUBLISHERS_MAX;
        }
        Arrival::New { missed: 0 }
    }
}

impl Followed {
    fn note(&mut self, epoch: u64, sequence: u64) -> Arrival {
        let here = Position::after(epoch, sequence);
        // How far it is behind a position of its epoch, or before it.
        let step = |from: Position| match sequence.checked_sub(from.next) {
            Some(step) => Step::Later(step),
            None => Step::Earlier(from.next - sequence),
        };
        if let Some((claim, unreported)) = self.claim.filter(|(claim, _)| claim.epoch == epoch) {
            match step(claim) {
                Step::Later(missed @ 0..=STEP_MAX) => {
                    (self.agreed, self.claim) = (Some(here), None);
                    return Arrival::New { missed: missed + unreported };
                }
                Step::Earlier(1..=STEP_MAX) => return Arrival::Stale,
                _ => {}
            }
        }
        // In a later epoch the first number is 0.
        let missed = match self.agreed {
            Some(agreed) if agreed.epoch == epoch => match step(agreed) {
                Step::Later(missed @ 0..=STEP_MAX) => {
                    (self.agreed, self.claim) = (Some(here), None);
                    return Arrival::New { missed };
                }
                Step::Later(missed) => missed,
                Step::Earlier(_) => return Arrival::Stale,
            },
            Some(agreed) if epoch < agreed.epoch => return Arrival::Stale,
            Some(_) => sequence,
            None if self.claim.is_some_and(|(claim, _)| claim.epoch < epoch) => sequence,
            None => 0,
        };
        let (now, later) =
            if missed <= STEP_MAX { (missed, 0) } else { (0, missed.min(MISSED_MAX)) };
        self.claim = Some((here, later));
        Arrival::New { missed: now }
    }
}

/// The way from a position to a number.
enum Step {
    /// So many are missing.
    Later(u64),
    /// It has been passed.
    Earlier(u64),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEW: Arrival = Arrival::New { missed: 0 };

    #[test]
    fn numbers_are_consecutive_for_each_topic() {
        let mut numbers = Numbering::new(5);
        assert_eq!(
            [numbers.next("a"), numbers.next("b"), numbers.next("a")],
            [(5, 0), (5, 0), (5, 1)]
        );
    }

    #[test]
    fn a_full_table_ends_the_epoch() {
        let mut numbers = Numbering { topics_max: 2, ..Numbering::new(5) };
        assert_eq!(
            [numbers.next("a"), numbers.next("b"), numbers.next("a")],
            [(5, 0), (5, 0), (5, 1)]
        );
        assert_eq!(
            [numbers.next("c"), numbers.next("a"), numbers.next("a")],
            [(6, 0), (6, 0), (6, 1)]
        );
    }

    #[test]
    fn long_names_end_the_epoch() {
        let mut numbers = Numbering { name_bytes_max: 10, ..Numbering::new(5) };
        assert_eq!(
            ["aaaa", "bbbb", "aaaa"].map(|name| numbers.next(name)),
            [(5, 0), (5, 0), (5, 1)]
        );
        assert_eq!(["cc", "d", "aaaa"].map(|name| numbers.next(name)), [(5, 0), (6, 0), (6, 0)]);
        assert_eq!((numbers.name_bytes, numbers.next.len()), (5, 2));
        // A name that is longer than that is the only one.
        let long = "x".repeat(11);
        assert_eq!([numbers.next(&long), numbers.next(&long)], [(7, 0), (7, 1)]);
        assert_eq!(numbers.next("a"), (8, 0));
    }

    #[test]
    fn gaps_are_counted_and_old_numbers_are_stale() {
        let mut arrivals = Arrivals::default();
        let one = (1, 0);
        assert_eq!(arrivals.note(one, 1, 7), NEW, "the first is where it begins");
        assert_eq!(arrivals.note(one, 1, 8), NEW);
        assert_eq!(arrivals.note(one, 1, 11), Arrival::New { missed: 2 });
        for old in [11, 9, 0] {
            assert_eq!(arrivals.note(one, 1, old), Arrival::Stale);
        }
        assert_eq!(arrivals.note((1, 1), 1, 0), NEW, "another worker");
        assert_eq!(arrivals.note((2, 0), 1, 0), NEW, "another node");
        assert_eq!(arrivals.note(one, 2, 3), Arrival::New { missed: 3 }, "of the new epoch");
        assert_eq!(arrivals.note(one, 2, 4), NEW);
        assert_eq!(arrivals.note(one, 1, 12), Arrival::Stale, "of the old epoch");
        assert_eq!(arrivals.note(one, 2, 5), NEW);
    }

    /// A publisher whose epoch 5 has reached the number 9.
    fn followed() -> Arrivals {
        let mut arrivals = Arrivals::default();
        assert_eq!([8, 9].map(|number| arrivals.note((1, 0), 5, number)), [NEW; 2]);
        arrivals
    }

    #[test]
    fn one_invented_number_claims_little() {
        for (epoch, number) in [
            (5, u64::MAX),
            (5, 10 + STEP_MAX + 1),
            (6, 0),
            (6, u64::MAX),
            (u64::MAX, 0),
            (u64::MAX, u64::MAX),
        ] {
            let mut arrivals = followed();
            assert_eq!(arrivals.note((1, 0), epoch, number), NEW, "{epoch} {number}");
            for own in 10..13 {
                assert_eq!(arrivals.note((1, 0), 5, own), NEW, "{epoch} {number}");
            }
            // The next real epoch is not silent either.
            let mut arrivals = followed();
            assert_eq!(arrivals.note((1, 0), epoch, number), NEW);
            assert_eq!([0, 1, 2].map(|own| arrivals.note((1, 0), 7, own)), [NEW; 3]);
        }
        let mut arrivals = followed();
        let claimed = arrivals.note((1, 0), 5, 10 + STEP_MAX);
        assert_eq!(claimed, Arrival::New { missed: STEP_MAX });
        let stale = (10..).find(|own| arrivals.note((1, 0), 5, *own) == NEW);
        assert_eq!(stale, Some(10 + STEP_MAX + 1));
    }

    #[test]
    fn an_invented_first_number_claims_nothing() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.note((1, 0), u64::MAX, u64::MAX), NEW);
        assert_eq!([0, 1, 2].map(|own| arrivals.note((1, 0), 5, own)), [NEW; 3]);
        assert_eq!(arrivals.note((1, 0), u64::MAX, 0), NEW);
        assert_eq!(arrivals.note((1, 0), 5, 3), NEW);
    }

    #[test]
    fn a_long_step_counts_when_the_next_number_confirms_it() {
        let mut arrivals = followed();
        assert_eq!(arrivals.note((1, 0), 5, 10 + 5000), NEW);
        for old in [5010, 5009] {
            assert_eq!(arrivals.note((1, 0), 5, old), Arrival::Stale);
        }
        assert_eq!(arrivals.note((1, 0), 5, 5012), Arrival::New { missed: 5001 });
        assert_eq!(arrivals.note((1, 0), 5, 10), Arrival::Stale, "it is agreed now");
        let far = u64::MAX - 10;
        assert_eq!(arrivals.note((1, 0), 5, far), NEW);
        assert_eq!(arrivals.note((1, 0), 5, far + 1), Arrival::New { missed: MISSED_MAX });
    }

    #[test]
    fn the_largest_number_does_not_overflow() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.note((1, 0), u64::MAX, u64::MAX), NEW);
        // It is accepted once more, as the next number would be.
        assert_eq!(arrivals.note((1, 0), u64::MAX, u64::MAX), NEW);
    }

    #[test]
    fn the_publishers_of_a_topic_are_bounded() {
        let mut arrivals = Arrivals::default();
        let many = PUBLISHERS_MAX as u64 + 10;
        for node in 0..many {
            assert_eq!(arrivals.note((node, 0), 1, 5), NEW);
        }
        assert_eq!(arrivals.publishers.len(), PUBLISHERS_MAX);
        assert_eq!(arrivals.note((many - 1, 0), 1, 5), Arrival::Stale, "it is followed");
        assert_eq!(arrivals.note((0, 0), 1, 5), NEW, "its place was taken");
    }

    proptest! {
        /// Whatever is lost: the delivered and the missing together are the published ones.
        #[test]
        fn what_is_missing_is_known_exactly(
            lost in proptest::collection::vec(any::<bool>(), 1..200),
        ) {
            let (mut numbers, mut arrivals) = (Numbering::new(1), Arrivals::default());
            let (mut delivered, mut missing) = (0, 0);
            let (epoch, first) = numbers.next("t");
            assert_eq!(arrivals.note((1, 0), epoch, first), NEW);
            for is_lost in &lost {
                let (epoch, sequence) = numbers.next("t");
                if *is_lost { continue; }
                let Arrival::New { missed } = arrivals.note((1, 0), epoch, sequence) else {
                    panic!("it is in order");
                };
                delivered += 1;
                missing += missed;
            }
            let (epoch, last) = numbers.next("t");
            let Arrival::New { missed } = arrivals.note((1, 0), epoch, last) else { panic!() };
            prop_assert_eq!(delivered + missing + missed, lost.len() as u64);
        }

        /// Whatever the order: what is delivered is in order.
        #[test]
        fn what_is_delivered_is_in_order(numbers in proptest::collection::vec(0_u64..20, 0..100)) {
            let mut arrivals = Arrivals::default();
            let mut last = None;
            for number in numbers {
                if arrivals.note((1, 0), 1, number) != Arrival::Stale {
                    prop_assert!(last < Some(number));
                    last = Some(number);
                }
            }
        }
    }
}
