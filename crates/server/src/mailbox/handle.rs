//! A worker as other threads see it: its mailbox, and the state beside the mailbox.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use windlass_flow::{Latch, Mailbox, Sender as MailboxSender, weighed_mailbox};

use super::command::{WorkerCommand, weight_of};
use crate::api::{Options, ServerStats};

/// State of a service that other threads share, besides its mailbox.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    latch: Arc<Latch>,
    stats: Mutex<ServerStats>,
    /// The requested drain time in nanoseconds, plus one; 0 if no drain was requested.
    drain: AtomicU64,
}

impl WorkerHandle {
    pub(crate) fn stats(&self) -> ServerStats {
        // Nothing panics while the lock is held.
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_stats(&self, stats: ServerStats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Requests a drain. This needs no room in the mailbox.
    pub(crate) fn request_drain(&self, deadline: Duration) {
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX - 1);
        self.drain.store(ns.saturating_add(1), Ordering::Release);
        self.latch.wake();
    }

    /// Makes the worker check the state that it shares with the others.
    pub(crate) fn wake(&self) {
        self.latch.wake();
    }

    /// Takes the request for a drain, if there is one.
    pub(crate) fn take_drain_request(&self) -> Option<Duration> {
        self.drain.swap(0, Ordering::AcqRel).checked_sub(1).map(Duration::from_nanos)
    }
}

/// A mailbox that is not yet registered with a loop.
pub(crate) struct WorkerMailbox {
    pub(crate) sender: MailboxSender<WorkerCommand>,
    pub(crate) receiver: Mailbox<WorkerCommand>,
    pub(crate) handle: Arc<WorkerHandle>,
}

impl WorkerMailbox {
    pub(crate) fn new(options: &Options) -> io::Result<Self> {
        let latch = Arc::new(Latch::new()?);
        let (sender, receiver) =
            weighed_mailbox(options.sender_bounds, Arc::clone(&latch), weight_of);
        let handle = WorkerHandle {
            latch,
            stats: Mutex::new(ServerStats::default()),
            drain: AtomicU64::new(0),
        };
        Ok(Self { sender, receiver, handle: Arc::new(handle) })
    }
}
