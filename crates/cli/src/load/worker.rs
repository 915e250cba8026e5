//! The state of a worker's connections: which are waiting to be opened, opening or open, and the
//! results.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use rustix::io::Errno;
use windlass::{
    Key, Turn,
    stream::{DisconnectReason, Input, Stream},
};
use windlass_ws::Scratch;

use super::{
    connection::{LoadConnection, WorkerContext},
    exchange::ExchangeState,
    fan_out::Role,
    fault::{self, Fault, FaultKind},
    http::HttpSetup,
    plan::{LoadPlan, PlannedTarget, nanos},
    run_state::RunState,
    schedule::{LoadSchedule, MessageSequence, Nanos, SendRate},
    target::{Address, Protocol},
    websocket::WebSocketSetup,
};

/// Maximum number of connections that a worker opens at the same time: few enough for the backlog
/// of any server.
pub(crate) const OPENING_MAX: usize = 100;

/// Interval of the checks for timeouts.
const TIMEOUT_CHECK_INTERVAL: Nanos = 100_000_000;

/// The connections of one worker. A `RefCell` holds it; the borrow lasts for one callback, and
/// never while the reactor calls another one.
pub(crate) struct LoadWorker {
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) run_state: Arc<RunState>,
    /// By target.
    contexts: Vec<WorkerContext>,
    connections: Vec<LoadConnection>,
    /// Connections waiting to connect now, and those waiting for the next tick.
    queue: VecDeque<usize>,
    to_retry: Vec<usize>,
    /// The address that each connection tries or has tried.
    cursors: Vec<AddressCursor>,
    /// The address of each target that worked last, which new connections try first.
    good_addresses: Vec<usize>,
    opening: usize,
    ramp: RampUp,
    /// Number of connections that are not over.
    unfinished: usize,
    phase: WorkerPhase,
    /// Number of slots of the fixed rate, over this worker's connections, that have passed.
    slots: u64,
    last_check: Nanos,
    /// The value of `LoadResults::messages` last reported to the run state.
    reported: u64,
    /// When the measured time has ended, if it has.
    ended: Option<Nanos>,
}

/// How a connection tries the addresses of a name in turn.
#[derive(Clone, Copy, Debug, Default)]
struct AddressCursor {
    /// Number of addresses that have refused.
    refused: usize,
    address: usize,
    /// Time of the first try, if there was one.
    begun: Option<Nanos>,
}

/// A connection to open.
pub(crate) struct Opening {
    pub(crate) index: usize,
    pub(crate) target: usize,
    pub(crate) address: Address,
}

/// Opens connections evenly over a time.
#[derive(Debug)]
struct RampUp {
    length: Nanos,
    begun: Option<Nanos>,
    opened: u64,
}

impl RampUp {
    /// Returns whether one more of all connections may be opened now, and counts it.
    fn take(&mut self, all: u64, now: Nanos) -> bool {
        let since = (now - *self.begun.get_or_insert(now)).min(self.length);
        let due = match self.length {
            0 => u128::from(all),
            length => 1 + u128::from(all) * u128::from(since) / u128::from(length),
        };
        let may = u128::from(self.opened) < due;
        self.opened += u64::from(may);
        may
    }
}

/// The phase of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerPhase {
    Opening,
    /// All connections are open; the worker waits for the other workers.
    Ready,
    Running,
    Done,
}

/// The result of handling an event of a connection.
type Handled = Result<(), Fault>;

