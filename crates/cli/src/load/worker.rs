//! One worker: a reactor with its desk, and the timers around it.
//!
//! 1. All connections are opened, a bounded number at a time.
//! 2. When every worker has opened its connections, all start at one moment.
//! 3. Each connection closes when its part is done. The last worker to finish stops them all.

use std::{cell::RefCell, io, num::NonZeroU64, rc::Rc, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;
use windlass::{
    Reactor, Received, Signal, SignalSet, Tick, Turn, interest,
    stream::{Connector, StreamOptions, Worker},
};

use super::{
    client::Client, control::Control, course::Nanos, desk::Desk, plan::Plan, target::Address,
};

/// Interval of a worker's periodic work.
const TICK: Duration = Duration::from_millis(10);

/// Time from when all workers are ready to the first message, if there are several workers. Each
/// learns of the start at its next tick.
const START_DELAY: Duration = Duration::from_millis(50);

/// Subscribers other than connections: signals, timers, and some spare ones.
const OTHER_SUBSCRIBERS: usize = 64;

/// Bytes of output beside the messages: headers, handshakes, control frames.
const OUTPUT_EXTRA: usize = 1 << 16;

/// Creates the reactor of a worker, on the worker's own thread.
pub(crate) fn set_up(
    worker: Worker,
    plan: &Arc<Plan>,
    control: &Arc<Control>,
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
    let desk = Rc::new(RefCell::new(Desk::new(plan, control, worker.index)));
    if worker.index == 0 {
        end_on_signals(&desk, &mut reactor)?;
    }
    let first = Rc::clone(&desk);
    reactor.defer(move |mut turn: Turn<'_, _>| open_more(&first, &mut turn))?;
    let mut has_ended = false;
    let tick = move |mut turn: Turn<'_, _>| {
        desk.borrow_mut().tick(&mut turn);
        if desk.borrow().control.is_given_up() {
            // The work that remains would not be measured.
            return turn.stop();
        }
        open_more(&desk, &mut turn);
        begin_if_ready(&desk, &mut turn);
        if !has_ended && desk.borrow().control.signal().is_some() {
            has_ended = true;
            end_early(&desk, &mut turn);
        }
        end_if_done(&desk, &mut turn);
    };
    reactor.every(TICK, tick)?;
    Ok(reactor)
}

/// The first signal ends the measurement in order, the second one immediately.
fn end_on_signals(desk: &Rc<RefCell<Desk>>, reactor: &mut Reactor) -> io::Result<()> {
    let signals = SignalSet::new([Signal::INT, Signal::TERM])?;
    let control = Arc::clone(&desk.borrow().control);
    interest()
        .read()
        .with_fd(signals)
        .with_handler(move |signals: &mut SignalSet, mut turn: Turn<'_, _>| {
            for signal in signals.read().into_iter().flat_map(Received::iter) {
                if control.interrupt(signal.as_raw()) {
                    turn.stop();
                }
            }
        })
        .register_into(reactor)?;
    Ok(())
}

/// Opens connections while fewer than the maximum are being opened. When none is left, the worker
/// is ready.
pub(crate) fn open_more(desk: &Rc<RefCell<Desk>>, turn: &mut Turn<'_>) {
    loop {
        let mut at_desk = desk.borrow_mut();
        let Some((index, address)) = at_desk.next_to_open() else { break };
        let connector = connector(&address, &at_desk.plan);
        match connector.connect(Client::new(desk, index), turn) {
            Ok(key) => at_desk.begun(index, key),
            Err(error) => at_desk.not_begun(index, &io::Error::from(error)),
        }
    }
    let mut at_desk = desk.borrow_mut();
    if at_desk.becomes_ready() {
        at_desk.control.ready(START_DELAY);
        drop(at_desk);
        begin_if_ready(desk, turn);
    }
}

fn connector(address: &Address, plan: &Plan) -> Connector {
    let args = &plan.args;
    let output_max = args.depth as usize * args.size as usize + OUTPUT_EXTRA * args.depth as usize;
    let connector = match address {
        Address::Tcp(address) => Connector::tcp(*address),
        Address::Unix(path) => Connector::unix(path),
    };
    connector.stream(StreamOptions::new().output_max(output_max)).timeout(Some(args.timeout))
}

/// Starts once the common start is known: sets the timers of the first message, of the schedule and
/// of the end.
fn begin_if_ready(desk: &Rc<RefCell<Desk>>, turn: &mut Turn<'_>) {
    let Some(origin) = desk.borrow_mut().begins_at() else { return };
    let started = Rc::clone(desk);
    at(desk, origin, turn, move |turn| {
        let end = started.borrow_mut().begin(origin);
        started.borrow_mut().go_on(turn);
        keep_pace(&started, origin, turn);
        if let Some(end) = end {
            let ending = Rc::clone(&started);
            at(&started, end, turn, move |turn| ending.borrow_mut().end(turn));
        }
        end_if_done(&started, turn);
    });
}

/// Sets a timer for each moment of the schedule at which a message is due.
fn keep_pace(desk: &Rc<RefCell<Desk>>, origin: Nanos, turn: &mut Turn<'_>) {
    let pacing = Rc::clone(desk);
    let clock = desk.borrow().control.clock;
    let pace = move |tick: Tick, mut turn: Turn<'_, _>| {
        let next = pacing.borrow_mut().keep_pace(&mut turn);
        if let Some(next) = next.and_then(|moment| clock.instant(moment)) {
            // The key belongs to this very timer.
            let _ = turn.reset_at(tick.key, next);
        }
    };
    if let Some(origin) = clock.instant(origin) {
        turn.at(origin, pace).expect("timers are few");
    }
}

/// Calls a function at a moment, or never if the moment is too far away for the clock.
fn at(
    desk: &Rc<RefCell<Desk>>,
    moment: Nanos,
    turn: &mut Turn<'_>,
    act: impl FnOnce(&mut Turn<'_>) + 'static,
) {
    let Some(moment) = desk.borrow().control.clock.instant(moment) else { return };
    let mut act = Some(act);
    let fire = move |mut turn: Turn<'_, _>| {
        if let Some(act) = act.take() {
            act(&mut turn);
        }
    };
    turn.at(moment, fire).expect("timers are few");
}

/// Handles a request to end early.
fn end_early(desk: &Rc<RefCell<Desk>>, turn: &mut Turn<'_>) {
    let is_running = desk.borrow().is_running();
    if is_running {
        desk.borrow_mut().end(turn);
    } else {
        // No measurement has begun, so no answers are outstanding.
        turn.stop();
    }
}

/// Ends the program when the last worker is done.
pub(crate) fn end_if_done(desk: &Rc<RefCell<Desk>>, turn: &mut Turn<'_>) {
    let mut at_desk = desk.borrow_mut();
    if at_desk.becomes_done() && at_desk.control.is_last_to_end() {
        turn.stop();
    }
}
