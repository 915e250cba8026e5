//! Models of the counter: no wake is lost, by futex, level or edge. The count never exceeds the
//! maximum. The levels are exact when no operation runs.

use loom::thread;
use windlass_flow::{CounterReader, CounterWriter, EventCounter, ReadError, WriteError};

/// Runs a model in all interleavings with at most this many preempted threads. Most errors need
/// two.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn counter(maximum: u32, initial: u32, semaphore: bool) -> EventCounter {
    EventCounter::builder().maximum(maximum).initial(initial).semaphore(semaphore).build().unwrap()
}

/// Reads until the sum is `total`.
fn read_blocking(counter: &EventCounter, total: u32) {
    let mut sum = 0;
    while sum < total {
        let n = counter.read().unwrap();
        assert!(n < counter.maximum().unwrap());
        sum += n;
    }
    assert_eq!(sum, total);
}

/// The same with poll(2).
fn read_polling(reader: &CounterReader, total: u32) {
    let mut sum = 0;
    while sum < total {
        match reader.try_read() {
            Ok(n) => sum += n,
            Err(e) => {
                assert_eq!(e, ReadError::WouldBlock);
                reader.wait_ready();
            }
        }
    }
    assert_eq!(sum, total);
}

fn write_polling(writer: &CounterWriter, n: u32, times: u32) {
    for _ in 0..times {
        while let Err(e) = writer.try_write(n) {
            assert_eq!(e, WriteError::WouldBlock);
            writer.wait_ready();
        }
    }
}

/// The same with epoll(7), edge-triggered.
fn write_by_edges(writer: &CounterWriter, n: u32) {
    loop {
        let seen = writer.edges();
        match writer.try_write(n) {
            Ok(()) => return,
            Err(e) => assert_eq!(e, WriteError::WouldBlock),
        }
        writer.wait_edge(seen);
    }
}

fn read_by_edges(reader: &CounterReader) -> u32 {
    loop {
        let seen = reader.edges();
        match reader.try_read() {
            Ok(n) => return n,
            Err(e) => assert_eq!(e, ReadError::WouldBlock),
        }
        reader.wait_edge(seen);
    }
}

/// Both sides, exposed at the beginning. Exposing a side reconciles it, which would repair a state
/// that a test looks for.
struct Sides(CounterReader, CounterWriter);

impl Sides {
    fn of(counter: &EventCounter) -> Self {
        Self(counter.reader().unwrap(), counter.writer().unwrap())
    }

    /// No operation runs now, so the descriptors show the levels of the count.
    fn assert_at_rest(&self) {
        let counter = self.0.counter();
        let (count, maximum) = (counter.count().unwrap(), counter.maximum().unwrap());
        assert_eq!(self.0.is_ready(), count > 0, "reader's side at {count} of {maximum}");
        assert_eq!(self.1.is_ready(), count < maximum - 1, "writer's side at {count} of {maximum}");
    }
}

#[test]
fn a_blocking_pair_loses_no_wake() {
    model(3, || {
        let counter = counter(2, 0, false);
        let writer = counter.clone();
        let thread = thread::spawn(move || (0..3).for_each(|_| writer.write(1).unwrap()));
        read_blocking(&counter, 3);
        thread.join().unwrap();
        assert_eq!(counter.count(), Ok(0));
    });
}

#[test]
fn two_blocking_writers_and_a_reader_lose_no_wake() {
    model(2, || {
        let counter = counter(2, 0, false);
        let writers: Vec<_> = (0..2)
            .map(|_| counter.clone())
            .map(|c| thread::spawn(move || c.write(1).unwrap()))
            .collect();
        read_blocking(&counter, 2);
        writers.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(counter.count(), Ok(0));
    });
}

