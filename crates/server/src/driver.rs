//! The handler of a connection's stream: input passes through the engine to the application's
//! handler, and output back.

use std::rc::Rc;

use windlass::{
    Key, Turn,
    stream::{self, Input, Shared, Stream, StreamHandler, Timeout},
};
use windlass_ws::{
    CloseCode, End, Engine, EngineEvent, Outcome, Pass, ReceivedMessage, Scratch,
    handshake::HeadReader,
};

use crate::{
    CloseReason, Closed, Connection, ConnectionId, Handler, Hub, Message,
    closed::Ending,
    connection::{
        HALT_CLOSING, HALT_CODEC, HALT_HELD, HALT_PAUSED, HALT_SPENT, HALTS, HAS_DEFLATE, Seat,
    },
    hall::{Alert, Hall, Running},
    http::{Door, Place},
    roster::{Flags, NOBODY},
    service::Inner,
};

/// The handler of a connection's stream.
pub(crate) struct Driver<H: Handler> {
    pub(crate) service: Rc<Inner<H>>,
    pub(crate) state: State<H::Data>,
}

pub(crate) enum State<D> {
    /// The partly received request, if any, and the number of requests answered before. `place`
    /// counts the connection, if connections are counted by address, until the hall takes it over.
    Opening {
        /// Its place in the roster, or [`NOBODY`] before and after.
        member: u32,
        reader: Option<Box<HeadReader>>,
        requests: u32,
        place: Option<Place>,
        /// The kind of listening address, which decides the hosts that may be asked for.
        door: Door,
        /// The stream has reported that its output is above the high watermark.
        is_full: bool,
    },
    Open(Open<D>),
    /// The request was answered in a way that ends the connection.
    Refused {
        member: u32,
    },
}

impl<D> State<D> {
    /// Its place in the roster, or [`NOBODY`] before and after. Each state stores its own copy. A
    /// field beside the states would take twice as much memory per connection.
    pub(crate) fn member(&mut self) -> &mut u32 {
        match self {
            Self::Open(open) => &mut open.seat.member,
            Self::Opening { member, .. } | Self::Refused { member } => member,
        }
    }

    /// Only the connection's end is left to handle.
    pub(crate) fn refuse(&mut self) {
        let member = *self.member();
        *self = Self::Refused { member };
    }
}

/// An open connection.
pub(crate) struct Open<D> {
    pub(crate) engine: Engine,
    pub(crate) seat: Seat,
    pub(crate) data: D,
}

/// How a pass begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Nothing,
    Open,
    Drain,
}

