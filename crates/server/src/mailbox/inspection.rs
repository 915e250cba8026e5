//! Looks at single connections, as other threads ask for them.
//!
//! 1. The one who asks owns the [`Inspection`]. Workers have weak references, so they end their
//!    work when it is gone: after its time limit nothing is looked at or disconnected any more.
//! 2. A worker looks at a part of its connections in each turn, for one inspection at a time, and
//!    hands in its rows at the end.

use core::fmt;
use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::handle::WorkerHandle;
use crate::api::{
    ConnectionQuery, DisconnectTarget, Disconnected, Inspected, ListedConnection, ListedTopic,
};

/// Maximum time that the one who asks waits for the workers. A worker that is busy for longer is
/// left out.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What is asked of the workers.
pub(crate) enum InspectionTask {
    Connections(ConnectionQuery),
    Topics,
    Disconnect(DisconnectTarget),
}

/// What the workers have found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) connections: Vec<ListedConnection>,
    pub(crate) topics: Vec<ListedTopic>,
    /// Number of connections or topics that fit.
    pub(crate) count: u64,
    /// Number of workers that have looked at everything.
    workers_done: usize,
}

/// A question to all workers.
pub(crate) struct Inspection {
    pub(crate) task: InspectionTask,
    found: Mutex<Found>,
    changed: Condvar,
}

impl Inspection {
    pub(crate) fn new(task: InspectionTask) -> Arc<Self> {
        Arc::new(Self { task, found: Mutex::default(), changed: Condvar::new() })
    }

    /// What was found so far.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Found> {
        // Nothing panics while the lock is held.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a worker has found so far.
    pub(crate) fn add(&self, mut part: Found) {
        let mut found = self.lock();
        found.connections.append(&mut part.connections);
        found.topics.append(&mut part.topics);
        found.count += part.count;
    }

    /// A worker has looked at everything.
    pub(crate) fn end_worker(&self) {
        self.lock().workers_done += 1;
        self.changed.notify_all();
    }
}

/// Looks at single connections and topics of a running server, and disconnects clients, from any
/// thread. `Clone`, `Send` and `Sync`. [`StatsHandle::inspector`](crate::StatsHandle::inspector)
/// makes one.
///
/// A worker looks at no more than 256 connections or topics in a turn of its loop, so that the
/// others are served between. For each of them it compares one number. In the end it describes at
/// most 1000 of them, again 256 in a turn. It answers one question at a time.
///
/// Each call waits until all workers have answered, at most a second. The answer says whether one
/// was missing. Connections and topics that come or go meanwhile may be missing. Do not call this
/// on a worker's own thread, where it would wait for itself.
///
/// A connection in its TLS handshake has no ID and is not listed.
///
/// ```
/// use windlass_server::{ConnectionQuery, DisconnectTarget, Options, Server};
/// # use windlass_server::{Connection, Handler, Message, http::{Accept, Reject, UpgradeRequest}};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     type Data = ();
/// #     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
/// #         Ok(Accept::new(()))
/// #     }
/// #     fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
/// #         let _ = connection.reply_in_place(message);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let server = Server::new(Options::new(), |_worker| Echo);
/// let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
/// let inspector = running.stats_handle().inspector();
/// for connection in inspector.connections(&ConnectionQuery::new()).rows {
///     println!("{} {} {:?}", connection.id, connection.peer, connection.bytes);
/// }
/// let gone = inspector.disconnect(DisconnectTarget::Topic("/room/spam".into()));
/// assert_eq!(gone.count, 0);
/// running.stop();
/// running.join()
/// # }
/// ```
#[derive(Clone)]
pub struct Inspector {
    workers: Arc<[Arc<WorkerHandle>]>,
}

impl Inspector {
    pub(super) fn new(workers: &Arc<[Arc<WorkerHandle>]>) -> Self {
        Self { workers: Arc::clone(workers) }
    }

    /// Returns the first connections by an order.
    #[must_use]
    pub fn connections(&self, query: &ConnectionQuery) -> Inspected<ListedConnection> {
        let mut query = query.clone();
        query.limit = query.limit.min(ConnectionQuery::ROWS_MAX);
        let (order, limit) = (query.order, query.limit);
        let (found, is_complete) = self.ask(InspectionTask::Connections(query));
        let mut rows = found.connections;
        // One that has moved in the list of a topic may be there twice.
        rows.sort_by_key(|row| row.id);
        rows.dedup_by_key(|row| row.id);
        rows.sort_by_key(|row| Reverse(row.rank(order)));
        rows.truncate(limit);
        Inspected { rows, count: found.count, is_complete }
    }

    /// Returns the topics with the most subscribers. Each worker names its 1000 largest ones, whose
    /// numbers are added: a topic that is small on a worker with more topics lacks that part. In
    /// the count, as in the metrics, a topic counts for each worker with subscribers of it. Names
    /// that begin with `$` are left out.
    #[must_use]
    pub fn topics(&self, limit: usize) -> Inspected<ListedTopic> {
        let (found, is_complete) = self.ask(InspectionTask::Topics);
        let mut by_name: HashMap<Arc<str>, ListedTopic> = HashMap::new();
        for topic in found.topics {
            match by_name.get_mut(&topic.name) {
                Some(sum) => {
                    sum.subscribers += topic.subscribers;
                    sum.delivered += topic.delivered;
                }
                None => _ = by_name.insert(Arc::clone(&topic.name), topic),
            }
        }
        let mut rows: Vec<_> = by_name.into_values().collect();
        rows.sort_by(|a, b| (b.subscribers, &a.name).cmp(&(a.subscribers, &b.name)));
        rows.truncate(limit.min(ConnectionQuery::ROWS_MAX));
        Inspected { rows, count: found.count, is_complete }
    }

    /// Disconnects clients. Open connections get a Close frame with code 1008 (policy violation),
    /// and [`CloseReason::Local`](crate::CloseReason::Local) counts them. Those in their handshake
    /// are reset.
    ///
    /// What a worker has not done when the time limit is over, it leaves undone.
    #[must_use]
    pub fn disconnect(&self, target: DisconnectTarget) -> Disconnected {
        let (found, is_complete) = self.ask(InspectionTask::Disconnect(target));
        Disconnected { count: found.count, is_complete }
    }

    /// Returns what all workers have found, and whether all of them have answered.
    fn ask(&self, task: InspectionTask) -> (Found, bool) {
        let inspection = Inspection::new(task);
        let deadline = Instant::now() + TIMEOUT;
        let running = self.workers.iter().filter(|worker| worker.request_inspection(&inspection));
        let asked = running.count();
        let mut found = inspection.lock();
        while found.workers_done < asked {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = inspection.changed.wait_timeout(found, left);
            found = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let is_complete = found.workers_done >= asked;
        (core::mem::take(&mut *found), is_complete)
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}
