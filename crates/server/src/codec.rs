//! The codec budget: the work that a turn of the loop spends on compression, and the connections
//! that wait for the next turn.
//!
//! 1. Bytes are counted when they pass through a codec: inflated bytes as output, deflated bytes as
//!    input. They count in the turn in which that happens.
//! 2. The budget is checked before each message of a connection with compression. A message that
//!    has begun is finished, because suspending it would pin the shared decompressor. So a turn
//!    exceeds a budget by one message at most.
//! 3. A connection that finds a budget spent holds its input, is not read from, and joins the
//!    [`Queue`]. The same happens to a connection whose publications were compressed in this turn's
//!    budget and spent it.
//! 4. The queue is served in order, at the beginning of every second turn. The turns between
//!    process events that arrived meanwhile. In the same turn those events would wait for the queue
//!    once more. While any connection waits, new ones join at the end.
//! 5. The first connection in the queue processes one message in each of its turns, even if timers
//!    or other threads have already spent the budget. So every connection makes progress.
//! 6. An eighth of each budget is reserved for short messages of connections with little recent
//!    codec use ([`LIGHT_LEN`], [`HEAVY`]). They do not wait for the others, so a chat continues
//!    while files are sent. When this part is spent, they join the queue as well.
//! 7. A connection that cannot continue for another reason, because it is paused or has too much
//!    output, leaves the queue. It joins again when it can continue.

use core::cell::Cell;
use std::{collections::BTreeMap, rc::Rc};

use windlass::{
    Turn,
    stream::{Input, Stream},
};
use windlass_ws::{Pass, Scratch, deflate::CodecBytes};

use crate::{
    Handler, Options,
    connection::{HALT_CODEC, HALT_WAITS, HALTS, HAS_DEFLATE, Seat},
    driver::{First, Open, Source, after_output},
    hall::{Hall, SharedHall},
    log::Packer,
    roster::Flags,
    service::Inner,
};

/// Number of connections of the queue that are called in a turn. That is enough to use the budget,
/// unless their messages are short, and then the turn is short too.
const CALLED_PER_TURN: usize = 64;

/// Input of at most this many bytes counts as short messages. DEFLATE expands it by at most 1032
/// times, which fits into the part reserved for short messages.
const LIGHT_LEN: usize = 120;

/// Bytes compressed and decompressed in a pass above which the connection's short messages wait
/// like others, for [`HEAVY_TICKS`].
const HEAVY: u64 = 64 << 10;

/// Number of ticks of the sweep for which heavy use counts: about a second.
const HEAVY_TICKS: u8 = 3;

/// The codec budget of a turn, and its use in the present turn.
pub(crate) struct CodecBudget {
    inflate_max: u64,
    deflate_max: u64,
    /// The turn that the next two fields count.
    turn: Cell<u64>,
    inflated: Cell<u64>,
    deflated: Cell<u64>,
    /// The same for work in the part that is reserved for short messages.
    light_inflated: Cell<u64>,
    light_deflated: Cell<u64>,
    /// The current pass uses the part for short messages.
    is_light: Cell<bool>,
    /// Counts of the scratch and the packer when they were last read.
    scratch_seen: Cell<CodecBytes>,
    packer_seen: Cell<CodecBytes>,
    /// The last turn in which a connection of the queue has continued.
    served_in: Cell<u64>,
    /// One message may be processed although the budget is spent.
    grace: Cell<bool>,
    /// A closure that calls the queue waits for the end of the turn.
    call_deferred: Cell<bool>,
}