impl<H: Handler> StreamHandler for Driver<H> {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        if let State::Open(open) = &mut self.state {
            // It was adopted, and is in the roster already.
            return open.go_on(&self.service, stream, Source::Bytes(&mut []), First::Open);
        }
        let hall = &self.service.hall;
        let entered = hall.books.borrow_mut().roster.enter(stream.key(), hall.tick.get());
        hall.note_connections();
        match entered {
            Some(index) => {
                if let State::Opening { member, place, .. } = &mut self.state {
                    *member = index;
                    hall.keep_place(index, place.take());
                }
            }
            None => {
                self.state.refuse();
                return stream.abort();
            }
        }
        if hall.is_draining.get() {
            // It was accepted in the turn in which the drain began, and the drain did not see it.
            self.state.refuse();
            stream.close();
        }
    }

    #[inline]
    fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        let Self { service, state: State::Open(open), .. } = self else {
            return self.opening(stream, input);
        };
        let hall = &*service.hall;
        if open.seat.halt != 0 {
            return open.go_apart(service, stream, input);
        }
        let mut scratch = hall.take_scratch();
        let outcome = {
            let Open { engine, seat, data } = open;
            hall.hear(seat);
            let _running = Running::begin(hall, seat.member);
            let mut pass = engine.process(&mut input, &mut scratch);
            // The usual case stays in registers; everything else is handled elsewhere.
            let done = loop {
                let Some(bytes) = pass.next_fast() else { break pass.finish_fast() };
                let (received, outbox) = bytes.detach();
                let connection =
                    Connection { outbox, turn: stream.turn(), hall: &service.hall, seat };
                service.message::<true>(connection, data, received);
                if seat.halt != 0 {
                    break Err(pass);
                }
            };
            done.map_err(|pass| service.go_through(stream, pass, seat, data))
        };
        let outcome = match outcome {
            Ok(range) => {
                open.seat.spent = 0;
                hall.put_scratch(scratch);
                if !range.is_empty() {
                    // A failed stream reports its end separately.
                    if let Ok(1..) = stream.write_reply(input, range) {
                        after_output(hall, stream);
                    }
                }
                return;
            }
            Err(outcome) => outcome,
        };
        if let (Some(range), 0, None) = (&outcome.in_place, open.seat.halt, outcome.end) {
            open.seat.spent = 0;
            hall.put_scratch(scratch);
            let has_grown = open.weigh(hall);
            let waiting =
                if range.is_empty() { Ok(0) } else { stream.write_reply(input, range.clone()) };
            if matches!(waiting, Ok(1..)) || has_grown {
                after_output(hall, stream);
            }
            return;
        }
        open.finish(service, stream, Source::Input(input), outcome, scratch);
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        match &mut self.state {
            State::Open(open) => {
                self.service.hall.begin_closing(open.seat.member, CloseReason::Lost);
                open.stop_waiting(&self.service.hall, stream);
                stream.close();
            }
            _ => self.service.hall.close_answered(stream),
        }
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        match &mut self.state {
            State::Open(open) => {
                open.seat.told_full = true;
                self.service.hall.note_full(open.seat.member);
                self.service.hall.mark(open.seat.member, Flags::FULL);
                stream.pause();
            }
            // The stream reports this once, so a connection that opens now must know it.
            State::Opening { is_full, .. } => *is_full = true,
            State::Refused { .. } => {}
        }
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        match &mut self.state {
            State::Open(open) => {
                open.seat.told_full = false;
                self.service.hall.unmark(open.seat.member, Flags::FULL);
                open.catch_up(&self.service, stream);
            }
            State::Opening { is_full, .. } => *is_full = false,
            State::Refused { .. } => {}
        }
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, _: Timeout) {
        if let State::Open(open) = &mut self.state {
            self.service.hall.begin_closing(open.seat.member, CloseReason::WriteStall);
        }
        stream.abort();
    }

    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        self.obey(stream);
    }

    fn on_close(&mut self, _: Key, reason: stream::CloseReason, mut turn: Turn<'_>) {
        let Some((id, ending)) = self.leave() else { return };
        let hall = &self.service.hall;
        hall.look_whether_drained(&mut turn);
        let State::Open(open) = &mut self.state else { return };
        let ending = ending.unwrap_or_else(|| Ending::new(reason_of(reason)));
        hall.count_end(ending.reason);
        let closed = Closed { id, reason: ending.reason, code: ending.code, text: &ending.text };
        self.service.handler.on_close(&mut Hub { hall, turn }, &mut open.data, &closed);
    }
}

/// Returns the reason for an end that has no other explanation.
fn reason_of(reason: stream::CloseReason) -> CloseReason {
    match reason {
        stream::CloseReason::Error(errno) => CloseReason::Failed(errno),
        stream::CloseReason::WriteStall => CloseReason::WriteStall,
        // All other code that aborts a stream notes a reason.
        stream::CloseReason::Aborted => CloseReason::Drained,
        _ => CloseReason::Lost,
    }
}

impl<H: Handler> Driver<H> {
    pub(crate) fn new(service: &Rc<Inner<H>>, place: Option<Place>, door: Door) -> Self {
        let state = State::Opening {
            member: NOBODY,
            reader: None,
            requests: 0,
            place,
            door,
            is_full: false,
        };
        Self { service: Rc::clone(service), state }
    }

