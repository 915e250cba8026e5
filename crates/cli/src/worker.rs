//! One worker: a reactor with its listeners, made on the worker's own thread.

use std::{
    io,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use windlass::{
    Reactor, Signal, SignalSet, Turn, interest,
    stream::{Listener, ListenerKey, Worker},
};

use crate::{
    counts::{Counts, add},
    raw::Raw,
    serve::{Args, Mode},
    websocket::{Shared, WebSocket},
};

/// Subscribers beside the connections of a worker: its listeners, the signals, and the reactor's own.
const OTHER_SUBSCRIBERS: usize = 1100;

/// What all workers have in common.
pub(crate) struct Site {
    pub(crate) args: Args,
    /// Of one worker.
    pub(crate) connections_max: usize,
    pub(crate) counts: Arc<Counts>,
    pub(crate) stopped_by: Arc<Mutex<Option<Signal>>>,
}

impl Site {
    /// Makes the reactor of a worker.
    pub(crate) fn set_up(&self, worker: Worker, listeners: Vec<Listener>) -> anyhow::Result<Reactor> {
        let mut reactor = Reactor::builder()
            .subscribers_max(self.connections_max + OTHER_SUBSCRIBERS)
            .build()
            .map_err(io::Error::from)
            .context("cannot build the reactor")?;
        if worker.index == 0 {
            self.stop_on_signals(&mut reactor)?;
        }
        let shared = Rc::new(self.args.shared(&self.counts));
        let mut keys = Vec::new();
        for listener in listeners {
            let key = self.listen(listener, &shared, &mut reactor).context("cannot watch a listener")?;
            keys.push((key, 0));
        }
        self.look_every_second(keys, &shared, &mut reactor)?;
        Ok(reactor)
    }

    fn listen(&self, listener: Listener, shared: &Rc<Shared>, reactor: &mut Reactor) -> io::Result<ListenerKey> {
        Ok(match self.args.mode {
            Mode::Raw => {
                let counts = Arc::clone(&self.counts);
                listener.register(move |_: &_| Some(Raw::new(&counts)), reactor)?
            }
            Mode::Echo => {
                let shared = Rc::clone(shared);
                listener.register(move |_: &_| Some(WebSocket::new(&shared)), reactor)?
            }
        })
    }

    /// Makes either signal stop the workers.
    fn stop_on_signals(&self, reactor: &mut Reactor) -> anyhow::Result<()> {
        let signals = SignalSet::new([Signal::INT, Signal::TERM]).context("cannot receive signals")?;
        let stopped_by = Arc::clone(&self.stopped_by);
        interest()
            .read()
            .with_fd(signals)
            .with_handler(move |signals: &mut SignalSet, mut turn: Turn<'_, _>| {
                // A read that fails cannot be tried again in any better way, and somebody did ask for the end.
                *lock(&stopped_by) = signals.read().ok().and_then(|received| received.iter().next());
                turn.stop();
            })
            .register_into(reactor)
            .map_err(io::Error::from)
            .context("cannot watch for signals")?;
        Ok(())
    }

    /// Tells the engines of the seconds by which they count control frames, and the user of listeners that had to rest.
    fn look_every_second(
        &self,
        mut listeners: Vec<(ListenerKey, u64)>,
        shared: &Rc<Shared>,
        reactor: &mut Reactor,
    ) -> anyhow::Result<()> {
        let (shared, counts) = (Rc::clone(shared), Arc::clone(&self.counts));
        let mut second = 0_u32;
        let look = move |mut turn: Turn<'_, _>| {
            second = second.wrapping_add(1);
            shared.scratch.borrow_mut().set_second(second);
            for (key, seen) in &mut listeners {
                let Ok(listening) = turn.listener(*key) else { continue };
                let rests = listening.rests();
                if rests > *seen {
                    add(&counts.accepting_paused, rests - *seen);
                    if *seen == 0 {
                        complain(listening.rest_reason().map(io::Error::from));
                    }
                    *seen = rests;
                }
            }
        };
        reactor.every(Duration::from_secs(1), look).map_err(io::Error::from).context("cannot start a timer")?;
        Ok(())
    }
}

/// Once is enough: who has too few descriptors has them for every connection.
fn complain(reason: Option<io::Error>) {
    let reason = reason.map_or_else(|| "as many subscribers as there may be".to_owned(), |error| error.to_string());
    eprintln!("windlass: accepting is paused for want of something: {reason}");
}

/// Nobody panics while holding one of these locks, and if he did the contents would be whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
