//! Graceful shutdown: the service accepts no more connections, notifies the open ones, and resets
//! those left at the deadline.

use core::cell::Cell;
use std::time::{Duration, Instant};

use windlass::{
    Turn,
    stream::{ListenerKey, Listening},
};

use crate::{api::Counters, table::ConnTable};

/// A closure that runs when the last connection is gone.
pub(crate) type DrainCallback = Box<dyn FnOnce(Turn<'_>)>;

/// The time before the drain in which other processes accept, and the handshakes of this one end.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandOver {
    /// The time limit of the drain.
    pub(super) deadline: Duration,
    /// The handshakes are waited for until then.
    pub(super) until: Instant,
    /// The number of the turn in which it began.
    pub(super) turn: u64,
}

/// The listeners of a service, and the drain, which ends them.
#[derive(Default)]
pub(crate) struct Drain {
    has_begun: Cell<bool>,
    hand_over: Cell<Option<HandOver>>,
    listeners: Cell<Vec<ListenerKey>>,
    callbacks: Cell<Vec<DrainCallback>>,
}

impl Drain {
    /// Returns whether a drain has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    pub(crate) fn add_listener(&self, key: ListenerKey) {
        let mut listeners = self.listeners.take();
        listeners.push(key);
        self.listeners.set(listeners);
    }

    /// Adds a closure that runs when the drain has ended.
    pub(crate) fn add_callback(&self, callback: DrainCallback) {
        let mut callbacks = self.callbacks.take();
        callbacks.push(callback);
        self.callbacks.set(callbacks);
    }

    /// Changes how many connections each listener has at most.
    pub(super) fn set_connections_max(&self, turn: &mut Turn<'_>, connections_max: usize) {
        self.for_each_listener(turn, |listening| listening.set_connections_max(connections_max));
    }

    /// Stops accepting. The sockets stay open, because closing one can reset its backlog.
    pub(super) fn begin_hand_over(&self, turn: &mut Turn<'_>, hand_over: HandOver) {
        self.for_each_listener(turn, |listening| listening.pause());
        self.hand_over.set(Some(hand_over));
    }

    /// Returns the hand-over that is under way.
    pub(super) fn hand_over(&self) -> Option<HandOver> {
        self.hand_over.get()
    }

    fn for_each_listener(&self, turn: &mut Turn<'_>, mut call: impl FnMut(&mut Listening<'_>)) {
        let listeners = self.listeners.take();
        for key in &listeners {
            // The application may have deleted it.
            if let Ok(mut listening) = turn.listener(*key) {
                call(&mut listening);
            }
        }
        self.listeners.set(listeners);
    }

    /// Begins a drain: no more connections are accepted.
    pub(super) fn begin(&self, turn: &mut Turn<'_>, stats: &Counters) {
        self.has_begun.set(true);
        self.hand_over.set(None);
        // Removing the listeners loses their counts, so they are noted first.
        self.note_listeners(turn, stats);
        for key in self.listeners.take() {
            if let Ok(mut listening) = turn.listener(key) {
                // They are in no table.
                listening.close_handshakes();
                listening.delete();
            }
        }
    }

    /// Runs the closures that wait for the end of the drain, if it has ended. Called when a
    /// connection is gone.
    pub(crate) fn check(&self, conns: &ConnTable, turn: &mut Turn<'_>) {
        if !self.has_begun() || conns.count() > 0 {
            return;
        }
        for callback in self.callbacks.take() {
            // The closure must not run in the frame of the last connection. If the limit of
            // deferred closures is reached, the timeout scan tries again.
            if let Err(rejected) = turn.try_defer(callback) {
                self.add_callback(rejected.closure);
            }
        }
    }

    /// Notes how often the listeners paused accepting, and how often they reached their connection
    /// limit.
    pub(super) fn note_listeners(&self, turn: &mut Turn<'_>, stats: &Counters) {
        let mut listeners = self.listeners.take();
        let (mut rests, mut limits) = (0, 0);
        listeners.retain(|key: &ListenerKey| {
            let found = turn.listener(*key).map(|listening| {
                rests += listening.rests();
                limits += listening.limits_reached();
            });
            // The application may have deleted it.
            found.is_ok()
        });
        self.listeners.set(listeners);
        // A deleted listener loses its count, so it is noted here.
        stats.accepting_paused.set(rests.max(stats.accepting_paused.get()));
        stats.connection_limits_reached.set(limits.max(stats.connection_limits_reached.get()));
    }

    #[cfg(test)]
    pub(crate) fn take_listeners(&self) -> Vec<ListenerKey> {
        self.listeners.take()
    }
}