    /// Returns the data of a connection that could not be registered.
    pub(crate) fn into_data(mut self) -> H::Data {
        // Leaves the roster here, so that the destructor has nothing left to do.
        self.leave();
        match core::mem::replace(&mut self.state, State::Refused { member: NOBODY }) {
            State::Open(open) => open.data,
            _ => unreachable!("what is adopted is open"),
        }
    }

    /// Leaves the roster, once. Returns the former ID, and how the connection ended if that is
    /// known.
    fn leave(&mut self) -> Option<(ConnectionId, Option<Ending>)> {
        let member = core::mem::replace(self.state.member(), NOBODY);
        if member == NOBODY {
            return None;
        }
        let hall = &self.service.hall;
        let id = hall.books.borrow().roster.id(member);
        Some((id, hall.leave(member)))
    }

    /// Carries out the requests of other code to this connection.
    #[cold]
    fn obey(&mut self, stream: &mut Stream<'_>) {
        let index = *self.state.member();
        let wants = {
            let mut books = self.service.hall.books.borrow_mut();
            let Some(member) = books.roster.taken(index) else { return };
            let mut wants = member.flags;
            member.flags.clear(Flags::WANTS);
            if wants.any(Flags::WANTS_DRAIN) {
                if wants.any(Flags::TOLD_DRAIN) {
                    wants.clear(Flags::WANTS_DRAIN);
                }
                member.flags.add(Flags::TOLD_DRAIN);
            }
            wants
        };
        if wants.any(Flags::WANTS_EVICTION | Flags::WANTS_ABORT) {
            if let State::Open(open) = &mut self.state {
                let reason = if wants.any(Flags::WANTS_EVICTION) {
                    CloseReason::Evicted
                } else {
                    CloseReason::Drained
                };
                self.service.hall.begin_closing(open.seat.member, reason);
            }
            return stream.abort();
        }
        match &mut self.state {
            State::Open(open) => open.obey(&self.service, stream, wants),
            _ if wants.any(Flags::WANTS_TIMEOUT | Flags::WANTS_DRAIN) => {
                self.give_up(stream, wants)
            }
            _ => {}
        }
    }
}

impl<H: Handler> Drop for Driver<H> {
    fn drop(&mut self) {
        // A callback has panicked, or the reactor is gone. No callback is called.
        self.leave();
    }
}

