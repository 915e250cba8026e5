//! [`GracefulShutdown`]: tells the connections of a server that they are to end.

use core::{
    cell::{Cell, RefCell},
    task::Waker,
};
use std::rc::Rc;

/// The wakers of all connections. A shutdown wakes them.
#[derive(Default)]
pub(crate) struct GracefulShutdown {
    is_draining: Cell<bool>,
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

impl GracefulShutdown {
    /// Tells all connections that they are to end.
    pub(crate) fn drain(&self) {
        self.is_draining.set(true);
        let wakers: Vec<_> = self.wakers.borrow().iter().flatten().cloned().collect();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    pub(crate) fn watcher(self: &Rc<Self>) -> ShutdownWatcher {
        let free = self.free.borrow_mut().pop();
        let mut wakers = self.wakers.borrow_mut();
        let index = free.unwrap_or_else(|| {
            wakers.push(None);
            wakers.len() - 1
        });
        ShutdownWatcher { shutdown: Rc::clone(self), index }
    }
}

/// A connection's part. Its waker is forgotten when it is dropped.
pub(crate) struct ShutdownWatcher {
    shutdown: Rc<GracefulShutdown>,
    index: usize,
}

impl ShutdownWatcher {
    /// Whether the connection is to end. If not, the waker is called when it is.
    #[inline]
    pub(crate) fn is_draining(&self, waker: &Waker) -> bool {
        if self.shutdown.is_draining.get() {
            return true;
        }
        let mut wakers = self.shutdown.wakers.borrow_mut();
        let slot = &mut wakers[self.index];
        if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
            let before = slot.replace(waker.clone());
            // The destructor of a waker may be anybody's code.
            drop(wakers);
            drop(before);
        }
        false
    }
}

impl Drop for ShutdownWatcher {
    fn drop(&mut self) {
        let waker = self.shutdown.wakers.borrow_mut()[self.index].take();
        self.shutdown.free.borrow_mut().push(self.index);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_a_drain_reaches_those_that_wait() {
        let shutdown = Rc::new(GracefulShutdown::default());
        let (first, second) = (shutdown.watcher(), shutdown.watcher());
        assert!(!first.is_draining(Waker::noop()) && !second.is_draining(Waker::noop()));
        drop(first);
        let third = shutdown.watcher();
        assert_eq!((third.index, shutdown.wakers.borrow().len()), (0, 2));
        shutdown.drain();
        assert!(second.is_draining(Waker::noop()) && third.is_draining(Waker::noop()));
    }

    #[test]
    fn a_drain_wakes_the_last_waker_of_each_connection() {
        use std::{
            sync::{
                Arc,
                atomic::{AtomicUsize, Ordering::Relaxed},
            },
            task::Wake,
        };
        #[derive(Default)]
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let counts = [(); 3].map(|()| Arc::new(Count::default()));
        let shutdown = Rc::new(GracefulShutdown::default());
        let (first, second) = (shutdown.watcher(), shutdown.watcher());
        for (watcher, count) in [(&first, 0), (&first, 1), (&first, 1), (&second, 2)] {
            assert!(!watcher.is_draining(&Waker::from(Arc::clone(&counts[count]))));
        }
        drop(second);
        shutdown.drain();
        assert_eq!(counts.map(|count| count.0.load(Relaxed)), [0, 1, 0]);
    }
}
