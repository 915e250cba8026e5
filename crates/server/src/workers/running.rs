//! A running server, and handles to it for other threads.

use core::fmt;
use std::{io, sync::Arc, time::Duration};

use windlass::{
    Backend, RingError,
    stream::{Address, RunningWorkers},
};

use super::reconfigurer::Reconfigurer;
use crate::{
    api::ServerStats,
    bus::Node,
    mailbox::{DrainRequest, Sender, StatsHandle, WorkerHandle},
};

/// A running server. Dropping it ends all connections and waits for the workers.
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
/// let server = Server::new(Options::new(), |_worker| Echo).workers(2);
/// let running = server.listen(([127, 0, 0, 1], 0).into()).start()?;
/// println!("listening on {} by {:?}", running.addresses()[0], running.backend());
/// assert_eq!(running.stats().connections, 0);
/// running.stop();
/// running.join()
/// # }
/// ```
#[must_use = "dropping it stops the server"]
pub struct RunningServer {
    pub(super) workers: RunningWorkers,
    pub(super) addresses: Vec<Address>,
    pub(super) sender: Sender,
    pub(super) handles: Arc<[Arc<WorkerHandle>]>,
    pub(super) node: Option<Arc<Node>>,
    pub(super) reconfigurer: Reconfigurer,
}

impl RunningServer {
    /// Returns the backend of the workers' reactors: see [`RunningWorkers::backend`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.workers.backend()
    }

    /// Returns why a worker has no ring, if [`Backend::UringOrEpoll`] has become epoll.
    #[must_use]
    pub fn ring_error(&self) -> Option<RingError> {
        self.workers.ring_error()
    }

    /// Returns the addresses where the server listens, in the order of the configuration calls.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns a sender, which reaches all connections from other threads.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Shuts the server down gracefully: see [`Service::drain`](crate::Service::drain). The workers
    /// end when the last connection is gone, or when `deadline` has passed. This call does not
    /// wait; [`join`](Self::join) does. [`drainer`](Self::drainer) provides the same call for other
    /// threads.
    pub fn drain(&self, deadline: Duration) {
        self.drainer().drain(deadline);
    }

    /// Returns a handle that drains the server from any thread, for instance from a signal's
    /// thread.
    #[must_use]
    pub fn drainer(&self) -> Drainer {
        Drainer(Arc::clone(&self.handles))
    }

    /// Returns a handle that changes settings of the running server, from any thread.
    #[must_use]
    pub fn reconfigurer(&self) -> Reconfigurer {
        self.reconfigurer.clone()
    }

    /// Ends the server immediately: connections are closed as by close(2). Does not wait.
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// Returns a handle for each worker that [stops](Self::stop) it from any thread.
    #[must_use]
    pub fn stops(&self) -> &[windlass::Stop] {
        self.workers.stops()
    }

    /// Returns the sum of all workers' counts, as of their last timeout scan, at max a second ago.
    /// After the workers have ended, the counts are exact; see
    /// [`stats_handle`](Self::stats_handle).
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.stats_handle().stats()
    }

    /// Returns a handle to the counts that outlives the server.
    #[must_use]
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle::new(Arc::clone(&self.handles), self.node.clone())
    }

    /// Waits until all workers have ended, after [`drain`](Self::drain) or [`stop`](Self::stop), or
    /// because one has failed.
    ///
    /// # Errors
    /// - The first error of a worker's loop.
    ///
    /// # Panics
    /// With the panic of the hook set by [`on_panic`](super::Server::on_panic).
    pub fn join(self) -> io::Result<()> {
        self.workers.join()
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Drains a server from any thread. `Clone`, `Send` and `Sync`.
///
/// ```
/// use std::{thread, time::Duration};
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
/// let drainer = running.drainer();
/// // This thread could wait for a signal.
/// let waiting = thread::spawn(move || drainer.drain(Duration::from_secs(10)));
/// running.join()?;
/// waiting.join().expect("it does not panic");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Drainer(Arc<[Arc<WorkerHandle>]>);

impl Drainer {
    /// See [`RunningServer::drain`].
    pub fn drain(&self, deadline: Duration) {
        self.request(DrainRequest::Now(deadline));
    }

    /// Leaves the listening sockets to another process that has them too. This server stops
    /// accepting, and keeps its sockets, because closing one of an `SO_REUSEPORT` group resets its
    /// backlog. The requests of connections that it has accepted are still answered, for at most
    /// [`handshake_timeout`](crate::Options::handshake_timeout). Then it [drains](Self::drain).
    ///
    /// The other process must accept already, from all of these sockets.
    pub fn hand_over(&self, deadline: Duration) {
        self.request(DrainRequest::HandOver(deadline));
    }

    fn request(&self, request: DrainRequest) {
        for worker in self.0.iter() {
            worker.request_drain(request);
        }
    }
}