/// The location of received bytes.
pub(crate) enum Source<'i> {
    Input(Input<'i>),
    Bytes(&'i mut [u8]),
}

impl Source<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Input(input) => input,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl<D: 'static> Open<D> {
    /// One pass over received bytes, including the handler's callbacks.
    fn pass<H: Handler<Data = D>>(
        &mut self,
        service: &Inner<H>,
        stream: &mut Stream<'_>,
        input: &mut [u8],
        scratch: &mut Scratch,
        first: First,
    ) -> Outcome {
        let hall = &service.hall;
        let Self { engine, seat, data } = self;
        hall.hear(seat);
        if seat.halt & HAS_DEFLATE != 0 {
            hall.begin_codec_turn(&stream.turn());
        }
        let _running = Running::begin(hall, seat.member);
        let mut pass = engine.process(input, scratch);
        if first != First::Nothing {
            let mut connection =
                Connection { outbox: pass.outbox(), turn: stream.turn(), hall, seat };
            match first {
                First::Open => service.handler.on_open(&mut connection, data),
                _ => service.handler.on_drain(&mut connection, data),
            }
            connection.take_stash();
        }
        service.go_through(stream, pass, seat, data)
    }

    /// Sends a pass's output, and does the work that must precede the next pass.
    #[cold]
    #[inline(never)]
    fn finish<H: Handler<Data = D>>(
        &mut self,
        service: &Inner<H>,
        stream: &mut Stream<'_>,
        mut source: Source<'_>,
        outcome: Outcome,
        scratch: Box<Scratch>,
    ) {
        send_output(stream, source.bytes(), &outcome, &scratch);
        service.hall.put_scratch(scratch);
        if self.end_pass(service, stream, &mut source, &outcome) {
            let rest = &mut source.bytes()[outcome.consumed..];
            return self.go_on(service, stream, Source::Bytes(rest), First::Nothing);
        }
        after_output(&service.hall, stream);
    }

    /// Notes the memory held for partly received data. Returns true if there was, or is, some to
    /// note.
    #[inline(always)]
    fn weigh(&mut self, hall: &Hall) -> bool {
        let bytes = self.engine.buffered();
        let is_noted = bytes > 0 || self.seat.in_pieces;
        if is_noted {
            self.seat.in_pieces = bytes > 0;
            hall.note_in_pieces(self.seat.member, bytes);
        }
        is_noted
    }

    /// Runs passes over received bytes until none are left or they must be held.
    #[cold]
    #[inline(never)]
    pub(crate) fn go_on<H: Handler<Data = D>>(
        &mut self,
        service: &Inner<H>,
        stream: &mut Stream<'_>,
        mut source: Source<'_>,
        mut first: First,
    ) {
        let mut at = 0;
        loop {
            let hall = &service.hall;
            if self.seat.halt & (HALT_PAUSED | HALT_HELD) != 0 && first == First::Nothing {
                self.hold(hall, stream, &source.bytes()[at..]);
                return after_output(hall, stream);
            }
            self.seat.halt &= !HALT_SPENT;
            self.seat.spent = 0;
            let mut scratch = hall.take_scratch();
            let bytes = &mut source.bytes()[at..];
            let before = hall.codec_total();
            let outcome = self.pass(service, stream, bytes, &mut scratch, first);
            first = First::Nothing;
            if self.seat.halt & HAS_DEFLATE != 0 {
                self.note_codec(hall, &scratch, before);
            }
            send_output(stream, bytes, &outcome, &scratch);
            hall.put_scratch(scratch);
            let mut rest = Source::Bytes(bytes);
            if !self.end_pass(service, stream, &mut rest, &outcome) {
                return after_output(hall, stream);
            }
            at += outcome.consumed;
        }
    }

    /// Handles the outcome of a pass, after its output. Returns true if more bytes can be processed
    /// now.
    fn end_pass<H: Handler<Data = D>>(
        &mut self,
        service: &Inner<H>,
        stream: &mut Stream<'_>,
        source: &mut Source<'_>,
        outcome: &Outcome,
    ) -> bool {
        let hall = &service.hall;
        self.weigh(hall);
        if let Some(end) = outcome.end {
            let reason = match end {
                End::Closed => CloseReason::Peer,
                End::Failed(violation) => CloseReason::Violation(violation),
            };
            hall.begin_closing(self.seat.member, reason);
            match end {
                // A Close frame is the last frame (RFC 6455 section 5.5.1), and the server closes
                // first (section 7.1.1).
                End::Closed => stream.close_after_output(),
                End::Failed(_) => stream.close(),
            }
            return false;
        }
        let halt = self.seat.halt;
        self.seat.spent = 0;
        self.seat.halt &= !(HALT_SPENT | HALT_CODEC);
        if halt & HALT_CLOSING != 0 {
            // Further input is discarded, except the peer's Close frame.
            self.seat.halt &= !HALT_PAUSED;
        } else if halt & HALT_PAUSED != 0 {
            stream.pause();
        }
        let bytes = source.bytes();
        if outcome.consumed == bytes.len() {
            return false;
        }
        if halt & HALT_CLOSING == 0 && (halt & HALT_PAUSED != 0 || stream.is_full()) {
            self.hold(hall, stream, &bytes[outcome.consumed..]);
            return false;
        }
        if halt & HALT_CODEC != 0 {
            self.wait_for_codec(hall, stream, &bytes[outcome.consumed..]);
            return false;
        }
        true
    }

    /// Holds received bytes until the connection resumes reading.
    fn hold(&mut self, hall: &Hall, stream: &mut Stream<'_>, rest: &[u8]) {
        self.keep(hall, stream, rest);
        if !self.seat.told_full {
            // No other event would resume this.
            stream.notify();
        }
    }

    /// Holds received bytes; another event will call the driver.
    pub(crate) fn keep(&mut self, hall: &Hall, stream: &mut Stream<'_>, rest: &[u8]) {
        stream.pause();
        self.seat.halt |= HALT_HELD;
        let mut books = hall.books.borrow_mut();
        let held = books.held.entry(self.seat.member).or_default();
        let before = held.capacity();
        held.extend_from_slice(rest);
        hall.budget.change(before, held.capacity());
    }

    /// Sends messages from the backlog, processes held input, and resumes reading, as far as there
    /// is room.
    fn catch_up<H: Handler<Data = D>>(&mut self, service: &Inner<H>, stream: &mut Stream<'_>) {
        let hall = &service.hall;
        hall.refill(self.seat.member, stream, self.seat.told_full);
        if stream.is_full() && !self.seat.told_full {
            self.stop_waiting(hall, stream);
            // The high watermark event is about to come, or the peer reads some output before it.
            return stream.notify();
        }
        if self.seat.told_full
            || self.seat.halt & HALT_PAUSED != 0
            || hall.is_short(self.seat.member)
        {
            return self.stop_waiting(hall, stream);
        }
        if self.seat.halt & HALT_HELD != 0 {
            if !self.has_codec(hall, stream) {
                return;
            }
            self.seat.halt &= !HALT_HELD;
            let held = hall.books.borrow_mut().held.remove(&self.seat.member);
            if let Some(mut held) = held {
                hall.budget.change(held.capacity(), 0);
                self.go_on(service, stream, Source::Bytes(&mut held), First::Nothing);
            }
            hall.codec.end_grace();
        }
        if self.seat.halt & (HALT_HELD | HALT_PAUSED) == 0 {
            stream.resume();
        }
    }

    /// Carries out the requests of other code to this connection.
    fn obey<H: Handler<Data = D>>(
        &mut self,
        service: &Inner<H>,
        stream: &mut Stream<'_>,
        wants: Flags,
    ) {
        if wants.any(Flags::WANTS_RESUME) {
            self.seat.halt &= !HALT_PAUSED;
        }
        if wants.any(Flags::WANTS_PAUSE) && self.seat.halt & HALT_CLOSING == 0 {
            self.seat.halt |= HALT_PAUSED;
            stream.pause();
        }
        if wants.any(Flags::WANTS_CLOSE) {
            let farewell = service.hall.books.borrow_mut().farewells.remove(&self.seat.member);
            if let Some((code, text)) = farewell {
                self.say_goodbye(&service.hall, stream, code, &text, CloseReason::Local);
            }
        }
        if wants.any(Flags::WANTS_IDLE_END) {
            let text = "idle timeout: no data received";
            self.say_goodbye(&service.hall, stream, CloseCode::GOING_AWAY, text, CloseReason::Idle);
            // The peer has been silent for so long that its Close frame is not awaited.
            self.stop_waiting(&service.hall, stream);
            return stream.close();
        }
        if wants.any(Flags::WANTS_LIFETIME_END) {
            self.say_goodbye(
                &service.hall,
                stream,
                CloseCode::GOING_AWAY,
                "connection lifetime exceeded",
                CloseReason::Lifetime,
            );
        }
        if wants.any(Flags::WANTS_DRAIN) && self.seat.halt & HALT_CLOSING == 0 {
            self.go_on(service, stream, Source::Bytes(&mut []), First::Drain);
        }
        if self.seat.halt & HALT_CLOSING != 0 {
            self.seat.halt &= !HALT_PAUSED;
        }
        self.catch_up(service, stream);
    }

    /// Sends a Close frame on behalf of code other than the handler.
    fn say_goodbye(
        &mut self,
        hall: &Hall,
        stream: &mut Stream<'_>,
        code: CloseCode,
        text: &str,
        reason: CloseReason,
    ) {
        // Earlier publications leave first.
        hall.flush_for(self.seat.member, &mut stream.turn());
        let mut scratch = hall.take_scratch();
        if let Ok(frame) = self.engine.close(code, text, &mut scratch) {
            // A failed stream reports its end separately.
            for message in hall.take_side(self.seat.member) {
                let _ = stream.send_shared(&Shared::of(&message));
            }
            let _ = stream.send(frame);
            self.seat.halt = (self.seat.halt & !HALT_PAUSED) | HALT_CLOSING;
            hall.begin_closing(self.seat.member, reason);
        }
        hall.put_scratch(scratch);
    }
}