impl LoadWorker {
    pub(crate) fn new(plan: &Arc<LoadPlan>, run_state: &Arc<RunState>, worker: usize) -> Self {
        let args = &plan.args;
        let depth = u64::from(args.depth);
        let connections: Vec<LoadConnection> = plan
            .connections_of(worker)
            .map(|number| {
                let sequence = MessageSequence::new(number.into(), depth, plan.quota(number));
                let role = Role::new(number, run_state.fan_out.as_ref());
                LoadConnection::new(sequence, role, args.churn)
            })
            .collect();
        let context = |planned: &PlannedTarget| WorkerContext {
            clock: run_state.clock,
            exchange: ExchangeState::new(args),
            scratch: Scratch::new(),
            websocket: match &planned.target.protocol {
                Protocol::Bytes | Protocol::Http(_) => None,
                Protocol::WebSocket(resource) => Some(WebSocketSetup::new(resource.clone(), args)),
            },
            http: match &planned.target.protocol {
                Protocol::Http(resource) => {
                    let (size, informational) = (args.body_size, args.informational_max);
                    Some(HttpSetup::new(resource, &args.header, size, informational))
                }
                _ => None,
            },
            timeout: nanos(args.timeout),
            answer_timeout: nanos(args.answer_timeout()),
        };
        let contexts: Vec<_> = plan.targets.iter().map(context).collect();
        Self {
            plan: Arc::clone(plan),
            run_state: Arc::clone(run_state),
            contexts,
            queue: (0..connections.len()).collect(),
            to_retry: Vec::new(),
            cursors: vec![AddressCursor::default(); connections.len()],
            good_addresses: vec![0; plan.targets.len()],
            opening: 0,
            ramp: RampUp { length: nanos(args.ramp_up), begun: None, opened: 0 },
            unfinished: connections.len(),
            connections,
            phase: WorkerPhase::Opening,
            slots: 0,
            last_check: 0,
            reported: 0,
            ended: None,
        }
    }

    /// Returns the target of a connection.
    fn target_of(&self, index: usize) -> usize {
        self.plan.target_of(self.connections[index].sequence.connection())
    }

    /// Returns a connection, and what the connections of its target share.
    fn parts(&mut self, index: usize) -> (&mut LoadConnection, &mut WorkerContext) {
        let target = self.target_of(index);
        (&mut self.connections[index], &mut self.contexts[target])
    }

    /// Returns the schedule, which is that of all targets.
    fn schedule(&self) -> &LoadSchedule {
        &self.contexts[0].exchange.schedule
    }

    /// Returns the next connection to open, if one may be opened.
    pub(crate) fn next_to_open(&mut self) -> Option<Opening> {
        if self.opening >= OPENING_MAX || self.run_state.is_given_up() {
            return None;
        }
        if self.phase == WorkerPhase::Opening {
            let now = self.run_state.clock.now();
            let first = self.queue.front().filter(|index| self.cursors[**index].begun.is_none());
            if first.is_some() && !self.ramp.take(self.connections.len() as u64, now) {
                return None;
            }
        }
        let index = self.queue.pop_front()?;
        let target = self.target_of(index);
        let cursor = &mut self.cursors[index];
        if cursor.refused == 0 {
            cursor.address = self.good_addresses[target];
        }
        self.opening += 1;
        let address = self.plan.targets[target].addresses[cursor.address].clone();
        Some(Opening { index, target, address })
    }

    /// Notes that a connection has begun to connect.
    pub(crate) fn begun(&mut self, index: usize, key: Key) {
        let now = self.run_state.clock.now();
        self.cursors[index].begun.get_or_insert(now);
        self.connections[index].connecting(key, now);
    }

    /// Notes that a connection could not begin to connect.
    pub(crate) fn connect_failed(&mut self, index: usize, reason: &io::Error) {
        self.opening -= 1;
        self.unfinished -= 1;
        let (connection, context) = self.parts(index);
        let number = connection.sequence.connection();
        context.exchange.results.fault(number, Fault::new(FaultKind::Connect, reason), 0);
        connection.give_up();
        self.run_state.open_failed();
    }

    /// Returns true once, when nothing is left to open.
    pub(crate) fn take_ready(&mut self) -> bool {
        let is_ready = self.phase == WorkerPhase::Opening
            && self.opening == 0
            && self.queue.is_empty()
            && self.to_retry.is_empty();
        if is_ready {
            self.phase = WorkerPhase::Ready;
        }
        is_ready
    }

    /// Returns the moment of the start once, when it is known.
    pub(crate) fn take_start(&mut self) -> Option<Nanos> {
        let origin = self.run_state.origin().filter(|_| self.phase == WorkerPhase::Ready)?;
        self.phase = WorkerPhase::Running;
        Some(origin)
    }

