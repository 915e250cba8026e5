//! The registration of a [`Source`], by the protocol of its module.

#![allow(unsafe_code, reason = "a registration borrows the descriptor by its number")]

use std::{io, os::fd::BorrowedFd, rc::Rc};

use windlass::{AddReason, Backend, Event, Interest, Subscriber, Turn};

use crate::fd::source::{Manner, Place, Source, State, gone};

impl Source {
    pub(super) fn add(self: &Rc<Self>) -> io::Result<()> {
        let now = self.handle.with_turn(|turn| self.add_in(turn));
        let now = match now {
            // A deletion of this number may be queued.
            Some(Err(AddReason::AlreadyExists)) => {
                self.handle.run_requests();
                self.handle.with_turn(|turn| self.add_in(turn))
            }
            now => now,
        };
        match now {
            Some(result) => Ok(result?),
            None if !self.handle.is_open() => Err(gone()),
            None => {
                let queued = QueuedAdd(Rc::clone(self));
                Ok(self.handle.request_new(move |turn| queued.run(turn))?)
            }
        }
    }

    fn add_in(self: &Rc<Self>, mut turn: Turn<'_>) -> Result<(), AddReason> {
        self.manner.set(match turn.backend() {
            Backend::Uring if !self.is_one_shot => Manner::Ring,
            Backend::Uring => Manner::OneShot,
            Backend::Poll => Manner::OneShot,
            _ => Manner::Epoll,
        });
        match turn.add(SourceCell(Rc::clone(self))) {
            Ok(key) => {
                self.state.set(State::Registered(key));
                Ok(())
            }
            Err(reason) => {
                self.state.set(State::Rejected(reason));
                Err(reason)
            }
        }
    }

    /// Ends the registration. The value, which owns the descriptor, is returned if that is done,
    /// and otherwise dropped later, after it (protocol 7).
    pub(crate) fn deregister<T: 'static>(&self, value: T) -> Option<T> {
        let State::Registered(key) = self.state.replace(State::Closed) else { return Some(value) };
        // The key is stale if the reactor has let go of the cell.
        if self.handle.with_turn(|mut turn| turn.delete(key)).is_some() {
            return Some(value);
        }
        self.handle.request(move |mut turn| {
            let _ = turn.delete(key);
            drop(value);
        });
        None
    }

    /// As [`deregister`](Self::deregister), for a descriptor that stays open.
    pub(crate) fn deregister_open(&self) {
        self.deregister(());
    }

    /// Ends the registration of a descriptor that stays open, and wakes all waiters.
    pub(crate) fn retire(&self) {
        self.deregister(());
        self.end();
    }
}

/// A registration that waits for a turn (protocol 8).
struct QueuedAdd(Rc<Source>);

impl QueuedAdd {
    fn run(self, turn: Turn<'_>) {
        let source = &self.0;
        // Otherwise the owner has let go, and the number may be closed.
        if source.state.get() == State::Queued && source.add_in(turn).is_err() {
            source.wake_both();
        }
    }
}

impl Drop for QueuedAdd {
    fn drop(&mut self) {
        // The executor ends without another turn.
        if self.0.state.get() == State::Queued {
            self.0.end();
        }
    }
}

/// The cell of the reactor.
struct SourceCell(Rc<Source>);

impl Subscriber for SourceCell {
    fn fd(&self) -> BorrowedFd<'_> {
        #[cfg(not(feature = "sim"))]
        let Place::Kernel(number) = self.0.place;
        #[cfg(feature = "sim")]
        let Place::Kernel(number) = self.0.place else {
            unreachable!("the reactor asks for `sim_id` first")
        };
        // SAFETY: the reactor calls this once, in `Source::add_in`. The descriptor is open there
        // (protocol 7): either the caller of `register` owns it, or the registration was queued
        // and its owner has not let go (`QueuedAdd::run`).
        unsafe { BorrowedFd::borrow_raw(number) }
    }

    #[cfg(feature = "sim")]
    fn sim_id(&self) -> Option<windlass::sim::SimId> {
        match self.0.place {
            Place::Kernel(_) => None,
            Place::Simulated(id) => Some(id),
        }
    }

    fn interest(&self) -> Interest {
        self.0.interest()
    }

    #[inline]
    fn handle(&mut self, event: Event, turn: Turn<'_>) {
        self.0.handle_event(event, turn);
    }
}

impl Drop for SourceCell {
    fn drop(&mut self) {
        // Not after a rejected registration, and not after the owner has let go.
        if let State::Registered(_) = self.0.state.get() {
            self.0.end();
        }
    }
}
