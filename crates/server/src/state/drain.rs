//! Graceful shutdown: the service accepts no more connections, notifies the open ones, and resets
//! those left at the deadline.

use core::cell::Cell;

use windlass::{Turn, stream::ListenerKey};

use crate::{api::Counters, table::ConnTable};

/// A closure that runs when the last connection is gone.
pub(crate) type DrainCallback = Box<dyn FnOnce(Turn<'_>)>;

/// The listeners of a service, and the drain, which ends them.
#[derive(Default)]
pub(crate) struct Drain {
    has_begun: Cell<bool>,
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

    /// Begins a drain: no more connections are accepted.
    pub(super) fn begin(&self, turn: &mut Turn<'_>, stats: &Counters) {
        self.has_begun.set(true);
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
