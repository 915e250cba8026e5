//! Delivery of messages that others send to connections, by ID and by topic.
//!
//! Frames for other connections are built without their engines: plain, or compressed by the
//! service's compressor for connections that agreed to independently compressed messages. So the
//! frames go to the stream directly, and the receiver's own state is not touched.

use std::{rc::Rc, sync::Arc};

use windlass::{
    Turn,
    stream::{SharedBytes, Stream},
};

use super::{backlog::Backlogs, publish_batch::PublishBatch, topics::is_reserved};
use crate::{
    api::{
        ConnectionId, NO_CONN, OutMessage, Prepared, SendError, SentMessages, SlowConsumerPolicy,
    },
    state::{PendingOutput, ServiceState, Tables},
    table::{ConnEntry, ConnFlags, ConnTable},
};

/// State for a delivery off the fast path.
struct Delivery<'b> {
    state: &'b ServiceState,
    backlogs: &'b mut Backlogs,
    reentrant_output: &'b mut Vec<u8>,
    /// Copies of the batch's frames that wait for receivers; later receivers share them.
    frame_cache: &'b mut [FrameCache; 2],
}

/// Copies of plain or of compressed frames, by their position in the batch.
pub(crate) type FrameCache = Vec<Option<Arc<[u8]>>>;

impl ServiceState {
    /// Publishes to a topic. `from` does not get the message, unless it is [`NO_CONN`]. Returns the
    /// number of receivers.
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
        let mut tables = self.tables.borrow_mut();
        self.stats.published.add(1);
        if !tables.other_workers.is_empty() {
            if let Some(owner) = tables.other_workers.owner_elsewhere(name) {
                return tables.publish_by(owner, self, turn, (from, name, message));
            }
            tables.other_workers.publish(name, &message, &self.options, &self.stats);
            tables.flush_later(self, turn);
        }
        tables.publish(self, turn, from, name, message)
    }

    /// Publishes to a topic that only this crate uses, to the connections of this service.
    pub(crate) fn publish_reserved(
        self: &Rc<Self>,
        turn: &mut Turn<'_>,
        name: &str,
        message: OutMessage<'_>,
    ) {
        self.tables.borrow_mut().publish(self, turn, NO_CONN, name, message);
    }

    /// Sends a message to a connection, on behalf of any caller.
    pub(crate) fn send(
        &self,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        message: OutMessage<'_>,
    ) -> Result<(), SendError> {
        let mut guard = self.tables.borrow_mut();
        let tables = &mut *guard;
        let index = tables.conns.find(id).ok_or(SendError::Closed)?;
        tables.flush_for(self, index, turn);
        let mut frame = core::mem::take(&mut tables.frame);
        frame.clear();
        let is_compressed = tables.conns.entry(index).flags.any(ConnFlags::COMPRESSED)
            && tables.compressor.as_mut().is_some_and(|compressor| {
                let is_compressed = compressor.compress(&message, &mut frame);
                self.note_compressed(turn, compressor);
                is_compressed
            });
        if !is_compressed {
            message.encode(&mut frame);
        }
        let size = SentMessages::one(message.is_text(), message.as_bytes().len());
        let sent = tables.deliver(self, turn, index, &SharedBytes::new(&frame), size);
        frame.shrink_to(FRAME_KEPT);
        tables.frame = frame;
        drop(guard);
        self.check_memory_if_grown(turn);
        sent
    }

    /// Sends a prepared message to a connection, on behalf of any caller.
    pub(crate) fn send_prepared(
        &self,
        turn: &mut Turn<'_>,
        id: ConnectionId,
        prepared: &Prepared,
    ) -> Result<(), SendError> {
        let mut guard = self.tables.borrow_mut();
        let tables = &mut *guard;
        let index = tables.conns.find(id).ok_or(SendError::Closed)?;
        tables.flush_for(self, index, turn);
        let frame = tables.prepared_frame(self, turn, index, prepared);
        let size = SentMessages::one(prepared.is_text(), prepared.as_bytes().len());
        let sent = tables.deliver(self, turn, index, &SharedBytes::of(frame), size);
        drop(guard);
        self.check_memory_if_grown(turn);
        sent
    }

    /// Delivers pending publications, here and to the other workers.
    pub(crate) fn flush(&self, turn: &mut Turn<'_>) {
        let mut tables = self.tables.borrow_mut();
        tables.flush(self, turn);
        tables.other_workers.forward(&self.options, &self.stats);
        drop(tables);
        self.check_memory_if_grown(turn);
    }

    /// Delivers pending publications if this connection is to get some of them, because its next
    /// output must not overtake them.
    pub(crate) fn flush_for(&self, index: u32, turn: &mut Turn<'_>) {
        let mut tables = self.tables.borrow_mut();
        tables.flush_for(self, index, turn);
    }
}

