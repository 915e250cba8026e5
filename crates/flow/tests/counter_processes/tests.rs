//! The tests, and the process that runs them.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Child,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use libtest_mimic::Trial;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, SealFlags},
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
};
use windlass_flow::{CounterParts, CounterReader, CounterWriter, EventCounter, PartsReason};

use crate::{
    child::{read_some, start, write_one},
    hostile,
    watch::{self, within_patience},
};

const WAYS: [&str; 2] = ["blocking", "polling"];

pub(crate) fn all() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, test: Box<dyn FnOnce() + Send>| {
        trials.push(Trial::test(name, move || within_patience(test)));
    };
    for way in WAYS {
        for other in WAYS {
            for semaphore in [false, true] {
                let mode = if semaphore { "semaphore" } else { "draining" };
                let name = |what| format!("{what}::{way}_writer_{other}_reader_{mode}");
                add(name("flow_from_a_process"), Box::new(move || flow_in(way, other, semaphore)));
                add(name("flow_to_a_process"), Box::new(move || flow_out(way, other, semaphore)));
                add(
                    name("writers_killed"),
                    Box::new(move || writers_killed(way, other, semaphore)),
                );
                add(
                    name("readers_killed"),
                    Box::new(move || readers_killed(way, other, semaphore)),
                );
            }
        }
    }
    for what in ["read", "write", "read_timeout", "write_timeout"] {
        add(format!("signals_do_not_end_or_stretch::{what}"), Box::new(move || signals(what)));
    }
    add(
        "a_peer_that_clears_nonblock_makes_no_call_wait".to_owned(),
        Box::new(hostile::clears_nonblock),
    );
    add("a_hostile_peer_makes_no_call_wait".to_owned(), Box::new(hostile::does_everything_at_once));
    trials.push(huge_pages());
    trials
}

/// A page of hugetlbfs is rejected. If no huge page is left, the first access raises `SIGBUS`.
fn huge_pages() -> Trial {
    let name = "a_page_of_huge_pages_is_rejected";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    match rustix::fs::memfd_create("huge", flags) {
        Ok(page) => Trial::test(name, move || {
            // A multiple of every huge page size. No huge page is taken before it is mapped.
            rustix::fs::ftruncate(&page, 1 << 30)?;
            rustix::fs::fcntl_add_seals(&page, SealFlags::SHRINK)?;
            let parts = shared(3, false).into_parts()?;
            let error = EventCounter::from_parts(CounterParts { page, ..parts }).unwrap_err();
            assert_eq!(error.reason, PartsReason::NotSealed);
            Ok(())
        }),
        Err(errno) => Trial::test(format!("{name}, ignored: memfd_create says {errno}"), || Ok(()))
            .with_ignored_flag(true),
    }
}

fn shared(maximum: u32, semaphore: bool) -> EventCounter {
    EventCounter::builder().maximum(maximum).semaphore(semaphore).shared(true).build().unwrap()
}

/// Waits until the process has ended, without reaping it.
fn ended(child: &Child) {
    waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        .unwrap();
}

/// Kills one.
fn kill(mut child: Child) {
    watch::forget(&child);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn succeed(mut child: Child) {
    // It stays in the list until here, because this waits for it.
    ended(&child);
    watch::forget(&child);
    assert!(child.wait().unwrap().success());
}

/// Both sides, exposed at the beginning. Exposing a side reconciles it.
struct Sides(CounterReader, CounterWriter);

impl Sides {
    fn of(counter: &EventCounter) -> Self {
        Self(counter.reader().unwrap(), counter.writer().unwrap())
    }

    /// No operation runs, so the descriptors show the levels of the count.
    fn assert_exact(&self) {
        let mut set = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&self.1, PollFlags::IN)];
        poll(&mut set, Some(&Timespec::default())).unwrap();
        let counter = self.0.counter();
        let (count, maximum) = (counter.count().unwrap(), counter.maximum().unwrap());
        assert_eq!(set[0].revents().contains(PollFlags::IN), count > 0);
        assert_eq!(set[1].revents().contains(PollFlags::IN), count < maximum - 1);
    }
}

const UNITS: u32 = 1500;

/// Two processes write, and this one reads.
fn flow_in(writing: &str, reading: &str, semaphore: bool) {
    let counter = shared(3, semaphore);
    let sides = Sides::of(&counter);
    let units = UNITS.to_string();
    let writers = [0; 2].map(|_| start(&counter, &["write", writing, &units]));
    let reader = counter.reader().unwrap();
    let mut sum = 0;
    while sum < 2 * UNITS {
        let n = read_some(reading, &reader);
        assert!((1..=2).contains(&n));
        sum += n;
    }
    writers.into_iter().for_each(|(child, _socket)| succeed(child));
    assert_eq!((sum, counter.count()), (2 * UNITS, Ok(0)));
    sides.assert_exact();
}

/// This process writes, and another one reads.
fn flow_out(writing: &str, reading: &str, semaphore: bool) {
    let counter = shared(3, semaphore);
    let sides = Sides::of(&counter);
    let (reader, _socket) = start(&counter, &["read", reading, &UNITS.to_string()]);
    let writer = counter.writer().unwrap();
    (0..UNITS).for_each(|_| write_one(writing, &writer));
    succeed(reader);
    assert_eq!(counter.count(), Ok(0));
    sides.assert_exact();
}