impl CodecBudget {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            inflate_max: options.inflate_bytes_per_turn as u64,
            deflate_max: options.deflate_bytes_per_turn as u64,
            turn: Cell::new(0),
            inflated: Cell::new(0),
            deflated: Cell::new(0),
            light_inflated: Cell::new(0),
            light_deflated: Cell::new(0),
            is_light: Cell::new(false),
            scratch_seen: Cell::default(),
            packer_seen: Cell::default(),
            served_in: Cell::new(0),
            grace: Cell::new(false),
            call_deferred: Cell::new(false),
        }
    }

    /// A new scratch counts from zero.
    pub(crate) fn forget_scratch(&self) {
        self.scratch_seen.take();
    }

    fn is_spent(&self) -> bool {
        let (inflate_max, deflate_max) = (self.inflate_max, self.deflate_max);
        self.inflated.get() >= inflate_max - inflate_max / 8
            || self.deflated.get() >= deflate_max - deflate_max / 8
    }

    /// The other half is reserved for the last message.
    fn is_light_spent(&self) -> bool {
        self.light_inflated.get() >= self.inflate_max / 16
            || self.light_deflated.get() >= self.deflate_max / 16
    }

    /// Returns whether the next message may be processed.
    pub(crate) fn may_go_on(&self) -> bool {
        if self.is_light.get() {
            !self.is_light_spent()
        } else {
            !self.is_spent() || self.grace.take()
        }
    }

    /// Ends the grace when a connection of the queue has continued as far as it could.
    pub(crate) fn end_grace(&self) {
        self.grace.set(false);
    }
}

/// The connections that wait for the codecs. Each is in it at most once.
#[derive(Default)]
pub(crate) struct Queue {
    /// Members by ticket number; tickets are issued in order.
    members: BTreeMap<u64, u32>,
    tickets: BTreeMap<u32, u64>,
    next: u64,
}

impl Queue {
    /// Joins the end of the queue. Returns false if the member already waits.
    fn join(&mut self, member: u32) -> bool {
        if self.tickets.contains_key(&member) {
            return false;
        }
        self.members.insert(self.next, member);
        self.tickets.insert(member, self.next);
        self.next += 1;
        true
    }

    /// Leaves the queue. Returns false if the member does not wait.
    pub(crate) fn leave(&mut self, member: u32) -> bool {
        let Some(ticket) = self.tickets.remove(&member) else { return false };
        self.members.remove(&ticket);
        true
    }

