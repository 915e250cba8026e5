//! [`Shared`]: what the tasks of one executor have in common.

#![allow(
    unsafe_code,
    reason = "one allocation has a part for all threads and a part for the owner; `task`"
)]

use core::{
    any::{Any, TypeId},
    cell::{Cell, RefCell},
    future::Future,
    marker::PhantomData,
};
use std::{collections::VecDeque, rc::Rc, time::Duration};

use crate::{
    process::OwnProcess,
    sync::Arc,
    task::{
        body,
        header::{TaskPtr, TaskRef},
        injector::{Injector, Waking},
        join_ref::JoinRef,
        polls::note_abort,
        queue::{LiveTasks, RunQueue},
    },
};

#[cfg(not(loom))]
pub(crate) use crate::task::request::Request;
#[cfg(loom)]
pub(crate) type Request = Box<dyn FnOnce()>;

/// A queued request.
pub(crate) struct Queued {
    pub(crate) call: Request,
    /// It makes something new, and counts in `Local::queued_new`.
    pub(crate) is_new: bool,
}

pub(crate) struct Shared {
    pub(crate) injector: Injector,
    local: Local,
}

// SAFETY: `injector` is for all threads. `local` is reached through an unsafe function, on the
// owner's thread alone (protocol 2). The last `Arc` may be dropped on any thread: the end of the
// executor has emptied `local` by then, because tasks, requests and extensions are removed there
// and are not accepted afterwards (`Phase::Closed`). An executor that is leaked keeps its `Arc`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The owner's part.
pub(crate) struct Local {
    pub(crate) queue: RunQueue,
    pub(crate) live: LiveTasks,
    pub(crate) phase: Cell<Phase>,
    /// The task that is being polled.
    pub(crate) running: Cell<Option<TaskPtr>>,
    pub(crate) requests: RefCell<VecDeque<Queued>>,
    /// How many of them make something new.
    pub(crate) queued_new: Cell<usize>,
    /// One value of each type, for the modules of this crate.
    pub(crate) extensions: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
    pub(crate) counters: LocalCounters,
    pub(crate) limits: LocalLimits,
    /// The process that has built the executor.
    pub(crate) process: OwnProcess,
}

/// How far the executor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The executor is being dropped. New tasks are not polled, and end with it.
    Closing,
    /// The executor is gone.
    Closed,
}

#[derive(Debug, Default)]
pub(crate) struct LocalCounters {
    pub(crate) polls: Cell<u64>,
    pub(crate) budget_exhausted: Cell<u64>,
    pub(crate) spawned: Cell<u64>,
    /// The longest poll in nanoseconds, if polls are measured.
    pub(crate) longest_poll_ns: Cell<u64>,
}

/// Settings of the executor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalLimits {
    pub(crate) polls_per_turn: u32,
    pub(crate) operations_per_poll: u32,
    pub(crate) spawns_max: usize,
    pub(crate) queued_new_max: usize,
    pub(crate) measures_polls: bool,
    pub(crate) has_paused_clock: bool,
    /// The clock is not the system's: it is paused, or the user's.
    pub(crate) has_own_clock: bool,
    /// How long the output of a dropped stream waits for progress.
    pub(crate) drop_timeout: Duration,
    /// How long the executor's end waits for the output of all streams.
    pub(crate) drain_timeout: Duration,
    pub(crate) blocking: BlockingLimits,
}

/// Settings of the threads for blocking closures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockingLimits {
    pub(crate) threads_max: usize,
    pub(crate) queue_len_max: usize,
}

impl LocalLimits {
    pub(crate) const DEFAULT: Self = Self {
        polls_per_turn: 61,
        operations_per_poll: 32,
        spawns_max: 1024,
        queued_new_max: 1024,
        measures_polls: false,
        has_paused_clock: false,
        has_own_clock: false,
        drop_timeout: Duration::from_secs(30),
        drain_timeout: Duration::from_secs(2),
        blocking: BlockingLimits { threads_max: 16, queue_len_max: 1024 },
    };
}

