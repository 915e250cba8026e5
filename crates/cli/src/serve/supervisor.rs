//! The main thread while the workers serve: waits for signals and for the end of the workers.

use std::{
    cell::{Cell, RefCell},
    fs, io,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use windlass::{Backend, Reactor, Signal, SignalSet, Stop, Turn, interest};

use super::{report::Report, trim::Trimmer};

/// A running server.
pub(crate) trait Running: Send {
    /// Returns its backend.
    fn backend(&self) -> Backend;

    /// Returns its counts.
    fn report(&self) -> Report;

    /// Returns a function that ends the server: gracefully on the first call, at once on further
    /// ones.
    fn ender(&self) -> Box<dyn Fn(Manner)>;

    /// Waits until the server has ended.
    fn join(self: Box<Self>) -> io::Result<()>;
}

/// How to end the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Accept no new connections; notify the open ones, and give them some time.
    Graceful,
    /// End immediately.
    Once,
}

impl Manner {
    /// Returns the action for a signal, given the first signal received, if there is an action.
    fn asked_for(first: Option<Signal>, signal: Signal) -> Option<Self> {
        match first {
            None => Some(Self::Graceful),
            // A closing terminal causes this signal more than once: from the kernel and from the
            // shell.
            Some(_) if signal == Signal::HUP => None,
            Some(_) => Some(Self::Once),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::Once => "immediate",
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
    pub(crate) fn new(backend: Backend) -> anyhow::Result<Self> {
        let hang_up = Some(Signal::HUP).filter(|signal| !is_ignored(*signal));
        let signals = SignalSet::new([Signal::INT, Signal::TERM].into_iter().chain(hang_up));
        let signals = signals.context("cannot receive signals")?;
        // The same backend as the workers', so that one sandbox profile suffices for all threads.
        let reactor = Reactor::builder().backend(backend).build();
        let reactor = reactor.context("cannot build the main thread's reactor")?;
        let stop = reactor.stop_handle();
        Ok(Self { reactor, stop, signals })
    }

    /// Waits for the end of the server. The first signal shuts it down gracefully, the second one
    /// ends it immediately. Returns the first signal.
    pub(crate) fn run(
        self,
        server: Box<dyn Running>,
        connections_max: usize,
    ) -> anyhow::Result<Option<Signal>> {
        let Self { mut reactor, stop, signals } = self;
        let first = Rc::new(Cell::new(None));
        let watched = watch(signals, server.ender(), &first, &mut reactor);
        watched.map_err(io::Error::from).context("cannot watch for signals")?;
        complain(server.report(), connections_max, &mut reactor).context("cannot start a timer")?;
        give_memory_back(server.report(), &mut reactor).context("cannot start a timer")?;
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
    end: Box<dyn Fn(Manner)>,
    first: &Rc<Cell<Option<Signal>>>,
    reactor: &mut Reactor,
) -> Result<(), windlass::AddError<impl Sized + use<>>> {
    let first = Rc::clone(first);
    interest()
        .read()
        .with_fd(signals)
        .with_handler(move |signals: &mut SignalSet| {
            // A failed read has no better retry, and a signal did request the end.
            let received = signals.read().ok();
            let others = |signal: &Signal| *signal != Signal::HUP;
            let signal = received
                .and_then(|received| received.iter().find(others).or(received.iter().next()));
            let signal = signal.unwrap_or(Signal::TERM);
            let Some(manner) = Manner::asked_for(first.get(), signal) else { return };
            first.set(first.get().or(Some(signal)));
            tracing::info!(signal = %name(signal), manner = %manner.name(), "ending");
            end(manner);
        })
        .register_into(reactor)
        .map(|_| ())
}

/// Warns once about listeners that pause accepting, because too few descriptors affect every
/// further connection. Also warns whenever the connection limit was reached, at a limited rate.
fn complain(report: Report, connections_max: usize, reactor: &mut Reactor) -> io::Result<()> {
    let state = RefCell::new((false, Paced::default()));
    let look = move |_: Turn<'_>| {
        let (is_told, limits) = &mut *state.borrow_mut();
        if !*is_told && report.accepting_paused() > 0 {
            *is_told = true;
            tracing::warn!("accepting is paused for want of descriptors or memory");
        }
        if let Some(times) = limits.news(report.limits_reached(), Instant::now()) {
            tracing::warn!(
                times,
                "connection limit {connections_max} reached: further connections wait until others end; raise --connections"
            );
        }
    };
    reactor.every(Duration::from_secs(1), look)?;
    Ok(())
}

/// Returns memory to the kernel after a load has ended.
fn give_memory_back(report: Report, reactor: &mut Reactor) -> io::Result<()> {
    let trimmer = RefCell::new(Trimmer::new());
    let look = move |_: Turn<'_>| trimmer.borrow_mut().trim_if_due(report.load());
    reactor.every(Duration::from_secs(1), look)?;
    Ok(())
}

/// Minimum time between two warnings of the same kind.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// A count whose growth is reported at a limited rate.
#[derive(Debug, Default)]
struct Paced {
    told: u64,
    last: Option<Instant>,
}

impl Paced {
    /// Returns the growth of the count since the last report, if it should be reported now.
    fn news(&mut self, count: u64, now: Instant) -> Option<u64> {
        let may =
            self.last.is_none_or(|last| now.saturating_duration_since(last) >= BETWEEN_WARNINGS);
        let grown = count.saturating_sub(self.told);
        if !may || grown == 0 {
            return None;
        }
        (self.told, self.last) = (count, Some(now));
        Some(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_at_once_and_then_once_a_minute() {
        let (mut paced, start) = (Paced::default(), Instant::now());
        let mut at = |second, count| paced.news(count, start + Duration::from_secs(second));
        assert_eq!([at(0, 0), at(1, 2), at(2, 5), at(60, 6)], [None, Some(2), None, None]);
        assert_eq!([at(61, 7), at(500, 7), at(501, 8)], [Some(5), None, Some(1)]);
    }

    #[test]
    fn the_second_signal_ends_it_at_once_unless_it_is_a_hang_up() {
        let all = [Signal::INT, Signal::TERM, Signal::HUP];
        assert!(
            all.iter().all(|signal| Manner::asked_for(None, *signal) == Some(Manner::Graceful))
        );
        for first in all.map(Some) {
            assert_eq!(
                all.map(|signal| Manner::asked_for(first, signal)),
                [Some(Manner::Once), Some(Manner::Once), None]
            );
        }
    }
}
