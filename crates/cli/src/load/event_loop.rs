//! The event loop of one worker: a reactor, its timers, and the handlers of its streams. The state
//! is a [`LoadWorker`].
//!
//! 1. All connections are opened, a bounded number at a time.
//! 2. When every worker has opened its connections, all start at one moment.
//! 3. If an HTTP server ends a connection between two responses, it is opened again.
//! 4. Each connection closes when its part is done. The last worker to finish stops them all.

use std::{cell::RefCell, io, num::NonZeroU64, rc::Rc, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;
use windlass::{
    Key, Reactor, ReceivedSignals, Signal, SignalSet, Tick, Turn, interest,
    stream::{Connector, DisconnectReason, Input, Stream, StreamHandler, StreamOptions, Worker},
};

use super::{
    fan_out::BUFFERED_MAX,
    plan::LoadPlan,
    run_state::RunState,
    schedule::Nanos,
    target::Address,
    worker::{LoadWorker, Opening},
};

/// Interval of a worker's periodic work.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Time from when all workers are ready to the first message, if there are several workers. Each
/// learns of the start at its next tick.
pub(crate) const START_DELAY: Duration = Duration::from_millis(50);

/// Subscribers other than connections: signals, timers, and some spare ones.
pub(crate) const OTHER_SUBSCRIBERS: usize = 64;

/// Bytes of output beside the messages: headers, handshakes, control frames.
const OUTPUT_EXTRA: usize = 1 << 16;

/// Creates the reactor of a worker, on the worker's own thread.
pub(crate) fn set_up(
    worker: Worker,
    plan: &Arc<LoadPlan>,
    run_state: &Arc<RunState>,
) -> io::Result<Reactor> {
    if plan.args.rate.is_some() {
        // By default the kernel lets timers be late by 50 µs, which would delay each message.
        set_current_timer_slack(NonZeroU64::new(1))?;
    }
    let connections = plan.connections_of(worker.index).count();
    let mut reactor = Reactor::builder()
        .backend(plan.args.backend)
        .subscribers_max(connections + OTHER_SUBSCRIBERS)
        .build()?;
    run_state.built(&reactor.stats());
    let load_worker = Rc::new(RefCell::new(LoadWorker::new(plan, run_state, worker.index)));
    if worker.index == 0 {
        end_on_signals(&load_worker, &mut reactor)?;
    }
    let first = Rc::clone(&load_worker);
    reactor.defer(move |mut turn: Turn<'_, _>| open_more(&first, &mut turn))?;
    let mut has_ended = false;
    let tick = move |mut turn: Turn<'_, _>| {
        load_worker.borrow_mut().tick(&mut turn);
        if load_worker.borrow().run_state.is_given_up() {
            // The work that remains would not be measured.
            return turn.stop();
        }
        open_more(&load_worker, &mut turn);
        begin_if_ready(&load_worker, &mut turn);
        if !has_ended && load_worker.borrow().run_state.signal().is_some() {
            has_ended = true;
            end_early(&load_worker, &mut turn);
        }
        end_if_done(&load_worker, &mut turn);
    };
    reactor.every(TICK, tick)?;
    Ok(reactor)
}

/// The first signal ends the measurement in order, the second one immediately.
fn end_on_signals(load_worker: &Rc<RefCell<LoadWorker>>, reactor: &mut Reactor) -> io::Result<()> {
    let signals = SignalSet::new([Signal::INT, Signal::TERM])?;
    let run_state = Arc::clone(&load_worker.borrow().run_state);
    interest()
        .read()
        .with_fd(signals)
        .with_handler(move |signals: &mut SignalSet, mut turn: Turn<'_, _>| {
            for signal in signals.read().into_iter().flat_map(ReceivedSignals::iter) {
                if run_state.interrupt(signal.as_raw()) {
                    turn.stop();
                }
            }
        })
        .register_into(reactor)?;
    Ok(())
}

/// Opens connections while fewer than the maximum are being opened. When none is left, the worker
/// is ready.
fn open_more(load_worker: &Rc<RefCell<LoadWorker>>, turn: &mut Turn<'_>) {
    loop {
        let mut state = load_worker.borrow_mut();
        let Some(Opening { index, target, address }) = state.next_to_open() else { break };
        let connector = connector(&address, target, &state.plan);
        match connector.connect(LoadHandler::new(load_worker, index), turn) {
            Ok(key) => state.begun(index, key),
            Err(error) => state.connect_failed(index, &io::Error::from(error)),
        }
    }
    let mut state = load_worker.borrow_mut();
    if state.take_ready() {
        state.run_state.ready(START_DELAY);
        drop(state);
        begin_if_ready(load_worker, turn);
    }
}