impl<H: Handler> Inner<H> {
    /// Delivers the events of a pass, and ends it.
    #[inline(never)]
    fn go_through(
        &self,
        stream: &mut Stream<'_>,
        mut pass: Pass<'_>,
        seat: &mut Seat,
        data: &mut H::Data,
    ) -> Outcome {
        let hall = &self.hall;
        // Each kind of event has its own code path: a common value would go through memory.
        loop {
            if seat.halt != 0 && !goes_on(&mut pass, hall, seat) {
                break;
            }
            match pass.next() {
                None => break,
                Some(EngineEvent::Binary(bytes)) => {
                    let (received, outbox) = bytes.detach();
                    let connection = Connection { outbox, turn: stream.turn(), hall, seat };
                    self.message::<false>(connection, data, received);
                }
                Some(EngineEvent::Text(text)) => {
                    let (received, outbox) = text.detach();
                    let connection = Connection { outbox, turn: stream.turn(), hall, seat };
                    self.text(connection, data, received);
                }
                Some(other) => {
                    let Some(control) = Control::of(other, hall, seat) else { continue };
                    let connection =
                        Connection { outbox: pass.outbox(), turn: stream.turn(), hall, seat };
                    self.control(connection, data, &control);
                }
            }
        }
        pass.finish()
    }