    fn is_first(&self, member: u32) -> bool {
        self.members.first_key_value().is_some_and(|(_, first)| *first == member)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl Hall {
    /// Resets the counts at the beginning of a new turn.
    pub(crate) fn begin_codec_turn(&self, turn: &Turn<'_>) {
        let now = turn.stats().turns;
        let budget = &self.codec;
        if budget.turn.replace(now) != now {
            for count in
                [&budget.inflated, &budget.deflated, &budget.light_inflated, &budget.light_deflated]
            {
                count.set(0);
            }
            // A panic may have left it set.
            budget.is_light.set(false);
            budget.grace.set(false);
        }
    }

    /// Counts work done with the scratch, in the turn that has [begun](Self::begin_codec_turn).
    pub(crate) fn note_codec(&self, bytes: CodecBytes) {
        let seen = self.codec.scratch_seen.replace(bytes);
        self.spend(bytes, seen);
    }

    /// Total number of bytes counted.
    pub(crate) fn codec_total(&self) -> u64 {
        self.stats.bytes_inflated.get() + self.stats.bytes_deflated.get()
    }

    /// Counts bytes that were compressed for other receivers.
    pub(crate) fn note_packed(&self, turn: &Turn<'_>, packer: &Packer) {
        let bytes = packer.bytes();
        let seen = self.codec.packer_seen.replace(bytes);
        if bytes != seen {
            self.begin_codec_turn(turn);
            self.spend(bytes, seen);
        }
    }

    fn spend(&self, bytes: CodecBytes, seen: CodecBytes) {
        let (budget, stats) = (&self.codec, &self.stats);
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let inflated = more(bytes.inflated, seen.inflated);
        let deflated = more(bytes.deflated, seen.deflated);
        let (of_inflated, of_deflated) = match budget.is_light.get() {
            true => (&budget.light_inflated, &budget.light_deflated),
            false => (&budget.inflated, &budget.deflated),
        };
        of_inflated.set(of_inflated.get() + inflated);
        of_deflated.set(of_deflated.get() + deflated);
        stats.bytes_inflated.add(inflated);
        stats.bytes_deflated.add(deflated);
        stats.inflated_per_turn_most.raise(budget.inflated.get() + budget.light_inflated.get());
        stats.deflated_per_turn_most.raise(budget.deflated.get() + budget.light_deflated.get());
    }

    /// Returns whether the codecs may process the next message of a pass. If not, the pass must
    /// end.
    pub(crate) fn has_budget(&self, pass: &Pass<'_>, seat: &mut Seat) -> bool {
        self.note_codec(pass.codec_bytes());
        let may = self.codec.may_go_on();
        if !may {
            seat.halt |= HALT_CODEC;
        }
        may
    }

    /// Returns whether a connection that does not wait may use the codecs.
    pub(crate) fn codec_admits(&self, turn: &Turn<'_>) -> bool {
        self.begin_codec_turn(turn);
        !self.codec.is_spent() && self.books.borrow().waiting.is_empty()
    }

    /// Returns whether publications have spent the budget of this turn.
    #[inline]
    pub(crate) fn codec_is_spent(&self, turn: &Turn<'_>) -> bool {
        self.codec.is_spent() && self.codec.turn.get() == turn.stats().turns
    }

    /// Queues a connection for the codecs.
    pub(crate) fn wait_for_codec(self: &SharedHall, turn: &mut Turn<'_>, member: u32) {
        let mut books = self.books.borrow_mut();
        if books.waiting.join(member) {
            self.stats.codec_waits.add(1);
            books.roster.at(member).flags.add(Flags::WAITING);
        }
        drop(books);
        self.call_queue_later(turn);
    }

    /// Takes a waiting connection out of the queue if it may continue. If not, it is called again.
    pub(crate) fn take_codec_turn(self: &SharedHall, turn: &mut Turn<'_>, member: u32) -> bool {
        self.begin_codec_turn(turn);
        let (budget, is_spent) = (&self.codec, self.codec.is_spent());
        let (now, served_in) = (budget.turn.get(), budget.served_in.get());
        // Rules 4 and 5.
        let may_any = now != served_in + 1 && (!is_spent || now != served_in);
        let may = may_any && self.books.borrow().waiting.is_first(member);
        if !may {
            self.call_queue_later(turn);
            return false;
        }
        budget.served_in.set(now);
        budget.grace.set(is_spent);
        self.leave_codec_queue(turn, member);
        true
    }

    /// Removes a connection from the queue, for any reason.
    pub(crate) fn leave_codec_queue(self: &SharedHall, turn: &mut Turn<'_>, member: u32) {
        let mut books = self.books.borrow_mut();
        if !books.waiting.leave(member) {
            return;
        }
        let others = !books.waiting.is_empty();
        drop(books);
        self.unmark(member, Flags::WAITING);
        if others {
            self.call_queue_later(turn);
        }
    }

    /// Schedules a call of the first connections in the queue for the next turn.
    pub(crate) fn call_queue_later(self: &SharedHall, turn: &mut Turn<'_>) {
        if self.codec.call_deferred.replace(true) {
            return;
        }
        let later = Rc::clone(self);
        let call = move |mut turn: Turn<'_>| {
            later.codec.call_deferred.set(false);
            later.call_queue(&mut turn);
        };
        if turn.defer(call).is_err() {
            // The limit of deferred closures is reached.
            self.codec.call_deferred.set(false);
            self.call_queue(turn);
        }
    }

    /// Calls the first connections in the queue. Each checks itself whether it may continue.
    pub(crate) fn call_queue(&self, turn: &mut Turn<'_>) {
        let books = &mut *self.books.borrow_mut();
        for member in books.waiting.members.values().take(CALLED_PER_TURN) {
            if let Ok(mut stream) = turn.stream(books.roster.at(*member).stream) {
                stream.notify();
            }
        }
    }
}

impl<D: 'static> Open<D> {
    /// Handles received bytes of a connection with compression, or of one in an unusual state.
    #[inline(never)]
    pub(crate) fn go_apart<H: Handler<Data = D>>(
        &mut self,
        service: &Inner<H>,
        stream: &mut Stream<'_>,
        input: Input<'_>,
    ) {
        let hall = &service.hall;
        if self.seat.halt & HALTS == 0 && !hall.codec_admits(&stream.turn()) {
            if !self.is_light(hall, input.len()) || hall.codec.is_light_spent() {
                self.wait_for_codec(hall, stream, &input);
                return after_output(hall, stream);
            }
            hall.codec.is_light.set(true);
        }
        self.go_on(service, stream, Source::Input(input), First::Nothing);
        hall.codec.is_light.set(false);
    }

