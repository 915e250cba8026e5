//! Delivery of messages that others send to connections, by ID and by topic.
//!
//! Frames for other connections are built without their engines: plain, or compressed by the
//! service's compressor for connections that agreed to independently compressed messages. So the
//! frames go to the stream directly, and the receiver's own state is not touched.

use std::{rc::Rc, sync::Arc};

use windlass::{
    Turn,
    stream::{Shared, Stream},
};

use crate::{
    ConnectionId, OutMessage, Prepared, SendError, SlowConsumerPolicy,
    hall::{Alert, Books, Hall, SharedHall},
    log::Log,
    roster::{Flags, Member, NOBODY, Roster},
    slow::Sides,
};

/// State for a delivery off the fast path.
struct Post<'b> {
    hall: &'b Hall,
    sides: &'b mut Sides,
    stash: &'b mut Vec<u8>,
    /// Copies of the log's frames that wait for receivers; later receivers share them.
    kept: &'b mut [KeptRow; 2],
}

/// Indexed by the number of the frame in its row, plain or compressed.
pub(crate) type KeptRow = Vec<Option<Arc<[u8]>>>;

impl Hall {
    /// Publishes to a topic. `from` does not get the message, unless it is [`NOBODY`]. Returns the
    /// number of receivers.
    pub(crate) fn publish(
        self: &SharedHall,
        turn: &mut Turn<'_>,
        from: u32,
        name: &str,
        message: OutMessage<'_>,
    ) -> usize {
        let mut books = self.books.borrow_mut();
        self.stats.published.add(1);
        if !books.peers.is_alone() {
            books.peers.publish(self, name, &message);
            books.flush_later(self, turn);
        }
        books.publish(self, turn, from, name, message)
    }

    /// Sends a message to a connection, on behalf of any caller.
    pub(crate) fn send(
        &self,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        message: OutMessage<'_>,
    ) -> Result<(), SendError> {
        let mut guard = self.books.borrow_mut();
        let books = &mut *guard;
        let index = books.roster.find(id).ok_or(SendError::Closed)?;
        books.flush_for(self, index, turn);
        let mut frame = core::mem::take(&mut books.frame);
        frame.clear();
        let is_packed = books.roster.at(index).flags.any(Flags::COMPRESSED)
            && books.packer.as_mut().is_some_and(|packer| {
                let is_packed = packer.pack(&message, &mut frame);
                self.note_packed(turn, packer);
                is_packed
            });
        if !is_packed {
            message.encode(&mut frame);
        }
        let sent = books.deliver(self, turn, index, &Shared::new(&frame));
        frame.shrink_to(FRAME_KEPT);
        books.frame = frame;
        drop(guard);
        self.look_if_grown(turn);
        sent
    }

    /// Sends a prepared message to a connection, on behalf of any caller.
    pub(crate) fn send_prepared(
        &self,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        prepared: &Prepared,
    ) -> Result<(), SendError> {
        let mut guard = self.books.borrow_mut();
        let books = &mut *guard;
        let index = books.roster.find(id).ok_or(SendError::Closed)?;
        books.flush_for(self, index, turn);
        let frame = books.chosen(self, turn, index, prepared);
        let sent = books.deliver(self, turn, index, &Shared::of(frame));
        drop(guard);
        self.look_if_grown(turn);
        sent
    }
}

/// Bytes that io_uring may have in flight without counting as waiting.
const RING_ROOM: usize = 64 << 10;

/// Memory of a sent frame that is kept for the next one, in bytes.
const FRAME_KEPT: usize = 256 << 10;