/// Pseudo-random numbers, the same in every run.
struct Seed(u64);

impl Seed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The number of processes that die in one test.
const KILLS: u64 = 30;

/// Starts a process, lets it work, and kills it at a random moment. Returns how many units it has
/// reported.
fn kill_one(counter: &EventCounter, role: &[&str], seed: &mut Seed) -> u64 {
    let (mut child, _socket) = start(counter, role);
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    // sleep: the kill should hit a random moment of the other process's work. The test passes at
    // any moment.
    std::thread::sleep(Duration::from_micros(seed.below(2000)));
    kill(child);
    let mut rest = Vec::new();
    1 + stdout.read_to_end(&mut rest).unwrap() as u64
}

/// Writers are killed one after the other, while another process writes and this one reads. The
/// reader never hangs. It gets everything that the survivor wrote, everything that the dead
/// processes had reported, and at most the units that were in flight when they died.
fn writers_killed(writing: &str, reading: &str, semaphore: bool) {
    let counter = shared(4, semaphore);
    let sides = Sides::of(&counter);
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut seed = Seed(0x5eed_0001 + u64::from(semaphore));
    std::thread::scope(|scope| {
        let read_all = || {
            let reader = counter.reader().unwrap();
            while !over.load(SeqCst) {
                let n = read_some(reading, &reader);
                assert!((1..=3).contains(&n), "read {n}");
                received.fetch_add(u64::from(n), SeqCst);
            }
        };
        let reader = scope.spawn(read_all);
        let (mut survivor, socket) = start(&counter, &["write-until-told", writing]);
        let told: u64 = (0..KILLS)
            .map(|_| kill_one(&counter, &["write-until-killed", writing], &mut seed))
            .sum();
        drop(socket);
        let mut line = String::new();
        BufReader::new(survivor.stdout.take().unwrap()).read_line(&mut line).unwrap();
        succeed(survivor);
        let survived: u64 = line.trim().parse().unwrap();
        // This process makes the last attempt. It reconciles the reader's side, even if it is
        // rejected, whatever state the dead processes left. It is rejected if the reader has ended
        // before: in semaphore mode the reader takes one unit at a time, and no other process would
        // make room.
        over.store(true, SeqCst);
        let ours = u64::from(counter.try_write(1).is_ok());
        reader.join().unwrap();
        while let Ok(n) = counter.try_read() {
            received.fetch_add(u64::from(n), SeqCst);
        }
        let from_the_dead = received.load(SeqCst) - survived - ours;
        assert!(
            (told..=told + KILLS).contains(&from_the_dead),
            "{from_the_dead} of {told} and up to {KILLS}"
        );
    });
    sides.assert_exact();
}

/// Readers are killed one after the other, while another process reads and this one writes. The
/// writer never hangs.
fn readers_killed(writing: &str, reading: &str, semaphore: bool) {
    let counter = shared(4, semaphore);
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut seed = Seed(0x5eed_0003 + u64::from(semaphore));
    std::thread::scope(|scope| {
        let write_all = || {
            let writer = counter.writer().unwrap();
            while !over.load(SeqCst) {
                write_one(writing, &writer);
                written.fetch_add(1, SeqCst);
                assert!(counter.count().unwrap() < 4);
            }
        };
        let writer = scope.spawn(write_all);
        // This one continues to the end and is killed then. The writer has ended, so no unit is in
        // flight.
        let (mut survivor, _socket) = start(&counter, &["read-until-killed", reading]);
        let mut stdout = survivor.stdout.take().unwrap();
        let counting = scope.spawn(move || {
            let mut all = Vec::new();
            stdout.read_to_end(&mut all).unwrap() as u64
        });
        let told: u64 = (0..KILLS)
            .map(|_| kill_one(&counter, &["read-until-killed", reading], &mut seed))
            .sum();
        over.store(true, SeqCst);
        writer.join().unwrap();
        kill(survivor);
        let read = told + counting.join().unwrap();
        let left = u64::from(counter.count().unwrap());
        // A draining read takes up to three units, and each dead process may have had one read in
        // flight.
        let missing = written.load(SeqCst) - read - left;
        assert!(missing <= 3 * (KILLS + 1), "{missing} units are missing");
    });
}

/// A waiting process receives signals all the time.
fn signals(what: &str) {
    let counter = shared(4, false);
    if what.starts_with("write") {
        counter.write(3).unwrap();
    }
    let (mut child, _socket) = start(&counter, &["wait-through-signals", what]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = Pid::from_child(&child);
    for round in 0.. {
        kill_process(pid, Signal::USR1).unwrap();
        // sleep: the time between two signals, shorter than any wait of the other process.
        std::thread::sleep(Duration::from_millis(2));
        match what {
            "read" if round == 50 => counter.write(2).unwrap(),
            "write" if round == 50 => drop(counter.read().unwrap()),
            _ => {}
        }
        if let Some(status) = child.try_wait().unwrap() {
            watch::forget(&child);
            assert!(status.success());
            break;
        }
    }
}
