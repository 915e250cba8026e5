//! State that the connections of a service share.
//!
//! # Access rules
//!
//! 1. Only calls of this crate borrow [`Books`], each for its own duration. They are never borrowed
//!    while user code runs: callbacks, destructors, clocks (rule 13 of the reactor). Calls on a
//!    stream run no user code, because a stream runs callbacks in a frame of its own.
//! 2. The scratch is in its cell unless a pass has taken it. If a panic loses it, a new one is
//!    created.
//! 3. At most one connection is in a pass at a time, and [`Hall::running`] says which. Messages
//!    that others send to it meanwhile go to the stash, and from there to its output. So they stay
//!    in order with the connection's own messages before and after them.

use core::cell::{Cell, RefCell};
use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use windlass::{
    Turn,
    stream::{ListenerKey, Shared, Stream},
};
use windlass_flow::Sender;
use windlass_ws::{Close, CloseCode, Config, Scratch};

use crate::{
    CloseReason, Options,
    budget::Budget,
    closed::{Ending, Endings},
    codec::{CodecBudget, Queue},
    connection::Seat,
    deliver::KeptRow,
    drain::Then,
    driver::LARGE,
    http::Place,
    inbox::{Board, Command},
    log::{Log, Packer},
    peers::Peers,
    roster::{Flags, NOBODY, Roster},
    slow::Sides,
    stats::Counters,
    topics::Topics,
};

/// Conditions that a call of a connection must handle first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alert(u8);

impl Alert {
    pub(crate) const NONE: Self = Self(0);
    /// Publications wait for delivery.
    pub(crate) const LOG: Self = Self(1);
    /// The stash is not empty.
    pub(crate) const STASH: Self = Self(1 << 1);
    /// Some connection has messages in the backlog.
    pub(crate) const SIDES: Self = Self(1 << 2);

    #[inline]
    pub(crate) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// State that all connections of a service share.
pub(crate) struct Hall {
    pub(crate) options: Options,
    pub(crate) config: Arc<Config>,
    pub(crate) bounds: Bounds,
    pub(crate) budget: Budget,
    /// Bytes that the connection in a pass has sent in it.
    pub(crate) own_spent: Cell<u32>,
    /// Message count at the last beat, to detect messages since then.
    activity: Cell<u64>,
    /// The time, in granules of the sweep.
    pub(crate) tick: Cell<u32>,
    alert: Cell<Alert>,
    /// The connection that is in a pass.
    pub(crate) running: Cell<u32>,
    pub(crate) scratch: Cell<Option<Box<Scratch>>>,
    /// The time in seconds, for the rate limit of control frames.
    pub(crate) second: Cell<u32>,
    pub(crate) stats: Counters,
    /// A closure that delivers the log waits for the end of the turn.
    pub(crate) flush_deferred: Cell<bool>,
    pub(crate) is_draining: Cell<bool>,
    /// Reusable memory for responses to requests.
    pub(crate) answer: Cell<Vec<u8>>,
    pub(crate) last_protocol: Cell<Option<Rc<str>>>,
    pub(crate) listeners: Cell<Vec<ListenerKey>>,
    pub(crate) after_drain: Cell<Vec<Then>>,
    pub(crate) board: Arc<Board>,
    pub(crate) codec: CodecBudget,
    pub(crate) books: RefCell<Books>,
}

/// Bounds derived from the options.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// High watermark of waiting bytes, above which a connection is not read from.
    pub(crate) high: usize,
    /// Number of bytes sent after which a pass ends.
    pub(crate) spent_max: u32,
    /// Number of bytes that a pass may send before the waiting bytes are checked.
    pub(crate) spent_free: u32,
    /// Longer messages count against the pass's output limit as if they were sent back. If messages
    /// may be compressed, all of them count: even short ones can add up to more than was received.
    pub(crate) large: usize,
}

/// Number of bytes that a pass may send before the waiting bytes are checked, if the buffer is much
/// larger.
const SPENT_FREE: u32 = 4 << 10;

impl Bounds {
    fn new(options: &Options) -> Self {
        let spent_max = options.spent_max() as u32;
        let large = if options.deflate.is_some() { 0 } else { LARGE };
        Self { high: options.high_mark(), spent_max, spent_free: SPENT_FREE.min(spent_max), large }
    }
}

