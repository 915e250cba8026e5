//! The codec budget: the work that a turn of the loop spends on compression, and the connections
//! that wait for the next turn.
//!
//! 1. Bytes are counted when they pass through a codec: inflated bytes as output, deflated bytes as
//!    input. They count in the turn in which that happens.
//! 2. The budget is checked before each message of a connection with compression. A message that
//!    has begun is finished, because suspending it would pin the shared decompressor. So a turn
//!    exceeds a budget by one message at most.
//! 3. A connection that finds a budget spent holds its input, is not read from, and joins the
//!    [`CodecQueue`]. The same happens to a connection whose publications were compressed in this
//!    turn's budget and spent it.
//! 4. The queue is served in order, at the beginning of every second turn. The turns between
//!    process events that arrived meanwhile. In the same turn those events would wait for the queue
//!    once more. While any connection waits, new ones join at the end.
//! 5. The first connection in the queue processes one message whenever it is served, even if timers
//!    or other threads have already spent the budget. So every connection makes progress.
//! 6. An eighth of each budget is reserved for short messages of connections with little recent
//!    codec use ([`LIGHT_LEN`], [`HEAVY_BYTES`]). They do not wait for the others, so a chat
//!    continues while files are sent. When this part is spent, they join the queue as well.
//! 7. A connection that cannot continue for another reason, because it is paused or has too much
//!    output, leaves the queue. It joins again when it can continue.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use windlass::Turn;
use windlass_ws::deflate::CodecBytes;

use crate::{
    api::{Counters, Options},
    table::{ConnFlags, ConnTable},
};

/// Number of connections of the queue that are notified in a turn. That is enough to use the
/// budget, unless their messages are short, and then the turn is short too.
const NOTIFIED_PER_TURN: usize = 64;

/// Input of at most this many bytes counts as short messages. DEFLATE expands it by at most 1032
/// times, which fits into the part reserved for short messages.
pub(crate) const LIGHT_LEN: usize = 120;

/// Bytes compressed and decompressed in a pass above which the connection's short messages wait
/// like others, for [`HEAVY_TICKS`].
pub(crate) const HEAVY_BYTES: u64 = 64 << 10;

