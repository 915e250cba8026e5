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
    stream::{CloseReason, Input, Stream},
};
use windlass_ws::Scratch;

use super::{
    connection::{Connection, Kit},
    control::Control,
    course::{Course, Nanos, Pace, Session},
    dialogue::Talk,
    fault::{Fault, Kind},
    plan::{Plan, nanos},
    pool::Pool,
    tally::Tally,
    target::Address,
    websocket::Speech,
};

/// Maximum number of connections that a worker opens at the same time: few enough for the backlog
/// of any server.
const OPENING_MAX: usize = 100;

/// Interval of the checks for timeouts.
const LOOK_INTERVAL: Nanos = 100_000_000;

/// The connections of one worker. A `RefCell` holds it; the borrow lasts for one callback, and
/// never while the reactor calls another one.
pub(crate) struct Desk {
    pub(crate) plan: Arc<Plan>,
    pub(crate) control: Arc<Control>,
    kit: Kit,
    connections: Vec<Connection>,
    /// Connections waiting to connect now, and those waiting for the next tick.
    queue: VecDeque<usize>,
    later: Vec<usize>,
    /// The address that each connection tries or has tried.
    routes: Vec<Route>,
    /// The address that worked last, which new connections try first.
    good_address: usize,
    opening: usize,
    /// Number of connections that are not over.
    alive: usize,
    stage: Stage,
    /// Number of turns in the fixed rate's schedule, over this worker's connections, that have
    /// passed.
    turns: u64,
    looked: Nanos,
    /// The value of `Tally::messages` last reported to the control.
    told: u64,
    /// The measured time has ended.
    has_ended: bool,
}

/// How a connection tries the addresses of a name in turn.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    /// Number of addresses that have refused.
    refused: usize,
    address: usize,
    /// Time of the first try, if there was one.
    begun: Option<Nanos>,
}

/// The phase of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    /// All connections are open; the worker waits for the other workers.
    Ready,
    Running,
    Done,
}

impl Desk {
    pub(crate) fn new(plan: &Arc<Plan>, control: &Arc<Control>, worker: usize) -> Self {
        let args = &plan.args;
        let size = args.size as usize;
        let depth = u64::from(args.depth);
        let connections: Vec<Connection> = plan
            .connections_of(worker)
            .map(|number| Connection::new(Session::new(number.into(), depth, plan.quota(number))))
            .collect();
        let kit = Kit {
            clock: control.clock,
            talk: Talk {
                course: Course::WAITING,
                pool: Pool::new(size, args.text, args.deflate),
                tally: Tally::new(),
            },
            scratch: Scratch::new(),
            speech: args
                .target
                .upgrade
                .clone()
                .map(|resource| Speech::new(resource, size, args.deflate)),
            timeout: nanos(args.timeout),
        };
        Self {
            plan: Arc::clone(plan),
            control: Arc::clone(control),
            kit,
            queue: (0..connections.len()).collect(),
            later: Vec::new(),
            routes: vec![Route::default(); connections.len()],
            good_address: 0,
            opening: 0,
            alive: connections.len(),
            connections,
            stage: Stage::Opening,
            turns: 0,
            looked: 0,
            told: 0,
            has_ended: false,
        }
    }

    /// Returns the next connection to open, if one may be opened.
    pub(crate) fn next_to_open(&mut self) -> Option<(usize, Address)> {
        if self.opening >= OPENING_MAX || self.control.is_given_up() {
            return None;
        }
        let index = self.queue.pop_front()?;
        let route = &mut self.routes[index];
        if route.refused == 0 {
            route.address = self.good_address;
        }
        self.opening += 1;
        Some((index, self.plan.addresses[route.address].clone()))
    }

    /// Notes that a connection has begun to connect.
    pub(crate) fn begun(&mut self, index: usize, key: Key) {
        let now = self.kit.clock.now();
        self.routes[index].begun.get_or_insert(now);
        self.connections[index].connecting(key, now);
    }

    /// Notes that a connection could not begin to connect.
    pub(crate) fn not_begun(&mut self, index: usize, reason: &io::Error) {
        self.opening -= 1;
        self.alive -= 1;
        let session = &self.connections[index].session;
        self.kit.talk.tally.fault(session.connection(), Fault::new(Kind::Connect, reason), 0);
        self.connections[index].give_up();
        self.control.unopened();
    }

