//! The backlog: messages for slow receivers, stored apart so that the oldest can be dropped
//! ([`SlowConsumerPolicy::DropOldest`](crate::SlowConsumerPolicy::DropOldest)).

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

/// Cost of a message beside its bytes: its slot in the queue, and the counters of the `Arc`.
const PLACE: usize = 32;

/// The waiting messages of one receiver.
#[derive(Default)]
struct Side {
    frames: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

/// All receivers with waiting messages, by their places in the roster.
#[derive(Default)]
pub(crate) struct Sides {
    rows: BTreeMap<u32, Side>,
    /// Number of receivers that wait for the frame at an address. The address stays unique as long
    /// as one waits.
    shared: BTreeMap<usize, usize>,
    /// Memory of all waiting messages in bytes, shared with other users of the counter. A frame
    /// counts once, for any number of receivers.
    count: Rc<Cell<usize>>,
}

fn address(frame: &Arc<[u8]>) -> usize {
    Arc::as_ptr(frame).cast::<u8>().addr()
}

impl Sides {
    /// Creates a backlog that adds to this counter.
    pub(crate) fn new(count: &Rc<Cell<usize>>) -> Self {
        Self { count: Rc::clone(count), ..Self::default() }
    }

    /// Bytes that wait for a receiver.
    pub(crate) fn bytes(&self, member: u32) -> usize {
        self.rows.get(&member).map_or(0, |side| side.bytes)
    }

    /// Memory used for a receiver.
    pub(crate) fn memory(&self, member: u32) -> usize {
        let part = |frame: &Arc<[u8]>| {
            PLACE + frame.len() / self.shared.get(&address(frame)).map_or(1, |count| *count)
        };
        self.rows.get(&member).map_or(0, |side| side.frames.iter().map(part).sum())
    }

    pub(crate) fn push(&mut self, member: u32, frame: Arc<[u8]>) {
        let receivers = self.shared.entry(address(&frame)).or_insert(0);
        *receivers += 1;
        let bytes = if *receivers == 1 { frame.len() } else { 0 };
        self.count.set(self.count.get() + PLACE + bytes);
        let side = self.rows.entry(member).or_default();
        side.bytes += frame.len();
        side.frames.push_back(frame);
    }

    /// Drops a receiver's oldest messages until at most `bytes_max` are left, but never the newest
    /// message. Returns the number dropped.
    pub(crate) fn shrink(&mut self, member: u32, bytes_max: usize) -> u64 {
        let mut dropped = 0;
        while self
            .rows
            .get(&member)
            .is_some_and(|side| side.bytes > bytes_max && side.frames.len() > 1)
        {
            dropped += u64::from(self.pop(member).is_some());
        }
        dropped
    }

    /// Length of a receiver's oldest message.
    pub(crate) fn next_len(&self, member: u32) -> Option<usize> {
        self.rows.get(&member)?.frames.front().map(|frame| frame.len())
    }

    /// Removes a receiver's oldest message.
    pub(crate) fn pop(&mut self, member: u32) -> Option<Arc<[u8]>> {
        let side = self.rows.get_mut(&member)?;
        let frame = side.frames.pop_front()?;
        side.bytes -= frame.len();
        self.release(&frame);
        Some(frame)
    }

    fn release(&mut self, frame: &Arc<[u8]>) {
        let mut bytes = PLACE;
        if let Some(receivers) = self.shared.get_mut(&address(frame)) {
            *receivers -= 1;
            if *receivers == 0 {
                self.shared.remove(&address(frame));
                bytes += frame.len();
            }
        }
        self.count.set(self.count.get().saturating_sub(bytes));
    }

    /// Returns whether nothing waits for a receiver.
    pub(crate) fn is_empty(&self, member: u32) -> bool {
        self.rows.get(&member).is_none_or(|side| side.frames.is_empty())
    }

    /// Removes a receiver. Returns true if no receiver is left.
    pub(crate) fn remove(&mut self, member: u32) -> bool {
        while self.pop(member).is_some() {}
        self.rows.remove(&member).is_some() && self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_the_newest_stays() {
        let mut sides = Sides::default();
        for len in [10, 20, 30] {
            sides.push(7, vec![0; len].into());
        }
        assert_eq!(sides.shrink(7, 60), 0);
        assert_eq!((sides.shrink(7, 49), sides.bytes(7)), (2, 30));
        assert_eq!(
            (sides.shrink(7, 0), sides.bytes(7)),
            (0, 30),
            "the newest stays, however long it is"
        );
        assert_eq!(sides.pop(7).map(|frame| frame.len()), Some(30));
        assert!(sides.is_empty(7) && sides.bytes(7) == 0);
        assert!(sides.remove(7));
        assert_eq!(sides.count.get(), 0);
    }

    #[test]
    fn what_waits_for_many_counts_once() {
        let count = Rc::new(Cell::new(5));
        let mut sides = Sides::new(&count);
        let frame: Arc<[u8]> = vec![0; 1000].into();
        for member in 0..4 {
            sides.push(member, Arc::clone(&frame));
        }
        assert_eq!((count.get(), sides.memory(0)), (5 + 1000 + 4 * PLACE, 250 + PLACE));
        sides.pop(0);
        assert!(!sides.remove(1) && !sides.remove(2));
        assert_eq!(count.get(), 5 + 1000 + PLACE);
        assert!(!sides.remove(3), "the first has a row still, though an empty one");
        assert_eq!(count.get(), 5);
    }
}
