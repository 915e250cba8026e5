//! A timer's handler of erased type. A small one is stored in place, a large one in a box.
//!
//! # The protocol of this module
//!
//! 1. While an [`InlineTimer`] is alive, `data` begins with a live value of one type, the type that
//!    `vtable` was made for. The value fits by size and alignment.
//! 2. Code that moves the value out forgets the `InlineTimer`.

#![allow(unsafe_code, reason = "the handler's type is erased without a box; the protocol above")]

use core::{
    any::TypeId,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
};

use crate::{
    Tick, Turn,
    api::{ops::ReactorOps, timer::TimerCall},
};

/// Room for a closure with a few words, for example a shared pointer, a key and two numbers.
type TimerData = [MaybeUninit<*const ()>; 4];

impl<R: ReactorOps, C: TimerCall<R>> TimerCall<R> for Box<C> {
    fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        (**self).fire(tick, turn);
    }
}

/// The operations on a value of erased type.
struct TimerVTable<R: ReactorOps> {
    /// Calls the value in its place. The value must be alive.
    fire: unsafe fn(*mut TimerData, Tick, Turn<'_, R>),
    /// Drops the value in its place. The value must be alive, and is gone afterwards.
    drop: unsafe fn(*mut TimerData),
    type_id: fn() -> TypeId,
}

/// A timer's handler of any type.
pub(crate) struct InlineTimer<R: ReactorOps> {
    data: TimerData,
    vtable: &'static TimerVTable<R>,
    /// The value may be neither `Send` nor `Sync` nor `Unpin`.
    value: PhantomData<*mut R>,
}

const fn fits<C>() -> bool {
    size_of::<C>() <= size_of::<TimerData>() && align_of::<C>() <= align_of::<TimerData>()
}

impl<R: ReactorOps> InlineTimer<R> {
    pub(crate) fn new<C: TimerCall<R>>(value: C) -> Self {
        if fits::<C>() { Self::store(value) } else { Self::store(Box::new(value)) }
    }

    /// Returns the value passed to [`new`](Self::new), or `None` if it has another type.
    pub(crate) fn into_inner<C: TimerCall<R>>(self) -> Option<C> {
        if fits::<C>() { self.take() } else { self.take::<Box<C>>().map(|value| *value) }
    }

    fn store<C: TimerCall<R>>(value: C) -> Self {
        const { assert!(fits::<Box<C>>()) };
        assert!(fits::<C>(), "what does not fit is boxed");
        let mut data: TimerData = [MaybeUninit::uninit(); 4];
        // SAFETY: the place is large enough and aligned for the value (asserted above), and it is
        // empty.
        unsafe { data.as_mut_ptr().cast::<C>().write(value) };
        let vtable = const {
            &TimerVTable { fire: fire::<R, C>, drop: drop::<C>, type_id: TypeId::of::<C> }
        };
        Self { data, vtable, value: PhantomData }
    }

    fn take<C: 'static>(self) -> Option<C> {
        if (self.vtable.type_id)() != TypeId::of::<C>() {
            return None;
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the place holds a value of this type (protocol 1), and `this` is forgotten
        // (protocol 2).
        Some(unsafe { this.data.as_mut_ptr().cast::<C>().read() })
    }

    pub(crate) fn fire(&mut self, tick: Tick, turn: Turn<'_, R>) {
        // SAFETY: the place holds a value of the vtable's type (protocol 1).
        unsafe { (self.vtable.fire)(&raw mut self.data, tick, turn) };
    }
}

impl<R: ReactorOps> Drop for InlineTimer<R> {
    fn drop(&mut self) {
        // SAFETY: the place holds a value of the vtable's type (protocol 1), and it is not used
        // again.
        unsafe { (self.vtable.drop)(&raw mut self.data) };
    }
}

/// # Safety
/// The place holds a `C`, which nothing else accesses.
unsafe fn fire<R: ReactorOps, C: TimerCall<R>>(
    data: *mut TimerData,
    tick: Tick,
    turn: Turn<'_, R>,
) {
    // SAFETY: the caller's promise.
    let value = unsafe { &mut *data.cast::<C>() };
    value.fire(tick, turn);
}

/// # Safety
/// The place holds a `C`, which is not used again.
unsafe fn drop<C>(data: *mut TimerData) {
    // SAFETY: the caller's promise.
    unsafe { data.cast::<C>().drop_in_place() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Reactor};
    use std::{cell::Cell, rc::Rc, time::Instant};

    /// Counts its drops and firings. `WORDS` sets its size.
    struct Load<const WORDS: usize> {
        drops: Rc<Cell<u32>>,
        fired: Rc<Cell<u32>>,
        own: [u32; WORDS],
    }
    impl<const WORDS: usize> TimerCall<Reactor> for Load<WORDS> {
        fn fire(&mut self, _: Tick, _: Turn<'_>) {
            self.own[0] += 1;
            self.fired.set(self.own[0]);
        }
    }
    impl<const WORDS: usize> Drop for Load<WORDS> {
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
        let load = || Load::<WORDS> { drops: drops.clone(), fired: fired.clone(), own: [0; WORDS] };
        let mut timer = InlineTimer::new(load());
        timer.fire(tick(), Turn::new(reactor));
        // It may be moved between two firings.
        let mut moved = Box::new(timer);
        moved.fire(tick(), Turn::new(reactor));
        assert_eq!((drops.get(), fired.get()), (0, 2));
        let given_back = moved.into_inner::<Load<WORDS>>().unwrap();
        assert_eq!((drops.get(), given_back.own[0]), (0, 2));
        core::mem::drop(InlineTimer::<Reactor>::new(load()));
        assert_eq!(drops.get(), 1);
        assert!(InlineTimer::<Reactor>::new(load()).into_inner::<Aligned>().is_none());
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
    fn an_alignment_beyond_a_words_is_kept() {
        let mut reactor = Reactor::new().unwrap();
        let offset = Rc::new(Cell::new(0));
        let mut timer = InlineTimer::new(Aligned(offset.clone()));
        timer.fire(tick(), Turn::new(&mut reactor));
        assert_eq!(offset.get(), 1);
    }
}
