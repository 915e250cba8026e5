//! Messages for receivers that do not keep up, kept apart so that the oldest can be dropped ([`Slow::DropOldest`](crate::Slow::DropOldest)).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The messages of one receiver.
#[derive(Default)]
pub(crate) struct Side {
    frames: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Side {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, frame: Arc<[u8]>) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Drops the oldest until there are no more than so many bytes, but never the newest. Says how many that were.
    pub(crate) fn shrink(&mut self, bytes_max: usize) -> u64 {
        let mut dropped = 0;
        while self.bytes > bytes_max && self.frames.len() > 1 {
            let oldest = self.pop();
            dropped += u64::from(oldest.is_some());
        }
        dropped
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<[u8]>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// All receivers that have some, by their places in the roster.
#[derive(Default)]
pub(crate) struct Sides(BTreeMap<u32, Side>);

impl Sides {
    pub(crate) fn of(&mut self, member: u32) -> &mut Side {
        self.0.entry(member).or_default()
    }

    pub(crate) fn get(&mut self, member: u32) -> Option<&mut Side> {
        self.0.get_mut(&member)
    }

    pub(crate) fn bytes(&self, member: u32) -> usize {
        self.0.get(&member).map_or(0, Side::bytes)
    }

    /// Forgets a receiver. True when nobody has any now.
    pub(crate) fn remove(&mut self, member: u32) -> bool {
        self.0.remove(&member).is_some() && self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_the_newest_stays() {
        let mut side = Side::default();
        for len in [10, 20, 30] {
            side.push(vec![0; len].into());
        }
        assert_eq!(side.shrink(60), 0);
        assert_eq!((side.shrink(49), side.bytes()), (2, 30));
        assert_eq!((side.shrink(0), side.bytes()), (0, 30), "the newest stays, however long it is");
        assert_eq!(side.pop().map(|frame| frame.len()), Some(30));
        assert!(side.is_empty() && side.bytes() == 0);
    }
}
