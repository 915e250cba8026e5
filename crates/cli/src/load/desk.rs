//! What a worker knows of its connections: which are to be opened, are opening, are open, and what
//! was measured.

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

/// Connections of a worker that are on their way to be opened at a time: few enough for any
/// server's backlog.
const OPENING_MAX: usize = 100;

/// How often it is looked whether something is overdue.
const LOOK_INTERVAL: Nanos = 100_000_000;

/// One worker's connections. It lies behind a `RefCell` which is borrowed for the time of a
/// callback, and never while the reactor calls another one.
pub(crate) struct Desk {
    pub(crate) plan: Arc<Plan>,
    pub(crate) control: Arc<Control>,
    kit: Kit,
    connections: Vec<Connection>,
    /// Those that are to be connected, and those that are so after the next tick.
    queue: VecDeque<usize>,
    later: Vec<usize>,
    /// Where each of them is tried, or was.
    routes: Vec<Route>,
    /// The address that worked last: where new ones are tried first.
    good_address: usize,
    opening: usize,
    /// Connections that are not over.
    alive: usize,
    stage: Stage,
    /// Turns of the fixed rate's schedule, over the connections of this worker, that have come.
    turns: u64,
    looked: Nanos,
    /// What the control knows of `Tally::messages`.
    told: u64,
    /// The measured time is over.
    has_ended: bool,
}

/// How a name's addresses are tried in turn.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    /// Addresses that have refused.
    refused: usize,
    address: usize,
    /// When it was tried first, if it was.
    begun: Option<Nanos>,
}

/// How far the worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    /// All are open; waits for the other workers.
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

    /// The next connection to begin, if one may be.
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

    /// A connection has begun to connect.
    pub(crate) fn begun(&mut self, index: usize, key: Key) {
        let now = self.kit.clock.now();
        self.routes[index].begun.get_or_insert(now);
        self.connections[index].connecting(key, now);
    }

    /// A connection could not even begin.
    pub(crate) fn not_begun(&mut self, index: usize, reason: &io::Error) {
        self.opening -= 1;
        self.alive -= 1;
        let session = &self.connections[index].session;
        self.kit.talk.tally.fault(session.connection(), Fault::new(Kind::Connect, reason), 0);
        self.connections[index].give_up();
        self.control.unopened();
    }

    /// Whether nothing is left to be opened, for the first time.
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

    /// The moment to begin at, if it is known now and was not before.
    pub(crate) fn begins_at(&mut self) -> Option<Nanos> {
        let origin = self.control.origin().filter(|_| self.stage == Stage::Ready)?;
        self.stage = Stage::Running;
        Some(origin)
    }

    /// Whether there is nothing more to do, for the first time.
    pub(crate) fn becomes_done(&mut self) -> bool {
        let is_done = self.stage == Stage::Running && self.alive == 0;
        if is_done {
            self.stage = Stage::Done;
        }
        is_done
    }

    /// The socket of a connection is connected. Whether another one may begin: this one is open, or
    /// has failed.
    pub(crate) fn connected(&mut self, index: usize, stream: &mut Stream<'_>) -> bool {
        self.good_address = self.routes[index].address;
        self.with(index, stream, |connection, kit, stream| connection.connected(kit, stream))
    }

    /// Bytes have come. Whether another connection may begin: this one has just been opened, or has
    /// failed at it.
    #[inline]
    pub(crate) fn data(&mut self, index: usize, stream: &mut Stream<'_>, input: Input<'_>) -> bool {
        self.with(index, stream, |connection, kit, stream| connection.data(kit, stream, input))
    }

    /// The peer has ended its half.
    pub(crate) fn ended(&mut self, index: usize, stream: &mut Stream<'_>) {
        self.with(index, stream, |connection, _, stream| connection.ended(stream));
    }

    /// Does something with a connection, and ends it if that finds a fault. Whether it is not
    /// opening any more, although it was.
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
        // That there is no echo is true for all connections, and is said once.
        let is_said = fault.kind == Kind::NotAnEcho && self.control.give_up();
        if !is_said {
            self.kit.talk.tally.fault(session.connection(), fault, session.outstanding());
        }
        if connection.is_opening() {
            self.control.unopened();
        }
        connection.give_up();
    }

    /// A stream is no more.
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

    /// Whether what could not be connected has another chance.
    fn shall_try_again(&mut self, index: usize, reason: CloseReason) -> bool {
        let CloseReason::Connect(errno) = reason else { return false };
        let (route, addresses) = (&mut self.routes[index], self.plan.addresses.len());
        // A Unix socket whose backlog is full says so at once, where TCP would wait.
        if errno == Errno::AGAIN {
            let now = self.kit.clock.now();
            return route.begun.is_none_or(|begun| now - begun < self.kit.timeout);
        }
        route.refused += 1;
        route.address = (route.address + 1) % addresses;
        route.refused < addresses
    }
}

/// What timers cause.
impl Desk {
    /// The course begins: from now on messages are sent. Returns when it ends, if that is known.
    pub(crate) fn begin(&mut self, origin: Nanos) -> Option<Nanos> {
        if self.has_ended {
            return None;
        }
        self.kit.talk.course = self.plan.course(origin);
        Some(self.kit.talk.course.window.end).filter(|&end| end < Nanos::MAX)
    }

    /// Sends with every connection what is to be sent now, and says goodbye where that was all.
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

    /// Sends what a fixed rate's schedule has come to. Returns the moment of what comes next, if
    /// there is a schedule and something comes.
    pub(crate) fn keep_pace(&mut self, turn: &mut Turn<'_>) -> Option<Nanos> {
        let Pace::Fixed(schedule) = self.kit.talk.course.pace else { return None };
        let count = self.connections.len() as u64;
        // A connection sends all that it is late with at once, so one round is enough however late
        // it is.
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

    /// The end of the measured time, be it by the clock or because somebody wants it: messages that
    /// could not be sent count with what they have waited.
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
            // This worker may be late itself: what there is room for goes.
            self.go_on_with(index, turn, now);
            let connection = &mut self.connections[index];
            let unsent = connection.session.stop(&self.kit.talk.course);
            if let Some(unsent) = unsent.filter(|_| connection.key().is_some()) {
                self.kit.talk.tally.unsent(unsent);
            }
            self.go_on_with(index, turn, now);
        }
    }

    /// Whether messages are being sent.
    pub(crate) fn is_running(&self) -> bool {
        self.stage == Stage::Running
    }

    /// Looks after what is overdue, tells how far it is, and notes what the process uses.
    /// Connections that had to wait have another chance.
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

/// However a worker ends, what it has measured is not lost.
impl Drop for Desk {
    fn drop(&mut self) {
        let in_use = self.connections.iter().filter(|connection| connection.key().is_some());
        self.kit.talk.tally.unanswered +=
            in_use.map(|connection| connection.session.outstanding()).sum::<u64>();
        self.control.deliver(&self.kit.talk.tally);
    }
}
