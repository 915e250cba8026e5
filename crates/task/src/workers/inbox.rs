//! [`WorkerInbox`]: the messages of other threads to one worker.

use core::{
    fmt,
    task::{Context, Poll, ready},
};
use std::{io, sync::Arc};

use windlass_flow::{Bounds, Latch, Mailbox, Sender, mailbox};

use crate::{AsyncFd, Direction, budget::poll_proceed};

/// A mailbox on its way to its worker.
pub(super) struct UnopenedInbox<M> {
    mailbox: Mailbox<M>,
    latch: Arc<Latch>,
}

impl<M> UnopenedInbox<M> {
    pub(super) fn new(len_max: usize) -> io::Result<(Sender<M>, Self)> {
        let latch = Arc::new(Latch::new()?);
        let (sender, mailbox) = mailbox(Bounds::items(len_max), Arc::clone(&latch));
        Ok((sender, Self { mailbox, latch }))
    }

    /// Registers the latch with the executor of this thread.
    pub(super) fn open(self) -> Result<WorkerInbox<M>, (io::Error, Self)> {
        match AsyncFd::try_new(Arc::clone(&self.latch)) {
            Ok(watch) => Ok(WorkerInbox { mailbox: self.mailbox, watch }),
            Err(error) => Err((error.reason, self)),
        }
    }
}

/// The messages that other threads send to a worker. From
/// [`WorkerContext::take_inbox`](crate::WorkerContext::take_inbox).
///
/// Messages of one thread come in the order in which they were sent. Dropping it closes the queue
/// and drops the messages in it.
pub struct WorkerInbox<M> {
    mailbox: Mailbox<M>,
    watch: AsyncFd<Arc<Latch>>,
}

impl<M> WorkerInbox<M> {
    /// The next message. `None` if the queue is closed, by a stop of the workers or by
    /// [`close`](Self::close), and is empty. Cancel safe: if the future is dropped, no message is
    /// lost.
    pub async fn recv(&mut self) -> Option<M> {
        core::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// Polls for the next message; see [`recv`](Self::recv). The last waker is woken.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<M>> {
        let proceed = ready!(poll_proceed(context));
        let latch = Arc::clone(self.watch.get_ref());
        loop {
            latch.awake();
            if let Some(message) = self.mailbox.drain(1).next() {
                proceed.made_progress();
                return Poll::Ready(Some(message));
            }
            if self.mailbox.is_closed() && self.mailbox.is_empty() {
                return Poll::Ready(None);
            }
            if self.watch.source().is_ready(Direction::Read) {
                // The descriptor is read, because not every backend watches its edges.
                latch.clear();
                self.watch.clear_ready(Direction::Read);
            }
            // False if a wake has come since `awake`.
            if !latch.sleep() {
                continue;
            }
            match self.watch.poll_ready(Direction::Read, context) {
                Poll::Pending => return Poll::Pending,
                // The late write of a wake that was taken before.
                Poll::Ready(Ok(())) => {}
                // The executor is gone, or a registration that was queued was rejected. Nothing
                // will wake this, so senders are told, and what was accepted is still received.
                Poll::Ready(Err(_)) => {
                    self.mailbox.close();
                    return Poll::Ready(self.try_recv());
                }
            }
        }
    }

    /// The next message, if there is one now.
    pub fn try_recv(&mut self) -> Option<M> {
        self.mailbox.drain(1).next()
    }

    /// The number of messages in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mailbox.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mailbox.is_empty()
    }

    /// Closes the queue. Later messages come back to their senders. Those in it are still received.
    pub fn close(&self) {
        self.mailbox.close();
    }
}

impl<M> fmt::Debug for WorkerInbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerInbox").field("len", &self.len()).finish_non_exhaustive()
    }
}
