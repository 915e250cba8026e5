//! What the main thread does while the workers serve: it waits for signals, and for their end.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use windlass::{Backend, Reactor, Signal, SignalSet, Stop, Turn, interest};

use super::report::Report;

/// A server that runs.
pub(crate) trait Running: Send {
    /// What it runs on.
    fn backend(&self) -> Backend;

    /// What it counts.
    fn report(&self) -> Report;

    /// Asks it to end: the first call in peace, further ones at once.
    fn ender(&self) -> Box<dyn Fn(Manner)>;

    /// Waits until it has ended.
    fn join(self: Box<Self>) -> io::Result<()>;
}

/// How to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// No new connections; those that are there are told, and have some time.
    Peace,
    /// Now.
    Once,
}

/// What waits for signals. It has its descriptors before the server takes connections, which may leave none.
pub(crate) struct Supervisor {
    reactor: Reactor,
    stop: Stop,
    signals: SignalSet,
}

impl Supervisor {
    /// Blocks the signals in this thread, and so in all that it starts later: one that comes before [`run`](Self::run) waits.
    pub(crate) fn new(backend: Backend) -> anyhow::Result<Self> {
        let signals = SignalSet::new([Signal::INT, Signal::TERM]).context("cannot receive signals")?;
        // The same backend as the workers', so that one sandbox does for all threads.
        let reactor = Reactor::builder().backend(backend).build();
        let reactor = reactor.context("cannot build the main thread's reactor")?;
        let stop = reactor.stop_handle();
        Ok(Self { reactor, stop, signals })
    }

    /// Waits for the end of the server. The first signal asks for it, the second one demands it. Says which the first was.
    pub(crate) fn run(self, server: Box<dyn Running>) -> anyhow::Result<Option<Signal>> {
        let Self { mut reactor, stop, signals } = self;
        let first = Rc::new(Cell::new(None));
        let watched = watch(signals, server.ender(), &first, &mut reactor);
        watched.map_err(io::Error::from).context("cannot watch for signals")?;
        complain(server.report(), &mut reactor).context("cannot start a timer")?;
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
            // A read that fails cannot be tried again in any better way, and somebody did ask for the end.
            let signal = signals.read().ok().and_then(|received| received.iter().next());
            let manner = if first.get().is_none() { Manner::Peace } else { Manner::Once };
            first.set(first.get().or(signal).or(Some(Signal::TERM)));
            tracing::info!(signal = ?signal, ?manner, "ending");
            end(manner);
        })
        .register_into(reactor)
        .map(|_| ())
}

/// Tells of listeners that have to rest, once: who has too few descriptors has them for every connection.
fn complain(report: Report, reactor: &mut Reactor) -> io::Result<()> {
    let is_told = RefCell::new(false);
    let look = move |_: Turn<'_>| {
        let mut is_told = is_told.borrow_mut();
        if !*is_told && report.accepting_paused() > 0 {
            *is_told = true;
            tracing::warn!("accepting is paused for want of descriptors or memory");
        }
    };
    reactor.every(Duration::from_secs(1), look)?;
    Ok(())
}
