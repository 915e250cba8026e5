//! [`ServiceState`]: the parts of a service, and what takes several of them.
//!
//! # Access rules
//!
//! 1. Only calls of this crate borrow [`Tables`], each for its own duration. They are never
//!    borrowed while user code runs: callbacks, destructors, clocks (rule 13 of the reactor). Calls
//!    on a stream run no user code, because a stream runs callbacks in a frame of its own.
//! 2. The scratch is in its cell unless a pass has taken it. If a panic loses it, a new one is
//!    created.
//! 3. At most one connection is in a pass at a time, and [`Shared::pass`] says which. Messages that
//!    others send to it meanwhile go to the reentrant output, and from there to its output. So they
//!    stay in order with the connection's own messages before and after them.

use core::cell::{Cell, RefCell};
use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Backend, Turn};

use super::{
    drain::{Drain, HandOver},
    inspection::Inspections,
    live_status::LiveStatus,
    tables::Tables,
    timeouts::Timeouts,
};
use crate::{
    api::{CloseReason, OutMessage, SlowConsumerPolicy},
    mailbox::{OtherWorkers, Reconfiguration},
    metrics::WorkerSnapshot,
    pubsub::{Delivery, is_reserved},
    shared::{PendingOutput, Shared},
    table::{ConnFlags, ConnState, ConnTable},
};

/// State that all connections of a service share.
pub(crate) struct ServiceState {
    pub(crate) shared: Shared,
    pub(crate) tables: RefCell<Tables>,
    pub(crate) timeouts: Timeouts,
    pub(crate) drain: Drain,
    pub(super) inspections: Inspections,
    live: LiveStatus,
    backend: Backend,
    /// The reactor has a custom clock.
    pub(crate) has_own_clock: bool,
    /// Message count at the last timer event, to detect messages since then.
    activity: Cell<u64>,
    /// Reusable memory for responses to requests.
    pub(crate) response: Cell<Vec<u8>>,
}

impl ServiceState {
    pub(crate) fn new(
        shared: Shared,
        conns: ConnTable,
        other_workers: OtherWorkers,
        backend: Backend,
        has_own_clock: bool,
    ) -> Self {
        let delivery = Delivery::new(&shared, other_workers);
        Self {
            tables: RefCell::new(Tables::new(conns, delivery)),
            timeouts: Timeouts::new(&shared.options, has_own_clock),
            drain: Drain::default(),
            inspections: Inspections::default(),
            live: LiveStatus::default(),
            backend,
            has_own_clock,
            activity: Cell::new(0),
            response: Cell::new(Vec::new()),
            shared,
        }
    }
}

/// Connections.
impl ServiceState {
    /// Notes that bytes were received from a connection. Updates the connection table at most once
    /// per tick.
    #[inline(always)]
    pub(crate) fn note_rx(&self, conn: &mut ConnState) {
        if self.shared.tick() != conn.last_rx {
            self.note_rx_tick(conn);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_rx_tick(&self, conn: &mut ConnState) {
        conn.last_rx = self.shared.tick();
        let none = ConnFlags::default();
        self.tables.borrow_mut().conns.entry(conn.index).read_again(none, conn.last_rx);
    }

    /// Returns the flags of a connection.
    pub(crate) fn flags(&self, index: u32) -> ConnFlags {
        self.tables.borrow_mut().conns.entry(index).flags
    }

    /// Marks a connection that is about to end: it accepts no more messages.
    pub(crate) fn begin_closing(&self, index: u32, reason: CloseReason) {
        self.tables.borrow_mut().begin_closing(&self.shared, index, reason);
    }
}

/// Messages.
impl ServiceState {
    /// Publishes to a topic. `from` does not get the message, unless it is
    /// [`NO_CONN`](crate::api::NO_CONN). Returns the number of receivers.
    pub(crate) fn publish(
        self: &Rc<Self>,
        turn: &mut Turn<'_>,
        from: u32,
        name: &str,
        message: OutMessage<'_>,
    ) -> usize {
        if is_reserved(name) {
            return 0;
        }
        let tables = &mut *self.tables.borrow_mut();
        let Tables { conns, delivery, .. } = tables;
        let receivers = delivery.publish(conns, &self.shared, turn, from, name, message);
        self.flush_later(tables, turn);
        // An earlier publication may have been delivered.
        tables.check_memory_if_grown(&self.shared, turn);
        receivers
    }

    /// Schedules the delivery of what waits in the batch for the end of the turn.
    #[inline]
    pub(crate) fn flush_later(self: &Rc<Self>, tables: &mut Tables, turn: &mut Turn<'_>) {
        if tables.delivery.schedule_flush() {
            self.defer_flush(tables, turn);
        }
    }

    #[inline(never)]
    fn defer_flush(self: &Rc<Self>, tables: &mut Tables, turn: &mut Turn<'_>) {
        let later = Rc::clone(self);
        let flush = move |mut turn: Turn<'_>| {
            let (shared, tables) = (&later.shared, &mut *later.tables.borrow_mut());
            tables.delivery.flush_all(&mut tables.conns, shared, &mut turn);
            tables.check_memory_if_grown(shared, &mut turn);
        };
        if turn.defer(flush).is_err() {
            // The limit of deferred closures is reached.
            tables.delivery.flush_all(&mut tables.conns, &self.shared, turn);
            tables.check_memory_if_grown(&self.shared, turn);
        }
    }
}

/// Budgets.
impl ServiceState {
    /// Checks memory after more data has begun to wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_memory(&self, turn: &mut Turn<'_>) {
        if self.shared.memory.check(turn) {
            self.tables.borrow_mut().relieve(&self.shared, turn, true);
        }
    }

