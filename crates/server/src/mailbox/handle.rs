//! A worker as other threads see it: its mailbox, and the state beside the mailbox.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use windlass::stream::TlsSessionFactory;
use windlass_flow::{Latch, Mailbox, Sender as MailboxSender, weighed_mailbox};

use super::{
    command::{WorkerCommand, weight_of},
    inspection::Inspection,
    open_connections::OpenConnections,
    reconfiguration::Reconfiguration,
};
use crate::{
    api::{ConnectionId, Options},
    metrics::{TopicFigures, WorkerSnapshot},
};

/// The last copy of a worker's counts.
#[derive(Default)]
struct Published {
    snapshot: WorkerSnapshot,
    /// Number of copies so far.
    count: u64,
    has_ended: bool,
    /// Since the start of the worker.
    taken_at: Duration,
    busiest: Vec<TopicFigures>,
    held_until_end: Vec<Arc<dyn Send + Sync>>,
    /// What makes the TLS sessions of the worker's listeners.
    tls: Vec<Arc<dyn TlsSessionFactory>>,
}

impl core::fmt::Debug for Published {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Published").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Instead of a time, after the end of the worker.
const ENDED: u64 = u64::MAX;

/// State of a service that other threads share, besides its mailbox.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    latch: Arc<Latch>,
    started: Instant,
    /// The last copy of the counts. The worker writes it on each timer event and when one is
    /// requested, so no data path takes this lock.
    published: Mutex<Published>,
    /// The time of the last copy, in nanoseconds since the start; [`ENDED`] after the end. A turn
    /// makes a copy at least once a second, so it says how long the worker has been busy. It is no
    /// part of what the lock protects: a worker may be stopped while it holds the lock.
    copied_ns: AtomicU64,
    /// Notified after each copy.
    has_published: Condvar,
    wants_stats: AtomicBool,
    /// Some connection of this worker watches the live status. It protects no other data.
    is_watched: AtomicBool,
    /// The requested drain time in nanoseconds, plus one; 0 if no drain was requested.
    drain: AtomicU64,
    /// The same for a [`DrainRequest::HandOver`].
    hand_over: AtomicU64,
    /// What the worker has not taken yet.
    reconfiguration: Mutex<Option<Arc<Reconfiguration>>>,
    has_reconfiguration: AtomicBool,
    /// Number of upgrades that wait for a decision. It protects no other data.
    waiting: AtomicUsize,
    /// Connections with a decision that they have not taken, at most as many as wait.
    decided: Mutex<Vec<ConnectionId>>,
    has_decided: AtomicBool,
    /// What other threads ask for, at most as many as there are threads that wait.
    inspections: Mutex<VecDeque<Weak<Inspection>>>,
    has_inspections: AtomicBool,
    /// Of all workers of the server.
    pub(crate) connections: Arc<OpenConnections>,
}

impl WorkerHandle {
    /// The latch of the mailbox.
    pub(crate) fn latch(&self) -> &Arc<Latch> {
        &self.latch
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        // Nothing panics while the lock is held.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> WorkerSnapshot {
        self.lock().snapshot
    }

    pub(crate) fn set_snapshot(&self, snapshot: WorkerSnapshot) {
        let taken_at = self.started.elapsed();
        let mut published = self.lock();
        published.snapshot = snapshot;
        published.taken_at = taken_at;
        published.count += 1;
        drop(published);
        let ns = u64::try_from(taken_at.as_nanos()).unwrap_or(ENDED - 1);
        self.copied_ns.store(ns, Ordering::Relaxed);
        self.has_published.notify_all();
    }

    /// Returns the time since the worker has finished a turn with a timer event, of which there is
    /// one a second. `None` after its end.
    pub(crate) fn turn_age(&self) -> Option<Duration> {
        let copied_ns = self.copied_ns.load(Ordering::Relaxed);
        let age = || self.started.elapsed().saturating_sub(Duration::from_nanos(copied_ns));
        (copied_ns != ENDED).then(age)
    }

