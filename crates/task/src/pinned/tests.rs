//! Values that travel. Miri runs these tests, too.

use std::{
    cell::Cell,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Mutex,
        atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll},
    thread::{self, ThreadId},
};

use core::{marker::PhantomPinned, pin::Pin};

use super::Pinned;
use crate::{Executor, block_on, spawn, yield_now};

/// Notes on which thread it is dropped.
struct NotesDrop(Rc<Cell<Option<ThreadId>>>);

impl Drop for NotesDrop {
    fn drop(&mut self) {
        self.0.set(Some(thread::current().id()));
    }
}

fn noted() -> (NotesDrop, Rc<Cell<Option<ThreadId>>>) {
    let place = Rc::new(Cell::new(None));
    (NotesDrop(Rc::clone(&place)), place)
}

/// Runs a closure on another thread. Returns the message of its panic.
fn elsewhere(run: impl FnOnce() + Send + 'static) -> Option<String> {
    let payload = thread::spawn(run).join().err()?;
    Some(payload.downcast_ref::<String>().expect("a message").clone())
}

async fn until(is_there: impl Fn() -> bool) {
    while !is_there() {
        yield_now().await;
    }
}

#[test]
fn a_value_is_used_at_home() {
    block_on(async {
        let mut value = Pinned::new(5);
        *value += 1;
        assert_eq!((*value, Pinned::is_home(&value)), (6, true));
        assert_eq!(*Pinned::as_pin_mut(&mut value), 6);
        assert_eq!(format!("{value:?}"), "Pinned(6)");
        assert_eq!(Pinned::into_inner(value), 6);
    });
}

#[test]
fn it_is_dropped_at_home_at_once() {
    block_on(async {
        let (value, dropped) = noted();
        drop(Pinned::new(value));
        assert!(dropped.get().is_some());
    });
}

#[test]
fn every_use_elsewhere_panics_and_says_why() {
    block_on(async {
        for use_it in [
            |value: Pinned<u8>| _ = *value,
            |mut value: Pinned<u8>| *value = 1,
            |mut value: Pinned<u8>| _ = Pinned::as_pin_mut(&mut value),
            |value: Pinned<u8>| _ = Pinned::into_inner(value),
        ] {
            let value = Pinned::new(0_u8);
            let message = elsewhere(move || use_it(value)).expect("a panic");
            assert!(message.contains("`Pinned<u8>` was used on another thread"), "{message}");
        }
        let future = Pinned::new(core::future::ready(1));
        let polled = move || {
            let mut future = future;
            let _ = Pin::new(&mut future).poll(&mut Context::from_waker(core::task::Waker::noop()));
        };
        assert!(elsewhere(polled).expect("a panic").contains("only the thread that has made it"));
        let shown = Pinned::new(Cell::new(0));
        let show = move || {
            assert!(!Pinned::is_home(&shown));
            assert_eq!(format!("{shown:?}"), "Pinned(<of another thread>)");
        };
        assert_eq!(elsewhere(show), None);
    });
}

#[test]
fn a_value_dropped_elsewhere_comes_home() {
    block_on(async {
        for _ in 0..2 {
            let (value, dropped) = noted();
            let value = Pinned::new(value);
            assert_eq!(elsewhere(move || drop(value)), None);
            until(|| dropped.get().is_some()).await;
            assert_eq!(dropped.get(), Some(thread::current().id()));
        }
    });
}

/// The executor sleeps, and the value wakes it.
#[test]
fn a_value_that_comes_home_wakes_the_executor() {
    struct Wakes(core::task::Waker, Rc<Cell<bool>>);
    impl Drop for Wakes {
        fn drop(&mut self) {
            self.1.set(true);
            self.0.wake_by_ref();
        }
    }
    block_on(async {
        let is_done = Rc::new(Cell::new(false));
        let mut other = None;
        poll_fn(|context| {
            if other.is_none() {
                let value = Wakes(context.waker().clone(), Rc::clone(&is_done));
                let value = Pinned::new(value);
                other = Some(thread::spawn(move || drop(value)));
            }
            if is_done.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        other.unwrap().join().unwrap();
    });
}

#[test]
fn many_values_come_home_although_destructors_panic() {
    struct Panics(Rc<Cell<usize>>);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            if self.0.get() % 7 == 0 {
                panic!("a destructor that panics, on purpose");
            }
        }
    }
    const COUNT: usize = 200;
    block_on(async {
        let count = Rc::new(Cell::new(0));
        let values: Vec<_> = (0..COUNT).map(|_| Pinned::new(Panics(Rc::clone(&count)))).collect();
        assert_eq!(elsewhere(move || drop(values)), None);
        until(|| count.get() == COUNT).await;
    });
}

/// As in a turn, a panic of what has come home is ignored.
#[test]
fn at_the_end_of_the_executor_destructors_that_panic_are_ignored() {
    struct Panics(Rc<Cell<usize>>);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
    let mut executor = Executor::new().unwrap();
    let count = Rc::new(Cell::new(0));
    let values: Vec<_> = executor
        .block_on(async { (0..3).map(|_| Pinned::new(Panics(Rc::clone(&count)))).collect() });
    assert_eq!(elsewhere(move || drop(values)), None);
    assert_eq!(count.get(), 0);
    drop(executor);
    assert_eq!(count.get(), 3);
}

#[test]
fn a_destructor_that_panics_at_home_panics_there() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    block_on(async {
        let value = Pinned::new(Panics);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(value))).is_err());
        assert!(spawn(async { drop(Pinned::new(Panics)) }).await.unwrap_err().is_panic());
    });
}

