//! Every error, and that an error changes nothing.

use std::{io, time::Duration};

use windlass_flow::{CounterBuildError, EventCounter, ReadError, SetMaximumError, WriteError};

use crate::bed::{KINDS, counters};

#[test]
fn a_counter_needs_a_maximum_above_its_count() {
    let build =
        |maximum, initial| EventCounter::builder().maximum(maximum).initial(initial).build().err();
    assert_eq!(EventCounter::new(0).err(), Some(CounterBuildError::ZeroMaximum));
    assert_eq!(build(0, 7), Some(CounterBuildError::ZeroMaximum));
    assert_eq!(build(7, 7), Some(CounterBuildError::InitialTooLarge));
    assert_eq!(build(7, 8), Some(CounterBuildError::InitialTooLarge));
    assert_eq!(build(7, 6), None);
    assert_eq!(io::Error::from(CounterBuildError::ZeroMaximum).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn the_default_maximum_is_the_largest_there_is() {
    let counter = EventCounter::builder().build().unwrap();
    assert_eq!((counter.maximum(), counter.count()), (Ok(u32::MAX), Ok(0)));
    assert_eq!(counter.write(u32::MAX), Err(WriteError::TooLarge));
    assert_eq!(counter.write(u32::MAX - 1), Ok(()));
    assert_eq!(counter.try_write(1), Err(WriteError::WouldBlock));
    assert_eq!(counter.signal(), Ok(true));
    assert_eq!(counter.signal(), Ok(false));
    assert_eq!(counter.read(), Ok(u32::MAX));
}

#[test]
fn writes_that_cannot_be_are_rejected_at_once_and_change_nothing() {
    for kind in KINDS {
        let (counter, _again) = counters(kind, 4, 1, false);
        let ways: [&dyn Fn(u32) -> Result<(), WriteError>; 3] =
            [&|n| counter.write(n), &|n| counter.try_write(n), &|n| {
                counter.write_timeout(n, Duration::MAX)
            }];
        for way in ways {
            assert_eq!(way(0), Err(WriteError::Zero));
            assert_eq!(way(4), Err(WriteError::TooLarge));
            assert_eq!(way(u32::MAX), Err(WriteError::TooLarge));
        }
        assert_eq!(counter.try_write(3), Err(WriteError::WouldBlock));
        assert_eq!(counter.write_timeout(3, Duration::from_millis(1)), Err(WriteError::TimedOut));
        assert_eq!(counter.count(), Ok(1));
    }
}

#[test]
fn reads_of_nothing_are_rejected() {
    for kind in KINDS {
        let (counter, _again) = counters(kind, 4, 0, true);
        assert_eq!(counter.try_read(), Err(ReadError::WouldBlock));
        assert_eq!(counter.read_timeout(Duration::from_millis(1)), Err(ReadError::TimedOut));
    }
}

#[test]
fn a_maximum_at_or_below_the_count_is_invalid_input() {
    for kind in KINDS {
        let (counter, _again) = counters(kind, 4, 3, false);
        for maximum in [0, 1, 3] {
            let error = counter.set_maximum(maximum).unwrap_err();
            assert_eq!(error, SetMaximumError::NotAboveCount);
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(counter.maximum(), Ok(4));
        counter.signal().unwrap();
        assert_eq!(
            counter.set_maximum(4),
            Err(SetMaximumError::NotAboveCount),
            "as the patch: not above the count"
        );
        assert_eq!(counter.set_maximum(5), Ok(()));
    }
}

#[test]
fn a_non_blocking_counter_does_not_wait_unless_it_is_given_a_time() {
    let counter = EventCounter::builder().maximum(2).nonblocking(true).build().unwrap();
    assert!(counter.is_nonblocking());
    assert_eq!(counter.read(), Err(ReadError::WouldBlock));
    assert_eq!(counter.read_timeout(Duration::from_millis(1)), Err(ReadError::TimedOut));
    counter.write(1).unwrap();
    assert_eq!(counter.write(1), Err(WriteError::WouldBlock));
    assert_eq!(counter.write_timeout(1, Duration::from_millis(1)), Err(WriteError::TimedOut));
    // The mode applies to all clones.
    counter.clone().set_nonblocking(false);
    assert!(!counter.is_nonblocking());
}

#[test]
fn a_counter_reports_its_settings() {
    for kind in KINDS {
        for semaphore in [false, true] {
            let (counter, again) = counters(kind, 4, 0, semaphore);
            for counter in [&counter, &again] {
                assert_eq!(counter.is_semaphore(), semaphore);
                assert_eq!(counter.is_shared(), kind != crate::bed::Kind::Threads);
                assert!(format!("{counter:?}").contains("maximum: Ok(4)"));
            }
        }
    }
}

#[test]
fn handles_go_to_other_threads() {
    fn check<T: Send + Sync + Clone + 'static>() {}
    check::<EventCounter>();
    check::<windlass_flow::CounterReader>();
    check::<windlass_flow::CounterWriter>();
}
