//! Blocking calls and the events that end them, and edges for edge-triggered pollers.

use std::time::{Duration, Instant};

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
};
use windlass_flow::{EventCounter, ReadError, WriteError};

use crate::bed::{KINDS, counters, room_of, spawn_asleep};

#[test]
fn a_blocked_writer_is_woken_by_a_read() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 4, 3, false);
        std::thread::scope(|scope| {
            let writer = spawn_asleep(scope, || counter.write(2));
            assert_eq!(again.read(), Ok(3));
            assert_eq!(writer.join().unwrap(), Ok(()));
        });
        assert_eq!(again.count(), Ok(2));
    }
}

#[test]
fn a_blocked_reader_is_woken_by_a_write_and_by_a_signal() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 4, 0, false);
        std::thread::scope(|scope| {
            let reader = spawn_asleep(scope, || counter.read());
            again.write(2).unwrap();
            assert_eq!(reader.join().unwrap(), Ok(2));
            let reader = spawn_asleep(scope, || counter.read_timeout(Duration::MAX));
            again.signal().unwrap();
            assert_eq!(reader.join().unwrap(), Ok(1));
        });
    }
}

#[test]
fn a_blocked_writer_goes_on_when_the_maximum_rises() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 4, 3, false);
        std::thread::scope(|scope| {
            let writer = spawn_asleep(scope, || counter.write_timeout(2, Duration::MAX));
            again.set_maximum(6).unwrap();
            assert_eq!(writer.join().unwrap(), Ok(()));
        });
        assert_eq!(again.count(), Ok(5));
    }
}

#[test]
fn a_blocked_writer_fails_when_the_maximum_falls_to_its_number() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 10, 3, false);
        std::thread::scope(|scope| {
            let writer = spawn_asleep(scope, || counter.write(8));
            again.set_maximum(8).unwrap();
            assert_eq!(writer.join().unwrap(), Err(WriteError::TooLarge));
        });
        assert_eq!(again.count(), Ok(3));
    }
}

#[test]
fn in_semaphore_mode_every_freed_unit_wakes_a_writer_of_several() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 5, 4, true);
        std::thread::scope(|scope| {
            let three = spawn_asleep(scope, || counter.write(3));
            let two = spawn_asleep(scope, || counter.write(2));
            // Two units make room for two, and three more for three. A writer that was woken too
            // early sleeps again.
            (0..2).for_each(|_| assert_eq!(again.read(), Ok(1)));
            assert_eq!(two.join().unwrap(), Ok(()));
            (0..3).for_each(|_| assert_eq!(again.read(), Ok(1)));
            assert_eq!(three.join().unwrap(), Ok(()));
        });
        assert_eq!(again.count(), Ok(4));
    }
}

#[test]
fn timed_waits_last_as_long_as_they_should() {
    let wait = Duration::from_millis(250);
    for kind in KINDS {
        let (counter, _again) = counters(kind, 2, 1, false);
        let start = Instant::now();
        assert_eq!(counter.write_timeout(1, wait), Err(WriteError::TimedOut));
        assert!(start.elapsed() >= wait);
        assert_eq!(counter.read(), Ok(1));
        let start = Instant::now();
        assert_eq!(counter.read_timeout(wait), Err(ReadError::TimedOut));
        assert!(start.elapsed() >= wait);
    }
}

/// An epoll set with one descriptor, edge-triggered.
struct Edges(std::os::fd::OwnedFd);

impl Edges {
    fn new(fd: impl std::os::fd::AsFd, flags: epoll::EventFlags) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, fd, epoll::EventData::new_u64(0), flags | epoll::EventFlags::ET)
            .unwrap();
        Self(epoll)
    }

    fn has_one(&self) -> bool {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
        epoll::wait(&self.0, spare_capacity(&mut events), Some(&Timespec::default())).unwrap() == 1
    }
}

#[test]
fn a_rejected_writer_gets_an_edge_whenever_there_is_more_room() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 8, 6, true);
        let writer = counter.writer().unwrap();
        let edges = Edges::new(
            &writer,
            epoll::EventFlags::from_bits_retain(room_of(&writer).bits().into()),
        );
        assert!(edges.has_one(), "writable from the start");
        assert!(!edges.has_one());
        // There is room for one, so the level never changes. But there is no room for three.
        for _ in 0..2 {
            assert_eq!(writer.try_write(3), Err(WriteError::WouldBlock));
            assert!(!edges.has_one(), "its own rejection is none");
            again.read().unwrap();
            assert!(edges.has_one());
        }
        writer.try_write(3).unwrap();
        assert_eq!(writer.try_write(1), Err(WriteError::WouldBlock));
        assert!(!edges.has_one());
        again.set_maximum(9).unwrap();
        assert!(edges.has_one());
    }
}

#[test]
fn a_rejected_reader_gets_an_edge_with_the_next_unit() {
    for kind in KINDS {
        let (counter, again) = counters(kind, 8, 0, false);
        let reader = counter.reader().unwrap();
        let edges = Edges::new(&reader, epoll::EventFlags::IN);
        for _ in 0..3 {
            assert_eq!(reader.try_read(), Err(ReadError::WouldBlock));
            assert!(!edges.has_one());
            again.write(1).unwrap();
            assert!(edges.has_one());
            reader.try_read().unwrap();
        }
    }
}

#[test]
fn clones_are_one_counter() {
    let counter = EventCounter::new(4).unwrap();
    let writer = counter.writer().unwrap();
    let reader = counter.clone().reader().unwrap();
    writer.clone().write(1).unwrap();
    assert!(writer.signal().unwrap());
    assert_eq!(reader.read_timeout(Duration::ZERO), Ok(2));
    assert_eq!(writer.write_timeout(4, Duration::ZERO), Err(WriteError::TooLarge));
    assert_eq!(writer.counter().count(), reader.counter().count());
}
