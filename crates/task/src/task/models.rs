//! Models for loom, which runs every interleaving of a small program with threads, with every value
//! that the memory orders permit.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p windlass-task --profile loom --lib models`
//!
//! A lost wake is a deadlock in a model, which loom reports. A task that is freed too early is a
//! use of freed memory, and one that is not freed leaks its `Arc<Shared>`, which loom reports too.

use core::{
    future::{Future, pending, poll_fn},
    task::{Poll, Waker},
};

use loom::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};
use windlass_flow::{Latch, panics::Panics};

use crate::task::{
    current::Entered,
    header::TaskRef,
    join_ref::JoinRef,
    polls::{close_injector, end_tasks, poll_tasks},
    shared::{LocalLimits, OwnerShared, Phase},
};

/// To lose a wake, two threads must each be preempted once. Three leave a margin of one.
const PREEMPTIONS: usize = 3;

fn model(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// An executor without a reactor: it waits for the latch alone.
struct Owner {
    shared: OwnerShared,
    latch: std::sync::Arc<Latch>,
    _entered: Entered,
}

impl Owner {
    fn new() -> Self {
        let latch = std::sync::Arc::new(Latch::new().unwrap());
        let shared = OwnerShared::create(latch.clone(), LocalLimits::DEFAULT);
        let entered = Entered::new(Arc::as_ptr(shared.shared()));
        Self { shared, latch, _entered: entered }
    }

    fn round(&self) {
        self.shared.schedule_woken();
        poll_tasks(self.shared.local());
    }

    /// Runs rounds until the task is finished. A lost wake is a deadlock.
    fn run<T>(&self, task: &JoinRef<T>) {
        loop {
            self.round();
            if task.is_finished() {
                return;
            }
            self.latch.wait(None);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.local().phase.set(Phase::Closing);
        let mut panics = Panics::default();
        close_injector(&self.shared, true, &mut panics);
        end_tasks(self.shared.local());
        self.shared.local().phase.set(Phase::Closed);
    }
}

/// A future that is ready when the count has reached `goal`, and the waker of its task. All
/// accesses of the count are relaxed, because the wake orders them.
fn counting(owner: &Owner, count: &Arc<AtomicU32>, goal: u32) -> (JoinRef<()>, Waker) {
    let slot = std::rc::Rc::new(core::cell::Cell::new(None));
    let (given, count) = (slot.clone(), count.clone());
    let task = owner.shared.spawn(poll_fn(move |context| {
        given.set(Some(context.waker().clone()));
        if count.load(Relaxed) >= goal { Poll::Ready(()) } else { Poll::Pending }
    }));
    owner.round();
    (task, slot.take().unwrap())
}

/// Drops on the thread that made it, or panics.
struct OnThread(thread::ThreadId);

impl Drop for OnThread {
    fn drop(&mut self) {
        assert_eq!(self.0, thread::current().id());
    }
}

fn held(future: impl Future<Output = ()>) -> impl Future<Output = ()> {
    let token = OnThread(thread::current().id());
    async move {
        let _token = token;
        future.await;
    }
}

#[test]
fn data_written_before_a_remote_wake_is_seen_by_the_poll() {
    model(|| {
        let owner = Owner::new();
        let count = Arc::new(AtomicU32::new(0));
        let (task, waker) = counting(&owner, &count, 1);
        let thread = thread::spawn(move || {
            count.fetch_add(1, Relaxed);
            waker.wake();
        });
        owner.run(&task);
        thread.join().unwrap();
    });
}

#[test]
fn two_remote_wakes_of_one_task_are_both_seen() {
    model(|| {
        let owner = Owner::new();
        let count = Arc::new(AtomicU32::new(0));
        let (task, waker) = counting(&owner, &count, 2);
        let threads = [waker.clone(), waker].map(|waker| {
            let count = count.clone();
            thread::spawn(move || {
                count.fetch_add(1, Relaxed);
                waker.wake();
            })
        });
        owner.run(&task);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn the_second_wake_of_one_thread_is_seen() {
    model(|| {
        let owner = Owner::new();
        let count = Arc::new(AtomicU32::new(0));
        let (task, waker) = counting(&owner, &count, 2);
        let thread = thread::spawn(move || {
            for _ in 0..2 {
                count.fetch_add(1, Relaxed);
                waker.wake_by_ref();
            }
        });
        owner.run(&task);
        thread.join().unwrap();
    });
}

#[test]
fn remote_wakes_of_two_tasks_are_both_seen() {
    model(|| {
        let owner = Owner::new();
        let counts = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
        let tasks = [counting(&owner, &counts[0], 1), counting(&owner, &counts[1], 1)];
        let mut handles = Vec::new();
        let mut threads = Vec::new();
        for ((task, waker), count) in tasks.into_iter().zip(counts) {
            handles.push(task);
            threads.push(thread::spawn(move || {
                count.fetch_add(1, Relaxed);
                waker.wake();
            }));
        }
        handles.iter().for_each(|task| owner.run(task));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_wake_during_the_end_of_the_executor_frees_the_task_once_and_drops_on_its_thread() {
    model(|| {
        let owner = Owner::new();
        let slot = std::rc::Rc::new(core::cell::Cell::new(None));
        let given = slot.clone();
        drop(owner.shared.spawn(held(async move {
            poll_fn(|context| {
                given.set(Some(context.waker().clone()));
                Poll::<()>::Pending
            })
            .await
        })));
        owner.round();
        let waker: Waker = slot.take().unwrap();
        let thread = thread::spawn(move || {
            waker.wake_by_ref();
            drop(waker);
        });
        drop(owner);
        thread.join().unwrap();
    });
}

#[test]
fn the_last_of_three_references_frees_the_task() {
    model(|| {
        let owner = Owner::new();
        let count = Arc::new(AtomicU32::new(1));
        let slot = std::rc::Rc::new(core::cell::Cell::new(None));
        let given = slot.clone();
        let task = owner.shared.spawn(poll_fn(move |context| {
            given.set(Some(context.waker().clone()));
            if count.load(Relaxed) == 1 { Poll::Ready(()) } else { Poll::Pending }
        }));
        owner.round();
        let waker: Waker = slot.take().unwrap();
        let other = waker.clone();
        let threads = [thread::spawn(move || drop(waker)), thread::spawn(move || other.wake())];
        drop(task);
        drop(owner);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn an_abort_of_another_thread_ends_the_task_on_its_own() {
    model(|| {
        let owner = Owner::new();
        let task = owner.shared.spawn(held(pending()));
        owner.round();
        let handle: TaskRef = task.task().clone();
        let thread = thread::spawn(move || handle.abort());
        owner.run(&task);
        assert!(task.take_output().unwrap().is_err());
        thread.join().unwrap();
    });
}
