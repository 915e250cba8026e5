//! A callable of erased type: a closure that is called once, or a timer's handler. A small one is
//! stored in place, a large one in a box.
//!
//! A box that one thread allocates and another frees was the largest cost of a post: the
//! allocator's locks, and one more cache line that moved between the processors (glibc 2.36). Code
//! that defers a closure in every turn should not allocate in every turn either (rule 12).
//!
//! # The protocol of this module
//!
//! 1. While an [`InlineCall`] is alive, `data` begins with a live value of one type, the type that
//!    `vtable` was made for. The value fits by size and alignment.
//! 2. Code that moves the value out forgets the `InlineCall`.

#![allow(unsafe_code, reason = "the callable's type is erased without a box; the protocol above")]

use core::{
    any::TypeId,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
};

use crate::{
    Reactor, Tick, Turn,
    api::{ops::ReactorOps, timer::TimerCall},
};

/// Room for a closure with a few words, for example a shared pointer, a key and two numbers.
type Data = [MaybeUninit<*const ()>; 4];

/// Moves a value out of its place and calls it. The value must be alive, and is gone afterwards.
type CallOnce<R> = unsafe fn(*mut Data, Turn<'_, R>);

/// Calls a value in its place. The value must be alive, and nothing else may access it.
type CallMut<R> = unsafe fn(*mut Data, Tick, Turn<'_, R>);

/// The operations on a value of erased type. `C` is the type of the function that calls it.
pub(crate) struct CallVTable<C> {
    call: C,
    /// Drops the value in its place. The value must be alive, and is gone afterwards.
    drop: unsafe fn(*mut Data),
    type_id: fn() -> TypeId,
}

/// A type whose values are called by functions of type `C`.
///
/// # Safety
/// The functions of the table are those of this type.
pub(crate) unsafe trait Callable<C: 'static>: 'static {
    const VTABLE: &'static CallVTable<C>;
}

/// A value of any type that can be called by a function of type `C`.
pub(crate) struct InlineCall<C: 'static> {
    data: Data,
    vtable: &'static CallVTable<C>,
    /// The value may be neither `Send` nor `Sync` nor `Unpin`.
    value: PhantomData<*mut C>,
}

/// A value that is called once, or dropped.
pub(crate) type InlineClosure<R> = InlineCall<CallOnce<R>>;

/// A timer's handler.
pub(crate) type InlineTimer<R> = InlineCall<CallMut<R>>;

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Data>() && align_of::<F>() <= align_of::<Data>()
}

impl<C> InlineCall<C> {
    pub(crate) fn new<F: Callable<C>>(value: F) -> Self
    where
        Box<F>: Callable<C>,
    {
        if fits::<F>() { Self::store(value) } else { Self::store(Box::new(value)) }
    }

    /// Returns the value passed to [`new`](Self::new), or `None` if it has another type.
    pub(crate) fn into_inner<F: 'static>(self) -> Option<F> {
        if fits::<F>() { self.take() } else { self.take::<Box<F>>().map(|value| *value) }
    }

    fn store<F: Callable<C>>(value: F) -> Self {
        const { assert!(fits::<Box<F>>()) };
        assert!(fits::<F>(), "what does not fit is boxed");
        let mut data: Data = [MaybeUninit::uninit(); 4];
        // SAFETY: the place is large enough and aligned for the value (asserted above), and it is
        // empty.
        unsafe { data.as_mut_ptr().cast::<F>().write(value) };
        Self { data, vtable: F::VTABLE, value: PhantomData }
    }

    fn take<F: 'static>(self) -> Option<F> {
        if (self.vtable.type_id)() != TypeId::of::<F>() {
            return None;
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the place holds a value of this type (protocol 1), and `this` is forgotten
        // (protocol 2).
        Some(unsafe { this.data.as_mut_ptr().cast::<F>().read() })
    }
}

impl<R: ReactorOps> InlineClosure<R> {
    pub(crate) fn run(self, turn: Turn<'_, R>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the place holds a value of the vtable's type (protocol 1), and `this` is
        // forgotten (protocol 2).
        unsafe { (this.vtable.call)(&raw mut this.data, turn) };
    }
}

impl<R: ReactorOps> InlineTimer<R> {
    pub(crate) fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        // SAFETY: the place holds a value of the vtable's type (protocol 1).
        unsafe { (self.vtable.call)(&raw mut self.data, tick, turn) };
    }
}

impl<C> Drop for InlineCall<C> {
    fn drop(&mut self) {
        // SAFETY: the place holds a value of the vtable's type (protocol 1), and it is not used
        // again.
        unsafe { (self.vtable.drop)(&raw mut self.data) };
    }
}

