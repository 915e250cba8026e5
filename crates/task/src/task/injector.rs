//! [`Injector`]: what other threads hand to an executor: tasks that they have woken, and futures to
//! be spawned.
//!
//! Woken tasks are a stack that is linked through their headers. Threads push one task at a time,
//! and the owner takes the whole stack. So a thread never reads a link of the stack's first task,
//! and needs no protection from tasks that are freed and allocated again (ABA).

#![allow(unsafe_code, reason = "the stack is linked through the tasks; the protocol in `task`")]

use core::{
    mem,
    ptr::{self, NonNull},
};
use std::collections::VecDeque;

use crate::{
    sync::{AtomicBool, AtomicPtr, Mutex, MutexGuard, Ordering},
    task::{
        header::{Header, TaskPtr, TaskRef},
        shared::OwnerShared,
    },
};

/// The wake of the executor's loop: any thread, without a payload.
#[cfg(not(loom))]
pub(crate) type Waking = windlass::Remote;
#[cfg(loom)]
pub(crate) type Waking = std::sync::Arc<windlass_flow::Latch>;

pub(crate) struct Injector {
    /// The last woken task, null, or [`closed`].
    woken: AtomicPtr<Header>,
    /// `spawns` holds something. So an idle turn need not lock it.
    has_spawns: AtomicBool,
    spawns: Mutex<Spawns>,
    waking: Waking,
}

struct Spawns {
    is_closed: bool,
    queue: VecDeque<Box<dyn SpawnJob>>,
    len_max: usize,
}

/// A future, or a closure that makes one, on its way to the owner's thread.
pub(crate) trait SpawnJob: Send {
    /// Makes a task of it. Runs no user code.
    fn start(self: Box<Self>, owner: &OwnerShared);
}

/// Why a future was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    Full,
    Closed,
}

/// The address that stands for a closed injector. No task has it, because a task has a larger
/// alignment.
fn closed() -> *mut Header {
    ptr::without_provenance_mut(1)
}

impl Injector {
    pub(super) fn new(waking: Waking, spawns_max: usize) -> Self {
        Self {
            woken: AtomicPtr::new(ptr::null_mut()),
            has_spawns: AtomicBool::new(false),
            spawns: Mutex::new(Spawns {
                is_closed: false,
                queue: VecDeque::new(),
                len_max: spawns_max,
            }),
            waking,
        }
    }

    /// Makes the owner look into the injector.
    pub(crate) fn wake_owner(&self) {
        self.waking.wake();
    }

