//! Timeouts, without a timer for each connection: one beat looks at all of them, now and then.
//!
//! Events write the sweep's tick into the roster, at most once per tick and connection. What is due
//! is a bit of the member and a notification of its stream.

use std::{
    cell::Cell,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use windlass::{Reactor, Turn, interest, stream::ListenerKey};

use crate::{
    Options,
    hall::{Hall, SharedHall},
    roster::{Flags, Member},
};

/// The longest time between two looks.
const GRANULE_MAX: Duration = Duration::from_secs(1);

/// The shortest.
const GRANULE_MIN: Duration = Duration::from_millis(10);

/// Beats are a granule apart, and one may be late by another. What is more is a loop that stood
/// still: in a handler that took long, or with its process.
const TICKS_PER_BEAT: u32 = 2;

/// So many connections are looked at in one turn; then others have theirs. Tests have fewer.
const VISITS_PER_TURN: u32 = if cfg!(test) { 8 } else { 8192 };

/// A ping without a payload, as a server sends it.
const PING: [u8; 2] = [0x89, 0];

/// The timeouts, in ticks.
struct Terms {
    handshake: u32,
    close: u32,
    ping: Option<u32>,
    idle: Option<u32>,
    lifetime: Option<u32>,
}

/// One round after the other.
struct Sweep {
    hall: SharedHall,
    granule: Duration,
    terms: Terms,
    round: Cell<Round>,
}

#[derive(Clone, Copy)]
struct Round {
    /// When the first one began.
    began: Option<Instant>,
    /// The tick of the last whole round, and of the one that goes on.
    before: u32,
    now: u32,
    /// The next place to be looked at.
    next: u32,
    is_under_way: bool,
}

/// How often to look: an eighth of the shortest timeout.
fn granule(options: &Options) -> Duration {
    let optional = [options.ping_interval, options.idle_timeout, options.lifetime_max];
    let shortest = optional
        .into_iter()
        .flatten()
        .chain([options.handshake_timeout, options.close_timeout])
        .min();
    (shortest.unwrap_or(GRANULE_MAX) / 8).clamp(GRANULE_MIN, GRANULE_MAX)
}

impl Terms {
    fn new(options: &Options, granule: Duration) -> Self {
        // One more than fits: the present tick has begun some time ago.
        let ticks = |time: Duration| {
            let ticks = time.as_nanos().div_ceil(granule.as_nanos()) + 1;
            u32::try_from(ticks).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)
        };
        Self {
            handshake: ticks(options.handshake_timeout),
            close: ticks(options.close_timeout),
            ping: options.ping_interval.map(|time| (ticks(time) - 1).max(1)),
            idle: options.idle_timeout.map(ticks),
            lifetime: options.lifetime_max.map(ticks),
        }
    }

    /// What is due for a connection now, and was not when it was last looked at.
    fn due(&self, member: &Member, before: u32, now: u32) -> (Flags, bool) {
        let flags = member.flags;
        let since = |then: u32| now.wrapping_sub(then);
        if flags.is_vacant() {
            return (Flags::default(), false);
        }
        if flags.any(Flags::OPENING) {
            let is_due = since(member.opened) >= self.handshake;
            return (if is_due { Flags::WANTS_TIMEOUT } else { Flags::default() }, false);
        }
        if flags.any(Flags::CLOSING) {
            let is_due = since(member.heard) >= self.close;
            return (if is_due { Flags::WANTS_ABORT } else { Flags::default() }, false);
        }
        let silent = since(member.heard);
        // From whom nothing is read nothing can be heard.
        let is_read = !flags.any(Flags::PAUSED | Flags::FULL | Flags::SHORT | Flags::WAITING);
        if is_read && self.idle.is_some_and(|idle| silent >= idle) {
            return (Flags::WANTS_IDLE_END, false);
        }
        if self.lifetime.is_some_and(|lifetime| since(member.opened) >= lifetime) {
            return (Flags::WANTS_LIFETIME_END, false);
        }
        let rounds = |then: u32, ping: u32| then.wrapping_sub(member.heard) / ping;
        // What was heard after the last look is silence from zero on.
        let earlier =
            if before.wrapping_sub(member.heard) > u32::MAX / 2 { member.heard } else { before };
        let pings = self.ping.is_some_and(|ping| rounds(now, ping) > rounds(earlier, ping));
        (Flags::default(), pings)
    }
}

