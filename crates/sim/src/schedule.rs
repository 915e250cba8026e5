//! The virtual clock, the deadlines, and who can run.
//!
//! 1. A task that can run is in `runnable`. The choice among them is the seed's.
//! 2. Time moves to the earliest deadline, and only when nothing can run. All tasks of that time
//!    can run then.
//! 3. Deadlines are never taken out of the heap. A task that comes for nothing is ignored by its
//!    owner, and owners add one only if it is earlier than the one they have.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::ActorId;
use crate::slab::Key;

/// An item that the scheduler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    /// An actor can run.
    Actor(ActorId),
    /// The deadline of an actor.
    Deadline(ActorId),
    /// The next segments of a flow toward a side of a connection.
    Deliver(Key, u8),
    /// The next step of a connection's handshake.
    Handshake(Key),
    /// The sender on a side of a connection learns of room.
    Room(Key, u8),
    /// The writer on a side of a connection is no longer held up by a fault.
    Unblock(Key, u8),
    /// A datagram arrives.
    Datagram(Key),
    /// A timer of a descriptor expires.
    Timer(Key),
    /// An entry of a set is reported after a delay.
    Entry(Key, Key),
    /// A completion of a ring is reported after a delay.
    Completion(Key, Key),
    /// A link may be whole again.
    Link(u32),
}

/// The clock and the queues.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    now_ns: u64,
    /// The number of deadlines so far: equal times keep their order.
    order: u64,
    deadlines: BinaryHeap<Reverse<(u64, u64, Task)>>,
    runnable: Vec<Task>,
}

impl Schedule {
    /// The virtual time, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Adds a task that can run at a time, at once if it has come.
    pub(crate) fn at(&mut self, at_ns: u64, task: Task) {
        if at_ns <= self.now_ns {
            self.runnable.push(task);
        } else {
            self.order += 1;
            self.deadlines.push(Reverse((at_ns, self.order, task)));
        }
    }

    /// The number of tasks that can run.
    pub(crate) fn runnable(&self) -> u64 {
        self.runnable.len() as u64
    }

    /// Takes one of them.
    pub(crate) fn take(&mut self, index: u64) -> Task {
        self.runnable.swap_remove(usize::try_from(index).expect("an index"))
    }

    /// The earliest deadline.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Moves time, and lets the tasks of all deadlines that have come run.
    pub(crate) fn advance(&mut self, to_ns: u64) {
        self.now_ns = self.now_ns.max(to_ns);
        while let Some(Reverse((at_ns, _, task))) = self.deadlines.peek() {
            if *at_ns > self.now_ns {
                break;
            }
            self.runnable.push(*task);
            self.deadlines.pop();
        }
    }
}

/// The wakes from code that has no kernel.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    is_set: AtomicBool,
    actors: Mutex<Vec<ActorId>>,
}

impl Wakes {
    /// Takes all wakes. The usual case is one load.
    pub(crate) fn take(&self) -> Vec<ActorId> {
        if !self.is_set.load(Ordering::Relaxed) || !self.is_set.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.actors.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes an actor run, from any code: for the other half of a queue.
///
/// It is `Send` and `Sync`, because queues between threads are. A simulation stays deterministic
/// only if it is used on the simulation's own thread.
#[derive(Clone, Debug)]
pub struct WakeHandle {
    wakes: Arc<Wakes>,
    actor: ActorId,
}

impl WakeHandle {
    pub(crate) fn new(wakes: Arc<Wakes>, actor: ActorId) -> Self {
        Self { wakes, actor }
    }

    /// The actor can run in the next step. Further calls before that do nothing.
    pub fn wake(&self) {
        let mut actors = self.wakes.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if !actors.contains(&self.actor) {
            actors.push(self.actor);
        }
        self.wakes.is_set.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Task = Task::Actor(ActorId(1));
    const SECOND: Task = Task::Actor(ActorId(2));

    #[test]
    fn time_moves_to_a_deadline_and_not_beyond() {
        let mut schedule = Schedule::default();
        schedule.at(20, SECOND);
        schedule.at(10, FIRST);
        assert_eq!((schedule.runnable(), schedule.next_ns()), (0, Some(10)));
        schedule.advance(10);
        assert_eq!((schedule.now_ns(), schedule.runnable()), (10, 1));
        assert_eq!(schedule.take(0), FIRST);
        schedule.at(5, SECOND);
        assert_eq!(schedule.take(0), SECOND);
        schedule.advance(5);
        assert_eq!((schedule.now_ns(), schedule.next_ns()), (10, Some(20)));
    }

    #[test]
    fn deadlines_of_one_time_keep_their_order() {
        let mut schedule = Schedule::default();
        schedule.at(7, SECOND);
        schedule.at(7, FIRST);
        schedule.advance(7);
        assert_eq!([schedule.runnable[0], schedule.runnable[1]], [SECOND, FIRST]);
    }

    #[test]
    fn wakes_merge_until_they_are_taken() {
        let wakes = Arc::new(Wakes::default());
        let handle = WakeHandle::new(Arc::clone(&wakes), ActorId(3));
        handle.wake();
        handle.clone().wake();
        assert_eq!(wakes.take(), [ActorId(3)]);
        assert!(wakes.take().is_empty());
    }
}
