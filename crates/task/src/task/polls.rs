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
    header::{Content, TaskPtr},
    shared::{Local, OwnerShared},
};

/// Polls scheduled tasks until none is left, or the limit of a round is reached.
pub(crate) fn poll_tasks(local: &Local) {
    local.polls_left.set(local.limits.polls_per_turn);
    // One frame for all polls: a panic is rare, and a frame for each would cost each poll.
    while let Err(payload) = catch_unwind(AssertUnwindSafe(|| poll_until_panic(local))) {
        end_panicked(local, payload);
    }
}

/// The task that was being polled has panicked.
#[cold]
fn end_panicked(local: &Local, payload: Box<dyn Any + Send>) {
    current::with(|current| current.is_polling.set(false));
    if let Some(task) = local.running.take() {
        // SAFETY: the executor has a reference to the task that it polls.
        let header = unsafe { task.header() };
        // SAFETY: this is the owner's thread, because `local` is borrowed. The poll did not return,
        // so the slot still holds the future.
        unsafe { (header.vtable.end)(task, JoinError::Panicked(payload)) };
    }
}

fn poll_until_panic(local: &Local) {
    let measures = local.limits.measures_polls;
    loop {
        // The end of `block_on`'s future sets it to zero.
        let left = local.polls_left.get();
        if left == 0 {
            break;
        }
        // SAFETY: this is the owner's thread, because `local` is borrowed.
        let Some(task) = (unsafe { local.queue.pop() }) else { break };
        // SAFETY: the executor has a reference to a task that was linked.
        let header = unsafe { task.header() };
        // SAFETY: this is the owner's thread.
        let owner = unsafe { header.owner() };
        if owner.content.get() != Content::Future {
            // SAFETY: the task is finished and was linked, so its end has left the executor's
            // reference to the run queue (protocol 1).
            unsafe { task.release() };
            continue;
        }
        owner.clear_scheduled();
        local.polls_left.set(left - 1);
        if measures {
            poll_measured(local, task);
        } else {
            poll_one(local, task);
        }
    }
}

/// Polls a task, or ends it if it was aborted.
#[inline(always)]
fn poll_one(local: &Local, task: TaskPtr) {
    // SAFETY: the executor has a reference to a task that is not finished.
    let header = unsafe { task.header() };
    if header.is_aborted() {
        // SAFETY: this is the owner's thread, and the slot holds the future.
        return unsafe { (header.vtable.end)(task, JoinError::Cancelled) };
    }
    local.running.set(Some(task));
    local.counters.polls.set(local.counters.polls.get() + 1);
    current::with(|current| {
        current.budget.set(local.limits.operations_per_poll);
        current.is_polling.set(true);
    });
    // SAFETY: as above.
    unsafe { (header.vtable.poll)(task) };
    current::with(|current| current.is_polling.set(false));
    local.running.set(None);
}

#[cold]
fn poll_measured(local: &Local, task: TaskPtr) {
    let start = Instant::now();
    poll_one(local, task);
    let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let longest = &local.counters.longest_poll_ns;
    longest.set(longest.get().max(took));
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
        // SAFETY: all tasks are finished. This one was linked, so its end has left the executor's
        // reference to the run queue (protocol 1).
        unsafe { task.release() };
    }
}

/// Closes the inbox and drops the futures that other threads have queued (protocol 7).
pub(crate) fn close_inbox(owner: &OwnerShared, panics: &mut Panics) {
    // SAFETY: `OwnerShared` is on the owner's thread.
    for job in unsafe { owner.shared().inbox.close() } {
        panics.catch(|| drop(job));
    }
}
