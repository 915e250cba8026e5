//! A closure that will be called once: in place if it is small, in a box if not.
//!
//! A box that is made by one thread and freed by another is what a post cost most: the allocator's
//! locks took two fifths of its time, and a cache line more travelled between the processors
//! (2026-11, glibc 2.36). And who defers something in every turn should not allocate in every turn
//! (rule 12).
//!
//! # The protocol of this module
//!
//! 1. While a [`InlineClosure`] lives, `data` begins with a live value of one type, the one that
//!    `vtable` was made for. It fits there by size and alignment.
//! 2. Whoever moves the value out forgets the `InlineClosure`.

#![allow(unsafe_code, reason = "the closure's type is erased without a box; the protocol above")]

use core::{
    any::TypeId,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
};

use crate::{Reactor, Turn, turn::ReactorOps};

/// Room for a closure with a few words: a shared pointer, a key and two numbers, say.
type Data = [MaybeUninit<*const ()>; 4];

/// What is called once. A closure is, and so is one in a wrapper that minds its destructor.
pub(crate) trait Once<R: ReactorOps>: 'static {
    fn once(self, turn: Turn<'_, R>);
}

impl<R: ReactorOps, O: Once<R>> Once<R> for Box<O> {
    fn once(self, turn: Turn<'_, R>) {
        (*self).once(turn);
    }
}

/// What is done with a value whose type only this knows.
struct VTable<R: ReactorOps> {
    /// Moves the value out of its place and calls it. It must be there; it is gone afterwards.
    run: unsafe fn(*mut Data, Turn<'_, R>),
    /// Drops the value in its place. It must be there; it is gone afterwards.
    drop: unsafe fn(*mut Data),
    type_id: fn() -> TypeId,
}

/// Something of any type that is called once, or dropped.
pub(crate) struct InlineClosure<R: ReactorOps> {
    data: Data,
    vtable: &'static VTable<R>,
    /// It owns a value that may be neither `Send` nor `Sync` nor `Unpin`.
    value: PhantomData<*mut R>,
}

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Data>() && align_of::<F>() <= align_of::<Data>()
}

impl<R: ReactorOps + 'static> InlineClosure<R> {
    pub(crate) fn new<F: Once<R>>(value: F) -> Self {
        if fits::<F>() { Self::store(value) } else { Self::store(Box::new(value)) }
    }

    /// What [`new`](Self::new) was given; `None` if that was of another type.
    pub(crate) fn into_inner<F: Once<R>>(self) -> Option<F> {
        if fits::<F>() { self.take() } else { self.take::<Box<F>>().map(|value| *value) }
    }

    fn store<F: Once<R>>(value: F) -> Self {
        const { assert!(fits::<Box<F>>()) };
        assert!(fits::<F>(), "what does not fit is boxed");
        let mut data: Data = [MaybeUninit::uninit(); 4];
        // SAFETY: the place is large enough and aligned for the value (asserted above), and nothing
        // is in it.
        unsafe { data.as_mut_ptr().cast::<F>().write(value) };
        let vtable =
            const { &VTable { run: run::<R, F>, drop: drop::<F>, type_id: TypeId::of::<F> } };
        Self { data, vtable, value: PhantomData }
    }

    fn take<F: 'static>(self) -> Option<F> {
        if (self.vtable.type_id)() != TypeId::of::<F>() {
            return None;
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: a value of this very type is there (protocol 1), and `this` is forgotten
        // (protocol 2).
        Some(unsafe { this.data.as_mut_ptr().cast::<F>().read() })
    }

    pub(crate) fn run(self, turn: Turn<'_, R>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is there, and of the vtable's type (protocol 1); `this` is forgotten
        // (protocol 2).
        unsafe { (this.vtable.run)(&raw mut this.data, turn) };
    }
}

impl<R: ReactorOps> Drop for InlineClosure<R> {
    fn drop(&mut self) {
        // SAFETY: the value is there, and of the vtable's type (protocol 1); this is the end of it.
        unsafe { (self.vtable.drop)(&raw mut self.data) };
    }
}

/// # Safety
/// An `F` is there, and is not used again.
unsafe fn run<R: ReactorOps, F: Once<R>>(data: *mut Data, turn: Turn<'_, R>) {
    // SAFETY: the caller's promise.
    let value = unsafe { data.cast::<F>().read() };
    value.once(turn);
}

/// # Safety
/// An `F` is there, and is not used again.
unsafe fn drop<F>(data: *mut Data) {
    // SAFETY: the caller's promise.
    unsafe { data.cast::<F>().drop_in_place() };
}

/// A closure that another thread has posted.
pub(crate) struct Posted(InlineClosure<Reactor>);

// SAFETY: what is in it is `Send`: `new` asks for that.
unsafe impl Send for Posted {}

/// A closure as it is.
struct Plain<F>(F);

impl<F: FnOnce(Turn<'_>) + 'static> Once<Reactor> for Plain<F> {
    fn once(self, turn: Turn<'_>) {
        (self.0)(turn);
    }
}

impl Posted {
    pub(crate) fn new<F: FnOnce(Turn<'_>) + Send + 'static>(closure: F) -> Self {
        Self(InlineClosure::new(Plain(closure)))
    }

    /// What [`new`](Self::new) was given.
    ///
    /// # Panics
    /// If that was of another type.
    pub(crate) fn into_inner<F: FnOnce(Turn<'_>) + Send + 'static>(self) -> F {
        self.0.into_inner::<Plain<F>>().expect("what comes back is what was posted").0
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

    /// Counts its drops; as large as one likes.
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
