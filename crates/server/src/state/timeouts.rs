//! Timeouts without a timer for each connection: one periodic timer scans all connections.
//!
//! Events write the current tick into the connection table, at most once per tick and connection.
//! An expired timeout sets a flag of the connection and notifies its stream.

use core::cell::Cell;
use std::time::{Duration, Instant};

use windlass::Turn;

use crate::{
    api::Options,
    shared::Shared,
    table::{ConnEntry, ConnFlags, ConnTable},
};

/// The longest time between two scans.
const TICK_MAX: Duration = Duration::from_secs(1);

/// The shortest time between two scans.
const TICK_MIN: Duration = Duration::from_millis(10);

/// Timer events are one tick apart, and one may be late by another tick. A longer gap means that
/// the loop was blocked, by a slow handler or with its whole process.
const TICKS_LATE_MAX: u32 = 2;

/// Number of connections scanned in one turn, so that other work gets its share. Tests use fewer.
const SCANNED_PER_TURN: u32 = if cfg!(test) { 8 } else { 8192 };

/// A server's ping frame without a payload.
const PING: [u8; 2] = [0x89, 0];

/// The timeouts, in ticks.
struct TimeoutTicks {
    handshake: u32,
    close: u32,
    ping: Option<u32>,
    idle: Option<u32>,
    lifetime: Option<u32>,
}

/// The timeouts of a service, and its consecutive scans.
pub(crate) struct Timeouts {
    tick_len: Duration,
    ticks: TimeoutTicks,
    progress: Cell<ScanProgress>,
}

#[derive(Clone, Copy)]
struct ScanProgress {
    /// Start of the first scan.
    began: Option<Instant>,
    /// Ticks of the last complete scan, and of the one in progress.
    before: u32,
    now: u32,
    /// The time of the next timer event.
    due: Option<Instant>,
    /// The next slot to scan.
    next: u32,
    is_under_way: bool,
    /// Number of slow receivers found so far.
    slow: u64,
}

/// Returns the time between scans: an eighth of the shortest timeout.
fn tick_len(options: &Options) -> Duration {
    let optional = [options.ping_interval, options.idle_timeout, options.lifetime_max];
    let shortest = optional
        .into_iter()
        .flatten()
        .chain([options.handshake_timeout, options.close_timeout])
        .min();
    (shortest.unwrap_or(TICK_MAX) / 8).clamp(TICK_MIN, TICK_MAX)
}

