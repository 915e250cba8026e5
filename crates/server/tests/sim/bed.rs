//! A service and its clients, on hosts of their own.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::Range,
    rc::Rc,
    time::Duration,
};

use windlass::{
    Reactor, Turn,
    sim::{Running, Sim},
    stream::{Connector, StreamOptions},
};
use windlass_server::{EngineLimits, Options, Service, SlowConsumerPolicy};
pub(crate) use windlass_testkit::faults::again;

use crate::{client::Client, judge::Judge};

pub(crate) const MESSAGE_MAX: usize = 16 << 10;
pub(crate) const BUFFER_MAX: usize = 48 << 10;

/// How long faults may hold up an end that is due: a stall takes up to a second, a partition two,
/// and one may follow another.
pub(crate) const LATE_MAX: Duration = Duration::from_secs(5);

pub(crate) fn address() -> SocketAddr {
    ([10, 0, 0, 2], 80).into()
}

/// Bounds that a session reaches, and timeouts of a few seconds.
pub(crate) fn options() -> Options {
    let mut options = Options::new();
    let mut limits = EngineLimits::DEFAULT;
    limits.message_max = MESSAGE_MAX;
    limits.frame_max = MESSAGE_MAX;
    options.limits = limits;
    options.receiver_buffer_max = BUFFER_MAX;
    options.memory_max = Some(8 << 20);
    options.slow = SlowConsumerPolicy::Evict;
    options.ping_interval = Some(Duration::from_secs(2));
    options.idle_timeout = Some(Duration::from_secs(6));
    options.handshake_timeout = Duration::from_secs(5);
    options.close_timeout = Duration::from_secs(2);
    options.write_stall_timeout = Some(Duration::from_secs(5));
    options
}

/// A message that a client sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) is_for_room: bool,
    /// The bytes after the head.
    pub(crate) len: usize,
}

/// The messages of each client, and what has come of them.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) plans: Vec<Vec<Planned>>,
    /// The connections that the server has opened and not closed, with their clients.
    pub(crate) open: RefCell<BTreeMap<u64, usize>>,
    pub(crate) opened: Cell<usize>,
    pub(crate) closed: Cell<usize>,
    /// Clients that have ended, and those of them that got everything and a Close frame.
    pub(crate) clients_ended: Cell<usize>,
    pub(crate) clients_done: Cell<usize>,
    /// Connections that the server has ended because their clients did not read in time.
    pub(crate) evicted: Cell<usize>,
    pub(crate) has_drained: Cell<bool>,
    /// A cluster may lose publications between its nodes. Then this is the sum of the gaps that
    /// each client has seen.
    pub(crate) gaps: Option<RefCell<BTreeMap<usize, usize>>>,
    /// Clients that do not close their connection, and what clients have heard in the room: who has
    /// heard whom.
    pub(crate) watchers: Vec<usize>,
    pub(crate) heard: RefCell<BTreeSet<(usize, usize)>>,
    /// What each client has received in the room: clients and numbers of their messages.
    pub(crate) room: RefCell<BTreeMap<usize, Vec<(usize, usize)>>>,
}

pub(crate) fn count(cell: &Cell<usize>) {
    cell.set(cell.get() + 1);
}

impl Session {
    /// Plans of a few messages, chosen by the seed.
    pub(crate) fn plan(sim: &Sim, clients: usize, messages: u64, len_max: usize) -> Rc<Self> {
        let kernel = sim.kernel();
        let choose = |below: usize| usize::try_from(kernel.choose(below as u64)).unwrap();
        let plan = |_| {
            let messages = 1 + kernel.choose(messages);
            let message =
                |_| Planned { is_for_room: choose(4) == 1, len: choose(1 + choose(len_max)) };
            (0..messages).map(message).collect()
        };
        Rc::new(Self { plans: (0..clients).map(plan).collect(), ..Self::default() })
    }
}

/// A server that drains at some time, and then ends.
pub(crate) struct Serving {
    pub(crate) service: Service<Judge>,
    pub(crate) running: Running,
}

pub(crate) fn serve(
    sim: &Sim,
    session: &Rc<Session>,
    options: &Options,
    drain: (Duration, Duration),
) -> Serving {
    let host = sim.host(address().ip());
    let mut reactor = Reactor::builder().sim(&host).build().unwrap();
    let service = again(|| Service::new(Judge(Rc::clone(session)), options, &mut reactor));
    let listener = again(|| options.listener().tcp(address()));
    service.listen(listener, &mut reactor).unwrap();
    let (begin, deadline) = drain;
    let (draining, session) = (service.clone(), Rc::clone(session));
    let end = move |mut turn: Turn<'_>| {
        let session = Rc::clone(&session);
        let ended = move |mut turn: Turn<'_>| {
            session.has_drained.set(true);
            turn.stop();
        };
        draining.drain(deadline, &mut turn, ended);
    };
    reactor.after(begin, end).unwrap();
    Serving { service, running: sim.spawn(reactor) }
}

/// Connects clients of the session, on one reactor.
pub(crate) fn connect(
    sim: &Sim,
    session: &Rc<Session>,
    clients: Range<usize>,
    to: SocketAddr,
) -> Running {
    let mut reactor = sim.reactor().unwrap();
    let options = StreamOptions::new()
        .idle_timeout(Some(Duration::from_secs(30)))
        .write_stall_timeout(Some(Duration::from_secs(30)));
    for number in clients {
        let client = || Client::new(number, session);
        again(|| Connector::tcp(to).stream(options).connect(client(), &mut reactor));
    }
    sim.spawn(reactor)
}