    /// Schedules a notification of the connections that wait for the codecs, for the next turn.
    pub(crate) fn notify_queue_later(self: &Rc<Self>, turn: &mut Turn<'_>) {
        if !self.shared.codec.begin_notify_later() {
            return;
        }
        let later = Rc::clone(self);
        let notify = move |mut turn: Turn<'_>| later.notify_queue(&mut turn);
        if turn.defer(notify).is_err() {
            // The limit of deferred closures is reached.
            self.notify_queue(turn);
        }
    }

    fn notify_queue(&self, turn: &mut Turn<'_>) {
        self.shared.codec.end_notify_later();
        self.shared.codec.notify(&mut self.tables.borrow_mut().conns, turn);
    }
}

/// Drain and timer events.
impl ServiceState {
    /// Begins a drain. A second call during a drain can only move the deadline forward.
    pub(crate) fn drain(self: &Rc<Self>, turn: &mut Turn<'_>, deadline: Duration) {
        self.drain.begin(turn, &self.shared.stats);
        self.tables.borrow_mut().conns.notify_all(turn, ConnFlags::WANTS_DRAIN);
        let state = Rc::clone(self);
        let end = move |mut turn: Turn<'_>| state.tables.borrow().conns.abort_all(&mut turn);
        // A custom clock is user code, so nothing is borrowed while the timer reads it. If the
        // timer limit is reached, the connections are ended without waiting.
        if deadline.is_zero() || turn.after(deadline, end).is_err() {
            self.tables.borrow().conns.abort_all(turn);
        }
        self.drain.check(&self.tables.borrow().conns, turn);
    }

    /// Stops accepting, and begins a drain when no handshake is under way any more, at the latest
    /// after their time limit. Another process accepts meanwhile, from the same sockets.
    pub(crate) fn hand_over(self: &Rc<Self>, turn: &mut Turn<'_>, deadline: Duration) {
        if self.drain.has_begun() {
            return;
        }
        // A custom clock is user code, and nothing is borrowed here.
        let until = turn.now() + self.shared.options.handshake_timeout;
        let number = turn.number();
        self.drain.begin_hand_over(turn, HandOver { deadline, until, turn: number });
    }

    /// Begins the drain of a hand-over if it is due.
    fn continue_hand_over(self: &Rc<Self>, turn: &mut Turn<'_>, now: Instant) {
        let Some(hand_over) = self.drain.hand_over() else { return };
        // Streams that were accepted in its turn or the one after are in no table before that ends.
        let is_early = turn.number() <= hand_over.turn + 1;
        if is_early || now < hand_over.until && self.tables.borrow().conns.handshakes() > 0 {
            return;
        }
        self.drain(turn, hand_over.deadline);
    }

    /// Takes other settings.
    pub(crate) fn reconfigure(&self, turn: &mut Turn<'_>, new: &Reconfiguration) {
        self.shared.set_rules(new);
        self.drain.set_connections_max(turn, new.accepted_max);
    }

