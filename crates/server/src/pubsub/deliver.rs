//! Delivery of messages that others send to connections, by ID and by topic.
//!
//! Frames for other connections are built without their engines: plain, or compressed by the
//! service's compressor for connections that agreed to independently compressed messages. So the
//! frames go to the stream directly, and the receiver's own state is not touched.

use std::sync::Arc;

use windlass::{
    Turn,
    stream::{SharedBytes, Stream},
};

use super::{
    backlog::Backlogs,
    compressor::FrameCompressor,
    one_receiver::{FrameCache, OneReceiver, note_waiting},
    publish_batch::PublishBatch,
    topics::Topics,
};
use crate::{
    api::{NO_CONN, OutMessage, PASS_OUTPUT_MAX, Prepared, SendError, SentMessages, TopicName},
    mailbox::{ForwardedBatch, OtherWorkers},
    shared::{PendingOutput, Shared},
    table::{ConnFlags, ConnTable},
};

/// The topics of a service, and the messages on their way to its connections and to the other
/// workers. It is given the connections.
pub(crate) struct Delivery {
    topics: Topics,
    batch: PublishBatch,
    /// The topic of the batch, while it is not empty.
    batch_topic: Option<u32>,
    /// A closure that delivers the batch waits for the end of the turn.
    is_flush_scheduled: bool,
    /// Frames for the connection that is in a pass.
    reentrant_output: Vec<u8>,
    backlogs: Backlogs,
    /// Copies of the batch's frames that wait for receivers; later receivers share them.
    frame_cache: [FrameCache; 2],
    compressor: Option<FrameCompressor>,
    /// Reusable memory for one frame.
    frame: Vec<u8>,
    /// The services of the other workers.
    other_workers: OtherWorkers,
}

/// Memory of a sent frame that is kept for the next one, in bytes.
const FRAME_KEPT: usize = 256 << 10;

impl Delivery {
    pub(crate) fn new(shared: &Shared, other_workers: OtherWorkers) -> Self {
        let node = other_workers.node().map(|(node, worker)| (Arc::clone(node), worker));
        let memory = shared.memory.outside_streams();
        Self {
            topics: Topics::new(node, memory),
            batch: PublishBatch::default(),
            batch_topic: None,
            is_flush_scheduled: false,
            reentrant_output: Vec::new(),
            backlogs: Backlogs::new(memory),
            frame_cache: Default::default(),
            compressor: shared.options.deflate.as_ref().map(FrameCompressor::new),
            frame: Vec::new(),
            other_workers,
        }
    }

    pub(crate) fn topics(&self) -> &Topics {
        &self.topics
    }

    pub(crate) fn other_workers(&self) -> &OtherWorkers {
        &self.other_workers
    }

    /// Returns whether a topic has one owner among the workers.
    pub(crate) fn is_ordered(&self, topic: &str) -> bool {
        self.other_workers.is_ordered(topic)
    }

    /// Memory that waits in the backlog of a connection.
    pub(crate) fn backlog_memory(&self, index: u32) -> usize {
        self.backlogs.memory(index)
    }

    /// Bytes that wait in the backlog of a connection.
    pub(crate) fn backlog_bytes(&self, index: u32) -> usize {
        self.backlogs.bytes(index)
    }

    /// Publishes to a topic, here and on the other workers. `from` does not get the message, unless
    /// it is [`NO_CONN`]. Returns the number of receivers here.
    #[inline]
    pub(crate) fn publish(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        from: u32,
        name: &str,
        message: OutMessage<'_>,
    ) -> usize {
        shared.stats.published.add(1);
        if !self.other_workers.is_empty() {
            if let Some(owner) = self.other_workers.owner_elsewhere(name) {
                return self.publish_by(owner, conns, shared, from, name, message);
            }
            self.other_workers.publish(name, &message, &shared.options, &shared.stats);
        }
        self.publish_here(conns, shared, turn, from, name, message)
    }

