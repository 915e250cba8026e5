//! A run queue of closures: a long computation in slices, beside timers and events.
//!
//! The program looks for the longest Collatz sequence that begins below a million. Each job tries
//! some thousand numbers and puts the next job into the queue. A timer reports meanwhile.
//!
//! It shows:
//! - A `TurnDriver` runs at the end of every turn. `Again` makes the loop look for events and due
//!   timers without waiting, `Wait` lets it sleep.
//! - A turn runs at most `JOBS_PER_TURN` jobs, so that a full queue does not delay the events.
//! - A job gets the turn: it may start timers, write to streams, and stop the loop.
//!
//! Run it with `cargo run --example run_queue`, and its tests with
//! `cargo test --example run_queue`.

use std::{cell::RefCell, collections::VecDeque, io, rc::Rc, time::Duration};

use windlass::{NextTurn, Turn, TurnDriver};

const JOBS_PER_TURN: usize = 16;
const NUMBERS_PER_JOB: u64 = 2_000;
const NUMBERS: u64 = 1_000_000;

type Job = Box<dyn FnOnce(&RunQueue, Turn<'_>)>;

/// Every clone is a handle to the same queue.
#[derive(Clone, Default)]
struct RunQueue(Rc<RefCell<VecDeque<Job>>>);

impl RunQueue {
    fn push(&self, job: impl FnOnce(&Self, Turn<'_>) + 'static) {
        self.0.borrow_mut().push_back(Box::new(job));
    }
}

impl TurnDriver for RunQueue {
    fn end_of_turn(&mut self, mut turn: Turn<'_>) -> NextTurn {
        for _ in 0..JOBS_PER_TURN {
            // The borrow ends here, because the job may push another one.
            let Some(job) = self.0.borrow_mut().pop_front() else { return NextTurn::Wait };
            job(self, turn.reborrow());
        }
        NextTurn::Again
    }
}

fn steps(mut number: u64) -> u32 {
    let mut count = 0;
    while number > 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        count += 1;
    }
    count
}

/// Tries the numbers from `from` on. `best` is the largest number of steps, and where it began.
fn search(queue: &RunQueue, from: u64, best: (u32, u64), result: Rc<RefCell<(u32, u64)>>) {
    queue.push(move |queue, mut turn| {
        let until = (from + NUMBERS_PER_JOB).min(NUMBERS);
        let best = (from..until).map(|number| (steps(number), number)).fold(best, Ord::max);
        *result.borrow_mut() = best;
        if until == NUMBERS { turn.stop() } else { search(queue, until, best, result) }
    });
}

fn main() -> io::Result<()> {
    let mut reactor = windlass_examples::builder()?.build()?;
    let mut queue = RunQueue::default();
    let best = Rc::new(RefCell::new((0, 0)));
    search(&queue, 1, (0, 0), Rc::clone(&best));
    let so_far = Rc::clone(&best);
    reactor.every(Duration::from_millis(50), move || println!("so far: {:?}", so_far.borrow()))?;
    reactor.run_with(&mut queue)?;
    let (steps, number) = *best.borrow();
    println!("{number} takes {steps} steps");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_turn_runs_so_many_jobs_and_timers_come_between() {
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let mut queue = RunQueue::default();
        let order = Rc::new(RefCell::new(Vec::new()));
        for number in 0..2 * JOBS_PER_TURN {
            let order = Rc::clone(&order);
            queue.push(move |_, _| order.borrow_mut().push(number));
        }
        let timed = Rc::clone(&order);
        reactor.after(Duration::ZERO, move || timed.borrow_mut().push(1000)).unwrap();
        reactor.run_once_with(None, &mut queue).unwrap();
        reactor.run_once_with(None, &mut queue).unwrap();
        let mut expected: Vec<usize> = (0..2 * JOBS_PER_TURN).collect();
        expected.insert(JOBS_PER_TURN, 1000);
        assert_eq!(*order.borrow(), expected);
    }

    #[test]
    fn it_sleeps_while_the_queue_is_empty() {
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let mut queue = RunQueue::default();
        let (pushed, ran) = (queue.clone(), Rc::new(Cell::new(false)));
        let done = Rc::clone(&ran);
        reactor
            .after(Duration::from_millis(2), move || {
                let done = Rc::clone(&done);
                pushed.push(move |_, mut turn| {
                    done.set(true);
                    turn.stop();
                });
            })
            .unwrap();
        reactor.run_with(&mut queue).unwrap();
        assert!(ran.get());
        assert!(reactor.stats().turns <= 3, "{:?}", reactor.stats());
    }

    #[test]
    fn the_longest_sequence_is_the_known_one() {
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let mut queue = RunQueue::default();
        let best = Rc::new(RefCell::new((0, 0)));
        search(&queue, NUMBERS - NUMBERS_PER_JOB, (524, 837_799), Rc::clone(&best));
        reactor.run_with(&mut queue).unwrap();
        assert_eq!(*best.borrow(), (524, 837_799));
        assert_eq!((steps(1), steps(27), steps(837_799)), (0, 111, 524));
    }
}
