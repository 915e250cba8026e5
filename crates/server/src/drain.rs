//! Graceful shutdown: the service accepts no more connections, notifies the open ones, and resets
//! those left at the deadline.

use std::{rc::Rc, time::Duration};

use windlass::Turn;

use crate::{
    hall::Hall,
    roster::{Flags, Roster},
};

/// A closure that runs when the last connection is gone.
pub(crate) type Then = Box<dyn FnOnce(Turn<'_>)>;

impl Hall {
    /// Begins a drain. A second call during a drain can only move the deadline forward.
    pub(crate) fn drain(self: &Rc<Self>, turn: &mut Turn<'_>, deadline: Duration) {
        self.is_draining.set(true);
        // Removing the listeners loses their counts, so they are noted first.
        self.note_listeners(turn);
        for key in self.listeners.take() {
            if let Ok(listening) = turn.listener(key) {
                listening.delete();
            }
        }
        self.nudge_all(turn, Flags::WANTS_DRAIN);
        let hall = Rc::clone(self);
        let end = move |mut turn: Turn<'_>| hall.abort_all(&mut turn);
        // If the timer limit is reached, the connections are ended without waiting.
        if deadline.is_zero() || turn.after(deadline, end).is_err() {
            self.abort_all(turn);
        }
        self.look_whether_drained(turn);
    }

    /// Schedules a callback of every connection, each in a frame of its own.
    fn nudge_all(&self, turn: &mut Turn<'_>, wants: Flags) {
        let mut books = self.books.borrow_mut();
        let roster: &mut Roster = &mut books.roster;
        for index in 0..roster.places() {
            let Some(member) = roster.taken(index) else { continue };
            member.flags.add(wants);
            if let Ok(mut stream) = turn.stream(member.stream) {
                stream.notify();
            }
        }
    }

    /// Aborts every connection in any state. A lingering connection, whose stream is already
    /// closed, would not receive a notification.
    fn abort_all(&self, turn: &mut Turn<'_>) {
        let mut books = self.books.borrow_mut();
        for index in 0..books.roster.places() {
            let Some(member) = books.roster.taken(index) else { continue };
            if let Ok(mut stream) = turn.stream(member.stream) {
                stream.abort();
            }
        }
    }

    /// Runs the closures that wait for the end of the drain, if it has ended. Called when a
    /// connection is gone.
    pub(crate) fn look_whether_drained(self: &Rc<Self>, turn: &mut Turn<'_>) {
        if !self.is_draining.get() || self.books.borrow().roster.len() > 0 {
            return;
        }
        for then in self.after_drain.take() {
            // The closure must not run in the frame of the last connection. If the limit of
            // deferred closures is reached, the sweep tries again.
            if let Err(refused) = turn.defer(then) {
                let mut left = self.after_drain.take();
                left.push(refused.closure);
                self.after_drain.set(left);
            }
        }
    }
}
