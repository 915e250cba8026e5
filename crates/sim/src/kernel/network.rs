//! The events between the ends of streams: handshakes, deliveries, resets and news of room.

use rustix::io::Errno;

use crate::choices::Track;
use crate::faults::Fault;
use crate::ids::{Fd, mask};
use crate::kernel::state::State;
use crate::object::conn::{Conn, Stage};
use crate::object::flow::{Delivered, Segment};
use crate::object::{Backlog, Kind};
use crate::schedule::Task;
use crate::slab::Key;
use crate::trace::What;

/// How often a SYN is sent again, as `net.ipv4.tcp_syn_retries` says.
const TRIES_MAX: u32 = 6;

/// The time before the first repetition. It doubles with each.
const RETRY_NS: u64 = 1_000_000_000;

/// After this time without an acknowledgement a connection fails: some 15 minutes, as
/// `net.ipv4.tcp_retries2` of 15 makes it.
const UNANSWERED_NS: u64 = 924_600_000_000;

impl State {
    /// When something small that a side of a connection sends now arrives.
    fn arrival_from(&mut self, key: Key, side: usize, bytes: usize) -> u64 {
        let way = self.conns.get(key).and_then(|conn| conn.link.map(|link| (link, conn.lane)));
        match way {
            Some((link, lane)) => self.arrival(link, lane ^ side, bytes),
            None => self.now_ns(),
        }
    }

    /// Sends the next step of a handshake.
    pub(super) fn send_handshake(&mut self, key: Key, side: usize) {
        let at_ns = self.arrival_from(key, side, 0);
        self.schedule.at(at_ns, Task::Handshake(key));
    }

    /// Sends a step again after a while, or gives up.
    fn retry_handshake(&mut self, key: Key) {
        let now_ns = self.now_ns();
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.tries += 1;
        if conn.tries <= TRIES_MAX {
            let at_ns = now_ns + (RETRY_NS << (conn.tries - 1));
            self.schedule.at(at_ns, Task::Handshake(key));
            return;
        }
        conn.ends[1].is_gone = true;
        conn.kill(0, Errno::TIMEDOUT);
        let client = conn.ends[0].fd;
        self.wake(client, 0);
        self.forget_conn(key);
    }

    /// A step of a handshake has arrived.
    pub(super) fn handshake(&mut self, key: Key) {
        let now_ns = self.now_ns();
        let Some(conn) = self.conns.get(key) else { return };
        let (stage, client, is_gone) = (conn.stage, conn.ends[0].fd, conn.ends[0].is_gone);
        if conn.link.is_some_and(|link| self.network.cut_until(link, now_ns).is_some()) {
            self.retry_handshake(key);
            return;
        }
        self.record(What::Handshake, client, stage as i64);
        match stage {
            // The client has closed its socket. The server has seen nothing yet.
            Stage::Syn | Stage::SynAck | Stage::Refused if is_gone => {
                self.conns.remove(key);
            }
            Stage::Syn => self.syn(key),
            Stage::SynAck => {
                self.set_stage(key, Stage::Ack);
                self.wake(client, 0);
                self.send_handshake(key, 0);
            }
            Stage::Refused => {
                let Some(conn) = self.conns.get_mut(key) else { return };
                conn.ends[1].is_gone = true;
                conn.kill(0, Errno::CONNREFUSED);
                self.wake(client, 0);
            }
            Stage::Ack => self.ack(key),
            Stage::Done => {}
        }
    }