/// A value that is called once: a closure, or a wrapper that isolates its destructor.
pub(crate) trait Once<R: ReactorOps>: 'static {
    fn once(self, turn: Turn<'_, R>);
}

impl<R: ReactorOps, O: Once<R>> Once<R> for Box<O> {
    fn once(self, turn: Turn<'_, R>) {
        (*self).once(turn);
    }
}

impl<R: ReactorOps, C: TimerCall<R>> TimerCall<R> for Box<C> {
    fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        (**self).fire(tick, turn);
    }
}

// SAFETY: each function is instantiated for `O`.
unsafe impl<R: ReactorOps, O: Once<R>> Callable<CallOnce<R>> for O {
    const VTABLE: &'static CallVTable<CallOnce<R>> =
        &CallVTable { call: run::<R, O>, drop: drop::<O>, type_id: TypeId::of::<O> };
}

// SAFETY: each function is instantiated for `T`.
unsafe impl<R: ReactorOps, T: TimerCall<R>> Callable<CallMut<R>> for T {
    const VTABLE: &'static CallVTable<CallMut<R>> =
        &CallVTable { call: fire::<R, T>, drop: drop::<T>, type_id: TypeId::of::<T> };
}

/// # Safety
/// The place holds an `F`, which is not used again.
unsafe fn run<R: ReactorOps, F: Once<R>>(data: *mut Data, turn: Turn<'_, R>) {
    // SAFETY: the caller's promise.
    let value = unsafe { data.cast::<F>().read() };
    value.once(turn);
}

/// # Safety
/// The place holds an `F`, which nothing else accesses.
unsafe fn fire<R: ReactorOps, F: TimerCall<R>>(data: *mut Data, tick: Tick, turn: Turn<'_, R>) {
    // SAFETY: the caller's promise.
    let value = unsafe { &mut *data.cast::<F>() };
    value.fire(tick, turn);
}

/// # Safety
/// The place holds an `F`, which is not used again.
unsafe fn drop<F>(data: *mut Data) {
    // SAFETY: the caller's promise.
    unsafe { data.cast::<F>().drop_in_place() };
}

/// A closure posted by another thread.
pub(crate) struct Posted(InlineClosure<Reactor>);

// SAFETY: the value inside is `Send`, because `new` requires it.
unsafe impl Send for Posted {}

/// A closure without a wrapper.
struct PlainClosure<F>(F);