impl Books {
    /// Returns the form of a prepared message that a connection gets.
    pub(crate) fn chosen<'p>(
        &mut self,
        hall: &Hall,
        turn: &Turn<'_>,
        index: u32,
        prepared: &'p Prepared,
    ) -> &'p Arc<[u8]> {
        let takes_packed = self.roster.at(index).flags.any(Flags::COMPRESSED);
        match &mut self.packer {
            Some(packer) if takes_packed => {
                let frame = prepared.packed(packer);
                hall.note_packed(turn, packer);
                frame
            }
            _ => prepared.plain(),
        }
    }

    /// Adds a publication to the log, which is delivered at the end of the turn at the latest.
    pub(crate) fn publish(
        &mut self,
        hall: &SharedHall,
        turn: &mut Turn<'_>,
        from: u32,
        name: &str,
        message: OutMessage<'_>,
    ) -> usize {
        let is_same =
            |topic: &u32| self.topics.topic(*topic).is_some_and(|topic| *topic.name == *name);
        let topic = self.log_topic.filter(is_same).or_else(|| self.topics.find(name));
        let Some(topic) = topic else { return 0 };
        if self.log_topic.is_some_and(|current| current != topic)
            || self.log.is_full(message.frame_len())
        {
            self.flush(hall, turn);
        }
        self.log_topic = Some(topic);
        self.log.push(message, from);
        hall.raise(Alert::LOG);
        let mut receivers = self.topics.topic(topic).map_or(0, |topic| topic.receivers.len());
        if from != NOBODY {
            let member = self.roster.at(from);
            member.flags.add(Flags::PUBLISHED);
            receivers -= usize::from(self.topics.listens(member.subscriptions, topic));
        }
        self.flush_later(hall, turn);
        receivers
    }

    /// Schedules the delivery of the log for the end of the turn.
    fn flush_later(&mut self, hall: &SharedHall, turn: &mut Turn<'_>) {
        if hall.flush_deferred.replace(true) {
            return;
        }
        let later = Rc::clone(hall);
        let flush = move |mut turn: Turn<'_>| {
            later.flush_deferred.set(false);
            later.flush(&mut turn);
        };
        if turn.defer(flush).is_err() {
            // The limit of deferred closures is reached.
            hall.flush_deferred.set(false);
            self.flush(hall, turn);
            self.peers.send_out(hall);
        }
    }

    /// Delivers the log.
    pub(crate) fn flush(&mut self, hall: &Hall, turn: &mut Turn<'_>) {
        let Some(topic) = self.log_topic else { return };
        let running = hall.running.get();
        if let Some(member) = self.roster.taken(running) {
            member.flags.add(Flags::RUNNING);
        }
        let Self { roster, topics, log, packer, sides, stash, kept, .. } = self;
        if let Some(row) = topics.topic(topic) {
            let takes_packed =
                |roster: &mut Roster, index: u32| roster.at(index).flags.any(Flags::COMPRESSED);
            if let Some(packer) = packer {
                if row.receivers.iter().any(|receiver| takes_packed(roster, receiver.member)) {
                    log.pack(packer);
                    hall.note_packed(turn, packer);
                }
            }
            let (plain, packed) = (Shared::new(log.plain()), Shared::new(log.packed()));
            let may_be_quick = log.plain().len() <= hall.options.receiver_buffer_max;
            let mut quick = 0_u64;
            let post = &mut Post { hall, sides, stash, kept };
            for receiver in &row.receivers {
                let member = roster.at(receiver.member);
                if member.flags.is_usual() && may_be_quick {
                    let run = if member.flags.any(Flags::COMPRESSED) { &packed } else { &plain };
                    let Ok(mut stream) = turn.stream(member.stream) else { continue };
                    if stream.buffered() > 0 {
                        post.run(turn, member, receiver.member, log, run);
                        continue;
                    }
                    quick += 1;
                    match stream.write_shared(run) {
                        Ok(0) => {}
                        written => note_waiting(hall, member, &mut stream, written.unwrap_or(0)),
                    }
                } else {
                    let run = if member.flags.any(Flags::COMPRESSED) { &packed } else { &plain };
                    post.run(turn, member, receiver.member, log, run);
                }
            }
            hall.stats.messages_sent.add(quick * log.pieces() as u64);
        }
        if let Some(member) = self.roster.taken(running) {
            member.flags.clear(Flags::RUNNING);
        }
        self.discard_log(hall);
    }

    /// Sends one frame to a connection that accepts messages.
    pub(crate) fn deliver(
        &mut self,
        hall: &Hall,
        turn: &mut Turn<'_>,
        index: u32,
        frame: &Shared<'_>,
    ) -> Result<(), SendError> {
        let Self { roster, sides, stash, kept, .. } = self;
        let member = roster.at(index);
        let is_running = hall.running.get() == index;
        Post { hall, sides, stash, kept }.frame(turn, member, index, frame, is_running)
    }
}

/// Returns the number of bytes that wait for a receiver before more are added. If the sum exceeds
/// `max`, output that was only collected in this turn is written first, because it does not wait
/// for the receiver.
pub(crate) fn waiting_of(stream: &mut Stream<'_>, more: usize, max: usize) -> usize {
    let waiting = stream.buffered();
    if waiting == 0 || waiting.saturating_add(more) <= max {
        return waiting;
    }
    // A failed stream reports its end separately.
    stream.write_shared(&Shared::new(&[])).unwrap_or(waiting)
}

/// Notes that output from others waits for a connection. A failed stream is closed by its driver.
#[cold]
fn note_waiting(hall: &Hall, member: &mut Member, stream: &mut Stream<'_>, waiting: usize) {
    member.flags.add(Flags::LAGGING);
    hall.budget.has_grown.set(true);
    if waiting > hall.bounds.high {
        // The connection's own responses might not fit in addition. Its driver runs in the next
        // turn, and resumes reading if there is room.
        stream.pause();
        stream.notify();
    }
}

