//! Output that waits in the backlog of a connection.

use std::sync::Arc;

use windlass::stream::{SharedBytes, Stream};

use super::state::{PendingOutput, ServiceState, Tables};
use crate::{pubsub::BackloggedMessage, table::ConnFlags};

impl ServiceState {
    /// Takes the messages that wait in the backlog of a connection, and counts each as sent. The
    /// connection is about to send its Close frame, so they must go out now.
    pub(crate) fn take_backlog(&self, index: u32) -> Vec<Arc<[u8]>> {
        let mut tables = self.tables.borrow_mut();
        if !tables.conns.entry(index).flags.any(ConnFlags::BACKLOG) {
            return Vec::new();
        }
        tables.conns.entry(index).flags.clear(ConnFlags::BACKLOG);
        let messages: Vec<_> = core::iter::from_fn(|| tables.backlogs.pop(index)).collect();
        self.remove_backlog(&mut tables, index);
        let count = |message: BackloggedMessage| {
            self.stats.note_sent(message.sent(), 1);
            message.frame
        };
        messages.into_iter().map(count).collect()
    }

    /// Drops the messages in the backlog of a connection.
    pub(crate) fn remove_backlog(&self, tables: &mut Tables, index: u32) {
        if tables.backlogs.remove(index) {
            self.clear_pending(PendingOutput::BACKLOG);
        }
    }

    /// Sends messages from the backlog of a connection, as far as there is room.
    #[cold]
    pub(crate) fn refill_from_backlog(&self, index: u32, stream: &mut Stream<'_>) {
        let tables = &mut *self.tables.borrow_mut();
        if !tables.conns.entry(index).flags.any(ConnFlags::BACKLOG) {
            return;
        }
        let half = self.options.receiver_buffer_max / 2;
        // Messages in the stream cannot be dropped any more, so only about half of the buffer goes
        // there, or one message.
        let low = self.bounds.high_watermark / 4;
        let fits = |waiting: usize, len: usize| waiting <= low || waiting + len <= half;
        while !stream.is_full()
            && tables.backlogs.next_len(index).is_some_and(|len| fits(stream.buffered(), len))
        {
            let Some(message) = tables.backlogs.pop(index) else { break };
            let frame = &message.frame;
            self.stats.note_sent(message.sent(), 1);
            self.stats.wire_sent.add(frame.len() as u64);
            if stream.send_shared(&SharedBytes::of(frame)).is_err() {
                break;
            }
        }
        let flags = &mut tables.conns.entry(index).flags;
        if tables.backlogs.is_empty(index) {
            flags.clear(ConnFlags::BACKLOG);
            self.remove_backlog(tables, index);
        } else if !flags.any(ConnFlags::FULL) && !stream.wait_for_low_mark() {
            // No other event would resume this.
            stream.notify();
        }
    }
}
