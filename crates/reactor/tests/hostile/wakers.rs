//! Wakers that panic where they are told to.

#![allow(unsafe_code, reason = "only a waker made by hand can panic when it is cloned")]

use std::{
    cell::RefCell,
    mem::ManuallyDrop,
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{RawWaker, RawWakerVTable, Waker},
};

/// What a rude waker does, and did.
#[derive(Default)]
pub(crate) struct Rude {
    pub(crate) in_clone: AtomicBool,
    pub(crate) in_wake: AtomicBool,
    pub(crate) in_drop: AtomicBool,
    pub(crate) wakes: AtomicUsize,
}

thread_local! {
    /// What the next clone of a waker does on this thread before it is made.
    static IN_CLONE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Past the panic hook, which would say so each time. While another panic is under way, this ends
/// the process.
fn panic_if(told: &AtomicBool, what: &'static str) {
    if told.load(Ordering::Relaxed) {
        resume_unwind(Box::new(what));
    }
}

impl Rude {
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the table's functions keep the contract of `RawWaker`: the pointer is one of
        // `Arc::into_raw` that the waker owns.
        unsafe { Waker::from_raw(raw(Arc::clone(self))) }
    }

    pub(crate) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Runs a closure in the midst of the next clone of a waker.
    pub(crate) fn in_next_clone(run: impl FnOnce() + 'static) {
        IN_CLONE.set(Some(Box::new(run)));
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, release);

fn raw(rude: Arc<Rude>) -> RawWaker {
    RawWaker::new(Arc::into_raw(rude).cast(), &TABLE)
}

/// # Safety
/// `data` is a waker's own pointer.
unsafe fn owned(data: *const ()) -> Arc<Rude> {
    // SAFETY: `raw` made it from such an `Arc`, which the waker owns.
    unsafe { Arc::from_raw(data.cast()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the table's functions get a waker's own pointer; the waker stays the owner.
    let rude = ManuallyDrop::new(unsafe { owned(data) });
    if let Some(run) = IN_CLONE.take() {
        run();
    }
    panic_if(&rude.in_clone, "clone");
    raw(Arc::clone(&rude))
}

unsafe fn wake(data: *const ()) {
    // SAFETY: as in `clone`; this one consumes the waker.
    let rude = unsafe { owned(data) };
    rude.wakes.fetch_add(1, Ordering::Relaxed);
    panic_if(&rude.in_wake, "wake");
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: as in `clone`.
    let rude = ManuallyDrop::new(unsafe { owned(data) });
    rude.wakes.fetch_add(1, Ordering::Relaxed);
    panic_if(&rude.in_wake, "wake");
}

unsafe fn release(data: *const ()) {
    // SAFETY: as in `wake`.
    let rude = unsafe { owned(data) };
    panic_if(&rude.in_drop, "drop");
}
