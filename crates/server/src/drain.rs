//! The end of a service: nobody comes any more, those who are there are told, and after a while
//! sent away.

use std::{rc::Rc, time::Duration};

use windlass::Turn;

use crate::{
    hall::Hall,
    roster::{Flags, Roster},
};

/// What is done when the last connection has gone.
pub(crate) type Then = Box<dyn FnOnce(Turn<'_>)>;

impl Hall {
    /// Begins a drain; another one in its course may only bring the deadline forward.
    pub(crate) fn drain(self: &Rc<Self>, turn: &mut Turn<'_>, deadline: Duration) {
        self.is_draining.set(true);
        // They take their counts along.
        self.note_listeners(turn);
        for key in self.listeners.take() {
            if let Ok(listening) = turn.listener(key) {
                listening.delete();
            }
        }
        self.nudge_all(turn, Flags::WANTS_DRAIN);
        let hall = Rc::clone(self);
        let end = move |mut turn: Turn<'_>| hall.abort_all(&mut turn);
        // If there are as many timers as may be, nobody is waited for.
        if deadline.is_zero() || turn.after(deadline, end).is_err() {
            self.abort_all(turn);
        }
        self.look_whether_drained(turn);
    }

    /// Every connection is called in a frame of its own.
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

    /// Whatever a connection is at, it ends: one whose stream is closed already and lingers hears
    /// no notify.
    fn abort_all(&self, turn: &mut Turn<'_>) {
        let mut books = self.books.borrow_mut();
        for index in 0..books.roster.places() {
            let Some(member) = books.roster.taken(index) else { continue };
            if let Ok(mut stream) = turn.stream(member.stream) {
                stream.abort();
            }
        }
    }

    /// Does what was to be done after the drain, if it is over. To be asked when a connection has
    /// gone.
    pub(crate) fn look_whether_drained(self: &Rc<Self>, turn: &mut Turn<'_>) {
        if !self.is_draining.get() || self.books.borrow().roster.len() > 0 {
            return;
        }
        for then in self.after_drain.take() {
            // Not in the frame of the last connection. If as many closures as may be wait, the
            // sweep comes back to it.
            if let Err(refused) = turn.defer(then) {
                let mut left = self.after_drain.take();
                left.push(refused.closure);
                self.after_drain.set(left);
            }
        }
    }
}
