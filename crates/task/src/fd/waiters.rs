//! The wakers that wait for one direction of a descriptor.
//!
//! No borrow is held while a waker is cloned, woken or dropped, because a foreign waker runs code
//! of its own.

use core::{
    cell::{Cell, RefCell},
    mem,
    task::Waker,
};

use windlass_flow::panics::Panics;

use crate::task::waker_slot;

/// One waker for `poll_*` methods, and a list for futures that borrow the object.
#[derive(Default)]
pub(crate) struct Waiters {
    one: Cell<Option<Waker>>,
    /// In the order of their numbers.
    list: RefCell<Vec<(u64, Waker)>>,
    next: Cell<u64>,
}

impl Waiters {
    /// Stores the waker of a `poll_*` method, in place of the one before.
    #[inline]
    pub(crate) fn set_one(&self, waker: &Waker) {
        waker_slot::store(&self.one, waker);
    }

    /// Stores the waker of a future, in place of its waker before. `entry` has the future's number.
    fn set_listed(&self, entry: &Cell<Option<u64>>, waker: &Waker) {
        let is_current = |listed: &mut Waker| listed.will_wake(waker);
        let number = match entry.get() {
            Some(number) if self.find(number, is_current) == Some(true) => return,
            Some(number) if self.find(number, |_| ()).is_some() => number,
            _ => self.push(Waker::noop().clone()),
        };
        entry.set(Some(number));
        // The clone may be the user's code, which may run or drop the executor, or panic. What is
        // waited for may come meanwhile, and takes the waker that it finds. Then the new one is
        // woken.
        let clone = waker.clone();
        let mut clone = Some(clone);
        let swap = |listed: &mut Waker| clone.take().map(|clone| mem::replace(listed, clone));
        // The old waker is dropped when no borrow is held.
        drop(self.find(number, swap));
        if let Some(clone) = clone {
            entry.set(Some(self.push(clone)));
            waker.wake_by_ref();
        }
    }

    fn push(&self, waker: Waker) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.list.borrow_mut().push((number, waker));
        number
    }

    fn find<T>(&self, number: u64, call: impl FnOnce(&mut Waker) -> T) -> Option<T> {
        let mut list = self.list.borrow_mut();
        let index = list.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(call(&mut list[index].1))
    }

    fn remove(&self, number: u64) {
        let removed = {
            let mut list = self.list.borrow_mut();
            let index = list.binary_search_by_key(&number, |(number, _)| *number);
            index.ok().map(|index| list.remove(index))
        };
        drop(removed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        let one = self.one.take();
        let is_empty = one.is_none() && self.list.borrow().is_empty();
        drop(self.one.replace(one));
        is_empty
    }

    /// Wakes and removes all. A panic of a foreign waker does not keep the others from being woken.
    #[inline]
    pub(crate) fn wake_all(&self) {
        let one = self.one.take();
        if self.list.borrow().is_empty() {
            if let Some(one) = one {
                one.wake();
            }
        } else {
            self.wake_list(one);
        }
    }

    #[cold]
    fn wake_list(&self, one: Option<Waker>) {
        let mut panics = Panics::default();
        let mut woken = self.list.take();
        for waker in one.into_iter().chain(woken.drain(..).map(|(_, waker)| waker)) {
            panics.catch(|| waker.wake());
        }
        let mut list = self.list.borrow_mut();
        if list.capacity() == 0 {
            // The next waiter needs no allocation.
            *list = woken;
        }
        drop(list);
        panics.resume();
    }
}

/// The entry of a future in the list. Dropping it removes the waker.
pub(crate) struct ListedWaiter<'w> {
    waiters: &'w Waiters,
    number: Cell<Option<u64>>,
}

impl<'w> ListedWaiter<'w> {
    pub(crate) const fn new(waiters: &'w Waiters) -> Self {
        Self { waiters, number: Cell::new(None) }
    }

    pub(crate) fn set(&self, waker: &Waker) {
        self.waiters.set_listed(&self.number, waker);
    }
}

impl Drop for ListedWaiter<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number.get() {
            self.waiters.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn counting() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), Waker::from(count))
    }

    #[test]
    fn one_is_replaced_and_the_list_keeps_all() {
        let waiters = Waiters::default();
        let wakers: Vec<_> = (0..4).map(|_| counting()).collect();
        waiters.set_one(&wakers[0].1);
        waiters.set_one(&wakers[1].1);
        let listed = [ListedWaiter::new(&waiters), ListedWaiter::new(&waiters)];
        listed[0].set(&wakers[2].1);
        listed[1].set(&wakers[3].1);
        waiters.wake_all();
        let counts: Vec<_> = wakers.iter().map(|(count, _)| count.0.load(SeqCst)).collect();
        assert_eq!(counts, [0, 1, 1, 1]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_dropped_waiter_is_not_woken_and_its_waker_is_dropped() {
        let waiters = Waiters::default();
        let (first, second) = (counting(), counting());
        let listed = ListedWaiter::new(&waiters);
        let other = ListedWaiter::new(&waiters);
        listed.set(&first.1);
        other.set(&first.1);
        other.set(&second.1);
        assert_eq!(Arc::strong_count(&first.0), 3, "replaced once");
        drop(listed);
        assert_eq!(Arc::strong_count(&first.0), 2);
        waiters.wake_all();
        assert_eq!((first.0.0.load(SeqCst), second.0.0.load(SeqCst)), (0, 1));
        drop(other);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_waiter_that_was_woken_is_listed_again() {
        let waiters = Waiters::default();
        let (count, waker) = counting();
        let listed = ListedWaiter::new(&waiters);
        for round in 1..4 {
            listed.set(&waker);
            listed.set(&waker);
            waiters.wake_all();
            assert_eq!(count.0.load(SeqCst), round);
        }
    }

    #[test]
    fn a_panic_of_one_waker_does_not_keep_the_others_from_being_woken() {
        struct Bomb;
        impl Wake for Bomb {
            fn wake(self: Arc<Self>) {
                std::panic::resume_unwind(Box::new("bomb"));
            }
        }
        let waiters = Waiters::default();
        let (count, waker) = counting();
        let bomb = ListedWaiter::new(&waiters);
        bomb.set(&Waker::from(Arc::new(Bomb)));
        let listed = ListedWaiter::new(&waiters);
        listed.set(&waker);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiters.wake_all()));
        assert!(result.is_err());
        assert_eq!(count.0.load(SeqCst), 1);
    }
}
