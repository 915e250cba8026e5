//! A loop that leaves computation to threads: a channel sends requests, and a mailbox receives the
//! answers.
//!
//! It shows:
//! - A `Mailbox` is a descriptor like any other. Its handler drains a number of answers and rearms
//!   the latch. While the loop is busy, senders make no system call to wake it.
//! - The mailbox is bounded. Workers that are faster than the loop wait.
//!
//! The loop keeps the orders in a `Group`, whose members all get `&mut Dispatcher`. A worker
//! factors numbers, which takes long and must not block the loop.
//!
//! Run it with `cargo run --example worker_pool`, and its tests with
//! `cargo test --example worker_pool`.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use windlass::{Group, Turn, interest};
use windlass_flow::{Bounds, Latch, Mailbox, Sender, mailbox};

/// Maximum number of answers in the mailbox.
const ANSWERS_MAX: usize = 16;
/// Maximum number of answers per call of the handler.
const ANSWERS_PER_CALL: usize = 8;

struct Answer {
    number: u64,
    factors: Vec<u64>,
}

/// Returns the prime factors of a number by trial division, which is slow on purpose.
fn factor(mut number: u64) -> Vec<u64> {
    let mut factors = Vec::new();
    let mut divisor = 2;
    while divisor * divisor <= number {
        while number.is_multiple_of(divisor) {
            factors.push(divisor);
            number /= divisor;
        }
        divisor += 1;
    }
    if number > 1 {
        factors.push(number);
    }
    factors
}

/// Takes numbers until there are no more, or until the mailbox is closed.
fn work(numbers: &Mutex<Receiver<u64>>, answers: &Sender<Answer>) {
    loop {
        let next = numbers.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(number) = next else { return };
        let answer = Answer { number, factors: factor(number) };
        // This waits while the mailbox is full.
        if answers.push(answer).is_err() {
            return;
        }
    }
}

fn hire(count: usize, answers: &Sender<Answer>) -> (mpsc::Sender<u64>, Vec<JoinHandle<()>>) {
    let (orders, numbers) = mpsc::channel();
    let numbers = Arc::new(Mutex::new(numbers));
    let worker = |_| {
        let (numbers, answers) = (Arc::clone(&numbers), answers.clone());
        thread::spawn(move || work(&numbers, &answers))
    };
    (orders, (0..count).map(worker).collect())
}

/// The state of the loop.
struct Dispatcher {
    /// `None` after the last order; then the workers end.
    orders: Option<mpsc::Sender<u64>>,
    next: u64,
    last: u64,
    answers: BTreeMap<u64, Vec<u64>>,
}

impl Dispatcher {
    /// Orders a number at each tick of the timer.
    fn on_beat(&mut self) {
        if self.next > self.last {
            self.orders = None;
        } else if let Some(orders) = &self.orders {
            // This fails if all workers have ended, and then the answers end, too.
            let _ = orders.send(self.next);
            self.next += 1;
        }
    }

    fn on_answers(&mut self, inbox: &mut Mailbox<Answer>, turn: &mut Turn<'_>) {
        inbox.latch().awake();
        for answer in inbox.drain(ANSWERS_PER_CALL) {
            self.answers.insert(answer.number, answer.factors);
        }
        // All workers have ended, and the mailbox is empty.
        if inbox.is_closed() && inbox.is_empty() {
            turn.stop();
        }
        inbox.latch().rearm();
    }
}

/// Factors the numbers from `first` to `last` with a number of workers.
fn run(first: u64, last: u64, workers: usize) -> io::Result<BTreeMap<u64, Vec<u64>>> {
    let mut reactor = windlass_examples::builder()?.build()?;
    let (answers, inbox) = mailbox(Bounds::items(ANSWERS_MAX), Arc::new(Latch::new()?));
    let (orders, workers) = hire(workers, &answers);
    // Only the workers' senders keep the mailbox open.
    drop(answers);
    inbox.latch().rearm();
    let dispatcher =
        Dispatcher { orders: Some(orders), next: first, last, answers: BTreeMap::new() };
    let dispatcher = Group::new(dispatcher)
        .fd(
            interest().read().edge_triggered(),
            inbox,
            |dispatcher: &mut Dispatcher, inbox: &mut Mailbox<_>, mut turn: Turn<'_>| {
                dispatcher.on_answers(inbox, &mut turn);
            },
        )
        .every(Duration::from_micros(50), |dispatcher: &mut Dispatcher| dispatcher.on_beat())
        .register_into(&mut reactor)?
        .group;
    reactor.run()?;
    let answers =
        reactor.group_mut(dispatcher).map(|dispatcher| core::mem::take(&mut dispatcher.answers));
    for worker in workers {
        worker.join().map_err(|_| io::Error::other("a worker has panicked"))?;
    }
    Ok(answers.unwrap_or_default())
}

fn main() -> io::Result<()> {
    for (number, factors) in run(1_000_000_000_000, 1_000_000_000_020, 2)? {
        let factors: Vec<String> = factors.iter().map(u64::to_string).collect();
        println!("{number} = {}", factors.join(" x "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_multiply_to_their_number() {
        assert_eq!(factor(1), []);
        assert_eq!(factor(360), [2, 2, 2, 3, 3, 5]);
        assert_eq!(factor(97), [97]);
    }

    #[test]
    fn all_orders_are_answered() {
        let answers = run(10, 400, 3).unwrap();
        assert!(answers.keys().copied().eq(10..=400));
        assert!(answers.iter().all(|(number, factors)| factors.iter().product::<u64>() == *number));
    }

    #[test]
    fn a_mailbox_wakes_the_loop_once_for_a_batch() {
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let (sender, inbox) = mailbox(Bounds::items(64), Arc::new(Latch::new().unwrap()));
        inbox.latch().rearm();
        let handler = |inbox: &mut Mailbox<u32>, mut turn: Turn<'_>| {
            inbox.latch().awake();
            let seen = inbox.drain(10).count();
            assert!(seen <= 10);
            if inbox.is_empty() {
                turn.stop();
            }
            inbox.latch().rearm();
        };
        interest()
            .read()
            .edge_triggered()
            .with_fd(inbox)
            .with_handler(handler)
            .register_into(&mut reactor)
            .unwrap();
        let pusher = thread::spawn(move || (0..25).for_each(|item| sender.push(item).unwrap()));
        pusher.join().unwrap();
        reactor.run().unwrap();
        assert_eq!(reactor.stats().events, 3, "25 items, ten a call");
    }
}
