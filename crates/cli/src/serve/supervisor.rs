//! The main thread while the workers serve: waits for signals and for the end of the workers.

use std::{
    cell::{Cell, RefCell},
    fmt, fs, io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::Pid,
};
use windlass::{
    Backend, MemoryTrimmer, Reactor, RingError, Signal, SignalSet, Stop, Turn, interest,
};

use super::{
    admin::AdminServer,
    counts::ServerCounts,
    hand_over::{RunningOffer, take_wake},
    notify, refusal_log,
    reload::{Part, Reloader},
};

/// The limit of connections, which may change.
pub(crate) type ConnectionsMax = Rc<Cell<usize>>;

/// A running server.
pub(crate) trait ServerControl: Send {
    /// Returns its backend.
    fn backend(&self) -> Backend;

    /// Returns why it has no ring, if one was preferred.
    fn ring_error(&self) -> Option<RingError>;

    /// Returns its counts.
    fn counts(&self) -> ServerCounts;

    /// Returns a function that ends the server.
    fn shutdown_fn(&self) -> Box<dyn Fn(ShutdownMode)>;

    /// Returns the part of the configuration that may change, and changes this limit too.
    fn part(&self, limit: &ConnectionsMax) -> Part;

    /// Returns what to do twice a second, if there is something.
    fn announcer(&self) -> Option<Box<dyn Fn()>> {
        None
    }

    /// Waits until the server has ended.
    fn join(self: Box<Self>) -> io::Result<()>;
}

/// How to end the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownMode {
    /// Accept no new connections; notify the open ones, and give them some time.
    Graceful,
    /// The same, after the requests of accepted connections: another server accepts from the same
    /// sockets.
    HandOver,
    /// End immediately.
    Immediate,
}

/// The cause of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoppedBy {
    Signal(Signal),
    /// This process has taken the sockets.
    HandOver(Pid),
}

impl fmt::Display for StoppedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => f.write_str(&name(*signal)),
            Self::HandOver(to) => write!(f, "a hand-over to process {}", to.as_raw_nonzero()),
        }
    }
}

impl ShutdownMode {
    /// Returns the mode for a signal, given the first cause. `None`: the signal is ignored.
    fn for_signal(first: Option<StoppedBy>, signal: Signal) -> Option<Self> {
        match first {
            None => Some(Self::Graceful),
            // A terminal that closes causes this signal more than once: from the kernel and from
            // the shell.
            Some(_) if signal == Signal::HUP => None,
            Some(_) => Some(Self::Immediate),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::HandOver => "hand-over",
            Self::Immediate => "immediate",
        }
    }
}

/// Returns a signal's name, such as `SIGTERM`.
pub(crate) fn name(signal: Signal) -> String {
    format!("{signal:?}")
}

/// Returns whether this process must ignore a signal, as `nohup` arranges for SIGHUP. A watched
/// signal would not be ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// Whether the process has a terminal, whose end would end it.
#[derive(Clone, Copy, Debug)]
struct Terminal(bool);

impl Terminal {
    /// The terminal does not count if hang-ups are ignored, as `nohup` arranges.
    fn of_process() -> Self {
        Self(!is_ignored(Signal::HUP) && open_terminal().is_ok())
    }

    /// Returns whether it has gone. The kernel takes it from all processes of its session before it
    /// sends the hang-up, and from then on the file is `ENXIO` (tty(4)).
    fn has_gone(self) -> bool {
        self.0 && open_terminal().is_err_and(|errno| errno == Errno::NXIO)
    }
}

fn open_terminal() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty())
}

/// Waits for signals. It opens its descriptors before the server accepts connections, which may use
/// up all descriptors.
pub(crate) struct Supervisor {
    reactor: Reactor,
    stop: Stop,
    signals: SignalSet,
    terminal: Terminal,
    announcement: Announcement,
    watchdog: Option<Watchdog>,
}

/// The watchdog of the service manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watchdog {
    /// How often it is fed.
    pub(crate) period: Duration,
    /// A worker that has finished no turn for so long is taken for hung.
    pub(crate) stall_limit: Duration,
}

