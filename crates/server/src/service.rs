//! A service: what serves connections on one reactor.

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

/// Serves WebSocket connections on one reactor, with one [`Handler`] for all of them. `Clone`, and
/// a clone is the same service.
pub struct Service<H: Handler>(pub(crate) Rc<Inner<H>>);

/// What a service is made of.
pub(crate) struct Inner<H> {
    pub(crate) handler: H,
    pub(crate) hall: SharedHall,
    pub(crate) places: Option<Arc<PlaceCounter>>,
    sender: Sender,
}

/// What a service is to the other workers.
pub(crate) struct Post {
    pub(crate) worker: u16,
    pub(crate) inbox: Inbox,
    /// The mailboxes of the other workers.
    pub(crate) others: Vec<windlass_flow::Sender<Command>>,
    /// To all workers, this one included.
    pub(crate) sender: Sender,
    pub(crate) places: Option<Arc<PlaceCounter>>,
    pub(crate) pool: Arc<Pool>,
}

/// The memory for the connections of so many workers.
pub(crate) fn pool(options: &Options, workers: usize) -> Arc<Pool> {
    Pool::new(options.memory_max.unwrap_or_else(machine::quarter), workers)
}

impl<H: Handler> Clone for Service<H> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<H: Handler> Service<H> {
    /// A service without connections.
    ///
    /// # Errors
    /// [`OptionsError`](crate::OptionsError), with [`InvalidInput`](io::ErrorKind::InvalidInput).
    /// When the reactor has no room for the timer or the descriptor that it needs, or the process
    /// has no descriptor.
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

    /// Accepts connections from a listener, which is best made with [`Options::listener`]: what its
    /// streams may buffer should go with the rest.
    ///
    /// # Errors
    /// When the reactor has no room for it, and when a [drain](Self::drain) has begun.
    pub fn listen(
        &self,
        listener: Listener,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> io::Result<ListenerKey> {
        if self.is_draining() {
            return Err(io::Error::other("the service is draining"));
        }
        let service = self.clone();
        // A socket of another family than these two is no loopback address.
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

    /// Shuts the service down gracefully: no connection is accepted any more, requests under way
    /// are refused, each connection hears [`on_drain`](Handler::on_drain), and those that are still
    /// there after `deadline` are reset. When the last one has gone, `then` is called, at the end
    /// of a turn: to stop the reactor, say.
    ///
    /// The listeners are closed at once, so another process can listen in their place.
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

    /// Whether a drain has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.hall.is_draining.get()
    }

    /// What reaches the connections from other threads.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.0.sender.clone()
    }

    /// The service in a handler of the reactor that is none of its own: a timer's, say.
    pub fn hub<'a>(&'a self, turn: &'a mut Turn<'_>) -> Hub<'a> {
        Hub { hall: &self.0.hall, turn: turn.reborrow() }
    }

    /// The handler.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.0.handler
    }

    /// What it has counted.
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

/// Names of connections of different services differ for a long time.
fn first_generation() -> u32 {
    static SERVICES: AtomicU32 = AtomicU32::new(0);
    // The golden ratio spreads them evenly.
    SERVICES.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9)
}