    /// Returns the last copy, and when it was taken, since the start of the worker.
    pub(crate) fn dated_snapshot(&self) -> (WorkerSnapshot, Duration) {
        let published = self.lock();
        (published.snapshot, published.taken_at)
    }

    /// Stores the figures of the busiest topics.
    pub(crate) fn set_busiest(&self, busiest: Vec<TopicFigures>) {
        self.lock().busiest = busiest;
    }

    /// Returns the figures of the busiest topics.
    pub(crate) fn busiest(&self) -> Vec<TopicFigures> {
        self.lock().busiest.clone()
    }

    /// Notes whether some connection of this worker watches the live status.
    pub(crate) fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Returns whether some connection of this worker watches the live status.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Notes what makes the TLS sessions of a listener.
    pub(crate) fn add_tls(&self, tls: Option<Arc<dyn TlsSessionFactory>>) {
        self.lock().tls.extend(tls);
    }

    /// Returns what makes the TLS sessions of all listeners so far.
    pub(crate) fn tls(&self) -> Vec<Arc<dyn TlsSessionFactory>> {
        self.lock().tls.clone()
    }

    /// Stores the final counts. No others follow.
    pub(crate) fn end(&self, snapshot: WorkerSnapshot) {
        self.copied_ns.store(ENDED, Ordering::Relaxed);
        let mut published = self.lock();
        published.snapshot = snapshot;
        published.has_ended = true;
        let held = core::mem::take(&mut published.held_until_end);
        drop(published);
        self.has_published.notify_all();
        // The last owner may call a function, so no lock is held here.
        drop(held);
    }

    /// Keeps a value until the worker has ended. It is dropped here if that is so already.
    pub(crate) fn hold_until_end(&self, value: Arc<dyn Send + Sync>) {
        let mut published = self.lock();
        if !published.has_ended {
            return published.held_until_end.push(value);
        }
        drop(published);
    }

    /// Requests a copy of the counts. Returns the number of copies before.
    pub(crate) fn request_stats(&self) -> u64 {
        let published = self.lock();
        let (before, has_ended) = (published.count, published.has_ended);
        drop(published);
        if !has_ended {
            self.wants_stats.store(true, Ordering::Release);
            self.latch.wake();
        }
        before
    }

    /// Waits until there is a copy after that number of copies. Returns the last one.
    pub(crate) fn wait_for_stats(&self, before: u64, deadline: Instant) -> WorkerSnapshot {
        let mut published = self.lock();
        while published.count <= before && !published.has_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.has_published.wait_timeout(published, left);
            published = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        published.snapshot
    }

    /// Takes the request for a copy of the counts, if there is one.
    pub(crate) fn take_stats_request(&self) -> bool {
        // The load alone is cheaper, and most wake-ups have another cause.
        self.wants_stats.load(Ordering::Relaxed) && self.wants_stats.swap(false, Ordering::Acquire)
    }

