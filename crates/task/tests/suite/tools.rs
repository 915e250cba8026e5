//! Executors on the backend that the environment names, and what tests are made of.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    os::fd::OwnedFd,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    thread::{self, ThreadId},
};

use windlass::Reactor;
use windlass_task::{Executor, ExecutorBuilder};

use crate::backend;

/// A builder with the backend of `WINDLASS_TEST_BACKEND`, on which `cargo xtask ci` runs these
/// tests in turn.
pub(crate) fn builder() -> ExecutorBuilder {
    Executor::builder().reactor(Reactor::builder().backend(backend::chosen()))
}

pub(crate) fn executor() -> Executor {
    builder().build().unwrap()
}

/// Runs a future on an executor of its own.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    executor().block_on(future)
}

/// Two nonblocking sockets that are connected. Miri can make them so, but not set a socket so.
pub(crate) fn nonblocking_pair() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

/// Counts drops, and says on which thread the last one was.
#[derive(Clone, Default)]
pub(crate) struct Drops(Rc<Cell<usize>>, Rc<Cell<Option<ThreadId>>>, Rc<Cell<usize>>);

/// Counts when it is dropped.
pub(crate) struct Counted(Drops);

impl Drops {
    pub(crate) fn token(&self) -> Counted {
        self.2.set(self.2.get() + 1);
        Counted(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.get()
    }

    /// How many tokens were made.
    pub(crate) fn made(&self) -> usize {
        self.2.get()
    }

    pub(crate) fn thread(&self) -> Option<ThreadId> {
        self.1.get()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() + 1);
        self.0.1.set(Some(thread::current().id()));
    }
}

/// Runs a closure when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A flag that tasks wait for. It is set on the same thread.
#[derive(Clone, Default)]
pub(crate) struct Flag(Rc<(Cell<bool>, RefCell<Vec<Waker>>)>);

impl Flag {
    pub(crate) fn set(&self) {
        self.0.0.set(true);
        let wakers = self.0.1.take();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            if self.0.0.get() {
                return Poll::Ready(());
            }
            self.0.1.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The waker of the task that runs this.
pub(crate) async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

/// Polls a future once with this waker.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}
