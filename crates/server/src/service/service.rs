//! A service: serves connections on one reactor.

use core::fmt;
use std::{
    io,
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use windlass::{Reactor, Turn, stream::StreamLimit};

use super::{commands::register_mailbox, host::ServiceHost, timer::start_timer};
use crate::{
    api::{Options, ServerStats},
    bus::{Node, Publisher},
    handler::{Handler, Hub},
    http::ConnectionLimiter,
    mailbox::{
        OtherWorkers, Sender, StatsHandle, TopicOwners, WorkerCommand, WorkerMailbox, WorkerQueue,
    },
    shared::{MemoryBudget, MemoryPool, Shared, SharedRates, quarter_of_available},
    state::ServiceState,
    table::ConnTable,
};

/// Serves WebSocket connections on one reactor, with one [`Handler`] for all of them. `Clone`; a
/// clone is the same service.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Reactor, Turn};
/// use windlass_server::{Options, Service};
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
/// let mut reactor = Reactor::new()?;
/// let options = Options::new();
/// let service = Service::new(Echo, &options, &mut reactor)?;
/// let listener = options.listener().tcp(([127, 0, 0, 1], 0).into())?;
/// println!("listening on {}", listener.local_addr()?);
/// service.listen(listener, &mut reactor)?;
///
/// // The end of this example. All connections get a Close frame, and ten seconds to answer it.
/// let end = move |mut turn: Turn<'_>| {
///     service.drain(Duration::from_secs(10), &mut turn, |mut turn: Turn<'_>| turn.stop());
/// };
/// reactor.after(Duration::from_millis(10), end).map_err(std::io::Error::from)?;
/// reactor.run()
/// # }
/// ```
pub struct Service<H: Handler>(pub(crate) Rc<ServiceInner<H>>);

/// The parts of a service.
pub(crate) struct ServiceInner<H> {
    pub(crate) handler: H,
    pub(crate) state: Rc<ServiceState>,
    pub(crate) limiter: Option<Arc<ConnectionLimiter>>,
    pub(crate) rates: Arc<SharedRates>,
    /// The limit of its listeners, if requests of connections beyond it are rejected.
    pub(crate) stream_limit: Option<StreamLimit>,
    sender: Sender,
}

impl<H> ServiceInner<H> {
    /// Returns whether there are connections beyond the maximum, which are accepted to reject their
    /// requests.
    pub(crate) fn is_beyond_connections_max(&self) -> bool {
        let limit = self.stream_limit.as_ref();
        limit.is_some_and(|limit| limit.open() > self.state.shared.rules().connections_max)
    }
}

/// The connection between a service and the other workers.
pub(crate) struct WorkerLinks {
    pub(crate) worker: u16,
    pub(crate) mailbox: WorkerMailbox,
    /// The mailboxes of the other workers.
    pub(crate) others: Vec<windlass_flow::Sender<WorkerCommand>>,
    pub(crate) owners: Option<Arc<TopicOwners>>,
    /// Sends to all workers, including this one.
    pub(crate) sender: Sender,
    pub(crate) limits: ConnectionLimits,
    pub(crate) memory_pool: Arc<MemoryPool>,
    /// The node of the server in a cluster.
    pub(crate) node: Option<Arc<Node>>,
}

/// Limits of connections and requests that the workers of a server share.
#[derive(Clone)]
pub(crate) struct ConnectionLimits {
    limiter: Option<Arc<ConnectionLimiter>>,
    rates: Arc<SharedRates>,
    stream_limit: Option<StreamLimit>,
}

impl ConnectionLimits {
    pub(crate) fn new(options: &Options) -> Self {
        let per_address = options.connections_per_address_max;
        Self {
            limiter: per_address.map(|max| ConnectionLimiter::new(None, Some(max))),
            rates: SharedRates::new(&options.rates),
            stream_limit: options
                .reject_when_full
                .then(|| StreamLimit::new(options.accepted_max())),
        }
    }

    /// Replaces the limit of each address by one that may change.
    pub(crate) fn with_limiter(mut self, limiter: &Arc<ConnectionLimiter>) -> Self {
        self.limiter = Some(Arc::clone(limiter));
        self
    }

    /// The rates, which may change.
    pub(crate) fn rates(&self) -> &Arc<SharedRates> {
        &self.rates
    }

    /// Replaces the limit of the listeners by one that may change, if it is needed.
    pub(crate) fn with_stream_limit(mut self, limit: &StreamLimit) -> Self {
        if self.stream_limit.is_some() {
            self.stream_limit = Some(limit.clone());
        }
        self
    }
}

/// Creates the memory budget for the connections of this number of workers.
pub(crate) fn memory_pool(options: &Options, workers: usize) -> Arc<MemoryPool> {
    let limit = options.memory_max.unwrap_or_else(quarter_of_available);
    MemoryPool::new(limit, workers, options.receiver_buffer_max)
}

impl<H: Handler> Clone for Service<H> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<H: Handler> Service<H> {
    /// Creates a service without connections.
    ///
    /// # Errors
    /// - [`OptionsError`](crate::OptionsError), with kind
    ///   [`InvalidInput`](io::ErrorKind::InvalidInput).
    /// - The reactor has no room for the required timer or descriptor.
    /// - The process has no free descriptor.
    pub fn new(handler: H, options: &Options, reactor: &mut Reactor) -> io::Result<Self> {
        Self::start(handler, options, reactor)
    }

    /// As [`new`](Self::new), in a turn of the reactor: for services that are created by a handler,
    /// or by a task of `windlass-task`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_in_turn(handler: H, options: &Options, turn: &mut Turn<'_>) -> io::Result<Self> {
        Self::start(handler, options, turn)
    }

    fn start(handler: H, options: &Options, reactor: &mut impl ServiceHost) -> io::Result<Self> {
        options.check()?;
        let mailbox = WorkerMailbox::new(options, &Arc::default())?;
        let thread = Arc::new(OnceLock::from(thread::current().id()));
        let sender = Sender::new(vec![WorkerQueue::new(mailbox.sender.clone(), &thread)], None);
        let limits = ConnectionLimits::new(options);
        let memory_pool = memory_pool(options, 1);
        let links = WorkerLinks {
            worker: 0,
            mailbox,
            others: Vec::new(),
            owners: None,
            sender,
            limits,
            memory_pool,
            node: None,
        };
        Self::with_links(handler, options, links, reactor)
    }

    pub(crate) fn with_links(
        handler: H,
        options: &Options,
        links: WorkerLinks,
        reactor: &mut impl ServiceHost,
    ) -> io::Result<Self> {
        let WorkerLinks { worker, mailbox, others, owners, .. } = links;
        let WorkerLinks { sender, limits, memory_pool, node, .. } = links;
        let ConnectionLimits { limiter, rates, stream_limit } = limits;
        let publisher = node.map(|node| Publisher::new(node, worker));
        let memory = MemoryBudget::new(memory_pool);
        let state = Rc::new(ServiceState::new(
            Shared::new(options.clone(), memory, mailbox.handle),
            ConnTable::new(worker, first_generation()),
            OtherWorkers::new(worker, others, owners, publisher),
            reactor.backend(),
            reactor.has_own_clock(),
        ));
        start_timer(&state, reactor)?;
        register_mailbox(&state, mailbox.receiver, reactor)?;
        let service =
            Rc::new(ServiceInner { handler, state, limiter, rates, stream_limit, sender });
        let started = Rc::clone(&service);
        reactor.defer(move |turn: Turn<'_>| {
            started.handler.on_start(&mut Hub { state: &started.state, turn });
        })?;
        Ok(Self(service))
    }

    /// Shuts the service down gracefully. No more connections are accepted, and requests in
    /// progress are rejected. [`on_drain`](Handler::on_drain) is called for each connection.
    /// Connections that are still open after `deadline` are reset. When the last one is gone,
    /// `callback` is called at the end of a turn, for instance to stop the reactor.
    ///
    /// The listeners are closed immediately, so another process can listen on their addresses.
    pub fn drain(
        &self,
        deadline: Duration,
        turn: &mut Turn<'_>,
        callback: impl FnOnce(Turn<'_>) + 'static,
    ) {
        let state = &self.0.state;
        state.drain.add_callback(Box::new(callback));
        state.drain(turn, deadline);
    }

    /// Returns whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.state.drain.has_begun()
    }

    /// Returns a sender, which reaches the connections from other threads.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.0.sender.clone()
    }

    /// Returns the service for use in another handler of the reactor, such as a timer's.
    pub fn hub<'a>(&'a self, turn: &'a mut Turn<'_>) -> Hub<'a> {
        Hub { state: &self.0.state, turn: turn.reborrow() }
    }

    /// Returns the handler.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.0.handler
    }

    /// Returns the counts of the service.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.0.state.tables.borrow().snapshot(&self.0.state.shared)
    }

    /// Returns a handle to the counts for other threads, for instance for
    /// [`Admin::start`](crate::Admin::start).
    #[must_use]
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle::new([Arc::clone(&self.0.state.shared.worker)].into(), None)
    }
}

impl<H: Handler> fmt::Debug for Service<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Gives services different first generations, so that their connection IDs differ for a long time.
fn first_generation() -> u32 {
    static SERVICES: AtomicU32 = AtomicU32::new(0);
    // Multiples of the golden ratio are spread evenly.
    SERVICES.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9)
}