    #[inline(always)]
    fn message<const IS_SHORT_WAY: bool>(
        &self,
        mut connection: Connection<'_>,
        data: &mut H::Data,
        received: ReceivedMessage<'_>,
    ) {
        let hall = &self.hall;
        let len = received.as_bytes().len();
        hall.stats.messages_received.add(1);
        hall.stats.bytes_received.add(len as u64);
        self.handler.on_message(&mut connection, data, Message(received));
        // Off the fast path the message may have been decompressed.
        if len > if IS_SHORT_WAY { LARGE } else { hall.bounds.large } {
            // Counted after the callback: otherwise the message's own reply would find the room
            // taken.
            connection.seat.note_spent(len, hall.bounds.spent_max);
        }
        if hall.is_alert(Alert::STASH) {
            connection.take_stash();
        }
    }

    #[inline(never)]
    fn text(&self, connection: Connection<'_>, data: &mut H::Data, received: ReceivedMessage<'_>) {
        self.message::<false>(connection, data, received);
    }

    #[cold]
    #[inline(never)]
    fn control(&self, mut connection: Connection<'_>, data: &mut H::Data, control: &Control) {
        match control {
            Control::Ping(bytes, len) => {
                self.handler.on_ping(&mut connection, data, &bytes[..*len])
            }
            Control::Pong(bytes, len) => {
                self.handler.on_pong(&mut connection, data, &bytes[..*len])
            }
        }
        connection.take_stash();
    }
}

/// Returns whether an unusual pass may deliver its next message.
#[inline(never)]
fn goes_on(pass: &mut Pass<'_>, hall: &Hall, seat: &mut Seat) -> bool {
    if seat.halt & HALTS == 0 {
        // Connections with compression have no other flag set here.
        return hall.has_budget(pass, seat);
    }
    pass_over(pass, hall, seat);
    false
}

