//! What the listener and all connections share: the limit, the counts, and whether accepting is paused.

use std::{
    cell::{Cell, RefCell},
    fmt, io,
    rc::Rc,
    time::Duration,
};

use anyhow::Context as _;
use windlass::{Interest, Key, ReactorOps, Turn, interest};

use crate::echo::End;

/// What the listener waits for while accepting is not paused.
const ACCEPTING: Interest = interest().read();

/// When to try again after the system had no descriptor or no memory left. Somebody else may give one back, of which
/// nothing tells.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The state of one server. Handlers run one at a time, so cells are enough.
pub(crate) struct Server {
    connections_max: usize,
    /// Where every connection reads to. What a client does not take at once is copied out, so an idle one has no buffer.
    pub(crate) scratch: RefCell<Box<[u8]>>,
    paused: Cell<Option<Paused>>,
    has_told_of_pause: Cell<bool>,
    counts: Cell<Counts>,
    failure: RefCell<Option<anyhow::Error>>,
}

/// Accepting is paused.
#[derive(Clone, Copy)]
struct Paused {
    listener: Key,
    retry: Option<Key>,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) open: usize,
    pub(crate) open_max: usize,
    pub(crate) accepted: u64,
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
    pub(crate) reading_paused: u64,
    pub(crate) accepting_paused: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections, {} at most at once, {} broken off, {} bytes echoed, reading paused {} times, accepting paused {} times",
            self.accepted, self.open_max, self.failed, self.bytes, self.reading_paused, self.accepting_paused
        )
    }
}

impl Server {
    pub(crate) fn new(connections_max: usize, buffer_bytes: usize) -> Self {
        Self {
            connections_max,
            scratch: RefCell::new(vec![0; buffer_bytes].into()),
            paused: Cell::new(None),
            has_told_of_pause: Cell::new(false),
            counts: Cell::default(),
            failure: RefCell::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Why the server stopped by itself, if it did.
    pub(crate) fn take_failure(&self) -> Option<anyhow::Error> {
        self.failure.take()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.counts.get().open >= self.connections_max
    }

    pub(crate) fn connection_opened(&self) {
        self.count(|counts| {
            counts.accepted += 1;
            counts.open += 1;
            counts.open_max = counts.open_max.max(counts.open);
        });
    }

    /// A connection has deleted itself: there is room for another one, if any waits.
    pub(crate) fn connection_closed<R: ReactorOps>(&self, end: End, turn: &mut Turn<'_, R>) {
        self.count(|counts| {
            counts.open -= 1;
            counts.failed += u64::from(end == End::Failed);
        });
        self.resume(turn);
    }

    /// Stops accepting until a connection closes.
    pub(crate) fn pause<R: ReactorOps>(&self, listener: Key, turn: &mut Turn<'_, R>) {
        self.pause_with(listener, None, turn);
    }

    /// Stops accepting until a connection closes or some time has passed.
    pub(crate) fn pause_for_a_while<R: ReactorOps>(
        self: &Rc<Self>,
        listener: Key,
        why: &dyn fmt::Display,
        turn: &mut Turn<'_, R>,
    ) {
        if !self.has_told_of_pause.replace(true) {
            eprintln!("windlass: accepting is paused: {why} (this is said once)");
        }
        let server = Rc::clone(self);
        let retry = turn.after(RETRY_AFTER, move |mut turn: Turn<'_, R>| server.resume(&mut turn));
        match retry {
            Ok(retry) => self.pause_with(listener, Some(retry), turn),
            Err(error) => self.fail(anyhow::Error::new(io::Error::from(error)).context("cannot start a timer"), turn),
        }
    }

    fn pause_with<R: ReactorOps>(&self, listener: Key, retry: Option<Key>, turn: &mut Turn<'_, R>) {
        self.count(|counts| counts.accepting_paused += 1);
        self.paused.set(Some(Paused { listener, retry }));
        if let Err(error) = turn.modify(listener, interest()).map_err(io::Error::from).context("cannot pause accepting")
        {
            self.fail(error, turn);
        }
    }

    /// Accepts again, if it was paused.
    fn resume<R: ReactorOps>(&self, turn: &mut Turn<'_, R>) {
        let Some(Paused { listener, retry }) = self.paused.take() else {
            return;
        };
        if let Some(retry) = retry {
            // It may be the timer itself that calls, and cancelling it is as good as letting it end.
            let _ = turn.cancel(retry);
        }
        if let Err(error) = turn.modify(listener, ACCEPTING).map_err(io::Error::from).context("cannot resume accepting")
        {
            self.fail(error, turn);
        }
    }

    /// Stops the server, for it could not go on accepting.
    fn fail<R: ReactorOps>(&self, error: anyhow::Error, turn: &mut Turn<'_, R>) {
        self.failure.borrow_mut().get_or_insert(error);
        turn.stop();
    }
}