    fn set_stage(&mut self, key: Key, stage: Stage) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.stage = stage;
            conn.tries = 0;
        }
    }

    /// A listening socket for the address that a connection wants.
    fn listener_for(&mut self, key: Key) -> Option<Fd> {
        let conn = self.conns.get(key)?;
        let address = conn.ends[1].addr.inet()?;
        let is_local = conn.link.is_none();
        let bound = self.network.ports.get(&(conn.server, false, address.port()))?;
        let accepts = |fd: &Fd| {
            let Ok(Kind::Socket(socket)) = self.object(*fd).map(|object| &object.kind) else {
                return false;
            };
            let local = socket.local.as_ref().and_then(|local| local.inet());
            socket.backlog.is_some()
                && local.is_some_and(|local| is_local || !local.ip().is_loopback())
        };
        let listeners: Vec<Fd> = bound.iter().copied().filter(accepts).collect();
        let index = self.choices.below(Track::Schedule, listeners.len() as u64);
        listeners.get(index as usize).copied()
    }

    fn backlog_is_full(&self, listener: Fd) -> Option<bool> {
        match &self.object(listener).ok()?.kind {
            Kind::Socket(socket) => socket.backlog.as_ref().map(Backlog::is_full),
            _ => None,
        }
    }

    fn syn(&mut self, key: Key) {
        let listener = self.listener_for(key);
        match listener.and_then(|listener| self.backlog_is_full(listener)) {
            None => {
                self.set_stage(key, Stage::Refused);
                self.send_handshake(key, 1);
            }
            // Linux drops a SYN that has no place.
            Some(true) => self.retry_handshake(key),
            Some(false) => {
                if let Some(conn) = self.conns.get_mut(key) {
                    conn.listener = listener;
                }
                self.set_stage(key, Stage::SynAck);
                self.send_handshake(key, 1);
            }
        }
    }

    fn ack(&mut self, key: Key) {
        let Some(listener) = self.conns.get(key).and_then(|conn| conn.listener) else { return };
        match self.backlog_is_full(listener) {
            None => {
                self.set_stage(key, Stage::Done);
                self.abandon(key);
            }
            Some(true) => self.retry_handshake(key),
            Some(false) => {
                self.set_stage(key, Stage::Done);
                self.push_waiting(listener, key);
            }
        }
    }

    /// A connection waits to be accepted.
    pub(super) fn push_waiting(&mut self, listener: Fd, key: Key) {
        if let Ok(Kind::Socket(socket)) = self.object_mut(listener).map(|object| &mut object.kind) {
            if let Some(backlog) = &mut socket.backlog {
                backlog.waiting.push_back(key);
            }
        }
        self.wake(Some(listener), mask::IN);
    }

    /// A connection that nobody will accept is reset.
    pub(super) fn abandon(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.ends[1].is_gone = true;
        conn.flows[1].discard();
        if conn.is_unix {
            conn.flows[0].arrive_fin();
            conn.ends[0].error = Some(Errno::CONNRESET);
            conn.ends[0].send_shut = true;
            let client = conn.ends[0].fd;
            self.wake(client, 0);
        } else {
            self.transmit(key, 1, Segment::Rst);
        }
        self.forget_conn(key);
    }

    /// Sends something from a side. Inside a host it arrives at once, unless others are before it.
    pub(super) fn transmit(&mut self, key: Key, from: usize, segment: Segment) {
        let bytes = if let Segment::Data(bytes) = segment { bytes } else { 0 };
        let Some(conn) = self.conns.get_mut(key) else { return };
        let to = 1 - from;
        if conn.link.is_none() && !conn.flows[to].is_busy() {
            let mut delivered = Delivered::default();
            match segment {
                Segment::Data(bytes) => {
                    conn.flows[to].arrive(bytes);
                    delivered.bytes = bytes;
                }
                Segment::Fin => {
                    conn.flows[to].arrive_fin();
                    delivered.fin = true;
                }
                Segment::Rst => delivered.rst = true,
            }
            self.arrived(key, to, delivered);
            return;
        }
        let at_ns = self.arrival_from(key, from, bytes);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.flows[to].send(at_ns, segment);
        self.schedule_flow(key, to);
    }

    /// Sends a reset from a side, which may overtake what it has sent before. If both sides have
    /// sent a FIN, a reset behind that of this side finds no connection.
    pub(super) fn send_reset(&mut self, key: Key, from: usize, both_finish: bool) {
        let overtakes = self.fault(Fault::OvertakingReset, None);
        if both_finish && !overtakes {
            return;
        }
        if overtakes {
            self.cut_flow(key, 1 - from);
        }
        if let Some(conn) = self.conns.get_mut(key) {
            conn.ends[from].is_dead = true;
        }
        self.transmit(key, from, Segment::Rst);
    }

    /// Makes sure that the next segment of a flow is delivered in time.
    pub(super) fn schedule_flow(&mut self, key: Key, to: usize) {
        if let Some(at_ns) = self.conns.get_mut(key).and_then(|conn| conn.flows[to].schedule()) {
            self.schedule.at(at_ns, Task::Deliver(key, to as u8));
        }
    }

    /// The next segments of a flow are due.
    pub(super) fn deliver(&mut self, key: Key, to: usize) {
        let now_ns = self.now_ns();
        let Some(conn) = self.conns.get_mut(key) else { return };
        if !conn.flows[to].is_due(now_ns) {
            return;
        }
        let (link, fd) = (conn.link, conn.ends[to].fd);
        if self.is_held(key, to, link) {
            return;
        }
        if link.is_some() && self.fault(Fault::Stall, fd) {
            let until_ns = now_ns + self.choices.below(Track::Time, self.faults.stall_max_ns);
            if let Some(conn) = self.conns.get_mut(key) {
                conn.flows[to].postpone(until_ns + 1);
            }
            self.schedule_flow(key, to);
            return;
        }
        let is_reset = link.is_some() && self.fault(Fault::Reset, fd);
        if is_reset {
            self.cut_flow(key, to);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        let delivered = conn.flows[to].deliver(now_ns);
        self.arrived(key, to, delivered);
        if is_reset {
            self.reset_by_network(key);
        }
        self.schedule_flow(key, to);
        self.forget_conn(key);
    }

    /// Whether a cut link holds the flow back. One that was held for too long fails.
    fn is_held(&mut self, key: Key, to: usize, link: Option<u32>) -> bool {
        let Some(link) = link else { return false };
        let now_ns = self.now_ns();
        if self.network.cut_until(link, now_ns).is_none() && self.fault(Fault::Partition, None) {
            let cut_ns = self.choices.below(Track::Time, self.faults.partition_max_ns);
            self.cut(link, now_ns + 1 + cut_ns);
        }
        if self.network.cut_until(link, now_ns).is_none() {
            return false;
        }
        let Some(conn) = self.conns.get_mut(key) else { return true };
        let since_ns = conn.flows[to].hold(now_ns);
        if now_ns - since_ns >= UNANSWERED_NS {
            let from = 1 - to;
            conn.flows[to].purge();
            conn.kill(from, Errno::TIMEDOUT);
            let sender = conn.ends[from].fd;
            self.wake(sender, 0);
            return true;
        }
        conn.flows[to].postpone(since_ns + UNANSWERED_NS);
        self.network.way_mut(link).held.push((key, to));
        self.schedule_flow(key, to);
        true
    }

    /// Drops what is in flight behind a byte of the choices.
    pub(super) fn cut_flow(&mut self, key: Key, to: usize) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let keep = self.choices.below(Track::Time, conn.flows[to].in_flight() as u64 + 1);
        conn.flows[to].cut(keep as usize);
    }

    /// Both ends of a connection are reset.
    fn reset_by_network(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        for side in [0, 1] {
            conn.kill(side, Errno::CONNRESET);
        }
        for fd in conn.ends.each_ref().map(|end| end.fd) {
            if let Some(fd) = fd {
                self.record(What::Rst, Some(fd), 0);
            }
            self.wake(fd, 0);
        }
    }

    /// Something has arrived at a side.
    fn arrived(&mut self, key: Key, side: usize, delivered: Delivered) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let fd = conn.ends[side].fd;
        if conn.ends[side].is_gone {
            conn.flows[side].discard();
            // Bytes for a socket that is closed are answered by a reset.
            let other = &conn.ends[1 - side];
            if delivered.bytes > 0 && !conn.is_unix && !other.is_gone && !other.is_dead {
                conn.ends[side].is_dead = true;
                self.transmit(key, side, Segment::Rst);
            }
            return;
        }
        if delivered.bytes > 0 && conn.rejects(side) {
            conn.flows[side].reject(delivered);
            conn.kill(side, Errno::CONNRESET);
            self.record(What::Rst, fd, 0);
            self.wake(fd, 0);
            self.send_reset(key, side, false);
            return;
        }
        if delivered.bytes > 0 {
            self.record(What::Deliver, fd, delivered.bytes as i64);
            self.wake(fd, mask::IN);
        }
        if delivered.fin {
            self.record(What::Fin, fd, 0);
            self.wake(fd, 0);
        }
        let is_finished = self.conns.get(key).is_some_and(|conn| conn.is_finished(side));
        if delivered.rst && !is_finished {
            if let Some(conn) = self.conns.get_mut(key) {
                conn.kill(side, Errno::CONNRESET);
                // Nothing that this side has sent is wanted any more.
                conn.flows[1 - side].purge();
            }
            self.record(What::Rst, fd, 0);
            self.wake(fd, 0);
        }
    }

    /// A side has read: the other may write again.
    pub(super) fn room_is_free(&mut self, key: Key, reader: usize, is_whole: bool) {
        let writer = 1 - reader;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let wants = conn.ends[writer].wants_room || conn.is_unix;
        if !wants || !is_whole || !conn.is_writable(writer) {
            return;
        }
        conn.ends[writer].wants_room = false;
        if conn.link.is_none() {
            let fd = conn.ends[writer].fd;
            self.wake(fd, mask::OUT);
        } else {
            let at_ns = self.arrival_from(key, reader, 0);
            self.schedule.at(at_ns, Task::Room(key, writer as u8));
        }
    }

    /// The news of room has arrived.
    pub(super) fn tell_of_room(&mut self, key: Key, side: usize) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.is_writable(side) {
            let fd = conn.ends[side].fd;
            self.wake(fd, mask::OUT);
        } else {
            conn.ends[side].wants_room = true;
        }
    }

    /// The end of a fault that has held a writer up.
    pub(super) fn unblock(&mut self, key: Key, side: usize) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.ends[side].is_blocked = false;
        }
        self.tell_of_room(key, side);
    }

    /// Removes a connection whose ends are both gone.
    pub(super) fn forget_conn(&mut self, key: Key) {
        let is_over = |conn: &Conn| conn.ends.iter().all(|end| end.is_gone);
        if self.conns.get(key).is_some_and(is_over) {
            self.conns.remove(key);
        }
    }
}
