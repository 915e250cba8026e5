//! The polls of scheduled tasks, and the end of all.

#![allow(unsafe_code, reason = "polls and ends tasks through their tables; the protocol in `task`")]

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use windlass_flow::panics::Panics;

use crate::task::{
    current,
    error::JoinError,
    header::{OwnerPart, TaskPtr},
    queue::RunQueue,
    shared::{Local, OwnerShared},
};

/// Polls scheduled tasks until none is left, or the limit of a round is reached. A function of its
/// own, so that its loop has its values in registers.
#[inline(never)]
pub(crate) fn poll_tasks(local: &Local) {
    /// Ends the time in which polls have a budget.
    struct Polling;
    impl Drop for Polling {
        fn drop(&mut self) {
            current::with(|current| current.is_polling.set(false));
        }
    }
    current::with(|current| current.is_polling.set(true));
    let _polling = Polling;
    let polls = &local.counters.polls;
    let end = polls.get() + u64::from(local.limits.polls_per_turn);
    // One frame for all polls: a panic is rare, and a frame for each would cost each poll.
    let round = || match local.limits.measures_polls {
        false => poll_until_panic::<false>(local, end - polls.get()),
        true => poll_until_panic::<true>(local, end - polls.get()),
    };
    while let Err(payload) = catch_unwind(AssertUnwindSafe(round)) {
        end_panicked(local, payload);
    }
    local.running.set(None);
}

/// The task that was being polled has panicked.
#[cold]
fn end_panicked(local: &Local, payload: Box<dyn Any + Send>) {
    if let Some(task) = local.running.take() {
        // SAFETY: the executor has a reference to the task that it polls.
        let header = unsafe { task.header() };
        // SAFETY: this is the owner's thread, because `local` is borrowed. The poll did not return,
        // so the slot still holds the future.
        unsafe { (header.vtable.end)(task, JoinError::panicked(payload)) };
    }
}

#[inline(always)]
fn poll_until_panic<const MEASURES: bool>(local: &Local, polls_max: u64) {
    let operations = local.limits.operations_per_poll;
    let mut start = if MEASURES { Some(Instant::now()) } else { None };
    for _ in 0..polls_max {
        // SAFETY: this is the owner's thread, because `local` is borrowed.
        let Some(task) = (unsafe { local.queue.pop() }) else { break };
        // SAFETY: the executor has a reference to a task that was linked.
        let header = unsafe { task.header() };
        // SAFETY: this is the owner's thread.
        let owner = unsafe { header.owner() };
        local.running.set(Some(task));
        local.counters.polls.set(local.counters.polls.get() + 1);
        current::with(|current| current.budget.set(operations));
        // SAFETY: this is the owner's thread, and the task was just unlinked. If it is neither
        // aborted nor finished, the slot holds the future (protocol 9).
        unsafe { owner.run.get()(task) };
        if let (true, Some(start)) = (MEASURES, &mut start) {
            note_poll(local, start);
        }
    }
}

/// The end of a poll is the start of the next.
#[cold]
fn note_poll(local: &Local, start: &mut Instant) {
    let end = Instant::now();
    let took = u64::try_from((end - *start).as_nanos()).unwrap_or(u64::MAX);
    *start = end;
    let longest = &local.counters.longest_poll_ns;
    longest.set(longest.get().max(took));
}

/// Runs a task that was aborted: drops the future.
///
/// # Safety
/// The caller is on the owner's thread, and has just unlinked the task, which is not finished.
unsafe fn end_aborted(task: TaskPtr) {
    // SAFETY: the executor has a reference to a task that is not finished.
    let header = unsafe { task.header() };
    debug_assert!(!header.is_finished());
    // SAFETY: this is the owner's thread, and the slot holds the future.
    unsafe { (header.vtable.end)(task, JoinError::Cancelled) };
}

/// Runs a task that was finished while it was linked: gives up the executor's reference.
///
/// # Safety
/// The caller is on the owner's thread, and has just unlinked the task.
unsafe fn release_finished(task: TaskPtr) {
    // SAFETY: this is the owner's thread, and the executor has a reference to a task that was
    // linked.
    unsafe { RunQueue::finished(task) };
    // SAFETY: the end of the task has left the executor's reference to the run queue (protocol 1).
    unsafe { task.release() };
}

/// Changes what runs a task that has an abort noted. A finished one keeps its own.
///
/// # Safety
/// The caller is on the owner's thread, and a reference to the task is held.
pub(super) unsafe fn note_abort(task: TaskPtr) {
    // SAFETY: a reference is held.
    let header = unsafe { task.header() };
    if header.is_aborted() {
        // SAFETY: this is the owner's thread.
        unsafe { header.owner() }.run.set(end_aborted);
    }
}

/// Changes what runs a task that is finished.
pub(super) fn note_finished(owner: &OwnerPart) {
    owner.run.set(release_finished);
}

/// Ends all tasks, at the executor's end. Their destructors may spawn others, which are ended too.
/// Does not panic.
pub(crate) fn end_tasks(local: &Local) {
    while let Some(task) = local.live.first() {
        // SAFETY: the executor has a reference to a live task.
        let header = unsafe { task.header() };
        // SAFETY: this is the owner's thread, because `local` is borrowed. A live task holds its
        // future. None is being polled, because the executor is not running.
        unsafe { (header.vtable.end)(task, JoinError::Cancelled) };
    }
    // SAFETY: this is the owner's thread.
    while let Some(task) = unsafe { local.queue.pop() } {
        // SAFETY: this is the owner's thread. All tasks are finished, and this one was linked.
        unsafe { release_finished(task) };
    }
}

/// Closes the injector and drops the futures that other threads have queued (protocol 7).
/// `is_own_process` is false in a child of fork(2).
pub(crate) fn close_injector(owner: &OwnerShared, is_own_process: bool, panics: &mut Panics) {
    // SAFETY: `OwnerShared` is on the owner's thread.
    for job in unsafe { owner.shared().injector.close(is_own_process) } {
        panics.catch(|| drop(job));
    }
}
