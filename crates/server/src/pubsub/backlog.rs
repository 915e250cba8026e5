//! The backlog: messages for slow receivers, stored apart so that the oldest can be dropped
//! ([`SlowConsumerPolicy::DropOldest`](crate::SlowConsumerPolicy::DropOldest)).

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use crate::api::SentMessages;

/// Cost of a message beside its bytes: its slot in the queue, and the counters of the `Arc`.
const MESSAGE_OVERHEAD: usize = 40;

/// A message that waits for one receiver.
pub(crate) struct BackloggedMessage {
    pub(crate) frame: Arc<[u8]>,
    /// Length of the payload before compression.
    len: u32,
    is_text: bool,
}

impl BackloggedMessage {
    pub(crate) fn sent(&self) -> SentMessages {
        SentMessages::one(self.is_text, self.len as usize)
    }
}

/// The waiting messages of one receiver.
#[derive(Default)]
struct Backlog {
    messages: VecDeque<BackloggedMessage>,
    bytes: usize,
}

/// All receivers with waiting messages, by their index in the connection table.
#[derive(Default)]
pub(crate) struct Backlogs {
    by_conn: BTreeMap<u32, Backlog>,
    /// Number of receivers that wait for the frame at an address. The address stays unique as long
    /// as one waits.
    receiver_counts: BTreeMap<usize, usize>,
    /// Memory of all waiting messages in bytes, shared with other users of the counter. A frame
    /// counts once, for any number of receivers.
    memory: Rc<Cell<usize>>,
}

fn address(frame: &Arc<[u8]>) -> usize {
    Arc::as_ptr(frame).cast::<u8>().addr()
}

impl Backlogs {
    /// Creates a backlog that adds to this counter.
    pub(crate) fn new(memory: &Rc<Cell<usize>>) -> Self {
        Self { memory: Rc::clone(memory), ..Self::default() }
    }

    /// Bytes that wait for a receiver.
    pub(crate) fn bytes(&self, index: u32) -> usize {
        self.by_conn.get(&index).map_or(0, |backlog| backlog.bytes)
    }

    /// Memory used for a receiver.
    pub(crate) fn memory(&self, index: u32) -> usize {
        let part = |frame: &Arc<[u8]>| {
            MESSAGE_OVERHEAD
                + frame.len() / self.receiver_counts.get(&address(frame)).map_or(1, |count| *count)
        };
        self.by_conn
            .get(&index)
            .map_or(0, |backlog| backlog.messages.iter().map(|message| part(&message.frame)).sum())
    }

    pub(crate) fn push(&mut self, index: u32, frame: Arc<[u8]>, sent: SentMessages) {
        let receivers = self.receiver_counts.entry(address(&frame)).or_insert(0);
        *receivers += 1;
        let bytes = if *receivers == 1 { frame.len() } else { 0 };
        self.memory.set(self.memory.get() + MESSAGE_OVERHEAD + bytes);
        let backlog = self.by_conn.entry(index).or_default();
        backlog.bytes += frame.len();
        // A message is shorter than 4 GiB, because the buffer of a receiver holds it.
        let (len, is_text) = (sent.bytes as u32, sent.text > 0);
        backlog.messages.push_back(BackloggedMessage { frame, len, is_text });
    }

    /// Drops a receiver's oldest messages until at most `bytes_max` are left, but never the newest
    /// message. Returns the number dropped.
    pub(crate) fn shrink(&mut self, index: u32, bytes_max: usize) -> u64 {
        let mut dropped = 0;
        while self
            .by_conn
            .get(&index)
            .is_some_and(|backlog| backlog.bytes > bytes_max && backlog.messages.len() > 1)
        {
            dropped += u64::from(self.pop(index).is_some());
        }
        dropped
    }

    /// Length of a receiver's oldest message.
    pub(crate) fn next_len(&self, index: u32) -> Option<usize> {
        self.by_conn.get(&index)?.messages.front().map(|message| message.frame.len())
    }

    /// Removes a receiver's oldest message.
    pub(crate) fn pop(&mut self, index: u32) -> Option<BackloggedMessage> {
        let backlog = self.by_conn.get_mut(&index)?;
        let message = backlog.messages.pop_front()?;
        backlog.bytes -= message.frame.len();
        self.release(&message.frame);
        Some(message)
    }

    fn release(&mut self, frame: &Arc<[u8]>) {
        let mut bytes = MESSAGE_OVERHEAD;
        if let Some(receivers) = self.receiver_counts.get_mut(&address(frame)) {
            *receivers -= 1;
            if *receivers == 0 {
                self.receiver_counts.remove(&address(frame));
                bytes += frame.len();
            }
        }
        self.memory.set(self.memory.get().saturating_sub(bytes));
    }

    /// Returns whether nothing waits for a receiver.
    pub(crate) fn is_empty(&self, index: u32) -> bool {
        self.by_conn.get(&index).is_none_or(|backlog| backlog.messages.is_empty())
    }

    /// Removes a receiver. Returns true if no receiver is left.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        while self.pop(index).is_some() {}
        self.by_conn.remove(&index).is_some() && self.by_conn.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrink_drops_the_oldest_and_keeps_the_newest() {
        let mut backlogs = Backlogs::default();
        for len in [10, 20, 30] {
            backlogs.push(7, vec![0; len].into(), SentMessages::one(false, len));
        }
        assert_eq!(backlogs.shrink(7, 60), 0);
        assert_eq!((backlogs.shrink(7, 49), backlogs.bytes(7)), (2, 30));
        assert_eq!(
            (backlogs.shrink(7, 0), backlogs.bytes(7)),
            (0, 30),
            "the newest stays, however long it is"
        );
        assert_eq!(backlogs.pop(7).map(|message| message.frame.len()), Some(30));
        assert!(backlogs.is_empty(7) && backlogs.bytes(7) == 0);
        assert!(backlogs.remove(7));
        assert_eq!(backlogs.memory.get(), 0);
    }

    #[test]
    fn a_frame_for_many_receivers_counts_once() {
        let memory = Rc::new(Cell::new(5));
        let mut backlogs = Backlogs::new(&memory);
        let frame: Arc<[u8]> = vec![0; 1000].into();
        for index in 0..4 {
            backlogs.push(index, Arc::clone(&frame), SentMessages::one(true, 1000));
        }
        assert_eq!(
            (memory.get(), backlogs.memory(0)),
            (5 + 1000 + 4 * MESSAGE_OVERHEAD, 250 + MESSAGE_OVERHEAD)
        );
        backlogs.pop(0);
        assert!(!backlogs.remove(1) && !backlogs.remove(2));
        assert_eq!(memory.get(), 5 + 1000 + MESSAGE_OVERHEAD);
        assert!(!backlogs.remove(3), "the first has a row still, though an empty one");
        assert_eq!(memory.get(), 5);
    }
}
