//! A waker that runs the test's code where it is cloned, woken and dropped.
//!
//! [`std::task::Wake`] has no say in cloning, so this is a raw one. Its data is an `Arc<Hooks>`
//! turned into a pointer: each waker owns one reference of it, made in [`Hooks::waker`] or
//! [`clone`], and given back once, in [`wake`] or [`release`].

#![expect(unsafe_code, reason = "a waker whose clone is the test's own code")]

use std::{
    mem::ManuallyDrop,
    sync::Arc,
    task::{RawWaker, RawWakerVTable, Waker},
};

type Hook = Box<dyn Fn() + Send + Sync>;

/// What a waker does.
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
        // SAFETY: the functions of the table keep RawWakerVTable's contract: each takes the pointer
        // for the one reference that it owns or borrows, as the module says; they are thread-safe,
        // because `Hooks` is `Send + Sync` and counted by an `Arc`.
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
/// `data` is from [`raw`], and its reference is given back by this alone.
unsafe fn owned(data: *const ()) -> Arc<Hooks> {
    // SAFETY: `raw` made the pointer of an `Arc<Hooks>`, and the caller gives its reference away.
    unsafe { Arc::from_raw(data.cast()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the waker that is cloned keeps its reference: what is built of it here is never
    // dropped.
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
    // SAFETY: the waker keeps its reference: what is built of it here is never dropped.
    let hooks = ManuallyDrop::new(unsafe { owned(data) });
    (hooks.on_wake)();
}

unsafe fn release(data: *const ()) {
    // SAFETY: the waker is dropped.
    let hooks = unsafe { owned(data) };
    (hooks.on_drop)();
}