fn connector(address: &Address, target: usize, plan: &LoadPlan) -> Connector {
    let args = &plan.args;
    let buffered_max = args.publishers.map_or(0, |_| BUFFERED_MAX);
    let messages = args.depth as usize * (args.size as usize + OUTPUT_EXTRA);
    let output_max = buffered_max + messages;
    let connector = match address {
        Address::Tcp(address) => Connector::tcp(*address),
        Address::Unix(path) => Connector::unix(path),
    };
    let mut options =
        StreamOptions::new().output_max(output_max).tls_handshake_timeout(args.timeout);
    if args.publishers.is_some() {
        // Nobody awaits an answer of a server that does not read.
        options = options.write_stall_timeout(Some(args.timeout));
    }
    let connector = connector.stream(options).timeout(Some(args.timeout));
    match &plan.targets[target].tls {
        Some(tls) => connector.with_tls(Arc::clone(&tls.sessions)),
        None => connector,
    }
}

/// Starts once the common start is known: sets the timers of the first message, of the schedule and
/// of the end.
fn begin_if_ready(load_worker: &Rc<RefCell<LoadWorker>>, turn: &mut Turn<'_>) {
    let Some(origin) = load_worker.borrow_mut().take_start() else { return };
    let started = Rc::clone(load_worker);
    at(load_worker, origin, turn, move |turn| {
        let end = started.borrow_mut().begin(origin);
        started.borrow_mut().send_due(turn);
        open_more(&started, turn);
        start_rate_timer(&started, origin, turn);
        if let Some(end) = end {
            let ending = Rc::clone(&started);
            at(&started, end, turn, move |turn| ending.borrow_mut().end(turn));
        }
        end_if_done(&started, turn);
    });
}

/// Starts the timer that fires at each moment at which a message is due.
fn start_rate_timer(load_worker: &Rc<RefCell<LoadWorker>>, origin: Nanos, turn: &mut Turn<'_>) {
    let timed = Rc::clone(load_worker);
    let clock = load_worker.borrow().run_state.clock;
    let fire = move |tick: Tick, mut turn: Turn<'_, _>| {
        let next = timed.borrow_mut().send_scheduled(&mut turn);
        open_more(&timed, &mut turn);
        if let Some(next) = next.and_then(|moment| clock.instant(moment)) {
            // The key belongs to this very timer.
            let _ = turn.reset_at(tick.key, next);
        }
    };
    if let Some(origin) = clock.instant(origin) {
        turn.at(origin, fire).expect("timers are few");
    }
}

/// Calls a function at a moment, or never if the moment is too far away for the clock.
fn at(
    load_worker: &Rc<RefCell<LoadWorker>>,
    moment: Nanos,
    turn: &mut Turn<'_>,
    act: impl FnOnce(&mut Turn<'_>) + 'static,
) {
    let Some(moment) = load_worker.borrow().run_state.clock.instant(moment) else { return };
    let mut act = Some(act);
    let fire = move |mut turn: Turn<'_, _>| {
        if let Some(act) = act.take() {
            act(&mut turn);
        }
    };
    turn.at(moment, fire).expect("timers are few");
}

/// Handles a request to end early.
fn end_early(load_worker: &Rc<RefCell<LoadWorker>>, turn: &mut Turn<'_>) {
    let is_running = load_worker.borrow().is_running();
    if is_running {
        load_worker.borrow_mut().end(turn);
    } else {
        // No measurement has begun, so no answers are outstanding.
        turn.stop();
    }
}

/// Ends the program when the last worker is done.
fn end_if_done(load_worker: &Rc<RefCell<LoadWorker>>, turn: &mut Turn<'_>) {
    let mut state = load_worker.borrow_mut();
    if state.take_done() && state.run_state.worker_done() {
        turn.stop();
    }
}

/// The handler of one connection's stream. It has no state of its own: the worker's timers use the
/// connection too.
struct LoadHandler {
    load_worker: Rc<RefCell<LoadWorker>>,
    index: usize,
}

impl LoadHandler {
    fn new(load_worker: &Rc<RefCell<LoadWorker>>, index: usize) -> Self {
        Self { load_worker: Rc::clone(load_worker), index }
    }
}

impl StreamHandler for LoadHandler {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let may_open_more = self.load_worker.borrow_mut().connected(self.index, stream);
        if may_open_more {
            open_more(&self.load_worker, &mut stream.turn());
        }
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let may_open_more = self.load_worker.borrow_mut().data(self.index, stream, input);
        if may_open_more {
            open_more(&self.load_worker, &mut stream.turn());
        }
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        self.load_worker.borrow_mut().drained(self.index, stream);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.load_worker.borrow_mut().ended(self.index, stream);
    }

    fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
        self.load_worker.borrow_mut().closed(self.index, reason);
        open_more(&self.load_worker, &mut turn);
        end_if_done(&self.load_worker, &mut turn);
    }
}
