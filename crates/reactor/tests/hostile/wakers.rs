//! Wakers that panic on request.

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

/// Which calls of a rude waker panic, and which calls have happened.
#[derive(Default)]
pub(crate) struct Rude {
    pub(crate) in_clone: AtomicBool,
    pub(crate) in_wake: AtomicBool,
    pub(crate) in_drop: AtomicBool,
    pub(crate) wakes: AtomicUsize,
}

thread_local! {
    /// Runs on this thread during the next clone of a waker, before the clone exists.
    static IN_CLONE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Bypasses the panic hook, which would print each panic. During another panic this aborts the
/// process.
fn panic_if(told: &AtomicBool, what: &'static str) {
    if told.load(Ordering::Relaxed) {
        resume_unwind(Box::new(what));
    }
}

impl Rude {
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the functions of the table keep the contract of `RawWaker`. The pointer comes
        // from `Arc::into_raw`, and the waker owns that reference.
        unsafe { Waker::from_raw(raw(Arc::clone(self))) }
    }

    pub(crate) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Runs a closure during the next clone of a waker.
    pub(crate) fn in_next_clone(run: impl FnOnce() + 'static) {
        IN_CLONE.set(Some(Box::new(run)));
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, release);

fn raw(rude: Arc<Rude>) -> RawWaker {
    RawWaker::new(Arc::into_raw(rude).cast(), &TABLE)
}

/// # Safety
/// `data` must be the pointer of a waker that `raw` made.
unsafe fn owned(data: *const ()) -> Arc<Rude> {
    // SAFETY: `raw` made the pointer from such an `Arc`, and the waker owns that reference.
    unsafe { Arc::from_raw(data.cast()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the functions of the table receive the waker's own pointer. The `ManuallyDrop` leaves
    // the reference with the waker.
    let rude = ManuallyDrop::new(unsafe { owned(data) });
    if let Some(run) = IN_CLONE.take() {
        run();
    }
    panic_if(&rude.in_clone, "clone");
    raw(Arc::clone(&rude))
}

unsafe fn wake(data: *const ()) {
    // SAFETY: the functions of the table receive the waker's own pointer. This call consumes the
    // waker, so it may take its reference.
    let rude = unsafe { owned(data) };
    rude.wakes.fetch_add(1, Ordering::Relaxed);
    panic_if(&rude.in_wake, "wake");
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: as in `clone`: it is the waker's own pointer, and the waker keeps the reference.
    let rude = ManuallyDrop::new(unsafe { owned(data) });
    rude.wakes.fetch_add(1, Ordering::Relaxed);
    panic_if(&rude.in_wake, "wake");
}

unsafe fn release(data: *const ()) {
    // SAFETY: as in `wake`: it is the waker's own pointer, and this call consumes the waker.
    let rude = unsafe { owned(data) };
    panic_if(&rude.in_drop, "drop");
}