/// Continues without delivering messages, for a connection that is closing: only the peer's Close
/// frame still matters. Does nothing if the pass must end for another reason.
#[cold]
#[inline(never)]
fn pass_over(pass: &mut Pass<'_>, hall: &Hall, seat: &mut Seat) {
    while seat.halt & HALTS & !HALT_CLOSING == 0 {
        if seat.halt & HAS_DEFLATE != 0 && !hall.has_budget(pass, seat) {
            break;
        }
        let Some(event) = pass.next() else { break };
        // This notes how the connection ends. The other events are discarded.
        let _ = Control::of(event, hall, seat);
    }
}

/// A message of at least this length counts against the pass's output limit, as if it were sent
/// back.
pub(crate) const LARGE: usize = 16 << 10;

impl Seat {
    #[cold]
    pub(crate) fn note_spent(&mut self, len: usize, max: u32) {
        self.spent = self.spent.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        if self.spent > max {
            self.halt |= HALT_SPENT;
        }
    }
}

/// Checks memory after output has begun to wait or input is held. This runs last, because it may
/// end the connection.
#[cold]
#[inline(never)]
pub(crate) fn after_output(hall: &Hall, stream: &mut Stream<'_>) {
    let max = hall.options.receiver_buffer_max;
    // Pages may be longer than this; connections that open behind them are full from the beginning.
    debug_assert!(
        stream.buffered() <= max + PASS_ROOM || stream.is_full(),
        "{} bytes of {max} wait",
        stream.buffered()
    );
    hall.look_at_memory(&mut stream.turn());
}

/// Upper bound of the responses to one receive that are not checked one by one, and of the bytes
/// that io_uring has in flight.
const PASS_ROOM: usize = 128 << 10;

/// Passes a pass's output to the stream.
fn send_output(stream: &mut Stream<'_>, input: &[u8], outcome: &Outcome, scratch: &Scratch) {
    if outcome.len == 0 {
        return;
    }
    let mut pieces = scratch.output(outcome, input);
    let (first, second) = (pieces.next(), pieces.next());
    // A failed stream reports its end separately.
    let Some(first) = first else { return };
    let Some(second) = second else {
        let _ = stream.write_shared(&Shared::new(first));
        return;
    };
    for piece in [first, second].into_iter().chain(pieces) {
        let _ = stream.send(piece);
    }
}

/// Events other than messages.
enum Control {
    Ping([u8; 125], usize),
    Pong([u8; 125], usize),
}

impl Control {
    #[cold]
    #[inline(never)]
    fn of(event: EngineEvent<'_>, hall: &Hall, seat: &mut Seat) -> Option<Self> {
        let copy = |payload: &[u8]| {
            let mut bytes = [0; 125];
            bytes[..payload.len()].copy_from_slice(payload);
            (bytes, payload.len())
        };
        match event {
            EngineEvent::Ping(payload) => {
                let (bytes, len) = copy(payload);
                Some(Self::Ping(bytes, len))
            }
            EngineEvent::Pong(payload) => {
                let (bytes, len) = copy(payload);
                Some(Self::Pong(bytes, len))
            }
            EngineEvent::Close(close) => {
                seat.halt |= HALT_CLOSING;
                hall.begin_closing(seat.member, CloseReason::Peer);
                hall.note_close(seat.member, &close);
                None
            }
            EngineEvent::Violation(violation) => {
                seat.halt |= HALT_CLOSING;
                hall.begin_closing(seat.member, CloseReason::Violation(violation));
                None
            }
            _ => None,
        }
    }
}

// Memory of a connection in its cell, beside the user's data. The engine takes 48 bytes. With the
// pointer to the service, the stream's index and the header of the registration, the block has 120
// bytes. Allocators that add a word and round up to 16 allocate 128 bytes for it.
const _: () = assert!(size_of::<Seat>() == 16 && size_of::<State<()>>() == 64);