/// Begins to look.
///
/// The kernel keeps the time, by a descriptor: a timer of the reactor's would have every turn read
/// the clock. One whose clock is the user's must go by that.
pub(crate) fn start(hall: &SharedHall, reactor: &mut Reactor) -> io::Result<()> {
    let granule = granule(&hall.options);
    let terms = Terms::new(&hall.options, granule);
    let round = Round { began: None, before: 0, now: 0, next: 0, is_under_way: false };
    let sweep = Rc::new(Sweep { hall: Rc::clone(hall), granule, terms, round: Cell::new(round) });
    if reactor.has_own_clock() {
        reactor.every(granule, move |mut turn: Turn<'_>| sweep.look(&mut turn))?;
        return Ok(());
    }
    let beat =
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let every = Timespec::try_from(granule).map_err(io::Error::other)?;
    timerfd_settime(
        &beat,
        TimerfdTimerFlags::empty(),
        &Itimerspec { it_interval: every, it_value: every },
    )?;
    let look = move |beat: &mut OwnedFd, mut turn: Turn<'_>| {
        // How many beats there were does not matter, and that there was none is a spurious event.
        if rustix::io::read(&*beat, &mut [0; 8]).is_ok() {
            sweep.look(&mut turn);
        }
    };
    interest().read().with_fd(beat).with_handler(look).register_into(reactor)?;
    Ok(())
}

impl Hall {
    /// Notes how often the listeners have had to rest, and how often they had as many connections
    /// as may be.
    pub(crate) fn note_listeners(&self, turn: &mut Turn<'_>) {
        let mut listeners = self.listeners.take();
        let (mut rests, mut limits) = (0, 0);
        listeners.retain(|key: &ListenerKey| {
            let found = turn.listener(*key).map(|listening| {
                rests += listening.rests();
                limits += listening.limits_reached();
            });
            // The application may have deleted it.
            found.is_ok()
        });
        self.listeners.set(listeners);
        // A listener that is gone takes its count along.
        let stats = &self.stats;
        stats.accepting_paused.set(rests.max(stats.accepting_paused.get()));
        stats.connection_limits_reached.set(limits.max(stats.connection_limits_reached.get()));
    }
}

impl Sweep {
    /// A beat: the time is noted, and a round begins if none goes on.
    fn look(self: &Rc<Self>, turn: &mut Turn<'_>) {
        // The clock may be the user's: it is asked before anything is borrowed.
        let now = turn.now();
        let mut round = self.round.get();
        let mut began =
            *round.began.get_or_insert_with(|| now.checked_sub(self.granule).unwrap_or(now));
        let hall = &self.hall;
        let ticks = |began: Instant| {
            (now.saturating_duration_since(began).as_nanos() / self.granule.as_nanos()) as u32
        };
        // The time for which the loop stood still is nobody's silence: what came meanwhile has not
        // been read yet. It is left out.
        let missed = ticks(began).wrapping_sub(hall.tick.get()).saturating_sub(TICKS_PER_BEAT);
        if missed > 0 {
            began = began.checked_add(self.granule.saturating_mul(missed)).unwrap_or(now).min(now);
            round.began = Some(began);
        }
        hall.tick.set(ticks(began));
        let elapsed = now.saturating_duration_since(began);
        hall.set_second(elapsed.as_secs() as u32);
        let is_first = !round.is_under_way;
        if is_first {
            (round.before, round.now, round.next, round.is_under_way) =
                (round.now, hall.tick.get(), 0, true);
        }
        self.round.set(round);
        if is_first {
            self.visit(turn);
        }
        hall.note_listeners(turn);
        hall.settle_memory(turn);
        hall.release_spares();
        hall.board.post(hall.snapshot());
        // For connections that have gone in a panic, where nobody could be told.
        hall.look_whether_drained(turn);
        hall.call_queue(turn);
    }