    /// Wakes a task from any thread (protocol 6).
    pub(super) fn wake(&self, task: &TaskRef) {
        let header = task.header();
        if header.is_finished() || header.is_remote.swap(true, Ordering::AcqRel) {
            return;
        }
        // A reference for the injector. The caller's own keeps the task and this injector alive for
        // the rest of the call.
        let linked = mem::ManuallyDrop::new(task.clone()).ptr();
        let mut first = self.woken.load(Ordering::Relaxed);
        loop {
            if first == closed() {
                // Protocol 7.
                // SAFETY: the reference made above was not handed over.
                return unsafe { linked.release() };
            }
            header.remote_next.store(first, Ordering::Relaxed);
            // Release: the owner that takes the stack sees the link, and what the waker wrote.
            let exchange = self.woken.compare_exchange_weak(
                first,
                linked.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match exchange {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
        self.wake_owner();
    }

    /// Takes the woken tasks, the first to be woken first, and passes each with a reference.
    ///
    /// # Safety
    /// The caller is on the owner's thread, before [`close`](Self::close).
    #[inline(always)]
    pub(crate) unsafe fn take_woken(&self, each: impl FnMut(TaskRef)) {
        // A push that this load misses wakes the latch afterwards, so the next wait returns at
        // once.
        let woken = self.woken.load(Ordering::Relaxed);
        debug_assert_ne!(woken, closed(), "tasks are scheduled after the end of the executor");
        if !woken.is_null() {
            let first = self.woken.swap(ptr::null_mut(), Ordering::Acquire);
            // SAFETY: the whole stack was taken, so it is this thread's.
            unsafe { Self::unlink(first, each) };
        }
    }

    /// # Safety
    /// `first` is the first task of a stack that was taken as a whole.
    #[cold]
    unsafe fn unlink(first: *mut Header, mut each: impl FnMut(TaskRef)) {
        // The last woken task is first. Reverse the stack.
        let (mut next, mut reversed) = (first, ptr::null_mut());
        while let Some(address) = NonNull::new(next) {
            // SAFETY: the injector holds a reference to each task of the stack.
            let header = unsafe { TaskPtr::new(address).header() };
            next = header.remote_next.load(Ordering::Relaxed);
            header.remote_next.store(reversed, Ordering::Relaxed);
            reversed = address.as_ptr();
        }
        while let Some(address) = NonNull::new(reversed) {
            // SAFETY: the reference that the injector has held now belongs to `task`.
            let task = unsafe { TaskRef::from_counted(TaskPtr::new(address)) };
            // Before the flag is cleared: another thread may then link the task again.
            reversed = task.header().remote_next.load(Ordering::Relaxed);
            // A read-modify-write, so that it follows every wake that found the flag set, and
            // acquires what that waker wrote (protocol 6).
            task.header().is_remote.swap(false, Ordering::AcqRel);
            each(task);
        }
    }

    /// Ends the injector (protocol 7). Returns the futures that are still to be spawned.
    ///
    /// In a child of fork(2), a thread of the parent may have held the lock at the fork. The copy
    /// of the lock is then never released, and the futures leak.
    ///
    /// # Safety
    /// The caller is on the owner's thread.
    pub(crate) unsafe fn close(&self, is_own_process: bool) -> VecDeque<Box<dyn SpawnJob>> {
        let first = self.woken.swap(closed(), Ordering::AcqRel);
        if first != closed() {
            // SAFETY: the whole stack was taken, so it is this thread's. No task comes after it.
            unsafe { Self::unlink(first, drop) };
        }
        let mut spawns = match self.spawns.try_lock() {
            Ok(spawns) => spawns,
            Err(_) if is_own_process => self.spawns(),
            Err(_) => return VecDeque::new(),
        };
        spawns.is_closed = true;
        mem::take(&mut spawns.queue)
    }

    /// Queues a future, which `make` puts into a box.
    pub(crate) fn push_spawn(
        &self,
        make: impl FnOnce() -> Box<dyn SpawnJob>,
    ) -> Result<(), Rejected> {
        let mut spawns = self.spawns();
        if spawns.is_closed {
            return Err(Rejected::Closed);
        }
        if spawns.queue.len() >= spawns.len_max {
            return Err(Rejected::Full);
        }
        spawns.queue.push_back(make());
        // Under the lock, as the owner's store is.
        self.has_spawns.store(true, Ordering::Relaxed);
        drop(spawns);
        self.wake_owner();
        Ok(())
    }

    /// The next future to be spawned.
    #[inline]
    pub(crate) fn pop_spawn(&self) -> Option<Box<dyn SpawnJob>> {
        // A push that this load misses wakes the latch afterwards.
        if !self.has_spawns.load(Ordering::Relaxed) {
            return None;
        }
        let mut spawns = self.spawns();
        let job = spawns.queue.pop_front();
        self.has_spawns.store(!spawns.queue.is_empty(), Ordering::Relaxed);
        job
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.spawns().is_closed
    }

    pub(crate) fn has_spawns(&self) -> bool {
        self.has_spawns.load(Ordering::Relaxed)
    }

    /// No user code runs under the lock, so nothing is half changed if a thread panics there.
    fn spawns(&self) -> MutexGuard<'_, Spawns> {
        self.spawns.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