/// Values that wait in the list when the executor ends.
#[test]
fn the_end_of_the_executor_drops_what_has_come_home() {
    let mut executor = Executor::new().unwrap();
    let (value, dropped) = noted();
    let value = executor.block_on(async { Pinned::new(value) });
    assert_eq!(elsewhere(move || drop(value)), None);
    assert_eq!(dropped.get(), None);
    drop(executor);
    assert_eq!(dropped.get(), Some(thread::current().id()));
}

#[test]
fn after_the_end_a_value_is_dropped_at_home_and_leaked_elsewhere() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Counts(#[allow(dead_code, reason = "it is not `Send`")] *const ());
    impl Drop for Counts {
        fn drop(&mut self) {
            DROPS.fetch_add(1, SeqCst);
        }
    }
    // What leaks is reachable, so leak checkers do not report it.
    static LEAKED: Mutex<Vec<AtomicPtr<()>>> = Mutex::new(Vec::new());
    let (at_home, away) = block_on(async {
        let new = || Pinned::new(Counts(core::ptr::null()));
        (new(), new())
    });
    let place: *const Counts = &raw const *away;
    LEAKED.lock().unwrap().push(AtomicPtr::new(place.cast_mut().cast()));
    assert_eq!(elsewhere(move || drop(away)), None);
    assert_eq!(DROPS.load(SeqCst), 0);
    drop(at_home);
    assert_eq!(DROPS.load(SeqCst), 1);
}

/// Other threads drop values while the executor ends: each is dropped here or leaked, never there.
#[test]
fn values_dropped_during_the_end_are_never_dropped_elsewhere() {
    struct HomeOnly(ThreadId, Rc<Cell<usize>>);
    impl Drop for HomeOnly {
        fn drop(&mut self) {
            assert_eq!(thread::current().id(), self.0);
            self.1.set(self.1.get() + 1);
        }
    }
    static LEAKED: Mutex<Vec<AtomicPtr<()>>> = Mutex::new(Vec::new());
    let rounds = if cfg!(miri) { 3 } else { 100 };
    for _ in 0..rounds {
        let drops = Rc::new(Cell::new(0));
        let mut executor = Executor::new().unwrap();
        let values: Vec<_> = executor.block_on(async {
            (0..20)
                .map(|_| Pinned::new(HomeOnly(thread::current().id(), Rc::clone(&drops))))
                .collect()
        });
        LEAKED.lock().unwrap().extend(values.iter().map(|value| {
            let place: *const HomeOnly = &raw const **value;
            AtomicPtr::new(place.cast_mut().cast())
        }));
        let (ready, is_ready) = mpsc::sync_channel(0);
        let dropping = thread::spawn(move || {
            ready.send(()).unwrap();
            drop(values);
        });
        is_ready.recv().unwrap();
        drop(executor);
        dropping.join().unwrap();
        assert!(drops.get() <= 20);
    }
}

/// A destructor at the executor's end makes another value, which goes with the same end.
#[test]
fn a_value_may_be_made_while_the_executor_ends() {
    struct MakesAnother(Rc<Cell<Option<ThreadId>>>);
    impl Drop for MakesAnother {
        fn drop(&mut self) {
            let value = Pinned::new(NotesDrop(Rc::clone(&self.0)));
            assert_eq!(elsewhere(move || drop(value)), None);
        }
    }
    let place = Rc::new(Cell::new(None));
    let mut executor = Executor::new().unwrap();
    let value = executor.block_on(async { Pinned::new(MakesAnother(Rc::clone(&place))) });
    assert_eq!(elsewhere(move || drop(value)), None);
    drop(executor);
    assert_eq!(place.get(), Some(thread::current().id()));
}

#[test]
fn a_future_keeps_its_place_and_is_polled_at_home() {
    struct Address(Option<usize>, PhantomPinned);
    impl Future for Address {
        type Output = bool;
        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
            let here = (&raw const *self).addr();
            // SAFETY: nothing is moved out.
            #[allow(unsafe_code, reason = "a field of a pinned future is changed")]
            let this = unsafe { self.get_unchecked_mut() };
            match this.0.replace(here) {
                Some(before) => Poll::Ready(before == here),
                None => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }
    }
    block_on(async {
        let mut future = Pinned::new(Address(None, PhantomPinned));
        assert!(
            poll_fn(|context| Poll::Ready(Pin::new(&mut future).poll(context))).await.is_pending()
        );
        // The handle moves, and goes to another thread and back.
        let moved = thread::spawn(move || Box::new(future)).join().unwrap();
        assert!(moved.await);
    });
}

#[test]
fn threads_have_numbers_of_their_own() {
    use super::ThreadNumber;
    let here = ThreadNumber::current();
    assert_eq!(here, ThreadNumber::current());
    let others: Vec<_> =
        (0..3).map(|_| thread::spawn(ThreadNumber::current).join().unwrap()).collect();
    assert!(others.iter().all(|other| *other != here));
    assert!(others[0] != others[1] && others[1] != others[2]);
}

#[test]
#[should_panic(expected = "no executor runs on this thread")]
fn without_an_executor_there_is_no_home() {
    let _ = Pinned::new(());
}

#[test]
fn it_is_send_and_sync_and_unpin() {
    fn check<T: Send + Sync + Unpin>() {}
    check::<Pinned<Rc<Cell<*const u8>>>>();
    check::<Pinned<PhantomPinned>>();
}
