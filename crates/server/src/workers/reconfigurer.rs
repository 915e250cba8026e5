//! Changes settings of a running server.

use core::fmt;
use std::sync::Arc;

use windlass::stream::StreamLimit;

use crate::{
    api::{Options, OptionsError},
    http::ConnectionLimiter,
    mailbox::{Reconfiguration, StatsHandle, WorkerHandle},
    shared::{MemoryPool, SharedRates, quarter_of_available},
};

/// Changes settings of a running server, from any thread. `Clone`, `Send` and `Sync`.
///
/// ```
/// use windlass_server::{Options, Server, http::Origins};
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
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = Options::new();
/// let server = Server::new(options.clone(), |_worker| Echo);
/// let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
/// // Later, when the configuration has changed:
/// options.origins = Origins::parse(&["https://example.com"])?;
/// options.connections_max = 5000;
/// running.reconfigurer().reconfigure(&options)?;
/// running.stop();
/// running.join()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Reconfigurer {
    pub(super) workers: Arc<[Arc<WorkerHandle>]>,
    pub(super) limit: StreamLimit,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) rates: Arc<SharedRates>,
    pub(super) memory_pool: Arc<MemoryPool>,
    pub(super) receiver_buffer_max: usize,
    pub(super) reject_when_full: bool,
}

impl Reconfigurer {
    /// Checks these settings as those of the running server, which keeps what cannot change.
    ///
    /// # Errors
    /// - [`OptionsError::BufferTooSmall`] if the buffer of the running server cannot hold the
    ///   longest message of the new limits.
    /// - [`OptionsError::BurstTooSmall`] and [`OptionsError::TooManyOrderedTopics`] as in
    ///   [`Options::check`].
    pub fn check(&self, options: &Options) -> Result<(), OptionsError> {
        let mut options = options.clone();
        options.receiver_buffer_max = self.receiver_buffer_max;
        options.check()
    }

    /// Takes these settings from `options`; the others are kept:
    ///
    /// - [`origins`](Options::origins) and [`hosts`](Options::hosts), for further requests
    /// - [`limits`](Options::limits), for further connections
    /// - [`connections_max`](Options::connections_max) and
    ///   [`connections_per_address_max`](Options::connections_per_address_max). Connections beyond
    ///   a lower limit stay open. If addresses had no limit, those that are open do not count.
    /// - [`memory_max`](Options::memory_max)
    /// - [`rates`](Options::rates). If one differs, those of connections, TLS handshakes and
    ///   requests begin with a full burst. The rates of messages count for further connections, and
    ///   for those that had such a rate when they opened.
    /// - [`proxies`](Options::proxies), for further connections. The header that names the clients
    ///   also counts for further requests of open ones.
    ///
    /// Waits until all workers have them, at most a quarter of a second. A worker that is busy for
    /// longer takes them as soon as it can. Do not call this on a worker's own thread, where it
    /// would wait for itself.
    ///
    /// # Errors
    /// As [`check`](Self::check). Nothing has changed.
    pub fn reconfigure(&self, options: &Options) -> Result<(), OptionsError> {
        self.check(options)?;
        let mut options = options.clone();
        options.reject_when_full = self.reject_when_full;
        self.limit.set_max(options.accepted_max());
        self.limiter.set_per_address_max(options.connections_per_address_max);
        self.rates.set(&options.rates);
        self.memory_pool.set_limit(options.memory_max.unwrap_or_else(quarter_of_available));
        let new = Arc::new(Reconfiguration::of(&options));
        for worker in self.workers.iter() {
            worker.request_reconfiguration(Arc::clone(&new));
        }
        // A worker takes them before it copies its counts.
        StatsHandle::new(Arc::clone(&self.workers), None).fresh_snapshots();
        Ok(())
    }
}

impl fmt::Debug for Reconfigurer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconfigurer").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}