impl Shared {
    fn new(waking: Waking, limits: LocalLimits) -> Arc<Self> {
        Arc::new(Self {
            injector: Injector::new(waking, limits.spawns_max),
            local: Local {
                queue: RunQueue::default(),
                live: LiveTasks::default(),
                phase: Cell::new(Phase::Open),
                running: Cell::new(None),
                requests: RefCell::default(),
                queued_new: Cell::new(0),
                extensions: RefCell::default(),
                counters: LocalCounters::default(),
                limits,
                process: OwnProcess::new(),
            },
        })
    }

    /// The part of the owner's thread.
    ///
    /// # Safety
    /// The caller is on the owner's thread (protocol 2).
    #[inline(always)]
    pub(crate) unsafe fn local(&self) -> &Local {
        &self.local
    }
}

/// A [`Shared`] on its owner's thread. It is `!Send`, so it stays there.
#[derive(Clone)]
pub(crate) struct OwnerShared {
    shared: Arc<Shared>,
    not_send: PhantomData<*mut ()>,
}

impl OwnerShared {
    /// Makes a [`Shared`]. This thread is its owner.
    pub(crate) fn create(waking: Waking, limits: LocalLimits) -> Self {
        // SAFETY: the part for the owner is new, so no other thread uses it.
        unsafe { Self::new(Shared::new(waking, limits)) }
    }

    /// # Safety
    /// The caller is on the owner's thread.
    pub(crate) unsafe fn new(shared: Arc<Shared>) -> Self {
        Self { shared, not_send: PhantomData }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline(always)]
    pub(crate) fn local(&self) -> &Local {
        // SAFETY: this value was made on the owner's thread and stays there.
        unsafe { self.shared.local() }
    }

    /// Spawns a task.
    pub(crate) fn spawn<F>(&self, future: F) -> JoinRef<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        // SAFETY: this is the owner's thread, and the future borrows nothing.
        unsafe { JoinRef::spawn(&self.shared, future) }
    }

    /// Spawns a task without a handle.
    pub(crate) fn spawn_detached<F: Future + 'static>(&self, future: F) {
        // SAFETY: as above.
        unsafe { body::spawn(&self.shared, future) };
    }

    /// Schedules the tasks that other threads have woken. Not after [`Injector::close`].
    #[inline(always)]
    pub(crate) fn schedule_woken(&self) {
        let schedule = |task: TaskRef| {
            // SAFETY: this is the owner's thread. The reference keeps the task alive for the call.
            unsafe { note_abort(task.ptr()) };
            // SAFETY: as above.
            unsafe { self.local().schedule(task.ptr()) };
        };
        // SAFETY: this is the owner's thread.
        unsafe { self.shared.injector.take_woken(schedule) };
    }
}

impl Local {
    /// The number of scheduled tasks.
    pub(crate) fn queue_depth(&self) -> usize {
        // SAFETY: `Local` is not `Sync`, so a borrow of it is on the owner's thread.
        unsafe { self.queue.count() }
    }

    /// Links a task in the run queue, unless it is there or is finished (protocol 5).
    ///
    /// # Safety
    /// The caller is on the owner's thread, and a reference to the task is held.
    #[inline(always)]
    pub(crate) unsafe fn schedule(&self, task: TaskPtr) {
        // SAFETY: the caller's promise. The executor has a reference to each task that is not
        // finished (protocol 1).
        unsafe { self.queue.push(task) };
    }

    /// Adds a new task, and schedules it while the executor is open.
    ///
    /// # Safety
    /// The caller is on the owner's thread. The task was just made for this executor, and the
    /// executor takes over its reference.
    pub(super) unsafe fn adopt(&self, task: TaskPtr) {
        self.counters.spawned.set(self.counters.spawned.get() + 1);
        // SAFETY: the caller's promise: the task is new, and its reference is the executor's.
        unsafe { self.live.push(task) };
        // SAFETY: as above.
        unsafe { self.schedule(task) };
    }
}
