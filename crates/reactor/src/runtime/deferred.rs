//! Deferred closures: those of a turn, and those that they defer.

use std::collections::VecDeque;

use crate::{Reactor, Turn, api::timer::Deferred};

/// The closures to run at the start and at the end of a turn.
pub(super) struct DeferredClosures {
    queue: VecDeque<Deferred<Reactor>>,
    /// Closures deferred by deferred closures. They join `queue` when the next turn begins.
    later: VecDeque<Deferred<Reactor>>,
    /// True while a deferred closure runs.
    is_running: bool,
}

impl DeferredClosures {
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), later: VecDeque::new(), is_running: false }
    }

    /// The number of closures, of both kinds.
    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.later.len()
    }

    /// Whether closures may run in this turn.
    pub(super) fn has_ready(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn push(&mut self, closure: Deferred<Reactor>) {
        if self.is_running { &mut self.later } else { &mut self.queue }.push_back(closure);
    }

    /// Begins a turn. Returns how many closures it runs at its start, at most `count`.
    pub(super) fn begin_turn(&mut self, count: usize) -> usize {
        debug_assert!(!self.is_running, "a turn has ended them, also after a panic");
        self.queue.append(&mut self.later);
        self.queue.len().min(count)
    }

    /// Ends a turn, also after a panic.
    pub(super) fn end_turn(&mut self) {
        self.is_running = false;
    }

    /// Takes out the next closure of either kind, when the reactor is dropped.
    pub(super) fn pop(&mut self) -> Option<Deferred<Reactor>> {
        self.queue.pop_front().or_else(|| self.later.pop_front())
    }
}

impl Reactor {
    /// Runs deferred closures, at most `count`, the oldest first. Closures that they defer wait for
    /// the next turn.
    pub(super) fn run_deferred(&mut self, count: usize) {
        self.deferred.is_running = true;
        for _ in 0..count {
            let Some(closure) = self.deferred.queue.pop_front() else { break };
            self.timed(None, |reactor| closure.run(Turn::new(reactor)));
        }
        self.deferred.is_running = false;
    }
}
