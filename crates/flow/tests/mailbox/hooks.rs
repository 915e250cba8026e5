//! A waker that runs code of the test when it is cloned, woken or dropped.
//!
//! [`std::task::Wake`] does not control cloning, so this is a raw waker. Its data is an
//! `Arc<Hooks>` as a pointer. Each waker owns one reference count, which [`Hooks::waker`] or
//! [`clone`] creates, and [`wake`] or [`release`] gives back once.

#![expect(unsafe_code, reason = "a waker whose clone is the test's own code")]

use std::{
    mem::ManuallyDrop,
    sync::Arc,
    task::{RawWaker, RawWakerVTable, Waker},
};

type Hook = Box<dyn Fn() + Send + Sync>;

/// The actions of a waker.
pub(crate) struct Hooks {
    pub(crate) on_clone: Hook,
    pub(crate) on_wake: Hook,
    pub(crate) on_drop: Hook,
}

impl Default for Hooks {
    fn default() -> Self {
        Self { on_clone: Box::new(|| ()), on_wake: Box::new(|| ()), on_drop: Box::new(|| ()) }
    }
}

impl Hooks {
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the functions of the table keep the contract of RawWakerVTable. Each uses the
        // pointer for the one reference that it owns or borrows, as the module's comment says. They
        // are thread-safe, because `Hooks` is `Send + Sync` and counted by an `Arc`.
        unsafe { Waker::from_raw(raw(self.clone())) }
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, release);

fn raw(hooks: Arc<Hooks>) -> RawWaker {
    RawWaker::new(Arc::into_raw(hooks).cast(), &TABLE)
}

/// Takes over the reference of a waker.
///
/// # Safety
/// `data` comes from [`raw`], and no other code gives its reference back.
unsafe fn owned(data: *const ()) -> Arc<Hooks> {
    // SAFETY: `raw` made the pointer from an `Arc<Hooks>`, and the caller gives up its reference.
    unsafe { Arc::from_raw(data.cast()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the cloned waker keeps its reference, because the `Arc` built here is never dropped.
    let hooks = ManuallyDrop::new(unsafe { owned(data) });
    (hooks.on_clone)();
    raw(Arc::clone(&hooks))
}

unsafe fn wake(data: *const ()) {
    // SAFETY: waking by value ends the waker.
    let hooks = unsafe { owned(data) };
    (hooks.on_wake)();
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the waker keeps its reference, because the `Arc` built here is never dropped.
    let hooks = ManuallyDrop::new(unsafe { owned(data) });
    (hooks.on_wake)();
}

unsafe fn release(data: *const ()) {
    // SAFETY: the waker is dropped.
    let hooks = unsafe { owned(data) };
    (hooks.on_drop)();
}
