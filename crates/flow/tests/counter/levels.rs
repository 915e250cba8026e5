//! Compares the reports of poll(2) and epoll(7) for the two sides with a table and with a naive
//! model.

use proptest::prelude::*;
use windlass_flow::{EventCounter, ReadError, WriteError};

use crate::bed::{KINDS, Kind, Sides, counters};

#[test]
fn the_levels_of_every_count() {
    for kind in KINDS {
        for maximum in [1, 2, 3, 4, 10] {
            for initial in 0..maximum {
                let (counter, again) = counters(kind, maximum, initial, false);
                // The sides are exposed at this count, so they start with its level.
                let (sides, other) = (Sides::new(&counter), Sides::new(&again));
                sides.assert_exact();
                other.assert_exact();
                // One unit at a time, up to the maximum.
                for count in initial + 1..=maximum {
                    assert!(again.signal().unwrap());
                    assert_eq!(sides.levels(), (true, count + 1 < maximum));
                    assert_eq!(counter.is_overflowed(), Ok(count == maximum));
                }
                assert!(!counter.signal().unwrap());
                sides.assert_exact();
                // A higher maximum makes room, and a lower one removes it.
                counter.set_maximum(maximum + 1).unwrap();
                assert_eq!((sides.levels(), counter.is_overflowed()), ((true, false), Ok(false)));
                again.set_maximum(maximum + 2).unwrap();
                assert_eq!(sides.levels(), (true, true));
                counter.set_maximum(maximum + 1).unwrap();
                assert_eq!(other.levels(), (true, false));
                assert_eq!(counter.read(), Ok(maximum));
                assert_eq!(sides.levels(), (false, true));
                counter.set_maximum(1).unwrap();
                assert_eq!(sides.levels(), (false, false));
            }
        }
    }
}

#[test]
fn a_semaphore_is_readable_until_the_last_unit() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 4, 0, true);
        let sides = Sides::new(&counter);
        again.write(3).unwrap();
        for levels in [(true, true), (true, true), (false, true)] {
            assert!([(true, true), (true, false)].contains(&sides.levels()));
            assert_eq!(again.read(), Ok(1));
            assert_eq!(sides.levels(), levels);
        }
    }
}

#[test]
fn every_operation_of_either_handle_is_seen_by_the_other() {
    let (counter, again) = counters(Kind::Parts, 5, 0, false);
    let (sides, others) = (Sides::new(&counter), Sides::new(&again));
    sides.writer.write(2).unwrap();
    assert_eq!(others.levels(), (true, true));
    others.writer.try_write(2).unwrap();
    assert_eq!(sides.levels(), (true, false));
    assert_eq!(others.reader.read(), Ok(4));
    assert_eq!((sides.levels(), others.levels()), ((false, true), (false, true)));
}

/// One step of a random program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u32),
    WriteAgain(u32),
    Read,
    ReadAgain,
    Signal,
    SetMaximum(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u32..7).prop_map(Step::Write),
        (0u32..7).prop_map(Step::WriteAgain),
        Just(Step::Read),
        Just(Step::ReadAgain),
        Just(Step::Signal),
        (0u32..7).prop_map(Step::SetMaximum),
    ]
}

/// The behaviour of the kernel patch, in a few lines.
struct Naive {
    maximum: u32,
    count: u32,
    semaphore: bool,
}

impl Naive {
    fn write(&mut self, n: u32) -> Result<(), WriteError> {
        match n {
            0 => Err(WriteError::Zero),
            n if n >= self.maximum => Err(WriteError::TooLarge),
            n if self.count + n >= self.maximum => Err(WriteError::WouldBlock),
            n => {
                self.count += n;
                Ok(())
            }
        }
    }

    fn read(&mut self) -> Result<u32, ReadError> {
        let n = if self.semaphore { self.count.min(1) } else { self.count };
        self.count -= n;
        if n == 0 { Err(ReadError::WouldBlock) } else { Ok(n) }
    }

    fn signal(&mut self) -> bool {
        let room = self.count < self.maximum;
        self.count += u32::from(room);
        room
    }

    fn set_maximum(&mut self, maximum: u32) -> bool {
        let above = maximum > self.count;
        if above {
            self.maximum = maximum;
        }
        above
    }
}

fn run(
    kind: Kind,
    semaphore: bool,
    maximum: u32,
    initial: u32,
    expose_at: usize,
    program: &[Step],
) {
    let mut naive = Naive { maximum, count: initial.min(maximum - 1), semaphore };
    let (counter, again) = counters(kind, maximum, naive.count, semaphore);
    let mut sides = None;
    for (i, step) in program.iter().enumerate() {
        if i == expose_at {
            sides = Some(Sides::new(&counter));
        }
        let write = |naive: &mut Naive, counter: &EventCounter, n| {
            assert_eq!(counter.try_write(n), naive.write(n))
        };
        match *step {
            Step::Write(n) => write(&mut naive, &counter, n),
            Step::WriteAgain(n) => write(&mut naive, &again, n),
            Step::Read => assert_eq!(counter.try_read(), naive.read()),
            Step::ReadAgain => assert_eq!(again.try_read(), naive.read()),
            Step::Signal => assert_eq!(again.signal(), Ok(naive.signal())),
            Step::SetMaximum(m) => assert_eq!(counter.set_maximum(m).is_ok(), naive.set_maximum(m)),
        }
        assert_eq!(
            (counter.count(), again.maximum()),
            (Ok(naive.count), Ok(naive.maximum)),
            "after {step:?}"
        );
        assert_eq!(counter.is_overflowed(), Ok(naive.count == naive.maximum));
        if let Some(sides) = &sides {
            let levels = (naive.count > 0, naive.count < naive.maximum - 1);
            assert_eq!(sides.levels(), levels, "after {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: windlass_testkit::random::cases(100),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_programs_agree_with_a_naive_counter(
        kind in 0usize..3,
        semaphore: bool,
        maximum in 1u32..7,
        initial in 0u32..7,
        expose_at in 0usize..10,
        program in proptest::collection::vec(step(), 1..60),
    ) {
        run(KINDS[kind], semaphore, maximum, initial, expose_at, &program);
    }
}