/// State behind the `RefCell`.
pub(crate) struct Books {
    pub(crate) roster: Roster,
    pub(crate) topics: Topics,
    pub(crate) log: Log,
    /// The topic of the log's entries, while it is not empty.
    pub(crate) log_topic: Option<u32>,
    /// Frames for the connection that is in a pass.
    pub(crate) stash: Vec<u8>,
    pub(crate) sides: Sides,
    /// Copies of the log's frames that wait for receivers.
    pub(crate) kept: [KeptRow; 2],
    /// Held input: received bytes of connections whose reading is suspended.
    pub(crate) held: BTreeMap<u32, Vec<u8>>,
    /// Those of them that wait for the codecs.
    pub(crate) waiting: Queue,
    /// Reasons why connections are about to end. This map and the next three hold data that few
    /// connections have, so that the others need no room for it.
    pub(crate) endings: Endings,
    /// Subprotocols, of connections that have one.
    pub(crate) protocols: BTreeMap<u32, Rc<str>>,
    /// Places in the count by address, if connections are counted by address.
    pub(crate) places: BTreeMap<u32, Place>,
    /// Close codes and reasons, of connections that other code closes.
    pub(crate) farewells: BTreeMap<u32, (CloseCode, Box<str>)>,
    pub(crate) packer: Option<Packer>,
    /// Reusable memory for one frame.
    pub(crate) frame: Vec<u8>,
    /// The services of the other workers.
    pub(crate) peers: Peers,
}

impl Hall {
    pub(crate) fn new(
        options: Options,
        worker: u16,
        first_generation: u32,
        others: Vec<Sender<Command>>,
        board: Arc<Board>,
        budget: Budget,
    ) -> Self {
        let books = Books {
            roster: Roster::new(worker, first_generation),
            topics: Topics::new(),
            log: Log::default(),
            log_topic: None,
            stash: Vec::new(),
            sides: Sides::new(budget.beside()),
            kept: Default::default(),
            held: BTreeMap::new(),
            waiting: Queue::default(),
            endings: Endings::default(),
            protocols: BTreeMap::new(),
            places: BTreeMap::new(),
            farewells: BTreeMap::new(),
            packer: options.deflate.as_ref().map(Packer::new),
            frame: Vec::new(),
            peers: Peers::new(others),
        };
        Self {
            config: Arc::new(Config::server().with_limits(options.limits)),
            bounds: Bounds::new(&options),
            budget,
            own_spent: Cell::new(0),
            activity: Cell::new(0),
            codec: CodecBudget::new(&options),
            options,
            tick: Cell::new(0),
            alert: Cell::new(Alert::NONE),
            running: Cell::new(NOBODY),
            scratch: Cell::new(None),
            second: Cell::new(0),
            stats: Counters::default(),
            flush_deferred: Cell::new(false),
            is_draining: Cell::new(false),
            answer: Cell::new(Vec::new()),
            last_protocol: Cell::new(None),
            listeners: Cell::new(Vec::new()),
            after_drain: Cell::new(Vec::new()),
            board,
            books: RefCell::new(books),
        }
    }

    #[inline]
    pub(crate) fn is_alert(&self, of: Alert) -> bool {
        self.alert.get().any(of)
    }

    pub(crate) fn raise(&self, those: Alert) {
        self.alert.set(Alert(self.alert.get().0 | those.0));
    }

    pub(crate) fn lower(&self, those: Alert) {
        self.alert.set(Alert(self.alert.get().0 & !those.0));
    }

    /// Takes the scratch out of its cell.
    #[inline]
    pub(crate) fn take_scratch(&self) -> Box<Scratch> {
        match self.scratch.take() {
            Some(scratch) => scratch,
            None => self.new_scratch(),
        }
    }

    /// Puts the scratch back.
    #[inline]
    pub(crate) fn put_scratch(&self, scratch: Box<Scratch>) {
        self.scratch.set(Some(scratch));
    }

    #[cold]
    fn new_scratch(&self) -> Box<Scratch> {
        let mut scratch = Box::new(Scratch::new());
        self.codec.forget_scratch();
        scratch.set_second(self.second.get());
        scratch
    }