    /// Returns true once, when there is nothing more to do.
    pub(crate) fn take_done(&mut self) -> bool {
        let is_done = self.phase == WorkerPhase::Running && self.unfinished == 0;
        if is_done {
            self.phase = WorkerPhase::Done;
        }
        is_done
    }

    /// Handles a connected socket. Returns whether another connection may be opened, because this
    /// one is open or has failed.
    pub(crate) fn connected(&mut self, index: usize, stream: &mut Stream<'_>) -> bool {
        let target = self.target_of(index);
        self.good_addresses[target] = self.cursors[index].address;
        self.with(index, stream, |connection, context, stream| {
            connection.connected(context, stream)
        })
    }

    /// Handles received bytes. Returns whether another connection may be opened, because this one
    /// has just opened or failed to open.
    #[inline]
    pub(crate) fn data(&mut self, index: usize, stream: &mut Stream<'_>, input: Input<'_>) -> bool {
        self.with(index, stream, |connection, context, stream| {
            connection.data(context, stream, input)
        })
    }

    /// Handles the peer's end of stream.
    pub(crate) fn ended(&mut self, index: usize, stream: &mut Stream<'_>) {
        self.with(index, stream, |connection, _, stream| connection.ended(stream));
    }

    /// Calls a function on a connection, and ends the connection if it returns a fault. Returns
    /// whether the connection was opening and is not any more.
    #[inline]
    fn with(
        &mut self,
        index: usize,
        stream: &mut Stream<'_>,
        act: impl FnOnce(&mut LoadConnection, &mut WorkerContext, &mut Stream<'_>) -> Handled,
    ) -> bool {
        let (connection, context) = self.parts(index);
        let was_opening = connection.is_opening();
        if let Err(fault) = act(connection, context, stream) {
            self.fail(index, fault);
            stream.abort();
        }
        let connection = &self.connections[index];
        let is_settled = was_opening && !connection.is_opening();
        if is_settled {
            self.opening -= 1;
            let is_new = connection.key().is_some() && !connection.is_reopened();
            self.run_state.opened.fetch_add(is_new.into(), Relaxed);
        }
        is_settled
    }

    fn fail(&mut self, index: usize, fault: Fault) {
        // A server that does not echo affects all connections, and is reported once.
        let is_reported = fault.kind == FaultKind::NotAnEcho && self.run_state.give_up();
        let (connection, context) = self.parts(index);
        let sequence = &connection.sequence;
        if !is_reported {
            let (number, unanswered) = (sequence.connection(), sequence.outstanding());
            context.exchange.results.fault(number, fault, unanswered);
        }
        let was_opening = connection.is_opening();
        connection.give_up();
        if was_opening {
            self.run_state.open_failed();
        }
    }

    /// Handles the end of a stream.
    pub(crate) fn closed(&mut self, index: usize, reason: DisconnectReason) {
        let was_opening = self.connections[index].is_opening();
        if was_opening {
            self.opening -= 1;
            if self.should_retry(index, reason) {
                self.connections[index].reset();
                return self.to_retry.push(index);
            }
        }
        if self.connections[index].renew() {
            let now = self.run_state.clock.now();
            return self.rouse(index, now);
        }
        self.unfinished -= 1;
        let tls = self.plan.targets[self.target_of(index)].tls.as_ref();
        if let Some(fault) = self.connections[index].closed(reason, tls) {
            self.fail(index, fault);
        }
    }

    /// Opens a dormant connection again if a request is due, or ends it if none will be.
    fn rouse(&mut self, index: usize, now: Nanos) {
        let (connection, context) = self.parts(index);
        let (sequence, schedule) = (&connection.sequence, &context.exchange.schedule);
        if sequence.outstanding() > 0 || sequence.is_due(schedule, now) {
            connection.reset();
            self.cursors[index] = AddressCursor::default();
            self.queue.push_back(index);
        } else if sequence.is_over(schedule, now) {
            connection.give_up();
            self.unfinished -= 1;
        }
    }

    /// Returns whether a connection that failed to connect may try again.
    fn should_retry(&mut self, index: usize, reason: DisconnectReason) -> bool {
        let DisconnectReason::Connect(errno) = reason else { return false };
        let addresses = self.plan.targets[self.target_of(index)].addresses.len();
        let cursor = &mut self.cursors[index];
        // Connecting to a Unix socket with a full backlog fails at once, whereas TCP waits.
        if errno == Errno::AGAIN {
            let now = self.run_state.clock.now();
            let limit = nanos(self.plan.args.timeout);
            return cursor.begun.is_none_or(|begun| now - begun < limit);
        }
        cursor.refused += 1;
        cursor.address = (cursor.address + 1) % addresses;
        cursor.refused < addresses
    }
}

/// Work triggered by timers.
impl LoadWorker {
    /// Starts the schedule: from now on messages are sent. Returns when it ends, if that is known.
    pub(crate) fn begin(&mut self, origin: Nanos) -> Option<Nanos> {
        if self.ended.is_some() {
            return None;
        }
        let schedule = self.plan.schedule(origin);
        self.run_state.fan_out.iter().for_each(|fan_out| fan_out.begin(&schedule));
        for context in &mut self.contexts {
            context.exchange.schedule = schedule.clone();
        }
        Some(self.schedule().window.end).filter(|&end| end < Nanos::MAX)
    }

