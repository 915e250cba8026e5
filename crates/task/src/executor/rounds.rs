//! Rounds: what the executor does at the end of each turn.

#![allow(
    unsafe_code,
    reason = "polls tasks through their tables, and lends the main future of `block_on`"
)]

use core::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use windlass::{NextTurn, Turn, TurnDriver};

use crate::{
    ambient::{Handle, publish},
    task::{
        current,
        error::JoinError,
        header::{Content, TaskPtr},
        join_ref::JoinRef,
        shared::{Local, OwnerShared},
    },
};

/// Futures of other threads that become tasks in one round.
const SPAWNS_PER_TURN: usize = 61;

/// The driver of the reactor while `block_on` runs.
pub(super) struct Rounds<'e> {
    handle: &'e Handle,
    root: &'e RootTask<'e>,
}

impl<'e> Rounds<'e> {
    pub(super) fn new(handle: &'e Handle, root: &'e RootTask<'e>) -> Self {
        Self { handle, root }
    }

    fn round(&self) -> NextTurn {
        let handle = self.handle;
        let owner = handle.owner();
        let local = handle.local();
        let mut has_more = !handle.run_requests();
        owner.schedule_woken();
        for _ in 0..SPAWNS_PER_TURN {
            let Some(job) = owner.shared().inbox.pop_spawn() else { break };
            job.start(owner);
        }
        if !local.queue.is_empty() {
            poll_tasks(local);
            has_more |= !handle.run_requests();
        }
        if self.root.is_finished() {
            NextTurn::Stop
        } else if has_more || !local.queue.is_empty() || owner.shared().inbox.has_spawns() {
            NextTurn::Again
        } else {
            NextTurn::Wait
        }
    }
}

impl TurnDriver for Rounds<'_> {
    fn end_of_turn(&mut self, turn: Turn<'_>) -> NextTurn {
        publish(turn, || self.round())
    }
}

/// Polls scheduled tasks until none is left, or the limit of a round is reached.
fn poll_tasks(local: &Local) {
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
            // reference to the run queue (protocol 1 of `task`).
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

/// The future of `block_on`, in a task of its own. The future stays with `block_on` and need not be
/// `'static`. The task ends before the borrow does.
pub(super) struct RootTask<'f> {
    task: JoinRef<()>,
    not_static: core::marker::PhantomData<&'f mut ()>,
}

type RootPoll<'f> = dyn FnMut(&mut Context<'_>) -> Poll<()> + 'f;

/// Calls the poll of `block_on`.
struct RootFuture(*mut RootPoll<'static>);

impl Future for RootFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the closure is borrowed by `RootTask` for as long as the task is not finished,
        // and nothing else calls it. A finished task is not polled.
        let poll = unsafe { &mut *self.0 };
        poll(context)
    }
}

impl<'f> RootTask<'f> {
    pub(super) fn spawn(owner: &OwnerShared, poll: &'f mut RootPoll<'f>) -> Self {
        let poll: *mut RootPoll<'f> = poll;
        // SAFETY: only the lifetime changes, which `RootTask` keeps.
        let poll = unsafe { mem::transmute::<*mut RootPoll<'f>, *mut RootPoll<'static>>(poll) };
        // SAFETY: this is the owner's thread. The drop of `RootTask` finishes the task before the
        // borrow of the closure ends, and `block_on` does not leak it.
        let task = unsafe { JoinRef::spawn(owner.shared(), RootFuture(poll)) };
        Self { task, not_static: core::marker::PhantomData }
    }

    #[inline(always)]
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    pub(super) fn take_output(&self) -> Option<Result<(), JoinError>> {
        self.task.take_output()
    }
}

impl Drop for RootTask<'_> {
    fn drop(&mut self) {
        if !self.is_finished() {
            let task = self.task.task();
            // SAFETY: this is the owner's thread. The task is not finished and not being polled, so
            // the executor has a reference and the slot holds the future.
            unsafe { (task.header().vtable.end)(task.ptr(), JoinError::Cancelled) };
        }
    }
}
