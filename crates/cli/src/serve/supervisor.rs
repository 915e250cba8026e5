//! The main thread while the workers serve: waits for signals and for the end of the workers.

use std::{
    cell::{Cell, RefCell},
    fs, io,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use windlass::{Backend, MemoryTrimmer, Reactor, Signal, SignalSet, Stop, Turn, interest};

use super::counts::ServerCounts;

/// Reads the files of the configuration that may change again.
pub(crate) type ReloadFn = Box<dyn Fn()>;

/// A running server.
pub(crate) trait ServerControl: Send {
    /// Returns its backend.
    fn backend(&self) -> Backend;

    /// Returns its counts.
    fn counts(&self) -> ServerCounts;

    /// Returns a function that ends the server.
    fn shutdown_fn(&self) -> Box<dyn Fn(ShutdownMode)>;

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
    /// End immediately.
    Immediate,
}

impl ShutdownMode {
    /// Returns the mode for a signal, given the signal received first. `None`: it is ignored.
    fn for_signal(first: Option<Signal>, signal: Signal) -> Option<Self> {
        match first {
            None => Some(Self::Graceful),
            // A closing terminal causes this signal more than once: from the kernel and from the
            // shell.
            Some(_) if signal == Signal::HUP => None,
            Some(_) => Some(Self::Immediate),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
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

/// Waits for signals. It opens its descriptors before the server accepts connections, which may use
/// up all descriptors.
pub(crate) struct Supervisor {
    reactor: Reactor,
    stop: Stop,
    signals: SignalSet,
}

impl Supervisor {
    /// Blocks the signals in this thread and in all threads that it starts later. A signal that
    /// arrives before [`run`](Self::run) stays pending.
    /// A hang-up that reloads is received even if it is ignored: it ends nothing.
    pub(crate) fn new(backend: Backend, reloads: bool) -> anyhow::Result<Self> {
        let hang_up = Some(Signal::HUP).filter(|signal| reloads || !is_ignored(*signal));
        let signals = SignalSet::new([Signal::INT, Signal::TERM].into_iter().chain(hang_up));
        let signals = signals.context("cannot receive signals")?;
        // The same backend as the workers', so that one sandbox profile suffices for all threads.
        let reactor = Reactor::builder().backend(backend).build();
        let reactor = reactor.context("cannot build the main thread's reactor")?;
        let stop = reactor.stop_handle();
        Ok(Self { reactor, stop, signals })
    }

    /// Waits for the end of the server. The first signal shuts it down gracefully, the second one
    /// ends it immediately. With `reload`, a hang-up calls that instead. Returns the first signal.
    pub(crate) fn run(
        self,
        server: Box<dyn ServerControl>,
        connections_max: usize,
        reload: Option<ReloadFn>,
    ) -> anyhow::Result<Option<Signal>> {
        let Self { mut reactor, stop, signals } = self;
        let first = Rc::new(Cell::new(None));
        let watched = watch(signals, server.shutdown_fn(), reload, &first, &mut reactor);
        watched.map_err(io::Error::from).context("cannot watch for signals")?;
        warn_about_limits(server.counts(), connections_max, &mut reactor)
            .context("cannot start a timer")?;
        trim_memory(server.counts(), &mut reactor).context("cannot start a timer")?;
        if let Some(announce) = server.announcer() {
            let announce = move |_: Turn<'_>| announce();
            let timer = reactor.every(Duration::from_millis(500), announce);
            timer.map_err(io::Error::from).context("cannot start a timer")?;
        }
        let waiter = thread::Builder::new()
            .name("windlass-waiter".to_owned())
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

fn watch(
    signals: SignalSet,
    end: Box<dyn Fn(ShutdownMode)>,
    reload: Option<ReloadFn>,
    first: &Rc<Cell<Option<Signal>>>,
    reactor: &mut Reactor,
) -> Result<(), windlass::AddReason> {
    let first = Rc::clone(first);
    interest()
        .read()
        .with_fd(signals)
        .with_handler(move |signals: &mut SignalSet| {
            // A failed read has no better retry, and a signal did request the end.
            let received = signals.read().ok();
            let only_hang_ups = received.is_some_and(|received| received.iter().eq([Signal::HUP]));
            if let (true, Some(reload)) = (only_hang_ups, &reload) {
                if first.get().is_none() {
                    reload();
                }
                return;
            }
            let others = |signal: &Signal| *signal != Signal::HUP;
            let signal = received
                .and_then(|received| received.iter().find(others).or(received.iter().next()));
            let signal = signal.unwrap_or(Signal::TERM);
            let Some(mode) = ShutdownMode::for_signal(first.get(), signal) else { return };
            first.set(first.get().or(Some(signal)));
            tracing::info!(signal = %name(signal), shutdown = %mode.name(), "ending");
            end(mode);
        })
        .register_into(reactor)
        .map(|_| ())
}

/// Warns once about listeners that pause accepting, because too few descriptors affect every
/// further connection. Also warns, at a limited rate, whenever the connection limit was reached and
/// whenever messages were dropped.
fn warn_about_limits(
    counts: ServerCounts,
    connections_max: usize,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let none = RateLimitedCount::default;
    let state = RefCell::new((false, none(), none(), none()));
    let check = move |_: Turn<'_>| {
        let (is_reported, limits, drops, losses) = &mut *state.borrow_mut();
        warn_about_drops(&counts, drops, losses);
        if !*is_reported && counts.accepting_paused() > 0 {
            *is_reported = true;
            tracing::warn!(
                "accepting is paused: out of file descriptors or memory; raise the limit of open \
                 files"
            );
        }
        if let Some(times) = limits.take_growth(counts.limits_reached(), Instant::now()) {
            tracing::warn!(
                times,
                "connection limit {connections_max} reached: further connections wait until others \
                 end; raise --connections"
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
        for first in all.map(Some) {
            assert_eq!(
                all.map(|signal| ShutdownMode::for_signal(first, signal)),
                [Some(ShutdownMode::Immediate), Some(ShutdownMode::Immediate), None]
            );
        }
    }
}