/// The announcement of a shutdown, for load balancers.
#[derive(Default)]
pub(crate) struct Announcement {
    /// The time from the announcement to the drain, in which new connections are served.
    pub(crate) drain_delay: Duration,
    pub(crate) admin: Option<Rc<AdminServer>>,
    pub(crate) offer: Option<Rc<RunningOffer>>,
}

impl Supervisor {
    /// Blocks the signals in this thread and in all threads that it starts later. A signal that
    /// arrives before [`run`](Self::run) stays pending.
    /// A hang-up is received even if it is ignored: it then ends nothing.
    pub(crate) fn new(backend: Backend) -> anyhow::Result<Self> {
        let terminal = Terminal::of_process();
        let signals = SignalSet::new([Signal::INT, Signal::TERM, Signal::HUP]);
        let signals = signals.context("cannot receive signals")?;
        // The same backend as the workers', so that one sandbox profile suffices for all threads.
        let reactor = Reactor::builder().backend(backend).build();
        let reactor = reactor.context("cannot build the main thread's reactor")?;
        let stop = reactor.stop_handle();
        let announcement = Announcement::default();
        Ok(Self { reactor, stop, signals, terminal, announcement, watchdog: None })
    }

    /// Sets how the end of the server is announced, and how long before its drain.
    pub(crate) fn announcing(self, announcement: Announcement) -> Self {
        Self { announcement, ..self }
    }

    /// Sets the watchdog that is told that the server is alive.
    pub(crate) fn feeding(self, watchdog: Option<Watchdog>) -> Self {
        Self { watchdog, ..self }
    }

    /// Waits for the end of the server. The first signal shuts it down gracefully, the second one
    /// ends it immediately. A hang-up reloads instead, unless the terminal has gone. Returns the
    /// first signal.
    pub(crate) fn run(
        self,
        server: Box<dyn ServerControl>,
        connections_max: ConnectionsMax,
        reloader: Reloader,
    ) -> anyhow::Result<Option<StoppedBy>> {
        let Self { mut reactor, stop, signals, terminal, announcement, watchdog } = self;
        let first = Rc::new(Cell::new(None));
        let ending = Rc::new(Ending {
            first: Rc::clone(&first),
            announcement,
            end: server.shutdown_fn().into(),
        });
        if let Some(offer) = ending.announcement.offer.clone() {
            watch_for_grant(offer, Rc::clone(&ending), &mut reactor)
                .context("cannot watch for a hand-over")?;
        }
        let handler = SignalHandler { terminal, reloader, ending };
        let watched = handler.watch(signals, &mut reactor);
        watched.map_err(io::Error::from).context("cannot watch for signals")?;
        warn_about_limits(server.counts(), connections_max, &mut reactor)
            .context("cannot start a timer")?;
        if let Some(watchdog) = watchdog {
            let feeds = feed_watchdog(watchdog, server.counts(), &mut reactor);
            feeds.context("cannot start a timer")?;
        }
        trim_memory(server.counts(), &mut reactor).context("cannot start a timer")?;
        if let Some(announce) = server.announcer() {
            let announce = move |_: Turn<'_>| announce();
            let timer = reactor.every(Duration::from_millis(500), announce);
            timer.map_err(io::Error::from).context("cannot start a timer")?;
        }
        let waiter = thread::Builder::new()
            .name("wl-waiter".to_owned())
            .spawn(move || {
                let ended = server.join();
                stop.stop();
                ended
            })
            .context("cannot start a thread")?;
        reactor.run().context("the main thread cannot wait")?;
        let ended = waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended.context("a worker failed")?;
        Ok(first.get())
    }
}

/// Acts on signals.
struct SignalHandler {
    terminal: Terminal,
    reloader: Reloader,
    ending: Rc<Ending>,
}

