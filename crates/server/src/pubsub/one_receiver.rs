//! Delivery to one receiver that needs special handling: it is slow, has published itself, or is in
//! a pass.

use std::sync::Arc;

use windlass::{
    Turn,
    stream::{SharedBytes, Stream},
};

use super::{backlog::Backlogs, publish_batch::PublishBatch};
use crate::{
    api::{NO_CONN, SendError, SentMessages, SlowConsumerPolicy},
    shared::{PendingOutput, Shared},
    table::{ConnEntry, ConnFlags},
};

/// Copies of plain or of compressed frames, by their position in the batch.
pub(super) type FrameCache = Vec<Option<Arc<[u8]>>>;

/// What a delivery to one receiver needs off the fast path.
pub(super) struct OneReceiver<'b> {
    pub(super) shared: &'b Shared,
    pub(super) backlogs: &'b mut Backlogs,
    pub(super) reentrant_output: &'b mut Vec<u8>,
    pub(super) frame_cache: &'b mut [FrameCache; 2],
}

/// Bytes that io_uring may have in flight without counting as waiting.
const RING_ROOM: usize = 64 << 10;

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
pub(super) fn note_waiting(
    shared: &Shared,
    entry: &mut ConnEntry,
    stream: &mut Stream<'_>,
    waiting: usize,
) {
    entry.flags.add(ConnFlags::LAGGING);
    shared.memory.note_growth();
    if waiting > shared.bounds.high_watermark {
        // The connection's own responses might not fit in addition. Its handler runs in the next
        // turn, and resumes reading if there is room.
        stream.pause();
        stream.notify();
    }
}

impl OneReceiver<'_> {
    /// Number of bytes that may wait in the stream itself. Messages there cannot be dropped any
    /// more. If the policy drops the oldest messages, the stream gets half of the buffer, or one
    /// message.
    fn stream_max(&self, waiting: usize) -> usize {
        let max = self.shared.options.receiver_buffer_max;
        if self.shared.options.slow == SlowConsumerPolicy::DropOldest && waiting > 0 {
            max / 2
        } else {
            max
        }
    }

    /// Delivers a batch of publications to a receiver that needs special handling.
    #[cold]
    pub(super) fn deliver_batch(
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
        if is_whole && !self.shared.memory.is_spent(turn) {
            let Ok(mut stream) = turn.stream(entry.stream) else { return };
            let len = frames.bytes().len();
            let waiting = waiting_bytes(&mut stream, len, self.stream_max(1));
            if waiting.saturating_add(len) <= self.stream_max(waiting) {
                self.shared.stats.note_sent(batch.totals(), 1);
                self.shared.stats.wire_sent.add(len as u64);
                match stream.write_shared(frames) {
                    Ok(0) => entry.flags.clear(ConnFlags::LAGGING),
                    written => note_waiting(self.shared, entry, &mut stream, written.unwrap_or(0)),
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
    pub(super) fn deliver_frame(
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
        let shared = self.shared;
        let is_spent = shared.memory.is_spent(turn);
        let mut stream = turn.stream(entry.stream).map_err(|_| SendError::Closed)?;
        let max = shared.options.receiver_buffer_max;
        let len = frame.bytes().len();
        let mut waiting = if is_spent {
            // Only what the kernel does not take waits for the receiver.
            waiting_bytes(&mut stream, usize::MAX, 0)
        } else {
            waiting_bytes(&mut stream, len, self.stream_max(1))
        };
        // A receiver for which nothing waits adds little, and a backlog only its place.
        let is_spent = is_spent && waiting > 0;
        if is_in_pass {
            waiting += self.reentrant_output.len() + shared.pass.output();
        }
        let has_backlog = entry.flags.any(ConnFlags::BACKLOG);
        let uses_backlog = shared.options.slow == SlowConsumerPolicy::DropOldest;
        let is_full = waiting.saturating_add(len) > max;
        let exceeds_max = is_full || is_spent && !uses_backlog;
        if !exceeds_max && (has_backlog || is_spent || waiting + len > self.stream_max(waiting)) {
            self.backlogs.push(index, frame.to_arc(), sent);
            shared.stats.dropped.add(self.backlogs.shrink(index, max - waiting));
            shared.memory.note_growth();
            if !has_backlog {
                entry.flags.add(ConnFlags::BACKLOG);
                shared.pass.set_pending(PendingOutput::BACKLOG);
                stream.notify();
            }
            return Ok(());
        }
        if exceeds_max {
            shared.stats.dropped.add(1);
            if shared.options.slow == SlowConsumerPolicy::Evict {
                // It would miss a message, whichever the reason.
                shared.stats.evicted.add(1);
                shared.stats.evicted_for_memory.add(u64::from(!is_full));
                entry.flags.add(ConnFlags::WANTS_EVICTION);
                stream.notify();
            }
            return Err(SendError::Full);
        }
        shared.stats.note_sent(sent, 1);
        if is_in_pass {
            self.reentrant_output.extend_from_slice(frame.bytes());
            shared.pass.set_pending(PendingOutput::REENTRANT);
            return Ok(());
        }
        shared.stats.wire_sent.add(len as u64);
        // It is written at the end of the turn, with later messages to the same connection.
        stream.send_shared(frame).map_err(|_| SendError::Closed)?;
        debug_assert!(
            stream.buffered() <= max + RING_ROOM,
            "{} bytes of {max} wait",
            stream.buffered()
        );
        let now = stream.buffered();
        shared.memory.note_growth();
        if waiting > 0 || now > shared.bounds.high_watermark {
            note_waiting(shared, entry, &mut stream, now);
        }
        Ok(())
    }
}
