//! A timing wheel in nanoseconds that finds the index due next.
//!
//! Eleven levels of 64 slots cover 64 bits. Compare a deadline with `elapsed` in groups of six
//! bits. The highest group that differs gives the level, and the group's value gives the slot. So
//! the lowest occupied slot of the lowest occupied level holds the next deadline. When time reaches
//! a slot of a higher level, its entries move down. Insert and remove are O(1). An entry moves down
//! at most ten times. An entry that is removed before it is due usually never moves.
//!
//! Equal deadlines always share a slot. Slots are lists in insertion order, and entries move down
//! in that order. Therefore due entries are ordered by deadline, then by insertion.
//!
//! Entries are indices that the caller assigns. The wheel keeps its links in an array by index, so
//! no entry needs an allocation once the array has grown.

use crate::util::arena::reserve_one;

const GROUP_BITS: u32 = 6;
const SLOTS: usize = 1 << GROUP_BITS;
const LEVELS: usize = 11;
const NONE: u32 = u32::MAX;
/// `Node::place` of an index that is not in the wheel.
const NOWHERE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    deadline: u64,
    prev: u32,
    next: u32,
    /// Level and slot, as one number.
    place: u16,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    head: u32,
    tail: u32,
    /// No entry is due earlier. Exact unless the earliest entry was removed.
    earliest: u64,
}

const EMPTY: Slot = Slot { head: NONE, tail: NONE, earliest: u64::MAX };

/// The wheel. Times are nanoseconds since any fixed moment, up to `u64::MAX`.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Every deadline in the wheel is equal to or later than this.
    elapsed: u64,
    nodes: Vec<Node>,
    /// One bit per slot: set if the slot is occupied.
    occupied: [u64; LEVELS],
    /// Empty until the first insert, so a reactor without timers needs no memory for the table.
    slots: Vec<Slot>,
    len: usize,
}

impl Wheel {
    pub(crate) const fn new() -> Self {
        Self { elapsed: 0, nodes: Vec::new(), occupied: [0; LEVELS], slots: Vec::new(), len: 0 }
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether an index is in the wheel.
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.nodes.get(index as usize).is_some_and(|node| node.place != NOWHERE)
    }

    fn place(&self, deadline: u64) -> (usize, usize) {
        let differing = deadline ^ self.elapsed;
        let level = (u64::BITS - 1).saturating_sub(differing.leading_zeros()) / GROUP_BITS;
        let slot = deadline >> (level * GROUP_BITS) & (SLOTS as u64 - 1);
        (level as usize, usize::try_from(slot).unwrap_or(0))
    }

    /// Adds an index that is not in the wheel. A deadline earlier than `elapsed` is replaced by
    /// `elapsed`.
    pub(crate) fn insert(&mut self, index: u32, deadline: u64) {
        if self.slots.is_empty() {
            self.slots.resize(LEVELS * SLOTS, EMPTY);
        }
        while self.nodes.len() <= index as usize {
            reserve_one(&mut self.nodes);
            self.nodes.push(Node { deadline: 0, prev: NONE, next: NONE, place: NOWHERE });
        }
        debug_assert_eq!(self.nodes[index as usize].place, NOWHERE, "inserted twice");
        self.len += 1;
        self.link(index, deadline.max(self.elapsed));
    }

    fn link(&mut self, index: u32, deadline: u64) {
        let (level, slot) = self.place(deadline);
        let place = level * SLOTS + slot;
        self.occupied[level] |= 1 << slot;
        let list = &mut self.slots[place];
        let prev = list.tail;
        list.tail = index;
        list.earliest = list.earliest.min(deadline);
        if prev == NONE {
            list.head = index;
        } else {
            self.nodes[prev as usize].next = index;
        }
        let place = u16::try_from(place).unwrap_or(NOWHERE);
        self.nodes[index as usize] = Node { deadline, prev, next: NONE, place };
    }