impl SignalHandler {
    fn watch(self, signals: SignalSet, reactor: &mut Reactor) -> Result<(), windlass::AddReason> {
        interest()
            .read()
            .with_fd(signals)
            .with_handler(move |signals: &mut SignalSet, turn: Turn<'_>| {
                // A failed read has no better retry, and a signal did request the end.
                let received = signals.read().ok();
                let received = received.map(|received| received.iter().collect::<Vec<_>>());
                self.receive(received.as_deref().unwrap_or(&[Signal::TERM]), turn);
            })
            .register_into(reactor)
            .map(|_| ())
    }

    fn receive(&self, signals: &[Signal], turn: Turn<'_>) {
        let is_hang_up = |signal: &Signal| *signal == Signal::HUP;
        if signals.iter().all(is_hang_up) && !self.terminal.has_gone() {
            if self.ending.first.get().is_none() {
                notify::reloading();
                self.reloader.reload();
                notify::reloaded();
            }
            return;
        }
        let other = signals.iter().find(|signal| !is_hang_up(signal));
        let signal = other.copied().unwrap_or(Signal::HUP);
        let first = self.ending.first.get();
        let Some(mode) = ShutdownMode::for_signal(first, signal) else { return };
        if first.is_none() {
            self.ending.announce(StoppedBy::Signal(signal));
        }
        tracing::info!(signal = %name(signal), shutdown = %mode.name(), "ending");
        Ending::shut_down(&self.ending, mode, turn);
    }
}

/// Acts when the offered sockets were granted.
fn watch_for_grant(
    offer: Rc<RunningOffer>,
    ending: Rc<Ending>,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let wakes = offer.wakes()?;
    let granted = move |wakes: &mut UnixStream, _: Turn<'_>| {
        if let (true, Some(granted)) = (take_wake(wakes), offer.granted()) {
            ending.hand_over(granted.to);
        }
    };
    interest().read().with_fd(wakes).with_handler(granted).register_into(reactor)?;
    Ok(())
}

/// Ends the server.
struct Ending {
    /// The first cause.
    first: Rc<Cell<Option<StoppedBy>>>,
    announcement: Announcement,
    end: Rc<dyn Fn(ShutdownMode)>,
}

impl Ending {
    fn announce(&self, cause: StoppedBy) {
        self.first.set(Some(cause));
        if let Some(admin) = &self.announcement.admin {
            admin.announce_shutdown();
        }
        notify::stopping("draining");
    }

    /// Another server accepts from the same sockets.
    fn hand_over(&self, to: Pid) {
        if let Some(admin) = &self.announcement.admin {
            admin.stop_accepting();
        }
        if self.first.get().is_none() {
            self.first.set(Some(StoppedBy::HandOver(to)));
            (self.end)(ShutdownMode::HandOver);
            tracing::info!(process = to.as_raw_nonzero().get(), "handed over");
        }
    }

    /// Begins the shutdown, after a delay if it is graceful.
    fn shut_down(this: &Rc<Self>, mode: ShutdownMode, mut turn: Turn<'_>) {
        let drain_delay = this.announcement.drain_delay;
        if mode == ShutdownMode::Graceful && !drain_delay.is_zero() {
            let later = Rc::clone(this);
            let drain = move |_: Turn<'_>| {
                tracing::info!("draining");
                later.drop_sockets(ShutdownMode::Graceful);
            };
            if turn.after(drain_delay, drain).is_ok() {
                return;
            }
        }
        this.drop_sockets(mode);
    }

    /// Ends the server with its listening sockets, and with the copies of them.
    fn drop_sockets(&self, mode: ShutdownMode) {
        if let Some(offer) = &self.announcement.offer {
            offer.withdraw();
        }
        (self.end)(mode);
    }
}

/// Warns once about listeners that pause accepting, because too few descriptors affect every
/// further connection. Also warns, at a limited rate, whenever the connection limit was reached and
/// whenever messages were dropped.
fn warn_about_limits(
    counts: ServerCounts,
    connections_max: ConnectionsMax,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let none = RateLimitedCount::default;
    let state = RefCell::new((false, none(), none(), none(), none()));
    let check = move |_: Turn<'_>| {
        let (is_reported, limits, rates, drops, losses) = &mut *state.borrow_mut();
        warn_about_drops(&counts, drops, losses);
        refusal_log::flush();
        if !*is_reported && counts.accepting_paused() > 0 {
            *is_reported = true;
            tracing::warn!(
                "accepting is paused: out of file descriptors or memory; raise the limit of open \
                 files"
            );
        }
        if let Some(times) = rates.take_growth(counts.rates_reached(), Instant::now()) {
            tracing::warn!(
                times,
                "a rate of connections was reached: further ones waited; raise --connection-rate \
                 or --tls-handshake-rate"
            );
        }
        if let Some(times) = limits.take_growth(counts.limits_reached(), Instant::now()) {
            tracing::warn!(
                times,
                "connection limit {} reached: further connections wait until others end; raise \
                 --connections",
                connections_max.get()
            );
        }
    };
    reactor.every(Duration::from_secs(1), check)?;
    Ok(())
}