impl<F: FnOnce(Turn<'_>) + 'static> Once<Reactor> for PlainClosure<F> {
    fn once(self, turn: Turn<'_>) {
        (self.0)(turn);
    }
}

impl Posted {
    pub(crate) fn new<F: FnOnce(Turn<'_>) + Send + 'static>(closure: F) -> Self {
        Self(InlineClosure::new(PlainClosure(closure)))
    }

    /// Returns the value passed to [`new`](Self::new).
    ///
    /// # Panics
    /// If it has another type.
    pub(crate) fn into_inner<F: FnOnce(Turn<'_>) + Send + 'static>(self) -> F {
        self.0.into_inner::<PlainClosure<F>>().expect("what comes back is what was posted").0
    }

    pub(crate) fn run(self, turn: Turn<'_>) {
        self.0.run(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use std::{
        cell::Cell,
        rc::Rc,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        time::Instant,
    };

    /// Counts its drops. `WORDS` sets its size.
    struct Closure<const WORDS: usize>(Arc<AtomicU32>, [u64; WORDS]);
    impl<const WORDS: usize> Drop for Closure<WORDS> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn dropped_run_and_given_back<const WORDS: usize>() {
        let (drops, runs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let post = || {
            let (load, runs) = (Closure(drops.clone(), [7; WORDS]), runs.clone());
            move |_: Turn<'_>| {
                let _load = load;
                runs.fetch_add(1, Ordering::Relaxed);
            }
        };
        core::mem::drop(Posted::new(post()));
        assert_eq!((drops.load(Ordering::Relaxed), runs.load(Ordering::Relaxed)), (1, 0));
        let mut reactor = Reactor::new().unwrap();
        Posted::new(post()).run(Turn::new(&mut reactor));
        assert_eq!((drops.load(Ordering::Relaxed), runs.load(Ordering::Relaxed)), (2, 1));
        fn same<F: FnOnce(Turn<'_>) + Send + 'static>(closure: F) -> F {
            Posted::new(closure).into_inner()
        }
        same(post())(Turn::new(&mut reactor));
        assert_eq!((drops.load(Ordering::Relaxed), runs.load(Ordering::Relaxed)), (3, 2));
        assert_eq!(Arc::strong_count(&drops), 1);
    }

    #[test]
    fn closures_of_every_size_are_run_or_dropped_once() {
        dropped_run_and_given_back::<0>();
        dropped_run_and_given_back::<2>();
        dropped_run_and_given_back::<3>();
        dropped_run_and_given_back::<100>();
    }

    #[test]
    fn an_alignment_beyond_a_words_is_kept_for_a_closure() {
        #[repr(align(64))]
        struct Wide(u32);
        let mut reactor = Reactor::new().unwrap();
        let (value, seen) = (Wide(5), Arc::new(AtomicU32::new(0)));
        let theirs = seen.clone();
        let closure = move |_: Turn<'_>| {
            let value = value;
            assert_eq!((&raw const value).addr() % 64, 0);
            theirs.store(value.0, Ordering::Relaxed);
        };
        Posted::new(closure).run(Turn::new(&mut reactor));
        assert_eq!(seen.load(Ordering::Relaxed), 5);
    }

    #[test]
    #[should_panic(expected = "what comes back is what was posted")]
    fn another_type_does_not_come_back() {
        fn pretend<F: FnOnce(Turn<'_>) + Send + 'static>(posted: Posted, _: &F) -> F {
            posted.into_inner()
        }
        let posted = Posted::new(|_: Turn<'_>| {});
        let _ = pretend(posted, &|_: Turn<'_>| {});
    }

    /// Counts its drops and firings. `WORDS` sets its size.
    struct Handler<const WORDS: usize> {
        drops: Rc<Cell<u32>>,
        fired: Rc<Cell<u32>>,
        own: [u32; WORDS],
    }
    impl<const WORDS: usize> TimerCall<Reactor> for Handler<WORDS> {
        fn fire(&mut self, _: Tick, _: Turn<'_>) {
            self.own[0] += 1;
            self.fired.set(self.own[0]);
        }
    }
    impl<const WORDS: usize> Drop for Handler<WORDS> {
        fn drop(&mut self) {
            self.drops.set(self.drops.get() + 1);
        }
    }

    #[repr(align(64))]
    struct Aligned(Rc<Cell<usize>>);
    impl TimerCall<Reactor> for Aligned {
        fn fire(&mut self, _: Tick, _: Turn<'_>) {
            self.0.set((&raw const *self).addr() % 64 + 1);
        }
    }

    fn tick() -> Tick {
        Tick { key: Key::from_bits(1), deadline: Instant::now(), missed: 0 }
    }

    fn fired_dropped_and_given_back<const WORDS: usize>(reactor: &mut Reactor) {
        let (drops, fired) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let handler =
            || Handler::<WORDS> { drops: drops.clone(), fired: fired.clone(), own: [0; WORDS] };
        let mut timer = InlineTimer::new(handler());
        timer.fire(tick(), Turn::new(reactor));
        // It may be moved between two firings.
        let mut moved = Box::new(timer);
        moved.fire(tick(), Turn::new(reactor));
        assert_eq!((drops.get(), fired.get()), (0, 2));
        let given_back = moved.into_inner::<Handler<WORDS>>().unwrap();
        assert_eq!((drops.get(), given_back.own[0]), (0, 2));
        core::mem::drop(InlineTimer::<Reactor>::new(handler()));
        assert_eq!(drops.get(), 1);
        assert!(InlineTimer::<Reactor>::new(handler()).into_inner::<Aligned>().is_none());
        core::mem::drop(given_back);
        assert_eq!((drops.get(), Rc::strong_count(&drops)), (3, 1));
    }

    #[test]
    fn handlers_of_every_size_are_fired_and_dropped_once() {
        let mut reactor = Reactor::new().unwrap();
        fired_dropped_and_given_back::<1>(&mut reactor);
        fired_dropped_and_given_back::<4>(&mut reactor);
        fired_dropped_and_given_back::<5>(&mut reactor);
        fired_dropped_and_given_back::<100>(&mut reactor);
        assert!(fits::<[u64; 4]>() && !fits::<[u64; 5]>() && !fits::<Aligned>());
    }

    #[test]
    fn an_alignment_beyond_a_words_is_kept_for_a_handler() {
        let mut reactor = Reactor::new().unwrap();
        let offset = Rc::new(Cell::new(0));
        let mut timer = InlineTimer::new(Aligned(offset.clone()));
        timer.fire(tick(), Turn::new(&mut reactor));
        assert_eq!(offset.get(), 1);
    }
}
