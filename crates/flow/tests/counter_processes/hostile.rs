//! A hostile peer uses everything that was sent to it, and the calls of this process must not wait
//! for it.
//!
//! A call that waits makes the test hang: the peer keeps the state that makes the call wait until
//! it learns that the call has returned.

use std::{
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime},
};
use windlass_flow::{CounterParts, EventCounter};

use crate::{child, watch};

/// The argument of a hostile peer.
pub(crate) const ROLE: &str = "hostile";

/// The offset of the state in the page: the word, then the marks and the wait lists.
const STATE: u64 = 64;
const STATE_LEN: u64 = 40;

/// How often the calls are made.
const ROUNDS: u32 = 3000;

/// How often the peer changes its state between two rounds, approximately.
const CHANGES: u64 = 20;

/// Pseudo-random numbers, the same in every run.
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Makes every call that promises not to wait. The peer decides what they return.
fn call_all(counter: &EventCounter) {
    let (reader, writer) = (counter.reader().unwrap(), counter.writer().unwrap());
    for n in [1, 2] {
        let _ = writer.try_write(n);
        let _ = writer.write_timeout(n, Duration::ZERO);
        let _ = counter.signal();
        let _ = counter.set_maximum(4);
        let _ = reader.try_read();
        let _ = reader.read_timeout(Duration::ZERO);
        let _ = reader.read_timeout(Duration::from_micros(10));
    }
    let _ = (counter.count(), counter.maximum(), counter.is_overflowed(), format!("{counter:?}"));
}

fn shared() -> EventCounter {
    EventCounter::builder().maximum(4).shared(true).build().unwrap()
}

/// A single fcntl(2) of a peer was once enough. The other cases are further permanent changes of a
/// side, one by one.
pub(crate) fn clears_nonblock() {
    let changes: [fn(&OwnedFd); 4] = [|_| {}, empty, fill, |fd| expire(fd, 1)];
    for change in changes {
        for semaphore in [false, true] {
            let counter = EventCounter::builder()
                .maximum(4)
                .semaphore(semaphore)
                .shared(true)
                .build()
                .unwrap();
            let theirs = counter.clone().into_parts().unwrap();
            for _ in 0..3 {
                for fd in [&theirs.reader, &theirs.writer] {
                    fcntl_setfl(fd, OFlags::NONBLOCK).unwrap();
                    change(fd);
                    fcntl_setfl(fd, OFlags::empty()).unwrap();
                }
                call_all(&counter);
            }
        }
    }
}

/// Another process makes all changes in any order, and writes random data to the page.
pub(crate) fn does_everything_at_once() {
    let counter = shared();
    let (mut peer, mut socket) = child::start(&counter, &[ROLE]);
    for _ in 0..ROUNDS {
        call_all(&counter);
        socket.write_all(b"!").expect("the peer lives");
    }
    drop(socket);
    watch::forget(&peer);
    assert!(peer.wait().unwrap().success());
}

/// None of these waits while `O_NONBLOCK` is set, for any kind of descriptor.
fn empty(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

/// Fills an eventfd, so that a write waits.
fn fill(fd: &OwnedFd) {
    empty(fd);
    let _ = rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes());
}

/// Makes a timerfd expire at a given moment, repeatedly.
fn expire(fd: &OwnedFd, at: i64) {
    let often = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    let time = Itimerspec { it_interval: often, it_value: Timespec { tv_sec: 0, tv_nsec: at } };
    let _ = timerfd_settime(fd, TimerfdTimerFlags::empty(), &time);
}

/// The work of the peer until its socket is closed.
pub(crate) fn main(parts: CounterParts) {
    let page = parts.page.try_clone().unwrap();
    std::thread::spawn(move || scribble(&page));
    let mut seed = Seed(0x5eed_0005);
    let mut stdin = std::io::stdin().lock();
    let mut told = [0];
    // It keeps the last change until the other side has finished a round.
    while stdin.read(&mut told).unwrap() == 1 {
        for _ in 0..=seed.next() % CHANGES {
            for fd in [&parts.reader, &parts.writer] {
                fcntl_setfl(fd, OFlags::NONBLOCK).unwrap();
                match seed.next() % 4 {
                    0 => empty(fd),
                    1 => fill(fd),
                    2 => expire(fd, 1),
                    _ => expire(fd, 0),
                }
                fcntl_setfl(fd, OFlags::empty()).unwrap();
            }
        }
    }
}

/// Writes random states, valid and invalid ones, as long as the process lives.
fn scribble(page: &OwnedFd) {
    let mut seed = Seed(0x5eed_0007);
    loop {
        let random = seed.next();
        let (maximum, count) = (1 + (random >> 8) % 5, (random >> 16) % 6);
        let (at, value) = match random % 8 {
            0 => (STATE + (random >> 24) % STATE_LEN, random),
            1 => (STATE, random),
            _ => (STATE, (maximum << 32) + count),
        };
        rustix::io::pwrite(page, &value.to_ne_bytes(), at).unwrap();
    }
}