/// Warns about messages that receivers did not get.
fn warn_about_drops(
    counts: &ServerCounts,
    drops: &mut RateLimitedCount,
    losses: &mut RateLimitedCount,
) {
    let (dropped, lost) = counts.dropped();
    if let Some(messages) = drops.take_growth(dropped, Instant::now()) {
        tracing::warn!(
            messages,
            "messages were dropped, because their receivers read too slowly; raise --buffer, or \
             close such connections by --slow evict"
        );
    }
    if let Some(messages) = losses.take_growth(lost, Instant::now()) {
        tracing::warn!(
            messages,
            "messages were lost between workers, because a worker was too busy; use fewer \
             --workers, or publish less"
        );
    }
}

/// Tells the service manager that the server is alive, unless a worker hangs.
fn feed_watchdog(
    watchdog: Watchdog,
    counts: ServerCounts,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let Watchdog { period, stall_limit } = watchdog;
    let is_hung = Cell::new(false);
    let feed = move |_: Turn<'_>| {
        let age = counts.slowest_worker_age();
        if age < stall_limit {
            is_hung.set(false);
            notify::alive();
        } else if !is_hung.replace(true) {
            let seconds = age.as_secs();
            tracing::error!(
                seconds,
                "a worker hangs (--stall-limit): the service manager's watchdog is not fed"
            );
        }
    };
    reactor.every(period, feed)?;
    Ok(())
}

/// Returns memory to the kernel after a load has ended.
fn trim_memory(counts: ServerCounts, reactor: &mut Reactor) -> io::Result<()> {
    let trimmer = RefCell::new(MemoryTrimmer::new());
    let check = move |_: Turn<'_>| {
        if let Some((before, after)) = trimmer.borrow_mut().trim_if_due(counts.load()) {
            tracing::debug!(before, after, "gave memory back");
        }
    };
    reactor.every(MemoryTrimmer::CHECK_PERIOD, check)?;
    Ok(())
}

/// Minimum time between two warnings of the same kind.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// A count whose growth is reported at a limited rate.
#[derive(Debug, Default)]
struct RateLimitedCount {
    reported: u64,
    last: Option<Instant>,
}

impl RateLimitedCount {
    /// Returns the growth of the count since the last report, if it should be reported now.
    fn take_growth(&mut self, count: u64, now: Instant) -> Option<u64> {
        let may =
            self.last.is_none_or(|last| now.saturating_duration_since(last) >= BETWEEN_WARNINGS);
        let grown = count.saturating_sub(self.reported);
        if !may || grown == 0 {
            return None;
        }
        (self.reported, self.last) = (count, Some(now));
        Some(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_at_once_and_then_once_a_minute() {
        let (mut limited, start) = (RateLimitedCount::default(), Instant::now());
        let mut at =
            |second, count| limited.take_growth(count, start + Duration::from_secs(second));
        assert_eq!([at(0, 0), at(1, 2), at(2, 5), at(60, 6)], [None, Some(2), None, None]);
        assert_eq!([at(61, 7), at(500, 7), at(501, 8)], [Some(5), None, Some(1)]);
    }

    #[test]
    fn the_second_signal_ends_it_at_once_unless_it_is_a_hang_up() {
        let all = [Signal::INT, Signal::TERM, Signal::HUP];
        assert!(
            all.iter()
                .all(|signal| ShutdownMode::for_signal(None, *signal)
                    == Some(ShutdownMode::Graceful))
        );
        for first in all.map(|signal| Some(StoppedBy::Signal(signal))) {
            assert_eq!(
                all.map(|signal| ShutdownMode::for_signal(first, signal)),
                [Some(ShutdownMode::Immediate), Some(ShutdownMode::Immediate), None]
            );
        }
    }
}