impl TimeoutTicks {
    fn new(options: &Options, tick_len: Duration) -> Self {
        // One tick more than fits: the present tick has begun some time ago.
        let ticks = |time: Duration| {
            let ticks = time.as_nanos().div_ceil(tick_len.as_nanos()) + 1;
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
    fn due(&self, entry: &ConnEntry, before: u32, now: u32) -> (ConnFlags, bool) {
        let flags = entry.flags;
        let since = |tick: u32| now.wrapping_sub(tick);
        if flags.is_vacant() {
            return (ConnFlags::default(), false);
        }
        if flags.any(ConnFlags::HANDSHAKE) {
            let is_due = since(entry.opened) >= self.handshake;
            return (if is_due { ConnFlags::WANTS_TIMEOUT } else { ConnFlags::default() }, false);
        }
        if flags.any(ConnFlags::CLOSING) {
            let is_due = since(entry.last_rx) >= self.close;
            return (if is_due { ConnFlags::WANTS_ABORT } else { ConnFlags::default() }, false);
        }
        if !flags.takes_messages() {
            // Its own handler is about to close it.
            return (ConnFlags::default(), false);
        }
        let silent = since(entry.last_rx);
        // A connection that is not read from cannot be idle.
        let is_read = !flags.any(
            ConnFlags::PAUSED | ConnFlags::FULL | ConnFlags::LOW_MEMORY | ConnFlags::CODEC_QUEUED,
        );
        if is_read && self.idle.is_some_and(|idle| silent >= idle) {
            return (ConnFlags::WANTS_IDLE_END, false);
        }
        if self.lifetime.is_some_and(|lifetime| since(entry.opened) >= lifetime) {
            return (ConnFlags::WANTS_LIFETIME_END, false);
        }
        let intervals = |tick: u32, ping: u32| tick.wrapping_sub(entry.last_rx) / ping;
        // If something was received after the previous scan, the idle time counts from there.
        let earlier =
            if before.wrapping_sub(entry.last_rx) > u32::MAX / 2 { entry.last_rx } else { before };
        let pings = self.ping.is_some_and(|ping| intervals(now, ping) > intervals(earlier, ping));
        (ConnFlags::default(), pings)
    }
}

impl Timeouts {
    /// With a custom clock, the time is measured from the first timer event.
    pub(super) fn new(options: &Options, has_own_clock: bool) -> Self {
        let tick_len = tick_len(options);
        let due = (!has_own_clock).then(|| Instant::now() + tick_len);
        let (before, now, next, slow) = (0, 0, 0, 0);
        let progress =
            ScanProgress { began: None, before, now, due, next, is_under_way: false, slow };
        let ticks = TimeoutTicks::new(options, tick_len);
        Self { tick_len, ticks, progress: Cell::new(progress) }
    }

    /// The time between timer events.
    pub(crate) fn tick_len(&self) -> Duration {
        self.tick_len
    }

    /// Handles a timer event: stores the time. Returns true if a scan begins, because none is in
    /// progress.
    pub(super) fn begin_tick(&self, shared: &Shared, now: Instant) -> bool {
        let mut progress = self.progress.get();
        self.note_lag(&mut progress, now, shared);
        let mut began =
            *progress.began.get_or_insert_with(|| now.checked_sub(self.tick_len).unwrap_or(now));
        let ticks = |began: Instant| {
            (now.saturating_duration_since(began).as_nanos() / self.tick_len.as_nanos()) as u32
        };
        // Time while the loop was blocked must not count as idle time, because the input received
        // meanwhile has not been read yet. It is left out.
        let missed = ticks(began).wrapping_sub(shared.tick()).saturating_sub(TICKS_LATE_MAX);
        if missed > 0 {
            began = began.checked_add(self.tick_len.saturating_mul(missed)).unwrap_or(now).min(now);
            progress.began = Some(began);
        }
        let elapsed = now.saturating_duration_since(began);
        shared.set_time(ticks(began), elapsed.as_secs() as u32);
        shared.set_timer_event(now);
        let is_first = !progress.is_under_way;
        if is_first {
            (progress.before, progress.now, progress.next, progress.is_under_way) =
                (progress.now, shared.tick(), 0, true);
            progress.slow = 0;
        }
        self.progress.set(progress);
        is_first
    }

    /// Records how late a timer event is, and computes the time of the next one.
    fn note_lag(&self, progress: &mut ScanProgress, now: Instant, shared: &Shared) {
        let due = progress.due.unwrap_or(now);
        let lag = now.saturating_duration_since(due);
        shared.labels.note_lag(lag);
        let periods = lag.as_nanos() / self.tick_len.as_nanos() + 1;
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        progress.due = due.checked_add(self.tick_len.saturating_mul(periods));
    }

    /// Scans a part of the connections. Returns true if the next turn must go on with the others.
    pub(super) fn scan_part(
        &self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
    ) -> bool {
        let mut progress = self.progress.get();
        let end = progress.next.saturating_add(SCANNED_PER_TURN).min(conns.slots());
        for index in progress.next..end {
            let entry = conns.entry(index);
            progress.slow += u64::from(entry.flags.is_slow());
            let (wants, pings) = self.ticks.due(entry, progress.before, progress.now);
            if !pings && wants == ConnFlags::default() {
                continue;
            }
            let Ok(mut stream) = turn.stream(entry.stream) else { continue };
            if pings {
                shared.stats.pings.add(1);
                shared.stats.pings_sent.add(1);
                // A failed stream reports its end separately.
                shared.stats.wire_sent.add(PING.len() as u64);
                let _ = stream.send(&PING);
            } else {
                entry.flags.add(wants);
                stream.notify();
            }
        }
        (progress.next, progress.is_under_way) = (end, end < conns.slots());
        if !progress.is_under_way {
            shared.labels.slow_receivers.set(core::mem::take(&mut progress.slow));
        }
        self.progress.set(progress);
        progress.is_under_way
    }

    /// The next turn will not go on with the scan, so the next timer event starts a new one.
    pub(super) fn abandon_scan(&self) {
        let progress = self.progress.get();
        self.progress.set(ScanProgress { is_under_way: false, ..progress });
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, os::unix::net::UnixStream, rc::Rc};

    use windlass::{Clock, Reactor, stream::Listener};

    use super::*;
    use crate::{
        Connection, Handler, Message, Service, Upgraded,
        http::{Accept, Reject, UpgradeRequest},
    };

    #[derive(Clone)]
    struct ManualClock(Rc<Cell<Instant>>);

    impl Clock for ManualClock {
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

    fn service(options: &Options) -> (Service<Silent>, Reactor, ManualClock) {
        let clock = ManualClock(Rc::new(Cell::new(Instant::now())));
        let mut reactor = Reactor::builder().clock(clock.clone()).build().unwrap();
        (Service::new(Silent, options, &mut reactor).unwrap(), reactor, clock)
    }

    #[test]
    fn more_connections_than_are_scanned_in_one_turn_are_all_scanned() {
        let mut options = Options::new();
        options.ping_interval = None;
        options.idle_timeout = Some(Duration::from_secs(4));
        let (service, mut reactor, clock) = service(&options);
        let mut peers = Vec::new();
        for _ in 0..3 * SCANNED_PER_TURN + 1 {
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
            clock.0.set(clock.0.get() + TICK_MAX);
            reactor.run_once(Duration::ZERO).unwrap();
        }
        assert_eq!(service.0.state.drain.take_listeners(), [second]);
    }
}
