//! Many writers and readers: totals are exact, the maximum holds, and the levels are right when no
//! operation runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use windlass_flow::{CounterReader, CounterWriter, EventCounter, ReadError, WriteError};

use crate::bed::{KINDS, Kind, Sides, counters, wait_readable, wait_writable};

/// The approximate number of units that all writers of one run write together.
const UNITS: u32 = 1200;

/// The way in which a thread waits.
#[derive(Clone, Copy, Debug)]
enum Way {
    Blocking,
    Polling,
}

fn write(way: Way, writer: &CounterWriter, n: u32) {
    match way {
        Way::Blocking => writer.write(n).unwrap(),
        // The level indicates room for one unit. A writer of several would spin.
        Way::Polling => (0..n).for_each(|_| {
            loop {
                wait_writable(writer);
                match writer.try_write(1) {
                    Ok(()) => break,
                    Err(error) => assert_eq!(error, WriteError::WouldBlock),
                }
            }
        }),
    }
}

fn read(way: Way, reader: &CounterReader) -> u32 {
    match way {
        Way::Blocking => reader.read().unwrap(),
        Way::Polling => loop {
            wait_readable(reader);
            match reader.try_read() {
                Ok(n) => return n,
                Err(error) => assert_eq!(error, ReadError::WouldBlock),
            }
        },
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    kind: Kind,
    semaphore: bool,
    maximum: u32,
    writers: u32,
    readers: u32,
    writing: Way,
    reading: Way,
}

impl Run {
    fn run(self) {
        let (for_readers, for_writers) = counters(self.kind, self.maximum, 0, self.semaphore);
        let polled = |way| matches!(way, Way::Polling);
        let sides =
            (polled(self.writing) || polled(self.reading)).then(|| Sides::new(&for_readers));
        let each = UNITS / self.writers;
        let total = u64::from(each * self.writers);
        let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..self.readers)
                .map(|_| scope.spawn(|| self.reader(&for_readers, &received, &over, total)))
                .collect();
            let writers: Vec<_> = (0..self.writers)
                .map(|seed| {
                    scope.spawn({
                        let counter = &for_writers;
                        move || self.writer(counter, each, seed)
                    })
                })
                .collect();
            writers.into_iter().for_each(|thread| thread.join().unwrap());
            while !over.load(SeqCst) {
                // In this order: the last reader says that all is over, and ends.
                let is_read = readers.iter().any(|thread| !thread.is_finished());
                assert!(is_read || over.load(SeqCst), "{self:?}: the readers are gone");
                std::thread::yield_now();
            }
            assert_eq!(for_readers.count(), Ok(0), "{self:?}");
            // The other readers still wait.
            while readers.iter().any(|thread| !thread.is_finished()) {
                for_writers.signal().unwrap();
                std::thread::yield_now();
            }
        });
        assert_eq!(received.load(SeqCst), total, "{self:?}");
        if let Some(sides) = sides {
            sides.assert_exact();
            while for_readers.try_read().is_ok() {}
            sides.assert_exact();
        }
    }

    fn writer(self, counter: &EventCounter, units: u32, seed: u32) {
        let writer = writer_if(self.writing, counter);
        let mut left = units;
        let mut size = seed;
        while left > 0 {
            // One to maximum - 1 units at a time.
            size = (size + 1) % (self.maximum - 1);
            let n = (size + 1).min(left);
            match &writer {
                Some(writer) => write(self.writing, writer, n),
                None => counter.write(n).unwrap(),
            }
            left -= n;
            assert!(counter.count().unwrap() < self.maximum, "{self:?}: above the maximum");
        }
    }

    fn reader(self, counter: &EventCounter, received: &AtomicU64, over: &AtomicBool, total: u64) {
        let reader = reader_if(self.reading, counter);
        while !over.load(SeqCst) {
            let n = match &reader {
                Some(reader) => read(self.reading, reader),
                None => counter.read().unwrap(),
            };
            if over.load(SeqCst) {
                return;
            }
            assert!(n < self.maximum && (n == 1 || !self.semaphore), "{self:?}: read {n}");
            let sum = received.fetch_add(u64::from(n), SeqCst) + u64::from(n);
            assert!(sum <= total, "{self:?}: {sum} of {total}");
            over.fetch_or(sum == total, SeqCst);
        }
    }
}

/// Each side is exposed only if a thread polls it.
fn reader_if(way: Way, counter: &EventCounter) -> Option<CounterReader> {
    matches!(way, Way::Polling).then(|| counter.reader().unwrap())
}

fn writer_if(way: Way, counter: &EventCounter) -> Option<CounterWriter> {
    matches!(way, Way::Polling).then(|| counter.writer().unwrap())
}

fn stress(writers: u32, readers: u32) {
    use Way::{Blocking, Polling};
    for (writing, reading) in
        [(Blocking, Blocking), (Polling, Polling), (Blocking, Polling), (Polling, Blocking)]
    {
        for kind in KINDS {
            for semaphore in [false, true] {
                for maximum in [2, 3, 10] {
                    Run { kind, semaphore, maximum, writers, readers, writing, reading }.run();
                }
            }
        }
    }
}

#[test]
fn one_writer_and_one_reader() {
    stress(1, 1);
}

#[test]
fn three_writers_and_two_readers() {
    stress(3, 2);
}

#[test]
fn eight_writers_and_one_reader() {
    stress(8, 1);
}

#[test]
fn levels_are_exact_after_every_storm() {
    // Short bursts of operations that do not wait, with a check after each.
    for kind in KINDS {
        let (counter, again) = counters(kind, 3, 0, false);
        let sides = Sides::new(&counter);
        for round in 0..300 {
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let counter = if thread == 0 { &counter } else { &again };
                    scope.spawn(move || {
                        for step in 0..20 {
                            match (round + thread + step) % 5 {
                                0 | 1 => drop(counter.try_write(1)),
                                2 => drop(counter.try_read()),
                                3 => drop(counter.signal()),
                                _ => drop(counter.set_maximum(3 + (step + thread) % 3)),
                            }
                        }
                    });
                }
            });
            sides.assert_exact();
        }
    }
}
