//! The latch in a foreign event loop: epoll(7) watches its descriptor edge-triggered, and it is
//! never read.

#![cfg(not(loom))]

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::event::{Timespec, epoll};
use windlass_flow::Latch;

/// A loop that waits for a latch, and counts its sleeps.
struct Loop<'l> {
    latch: &'l Latch,
    epoll: OwnedFd,
    sleeps: u64,
}

impl<'l> Loop<'l> {
    fn new(latch: &'l Latch) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, latch, epoll::EventData::new_u64(7), flags).unwrap();
        Self { latch, epoll, sleeps: 0 }
    }

    /// The number of events within this many seconds.
    fn events(&self, seconds: i64) -> usize {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 4];
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        epoll::wait(&self.epoll, &mut events[..], Some(&timeout)).unwrap()
    }

    /// Waits for a wake and takes it.
    fn turn(&mut self) {
        if self.latch.sleep() {
            self.sleeps += 1;
            // A minute stands for forever. Nothing else would wake this loop.
            assert_eq!(self.events(60), 1, "a wake was lost in sleep {}", self.sleeps);
        }
        self.latch.awake();
    }
}

/// How often the latch's descriptor was written: each write adds one, and it is never read. From
/// fdinfo in proc(5).
fn rings(latch: &Latch) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", latch.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("eventfd-count:"))
        .expect("it is an eventfd");
    u64::from_str_radix(count.trim(), 16).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn of_a_million_wakes_none_is_lost_and_only_sleepers_are_rung() {
    for threads in 1..=4 {
        let latch = Latch::new().unwrap();
        let each = 1_000_000 / threads;
        let left = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..each {
                        // Relaxed, because the latch orders it with the wake.
                        left.fetch_add(1, Ordering::Relaxed);
                        latch.wake();
                    }
                });
            }
            let mut owner = Loop::new(&latch);
            let mut seen = 0;
            while seen < each * threads {
                owner.turn();
                seen += left.swap(0, Ordering::Relaxed);
            }
            // The last wakes may not have written yet. Each sleep gets at most one write.
            assert!(
                rings(&latch) <= owner.sleeps,
                "{} rings of {} sleeps",
                rings(&latch),
                owner.sleeps
            );
        });
    }
}

/// The wakers wait until the owner has seen the last wake. So the owner is asleep before nearly
/// every wake.
#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn wakes_one_at_a_time_find_the_owner_falling_asleep() {
    for threads in 1..=4 {
        let latch = Latch::new().unwrap();
        let (asked, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let rounds = 20_000;
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let round = seen.load(Ordering::Acquire);
                        if round >= rounds {
                            break;
                        }
                        // The first thread starts the round, and all threads wake the owner.
                        let _ = asked.compare_exchange(
                            round,
                            round + 1,
                            Ordering::Relaxed,
                            Ordering::Relaxed,
                        );
                        latch.wake();
                        while seen.load(Ordering::Acquire) == round {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut owner = Loop::new(&latch);
            while seen.load(Ordering::Relaxed) < rounds {
                owner.turn();
                seen.store(asked.load(Ordering::Relaxed), Ordering::Release);
            }
            assert!(rings(&latch) <= owner.sleeps);
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no /proc")]
fn each_sleep_is_rung_once_by_however_many() {
    let latch = Latch::new().unwrap();
    let owner = Loop::new(&latch);
    for round in 1..=500 {
        assert!(latch.sleep());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| latch.wake());
            }
        });
        assert_eq!(rings(&latch), round);
        assert_eq!(owner.events(60), 1, "each write is a new edge");
        assert!(latch.awake());
        assert_eq!(
            owner.events(0),
            0,
            "one event for one ring, although the descriptor is still readable"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no /proc")]
fn a_running_owner_is_never_rung() {
    let latch = Latch::new().unwrap();
    let owner = Loop::new(&latch);
    // Another event has ended the owner's wait.
    assert!(latch.sleep());
    assert!(!latch.awake());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10_000).for_each(|_| latch.wake()));
        }
    });
    assert!(latch.is_woken());
    assert!(!latch.sleep());
    assert_eq!((rings(&latch), owner.events(0)), (0, 0));
    assert!(latch.awake());
    assert!(!latch.awake());
}

#[test]
fn a_wake_of_ones_own_keeps_the_owner_from_sleeping() {
    let latch = Latch::new().unwrap();
    latch.wake();
    assert!(!latch.sleep());
    assert!(latch.awake());
    assert!(latch.sleep());
    latch.wake();
    assert!(latch.awake(), "the owner was asleep only according to the latch");
    latch.clear();
    assert!(!latch.wait(Some(Duration::ZERO)), "what was rung is cleared");
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn a_waiting_owner_misses_no_wake() {
    for threads in 1..=4 {
        let latch = Latch::new().unwrap();
        let left = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        left.fetch_add(1, Ordering::Relaxed);
                        latch.wake();
                    }
                });
            }
            let (mut seen, start) = (0, Instant::now());
            while seen < threads * 50_000 {
                // A minute stands for forever. Nothing else would wake this owner.
                latch.wait(Some(Duration::from_secs(60)));
                assert!(start.elapsed() < Duration::from_secs(60), "a wake was lost");
                seen += left.swap(0, Ordering::Relaxed);
            }
        });
    }
}

#[test]
fn a_wait_ends_with_its_time() {
    let latch = Latch::new().unwrap();
    let (start, timeout) = (Instant::now(), Duration::from_millis(20));
    // A signal may end it earlier.
    while start.elapsed() < timeout {
        assert!(!latch.wait(Some(timeout)));
    }
    latch.wake();
    assert!(latch.wait(Some(Duration::MAX)), "a time that no clock reaches");
}
