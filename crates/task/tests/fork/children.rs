//! A child's calls on its copy of an executor.

use std::{
    any::Any,
    cell::Cell,
    future::pending,
    io::{Read, Write},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use windlass::{Backend, Reactor};
use windlass_task::{AsyncFd, Direction, Executor, JoinHandle, spawn, spawn_blocking, yield_now};

use crate::tools::{fork, in_child, leave, reap};

pub(crate) fn executor(backend: Backend) -> Executor {
    Executor::builder().reactor(Reactor::builder().backend(backend)).build().unwrap()
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).expect("a panic with a message")
}

fn assert_rejected<T>(call: impl FnOnce() -> T) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(call)) else { panic!("it was not rejected") };
    let message = message(&*payload);
    assert!(message.contains("child of fork(2)"), "{message}");
}

/// An executor with a task that waits for a byte and sends the next number back.
struct Parent {
    executor: Executor,
    task: JoinHandle<u8>,
    peer: UnixStream,
    polls: Rc<Cell<usize>>,
    drops: Rc<Cell<usize>>,
}

struct CountsDrop(Rc<Cell<usize>>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

impl Parent {
    fn new(backend: Backend) -> Self {
        let mut executor = executor(backend);
        let (fd, peer) = UnixStream::pair().unwrap();
        fd.set_nonblocking(true).unwrap();
        let (polls, drops) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (count, token) = (Rc::clone(&polls), CountsDrop(Rc::clone(&drops)));
        let task = executor.spawn(async move {
            let _token = token;
            let fd = AsyncFd::new(fd).unwrap();
            let mut byte = [0];
            let read = |mut fd: &UnixStream| {
                count.set(count.get() + 1);
                fd.read_exact(&mut byte)
            };
            fd.async_io(Direction::Read, read).await.unwrap();
            fd.async_io(Direction::Write, |mut fd| fd.write_all(&[byte[0] + 1])).await.unwrap();
            byte[0]
        });
        // On a ring, a wait arms the poll.
        executor.block_on(async {
            for _ in 0..3 {
                yield_now().await;
            }
        });
        Self { executor, task, peer, polls, drops }
    }

    /// Checks that the task gets its byte.
    fn assert_works(mut self) {
        self.peer.write_all(&[4]).unwrap();
        assert_eq!(self.executor.block_on(self.task).unwrap(), 4);
        let mut answer = [0];
        self.peer.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [5]);
    }
}

pub(crate) fn block_on_in_a_child_panics_and_polls_nothing(backend: Backend) {
    let mut parent = Parent::new(backend);
    parent.peer.write_all(&[9]).unwrap();
    let polls = parent.polls.get();
    in_child(|| {
        // A poll would take the parent's byte.
        assert_rejected(|| parent.executor.block_on(async { unreachable!("polled") }));
        assert_eq!(parent.polls.get(), polls);
    });
    assert_eq!(parent.executor.block_on(parent.task).unwrap(), 9);
}

pub(crate) fn a_turn_outside_of_block_on_panics_in_a_child(backend: Backend) {
    let mut parent = Parent::new(backend);
    in_child(|| assert_rejected(|| parent.executor.with_turn(|_| unreachable!("called"))));
    parent.assert_works();
}

pub(crate) fn an_executor_dropped_by_a_child_leaves_the_parents_alone(backend: Backend) {
    let parent = Parent::new(backend);
    match fork() {
        None => leave(catch_unwind(AssertUnwindSafe(|| {
            let Parent { executor, task, drops, peer: _peer, .. } = parent;
            drop(executor);
            assert_eq!(drops.get(), 1, "the child's copy of the future is dropped");
            assert!(task.is_finished());
        }))),
        Some(child) => {
            reap(child);
            assert_eq!(parent.drops.get(), 0);
            parent.assert_works();
        }
    }
}

pub(crate) fn futures_that_wait_to_be_spawned_are_the_parents_still(backend: Backend) {
    let mut executor = executor(backend);
    let (sender, receiver) = std::sync::mpsc::channel();
    executor.spawner().spawn(async move { sender.send(1).unwrap() }).unwrap();
    match fork() {
        None => leave(catch_unwind(AssertUnwindSafe(|| {
            drop(executor);
            assert!(receiver.try_recv().is_err(), "it was dropped and not polled");
        }))),
        Some(child) => reap(child),
    }
    executor.block_on(async {
        while receiver.try_recv().is_err() {
            yield_now().await;
        }
    });
}

pub(crate) fn a_task_that_returns_in_a_child_ends_block_on_with_a_panic(backend: Backend) {
    let mut parent = Parent::new(backend);
    let child = Rc::new(Cell::new(None));
    let forked = Rc::clone(&child);
    let run = AssertUnwindSafe(|| {
        parent.executor.block_on(async {
            spawn(async move { forked.set(fork()) }).await.unwrap();
            if child.get().is_none() {
                pending::<()>().await;
            }
        });
    });
    let outcome = catch_unwind(run);
    let Some(child) = child.get() else {
        leave(catch_unwind(AssertUnwindSafe(|| {
            assert_rejected(|| match outcome {
                Ok(()) => {}
                Err(payload) => std::panic::resume_unwind(payload),
            });
        })))
    };
    outcome.unwrap();
    reap(child);
    parent.assert_works();
}

pub(crate) fn a_child_may_build_an_executor_of_its_own(backend: Backend) {
    let parent = Parent::new(backend);
    in_child(|| {
        let mut own = executor(backend);
        assert_eq!(own.block_on(async { spawn(async { 3 }).await.unwrap() }), 3);
        drop(own);
        Parent::new(backend).assert_works();
    });
    parent.assert_works();
}

pub(crate) fn a_pool_of_threads_does_not_make_a_child_hang(backend: Backend) {
    let mut executor = executor(backend);
    executor.block_on(async {
        spawn_blocking(|| ()).unwrap().await.unwrap();
        spawn(async {
            spawn_blocking(std::thread::park).unwrap().await.unwrap();
        })
        .detach();
        yield_now().await;
    });
    match fork() {
        None => leave(catch_unwind(AssertUnwindSafe(|| drop(executor)))),
        Some(child) => reap(child),
    }
    assert_eq!(executor.block_on(async { spawn_blocking(|| 2).unwrap().await.unwrap() }), 2);
}
