//! Calls from other threads.
//!
//! 1. A call is put into the queue, then the eventfd is written. A run that finds the eventfd reads
//!    it, then takes the calls that are in the queue. So no call waits without a ring.
//! 2. A closure that panics leaves the rest of its batch in the queue, and the eventfd rings again.
//! 3. The queue is closed when the manager is dropped, and what is in it is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::errno::Error as Errno;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::watches::Context;
use crate::{Error, Events, MutEventSubscriber, Result, SubscriberOps};

/// The place of a subscriber that no manager has.
const NO_SUBSCRIBER: u32 = u32::MAX;

/// The largest number of calls that wait for a manager.
const CALLS_MAX: usize = 65_536;

type Call<S> = Box<dyn FnOnce(&mut dyn SubscriberOps<Subscriber = S>) + Send>;

/// What a manager and its endpoints share.
struct Shared<S> {
    /// `None` after the end of the manager.
    queue: Mutex<Option<VecDeque<Call<S>>>>,
    eventfd: EventFd,
}

impl<S> Shared<S> {
    /// No call of the user runs under the lock, so a panic leaves the queue as it should be.
    fn queue(&self) -> MutexGuard<'_, Option<VecDeque<Call<S>>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> usize {
        self.queue().as_ref().map_or(0, VecDeque::len)
    }

    fn ring(&self) -> Result<()> {
        self.eventfd.write(1).map_err(|error| Error::EventFd(Errno::from(error)))
    }
}

/// The manager's side.
pub(crate) struct Calls<S>(Arc<Shared<S>>);

impl<S> fmt::Debug for Calls<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

impl<S> Drop for Calls<S> {
    fn drop(&mut self) {
        // The closures are dropped without the lock: their destructors may call the endpoint.
        let closed = self.0.queue().take();
        drop(closed);
    }
}

impl<S> Calls<S> {
    pub(crate) fn new(context: &mut Context) -> Result<Self> {
        let eventfd = EventFd::new(EFD_NONBLOCK).map_err(|e| Error::EventFd(Errno::from(e)))?;
        context.get_mut().add(NO_SUBSCRIBER, Events::new(&eventfd, EventSet::IN))?;
        Ok(Self(Arc::new(Shared { queue: Mutex::new(Some(VecDeque::new())), eventfd })))
    }

    pub(crate) fn batch(&self) -> Batch<S> {
        Batch(Arc::clone(&self.0))
    }

    pub(crate) fn endpoint(&self) -> RemoteEndpoint<S> {
        RemoteEndpoint(Arc::clone(&self.0))
    }
}

/// The calls that are in the queue. Later ones have rung for themselves (rule 1). Its end rings for
/// what is left (rule 2).
pub(crate) struct Batch<S>(Arc<Shared<S>>);

impl<S: MutEventSubscriber> Batch<S> {
    pub(crate) fn run(self, manager: &mut dyn SubscriberOps<Subscriber = S>) {
        // It is non-blocking, and an error means that it has been read.
        _ = self.0.eventfd.read();
        for _ in 0..self.0.len() {
            let Some(call) = self.0.queue().as_mut().and_then(VecDeque::pop_front) else { return };
            call(manager);
        }
    }
}

impl<S> Drop for Batch<S> {
    fn drop(&mut self) {
        if self.0.len() > 0 {
            // A full eventfd rings already.
            _ = self.0.ring();
        }
    }
}

/// Reaches an [`EventManager`](crate::EventManager) from other threads.
pub struct RemoteEndpoint<S>(Arc<Shared<S>>);

impl<S> fmt::Debug for RemoteEndpoint<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEndpoint").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

impl<S> Clone for RemoteEndpoint<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: MutEventSubscriber> RemoteEndpoint<S> {
    /// Runs a closure on the manager's thread, after the events of a run, and waits for its result.
    ///
    /// On the manager's own thread it waits for ever.
    ///
    /// # Errors
    /// - The error of the closure.
    /// - [`ChannelSend`](Error::ChannelSend) and [`EventFd`](Error::EventFd), as for
    ///   [`fire`](Self::fire).
    /// - [`ChannelRecv`](Error::ChannelRecv): the manager was dropped before, or the closure
    ///   panicked.
    pub fn call_blocking<F, O, E>(&self, f: F) -> std::result::Result<O, E>
    where
        F: FnOnce(&mut dyn SubscriberOps<Subscriber = S>) -> std::result::Result<O, E>
            + Send
            + 'static,
        O: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let (sender, receiver) = sync_channel(1);
        // The receiver is there until it has the result.
        self.fire(move |ops| _ = sender.send(f(ops)))?;
        receiver.recv().map_err(|_| Error::ChannelRecv)?
    }

    /// Runs a closure on the manager's thread, after the events of a run. Does not wait for it.
    ///
    /// # Errors
    /// - [`ChannelSend`](Error::ChannelSend): the manager is gone, or 65,536 calls wait.
    /// - [`EventFd`](Error::EventFd): the call is in the queue, but the eventfd was not written.
    pub fn fire<F>(&self, f: F) -> Result<()>
    where
        F: FnOnce(&mut dyn SubscriberOps<Subscriber = S>) + Send + 'static,
    {
        match self.0.queue().as_mut() {
            Some(queue) if queue.len() < CALLS_MAX => queue.push_back(Box::new(f)),
            _ => return Err(Error::ChannelSend),
        }
        self.0.ring()
    }

    /// Makes a run of the manager return.
    ///
    /// # Errors
    /// [`EventFd`](Error::EventFd): the eventfd was not written.
    pub fn kick(&self) -> Result<()> {
        self.0.ring()
    }
}