#[test]
fn two_blocking_readers_and_a_writer_lose_no_wake() {
    model(2, || {
        let counter = counter(3, 0, true);
        let readers: Vec<_> = (0..2)
            .map(|_| counter.clone())
            .map(|c| thread::spawn(move || c.read().unwrap()))
            .collect();
        counter.write(2).unwrap();
        readers.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1));
        assert_eq!(counter.count(), Ok(0));
    });
}

#[test]
fn a_freed_unit_wakes_the_writer_that_can_use_it() {
    // After one read there is room for the writer of one unit, but not for the writer of two.
    // Waking a single writer could wake the wrong one.
    model(2, || {
        let counter = counter(4, 3, true);
        let (one, two) = (counter.clone(), counter.clone());
        let two = thread::spawn(move || two.write(2).unwrap());
        let one = thread::spawn(move || one.write(1).unwrap());
        assert_eq!(counter.read(), Ok(1));
        one.join().unwrap();
        assert_eq!(counter.read(), Ok(1));
        assert_eq!(counter.read(), Ok(1));
        two.join().unwrap();
        assert_eq!(counter.count(), Ok(3));
    });
}

#[test]
fn a_higher_maximum_lets_a_blocked_writer_go_on() {
    model(3, || {
        let counter = counter(2, 1, false);
        let writer = counter.clone();
        let thread = thread::spawn(move || writer.write(1));
        counter.set_maximum(3).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_lower_maximum_rejects_a_blocked_writer() {
    model(3, || {
        let counter = counter(4, 1, false);
        let writer = counter.clone();
        let thread = thread::spawn(move || writer.write(3));
        counter.set_maximum(3).unwrap();
        assert_eq!(thread.join().unwrap(), Err(WriteError::TooLarge));
    });
}

#[test]
fn a_signal_wakes_a_blocked_reader() {
    model(3, || {
        let counter = counter(1, 0, false);
        let reader = counter.clone();
        let thread = thread::spawn(move || reader.read());
        assert_eq!(counter.signal(), Ok(true));
        assert_eq!(thread.join().unwrap(), Ok(1));
    });
}

#[test]
fn a_polling_pair_loses_no_wake() {
    model(2, || {
        let counter = counter(2, 0, false);
        let sides = Sides::of(&counter);
        let (reader, writer) = (sides.0.clone(), sides.1.clone());
        let thread = thread::spawn(move || write_polling(&writer, 1, 2));
        read_polling(&reader, 2);
        thread.join().unwrap();
        sides.assert_at_rest();
    });
}

#[test]
fn an_addition_while_a_side_is_exposed_is_not_lost() {
    model(3, || {
        let counter = counter(2, 0, false);
        let writer = counter.clone();
        let thread = thread::spawn(move || writer.write(1).unwrap());
        let reader = counter.reader().unwrap();
        reader.wait_ready();
        assert_eq!(reader.try_read(), Ok(1));
        thread.join().unwrap();
        assert!(!reader.is_ready());
    });
}

#[test]
fn a_removal_while_a_side_is_exposed_is_not_lost() {
    model(3, || {
        let counter = counter(2, 1, false);
        let reader = counter.clone();
        let thread = thread::spawn(move || reader.read().unwrap());
        let writer = counter.writer().unwrap();
        writer.wait_ready();
        assert_eq!(writer.try_write(1), Ok(()));
        thread.join().unwrap();
        assert!(!writer.is_ready());
    });
}

#[test]
fn two_threads_may_expose_the_same_side() {
    model(2, || {
        let counter = counter(3, 1, false);
        let other = counter.clone();
        let thread = thread::spawn(move || {
            let reader = other.reader().unwrap();
            reader.wait_ready();
        });
        let reader = counter.reader().unwrap();
        reader.wait_ready();
        thread.join().unwrap();
        assert_eq!(reader.try_read(), Ok(1));
        assert!(!reader.is_ready());
    });
}

#[test]
fn at_rest_the_levels_are_those_of_the_count() {
    model(2, || {
        let counter = counter(2, 0, false);
        let sides = Sides::of(&counter);
        let (a, b) = (counter.clone(), counter.clone());
        let a = thread::spawn(move || {
            let _ = a.try_write(1);
            let _ = a.try_read();
        });
        let b = thread::spawn(move || {
            let _ = b.try_write(1);
        });
        let _ = counter.try_read();
        a.join().unwrap();
        b.join().unwrap();
        sides.assert_at_rest();
    });
}

#[test]
fn at_rest_the_levels_are_those_of_the_last_maximum() {
    model(2, || {
        let counter = counter(2, 0, true);
        let sides = Sides::of(&counter);
        let (a, b) = (counter.clone(), counter.clone());
        let a = thread::spawn(move || a.set_maximum(4).unwrap());
        let b = thread::spawn(move || {
            let _ = b.set_maximum(2);
        });
        counter.signal().unwrap();
        a.join().unwrap();
        b.join().unwrap();
        sides.assert_at_rest();
    });
}

#[test]
fn a_rejected_writer_gets_an_edge() {
    // The reader may make the level writable before it was ever shown as not writable.
    model(2, || {
        let counter = counter(2, 0, false);
        let sides = Sides::of(&counter);
        let writer = sides.1.clone();
        let (filler, reader) = (counter.clone(), counter.clone());
        let filler = thread::spawn(move || filler.try_write(1).is_ok());
        let drainer = thread::spawn(move || reader.read().unwrap());
        write_by_edges(&writer, 1);
        let filled = filler.join().unwrap();
        drainer.join().unwrap();
        assert_eq!(counter.count(), Ok(u32::from(filled)));
        sides.assert_at_rest();
    });
}

#[test]
fn a_rejected_writer_of_several_gets_an_edge_although_the_level_stays() {
    model(3, || {
        let counter = counter(4, 2, false);
        let sides = Sides::of(&counter);
        let writer = sides.1.clone();
        let reader = counter.clone();
        let thread = thread::spawn(move || reader.read().unwrap());
        write_by_edges(&writer, 2);
        thread.join().unwrap();
        assert_eq!(counter.count(), Ok(2));
        sides.assert_at_rest();
    });
}

/// One read makes room for both, and no other follows.
#[test]
fn one_read_gives_two_rejected_writers_of_several_their_edges() {
    model(2, || {
        let counter = counter(6, 4, false);
        let sides = Sides::of(&counter);
        let writers = [sides.1.clone(), sides.1.clone()];
        let threads = writers.map(|writer| thread::spawn(move || write_by_edges(&writer, 2)));
        assert_eq!(counter.read(), Ok(4));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(counter.count(), Ok(4));
        sides.assert_at_rest();
    });
}

#[test]
fn two_rejected_writers_of_several_get_their_edges() {
    model(2, || {
        let counter = counter(4, 2, true);
        let sides = Sides::of(&counter);
        let writer = sides.1.clone();
        let (reader, other) = (counter.clone(), writer.clone());
        let thread = thread::spawn(move || (0..3).for_each(|_| assert_eq!(reader.read(), Ok(1))));
        let other = thread::spawn(move || write_by_edges(&other, 2));
        write_by_edges(&writer, 2);
        thread.join().unwrap();
        other.join().unwrap();
        assert_eq!(counter.count(), Ok(3));
        sides.assert_at_rest();
    });
}

#[test]
fn a_rejected_reader_gets_an_edge() {
    model(3, || {
        let counter = counter(3, 0, false);
        let sides = Sides::of(&counter);
        let reader = sides.0.clone();
        let writer = counter.clone();
        let thread = thread::spawn(move || (0..2).for_each(|_| writer.write(1).unwrap()));
        let mut sum = 0;
        while sum < 2 {
            sum += read_by_edges(&reader);
        }
        thread.join().unwrap();
        assert_eq!(sum, 2);
        sides.assert_at_rest();
    });
}