/// Bytes that io_uring may have in flight without counting as waiting.
const RING_ROOM: usize = 64 << 10;

/// Memory of a sent frame that is kept for the next one, in bytes.
const FRAME_KEPT: usize = 256 << 10;

impl Tables {
    /// Returns the form of a prepared message that a connection gets.
    pub(crate) fn prepared_frame<'p>(
        &mut self,
        state: &ServiceState,
        turn: &Turn<'_>,
        index: u32,
        prepared: &'p Prepared,
    ) -> &'p Arc<[u8]> {
        let takes_compressed = self.conns.entry(index).flags.any(ConnFlags::COMPRESSED);
        match &mut self.compressor {
            Some(compressor) if takes_compressed => {
                let frame =
                    prepared.compressed(|message, frame| compressor.compress(message, frame));
                state.note_compressed(turn, compressor);
                frame
            }
            _ => prepared.plain(),
        }
    }

    /// Adds a publication to the batch, which is delivered at the end of the turn at the latest.
    pub(crate) fn publish(
        &mut self,
        state: &Rc<ServiceState>,
        turn: &mut Turn<'_>,
        from: u32,
        name: &str,
        message: OutMessage<'_>,
    ) -> usize {
        let is_same =
            |topic: &u32| self.topics.topic(*topic).is_some_and(|topic| *topic.name == *name);
        let topic = self.batch_topic.filter(is_same).or_else(|| self.topics.find(name));
        let Some(topic) = topic else { return 0 };
        if self.batch_topic.is_some_and(|current| current != topic)
            || self.batch.is_full(message.frame_len())
        {
            self.flush(state, turn);
        }
        self.batch_topic = Some(topic);
        self.batch.push(message, from);
        state.set_pending(PendingOutput::BATCH);
        let mut receivers = self.topics.topic(topic).map_or(0, |topic| topic.subscribers.len());
        if from != NO_CONN {
            let entry = self.conns.entry(from);
            entry.flags.add(ConnFlags::PUBLISHED);
            receivers -= usize::from(self.topics.is_subscribed(entry.subscriptions, topic));
        }
        self.flush_later(state, turn);
        receivers
    }

    /// Gives a publication to the worker that owns its topic. Returns the number of connections of
    /// this service that will get it from there.
    #[cold]
    fn publish_by(
        &mut self,
        owner: u16,
        state: &Rc<ServiceState>,
        turn: &mut Turn<'_>,
        (from, name, message): (u32, &str, OutMessage<'_>),
    ) -> usize {
        let sender = (from != NO_CONN).then(|| self.conns.id(from));
        let (options, stats) = (&state.options, &state.stats);
        self.other_workers.publish_by(owner, name, (sender, &message), options, stats);
        self.flush_later(state, turn);
        let Some(topic) = self.topics.find(name) else { return 0 };
        let subscribers = self.topics.topic(topic).map_or(0, |topic| topic.subscribers.len());
        let is_left_out = from != NO_CONN
            && self.topics.is_subscribed(self.conns.entry(from).subscriptions, topic);
        subscribers - usize::from(is_left_out)
    }

    /// Schedules the delivery of the batch for the end of the turn.
    fn flush_later(&mut self, state: &Rc<ServiceState>, turn: &mut Turn<'_>) {
        if state.flush_deferred.replace(true) {
            return;
        }
        let later = Rc::clone(state);
        let flush = move |mut turn: Turn<'_>| {
            later.flush_deferred.set(false);
            later.flush(&mut turn);
        };
        if turn.defer(flush).is_err() {
            // The limit of deferred closures is reached.
            state.flush_deferred.set(false);
            self.flush(state, turn);
            self.other_workers.forward(&state.options, &state.stats);
        }
    }

    /// Delivers the batch.
    pub(crate) fn flush(&mut self, state: &ServiceState, turn: &mut Turn<'_>) {
        let Some(topic) = self.batch_topic else { return };
        let in_pass = state.in_pass.get();
        if let Some(entry) = self.conns.get_mut(in_pass) {
            entry.flags.add(ConnFlags::IN_PASS);
        }
        let Self {
            conns, topics, batch, compressor, backlogs, reentrant_output, frame_cache, ..
        } = self;
        if let Some(topic) = topics.topic(topic) {
            let takes_compressed = |conns: &mut ConnTable, index: u32| {
                conns.entry(index).flags.any(ConnFlags::COMPRESSED)
            };
            if let Some(compressor) = compressor {
                if topic
                    .subscribers
                    .iter()
                    .any(|subscriber| takes_compressed(conns, subscriber.index))
                {
                    batch.compress(compressor);
                    state.note_compressed(turn, compressor);
                }
            }
            let (plain, compressed) =
                (SharedBytes::new(batch.plain()), SharedBytes::new(batch.compressed()));
            let has_fast_path = batch.plain().len() <= state.options.receiver_buffer_max;
            let (mut fast_count, mut fast_bytes) = (0_u64, 0_u64);
            let sent_before = state.stats.messages_sent.get();
            let delivery = &mut Delivery { state, backlogs, reentrant_output, frame_cache };
            for subscriber in &topic.subscribers {
                let entry = conns.entry(subscriber.index);
                if entry.flags.allows_direct_write() && has_fast_path {
                    let frames =
                        if entry.flags.any(ConnFlags::COMPRESSED) { &compressed } else { &plain };
                    let Ok(mut stream) = turn.stream(entry.stream) else { continue };
                    if stream.buffered() > 0 {
                        delivery.deliver_batch(turn, entry, subscriber.index, batch, frames);
                        continue;
                    }
                    fast_count += 1;
                    fast_bytes += frames.bytes().len() as u64;
                    match stream.write_shared(frames) {
                        Ok(0) => {}
                        written => note_waiting(state, entry, &mut stream, written.unwrap_or(0)),
                    }
                } else {
                    let frames =
                        if entry.flags.any(ConnFlags::COMPRESSED) { &compressed } else { &plain };
                    delivery.deliver_batch(turn, entry, subscriber.index, batch, frames);
                }
            }
            state.stats.note_sent(batch.totals(), fast_count);
            state.stats.wire_sent.add(fast_bytes);
            topic.note_delivered(state.stats.messages_sent.get().wrapping_sub(sent_before));
        }
        if let Some(entry) = self.conns.get_mut(in_pass) {
            entry.flags.clear(ConnFlags::IN_PASS);
        }
        self.discard_batch(state);
    }

    /// Sends one frame to a connection that accepts messages.
    pub(crate) fn deliver(
        &mut self,
        state: &ServiceState,
        turn: &mut Turn<'_>,
        index: u32,
        frame: &SharedBytes<'_>,
        sent: SentMessages,
    ) -> Result<(), SendError> {
        let Self { conns, backlogs, reentrant_output, frame_cache, .. } = self;
        let entry = conns.entry(index);
        let is_in_pass = state.in_pass.get() == index;
        Delivery { state, backlogs, reentrant_output, frame_cache }
            .deliver_frame(turn, entry, index, frame, sent, is_in_pass)
    }

    pub(crate) fn discard_batch(&mut self, state: &ServiceState) {
        for from in self.batch.publisher_conns() {
            if let Some(entry) = self.conns.get_mut(from) {
                entry.flags.clear(ConnFlags::PUBLISHED);
            }
        }
        self.batch.clear();
        self.frame_cache.iter_mut().for_each(Vec::clear);
        self.batch_topic = None;
        state.clear_pending(PendingOutput::BATCH);
    }

    pub(crate) fn flush_for(&mut self, state: &ServiceState, index: u32, turn: &mut Turn<'_>) {
        let first = self.conns.entry(index).subscriptions;
        if self.batch_topic.is_some_and(|topic| self.topics.is_subscribed(first, topic)) {
            self.flush(state, turn);
        }
    }
}