    /// Notes that bytes were received from a connection. Updates the roster at most once per tick.
    #[inline(always)]
    pub(crate) fn hear(&self, seat: &mut Seat) {
        if self.tick.get() != seat.heard {
            self.note_heard(seat);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_heard(&self, seat: &mut Seat) {
        seat.heard = self.tick.get();
        let mut books = self.books.borrow_mut();
        let member = books.roster.at(seat.member);
        if !member.flags.any(Flags::CLOSING) {
            member.heard = seat.heard;
        }
    }

    /// Marks a connection that is about to end: it accepts no more messages.
    pub(crate) fn begin_closing(&self, member: u32, reason: CloseReason) {
        let books = &mut *self.books.borrow_mut();
        books.endings.note(member, reason);
        let member = books.roster.at(member);
        member.flags.add(Flags::CLOSING);
        // Pausing ends here, because the peer's Close frame must be read.
        member.flags.clear(Flags::PAUSED | Flags::SHORT);
        member.heard = self.tick.get();
    }

    /// Notes that more than half of a connection's buffer is in use and that reading has stopped.
    /// Senders must check the remaining room.
    pub(crate) fn note_full(&self, member: u32) {
        self.stats.reading_paused.add(1);
        self.books.borrow_mut().roster.at(member).flags.add(Flags::LAGGING);
    }

    /// Notes the peer's Close frame.
    pub(crate) fn note_close(&self, member: u32, close: &Close<'_>) {
        let mut books = self.books.borrow_mut();
        if let Some(ending) = books.endings.get_mut(member) {
            ending.code = close.code;
            ending.text = close.reason.into();
        }
    }

    /// Takes the messages that wait in the backlog of a connection, and counts each as sent. The
    /// connection is about to send its Close frame, so they must go out now.
    pub(crate) fn take_side(&self, member: u32) -> Vec<Arc<[u8]>> {
        let mut books = self.books.borrow_mut();
        if !books.roster.at(member).flags.any(Flags::SIDE) {
            return Vec::new();
        }
        books.roster.at(member).flags.clear(Flags::SIDE);
        let frames: Vec<_> = core::iter::from_fn(|| books.sides.pop(member)).collect();
        self.remove_side(&mut books, member);
        self.stats.messages_sent.add(frames.len() as u64);
        frames
    }

    /// Drops the messages in the backlog of a connection.
    pub(crate) fn remove_side(&self, books: &mut Books, member: u32) {
        if books.sides.remove(member) {
            self.lower(Alert::SIDES);
        }
    }

    pub(crate) fn mark(&self, member: u32, flags: Flags) {
        self.books.borrow_mut().roster.at(member).flags.add(flags);
    }

    /// Clears flags that kept a connection from being read from. Its idle time starts again.
    pub(crate) fn unmark(&self, member: u32, flags: Flags) {
        let mut books = self.books.borrow_mut();
        let member = books.roster.at(member);
        member.flags.clear(flags);
        if !member.flags.any(Flags::CLOSING) {
            member.heard = self.tick.get();
        }
    }

    /// Sets the current second, by which the engines limit the rate of control frames.
    pub(crate) fn set_second(&self, second: u32) {
        self.second.set(second);
        if let Some(mut scratch) = self.scratch.take() {
            scratch.set_second(second);
            self.scratch.set(Some(scratch));
        }
    }

    /// Updates the maximum number of simultaneous connections.
    pub(crate) fn note_connections(&self) {
        let now = self.books.borrow().roster.len() as u64;
        self.stats.connections_most.set(now.max(self.stats.connections_most.get()));
    }

    pub(crate) fn count_end(&self, reason: CloseReason) {
        let stats = &self.stats;
        stats.closed.add(1);
        match reason {
            CloseReason::Violation(_) => stats.violations.add(1),
            CloseReason::Idle => stats.idle_timeouts.add(1),
            CloseReason::Failed(_) | CloseReason::WriteStall => stats.broken_off.add(1),
            _ => {}
        }
    }

    /// Sends messages from the backlog of a connection, as far as there is room.
    #[cold]
    pub(crate) fn refill(&self, member: u32, stream: &mut Stream<'_>, is_told_full: bool) {
        let books = &mut *self.books.borrow_mut();
        if !books.roster.at(member).flags.any(Flags::SIDE) {
            return;
        }
        let half = self.options.receiver_buffer_max / 2;
        // Messages in the stream cannot be dropped any more, so only about half of the buffer goes
        // there, or one message.
        let low = self.bounds.high / 4;
        let fits = |waiting: usize, len: usize| waiting <= low || waiting + len <= half;
        while !stream.is_full()
            && books.sides.next_len(member).is_some_and(|len| fits(stream.buffered(), len))
        {
            let Some(frame) = books.sides.pop(member) else { break };
            self.stats.messages_sent.add(1);
            if stream.send_shared(&Shared::of(&frame)).is_err() {
                break;
            }
        }
        if books.sides.is_empty(member) {
            books.roster.at(member).flags.clear(Flags::SIDE);
            self.remove_side(books, member);
        } else if !is_told_full && !stream.wait_for_low_mark() {
            // No other event would resume this.
            stream.notify();
        }
    }

    /// Removes an ended connection from the topics and the roster. Returns how it ended, if that is
    /// known.
    pub(crate) fn leave(&self, member: u32) -> Option<Ending> {
        let mut books = self.books.borrow_mut();
        let books = &mut *books;
        books.topics.leave_all(&mut books.roster, member);
        if books.log_topic.is_some_and(|topic| books.topics.topic(topic).is_none()) {
            // The log's topic has no subscriber left.
            books.discard_log(self);
        }
        books.drop_waiting(self, member);
        books.waiting.leave(member);
        self.budget.change(books.roster.at(member).in_pieces as usize, 0);
        books.farewells.remove(&member);
        books.protocols.remove(&member);
        books.places.remove(&member);
        books.roster.leave(member);
        books.endings.remove(member)
    }

    /// Delivers pending publications, here and to the other workers.
    pub(crate) fn flush(&self, turn: &mut Turn<'_>) {
        let mut books = self.books.borrow_mut();
        books.flush(self, turn);
        books.peers.send_out(self);
        drop(books);
        self.look_if_grown(turn);
    }

    /// Checks the memory in use if more data has begun to wait.
    #[inline]
    pub(crate) fn look_if_grown(&self, turn: &mut Turn<'_>) {
        if self.budget.has_grown.get() {
            self.look_at_memory(turn);
        }
    }

    /// Notes how much memory a connection uses for a partly received message, frame or request.
    #[cold]
    pub(crate) fn note_in_pieces(&self, member: u32, bytes: usize) {
        let mut books = self.books.borrow_mut();
        let member = books.roster.at(member);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.budget.change(member.in_pieces as usize, bytes as usize);
        self.budget.has_grown.set(bytes > member.in_pieces || self.budget.has_grown.get());
        member.in_pieces = bytes;
    }

    /// Frees reusable memory if there was no message since the last beat.
    pub(crate) fn release_spares(&self) {
        let activity = self.stats.messages_received.get()
            + self.stats.messages_sent.get()
            + self.stats.opened.get();
        if self.activity.replace(activity) != activity {
            return;
        }
        drop(self.scratch.take());
        drop(self.answer.take());
        let books = &mut *self.books.borrow_mut();
        if books.log.is_empty() {
            books.log = Log::default();
        }
        books.frame = Vec::new();
        if books.stash.is_empty() {
            books.stash = Vec::new();
        }
    }

    /// Delivers pending publications if this connection is to get some of them, because its next
    /// output must not overtake them.
    pub(crate) fn flush_for(&self, member: u32, turn: &mut Turn<'_>) {
        let mut books = self.books.borrow_mut();
        books.flush_for(self, member, turn);
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        self.board.post(self.snapshot());
    }
}

/// A connection's pass: sets [`Hall::running`] during its lifetime, and resets it even on a panic.
pub(crate) struct Running<'h>(&'h Hall);

impl<'h> Running<'h> {
    #[inline]
    pub(crate) fn begin(hall: &'h Hall, member: u32) -> Self {
        hall.running.set(member);
        hall.own_spent.set(0);
        Self(hall)
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.running.set(NOBODY);
        if self.0.is_alert(Alert::STASH) {
            self.0.drop_stash();
        }
    }
}

impl Hall {
    /// Clears the stash of a connection that panicked or closed before it could take it.
    #[cold]
    fn drop_stash(&self) {
        self.lower(Alert::STASH);
        self.books.borrow_mut().stash.clear();
    }
}

impl Books {
    pub(crate) fn discard_log(&mut self, hall: &Hall) {
        for from in self.log.publishers() {
            if let Some(member) = self.roster.taken(from) {
                member.flags.clear(Flags::PUBLISHED);
            }
        }
        self.log.clear();
        self.kept.iter_mut().for_each(Vec::clear);
        self.log_topic = None;
        hall.lower(Alert::LOG);
    }

    pub(crate) fn flush_for(&mut self, hall: &Hall, member: u32, turn: &mut Turn<'_>) {
        let first = self.roster.at(member).subscriptions;
        if self.log_topic.is_some_and(|topic| self.topics.listens(first, topic)) {
            self.flush(hall, turn);
        }
    }
}

/// The hall, shared with closures that wait in the reactor.
pub(crate) type SharedHall = Rc<Hall>;
