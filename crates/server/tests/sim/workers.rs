//! A server with several workers, which are programs of the simulation.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use windlass::{
    Backend,
    sim::{self, Faults, Sim, ThreadStep},
    stream::Worker,
};
use windlass_server::{Options, RunningServer, SenderError, Server, bus::Cluster};

use crate::{
    bed::{LATE_MAX, Planned, Session, address, again, connect, options},
    judge::{Judge, ROOM, payload},
};

thread_local! {
    /// The session of the server that starts: a server may have threads, so its handlers are made
    /// by a closure that could go to them.
    static SESSION: RefCell<Option<Rc<Session>>> = const { RefCell::new(None) };
}

/// Starts a server at an address, which is that of a host.
pub(crate) fn start(
    sim: &Sim,
    session: &Rc<Session>,
    options: &Options,
    (to, workers): (SocketAddr, usize),
    cluster: impl Fn() -> Option<Cluster>,
) -> RunningServer {
    SESSION.set(Some(Rc::clone(session)));
    let make = |_: Worker| Judge(SESSION.with_borrow(|session| session.clone().unwrap()));
    let start = || {
        let server = Server::new(options.clone(), make).workers(workers).listen(to);
        let server = match cluster() {
            Some(cluster) => server.cluster(cluster),
            None => server,
        };
        server.backend(Backend::Sim).start()
    };
    sim.at(&sim.host(to.ip()), || again(start))
}

/// Clients with an echo and a room, a thread that sends to the room, and a drain at `drain`.
/// Returns how many of the clients got everything, and how many were evicted.
fn session(
    sim: &Sim,
    (options, is_ordered): (&Options, bool),
    clients: usize,
    drain: Duration,
) -> (usize, usize) {
    // The thread has the last plan.
    let mut session = Session::plan(sim, clients + 1, 10, 4_000);
    let plans = &mut Rc::get_mut(&mut session).unwrap().plans;
    plans[clients] = vec![Planned { is_for_room: true, len: 100 }; 30];
    let begin = sim.elapsed();
    let running = start(sim, &session, options, (address(), 3), || None);
    let (sender, mut sent) = (running.sender(), 0);
    sim.thread(&sim.host(IpAddr::from([10, 0, 0, 3])), move || {
        let bytes = payload(clients, sent, true, 100);
        match sender.try_publish(ROOM, &bytes[..]) {
            Ok(()) => sent += 1,
            Err(SenderError::Closed) => return ThreadStep::End,
            Err(other) => panic!("{other}"),
        }
        if sent == 30 { ThreadStep::End } else { ThreadStep::After(Duration::from_micros(100)) }
    });
    let _clients = connect(sim, &session, 0..clients, address());
    sim.run_for(drain).unwrap();
    running.drain(DRAIN_MAX);
    running.join().unwrap();
    let took = sim.elapsed() - begin;
    assert!(took <= drain + DRAIN_MAX + LATE_MAX, "the drain has ended after {took:?}");
    assert!(session.open.borrow().is_empty(), "{:?} are open", session.open.borrow());
    assert_eq!(session.opened.get(), session.closed.get());
    sim.run_until(|| session.clients_ended.get() == clients).unwrap();
    if is_ordered {
        one_order(&session.room.borrow());
    }
    (session.clients_done.get(), session.evicted.get())
}

/// The longest that a drain waits for its connections.
const DRAIN_MAX: Duration = Duration::from_secs(3);

/// What two clients have both received in the room, they have received in one order.
fn one_order(room: &BTreeMap<usize, Vec<(usize, usize)>>) {
    for (one, other) in room.values().zip(room.values().skip(1)) {
        type Messages = Vec<(usize, usize)>;
        let common = |of: &Messages, with: &Messages| -> Messages {
            of.iter().filter(|message| with.contains(message)).copied().collect()
        };
        assert_eq!(common(one, other), common(other, one), "the order differs");
    }
}

fn whole_sessions(options: &Options, is_ordered: bool) {
    let whole = |sim: &Sim| session(sim, (options, is_ordered), 6, Duration::from_secs(10));
    sim::check(|sim| {
        let (done, evicted) = whole(sim);
        assert_eq!(done + evicted, 6);
    })
    .seeds(10)
    .faults(Faults::rough())
    .twice()
    .run();
    assert_eq!(whole(&Sim::new(1, Faults::calm())), (6, 0));
}

#[test]
fn rough_weather_loses_no_message_between_workers() {
    whole_sessions(&options(), false);
}

#[test]
fn members_of_an_ordered_topic_see_one_order() {
    let mut options = options();
    options.ordered_topics(ROOM);
    whole_sessions(&options, true);
}

#[test]
fn workers_drain_in_a_hostile_world() {
    sim::check(|sim| {
        let drain = Duration::from_micros(sim.kernel().choose(100_000));
        session(sim, (&options(), false), 5, drain);
    })
    .seeds(60)
    .faults(Faults::hostile())
    .run();
}