    /// Sends all due messages on every connection, and begins to close those without further
    /// messages.
    pub(crate) fn send_due(&mut self, turn: &mut Turn<'_>) {
        let now = self.run_state.clock.now();
        for index in 0..self.connections.len() {
            self.send_due_on(index, turn, now);
        }
    }

    /// Sends due messages that had no room before.
    pub(crate) fn drained(&mut self, index: usize, stream: &mut Stream<'_>) {
        let now = self.run_state.clock.now();
        let (connection, context) = self.parts(index);
        connection.send_due(context, stream, now);
    }

    fn send_due_on(&mut self, index: usize, turn: &mut Turn<'_>, now: Nanos) {
        let (connection, context) = self.parts(index);
        if connection.is_dormant() {
            return self.rouse(index, now);
        }
        if let Some(mut stream) = connection.key().and_then(|key| turn.stream(key).ok()) {
            connection.send_due(context, &mut stream, now);
        }
    }

    /// Sends the messages that are due by the fixed rate's schedule. Returns the moment of the next
    /// message, if there is a schedule and a next message.
    pub(crate) fn send_scheduled(&mut self, turn: &mut Turn<'_>) -> Option<Nanos> {
        let LoadSchedule { rate: SendRate::Fixed(rate), ref window, .. } = *self.schedule() else {
            return None;
        };
        let end = window.end;
        // Connections that only receive come last.
        let senders = u64::from(self.plan.args.senders());
        let sends = |connection: &&LoadConnection| connection.sequence.connection() < senders;
        let count = self.connections.iter().take_while(sends).count() as u64;
        if count == 0 {
            return None;
        }
        // A connection sends all of its late messages at once, so one round is enough for any
        // delay.
        for _ in 0..count {
            let (index, number) = ((self.slots % count) as usize, self.slots / count);
            let moment = rate.moment(self.connections[index].sequence.connection(), number);
            if moment >= end || self.unfinished == 0 {
                return None;
            }
            let now = self.run_state.clock.now();
            if moment > now {
                return Some(moment);
            }
            self.send_due_on(index, turn, now);
            self.slots += 1;
        }
        let now = self.run_state.clock.now();
        let first = self.connections[0].sequence.connection();
        let round = rate.due_before(first, now).saturating_sub(1);
        self.slots = self.slots.max(round * count);
        Some(now)
    }

    /// Ends the measured time, by the clock or on request. Messages that could not be sent count
    /// with the time that they have waited.
    pub(crate) fn end(&mut self, turn: &mut Turn<'_>) {
        if self.ended.is_some() {
            return;
        }
        let now = self.run_state.clock.now();
        self.ended = Some(now);
        self.contexts.iter_mut().for_each(|context| context.exchange.end(now));
        for index in 0..self.connections.len() {
            // This worker may itself be late, so it sends the messages that there is room for.
            self.send_due_on(index, turn, now);
            let (connection, context) = self.parts(index);
            let unsent = connection.sequence.stop(&context.exchange.schedule);
            if let Some(unsent) = unsent.filter(|_| !connection.is_over()) {
                context.exchange.results.unsent(unsent);
            }
            self.send_due_on(index, turn, now);
        }
    }