    /// Removes an index. True if it was in the wheel.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let Some(&Node { prev, next, place, .. }) = self.nodes.get(index as usize) else {
            return false;
        };
        if place == NOWHERE {
            return false;
        }
        self.len -= 1;
        self.nodes[index as usize].place = NOWHERE;
        let place = place as usize;
        if prev == NONE {
            self.slots[place].head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NONE {
            self.slots[place].tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        if self.slots[place].head == NONE {
            self.slots[place] = EMPTY;
            self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
        }
        true
    }

    /// The first occupied level and slot.
    fn first(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// An instant before which nothing is due: the next deadline, or an earlier instant if the next
    /// one was removed.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let (level, slot) = self.first()?;
        Some(self.slots[level * SLOTS + slot].earliest)
    }

    /// Moves entries down until the first one is on the lowest level, or starts after `now`. `now`
    /// must not decrease between calls.
    pub(crate) fn advance(&mut self, now: u64) {
        while let Some((level, slot)) = self.first() {
            let start = self.start_of(level, slot);
            if start > now {
                break;
            }
            // Nothing is due before the first slot's start.
            self.elapsed = start;
            if level == 0 {
                return;
            }
            self.move_down(level * SLOTS + slot);
        }
        // The remaining entries start after `now`, so their places are the same relative to `now`.
        self.elapsed = self.elapsed.max(now);
    }

    /// Takes the first entry due at `now`, with its deadline. `now` must not decrease between
    /// calls.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u32, u64)> {
        loop {
            let (level, slot) = self.first()?;
            let start = self.start_of(level, slot);
            if start > now {
                // The remaining entries start after `now`, so their places are the same relative to
                // `now`.
                self.elapsed = self.elapsed.max(now);
                return None;
            }
            self.elapsed = start;
            let place = level * SLOTS + slot;
            let Slot { head, tail, .. } = self.slots[place];
            // All entries of a slot on the lowest level have the same deadline. A single due entry
            // need not move down first.
            if level == 0 || head == tail {
                let deadline = self.nodes[head as usize].deadline;
                if deadline <= now {
                    self.remove(head);
                    return Some((head, deadline));
                }
            }
            self.move_down(place);
        }
    }

    fn start_of(&self, level: usize, slot: usize) -> u64 {
        let shift = u32::try_from(level).unwrap_or(0) * GROUP_BITS;
        // The groups above the level come from `elapsed`. The last level has none above it.
        let above = u64::MAX.checked_shl(shift + GROUP_BITS).unwrap_or(0) & self.elapsed;
        above | (slot as u64) << shift
    }

    fn move_down(&mut self, place: usize) {
        let mut index = self.slots[place].head;
        self.slots[place] = EMPTY;
        self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
        while index != NONE {
            let Node { next, deadline, .. } = self.nodes[index as usize];
            self.link(index, deadline);
            index = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_due_comes_by_deadline_then_by_insertion() {
        let mut wheel = Wheel::new();
        for (index, deadline) in [(0, 500), (1, 100), (2, 1 << 40), (3, 100), (4, u64::MAX), (5, 0)]
        {
            wheel.insert(index, deadline);
        }
        assert_eq!(wheel.next_deadline(), Some(0));
        let mut fired = Vec::new();
        while let Some(due) = wheel.pop_due(500) {
            fired.push(due);
        }
        assert_eq!(fired, [(5, 0), (1, 100), (3, 100), (0, 500)]);
        assert_eq!(wheel.next_deadline(), Some(1 << 40));
        assert_eq!(wheel.pop_due(u64::MAX), Some((2, 1 << 40)));
        assert_eq!(wheel.pop_due(u64::MAX), Some((4, u64::MAX)));
        assert_eq!((wheel.pop_due(u64::MAX), wheel.len()), (None, 0));
    }

    #[test]
    fn an_equal_deadline_inserted_when_the_first_has_moved_down_comes_second() {
        let mut wheel = Wheel::new();
        wheel.insert(0, 1_000_000);
        wheel.insert(1, 999_990);
        assert_eq!(wheel.pop_due(999_995), Some((1, 999_990)));
        assert_eq!(wheel.pop_due(999_995), None);
        wheel.insert(2, 1_000_000);
        assert_eq!(wheel.pop_due(2_000_000), Some((0, 1_000_000)));
        assert_eq!(wheel.pop_due(2_000_000), Some((2, 1_000_000)));
    }

    #[test]
    fn removing_twice_or_what_was_never_in_does_nothing() {
        let mut wheel = Wheel::new();
        wheel.insert(3, 10);
        assert!(!wheel.remove(7));
        assert!(wheel.remove(3));
        assert!(!wheel.remove(3));
        assert_eq!((wheel.next_deadline(), wheel.len()), (None, 0));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64),
        Remove(usize),
        Advance(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        // Distances of every magnitude, to use every level.
        let distance = (0u32..63, any::<u64>())
            .prop_map(|(bits, x)| x & ((1u64 << bits) | ((1u64 << bits) - 1)));
        prop_oneof![
            4 => distance.clone().prop_map(Op::Insert),
            2 => any::<usize>().prop_map(Op::Remove),
            3 => distance.prop_map(Op::Advance),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 400 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Compares with a sorted list: the same entries in the same order, and no missed wake-up.
        #[test]
        fn agrees_with_a_sorted_list(ops in prop::collection::vec(op(), 1..200)) {
            let mut wheel = Wheel::new();
            let mut model: Vec<(u64, u32)> = Vec::new();
            let (mut now, mut next_index) = (0u64, 0u32);
            for op in ops {
                match op {
                    Op::Insert(distance) => {
                        let deadline = now.saturating_add(distance);
                        wheel.insert(next_index, deadline);
                        let at = model.partition_point(|(d, _)| *d <= deadline);
                        model.insert(at, (deadline, next_index));
                        next_index += 1;
                    }
                    Op::Remove(pick) if !model.is_empty() => {
                        let (_, index) = model.remove(pick % model.len());
                        prop_assert!(wheel.remove(index));
                    }
                    Op::Remove(_) => {}
                    Op::Advance(distance) => {
                        now = now.saturating_add(distance);
                        let due = model.partition_point(|(d, _)| *d <= now);
                        for (deadline, index) in model.drain(..due) {
                            prop_assert_eq!(wheel.pop_due(now), Some((index, deadline)));
                        }
                        prop_assert_eq!(wheel.pop_due(now), None);
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                match (wheel.next_deadline(), model.first()) {
                    (Some(bound), Some((first, _))) => prop_assert!(bound <= *first),
                    (bound, first) => prop_assert_eq!(bound.is_some(), first.is_some()),
                }
            }
        }
    }
}
