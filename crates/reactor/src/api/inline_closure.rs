//! A closure that is called once. A small closure is stored in place, a large one in a box.
//!
//! A box that one thread allocates and another frees was the largest cost of a post. The
//! allocator's locks took two fifths of its time, and one more cache line moved between the
//! processors (2026-11, glibc 2.36). Code that defers a closure in every turn should not allocate
//! in every turn either (rule 12).
//!
//! # The protocol of this module
//!
//! 1. While an [`InlineClosure`] is alive, `data` begins with a live value of one type, the type
//!    that `vtable` was made for. The value fits by size and alignment.
//! 2. Code that moves the value out forgets the `InlineClosure`.

#![allow(unsafe_code, reason = "the closure's type is erased without a box; the protocol above")]

use core::{
    any::TypeId,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
};

use crate::{Reactor, Turn, api::ops::ReactorOps};

/// Room for a closure with a few words, for example a shared pointer, a key and two numbers.
type ClosureData = [MaybeUninit<*const ()>; 4];

/// A value that is called once: a closure, or a wrapper that isolates its destructor.
pub(crate) trait Once<R: ReactorOps>: 'static {
    fn once(self, turn: Turn<'_, R>);
}

impl<R: ReactorOps, O: Once<R>> Once<R> for Box<O> {
    fn once(self, turn: Turn<'_, R>) {
        (*self).once(turn);
    }
}

/// The operations on a value of erased type.
struct ClosureVTable<R: ReactorOps> {
    /// Moves the value out of its place and calls it. The value must be alive, and is gone
    /// afterwards.
    run: unsafe fn(*mut ClosureData, Turn<'_, R>),
    /// Drops the value in its place. The value must be alive, and is gone afterwards.
    drop: unsafe fn(*mut ClosureData),
    type_id: fn() -> TypeId,
}

/// A value of any type that is called once, or dropped.
pub(crate) struct InlineClosure<R: ReactorOps> {
    data: ClosureData,
    vtable: &'static ClosureVTable<R>,
    /// The value may be neither `Send` nor `Sync` nor `Unpin`.
    value: PhantomData<*mut R>,
}

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<ClosureData>() && align_of::<F>() <= align_of::<ClosureData>()
}

impl<R: ReactorOps + 'static> InlineClosure<R> {
    pub(crate) fn new<F: Once<R>>(value: F) -> Self {
        if fits::<F>() { Self::store(value) } else { Self::store(Box::new(value)) }
    }

    /// Returns the value passed to [`new`](Self::new), or `None` if it has another type.
    pub(crate) fn into_inner<F: Once<R>>(self) -> Option<F> {
        if fits::<F>() { self.take() } else { self.take::<Box<F>>().map(|value| *value) }
    }

    fn store<F: Once<R>>(value: F) -> Self {
        const { assert!(fits::<Box<F>>()) };
        assert!(fits::<F>(), "what does not fit is boxed");
        let mut data: ClosureData = [MaybeUninit::uninit(); 4];
        // SAFETY: the place is large enough and aligned for the value (asserted above), and it is
        // empty.
        unsafe { data.as_mut_ptr().cast::<F>().write(value) };
        let vtable = const {
            &ClosureVTable { run: run::<R, F>, drop: drop::<F>, type_id: TypeId::of::<F> }
        };
        Self { data, vtable, value: PhantomData }
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

    pub(crate) fn run(self, turn: Turn<'_, R>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the place holds a value of the vtable's type (protocol 1), and `this` is
        // forgotten (protocol 2).
        unsafe { (this.vtable.run)(&raw mut this.data, turn) };
    }
}

impl<R: ReactorOps> Drop for InlineClosure<R> {
    fn drop(&mut self) {
        // SAFETY: the place holds a value of the vtable's type (protocol 1), and it is not used
        // again.
        unsafe { (self.vtable.drop)(&raw mut self.data) };
    }
}

/// # Safety
/// The place holds an `F`, which is not used again.
unsafe fn run<R: ReactorOps, F: Once<R>>(data: *mut ClosureData, turn: Turn<'_, R>) {
    // SAFETY: the caller's promise.
    let value = unsafe { data.cast::<F>().read() };
    value.once(turn);
}

/// # Safety
/// The place holds an `F`, which is not used again.
unsafe fn drop<F>(data: *mut ClosureData) {
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
    use crate::Reactor;
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    /// Counts its drops. `WORDS` sets its size.
    struct Load<const WORDS: usize>(Arc<AtomicU32>, [u64; WORDS]);
    impl<const WORDS: usize> Drop for Load<WORDS> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[repr(align(64))]
    struct Aligned(u64);

    fn dropped_run_and_given_back<const WORDS: usize>() {
        let (drops, runs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let post = || {
            let (load, runs) = (Load(drops.clone(), [7; WORDS]), runs.clone());
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
        assert!(fits::<[u64; 4]>() && !fits::<[u64; 5]>() && !fits::<Aligned>());
    }

    #[test]
    fn an_alignment_beyond_a_words_is_kept() {
        let mut reactor = Reactor::new().unwrap();
        let (value, seen) = (Aligned(5), Arc::new(AtomicU32::new(0)));
        let theirs = seen.clone();
        let closure = move |_: Turn<'_>| {
            let value = value;
            assert_eq!((&raw const value).addr() % 64, 0);
            theirs.store(u32::try_from(value.0).unwrap(), Ordering::Relaxed);
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
}