    /// Requests a drain. This needs no room in the mailbox.
    pub(crate) fn request_drain(&self, request: DrainRequest) {
        let (cell, deadline) = match request {
            DrainRequest::Now(deadline) => (&self.drain, deadline),
            DrainRequest::HandOver(deadline) => (&self.hand_over, deadline),
        };
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX - 1);
        cell.store(ns.saturating_add(1), Ordering::Release);
        self.latch.wake();
    }

    /// Requests other settings. This needs no room in the mailbox.
    pub(crate) fn request_reconfiguration(&self, new: Arc<Reconfiguration>) {
        // Nothing panics while the lock is held, here and below.
        *self.reconfiguration.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        self.has_reconfiguration.store(true, Ordering::Release);
        self.latch.wake();
    }

    /// Takes the requested settings, if there are any.
    pub(crate) fn take_reconfiguration(&self) -> Option<Arc<Reconfiguration>> {
        // The load alone is cheaper, and most wake-ups have another cause.
        if !self.has_reconfiguration.load(Ordering::Relaxed)
            || !self.has_reconfiguration.swap(false, Ordering::Acquire)
        {
            return None;
        }
        self.reconfiguration.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Makes the worker check the state that it shares with the others.
    pub(crate) fn wake(&self) {
        self.latch.wake();
    }

    /// Counts an upgrade that waits for a decision, unless so many wait already.
    pub(crate) fn begin_waiting(&self, max: usize) -> bool {
        let more = |waiting: usize| (waiting < max).then(|| waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that there is a decision for a connection, and wakes the worker.
    pub(crate) fn note_decided(&self, id: ConnectionId) {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.has_decided.store(true, Ordering::Release);
        self.latch.wake();
    }

    /// Takes the connections for which there are decisions.
    pub(crate) fn take_decided(&self) -> Vec<ConnectionId> {
        // The load alone is cheaper, and most wake-ups have another cause.
        if !self.has_decided.load(Ordering::Relaxed)
            || !self.has_decided.swap(false, Ordering::Acquire)
        {
            return Vec::new();
        }
        core::mem::take(&mut *self.decided.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for an inspection. Returns false if the worker has ended.
    pub(crate) fn request_inspection(&self, inspection: &Arc<Inspection>) -> bool {
        if self.lock().has_ended {
            return false;
        }
        let mut waiting = self.inspections.lock().unwrap_or_else(PoisonError::into_inner);
        // A worker that is stopped takes none.
        waiting.retain(|inspection| inspection.strong_count() > 0);
        waiting.push_back(Arc::downgrade(inspection));
        drop(waiting);
        self.has_inspections.store(true, Ordering::Release);
        self.latch.wake();
        true
    }

    /// Returns whether an inspection was asked for since the last call.
    pub(crate) fn take_inspection_request(&self) -> bool {
        // The load alone is cheaper, and most wake-ups have another cause.
        self.has_inspections.load(Ordering::Relaxed)
            && self.has_inspections.swap(false, Ordering::Acquire)
    }

    /// Takes the next inspection.
    pub(crate) fn take_inspection(&self) -> Option<Weak<Inspection>> {
        self.inspections.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Takes a request for a drain, if there is one.
    pub(crate) fn take_drain_request(&self) -> Option<DrainRequest> {
        let take = |cell: &AtomicU64| {
            cell.swap(0, Ordering::AcqRel).checked_sub(1).map(Duration::from_nanos)
        };
        // One of the second kind is of no use after one of the first.
        let hand_over = take(&self.hand_over).map(DrainRequest::HandOver);
        take(&self.drain).map(DrainRequest::Now).or(hand_over)
    }
}

/// A request for a drain, with its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainRequest {
    Now(Duration),
    /// After the handshakes that are under way. Another process accepts meanwhile.
    HandOver(Duration),
}

/// A mailbox that is not yet registered with a loop.
pub(crate) struct WorkerMailbox {
    pub(crate) sender: MailboxSender<WorkerCommand>,
    pub(crate) receiver: Mailbox<WorkerCommand>,
    pub(crate) handle: Arc<WorkerHandle>,
}

impl WorkerMailbox {
    /// A mailbox of a worker, whose connections are counted with those of the others.
    pub(crate) fn new(options: &Options, connections: &Arc<OpenConnections>) -> io::Result<Self> {
        let latch = Arc::new(windlass::latch()?);
        let (sender, receiver) =
            weighed_mailbox(options.sender_bounds, Arc::clone(&latch), weight_of);
        let handle = WorkerHandle {
            latch,
            started: Instant::now(),
            published: Mutex::default(),
            copied_ns: AtomicU64::new(0),
            has_published: Condvar::new(),
            wants_stats: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            drain: AtomicU64::new(0),
            hand_over: AtomicU64::new(0),
            reconfiguration: Mutex::default(),
            has_reconfiguration: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            decided: Mutex::default(),
            has_decided: AtomicBool::new(false),
            inspections: Mutex::default(),
            has_inspections: AtomicBool::new(false),
            connections: Arc::clone(connections),
        };
        Ok(Self { sender, receiver, handle: Arc::new(handle) })
    }
}
