//! Sleeps: started and dropped, almost none, many at once, and one alone.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use super::AN_HOUR;
use super::laps::Laps;
use super::runtime::Runtime;
use crate::measured::Error;
use crate::random::Random;

/// Starts sleeps of more than an hour and drops them.
pub(super) async fn cancel<R: Runtime>(
    polled: bool,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let mut context = Context::from_waker(Waker::noop());
    laps.start();
    for round in 0..rounds {
        let sleep = pin!(R::sleep(AN_HOUR + Duration::from_millis(round % 4096)));
        if polled && sleep.poll(&mut context).is_ready() {
            return Err("a sleep of an hour was over at once".into());
        }
    }
    laps.stop(rounds);
    Ok(())
}

/// Sleeps again and again.
pub(super) async fn short<R: Runtime>(span: Duration, rounds: u64, laps: Rc<Laps>) {
    laps.start();
    for _ in 0..rounds {
        R::sleep(span).await;
    }
    laps.stop(rounds);
}

/// Runs tasks that sleep for 100 to 1000 microseconds each. Their lateness is recorded.
pub(super) async fn many<R: Runtime>(
    count: usize,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let mut random = Random::new(11);
    let mut handles = Vec::with_capacity(count);
    let early = Rc::new(Cell::new(false));
    let batches = rounds.div_ceil(count as u64);
    laps.start();
    for _ in 0..batches {
        for _ in 0..count {
            let span = Duration::from_nanos(100_000 + random.next() % 900_000);
            handles.push(R::spawn(sleep_once::<R>(span, Rc::clone(&laps), Rc::clone(&early))));
        }
        for handle in handles.drain(..) {
            handle.await;
        }
    }
    laps.stop(batches * count as u64);
    if early.get() { Err("a task woke up early".into()) } else { Ok(()) }
}

async fn sleep_once<R: Runtime>(span: Duration, laps: Rc<Laps>, early: Rc<Cell<bool>>) {
    let started = Instant::now();
    R::sleep(span).await;
    match started.elapsed().checked_sub(span) {
        Some(late) => laps.record_ns(late.as_nanos() as u64),
        None => early.set(true),
    }
}

/// Sleeps alone. The time of a slice is that after the deadlines.
pub(super) async fn alone<R: Runtime>(
    span: Duration,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let mut ns = 0;
    for _ in 0..rounds {
        let started = Instant::now();
        R::sleep(span).await;
        let late = started.elapsed().checked_sub(span).ok_or("it woke up early")?;
        ns += late.as_nanos() as u64;
        laps.record_ns(late.as_nanos() as u64);
    }
    laps.set(ns, rounds);
    Ok(())
}
