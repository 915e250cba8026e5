//! Timeouts without a timer for each connection: a periodic beat scans all of them.
//!
//! Events write the sweep's tick into the roster, at most once per tick and connection. An expired
//! timeout sets a bit of the member and notifies its stream.

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

/// The longest time between two scans.
const GRANULE_MAX: Duration = Duration::from_secs(1);

/// The shortest time between two scans.
const GRANULE_MIN: Duration = Duration::from_millis(10);

/// Beats are one granule apart, and a beat may be late by another. A longer gap means that the loop
/// was blocked, by a slow handler or with its whole process.
const TICKS_PER_BEAT: u32 = 2;

/// Number of connections scanned in one turn, so that other work gets its share. Tests use fewer.
const VISITS_PER_TURN: u32 = if cfg!(test) { 8 } else { 8192 };

/// A server's ping frame without a payload.
const PING: [u8; 2] = [0x89, 0];

/// The timeouts, in ticks.
struct Terms {
    handshake: u32,
    close: u32,
    ping: Option<u32>,
    idle: Option<u32>,
    lifetime: Option<u32>,
}

/// The state of consecutive scans.
struct Sweep {
    hall: SharedHall,
    granule: Duration,
    terms: Terms,
    round: Cell<Round>,
}

#[derive(Clone, Copy)]
struct Round {
    /// Start of the first scan.
    began: Option<Instant>,
    /// Ticks of the last complete scan, and of the one in progress.
    before: u32,
    now: u32,
    /// The next place to scan.
    next: u32,
    is_under_way: bool,
}

/// Returns the time between scans: an eighth of the shortest timeout.
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
        // One tick more than fits: the present tick has begun some time ago.
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

    /// Returns the actions that are due for a connection now and were not due at the previous scan.
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
        // A connection that is not read from cannot be idle.
        let is_read = !flags.any(Flags::PAUSED | Flags::FULL | Flags::SHORT | Flags::WAITING);
        if is_read && self.idle.is_some_and(|idle| silent >= idle) {
            return (Flags::WANTS_IDLE_END, false);
        }
        if self.lifetime.is_some_and(|lifetime| since(member.opened) >= lifetime) {
            return (Flags::WANTS_LIFETIME_END, false);
        }
        let rounds = |then: u32, ping: u32| then.wrapping_sub(member.heard) / ping;
        // If something was received after the previous scan, the idle time counts from there.
        let earlier =
            if before.wrapping_sub(member.heard) > u32::MAX / 2 { member.heard } else { before };
        let pings = self.ping.is_some_and(|ping| rounds(now, ping) > rounds(earlier, ping));
        (Flags::default(), pings)
    }
}

/// Starts the sweep.
///
/// The kernel measures the time, by a descriptor. A timer of the reactor would make every turn read
/// the clock. With a custom clock the sweep uses a reactor timer, because it must follow that
/// clock.
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
        // The number of expirations does not matter, and a failed read is a spurious event.
        if rustix::io::read(&*beat, &mut [0; 8]).is_ok() {
            sweep.look(&mut turn);
        }
    };
    interest().read().with_fd(beat).with_handler(look).register_into(reactor)?;
    Ok(())
}

impl Hall {
    /// Notes how often the listeners paused accepting, and how often they reached their connection
    /// limit.
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
        // A deleted listener loses its count, so it is noted here.
        let stats = &self.stats;
        stats.accepting_paused.set(rests.max(stats.accepting_paused.get()));
        stats.connection_limits_reached.set(limits.max(stats.connection_limits_reached.get()));
    }
}

impl Sweep {
    /// Handles a beat: notes the time, and begins a scan unless one is in progress.
    fn look(self: &Rc<Self>, turn: &mut Turn<'_>) {
        // A custom clock is user code, so it is read before anything is borrowed.
        let now = turn.now();
        let mut round = self.round.get();
        let mut began =
            *round.began.get_or_insert_with(|| now.checked_sub(self.granule).unwrap_or(now));
        let hall = &self.hall;
        let ticks = |began: Instant| {
            (now.saturating_duration_since(began).as_nanos() / self.granule.as_nanos()) as u32
        };
        // Time while the loop was blocked must not count as idle time, because the input received
        // meanwhile has not been read yet. It is left out.
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
        // Covers connections lost in a panic, whose end could not be reported.
        hall.look_whether_drained(turn);
        hall.call_queue(turn);
    }

    /// Scans a part of the connections, and continues with the others in the next turn.
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
                // A failed stream reports its end separately.
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
            // If the limit of deferred closures is reached, the next beat starts a new scan.
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
