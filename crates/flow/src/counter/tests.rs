//! Tests that need the inside of the crate: paths without system calls, and the state after a
//! process died in the middle.

use std::os::fd::{AsFd as _, AsRawFd as _};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::sys::calls;

/// The current result of poll(2): (reader's side readable, writer's side writable).
pub(super) fn levels(counter: &EventCounter) -> (bool, bool) {
    let fds = (counter.core.fd(Side::Reader).unwrap(), counter.core.fd(Side::Writer).unwrap());
    let room = if counter.is_shared() { PollFlags::IN } else { PollFlags::OUT };
    let mut set = [PollFd::new(fds.0, PollFlags::IN), PollFd::new(fds.1, room)];
    poll(&mut set, Some(&Timespec::default())).unwrap();
    (set[0].revents().contains(PollFlags::IN), set[1].revents().contains(room))
}

/// The number of system calls that `f` makes.
fn calls_of<T>(f: impl FnOnce() -> T) -> usize {
    calls::of(f).len()
}

#[test]
fn operations_that_need_not_wait_make_no_system_call() {
    // Miri does not support memfd_create.
    for shared in [false, true].into_iter().filter(|shared| !(*shared && cfg!(miri))) {
        let counter = EventCounter::builder().maximum(10).shared(shared).build().unwrap();
        let calls = calls_of(|| {
            for _ in 0..100 {
                counter.write(9).unwrap();
                assert_eq!(counter.try_write(1), Err(WriteError::WouldBlock));
                assert!(counter.signal().unwrap());
                assert_eq!(counter.read(), Ok(10));
                assert_eq!(counter.try_read(), Err(ReadError::WouldBlock));
                counter.set_maximum(20).unwrap();
                counter.set_maximum(10).unwrap();
                assert_eq!(counter.write_timeout(10, Duration::MAX), Err(WriteError::TooLarge));
                assert_eq!(counter.read_timeout(Duration::ZERO), Err(ReadError::TimedOut));
            }
        });
        assert_eq!(calls, 0);
    }
}

