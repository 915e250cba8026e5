//! [`WorkerContext`]: what a worker's future knows of its worker.

use core::{
    cell::{Cell, RefCell},
    fmt,
};
use std::{collections::VecDeque, io, rc::Rc};

use windlass::stream::Worker;

use crate::{
    net::TcpListener,
    workers::{WorkerInbox, WorkersHandle, inbox::UnopenedInbox, stop::StopWaiters},
};

/// A worker of [`Workers`](crate::Workers), for the future that runs on it. It stays on its thread
/// and is cheap to clone.
pub struct WorkerContext<M: Send + 'static = ()>(Rc<ContextState<M>>);

struct ContextState<M: Send + 'static> {
    worker: Worker,
    workers: WorkersHandle<M>,
    stop: StopWaiters,
    inbox: Cell<Option<UnopenedInbox<M>>>,
    listeners: RefCell<VecDeque<std::net::TcpListener>>,
}

impl<M: Send + 'static> WorkerContext<M> {
    pub(super) fn new(
        worker: Worker,
        workers: WorkersHandle<M>,
        stop: StopWaiters,
        inbox: UnopenedInbox<M>,
        listeners: Vec<std::net::TcpListener>,
    ) -> Self {
        let inbox = Cell::new(Some(inbox));
        let listeners = RefCell::new(listeners.into());
        Self(Rc::new(ContextState { worker, workers, stop, inbox, listeners }))
    }

    /// The worker's index, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.0.worker.index
    }

    /// The number of workers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.worker.count
    }

    /// The processor that the thread is pinned to, if workers are pinned.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.0.worker.cpu
    }

    /// A handle to all workers.
    #[must_use]
    pub fn handle(&self) -> &WorkersHandle<M> {
        &self.0.workers
    }

    /// Waits until the workers are asked to stop. Any number of futures may wait.
    pub async fn stopped(&self) {
        self.0.stop.wait().await;
    }

    /// Whether this worker has seen the request to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stop.is_set()
    }

    /// Takes the receiving end of this worker's queue. While it is not taken, messages wait in the
    /// queue.
    ///
    /// # Errors
    /// If it was taken already, or if the reactor rejects the registration
    /// ([`windlass::AddReason`]).
    pub fn take_inbox(&self) -> io::Result<WorkerInbox<M>> {
        let inbox = self.0.inbox.take().ok_or_else(|| {
            io::Error::other(format!("the inbox of worker {} was taken already", self.index()))
        })?;
        inbox.open().map_err(|(error, inbox)| {
            self.0.inbox.set(Some(inbox));
            error
        })
    }

    /// Takes this worker's next listener, in the order of the calls of
    /// [`WorkersBuilder::listen`](crate::WorkersBuilder::listen).
    ///
    /// # Errors
    /// If no listener is left, or if the reactor rejects the registration
    /// ([`windlass::AddReason`]).
    pub fn take_listener(&self) -> io::Result<TcpListener> {
        let listener = self.0.listeners.borrow_mut().pop_front().ok_or_else(|| {
            io::Error::other(format!(
                "worker {} has no listener left: each call of `WorkersBuilder::listen` makes one",
                self.index()
            ))
        })?;
        TcpListener::from_std(listener)
    }
}

impl<M: Send + 'static> Clone for WorkerContext<M> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<M: Send + 'static> fmt::Debug for WorkerContext<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext").field("worker", &self.0.worker).finish_non_exhaustive()
    }
}