    /// Returns true once, when nothing is left to open.
    pub(crate) fn becomes_ready(&mut self) -> bool {
        let is_ready = self.stage == Stage::Opening
            && self.opening == 0
            && self.queue.is_empty()
            && self.later.is_empty();
        if is_ready {
            self.stage = Stage::Ready;
        }
        is_ready
    }

    /// Returns the moment of the start once, when it is known.
    pub(crate) fn begins_at(&mut self) -> Option<Nanos> {
        let origin = self.control.origin().filter(|_| self.stage == Stage::Ready)?;
        self.stage = Stage::Running;
        Some(origin)
    }

    /// Returns true once, when there is nothing more to do.
    pub(crate) fn becomes_done(&mut self) -> bool {
        let is_done = self.stage == Stage::Running && self.alive == 0;
        if is_done {
            self.stage = Stage::Done;
        }
        is_done
    }

    /// Handles a connected socket. Returns whether another connection may be opened, because this
    /// one is open or has failed.
    pub(crate) fn connected(&mut self, index: usize, stream: &mut Stream<'_>) -> bool {
        self.good_address = self.routes[index].address;
        self.with(index, stream, |connection, kit, stream| connection.connected(kit, stream))
    }

    /// Handles received bytes. Returns whether another connection may be opened, because this one
    /// has just opened or failed to open.
    #[inline]
    pub(crate) fn data(&mut self, index: usize, stream: &mut Stream<'_>, input: Input<'_>) -> bool {
        self.with(index, stream, |connection, kit, stream| connection.data(kit, stream, input))
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
        act: impl FnOnce(&mut Connection, &mut Kit, &mut Stream<'_>) -> Result<(), Fault>,
    ) -> bool {
        let connection = &mut self.connections[index];
        let was_opening = connection.is_opening();
        if let Err(fault) = act(connection, &mut self.kit, stream) {
            self.fail(index, fault);
            stream.abort();
        }
        let connection = &self.connections[index];
        let is_settled = was_opening && !connection.is_opening();
        if is_settled {
            self.opening -= 1;
            self.control.opened.fetch_add(u64::from(connection.key().is_some()), Relaxed);
        }
        is_settled
    }

    fn fail(&mut self, index: usize, fault: Fault) {
        let connection = &mut self.connections[index];
        let session = &connection.session;
        // A server that does not echo affects all connections, and is reported once.
        let is_said = fault.kind == Kind::NotAnEcho && self.control.give_up();
        if !is_said {
            self.kit.talk.tally.fault(session.connection(), fault, session.outstanding());
        }
        if connection.is_opening() {
            self.control.unopened();
        }
        connection.give_up();
    }

    /// Handles the end of a stream.
    pub(crate) fn closed(&mut self, index: usize, reason: CloseReason) {
        let was_opening = self.connections[index].is_opening();
        if was_opening {
            self.opening -= 1;
            if self.shall_try_again(index, reason) {
                self.connections[index].again();
                return self.later.push(index);
            }
        }
        self.alive -= 1;
        if let Some(fault) = self.connections[index].closed(reason) {
            self.fail(index, fault);
        }
    }

    /// Returns whether a connection that failed to connect may try again.
    fn shall_try_again(&mut self, index: usize, reason: CloseReason) -> bool {
        let CloseReason::Connect(errno) = reason else { return false };
        let (route, addresses) = (&mut self.routes[index], self.plan.addresses.len());
        // Connecting to a Unix socket with a full backlog fails at once, whereas TCP waits.
        if errno == Errno::AGAIN {
            let now = self.kit.clock.now();
            return route.begun.is_none_or(|begun| now - begun < self.kit.timeout);
        }
        route.refused += 1;
        route.address = (route.address + 1) % addresses;
        route.refused < addresses
    }
}

/// Work triggered by timers.
impl Desk {
    /// Starts the course: from now on messages are sent. Returns when it ends, if that is known.
    pub(crate) fn begin(&mut self, origin: Nanos) -> Option<Nanos> {
        if self.has_ended {
            return None;
        }
        self.kit.talk.course = self.plan.course(origin);
        Some(self.kit.talk.course.window.end).filter(|&end| end < Nanos::MAX)
    }

