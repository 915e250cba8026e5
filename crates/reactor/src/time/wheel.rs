//! A timing wheel that finds the index due next.
//!
//! Times are counted in ticks of any length. Eleven levels of 64 slots cover 64 bits. Compare a
//! deadline with `elapsed` in groups of six bits. The highest group that differs gives the level,
//! and the group's value gives the slot. So the lowest occupied slot of the lowest occupied level
//! holds the next deadline. Insert and remove are O(1). An entry that is removed before it is due
//! usually never moves.
//!
//! When time reaches a slot of a higher level, its due entries are sorted once, into the run. The
//! others move to a lower level, which happens to an entry at most ten times. The entries of the
//! run are taken from its front. An entry may be inserted before the end of the run. It goes to a
//! slot, and the next entry is the earlier of the run's first and the slots' first.
//!
//! Equal deadlines always share a slot. Slots are lists in insertion order. Entries move down in
//! that order, and the sort is stable. If an entry of the run and one of a slot have the same
//! deadline, the one in the run was inserted first. Therefore due entries are ordered by deadline,
//! then by insertion.
//!
//! Entries are indices that the caller assigns. The wheel keeps its links in an array by index, so
//! no entry needs an allocation once the arrays have grown.

use super::run::{Run, SPAN_BITS_MAX};
use crate::util::{arena::reserve_one, prefetch::prefetch};

const GROUP_BITS: u32 = 6;
const SLOTS: usize = 1 << GROUP_BITS;
const LEVELS: usize = 11;
const NONE: u32 = u32::MAX;
/// `Node::place` of an index that is not in the wheel.
const NOWHERE: u16 = u16::MAX;
/// `Node::place` of an index in the run.
const IN_RUN: u16 = u16::MAX - 1;
/// How many entries ahead the wheel prefetches its nodes, and its user what belongs to an entry.
/// Entries of a run are scattered in memory, and a handler takes less time than a read of memory.
const NODE_AHEAD: usize = 8;
const ENTRY_AHEAD: usize = 4;

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

/// The wheel. Times are ticks since any fixed moment, up to `u64::MAX`.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Every deadline in the wheel is equal to or later than this.
    elapsed: u64,
    nodes: Vec<Node>,
    /// One bit per slot: set if the slot is occupied.
    occupied: [u64; LEVELS],
    /// Empty until the first insert, so a reactor without timers needs no memory for the table.
    slots: Vec<Slot>,
    /// Due entries in order.
    run: Run,
    /// The entries in slots.
    linked: usize,
}