/// Returns the number of bytes that wait for a receiver before more are added. If the sum exceeds
/// `max`, output that was only collected in this turn is written first, because it does not wait
/// for the receiver.
pub(crate) fn waiting_bytes(stream: &mut Stream<'_>, more: usize, max: usize) -> usize {
    let waiting = stream.buffered();
    if waiting == 0 || waiting.saturating_add(more) <= max {
        return waiting;
    }
    // A failed stream reports its end separately.
    stream.write_shared(&SharedBytes::new(&[])).unwrap_or(waiting)
}

/// Notes that output from others waits for a connection. A failed stream is closed by its handler.
#[cold]
fn note_waiting(
    state: &ServiceState,
    entry: &mut ConnEntry,
    stream: &mut Stream<'_>,
    waiting: usize,
) {
    entry.flags.add(ConnFlags::LAGGING);
    state.memory.has_grown.set(true);
    if waiting > state.bounds.high_watermark {
        // The connection's own responses might not fit in addition. Its handler runs in the next
        // turn, and resumes reading if there is room.
        stream.pause();
        stream.notify();
    }
}

impl Delivery<'_> {
    /// Number of bytes that may wait in the stream itself. Messages there cannot be dropped any
    /// more. If the policy drops the oldest messages, the stream gets half of the buffer, or one
    /// message.
    fn stream_max(&self, waiting: usize) -> usize {
        let max = self.state.options.receiver_buffer_max;
        if self.state.options.slow == SlowConsumerPolicy::DropOldest && waiting > 0 {
            max / 2
        } else {
            max
        }
    }

    /// Delivers a batch of publications to a receiver that needs special handling.
    #[cold]
    fn deliver_batch(
        &mut self,
        turn: &mut Turn<'_>,
        entry: &mut ConnEntry,
        index: u32,
        batch: &PublishBatch,
        frames: &SharedBytes<'_>,
    ) {
        if !entry.flags.takes_messages() {
            return;
        }
        let is_compressed = entry.flags.any(ConnFlags::COMPRESSED);
        let is_in_pass = entry.flags.any(ConnFlags::IN_PASS);
        let is_whole = !entry.flags.any(ConnFlags::PUBLISHED | ConnFlags::BACKLOG) && !is_in_pass;
        if is_whole {
            let Ok(mut stream) = turn.stream(entry.stream) else { return };
            let len = frames.bytes().len();
            let waiting = waiting_bytes(&mut stream, len, self.stream_max(1));
            if waiting.saturating_add(len) <= self.stream_max(waiting) {
                self.state.stats.note_sent(batch.totals(), 1);
                self.state.stats.wire_sent.add(len as u64);
                match stream.write_shared(frames) {
                    Ok(0) => entry.flags.clear(ConnFlags::LAGGING),
                    written => note_waiting(self.state, entry, &mut stream, written.unwrap_or(0)),
                }
                return;
            }
        }
        let messages = batch.publishers().zip(batch.each());
        for (at, (frame, (from, sent))) in
            batch.frames(is_compressed, NO_CONN).zip(messages).enumerate()
        {
            if from == index {
                continue;
            }
            let cached = self.frame_cache[usize::from(is_compressed)]
                .get(at)
                .and_then(Option::as_ref)
                .map(Arc::clone);
            let shared = cached.as_ref().map_or_else(|| SharedBytes::new(frame), SharedBytes::of);
            // A rejected frame is counted.
            let _ = self.deliver_frame(turn, entry, index, &shared, sent, is_in_pass);
            if cached.is_none() && shared.is_kept() {
                let cache = &mut self.frame_cache[usize::from(is_compressed)];
                cache.resize(batch.len(), None);
                cache[at] = Some(shared.to_arc());
            }
        }
    }

    /// Delivers one frame.
    fn deliver_frame(
        &mut self,
        turn: &mut Turn<'_>,
        entry: &mut ConnEntry,
        index: u32,
        frame: &SharedBytes<'_>,
        sent: SentMessages,
        is_in_pass: bool,
    ) -> Result<(), SendError> {
        if !entry.flags.takes_messages() {
            return Err(SendError::Closed);
        }
        let mut stream = turn.stream(entry.stream).map_err(|_| SendError::Closed)?;
        let state = self.state;
        let max = state.options.receiver_buffer_max;
        let len = frame.bytes().len();
        let mut waiting = waiting_bytes(&mut stream, len, self.stream_max(1));
        if is_in_pass {
            waiting += self.reentrant_output.len() + state.in_pass_output.get() as usize;
        }
        let has_backlog = entry.flags.any(ConnFlags::BACKLOG);
        let exceeds_max = waiting.saturating_add(len) > max;
        if !exceeds_max && (has_backlog || waiting + len > self.stream_max(waiting)) {
            self.backlogs.push(index, frame.to_arc(), sent);
            state.stats.dropped.add(self.backlogs.shrink(index, max - waiting));
            state.memory.has_grown.set(true);
            if !has_backlog {
                entry.flags.add(ConnFlags::BACKLOG);
                state.set_pending(PendingOutput::BACKLOG);
                stream.notify();
            }
            return Ok(());
        }
        if exceeds_max {
            state.stats.dropped.add(1);
            if state.options.slow == SlowConsumerPolicy::Evict {
                state.stats.evicted.add(1);
                entry.flags.add(ConnFlags::WANTS_EVICTION);
                stream.notify();
            }
            return Err(SendError::Full);
        }
        state.stats.note_sent(sent, 1);
        if is_in_pass {
            self.reentrant_output.extend_from_slice(frame.bytes());
            state.set_pending(PendingOutput::REENTRANT);
            return Ok(());
        }
        state.stats.wire_sent.add(len as u64);
        // It is written at the end of the turn, with later messages to the same connection.
        stream.send_shared(frame).map_err(|_| SendError::Closed)?;
        debug_assert!(
            stream.buffered() <= max + RING_ROOM,
            "{} bytes of {max} wait",
            stream.buffered()
        );
        let now = stream.buffered();
        if waiting > 0 || now > state.bounds.high_watermark {
            note_waiting(state, entry, &mut stream, now);
        }
        Ok(())
    }
}
