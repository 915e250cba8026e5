//! Simulated threads: closures that the seed interleaves.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::{ActorId, HostId};
use crate::kernel::{Kernel, Step};

/// The state of a simulated thread after a part of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadNext {
    /// It goes on; others may come first.
    Again,
    /// It waits for a wake, an event of its sets or rings, or a virtual time.
    Park(Option<u64>),
    /// It has ended, and its descriptors are closed.
    Done,
}

type Body<'b> = Box<dyn FnMut(&Kernel) -> ThreadNext + 'b>;

/// Simulated threads. Each is a closure that is called for one part of its work after the other.
///
/// Between two calls any other actor may run, so a call is what is atomic in a thread.
pub struct Threads<'b> {
    kernel: Kernel,
    bodies: BTreeMap<ActorId, Body<'b>>,
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("actors", &self.bodies.keys()).finish_non_exhaustive()
    }
}

impl<'b> Threads<'b> {
    /// No threads yet.
    #[must_use]
    pub fn new(kernel: &Kernel) -> Self {
        Self { kernel: kernel.clone(), bodies: BTreeMap::new() }
    }

    /// Adds a thread, which can run at once.
    pub fn spawn(
        &mut self,
        host: HostId,
        name: &str,
        body: impl FnMut(&Kernel) -> ThreadNext + 'b,
    ) -> ActorId {
        let actor = self.kernel.actor(host, name);
        self.insert(actor, body);
        actor
    }

    /// The same for an actor that there is already, whose sets were needed first.
    pub fn insert(&mut self, actor: ActorId, body: impl FnMut(&Kernel) -> ThreadNext + 'b) {
        self.bodies.insert(actor, Box::new(body));
    }

    /// Acts on a step of the kernel. False if it is for an actor that is no thread of these.
    pub fn act(&mut self, step: Step) -> bool {
        match step {
            Step::Run(actor) => {
                let Some(body) = self.bodies.get_mut(&actor) else { return false };
                match body(&self.kernel) {
                    ThreadNext::Again => self.kernel.ready(actor),
                    ThreadNext::Park(deadline_ns) => self.kernel.park(actor, deadline_ns),
                    ThreadNext::Done => {
                        self.bodies.remove(&actor);
                        self.kernel.end(actor);
                    }
                }
                true
            }
            Step::End(actor) => self.bodies.remove(&actor).is_some(),
            Step::Quiet | Step::Limit => false,
        }
    }

    /// Runs all threads until nothing can run any more, or a maximum is reached.
    pub fn run(&mut self) -> Step {
        loop {
            let step = self.kernel.step();
            if !self.act(step) {
                return step;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;

    #[test]
    fn the_seed_interleaves_threads() {
        let order = |seed: u64| {
            let kernel = Kernel::new(seed, Faults::calm());
            let host = kernel.host([10, 0, 0, 1].into());
            let order = std::cell::RefCell::new(Vec::new());
            let mut threads = Threads::new(&kernel);
            for thread in 0..3 {
                let mut left = 4;
                let order = &order;
                threads.spawn(host, "thread", move |_| {
                    order.borrow_mut().push(thread);
                    left -= 1;
                    if left == 0 { ThreadNext::Done } else { ThreadNext::Again }
                });
            }
            assert_eq!(threads.run(), Step::Quiet);
            drop(threads);
            order.into_inner()
        };
        let orders: Vec<Vec<i32>> = (0..20).map(order).collect();
        assert!(orders.iter().all(|order| order.len() == 12));
        assert!(orders.iter().any(|order| *order != orders[0]));
        assert_eq!(order(3), orders[3]);
    }

    #[test]
    fn a_deadline_is_never_early() {
        let kernel = Kernel::new(1, Faults::calm());
        let host = kernel.host([10, 0, 0, 1].into());
        let mut times = Vec::new();
        let mut threads = Threads::new(&kernel);
        threads.spawn(host, "timer", |kernel| {
            times.push(kernel.now_ns());
            if times.len() == 3 {
                ThreadNext::Done
            } else {
                ThreadNext::Park(Some(kernel.now_ns() + 7))
            }
        });
        assert_eq!(threads.run(), Step::Quiet);
        drop(threads);
        assert_eq!(times, [0, 7, 14]);
    }

    #[test]
    fn a_wake_while_an_actor_runs_is_not_lost() {
        let kernel = Kernel::new(1, Faults::calm());
        let host = kernel.host([10, 0, 0, 1].into());
        let actor = kernel.actor(host, "actor");
        let set = kernel.poll_set(actor);
        let counter = kernel.eventfd(host, 0, false).expect("a counter");
        set.add(counter, crate::mask::IN | crate::mask::ET, 0).expect("it is open");
        for suspends in [false, true] {
            assert_eq!(kernel.step(), Step::Run(actor));
            if suspends {
                kernel.suspend(actor);
                assert_eq!(kernel.step(), Step::Quiet);
            }
            // The event is gone when the actor waits, but it was woken.
            kernel.write(counter, &1_u64.to_ne_bytes()).expect("room");
            kernel.read(counter, &mut [0; 8]).expect("a count");
            kernel.park(actor, None);
        }
        assert_eq!(kernel.step(), Step::Run(actor));
        kernel.park(actor, None);
        assert_eq!(kernel.step(), Step::Quiet);
        kernel.wake_handle(actor).wake();
        assert_eq!(kernel.step(), Step::Run(actor));
    }
}
