//! Items that several threads send to one loop through a bounded queue.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use crate::alloc::{self, CountMode, counting};
use crate::measured::{Error, Measured};
use crate::protocol::Outcome;
use crate::threads::{self, Padded, wait_until};
use crate::{affinity, clock};

/// Maximum number of sending threads.
const SENDERS_MAX: usize = 8;
/// Number of items between two checks of the queue's length, which reads cache lines that the
/// senders write.
const LOOK_EVERY: u64 = 61;

/// An item.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    sender: u32,
    number: u32,
}

/// The receiver's end of a bounded queue. It is created and runs on one thread.
pub trait QueueSubject: Sized + 'static {
    /// The sender's end.
    type Sender: QueueSender;

    /// Creates a queue on the named backend, with space for `bound` items.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    fn new(backend: &str, bound: usize) -> Result<Self, Error>;

    /// Returns another sender's end.
    fn sender(&self) -> Self::Sender;

    /// Passes every item to [`Sink::take`] on this thread, until [`Sink::is_done`]. Waits while
    /// there is no item.
    ///
    /// # Errors
    ///
    /// If a wait fails.
    fn run(&mut self, sink: &'static Sink) -> Result<(), Error>;
}

/// The sender's end of a [`QueueSubject`].
pub trait QueueSender: Send + 'static {
    /// Sends an item, after waiting for space. The sink is that of [`QueueSubject::run`], for
    /// implementations that send closures.
    ///
    /// # Errors
    ///
    /// If the receiver is gone.
    fn send(&mut self, item: Item, sink: &'static Sink) -> Result<(), Error>;
}

/// The destination of all items, which checks them. Only the loop's thread takes items.
#[derive(Debug)]
pub struct Sink {
    /// The number of the next item, by sender.
    next: [AtomicU64; SENDERS_MAX],
    /// The number of items that each sender has sent.
    sent: [Padded<AtomicU64>; SENDERS_MAX],
    taken: AtomicU64,
    expected: AtomicU64,
    /// Number of items out of their sender's order.
    wrong: AtomicU64,
    queued_max: AtomicU64,
    /// The receiver waits with the first item until this number of items is queued.
    fill: AtomicU64,
    /// Live heap bytes at that time.
    full_bytes: AtomicI64,
    starved: AtomicBool,
}

static SINK: Sink = Sink {
    next: [const { AtomicU64::new(0) }; SENDERS_MAX],
    sent: [const { Padded(AtomicU64::new(0)) }; SENDERS_MAX],
    taken: AtomicU64::new(0),
    expected: AtomicU64::new(0),
    wrong: AtomicU64::new(0),
    queued_max: AtomicU64::new(0),
    fill: AtomicU64::new(0),
    full_bytes: AtomicI64::new(0),
    starved: AtomicBool::new(false),
};

impl Sink {
    fn reset(&self, expected: u64, fill: u64) {
        self.next.iter().for_each(|next| next.store(0, Ordering::Relaxed));
        self.sent.iter().for_each(|sent| sent.0.store(0, Ordering::Relaxed));
        self.full_bytes.store(0, Ordering::Relaxed);
        for zero in [&self.taken, &self.wrong, &self.queued_max] {
            zero.store(0, Ordering::Relaxed);
        }
        self.expected.store(expected, Ordering::Relaxed);
        self.fill.store(fill, Ordering::Relaxed);
        self.starved.store(false, Ordering::Relaxed);
    }