    /// Handles a timer event of the timeouts.
    pub(crate) fn on_timer(self: &Rc<Self>, turn: &mut Turn<'_>) {
        // A custom clock is user code, so it is read before anything is borrowed.
        let now = turn.now();
        self.continue_hand_over(turn, now);
        let tables = &mut *self.tables.borrow_mut();
        if self.timeouts.begin_tick(&self.shared, now) {
            self.scan(tables, turn);
        }
        if self.shared.memory.update(turn, &self.shared.stats) {
            tables.relieve(&self.shared, turn, false);
        }
        self.release_spare_memory(tables);
        self.publish_stats(tables, turn);
        self.live.push(tables, &self.shared, turn, now);
        self.flush_later(tables, turn);
        if let Some((node, _)) = tables.delivery.other_workers().node() {
            node.expire(now);
        }
        // Covers connections lost in a panic, whose end could not be reported.
        self.drain.check(&tables.conns, turn);
        self.shared.codec.notify(&mut tables.conns, turn);
    }

    /// Scans a part of the connections, and continues with the others in the next turn.
    fn scan(self: &Rc<Self>, tables: &mut Tables, turn: &mut Turn<'_>) {
        if self.timeouts.scan_part(&mut tables.conns, &self.shared, turn) {
            let state = Rc::clone(self);
            let scan = move |mut turn: Turn<'_>| {
                state.scan(&mut state.tables.borrow_mut(), &mut turn);
            };
            if turn.defer(scan).is_err() {
                self.timeouts.abandon_scan();
            }
        }
    }

    /// Frees reusable memory if there was no message since the last timer event.
    fn release_spare_memory(&self, tables: &mut Tables) {
        let stats = &self.shared.stats;
        let activity =
            stats.messages_received.get() + stats.messages_sent.get() + stats.opened.get();
        if self.activity.replace(activity) == activity {
            self.shared.release_scratch();
            drop(self.response.take());
            tables.delivery.release_spare_memory();
        }
    }
}

/// Counts.
impl ServiceState {
    /// Returns all counts. What only a turn knows is that of the last
    /// [`publish_stats`](Self::publish_stats).
    fn worker_snapshot(&self, tables: &Tables) -> WorkerSnapshot {
        let stats = tables.snapshot(&self.shared);
        let mut snapshot = self.shared.labels.snapshot(stats, self.backend);
        snapshot.is_draining = self.drain.has_begun();
        snapshot.pool = self.shared.memory.figures();
        snapshot.connections = *tables.conns.counts();
        snapshot.drop_policy = match self.shared.options.slow {
            SlowConsumerPolicy::DropNewest => "drop_newest",
            SlowConsumerPolicy::DropOldest => "drop_oldest",
            SlowConsumerPolicy::Evict => "evict",
        };
        snapshot
    }

    /// Copies all counts to where other threads read them.
    pub(crate) fn publish_stats(&self, tables: &Tables, turn: &mut Turn<'_>) {
        let shared = &self.shared;
        self.drain.note_listeners(turn, &shared.stats);
        shared.stats.memory.set(shared.memory.used(turn) as u64);
        shared.labels.buffered.set(turn.stream_memory() as u64);
        // It is zero while the reactor does not measure it.
        let longest = Some(turn.stats().handler_max).filter(|longest| !longest.is_zero());
        shared.labels.handler_longest.set(longest);
        shared.worker.set_snapshot(self.worker_snapshot(tables));
    }
}

impl Drop for ServiceState {
    fn drop(&mut self) {
        self.shared.worker.end(self.worker_snapshot(&self.tables.borrow()));
    }
}

/// A connection's pass, noted during the lifetime of this value. It ends even on a panic.
pub(crate) struct PassGuard<'h>(&'h ServiceState);

impl<'h> PassGuard<'h> {
    #[inline]
    pub(crate) fn begin(state: &'h ServiceState, index: u32) -> Self {
        state.shared.pass.begin(index);
        Self(state)
    }
}

impl Drop for PassGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let pass = &self.0.shared.pass;
        pass.end();
        if pass.has_pending(PendingOutput::REENTRANT) {
            drop_reentrant_output(self.0);
        }
    }
}

/// Drops the reentrant output of a connection that panicked or closed before it could take it.
#[cold]
fn drop_reentrant_output(state: &ServiceState) {
    state.tables.borrow_mut().delivery.take_reentrant_output(&state.shared, |_| ());
}