    /// Returns whether messages are being sent.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == WorkerPhase::Running
    }

    /// Checks timeouts, reports progress, and notes the CPU time. Connections that had to wait may
    /// try again.
    pub(crate) fn tick(&mut self, turn: &mut Turn<'_>) {
        let now = self.run_state.clock.now();
        self.queue.extend(self.to_retry.drain(..));
        let messages = self.contexts.iter().map(|context| context.exchange.results.messages).sum();
        self.run_state.answered.fetch_add(messages - self.reported, Relaxed);
        self.reported = messages;
        if self.schedule().window.contains(&now) {
            // The process has no part of it for each target.
            self.contexts[0].exchange.results.sample_cpu(self.run_state.clock.sample());
        }
        if self.run_state.fan_out.as_ref().is_some_and(|fan_out| fan_out.has_ended()) {
            // Receivers without input end, too.
            self.send_due(turn);
        }
        if now - self.last_check >= TIMEOUT_CHECK_INTERVAL {
            self.last_check = now;
            self.check_timeouts(turn, now);
        }
    }

    fn check_timeouts(&mut self, turn: &mut Turn<'_>, now: Nanos) {
        for index in 0..self.connections.len() {
            let (connection, context) = self.parts(index);
            let Some(key) = connection.key() else { continue };
            let was_opening = connection.is_opening();
            match connection.check_timeout(context, now) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(fault) => self.fail(index, fault),
            }
            self.opening -= usize::from(was_opening);
            if let Ok(mut stream) = turn.stream(key) {
                stream.abort();
            }
        }
        let limit = nanos(self.plan.args.answer_timeout());
        if self.ended.is_some_and(|ended| now.saturating_sub(ended) > limit) {
            self.abandon(turn);
        }
    }

    /// Ends all connections whose answers have not arrived long after the end of the measured time.
    fn abandon(&mut self, turn: &mut Turn<'_>) {
        let seconds = self.plan.args.answer_timeout().as_secs_f64();
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            // Receivers have a time limit of their own.
            if connection.is_over() || connection.is_closing() || connection.is_receiver() {
                continue;
            }
            let (key, was_opening) = (connection.key(), connection.is_opening());
            let missing = fault::counted(connection.sequence.outstanding() as usize, "answer");
            let text = format!(
                "{missing} did not come within {seconds} s of the end of the run; \
                 --answer-timeout sets the limit"
            );
            self.fail(index, Fault::new(FaultKind::Lost, text));
            self.opening -= usize::from(was_opening);
            match key.and_then(|key| turn.stream(key).ok()) {
                Some(mut stream) => stream.abort(),
                None => self.unfinished -= 1,
            }
        }
        self.queue.clear();
        self.to_retry.clear();
    }
}

/// The results of a worker are delivered however it ends.
impl Drop for LoadWorker {
    fn drop(&mut self) {
        for index in 0..self.connections.len() {
            let (connection, context) = self.parts(index);
            if !connection.is_over() {
                context.exchange.results.unanswered += connection.sequence.outstanding();
            }
        }
        for (target, context) in self.contexts.iter().enumerate() {
            self.run_state.add_results(target, &context.exchange.results);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_opens_evenly_and_all_in_the_end() {
        let mut ramp = RampUp { length: 1000, begun: None, opened: 0 };
        let opened = |ramp: &mut RampUp, now| (0..20).filter(|_| ramp.take(10, now)).count();
        assert_eq!([7, 106, 107, 507, 907].map(|now| opened(&mut ramp, now)), [1, 0, 1, 4, 4]);
        assert!(opened(&mut ramp, 5000) > 0);
        let mut none = RampUp { length: 0, begun: None, opened: 0 };
        assert_eq!(opened(&mut none, 7), 10);
        // The longest time and the most connections.
        let mut long = RampUp { length: 2_419_200_000_000_000, begun: Some(0), opened: 0 };
        assert!(long.take(1_000_000, 2_419_200_000_000_000));
    }
}