impl Wheel {
    pub(crate) const fn new() -> Self {
        Self {
            elapsed: 0,
            nodes: Vec::new(),
            occupied: [0; LEVELS],
            slots: Vec::new(),
            run: Run::new(),
            linked: 0,
        }
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.linked + self.run.len()
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
            self.run.reserve();
        }
        while self.nodes.len() <= index as usize {
            reserve_one(&mut self.nodes);
            self.nodes.push(Node { deadline: 0, prev: NONE, next: NONE, place: NOWHERE });
        }
        debug_assert_eq!(self.nodes[index as usize].place, NOWHERE, "inserted twice");
        self.linked += 1;
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
        let Some(node) = self.nodes.get_mut(index as usize) else {
            return false;
        };
        let Node { prev, next, place, .. } = *node;
        node.place = NOWHERE;
        if place == NOWHERE {
            return false;
        }
        if place == IN_RUN {
            // Its record in the run is skipped, because the place says that it has left.
            self.run.leave();
            return true;
        }
        self.linked -= 1;
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
            self.clear(place);
        }
        true
    }

    fn clear(&mut self, place: usize) {
        self.slots[place] = EMPTY;
        self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
    }

    /// The first occupied level and slot.
    fn first(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// An instant before which nothing is due: the next deadline, or an earlier instant if the next
    /// one was removed.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let linked = self.first().map(|(level, slot)| self.slots[level * SLOTS + slot].earliest);
        match (self.run.next_deadline(), linked) {
            (Some(run), Some(linked)) => Some(run.min(linked)),
            (run, linked) => run.or(linked),
        }
    }

    /// Moves entries until the first one is due, or until nothing is due. Then
    /// [`next_deadline`](Self::next_deadline) is at most `now` only if an entry is due. `now` must
    /// not decrease between calls.
    pub(crate) fn advance(&mut self, now: u64) {
        // An entry of the run is due.
        while self.run.len() == 0 {
            let Some((level, slot)) = self.first() else { break };
            let start = self.start_of(level, slot);
            if start > now {
                break;
            }
            if level == 0 {
                // All entries of the slot are due at its start.
                return;
            }
            self.take_due(level, slot, start, now);
        }
        if self.run.len() == 0 {
            // The remaining entries start after `now`, so their places are the same relative to
            // `now`.
            self.elapsed = self.elapsed.max(now);
        }
    }

    /// Takes the first entry due at `now`, with its deadline. `now` must not decrease between
    /// calls.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u32, u64)> {
        loop {
            let nodes = &self.nodes;
            let ahead = self.run.first(|index| nodes[index as usize].place == IN_RUN);
            // All entries of the run are due.
            let limit = ahead.unwrap_or(now);
            let first = self.first().map(|(level, slot)| (level, slot, self.start_of(level, slot)));
            let Some((level, slot, start)) = first.filter(|(.., start)| *start <= limit) else {
                // The slots start after `limit`, so places are the same relative to it.
                self.elapsed = self.elapsed.max(limit);
                return ahead.map(|deadline| (self.pop_run(), deadline));
            };
            // Nothing is due before the first slot's start.
            self.elapsed = start;
            let place = level * SLOTS + slot;
            let Slot { head, tail, .. } = self.slots[place];
            // All entries of a slot on the lowest level have the same deadline. A single due entry
            // need not move first.
            if level == 0 || head == tail {
                let deadline = self.nodes[head as usize].deadline;
                match ahead {
                    Some(ahead) if ahead <= deadline && level == 0 => {
                        return Some((self.pop_run(), ahead));
                    }
                    Some(ahead) if ahead <= deadline => {}
                    _ if deadline > now => {}
                    _ => {
                        self.remove(head);
                        return Some((head, deadline));
                    }
                }
            }
            if ahead.is_some() {
                self.move_down(place);
            } else {
                self.take_due(level, slot, start, now);
            }
        }
    }

    /// An entry that [`pop_due`](Self::pop_due) returns soon, if the next ones are known.
    pub(crate) fn soon_due(&self) -> Option<u32> {
        self.run.ahead(ENTRY_AHEAD)
    }

    /// Takes the first entry of the run.
    fn pop_run(&mut self) -> u32 {
        let index = self.run.pop();
        if let Some(node) = self.run.ahead(NODE_AHEAD).and_then(|i| self.nodes.get(i as usize)) {
            prefetch(node);
        }
        self.nodes[index as usize].place = NOWHERE;
        index
    }

    fn start_of(&self, level: usize, slot: usize) -> u64 {
        let shift = u32::try_from(level).unwrap_or(0) * GROUP_BITS;
        // The groups above the level come from `elapsed`. The last level has none above it.
        let above = u64::MAX.checked_shl(shift + GROUP_BITS).unwrap_or(0) & self.elapsed;
        above | (slot as u64) << shift
    }

    fn move_down(&mut self, place: usize) {
        let mut index = self.slots[place].head;
        self.clear(place);
        while index != NONE {
            let Node { next, deadline, .. } = self.nodes[index as usize];
            self.link(index, deadline);
            index = next;
        }
    }

    /// Sorts the due entries of a slot of a higher level into the run, which is empty. The others
    /// move down. The slot is the first one, and its `start` is not after `now`.
    fn take_due(&mut self, level: usize, slot: usize, start: u64, now: u64) {
        let (place, bits) = (level * SLOTS + slot, u32::try_from(level).unwrap_or(0) * GROUP_BITS);
        let is_due = self.slots[place].earliest <= now;
        // Later entries are placed relative to the first one that is due.
        self.elapsed = if is_due { start } else { now };
        if !is_due || bits > SPAN_BITS_MAX {
            return self.move_down(place);
        }
        let mut index = self.slots[place].head;
        self.clear(place);
        self.run.begin(start);
        while index != NONE {
            let Node { next, deadline, .. } = self.nodes[index as usize];
            if deadline <= now {
                self.nodes[index as usize].place = IN_RUN;
                self.run.push(index, deadline);
                self.linked -= 1;
            } else {
                self.link(index, deadline);
            }
            index = next;
        }
        self.run.sort(bits);
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
        /// Inserts at a time that has passed.
        InsertLate(u64),
        Remove(usize),
        /// Removes an entry and inserts it again with the same deadline.
        Again(usize),
        Advance(u64),
        /// Takes some of the due entries.
        Pop(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        // Distances of every magnitude, to use every level.
        let distance = (0u32..63, any::<u64>())
            .prop_map(|(bits, x)| x & ((1u64 << bits) | ((1u64 << bits) - 1)));
        // Near ones, so that many are due together.
        let near = 0u64..20_000;
        prop_oneof![
            4 => distance.clone().prop_map(Op::Insert),
            20 => near.clone().prop_map(Op::Insert),
            4 => any::<u64>().prop_map(Op::InsertLate),
            3 => any::<usize>().prop_map(Op::Remove),
            2 => any::<usize>().prop_map(Op::Again),
            1 => distance.prop_map(Op::Advance),
            2 => near.prop_map(Op::Advance),
            6 => (0usize..40).prop_map(Op::Pop),
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
        fn agrees_with_a_sorted_list(ops in prop::collection::vec(op(), 1..400)) {
            let mut wheel = Wheel::new();
            let mut model: Vec<(u64, u32)> = Vec::new();
            let (mut now, mut next_index) = (0u64, 0u32);
            let add = |wheel: &mut Wheel, model: &mut Vec<(u64, u32)>, index, deadline| {
                let deadline = u64::max(deadline, wheel.elapsed);
                wheel.insert(index, deadline);
                let at = model.partition_point(|(d, _)| *d <= deadline);
                model.insert(at, (deadline, index));
            };
            for op in ops {
                match op {
                    Op::Insert(distance) => {
                        add(&mut wheel, &mut model, next_index, now.saturating_add(distance));
                        next_index += 1;
                    }
                    Op::InsertLate(pick) => {
                        let late = (now - wheel.elapsed).saturating_add(1000);
                        add(&mut wheel, &mut model, next_index, now.saturating_sub(pick % late));
                        next_index += 1;
                    }
                    Op::Remove(pick) if !model.is_empty() => {
                        let (_, index) = model.remove(pick % model.len());
                        prop_assert!(wheel.remove(index));
                    }
                    Op::Again(pick) if !model.is_empty() => {
                        let (deadline, index) = model.remove(pick % model.len());
                        prop_assert!(wheel.remove(index));
                        add(&mut wheel, &mut model, index, deadline);
                    }
                    Op::Remove(_) | Op::Again(_) => {}
                    Op::Advance(distance) => {
                        now = now.saturating_add(distance);
                        wheel.advance(now);
                        let is_due = model.first().is_some_and(|(first, _)| *first <= now);
                        prop_assert_eq!(
                            wheel.next_deadline().is_some_and(|next| next <= now), is_due
                        );
                    }
                    Op::Pop(count) => {
                        for _ in 0..count {
                            let due = model.first().copied().filter(|(first, _)| *first <= now);
                            prop_assert_eq!(
                                wheel.pop_due(now), due.map(|(deadline, index)| (index, deadline))
                            );
                            if due.is_none() {
                                break;
                            }
                            model.remove(0);
                        }
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                let first = model.first().map_or(u64::MAX, |(deadline, _)| *deadline);
                prop_assert!(wheel.elapsed <= first.min(now));
                match (wheel.next_deadline(), model.first()) {
                    (Some(bound), Some((first, _))) => prop_assert!(bound <= *first),
                    (bound, first) => prop_assert_eq!(bound.is_some(), first.is_some()),
                }
            }
            for (deadline, index) in model {
                prop_assert_eq!(wheel.pop_due(u64::MAX), Some((index, deadline)));
            }
            prop_assert_eq!((wheel.pop_due(u64::MAX), wheel.len()), (None, 0));
        }
    }

    #[test]
    fn a_large_slot_is_sorted_once_and_equal_deadlines_keep_their_order() {
        let mut wheel = Wheel::new();
        let count: u32 = if cfg!(miri) { 300 } else { 20_000 };
        let deadline = |index: u32| 1 << 20 | u64::from(index.wrapping_mul(2_654_435_761) >> 19);
        let mut model: Vec<(u64, u32)> = (0..count).map(|index| (deadline(index), index)).collect();
        for (deadline, index) in &model {
            wheel.insert(*index, *deadline);
        }
        model.sort_unstable();
        let mut fired = Vec::new();
        while let Some((index, deadline)) = wheel.pop_due(2 << 20) {
            fired.push((deadline, index));
        }
        assert!(fired == model);
    }
}
