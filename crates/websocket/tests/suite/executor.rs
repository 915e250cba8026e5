//! An executor that polls a task only after it was woken, so that a lost wake-up stops it.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// How often a task was woken.
#[derive(Default)]
pub(crate) struct WakeUps(AtomicUsize);

impl Wake for WakeUps {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeUps {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

struct Task<'a> {
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    wake_ups: Arc<WakeUps>,
    /// How many of them were answered by a poll.
    seen: usize,
}

/// The order in which the woken tasks are polled, each once in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Forward,
    Backward,
    /// By turns.
    Mixed,
}

impl Order {
    pub(crate) const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Mixed];
}

pub(crate) struct Executor<'a> {
    tasks: Vec<Task<'a>>,
    order: Order,
}

impl<'a> Executor<'a> {
    pub(crate) fn new(order: Order) -> Self {
        Self { tasks: Vec::new(), order }
    }

    /// Adds a task, which is polled a first time by the next `run`.
    pub(crate) fn spawn(&mut self, future: impl Future<Output = ()> + 'a) -> usize {
        let wake_ups = Arc::new(WakeUps(AtomicUsize::new(1)));
        self.tasks.push(Task { future: Some(Box::pin(future)), wake_ups, seen: 0 });
        self.tasks.len() - 1
    }

    /// Polls woken tasks until none is.
    pub(crate) fn run(&mut self) {
        for round in 0..100_000 {
            let is_backward = match self.order {
                Order::Forward => false,
                Order::Backward => true,
                Order::Mixed => round % 3 == 0,
            };
            let count = self.tasks.len();
            let mut is_idle = true;
            for at in 0..count {
                let at = if is_backward { count - 1 - at } else { at };
                let task = &self.tasks[at];
                if task.future.is_some() && task.wake_ups.count() > task.seen {
                    is_idle = false;
                    self.poll(at);
                }
            }
            if is_idle {
                return;
            }
        }
        panic!("the tasks run for ever");
    }

    fn poll(&mut self, at: usize) {
        let task = &mut self.tasks[at];
        task.seen = task.wake_ups.count();
        let waker = Waker::from(Arc::clone(&task.wake_ups));
        if let Some(future) = &mut task.future {
            if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                task.future = None;
            }
        }
    }

    pub(crate) fn is_done(&self, at: usize) -> bool {
        self.tasks[at].future.is_none()
    }

    /// Drops a task.
    pub(crate) fn cancel(&mut self, at: usize) {
        self.tasks[at].future = None;
    }

    /// Runs, and every task must end.
    pub(crate) fn run_to_end(&mut self) {
        self.run();
        let stuck: Vec<_> = (0..self.tasks.len()).filter(|at| !self.is_done(*at)).collect();
        assert!(stuck.is_empty(), "the tasks {stuck:?} wait and nobody wakes them");
    }
}
