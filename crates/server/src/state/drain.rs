//! Graceful shutdown: the service accepts no more connections, notifies the open ones, and resets
//! those left at the deadline.

use std::{rc::Rc, time::Duration};

use windlass::Turn;

use super::state::ServiceState;
use crate::table::{ConnFlags, ConnTable};

/// A closure that runs when the last connection is gone.
pub(crate) type DrainCallback = Box<dyn FnOnce(Turn<'_>)>;

impl ServiceState {
    /// Begins a drain. A second call during a drain can only move the deadline forward.
    pub(crate) fn drain(self: &Rc<Self>, turn: &mut Turn<'_>, deadline: Duration) {
        self.is_draining.set(true);
        // Removing the listeners loses their counts, so they are noted first.
        self.note_listeners(turn);
        for key in self.listeners.take() {
            if let Ok(mut listening) = turn.listener(key) {
                // They are in no table.
                listening.close_handshakes();
                listening.delete();
            }
        }
        self.notify_all(turn, ConnFlags::WANTS_DRAIN);
        let state = Rc::clone(self);
        let end = move |mut turn: Turn<'_>| state.abort_all(&mut turn);
        // If the timer limit is reached, the connections are ended without waiting.
        if deadline.is_zero() || turn.after(deadline, end).is_err() {
            self.abort_all(turn);
        }
        self.check_drained(turn);
    }

    /// Schedules a callback of every connection, each in a frame of its own.
    fn notify_all(&self, turn: &mut Turn<'_>, wants: ConnFlags) {
        let mut tables = self.tables.borrow_mut();
        let conns: &mut ConnTable = &mut tables.conns;
        for index in 0..conns.slots() {
            let Some(entry) = conns.get_mut(index) else { continue };
            entry.flags.add(wants);
            if let Ok(mut stream) = turn.stream(entry.stream) {
                stream.notify();
            }
        }
    }

    /// Aborts every connection in any state. A lingering connection, whose stream is already
    /// closed, would not receive a notification.
    fn abort_all(&self, turn: &mut Turn<'_>) {
        let mut tables = self.tables.borrow_mut();
        for index in 0..tables.conns.slots() {
            let Some(entry) = tables.conns.get_mut(index) else { continue };
            if let Ok(mut stream) = turn.stream(entry.stream) {
                stream.abort();
            }
        }
    }

    /// Runs the closures that wait for the end of the drain, if it has ended. Called when a
    /// connection is gone.
    pub(crate) fn check_drained(self: &Rc<Self>, turn: &mut Turn<'_>) {
        let is_empty = self.tls_handshakes.get() == 0 && self.tables.borrow().conns.len() == 0;
        if !self.is_draining.get() || !is_empty {
            return;
        }
        for callback in self.drain_callbacks.take() {
            // The closure must not run in the frame of the last connection. If the limit of
            // deferred closures is reached, the timeout scan tries again.
            if let Err(rejected) = turn.try_defer(callback) {
                let mut left = self.drain_callbacks.take();
                left.push(rejected.closure);
                self.drain_callbacks.set(left);
            }
        }
    }
}
