//! What a turn of the loop spends on compression, and which connections wait for the next turn.
//!
//! 1. Bytes are counted when they go through a codec: inflated bytes by what comes out, deflated
//!    bytes by what goes in. They count in the turn in which that happens.
//! 2. The budget is looked at before each message of a connection with compression. A message that
//!    has begun is finished, because to suspend it would pin the shared decompressor. So a turn
//!    exceeds a budget by one message at most.
//! 3. A connection that finds a budget spent keeps its input, is not read from, and joins the
//!    [`Queue`]. So does one whose publications were compressed at the expense of the turn.
//! 4. The queue is served in order, at the beginning of every second turn. In the turns between,
//!    events are looked at that came meanwhile: in the same turn they would wait for the queue once
//!    more. While somebody waits, newcomers go to the end of it.
//! 5. The first in the queue goes on with one message in each of its turns even if the budget is
//!    spent: by timers or other threads, say. So everybody's turn comes.
//! 6. An eighth of each budget is kept for short messages of connections that have not used the
//!    codecs much of late ([`LIGHT_LEN`], [`HEAVY`]). They do not wait for the others, so that a
//!    chat goes on while files are sent. When this part is spent, they join the queue as well.
//! 7. A connection that cannot go on for another reason, paused or with too much output, leaves the
//!    queue. It joins again when it can.

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

/// So many connections of the queue are called in a turn: enough for the budget, unless their
/// messages are short, and then a turn is short too.
const CALLED_PER_TURN: usize = 64;

/// So many received bytes are short messages. DEFLATE makes 1032 times as many of them at most,
/// which goes into the part that is kept for them.
const LIGHT_LEN: usize = 120;

/// Bytes that a connection has compressed and decompressed in a pass, beyond which its short
/// messages wait like others, for a while.
const HEAVY: u64 = 64 << 10;

/// For so many ticks of the sweep: about a second.
const HEAVY_TICKS: u8 = 3;

/// What the codecs may do in a turn, and what they have done in this one.
pub(crate) struct CodecBudget {
    inflate_max: u64,
    deflate_max: u64,
    /// The turn that the next two are of.
    turn: Cell<u64>,
    inflated: Cell<u64>,
    deflated: Cell<u64>,
    /// The same for what is done at the expense of the part that is kept for short messages.
    light_inflated: Cell<u64>,
    light_deflated: Cell<u64>,
    /// The pass that runs is one of those.
    is_light: Cell<bool>,
    /// What the scratch and the packer had counted when they were last looked at.
    scratch_seen: Cell<CodecBytes>,
    packer_seen: Cell<CodecBytes>,
    /// The last turn in which somebody of the queue has gone on.
    served_in: Cell<u64>,
    /// One message may be looked at although the budget is spent.
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

    /// Half of it is for the last message.
    fn is_light_spent(&self) -> bool {
        self.light_inflated.get() >= self.inflate_max / 16
            || self.light_deflated.get() >= self.deflate_max / 16
    }

    /// Whether the next message may be looked at.
    pub(crate) fn may_go_on(&self) -> bool {
        if self.is_light.get() {
            !self.is_light_spent()
        } else {
            !self.is_spent() || self.grace.take()
        }
    }

    /// A connection of the queue has gone on as far as it could.
    pub(crate) fn end_grace(&self) {
        self.grace.set(false);
    }
}

/// The connections that wait for the codecs. Each is in it once at most.
#[derive(Default)]
pub(crate) struct Queue {
    /// By tickets, which are given out in order.
    members: BTreeMap<u64, u32>,
    tickets: BTreeMap<u32, u64>,
    next: u64,
}

impl Queue {
    /// To the end of the queue; false for one that waits already.
    fn join(&mut self, member: u32) -> bool {
        if self.tickets.contains_key(&member) {
            return false;
        }
        self.members.insert(self.next, member);
        self.tickets.insert(member, self.next);
        self.next += 1;
        true
    }

