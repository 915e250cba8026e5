//! Tests in which processes die at any point while another is at any point of its own call. Pollers
//! must still be notified.
//!
//! "Any point" is between any two system calls of an operation, or between its step of the word and
//! the first call.

use super::{tests::levels, *};
use crate::sys::calls;

/// One action of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Write,
    Read,
    /// A process starts to poll.
    Come,
}

impl Act {
    fn run(self, counter: &EventCounter) {
        match self {
            Self::Write => drop(counter.try_write(1)),
            Self::Read => drop(counter.try_read()),
            Self::Come => drop(counter.reader().unwrap()),
        }
    }
}

/// More system calls than any act makes.
const CALLS: usize = 7;

const MAXIMUM: u32 = 3;

fn counter(count: u32, semaphore: bool, rejected: bool) -> EventCounter {
    let counter = EventCounter::builder()
        .maximum(MAXIMUM)
        .initial(count)
        .semaphore(semaphore)
        .shared(true)
        .build()
        .unwrap();
    counter.reader().unwrap();
    counter.writer().unwrap();
    if rejected {
        counter.core.mark_rejected();
    }
    counter
}

/// Runs the pollers whose descriptors are ready, until none of them finds work. Then the state must
/// be right.
fn come_and_go(counter: &EventCounter) -> (bool, bool) {
    for _ in 0..2 {
        let (readable, writable) = levels(counter);
        if readable {
            while counter.try_read().is_ok() {}
        }
        if writable {
            while counter.try_write(1).is_ok() {}
        }
    }
    let word = counter.core.word().unwrap();
    assert_eq!(levels(counter), (word.is_readable(), word.is_writable()), "{word:?}");
    levels(counter)
}

/// Whether the state ends up right in this scenario. Before call number `calls` of `late`, the
/// others do `before`, and then one dies doing `last`.
fn survives(
    counter: &EventCounter,
    late: (Act, usize),
    before: &[Act],
    last: (Act, usize),
) -> bool {
    let (others, before) = (counter.clone(), before.to_vec());
    calls::after(late.1, move || {
        before.iter().for_each(|act| act.run(&others));
        calls::after(last.1, calls::die);
        calls::until_death(|| last.0.run(&others));
    });
    assert!(!calls::until_death(|| late.0.run(counter)));
    levels(counter) != (false, false)
}

/// All sequences of up to four acts of the others.
fn histories() -> Vec<Vec<Act>> {
    let mut all = vec![Vec::new()];
    let mut begin = 0;
    for _ in 0..4 {
        let end = all.len();
        for at in begin..end {
            for act in [Act::Write, Act::Read] {
                all.push([&all[at][..], &[act]].concat());
            }
        }
        begin = end;
    }
    all
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_late_process_never_hides_the_state_of_a_dead_one() {
    let mut cases = 0_u32;
    for semaphore in [false, true] {
        for (count, rejected) in [(0, false), (1, false), (2, false), (2, true)] {
            for late in [Act::Write, Act::Read, Act::Come] {
                for before in histories() {
                    for last in [Act::Write, Act::Read] {
                        for (at, dies) in
                            (0..CALLS).flat_map(|at| (0..CALLS).map(move |dies| (at, dies)))
                        {
                            let counter = counter(count, semaphore, rejected);
                            let case =
                                (semaphore, count, rejected, (late, at), &before, (last, dies));
                            assert!(
                                survives(&counter, (late, at), &before, (last, dies)),
                                "both sleep: {case:?}"
                            );
                            come_and_go(&counter);
                            cases += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(cases > 10_000);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn one_that_dies_while_it_gives_an_edge_keeps_no_writer_asleep() {
    let counter = counter(2, true, true);
    let others = counter.clone();
    // Before its first call, the thread has taken a unit and cleared the mark of the rejected
    // writer.
    calls::after(0, move || {
        assert_eq!(others.try_read(), Ok(1));
        assert!(others.try_read().is_err());
        assert_eq!(
            levels(&others),
            (false, true),
            "the writers know, and there is nothing to read"
        );
        calls::after(0, calls::die);
    });
    assert!(calls::until_death(|| counter.try_read()));
    assert_eq!(levels(&counter), (false, true));
    // The state it left does not prevent the side from showing "not ready" when there is no room.
    counter.write(2).unwrap();
    assert_eq!(levels(&counter), (true, false));
}

/// The one death that leaves both sides "not ready": see the end of rule 10. A process that does
/// not rely on its descriptor alone repairs it.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn after_a_late_not_ready_of_a_dead_one_any_attempt_brings_both_sides_up_to_date() {
    type Attempt = fn(&EventCounter);
    let attempts: [Attempt; 4] = [
        |counter| assert_eq!(counter.try_write(1), Err(WriteError::WouldBlock)),
        |counter| assert_eq!(counter.write_timeout(1, Duration::ZERO), Err(WriteError::TimedOut)),
        |counter| drop(counter.reader().unwrap()),
        |counter| drop(counter.writer().unwrap()),
    ];
    for attempt in attempts {
        let counter = counter(1, false, false);
        let others = counter.clone();
        // The thread has notified the writers, has looked, and is about to show "not readable".
        calls::after(1, move || {
            others.write(1).unwrap();
            others.write(1).unwrap();
            assert_eq!(levels(&others), (true, false));
            calls::after(0, calls::die);
        });
        assert!(calls::until_death(|| counter.try_read()));
        assert_eq!(levels(&counter), (false, false), "if this is ready, the rule can promise more");
        attempt(&counter);
        assert_eq!(levels(&counter), (true, false));
    }
}
