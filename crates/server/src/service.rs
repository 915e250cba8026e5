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

use windlass::{
    Reactor, Registrar, Turn,
    stream::{Listener, ListenerKey, Peer},
};

use crate::{
    Handler, Hub, Options, Refused, Sender, Stats,
    budget::{Budget, Pool},
    driver::Driver,
    hall::{Hall, SharedHall},
    http::{Door, PlaceCounter},
    inbox::{self, Command, Inbox},
    machine,
    sender::Gate,
    sweep,
};

/// Serves WebSocket connections on one reactor, with one [`Handler`] for all of them. `Clone`; a
/// clone is the same service.
pub struct Service<H: Handler>(pub(crate) Rc<Inner<H>>);

/// The parts of a service.
pub(crate) struct Inner<H> {
    pub(crate) handler: H,
    pub(crate) hall: SharedHall,
    pub(crate) places: Option<Arc<PlaceCounter>>,
    sender: Sender,
}

/// The connection between a service and the other workers.
pub(crate) struct Post {
    pub(crate) worker: u16,
    pub(crate) inbox: Inbox,
    /// The mailboxes of the other workers.
    pub(crate) others: Vec<windlass_flow::Sender<Command>>,
    /// Sends to all workers, including this one.
    pub(crate) sender: Sender,
    pub(crate) places: Option<Arc<PlaceCounter>>,
    pub(crate) pool: Arc<Pool>,
}

/// Creates the memory budget for the connections of this number of workers.
pub(crate) fn pool(options: &Options, workers: usize) -> Arc<Pool> {
    Pool::new(options.memory_max.unwrap_or_else(machine::quarter), workers)
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
        options.check()?;
        let inbox = Inbox::new(options)?;
        let thread = Arc::new(OnceLock::from(thread::current().id()));
        let sender = Sender::new(vec![Gate::new(inbox.sender.clone(), &thread)]);
        let places =
            options.connections_per_address_max.map(|most| PlaceCounter::new(None, Some(most)));
        let pool = pool(options, 1);
        let post = Post { worker: 0, inbox, others: Vec::new(), sender, places, pool };
        Self::at_post(handler, options, post, reactor)
    }

    pub(crate) fn at_post(
        handler: H,
        options: &Options,
        post: Post,
        reactor: &mut Reactor,
    ) -> io::Result<Self> {
        let Post { worker, inbox, others, sender, places, pool } = post;
        let budget = Budget::new(pool);
        let hall = Rc::new(Hall::new(
            options.clone(),
            worker,
            first_generation(),
            others,
            inbox.board,
            budget,
        ));
        sweep::start(&hall, reactor)?;
        inbox::watch(&hall, inbox.mailbox, reactor)?;
        Ok(Self(Rc::new(Inner { handler, hall, places, sender })))
    }

    /// Accepts connections from a listener. Create the listener with [`Options::listener`], so that
    /// the stream buffers match the other settings.
    ///
    /// # Errors
    /// If the reactor has no room for the listener, or a [drain](Self::drain) has begun.
    pub fn listen(
        &self,
        listener: Listener,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> io::Result<ListenerKey> {
        if self.is_draining() {
            return Err(io::Error::other("the service is draining"));
        }
        let service = self.clone();
        // An address of any family other than these two is not a loopback address.
        let door = listener.local_addr().map_or(Door::Network, |address| Door::of(&address));
        let accept = move |peer: &Peer<'_>| service.accept(peer, door);
        let key = listener.register(accept, target).map_err(io::Error::from)?;
        let mut listeners = self.0.hall.listeners.take();
        listeners.push(key);
        self.0.hall.listeners.set(listeners);
        Ok(key)
    }

    fn accept(&self, peer: &Peer<'_>, door: Door) -> Option<Driver<H>> {
        let Some(places) = &self.0.places else { return Some(Driver::new(&self.0, None, door)) };
        match places.take(peer.address()) {
            Ok(place) => Some(Driver::new(&self.0, Some(place), door)),
            Err(reason) => {
                self.0.hall.stats.refused.add(1);
                let reason = reason.to_string();
                self.0.handler.on_refused(&Refused {
                    peer: peer.address(),
                    status: None,
                    reason: &reason,
                });
                None
            }
        }
    }

    /// Shuts the service down gracefully. No more connections are accepted, and requests in
    /// progress are rejected. [`on_drain`](Handler::on_drain) is called for each connection.
    /// Connections that are still open after `deadline` are reset. When the last one is gone,
    /// `then` is called at the end of a turn, for instance to stop the reactor.
    ///
    /// The listeners are closed immediately, so another process can listen on their addresses.
    pub fn drain(
        &self,
        deadline: Duration,
        turn: &mut Turn<'_>,
        then: impl FnOnce(Turn<'_>) + 'static,
    ) {
        let hall = &self.0.hall;
        let mut after = hall.after_drain.take();
        after.push(Box::new(then));
        hall.after_drain.set(after);
        hall.drain(turn, deadline);
    }

    /// Returns whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.hall.is_draining.get()
    }

    /// Returns a sender, which reaches the connections from other threads.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.0.sender.clone()
    }

    /// Returns the service for use in another handler of the reactor, such as a timer's.
    pub fn hub<'a>(&'a self, turn: &'a mut Turn<'_>) -> Hub<'a> {
        Hub { hall: &self.0.hall, turn: turn.reborrow() }
    }

    /// Returns the handler.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.0.handler
    }

    /// Returns the counts of the service.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.hall.snapshot()
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
