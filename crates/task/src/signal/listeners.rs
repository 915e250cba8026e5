//! [`Listeners`]: all listeners of the process.
//!
//! 1. The kernel gives a signal to one thread. The executor that has read it tells every listener
//!    of the process.
//! 2. A listener is told under its own lock. No user code runs under a lock: wakers are cloned,
//!    woken and dropped outside.
//! 3. A child of fork(2) has listeners of its own. A lock of the parent may be held there for ever,
//!    and the parent's listeners are not to be woken.
//! 4. A foreign waker may panic. The panic is that of its listener's next poll, and not of the
//!    executor that has read the signal.

use core::{
    any::Any,
    task::{Poll, Waker},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use windlass_flow::{panics::discard_panic, process::PerProcess};

use crate::process::OwnProcess;

/// The listeners of one process.
#[derive(Default)]
pub(super) struct Listeners {
    process: OwnProcess,
    all: Mutex<Vec<Arc<Listener>>>,
}

/// What a [`Signals`](super::Signals) is told. Signals are bits of a number.
#[derive(Default)]
pub(super) struct Listener(Mutex<Told>);

#[derive(Default)]
struct Told {
    wanted: u64,
    came: u64,
    waker: Option<Waker>,
    /// Of a waker (rule 4).
    panic: Option<Box<dyn Any + Send>>,
}

/// The listeners of the process that an executor belongs to.
pub(super) enum AllListeners {
    Process(&'static Listeners),
    /// A simulated host is a process of its own.
    #[cfg(feature = "sim")]
    Host(std::rc::Rc<Listeners>),
}

impl AllListeners {
    /// Those of the running executor.
    pub(super) fn current() -> Self {
        static ALL: PerProcess<Listeners> = PerProcess::new();
        #[cfg(feature = "sim")]
        if let Some(host) = crate::simulation::host() {
            return Self::Host(host.shared());
        }
        Self::Process(ALL.get())
    }
}

impl core::ops::Deref for AllListeners {
    type Target = Listeners;

    fn deref(&self) -> &Listeners {
        match self {
            Self::Process(listeners) => listeners,
            #[cfg(feature = "sim")]
            Self::Host(listeners) => listeners,
        }
    }
}

impl Listeners {
    /// A new listener, which wants no signal yet.
    pub(super) fn add(&self) -> Arc<Listener> {
        let listener = Arc::new(Listener::default());
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&listener));
        listener
    }

    /// Ends a listener. Returns its waker.
    pub(super) fn remove(&self, listener: &Arc<Listener>) -> Option<Waker> {
        self.process.lock(&self.all)?.retain(|other| !Arc::ptr_eq(other, listener));
        self.process.lock(&listener.0)?.waker.take()
    }

    /// Tells the listeners that signals came.
    pub(super) fn deliver(&self, signals: u64) {
        self.tell(signals, |told| told.came |= signals & told.wanted);
    }

    /// Wakes the listeners for these signals.
    pub(super) fn wake(&self, signals: u64) {
        self.tell(signals, |_| ());
    }

    fn tell(&self, signals: u64, tell: impl Fn(&mut Told)) {
        if signals == 0 || !self.process.is_current() {
            return;
        }
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let woken: Vec<_> = all
            .iter()
            .filter_map(|listener| {
                let mut told = listener.lock();
                if told.wanted & signals == 0 {
                    return None;
                }
                tell(&mut told);
                Some((told.waker.take()?, Arc::clone(listener)))
            })
            .collect();
        drop(all);
        for (waker, listener) in woken {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                let before = listener.lock().panic.replace(panic);
                discard(before);
            }
        }
    }
}

/// The destructor of a panic may panic.
fn discard(panic: Option<Box<dyn Any + Send>>) {
    discard_panic(panic.map_or(Ok(()), Err));
}

impl Drop for Told {
    fn drop(&mut self) {
        discard(self.panic.take());
    }
}

impl Listener {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn want(&self, signals: u64) {
        self.lock().wanted |= signals;
    }

    /// Takes the first bit of the signals that came, counted from `start`. If there is none, the
    /// waker is kept and replaces an earlier one.
    pub(super) fn poll_next(&self, start: u32, waker: &Waker) -> Poll<u32> {
        let panic = self.lock().panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        // Before the lock, because a clone is user code.
        let waker = waker.clone();
        let mut told = self.lock();
        let rotated = told.came.rotate_right(start);
        if rotated == 0 {
            let before = told.waker.replace(waker);
            drop(told);
            drop(before);
            return Poll::Pending;
        }
        let place = (rotated.trailing_zeros() + start) % u64::BITS;
        told.came &= !(1 << place);
        drop(told);
        Poll::Ready(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_fork_has_listeners_of_its_own_and_waits_for_no_lock_of_its_parent() {
        let parents = Listeners { process: OwnProcess::foreign(), ..Listeners::default() };
        let [copy, locked] = [(); 2].map(|()| parents.add());
        copy.want(1);
        let held = (parents.all.lock().unwrap(), locked.lock());
        let own = Listeners::default();
        let listener = own.add();
        listener.want(1);
        parents.deliver(1);
        assert!(listener.poll_next(0, Waker::noop()).is_pending());
        own.deliver(3);
        assert_eq!(listener.poll_next(0, Waker::noop()), Poll::Ready(0));
        assert!(listener.poll_next(0, Waker::noop()).is_pending());
        assert!(parents.remove(&locked).is_none());
        drop(held);
        assert!(copy.poll_next(0, Waker::noop()).is_pending());
        assert!(parents.remove(&locked).is_none() && own.remove(&listener).is_some());
        assert_eq!((parents.all.lock().unwrap().len(), own.all.lock().unwrap().len()), (1, 0));
    }
}