    /// Sends all due messages on every connection, and begins to close those without further
    /// messages.
    pub(crate) fn go_on(&mut self, turn: &mut Turn<'_>) {
        let now = self.kit.clock.now();
        for index in 0..self.connections.len() {
            self.go_on_with(index, turn, now);
        }
    }

    fn go_on_with(&mut self, index: usize, turn: &mut Turn<'_>, now: Nanos) {
        let connection = &mut self.connections[index];
        if let Some(mut stream) = connection.key().and_then(|key| turn.stream(key).ok()) {
            connection.go_on(&mut self.kit, &mut stream, now);
        }
    }

    /// Sends the messages that are due by the fixed rate's schedule. Returns the moment of the next
    /// message, if there is a schedule and a next message.
    pub(crate) fn keep_pace(&mut self, turn: &mut Turn<'_>) -> Option<Nanos> {
        let Pace::Fixed(schedule) = self.kit.talk.course.pace else { return None };
        let count = self.connections.len() as u64;
        // A connection sends all of its late messages at once, so one round is enough for any
        // delay.
        for _ in 0..count {
            let (index, number) = ((self.turns % count) as usize, self.turns / count);
            let moment = schedule.moment(self.connections[index].session.connection(), number);
            if moment >= self.kit.talk.course.window.end || self.alive == 0 {
                return None;
            }
            let now = self.kit.clock.now();
            if moment > now {
                return Some(moment);
            }
            self.go_on_with(index, turn, now);
            self.turns += 1;
        }
        let now = self.kit.clock.now();
        let first = self.connections[0].session.connection();
        let round = schedule.due_before(first, now).saturating_sub(1);
        self.turns = self.turns.max(round * count);
        Some(now)
    }

    /// Ends the measured time, by the clock or on request. Messages that could not be sent count
    /// with the time that they have waited.
    pub(crate) fn end(&mut self, turn: &mut Turn<'_>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let window = &mut self.kit.talk.course.window;
        window.end = window.end.min(self.kit.clock.now());
        window.start = window.start.min(window.end);
        self.kit.talk.tally.ended = window.end;
        let now = self.kit.clock.now();
        for index in 0..self.connections.len() {
            // This worker may itself be late, so it sends the messages that there is room for.
            self.go_on_with(index, turn, now);
            let connection = &mut self.connections[index];
            let unsent = connection.session.stop(&self.kit.talk.course);
            if let Some(unsent) = unsent.filter(|_| connection.key().is_some()) {
                self.kit.talk.tally.unsent(unsent);
            }
            self.go_on_with(index, turn, now);
        }
    }

    /// Returns whether messages are being sent.
    pub(crate) fn is_running(&self) -> bool {
        self.stage == Stage::Running
    }

    /// Checks timeouts, reports progress, and notes the CPU time. Connections that had to wait may
    /// try again.
    pub(crate) fn tick(&mut self, turn: &mut Turn<'_>) {
        let now = self.kit.clock.now();
        self.queue.extend(self.later.drain(..));
        let messages = self.kit.talk.tally.messages;
        self.control.answered.fetch_add(messages - self.told, Relaxed);
        self.told = messages;
        if self.kit.talk.course.window.contains(&now) {
            self.kit.talk.tally.sample_cpu(self.kit.clock.sample());
        }
        if now - self.looked >= LOOK_INTERVAL {
            self.looked = now;
            self.look(turn, now);
        }
    }

    fn look(&mut self, turn: &mut Turn<'_>, now: Nanos) {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            let Some(key) = connection.key() else { continue };
            let was_opening = connection.is_opening();
            match connection.look(&self.kit, now) {
                Ok(false) => continue,
                Ok(true) => connection.give_up(),
                Err(fault) => self.fail(index, fault),
            }
            self.opening -= usize::from(was_opening);
            if let Ok(mut stream) = turn.stream(key) {
                stream.abort();
            }
        }
    }
}

/// The results of a worker are delivered however it ends.
impl Drop for Desk {
    fn drop(&mut self) {
        let in_use = self.connections.iter().filter(|connection| connection.key().is_some());
        self.kit.talk.tally.unanswered +=
            in_use.map(|connection| connection.session.outstanding()).sum::<u64>();
        self.control.deliver(&self.kit.talk.tally);
    }
}