    /// Looks at a part of the connections, and comes back for the others in the next turn.
    fn visit(self: &Rc<Self>, turn: &mut Turn<'_>) {
        let mut round = self.round.get();
        let mut books = self.hall.books.borrow_mut();
        let roster = &mut books.roster;
        let end = round.next.saturating_add(VISITS_PER_TURN).min(roster.places());
        for index in round.next..end {
            let member = roster.at(index);
            let (wants, pings) = self.terms.due(member, round.before, round.now);
            if !pings && wants == Flags::default() {
                continue;
            }
            let Ok(mut stream) = turn.stream(member.stream) else { continue };
            if pings {
                self.hall.stats.pings.add(1);
                // A stream that fails tells of it by its end.
                let _ = stream.send(&PING);
            } else {
                member.flags.add(wants);
                stream.notify();
            }
        }
        (round.next, round.is_under_way) = (end, end < roster.places());
        drop(books);
        if round.is_under_way {
            let sweep = Rc::clone(self);
            // If as many closures as may be wait, the next beat begins anew.
            round.is_under_way =
                turn.defer(move |mut turn: Turn<'_>| sweep.visit(&mut turn)).is_ok();
        }
        self.round.set(round);
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, os::unix::net::UnixStream};

    use windlass::{Clock, stream::Listener};

    use super::*;
    use crate::{
        Connection, Handler, Message, Service, Upgraded,
        http::{Accept, Reject, UpgradeRequest},
    };

    #[derive(Clone)]
    struct HandClock(Rc<Cell<Instant>>);

    impl Clock for HandClock {
        fn now(&self) -> Instant {
            self.0.get()
        }
    }

    struct Silent;

    impl Handler for Silent {
        type Data = ();

        fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
            Ok(Accept::new(()))
        }

        fn on_message(&self, _: &mut Connection<'_>, (): &mut (), _: Message<'_>) {}
    }

    fn service(options: &Options) -> (Service<Silent>, Reactor, HandClock) {
        let clock = HandClock(Rc::new(Cell::new(Instant::now())));
        let mut reactor = Reactor::builder().clock(clock.clone()).build().unwrap();
        (Service::new(Silent, options, &mut reactor).unwrap(), reactor, clock)
    }

    #[test]
    fn more_connections_than_one_turn_looks_at_are_all_looked_at() {
        let mut options = Options::new();
        options.ping_interval = None;
        options.idle_timeout = Some(Duration::from_secs(4));
        let (service, mut reactor, clock) = service(&options);
        let mut peers = Vec::new();
        for _ in 0..3 * VISITS_PER_TURN + 1 {
            let (ours, peer) = UnixStream::pair().unwrap();
            peer.set_nonblocking(true).unwrap();
            service.adopt(ours, Vec::new(), Upgraded::new(()), &mut reactor).unwrap();
            peers.push(peer);
        }
        for _ in 0..60 {
            clock.0.set(clock.0.get() + Duration::from_millis(100));
            for _ in 0..10 {
                reactor.run_once(Duration::ZERO).unwrap();
            }
        }
        for (index, peer) in peers.iter_mut().enumerate() {
            let mut head = [0; 4];
            peer.read_exact(&mut head)
                .unwrap_or_else(|error| panic!("connection {index} was passed over: {error}"));
            assert_eq!((head[0], &head[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
        }
    }

    #[test]
    fn a_listener_that_is_gone_is_forgotten() {
        let (service, mut reactor, clock) = service(&Options::new());
        let mut listen = || {
            let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
            service.listen(listener, &mut reactor).unwrap()
        };
        let (first, second) = (listen(), listen());
        reactor.listener(first).unwrap().delete();
        for _ in 0..3 {
            clock.0.set(clock.0.get() + GRANULE_MAX);
            reactor.run_once(Duration::ZERO).unwrap();
        }
        assert_eq!(service.0.hall.listeners.take(), [second]);
    }
}