/// Number of ticks of the timeout scan for which heavy use counts: about a second.
pub(crate) const HEAVY_TICKS: u8 = 3;

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
    /// Counts of the scratch and the compressor when they were last read.
    scratch_seen: Cell<CodecBytes>,
    compressor_seen: Cell<CodecBytes>,
    /// The last turn in which a connection of the queue has continued.
    served_in: Cell<u64>,
    /// One message may be processed although the budget is spent.
    grace: Cell<bool>,
    /// A closure that notifies the queue waits for the end of the turn.
    notify_deferred: Cell<bool>,
    queue: RefCell<CodecQueue>,
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
            compressor_seen: Cell::default(),
            served_in: Cell::new(0),
            grace: Cell::new(false),
            notify_deferred: Cell::new(false),
            queue: RefCell::default(),
        }
    }

    /// A new scratch counts from zero.
    pub(crate) fn reset_scratch_count(&self) {
        self.scratch_seen.take();
    }

    fn is_spent(&self) -> bool {
        let (inflate_max, deflate_max) = (self.inflate_max, self.deflate_max);
        self.inflated.get() >= inflate_max - inflate_max / 8
            || self.deflated.get() >= deflate_max - deflate_max / 8
    }

    /// The other half is reserved for the last message.
    pub(crate) fn is_light_spent(&self) -> bool {
        self.light_inflated.get() >= self.inflate_max / 16
            || self.light_deflated.get() >= self.deflate_max / 16
    }

    /// Sets whether the current pass uses the part for short messages.
    pub(crate) fn set_light(&self, is_light: bool) {
        self.is_light.set(is_light);
    }

    /// Returns whether the next message may be processed.
    fn may_continue(&self) -> bool {
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

    /// Resets the counts at the beginning of a new turn.
    pub(crate) fn begin_turn(&self, turn: &Turn<'_>) {
        let now = turn.number();
        if self.turn.replace(now) != now {
            for count in
                [&self.inflated, &self.deflated, &self.light_inflated, &self.light_deflated]
            {
                count.set(0);
            }
            // A panic may have left it set.
            self.is_light.set(false);
            self.grace.set(false);
        }
    }

    /// Counts work done with the scratch, in the turn that has [begun](Self::begin_turn).
    pub(crate) fn note_scratch(&self, bytes: CodecBytes, stats: &Counters) {
        let seen = self.scratch_seen.replace(bytes);
        self.count(bytes, seen, stats);
    }

    /// Counts bytes that were compressed for other receivers.
    pub(crate) fn note_compressed(&self, turn: &Turn<'_>, bytes: CodecBytes, stats: &Counters) {
        let seen = self.compressor_seen.replace(bytes);
        if bytes != seen {
            self.begin_turn(turn);
            self.count(bytes, seen, stats);
        }
    }

    fn count(&self, bytes: CodecBytes, seen: CodecBytes, stats: &Counters) {
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let inflated = more(bytes.inflated, seen.inflated);
        let deflated = more(bytes.deflated, seen.deflated);
        let (of_inflated, of_deflated) = match self.is_light.get() {
            true => (&self.light_inflated, &self.light_deflated),
            false => (&self.inflated, &self.deflated),
        };
        of_inflated.set(of_inflated.get() + inflated);
        of_deflated.set(of_deflated.get() + deflated);
        stats.bytes_inflated.add(inflated);
        stats.bytes_deflated.add(deflated);
        stats.inflated_per_turn_most.set_max(self.inflated.get() + self.light_inflated.get());
        stats.deflated_per_turn_most.set_max(self.deflated.get() + self.light_deflated.get());
    }

    /// Counts the bytes of a pass so far. Returns whether the codecs may process its next message.
    pub(crate) fn may_process(&self, bytes: CodecBytes, stats: &Counters) -> bool {
        self.note_scratch(bytes, stats);
        self.may_continue()
    }

    /// Returns whether a connection that does not wait may use the codecs.
    pub(crate) fn is_available(&self, turn: &Turn<'_>) -> bool {
        self.begin_turn(turn);
        !self.is_spent() && self.queue.borrow().is_empty()
    }

    /// Returns whether publications have spent the budget of this turn.
    #[inline]
    pub(crate) fn is_spent_in(&self, turn: &Turn<'_>) -> bool {
        self.is_spent() && self.turn.get() == turn.number()
    }

    /// Queues a connection for the codecs.
    pub(crate) fn push(&self, conns: &mut ConnTable, index: u32, stats: &Counters) {
        if self.queue.borrow_mut().push(index) {
            stats.codec_waits.add(1);
            conns.entry(index).flags.add(ConnFlags::CODEC_QUEUED);
        }
    }

    /// Takes a waiting connection out of the queue if it may continue. If not, it must be notified
    /// again.
    pub(crate) fn try_resume(
        &self,
        conns: &mut ConnTable,
        turn: &Turn<'_>,
        index: u32,
        tick: u32,
    ) -> bool {
        self.begin_turn(turn);
        let is_spent = self.is_spent();
        let (now, served_in) = (self.turn.get(), self.served_in.get());
        // Rules 4 and 5.
        let may_any = now != served_in + 1 && (!is_spent || now != served_in);
        let may = may_any && self.queue.borrow().is_first(index);
        if may {
            self.served_in.set(now);
            self.grace.set(is_spent);
            self.remove(conns, index, tick);
        }
        may
    }

    /// Removes a connection from the queue, for any reason. Returns false if it does not wait.
    pub(crate) fn remove(&self, conns: &mut ConnTable, index: u32, tick: u32) -> bool {
        let did_wait = self.queue.borrow_mut().remove(index);
        if did_wait {
            conns.entry(index).read_again(ConnFlags::CODEC_QUEUED, tick);
        }
        did_wait
    }

    /// Returns whether a notification of the queue must be scheduled now: some connection waits,
    /// and none is scheduled.
    pub(crate) fn begin_notify_later(&self) -> bool {
        !self.queue.borrow().is_empty() && !self.notify_deferred.replace(true)
    }

    /// The scheduled notification runs now.
    pub(crate) fn end_notify_later(&self) {
        self.notify_deferred.set(false);
    }

    /// Notifies the first connections in the queue. Each checks itself whether it may continue.
    pub(crate) fn notify(&self, conns: &mut ConnTable, turn: &mut Turn<'_>) {
        for index in self.queue.borrow().waiting.values().take(NOTIFIED_PER_TURN) {
            conns.entry(*index).notify(turn);
        }
    }
}

/// The connections that wait for the codecs. Each is in it at most once.
#[derive(Default)]
struct CodecQueue {
    /// Connections by ticket number; tickets are issued in order.
    waiting: BTreeMap<u64, u32>,
    tickets: BTreeMap<u32, u64>,
    next: u64,
}

impl CodecQueue {
    /// Adds a connection at the end. Returns false if it already waits.
    fn push(&mut self, index: u32) -> bool {
        if self.tickets.contains_key(&index) {
            return false;
        }
        self.waiting.insert(self.next, index);
        self.tickets.insert(index, self.next);
        self.next += 1;
        true
    }

    /// Removes a connection. Returns false if it does not wait.
    fn remove(&mut self, index: u32) -> bool {
        let Some(ticket) = self.tickets.remove(&index) else { return false };
        self.waiting.remove(&ticket);
        true
    }

    fn is_first(&self, index: u32) -> bool {
        self.waiting.first_key_value().is_some_and(|(_, first)| *first == index)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_first_in_first_out_and_holds_no_connection_twice() {
        let mut queue = CodecQueue::default();
        assert!(queue.is_empty() && !queue.is_first(7));
        assert!(queue.push(7) && queue.push(3) && queue.push(5));
        assert!(!queue.push(3), "it keeps its position");
        assert!(queue.is_first(7) && !queue.is_first(3));
        assert!(queue.remove(3) && !queue.remove(3));
        assert!(queue.remove(7) && queue.is_first(5));
        assert!(queue.push(7) && queue.is_first(5), "behind those who wait");
        assert!(queue.remove(5) && queue.is_first(7));
        assert!(queue.remove(7) && queue.is_empty());
    }
}