#[test]
fn a_polled_side_costs_a_call_when_its_level_changes() {
    let counter = EventCounter::new(4).unwrap();
    let _reader = counter.reader().unwrap();
    assert_eq!(calls_of(|| counter.write(1)), 1);
    assert_eq!(
        calls_of(|| counter.write(2)),
        0,
        "it was readable before, and the writer's side is not exposed"
    );
    assert_eq!(calls_of(|| counter.read()), 1);
    let _writer = counter.writer().unwrap();
    assert_eq!(calls_of(|| counter.write(1)), 1);
    assert_eq!(calls_of(|| counter.write(1)), 0);
    assert_eq!(calls_of(|| counter.write(1)), 1);
    assert_eq!(calls_of(|| counter.try_write(1)), 0, "a rejection is no step");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_shared_counter_notifies_at_every_step() {
    let counter = EventCounter::builder().maximum(10).semaphore(true).shared(true).build().unwrap();
    let (_reader, _writer) = (counter.reader().unwrap(), counter.writer().unwrap());
    counter.write(2).unwrap();
    assert_eq!(
        calls_of(|| counter.write(1)),
        1,
        "an earlier writer may have died before it notified"
    );
    assert_eq!(calls_of(|| counter.read()), 1);
    counter.read().unwrap();
    counter.read().unwrap();
    assert_eq!(
        calls_of(|| counter.try_read()),
        3,
        "both sides, and what the other says once its own says no"
    );
}

/// A shared counter with both sides exposed.
fn shared(maximum: u32, semaphore: bool) -> EventCounter {
    let counter =
        EventCounter::builder().maximum(maximum).semaphore(semaphore).shared(true).build().unwrap();
    counter.reader().unwrap();
    counter.writer().unwrap();
    counter
}

/// A process makes the step of a write and dies before it notifies the others.
fn die_writing(counter: &EventCounter, n: u32) {
    assert!(counter.core.update(|word| word.written(n)).unwrap().is_some());
}

/// A process makes the step of a read and dies before it notifies the others.
fn die_reading(counter: &EventCounter) {
    assert!(
        counter
            .core
            .update(|word| Ok::<_, ReadError>(word.taken(counter.is_semaphore())))
            .unwrap()
            .is_some()
    );
}

/// Returns when a thread has enlisted and has had time to fall asleep. If it is still awake, the
/// test proves less but does not fail.
fn until_asleep(list: &wait::WaitList) {
    while !list.is_marked() {
        std::thread::yield_now();
    }
    (0..1000).for_each(|_| std::thread::yield_now());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn the_next_write_makes_up_for_a_dead_writer() {
    let counter = shared(10, false);
    die_writing(&counter, 1);
    assert_eq!(levels(&counter), (false, true), "the wake that its death costs");
    counter.write(1).unwrap();
    assert_eq!(levels(&counter), (true, true));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_signal_at_the_maximum_makes_up_for_a_dead_one() {
    let counter = shared(1, false);
    assert!(counter.core.update(|word| Ok::<_, Corrupt>(word.signalled())).unwrap().is_some());
    assert_eq!(levels(&counter), (false, false));
    assert_eq!(counter.signal(), Ok(false));
    assert_eq!(levels(&counter), (true, false));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_rejected_writer_makes_up_for_a_dead_writer() {
    for times_out in [false, true] {
        let rejected = |counter: &EventCounter| match times_out {
            false => counter.try_write(1),
            true => counter.write_timeout(1, Duration::ZERO),
        };
        let counter = shared(4, false);
        die_writing(&counter, 3);
        // The dead process's own side still shows "ready", so a writer wakes up. It finds no room,
        // and its call notifies the reader.
        assert_eq!(levels(&counter), (false, true));
        assert!(rejected(&counter).is_err());
        assert_eq!(levels(&counter), (true, false));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_rejected_reader_makes_up_for_a_dead_reader() {
    for times_out in [false, true] {
        let rejected = |counter: &EventCounter| match times_out {
            false => counter.try_read(),
            true => counter.read_timeout(Duration::ZERO),
        };
        let counter = shared(4, false);
        counter.write(3).unwrap();
        die_reading(&counter);
        assert_eq!(levels(&counter), (true, false));
        assert!(rejected(&counter).is_err());
        assert_eq!(levels(&counter), (false, true));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn the_next_read_makes_up_for_a_dead_reader() {
    let counter = shared(4, true);
    counter.write(3).unwrap();
    die_reading(&counter);
    assert_eq!(levels(&counter), (true, false));
    counter.read().unwrap();
    assert_eq!(levels(&counter), (true, true));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_process_that_dies_while_it_notifies_leaves_its_own_side_ready() {
    // The other side is notified first. If the calls stop in between, the own side shows "ready",
    // and its spurious wake-ups repair the state.
    let counter = shared(2, false);
    let number = |side| counter.core.fd(side).unwrap().as_fd().as_raw_fd();
    let (reader, writer) = (number(Side::Reader), number(Side::Writer));
    let order = |step: &dyn Fn()| {
        let name = |fd| if fd == reader { 'r' } else { 'w' };
        let calls = calls::of(step);
        assert!(calls.iter().all(|fd| [reader, writer].contains(fd)));
        calls.into_iter().map(name).collect::<String>()
    };
    // When the own side becomes "not ready", the other is looked at again. The last process that
    // showed "ready" may have died before it notified.
    assert_eq!(order(&|| counter.write(1).unwrap()), "rwr");
    assert_eq!(order(&|| assert!(counter.try_write(1).is_err())), "rwr");
    assert_eq!(
        order(&|| assert_eq!(counter.read(), Ok(1))),
        "wwrw",
        "an edge for the one that was rejected"
    );
    counter.write(1).unwrap();
    assert_eq!(
        order(&|| assert_eq!(counter.read(), Ok(1))),
        "wwrw",
        "no writer was rejected since; the flag is read and set"
    );
    assert_eq!(order(&|| assert!(counter.try_read().is_err())), "wrw");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_waiter_whose_waker_died_looks_again_by_itself() {
    let counter = shared(4, false);
    let live = &counter.core.page.live;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| counter.read());
        until_asleep(&live.readers);
        die_writing(&counter, 2);
        assert_eq!(reader.join().unwrap(), Ok(2));
        die_writing(&counter, 3);
        let writer = scope.spawn(|| counter.write(2));
        until_asleep(&live.writers);
        die_reading(&counter);
        assert_eq!(writer.join().unwrap(), Ok(()));
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_waiting_writer_makes_up_for_a_dead_writer_towards_pollers() {
    let counter = shared(4, false);
    die_writing(&counter, 3);
    assert_eq!(levels(&counter), (false, true));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| counter.write(1));
        let mut set = [PollFd::new(counter.core.fd(Side::Reader).unwrap(), PollFlags::IN)];
        poll(&mut set, None).unwrap();
        assert_eq!(counter.try_read(), Ok(3));
        assert_eq!(writer.join().unwrap(), Ok(()));
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_corrupt_page_is_an_error_and_wakes_all_waiters() {
    let counter = shared(4, false);
    counter.write(3).unwrap();
    let mine = EventCounter::from_parts(counter.clone().into_parts().unwrap()).unwrap();
    let reader = mine.reader().unwrap();
    counter.read().unwrap();
    for garbage in [0, 7, (3 << 32) + 4, u64::from(u32::MAX)] {
        counter.core.page.live.word.store(garbage, crate::sync::Ordering::SeqCst);
        assert_eq!(mine.write(1), Err(WriteError::Corrupt));
        assert_eq!(mine.read(), Err(ReadError::Corrupt));
        assert_eq!(mine.try_write(1), Err(WriteError::Corrupt));
        assert_eq!(reader.try_read(), Err(ReadError::Corrupt));
        assert_eq!(mine.signal(), Err(Corrupt));
        assert_eq!(mine.set_maximum(9), Err(SetMaximumError::Corrupt));
        assert_eq!(
            (mine.count(), mine.maximum(), mine.is_overflowed()),
            (Err(Corrupt), Err(Corrupt), Err(Corrupt))
        );
        assert_eq!(levels(&mine), (true, true), "pollers wake up and get the error");
        assert!(format!("{mine:?}").contains("Corrupt"));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_page_that_a_peer_scribbles_on_ends_the_waits() {
    let counter = shared(4, false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| counter.read());
        until_asleep(&counter.core.page.live.readers);
        counter.core.page.live.word.store(7, crate::sync::Ordering::SeqCst);
        assert_eq!(reader.join().unwrap(), Err(ReadError::Corrupt));
    });
}

/// The most system calls of an operation, however a peer changes the word meanwhile.
const CALLS_MAX: u32 = 1000;

/// Changes both levels at every later call of this thread.
fn change_levels_at_every_call(counter: EventCounter, calls: std::rc::Rc<std::cell::Cell<u32>>) {
    calls::after(0, move || {
        calls.set(calls.get() + 1);
        assert!(calls.get() < CALLS_MAX, "it goes on for as long as the peer does");
        let word = if calls.get() % 2 == 0 { 3 << 32 } else { (3 << 32) + 2 };
        counter.core.page.live.word.store(word, crate::sync::Ordering::SeqCst);
        change_levels_at_every_call(counter, calls);
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn a_peer_that_changes_the_levels_all_the_time_keeps_no_call_busy() {
    type Call = fn(&EventCounter);
    let operations: [Call; 7] = [
        |counter| _ = counter.try_write(1),
        |counter| _ = counter.try_read(),
        |counter| _ = counter.signal(),
        |counter| _ = counter.set_maximum(3),
        |counter| _ = counter.read_timeout(Duration::ZERO),
        |counter| _ = counter.write_timeout(2, Duration::ZERO),
        |counter| drop(counter.writer().unwrap()),
    ];
    let mut most = 0;
    for operation in operations {
        let counter = shared(3, false);
        let calls = std::rc::Rc::new(std::cell::Cell::new(0));
        change_levels_at_every_call(counter.clone(), calls.clone());
        operation(&counter);
        most = most.max(calls.get());
        // Stops the changes.
        assert!(!calls::until_death(|| ()));
        let _ = counter.try_read();
        let word = counter.core.word().unwrap();
        assert_eq!(
            levels(&counter),
            (word.is_readable(), word.is_writable()),
            "the next call of anybody mends it"
        );
    }
    assert!(most > 64, "no call was kept busy: {most}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd_create")]
fn marks_that_a_peer_scribbles_cost_calls_and_no_more() {
    let counter = shared(4, false);
    for garbage in [1, u32::MAX, 0x8000_0000] {
        let live = &counter.core.page.live;
        live.exposed.store(garbage, crate::sync::Ordering::SeqCst);
        counter.write(3).unwrap();
        assert!(counter.try_write(1).is_err());
        assert_eq!(counter.read(), Ok(3));
        assert!(counter.try_read().is_err());
    }
}