    /// False for one that does not wait.
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
    /// Begins to count anew if this is another turn.
    pub(crate) fn begin_codec_turn(&self, turn: &Turn<'_>) {
        let now = turn.stats().turns;
        let budget = &self.codec;
        if budget.turn.replace(now) != now {
            for count in
                [&budget.inflated, &budget.deflated, &budget.light_inflated, &budget.light_deflated]
            {
                count.set(0);
            }
            // A panic may have left it.
            budget.is_light.set(false);
            budget.grace.set(false);
        }
    }

    /// Counts what was done with the scratch, in the turn that has [begun](Self::begin_codec_turn).
    pub(crate) fn note_codec(&self, bytes: CodecBytes) {
        let seen = self.codec.scratch_seen.replace(bytes);
        self.spend(bytes, seen);
    }

    /// All bytes that were counted.
    pub(crate) fn codec_total(&self) -> u64 {
        self.stats.bytes_inflated.get() + self.stats.bytes_deflated.get()
    }

    /// Counts what was compressed for others.
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

    /// Whether the codecs may work on the next message of a pass. If not, the pass is to end.
    pub(crate) fn has_budget(&self, pass: &Pass<'_>, seat: &mut Seat) -> bool {
        self.note_codec(pass.codec_bytes());
        let may = self.codec.may_go_on();
        if !may {
            seat.halt |= HALT_CODEC;
        }
        may
    }

    /// Whether a connection that does not wait may use the codecs.
    pub(crate) fn codec_admits(&self, turn: &Turn<'_>) -> bool {
        self.begin_codec_turn(turn);
        !self.codec.is_spent() && self.books.borrow().waiting.is_empty()
    }

    /// Whether publications have spent the budget of this turn.
    #[inline]
    pub(crate) fn codec_is_spent(&self, turn: &Turn<'_>) -> bool {
        self.codec.is_spent() && self.codec.turn.get() == turn.stats().turns
    }

    /// A connection waits for the codecs.
    pub(crate) fn wait_for_codec(self: &SharedHall, turn: &mut Turn<'_>, member: u32) {
        let mut books = self.books.borrow_mut();
        if books.waiting.join(member) {
            self.stats.codec_waits.add(1);
            books.roster.at(member).flags.add(Flags::WAITING);
        }
        drop(books);
        self.call_queue_later(turn);
    }

    /// Takes a connection that waits out of the queue if it may go on. If not, it is called again.
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

    /// A connection does not wait any more, for whatever reason.
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

    /// Has the first in the queue called in the next turn.
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
            // As many closures as may be wait already.
            self.codec.call_deferred.set(false);
            self.call_queue(turn);
        }
    }

    /// Calls the first in the queue: each of them sees for itself whether it may go on.
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
    /// Received bytes of a connection with compression, or of one that is not to go on as usual.
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

    /// Whether these bytes need not wait for what others have compressed (rule 6).
    fn is_light(&self, hall: &Hall, len: usize) -> bool {
        let since = self.seat.since_heavy(hall.tick.get());
        len <= LIGHT_LEN && since >= HEAVY_TICKS && self.engine.buffered() == 0
    }

    /// Notes what a pass has cost a connection with compression, when so much had been counted
    /// before it.
    pub(crate) fn note_codec(&mut self, hall: &Hall, scratch: &Scratch, before: u64) {
        hall.note_codec(scratch.codec_bytes());
        if hall.codec_total().saturating_sub(before) > HEAVY {
            self.seat.note_heavy(hall.tick.get());
        }
    }

    /// Keeps received bytes until it is this connection's turn to use the codecs.
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

    /// It does not wait for the codecs any more: it cannot go on for another reason, or ends.
    pub(crate) fn stop_waiting(&mut self, hall: &SharedHall, stream: &mut Stream<'_>) {
        if self.seat.halt & HALT_WAITS != 0 {
            self.seat.halt &= !HALT_WAITS;
            hall.leave_codec_queue(&mut stream.turn(), self.seat.member);
        }
    }

    /// Whether a connection may look at what it has kept, as far as the codecs are concerned. If
    /// not, it waits for them.
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