    /// Takes an item out of the queue.
    #[inline]
    pub fn take(&self, item: Item) {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken.is_multiple_of(LOOK_EVERY) {
            self.look(taken);
        }
        let next = &self.next[item.sender as usize];
        let number = next.load(Ordering::Relaxed);
        if number != u64::from(item.number) {
            self.wrong.store(self.wrong.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        next.store(u64::from(item.number) + 1, Ordering::Relaxed);
        self.taken.store(taken + 1, Ordering::Relaxed);
    }

    /// Returns whether all items have been taken.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == self.expected.load(Ordering::Relaxed)
    }

    /// Returns the number of queued items, without the one that is being taken.
    fn queued(&self, taken: u64) -> u64 {
        let sent: u64 = self.sent.iter().map(|sent| sent.0.load(Ordering::Acquire)).sum();
        // A sender counts an item after its call, and the item may have been taken before.
        sent.saturating_sub(taken + 1)
    }

    #[cold]
    fn look(&self, taken: u64) {
        let fill = self.fill.swap(0, Ordering::Relaxed);
        if fill > 0 {
            if wait_until("full queue", || self.queued(taken) + 1 >= fill).is_err() {
                self.starved.store(true, Ordering::Relaxed);
            }
            self.full_bytes.store(alloc::counts().live_bytes, Ordering::Relaxed);
        }
        self.queued_max.fetch_max(self.queued(taken), Ordering::Relaxed);
    }

    fn check(&self, bound: usize) -> Result<(), Error> {
        let (wrong, queued_max) =
            (self.wrong.load(Ordering::Relaxed), self.queued_max.load(Ordering::Relaxed));
        if wrong != 0 {
            return Err(format!("{wrong} items did not come in their sender's order").into());
        }
        if queued_max > bound as u64 {
            return Err(format!("{queued_max} items were queued at a bound of {bound}").into());
        }
        if self.starved.load(Ordering::Relaxed) {
            return Err(format!("the queue was not filled to its bound of {bound}").into());
        }
        Ok(())
    }
}

pub(super) struct Post<Q> {
    senders: usize,
    bound: usize,
    backend: String,
    allocations_per_item: f64,
    full_bytes: f64,
    subject: PhantomData<Q>,
}

impl<Q: QueueSubject> Post<Q> {
    pub(super) fn new(senders: usize, bound: usize, backend: &str) -> Result<Self, Error> {
        if senders == 0 || senders > SENDERS_MAX {
            return Err(format!("{senders} senders, not 1 to {SENDERS_MAX}").into());
        }
        let (backend, subject) = (backend.into(), PhantomData);
        let mut case =
            Self { senders, bound, backend, allocations_per_item: 0.0, full_bytes: 0.0, subject };
        let _counting = counting(CountMode::AnyThread);
        let before = alloc::counts();
        // The queue is filled once, and then passed ten times.
        let (items, _) = case.run(10 * bound as u64, bound as u64)?;
        // Both counts may miss a few allocations, the same number in both.
        case.full_bytes = (SINK.full_bytes.load(Ordering::Relaxed) - before.live_bytes) as f64;
        case.allocations_per_item =
            (alloc::counts().allocations - before.allocations) as f64 / items as f64;
        Ok(case)
    }

    /// Sends at least this number of items, the same number for each sender. Returns the number of
    /// items, and the time from the first call to the last taken item in nanoseconds.
    fn run(&self, items: u64, fill: u64) -> Result<(u64, u64), Error> {
        let items = items.next_multiple_of(self.senders as u64);
        let mut subject = Q::new(&self.backend, self.bound)?;
        SINK.reset(items, fill);
        let start = Arc::new(Barrier::new(self.senders + 1));
        let threads: Vec<JoinHandle<Result<(), String>>> = (0..self.senders as u32)
            .map(|sender| {
                let (end, start, count) =
                    (subject.sender(), Arc::clone(&start), items / self.senders as u64);
                std::thread::spawn(move || {
                    affinity::pin_away();
                    start.wait();
                    send(end, sender, count as u32).map_err(|error| error.to_string())
                })
            })
            .collect();
        start.wait();
        let started = clock::now_ns();
        subject.run(&SINK)?;
        let ns = clock::now_ns() - started;
        threads.into_iter().try_for_each(threads::join)?;
        SINK.check(self.bound)?;
        Ok((items, ns))
    }
}

fn send(mut end: impl QueueSender, sender: u32, count: u32) -> Result<(), Error> {
    let sent = &SINK.sent[sender as usize].0;
    for number in 0..count {
        end.send(Item { sender, number }, &SINK)?;
        sent.store(u64::from(number) + 1, Ordering::Release);
    }
    Ok(())
}

impl<Q: QueueSubject> Measured for Post<Q> {
    /// A round is an item.
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let _counting = counting(CountMode::Not);
        let (items, ns) = self.run(rounds, 0)?;
        let gauges = [
            ("allocations_per_item", self.allocations_per_item),
            ("full_bytes", self.full_bytes),
            ("queue_len_max", SINK.queued_max.load(Ordering::Relaxed) as f64),
        ];
        let gauges = gauges.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Outcome { ns, units: items, gauges, ..Outcome::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sink_finds_what_is_out_of_order_or_too_much() {
        SINK.reset(3, 0);
        SINK.sent[1].0.store(5, Ordering::Relaxed);
        SINK.take(Item { sender: 1, number: 0 });
        assert!(SINK.check(4).is_ok());
        assert!(SINK.check(3).is_err(), "five were sent and one is in hand");
        SINK.take(Item { sender: 0, number: 0 });
        assert!(!SINK.is_done());
        SINK.take(Item { sender: 1, number: 2 });
        assert!(SINK.is_done());
        assert!(SINK.check(4).is_err(), "number one is missing");
    }
}