    /// Returns whether these bytes need not wait for the compression work of others (rule 6).
    fn is_light(&self, hall: &Hall, len: usize) -> bool {
        let since = self.seat.since_heavy(hall.tick.get());
        len <= LIGHT_LEN && since >= HEAVY_TICKS && self.engine.buffered() == 0
    }

    /// Counts the codec work of a pass of a connection with compression; `before` is the count at
    /// its beginning.
    pub(crate) fn note_codec(&mut self, hall: &Hall, scratch: &Scratch, before: u64) {
        hall.note_codec(scratch.codec_bytes());
        if hall.codec_total().saturating_sub(before) > HEAVY {
            self.seat.note_heavy(hall.tick.get());
        }
    }

    /// Holds received bytes until this connection may use the codecs.
    pub(crate) fn wait_for_codec(
        &mut self,
        hall: &SharedHall,
        stream: &mut Stream<'_>,
        rest: &[u8],
    ) {
        self.keep(hall, stream, rest);
        self.seat.halt |= HALT_WAITS;
        hall.wait_for_codec(&mut stream.turn(), self.seat.member);
    }

    /// Leaves the codec queue, because the connection cannot continue for another reason, or ends.
    pub(crate) fn stop_waiting(&mut self, hall: &SharedHall, stream: &mut Stream<'_>) {
        if self.seat.halt & HALT_WAITS != 0 {
            self.seat.halt &= !HALT_WAITS;
            hall.leave_codec_queue(&mut stream.turn(), self.seat.member);
        }
    }

    /// Returns whether the codec budget allows this connection to process its held input. If not,
    /// the connection waits for the codecs.
    pub(crate) fn has_codec(&mut self, hall: &SharedHall, stream: &mut Stream<'_>) -> bool {
        if self.seat.halt & HALT_WAITS != 0 {
            let may = hall.take_codec_turn(&mut stream.turn(), self.seat.member);
            if may {
                self.seat.halt &= !HALT_WAITS;
            }
            return may;
        }
        let may = self.seat.halt & HAS_DEFLATE == 0 || hall.codec_admits(&stream.turn());
        if !may {
            self.wait_for_codec(hall, stream, &[]);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_first_in_first_out_and_nobody_is_in_it_twice() {
        let mut queue = Queue::default();
        assert!(queue.is_empty() && !queue.is_first(7));
        assert!(queue.join(7) && queue.join(3) && queue.join(5));
        assert!(!queue.join(3), "it keeps its place");
        assert!(queue.is_first(7) && !queue.is_first(3));
        assert!(queue.leave(3) && !queue.leave(3));
        assert!(queue.leave(7) && queue.is_first(5));
        assert!(queue.join(7) && queue.is_first(5), "behind those who wait");
        assert!(queue.leave(5) && queue.is_first(7));
        assert!(queue.leave(7) && queue.is_empty());
    }
}