impl Post<'_> {
    /// Number of bytes that may wait in the stream itself. Messages there cannot be dropped any
    /// more. If the policy drops the oldest messages, the stream gets half of the buffer, or one
    /// message.
    fn stream_max(&self, waiting: usize) -> usize {
        let max = self.hall.options.receiver_buffer_max;
        if self.hall.options.slow == SlowConsumerPolicy::DropOldest && waiting > 0 {
            max / 2
        } else {
            max
        }
    }

    /// Delivers a run of publications to a receiver that needs special handling.
    #[cold]
    fn run(
        &mut self,
        turn: &mut Turn<'_>,
        member: &mut Member,
        index: u32,
        log: &Log,
        run: &Shared<'_>,
    ) {
        if !member.flags.takes_messages() {
            return;
        }
        let is_packed = member.flags.any(Flags::COMPRESSED);
        let is_running = member.flags.any(Flags::RUNNING);
        let is_whole = !member.flags.any(Flags::PUBLISHED | Flags::SIDE) && !is_running;
        if is_whole {
            let Ok(mut stream) = turn.stream(member.stream) else { return };
            let len = run.bytes().len();
            let waiting = waiting_of(&mut stream, len, self.stream_max(1));
            if waiting.saturating_add(len) <= self.stream_max(waiting) {
                self.hall.stats.messages_sent.add(log.pieces() as u64);
                match stream.write_shared(run) {
                    Ok(0) => member.flags.clear(Flags::LAGGING),
                    written => note_waiting(self.hall, member, &mut stream, written.unwrap_or(0)),
                }
                return;
            }
        }
        for (at, (frame, from)) in log.frames(is_packed, NOBODY).zip(log.senders()).enumerate() {
            if from == index {
                continue;
            }
            let kept =
                self.kept[usize::from(is_packed)].get(at).and_then(Option::as_ref).map(Arc::clone);
            let shared = kept.as_ref().map_or_else(|| Shared::new(frame), Shared::of);
            // A rejected frame is counted.
            let _ = self.frame(turn, member, index, &shared, is_running);
            if kept.is_none() && shared.is_kept() {
                let row = &mut self.kept[usize::from(is_packed)];
                row.resize(log.pieces(), None);
                row[at] = Some(shared.to_arc());
            }
        }
    }

    fn frame(
        &mut self,
        turn: &mut Turn<'_>,
        member: &mut Member,
        index: u32,
        frame: &Shared<'_>,
        is_running: bool,
    ) -> Result<(), SendError> {
        if !member.flags.takes_messages() {
            return Err(SendError::Closed);
        }
        let mut stream = turn.stream(member.stream).map_err(|_| SendError::Closed)?;
        let hall = self.hall;
        let max = hall.options.receiver_buffer_max;
        let len = frame.bytes().len();
        let mut waiting = waiting_of(&mut stream, len, self.stream_max(1));
        if is_running {
            waiting += self.stash.len() + hall.own_spent.get() as usize;
        }
        let is_beside = member.flags.any(Flags::SIDE);
        let is_too_much = waiting.saturating_add(len) > max;
        if !is_too_much && (is_beside || waiting + len > self.stream_max(waiting)) {
            self.sides.push(index, frame.to_arc());
            hall.stats.dropped.add(self.sides.shrink(index, max - waiting));
            hall.budget.has_grown.set(true);
            if !is_beside {
                member.flags.add(Flags::SIDE);
                hall.raise(Alert::SIDES);
                stream.notify();
            }
            return Ok(());
        }
        if is_too_much {
            hall.stats.dropped.add(1);
            if hall.options.slow == SlowConsumerPolicy::Evict {
                hall.stats.evicted.add(1);
                member.flags.add(Flags::CLOSING | Flags::WANTS_EVICTION);
                stream.notify();
            }
            return Err(SendError::Full);
        }
        hall.stats.messages_sent.add(1);
        if is_running {
            self.stash.extend_from_slice(frame.bytes());
            hall.raise(Alert::STASH);
            return Ok(());
        }
        // It is written at the end of the turn, with later messages to the same connection.
        stream.send_shared(frame).map_err(|_| SendError::Closed)?;
        debug_assert!(
            stream.buffered() <= max + RING_ROOM,
            "{} bytes of {max} wait",
            stream.buffered()
        );
        let now = stream.buffered();
        if waiting > 0 || now > hall.bounds.high {
            note_waiting(hall, member, &mut stream, now);
        }
        Ok(())
    }
}
