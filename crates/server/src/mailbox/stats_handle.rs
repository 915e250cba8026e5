//! The counts of a server, as other threads read them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{handle::WorkerHandle, inspection::Inspector};
use crate::{
    api::ServerStats,
    bus::{BusState, ClusterStats, Node},
    metrics::{TlsFigures, WorkerSnapshot, write_cluster_metrics, write_metrics, write_status},
};

/// Maximum time that a reader waits for the workers to copy their counts. A worker whose handler
/// takes longer is read as of its last copy.
const FRESH_TIMEOUT: Duration = Duration::from_millis(250);

/// The counts of a server, on any thread. `Clone`, `Send` and `Sync`.
///
/// ```
/// use windlass_server::{Options, Server};
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
/// let handle = running.stats_handle();
/// running.stop();
/// running.join()?;
/// // The workers have ended, so these are the final counts.
/// assert_eq!(handle.stats().opened, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StatsHandle {
    workers: Arc<[Arc<WorkerHandle>]>,
    started: Instant,
    node: Option<Arc<Node>>,
}

impl StatsHandle {
    pub(crate) fn new(workers: Arc<[Arc<WorkerHandle>]>, node: Option<Arc<Node>>) -> Self {
        let started = workers.first().map_or_else(Instant::now, |worker| worker.started());
        Self { workers, started, node }
    }

    /// See [`RunningServer::stats`](crate::RunningServer::stats).
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.sum(self.last_snapshots())
    }

    fn sum(&self, snapshots: impl IntoIterator<Item = WorkerSnapshot>) -> ServerStats {
        let mut stats = ServerStats::default();
        for snapshot in snapshots {
            stats.add(&snapshot.stats);
        }
        // The workers need not have had their maxima at the same time.
        stats.connections_most = self.workers.first().map_or(0, |worker| worker.connections.most());
        stats
    }

    /// Returns how long ago the slowest worker has last handled its timer event, which each running
    /// worker does at least once a second. A worker whose handler takes long, or whose thread is
    /// stopped, is late. Zero if all workers have ended.
    #[must_use]
    pub fn slowest_worker_age(&self) -> Duration {
        self.slowest_worker().map_or(Duration::ZERO, |(_, age)| age)
    }

    /// Asks the workers to copy their counts, and waits for them, at most a quarter of a second.
    /// Returns the sum. A worker that does not answer in time is counted as of its last timeout
    /// scan.
    ///
    /// Do not call this on a worker's own thread, where it would wait for itself.
    #[must_use]
    pub fn fresh_stats(&self) -> ServerStats {
        self.sum(self.fresh_snapshots())
    }

    /// Returns all metrics in Prometheus' text format 0.0.4, as `/metrics` of the
    /// [admin listener](crate::Admin) does. Waits like [`fresh_stats`](Self::fresh_stats).
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = Vec::new();
        self.write_metrics(&self.fresh_snapshots(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    pub(crate) fn write_metrics(&self, workers: &[WorkerSnapshot], text: &mut Vec<u8>) {
        write_metrics(workers, &self.turn_ages(), &self.tls_figures(), text);
        if let Some(stats) = self.cluster_stats() {
            write_cluster_metrics(&stats, text);
        }
    }

    /// Returns why the bus makes the server not ready.
    pub(crate) fn cluster_not_ready(&self) -> Option<&'static str> {
        match self.cluster_stats()?.state {
            BusState::Connected => None,
            _ => Some("not connected: the bus of the cluster cannot be reached"),
        }
    }

    /// Returns the counts of the server as a node of a [cluster](crate::Server::cluster). `None` if
    /// it is none.
    #[must_use]
    pub fn cluster_stats(&self) -> Option<ClusterStats> {
        self.node.as_ref().map(|node| node.stats())
    }

    /// Returns the main counts as a JSON object, as `/status` of the [admin listener](crate::Admin)
    /// does. Waits like [`fresh_stats`](Self::fresh_stats).
    #[must_use]
    pub fn status_json(&self) -> String {
        let mut text = Vec::new();
        self.write_status(&self.fresh_snapshots(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    pub(crate) fn write_status(&self, workers: &[WorkerSnapshot], text: &mut Vec<u8>) {
        write_status(workers, self.uptime(), self.cluster_stats().as_ref(), text);
    }

    /// Returns what looks at single connections and topics, and disconnects clients.
    #[must_use]
    pub fn inspector(&self) -> Inspector {
        Inspector::new(&self.workers)
    }

    /// Returns the index of the worker that has been in its turn for the longest time, and that
    /// time. A worker finishes a turn at least once a second, unless a handler or the machine keeps
    /// it from that. `None` when all workers have ended. Does not wait for a worker.
    ///
    /// For a watchdog: a supervisor is told that the server lives while this is short.
    #[must_use]
    pub fn slowest_worker(&self) -> Option<(usize, Duration)> {
        let ages = self.workers.iter().enumerate();
        let ages = ages.filter_map(|(index, worker)| Some((index, worker.turn_age()?)));
        ages.max_by_key(|(_, age)| *age)
    }

    fn turn_ages(&self) -> Vec<Duration> {
        self.workers.iter().map(|worker| worker.turn_age().unwrap_or_default()).collect()
    }

    /// Asks what makes the TLS sessions for its figures.
    pub(crate) fn tls_figures(&self) -> TlsFigures {
        let factories: Vec<_> = self.workers.iter().flat_map(|worker| worker.tls()).collect();
        TlsFigures::of(&factories)
    }

    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the last copy of the counts of each worker, which makes one at least once a second.
    pub(crate) fn last_snapshots(&self) -> impl Iterator<Item = WorkerSnapshot> {
        self.workers.iter().map(|worker| worker.snapshot())
    }

    /// Returns the counts of each worker, copied now unless a worker is too busy.
    pub(crate) fn fresh_snapshots(&self) -> Vec<WorkerSnapshot> {
        let deadline = Instant::now() + FRESH_TIMEOUT;
        // All of them are asked before the first is waited for.
        let before: Vec<_> = self.workers.iter().map(|worker| worker.request_stats()).collect();
        let answers = self.workers.iter().zip(before);
        answers.map(|(worker, before)| worker.wait_for_stats(before, deadline)).collect()
    }

    /// Calls a function when all workers have ended, on the thread of the last one.
    pub(crate) fn on_end(&self, call: impl FnOnce() + Send + 'static) {
        let last = Arc::new(CallByLast { call: std::sync::Mutex::new(Some(Box::new(call))) });
        for worker in self.workers.iter() {
            worker.hold_until_end(Arc::clone(&last) as Arc<dyn Send + Sync>);
        }
    }
}

type Call = Box<dyn FnOnce() + Send>;

/// Calls a function when its last owner is gone.
struct CallByLast {
    call: std::sync::Mutex<Option<Call>>,
}

impl Drop for CallByLast {
    fn drop(&mut self) {
        let call = self.call.get_mut().ok().and_then(Option::take);
        if let Some(call) = call {
            call();
        }
    }
}