    /// Adds a publication to the batch, which is delivered at the end of the turn at the latest, if
    /// the caller [schedules](Self::schedule_flush) that.
    #[inline]
    pub(crate) fn publish_here(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
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
            self.flush(conns, shared, turn);
        }
        self.batch_topic = Some(topic);
        self.batch.push(message, from);
        shared.pass.set_pending(PendingOutput::BATCH);
        let mut receivers = self.topics.topic(topic).map_or(0, |topic| topic.subscribers.len());
        if from != NO_CONN {
            let entry = conns.entry(from);
            entry.flags.add(ConnFlags::PUBLISHED);
            receivers -= usize::from(self.topics.is_subscribed(entry.subscriptions, topic));
        }
        receivers
    }

    /// Gives a publication to the worker that owns its topic. Returns the number of connections of
    /// this service that will get it from there.
    #[cold]
    fn publish_by(
        &mut self,
        owner: u16,
        conns: &mut ConnTable,
        shared: &Shared,
        from: u32,
        name: &str,
        message: OutMessage<'_>,
    ) -> usize {
        let sender = (from != NO_CONN).then(|| conns.id(from));
        let (options, stats) = (&shared.options, &shared.stats);
        self.other_workers.publish_by(owner, name, (sender, &message), options, stats);
        let Some(topic) = self.topics.find(name) else { return 0 };
        let subscribers = self.topics.topic(topic).map_or(0, |topic| topic.subscribers.len());
        let is_left_out =
            from != NO_CONN && self.topics.is_subscribed(conns.entry(from).subscriptions, topic);
        subscribers - usize::from(is_left_out)
    }

    /// Publishes what another thread has published on every worker. Only one counts it.
    pub(crate) fn publish_of_sender(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        topic: &str,
        message: &Prepared,
    ) {
        if conns.is_first_worker() {
            shared.stats.published.add(1);
            let (options, stats) = (&shared.options, &shared.stats);
            self.other_workers.publish_to_nodes(topic, &message.to_out(), options, stats);
        }
        self.publish_here(conns, shared, turn, NO_CONN, topic, message.to_out());
    }

    /// Publishes what another worker has published to the connections of this one.
    pub(crate) fn publish_forwarded(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        batch: &ForwardedBatch,
    ) {
        for (sender, message) in batch.iter() {
            // If the sender is gone by now, all get the message.
            let from = sender.and_then(|id| conns.find(id)).unwrap_or(NO_CONN);
            self.publish_here(conns, shared, turn, from, &batch.topic, message);
        }
    }

    /// Passes on what another worker has published to a topic that this one owns.
    pub(crate) fn relay(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        batch: &Arc<ForwardedBatch>,
    ) {
        self.other_workers.relay(batch, &shared.options, &shared.stats);
        self.publish_forwarded(conns, shared, turn, batch);
    }

    /// Sends a message to a connection that accepts messages, on behalf of any caller.
    pub(crate) fn send(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        message: OutMessage<'_>,
    ) -> Result<(), SendError> {
        self.flush_for(conns, shared, turn, index);
        let mut frame = core::mem::take(&mut self.frame);
        frame.clear();
        let is_compressed = conns.entry(index).flags.any(ConnFlags::COMPRESSED)
            && self.compressor.as_mut().is_some_and(|compressor| {
                let is_compressed = compressor.compress(&message, &mut frame);
                shared.codec.note_compressed(turn, compressor.bytes(), &shared.stats);
                is_compressed
            });
        if !is_compressed {
            message.encode(&mut frame);
        }
        let size = SentMessages::one(message.is_text(), message.as_bytes().len());
        let sent = self.deliver(conns, shared, turn, index, (&SharedBytes::new(&frame), size));
        frame.shrink_to(FRAME_KEPT);
        self.frame = frame;
        sent
    }

    /// Sends a prepared message to a connection that accepts messages, on behalf of any caller.
    pub(crate) fn send_prepared(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        prepared: &Prepared,
    ) -> Result<(), SendError> {
        self.flush_for(conns, shared, turn, index);
        let frame = self.prepared_frame(conns, shared, turn, index, prepared);
        let size = SentMessages::one(prepared.is_text(), prepared.as_bytes().len());
        self.deliver(conns, shared, turn, index, (&SharedBytes::of(frame), size))
    }

    /// Returns the form of a prepared message that a connection gets.
    pub(crate) fn prepared_frame<'p>(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &Turn<'_>,
        index: u32,
        prepared: &'p Prepared,
    ) -> &'p Arc<[u8]> {
        let takes_compressed = conns.entry(index).flags.any(ConnFlags::COMPRESSED);
        match &mut self.compressor {
            Some(compressor) if takes_compressed => {
                let frame =
                    prepared.compressed(|message, frame| compressor.compress(message, frame));
                shared.codec.note_compressed(turn, compressor.bytes(), &shared.stats);
                frame
            }
            _ => prepared.plain(),
        }
    }

    /// Returns whether the caller must schedule a [flush](Self::flush_all) for the end of the turn:
    /// something waits, and none is scheduled.
    #[inline]
    pub(crate) fn schedule_flush(&mut self) -> bool {
        if self.is_flush_scheduled {
            return false;
        }
        self.is_flush_scheduled = self.batch_topic.is_some() || self.other_workers.has_batch();
        self.is_flush_scheduled
    }

    /// Delivers pending publications, here and to the other workers, at the end of a turn.
    pub(crate) fn flush_all(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
    ) {
        self.is_flush_scheduled = false;
        self.flush(conns, shared, turn);
        self.other_workers.forward(&shared.options, &shared.stats);
    }

    /// Delivers pending publications if this connection is to get some of them, because its next
    /// output must not overtake them.
    pub(crate) fn flush_for(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
    ) {
        let first = conns.entry(index).subscriptions;
        if self.batch_topic.is_some_and(|topic| self.topics.is_subscribed(first, topic)) {
            self.flush(conns, shared, turn);
        }
    }

    /// Delivers the batch.
    fn flush(&mut self, conns: &mut ConnTable, shared: &Shared, turn: &mut Turn<'_>) {
        let Some(topic) = self.batch_topic else { return };
        let in_pass = shared.pass.index();
        if let Some(entry) = conns.get_mut(in_pass) {
            entry.flags.add(ConnFlags::IN_PASS);
        }
        let Self { topics, batch, compressor, backlogs, reentrant_output, frame_cache, .. } = self;
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
                    shared.codec.note_compressed(turn, compressor.bytes(), &shared.stats);
                }
            }
            let (plain, compressed) =
                (SharedBytes::new(batch.plain()), SharedBytes::new(batch.compressed()));
            let has_fast_path = batch.plain().len() <= shared.options.receiver_buffer_max;
            let (mut fast_count, mut fast_bytes) = (0_u64, 0_u64);
            let sent_before = shared.stats.messages_sent.get();
            let delivery = &mut OneReceiver { shared, backlogs, reentrant_output, frame_cache };
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
                        written => note_waiting(shared, entry, &mut stream, written.unwrap_or(0)),
                    }
                } else {
                    let frames =
                        if entry.flags.any(ConnFlags::COMPRESSED) { &compressed } else { &plain };
                    delivery.deliver_batch(turn, entry, subscriber.index, batch, frames);
                }
            }
            shared.stats.note_sent(batch.totals(), fast_count);
            shared.stats.wire_sent.add(fast_bytes);
            topic.note_delivered(shared.stats.messages_sent.get().wrapping_sub(sent_before));
        }
        if let Some(entry) = conns.get_mut(in_pass) {
            entry.flags.clear(ConnFlags::IN_PASS);
        }
        self.discard_batch(conns, shared);
    }

    /// Sends one frame to a connection that accepts messages.
    fn deliver(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        (frame, sent): (&SharedBytes<'_>, SentMessages),
    ) -> Result<(), SendError> {
        let Self { backlogs, reentrant_output, frame_cache, .. } = self;
        let entry = conns.entry(index);
        let is_in_pass = shared.pass.index() == index;
        OneReceiver { shared, backlogs, reentrant_output, frame_cache }
            .deliver_frame(turn, entry, index, frame, sent, is_in_pass)
    }

    fn discard_batch(&mut self, conns: &mut ConnTable, shared: &Shared) {
        for from in self.batch.publisher_conns() {
            if let Some(entry) = conns.get_mut(from) {
                entry.flags.clear(ConnFlags::PUBLISHED);
            }
        }
        self.batch.clear();
        self.frame_cache.iter_mut().for_each(Vec::clear);
        self.batch_topic = None;
        shared.pass.clear_pending(PendingOutput::BATCH);
    }

    /// Subscribes a connection. It receives only what is published from here on. Returns false if
    /// it is subscribed already.
    pub(crate) fn subscribe(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        name: TopicName<'_>,
    ) -> bool {
        if self.batch_topic.is_some() && self.batch_topic == self.topics.find(name.text()) {
            self.flush(conns, shared, turn);
        }
        self.topics.subscribe(&mut conns.entry(index).subscriptions, index, name)
    }

    /// Ends a subscription, after what was published to it. Returns false if there is none.
    pub(crate) fn unsubscribe(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        turn: &mut Turn<'_>,
        index: u32,
        name: &str,
    ) -> bool {
        let Some(topic) = self.topics.find(name) else { return false };
        if self.batch_topic == Some(topic) {
            self.flush(conns, shared, turn);
        }
        self.topics.unsubscribe(&mut conns.entry(index).subscriptions, topic)
    }

    /// Ends all subscriptions of a connection.
    pub(crate) fn leave_topics(&mut self, conns: &mut ConnTable, shared: &Shared, index: u32) {
        self.topics.unsubscribe_all(&mut conns.entry(index).subscriptions);
        if self.batch_topic.is_some_and(|topic| self.topics.topic(topic).is_none()) {
            // The topic of the batch has no subscriber left.
            self.discard_batch(conns, shared);
        }
    }

    /// Takes the messages that wait in the backlog of a connection, and counts each as sent. The
    /// connection is about to send its Close frame, so they must go out now.
    pub(crate) fn take_backlog(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        index: u32,
    ) -> Vec<Arc<[u8]>> {
        let flags = &mut conns.entry(index).flags;
        if !flags.any(ConnFlags::BACKLOG) {
            return Vec::new();
        }
        flags.clear(ConnFlags::BACKLOG);
        let taken = core::iter::from_fn(|| self.backlogs.pop(index)).map(|message| {
            shared.stats.note_sent(message.sent(), 1);
            message.frame
        });
        let frames = taken.collect();
        self.drop_backlog(shared, index);
        frames
    }

    /// Drops the messages in the backlog of a connection.
    pub(crate) fn drop_backlog(&mut self, shared: &Shared, index: u32) {
        if self.backlogs.remove(index) {
            shared.pass.clear_pending(PendingOutput::BACKLOG);
        }
    }

    /// Sends messages from the backlog of a connection, as far as there is room.
    #[cold]
    pub(crate) fn refill_from_backlog(
        &mut self,
        conns: &mut ConnTable,
        shared: &Shared,
        stream: &mut Stream<'_>,
        index: u32,
    ) {
        if !conns.entry(index).flags.any(ConnFlags::BACKLOG) {
            return;
        }
        let half = shared.options.receiver_buffer_max / 2;
        // Messages in the stream cannot be dropped any more, so only about half of the buffer goes
        // there, or one message.
        let low = shared.bounds.high_watermark / 4;
        let fits = |waiting: usize, len: usize| waiting <= low || waiting + len <= half;
        while !stream.is_full()
            && self.backlogs.next_len(index).is_some_and(|len| fits(stream.buffered(), len))
        {
            let Some(message) = self.backlogs.pop(index) else { break };
            let frame = &message.frame;
            shared.stats.note_sent(message.sent(), 1);
            shared.stats.wire_sent.add(frame.len() as u64);
            if stream.send_shared(&SharedBytes::of(frame)).is_err() {
                break;
            }
        }
        let flags = &mut conns.entry(index).flags;
        if self.backlogs.is_empty(index) {
            flags.clear(ConnFlags::BACKLOG);
            self.drop_backlog(shared, index);
        } else if !flags.any(ConnFlags::FULL) && !stream.wait_for_low_mark() {
            // No other event would resume this.
            stream.notify();
        }
    }

    /// Hands over the messages that other connections have sent to the one that is in a pass.
    pub(crate) fn take_reentrant_output(&mut self, shared: &Shared, take: impl FnOnce(&[u8])) {
        shared.pass.clear_pending(PendingOutput::REENTRANT);
        take(&self.reentrant_output);
        self.reentrant_output.clear();
        self.reentrant_output.shrink_to(PASS_OUTPUT_MAX);
    }

    /// Frees reusable memory.
    pub(crate) fn release_spare_memory(&mut self) {
        if self.batch.is_empty() {
            self.batch = PublishBatch::default();
        }
        self.frame = Vec::new();
        if self.reentrant_output.is_empty() {
            self.reentrant_output = Vec::new();
        }
    }
}
