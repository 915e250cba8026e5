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
//! An entry that is reset does not move if its slot begins before the new deadline. It moves when
//! time reaches that slot. So a later deadline costs a few stores.
//!
//! Entries are ordered by deadline, then by insertion or reset, which gives an entry a number:
//!
//! 1. A slot is a list in the order of these numbers, unless it is marked as unordered. A reset in
//!    place marks it, and so does an entry that is linked behind one with a higher number.
//! 2. No deadline in a slot is before the slot's start. In a slot of the lowest level that is not
//!    marked, all deadlines are the same. A marked one is put in order before entries are taken.
//! 3. The sort of a run is stable, and orders equal deadlines of a marked slot by number. The run
//!    takes entries only whose deadlines are within the slot.
//! 4. If an entry of the run and one of a slot have the same deadline, the one in the run has the
//!    lower number.
//!
//! Entries are indices that the caller assigns. The wheel keeps its links in an array by index, so
//! no entry needs an allocation once the arrays have grown.

use super::run::{KEPT, Run, SPAN_BITS_MAX};
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
    /// Rises with every insertion and reset.
    number: u64,
    prev: u32,
    next: u32,
    /// Level and slot, as one number.
    place: u16,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    head: u32,
    tail: u32,
    /// No entry is due earlier. Exact unless the earliest entry was removed or reset.
    earliest: u64,
}

const ABSENT: Node = Node { deadline: 0, number: 0, prev: NONE, next: NONE, place: NOWHERE };

const EMPTY: Slot = Slot { head: NONE, tail: NONE, earliest: u64::MAX };

/// Whether a deadline is within the slot of this level that begins at `start`.
fn is_within(deadline: u64, level: usize, start: u64) -> bool {
    (deadline ^ start) >> (level * GROUP_BITS as usize) == 0
}

/// The wheel. Times are ticks since any fixed moment, up to `u64::MAX`.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Every deadline in the wheel is equal to or later than this.
    elapsed: u64,
    nodes: Vec<Node>,
    /// One bit per slot: set if the slot is occupied.
    occupied: [u64; LEVELS],
    /// The same for slots that are marked as unordered.
    unordered: [u64; LEVELS],
    /// Empty until the first insert, so a reactor without timers needs no memory for the table.
    slots: Vec<Slot>,
    /// Due entries in order.
    run: Run,
    /// The entries in slots.
    linked: usize,
    /// The last number given to an entry.
    number: u64,
    /// Numbers and indices while a slot is put in order. Otherwise empty.
    scratch: Vec<(u64, u32)>,
}

impl Wheel {
    pub(crate) const fn new() -> Self {
        Self {
            elapsed: 0,
            nodes: Vec::new(),
            occupied: [0; LEVELS],
            unordered: [0; LEVELS],
            slots: Vec::new(),
            run: Run::new(),
            linked: 0,
            number: 0,
            scratch: Vec::new(),
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
            self.nodes.push(ABSENT);
        }
        debug_assert_eq!(self.nodes[index as usize].place, NOWHERE, "inserted twice");
        self.linked += 1;
        self.number += 1;
        self.link(index, deadline.max(self.elapsed), self.number);
    }

    /// Removes an entry and inserts it again, or inserts an index. The entry stays in its slot if
    /// that begins before the deadline.
    pub(crate) fn reset(&mut self, index: u32, deadline: u64) {
        if let Some(node) = self.nodes.get(index as usize) {
            let place = usize::from(node.place);
            let (level, slot) = (place / SLOTS, place % SLOTS);
            // The other places are not slots.
            if level < LEVELS && self.start_of(level, slot) <= deadline {
                self.number += 1;
                let node = &mut self.nodes[index as usize];
                (node.deadline, node.number) = (deadline, self.number);
                self.slots[place].earliest = self.slots[place].earliest.min(deadline);
                self.unordered[level] |= 1 << slot;
                return;
            }
        }
        self.remove(index);
        self.insert(index, deadline);
    }

    fn link(&mut self, index: u32, deadline: u64, number: u64) {
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
            let prev = &mut self.nodes[prev as usize];
            prev.next = index;
            if prev.number > number {
                self.unordered[level] |= 1 << slot;
            }
        }
        let place = u16::try_from(place).unwrap_or(NOWHERE);
        self.nodes[index as usize] = Node { deadline, number, prev, next: NONE, place };
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
        self.unordered[place / SLOTS] &= !(1 << (place % SLOTS));
    }

    /// The first occupied level and slot.
    fn first(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// An instant before which nothing is due: the next deadline, or an earlier instant if the next
    /// one was removed or reset.
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
            let place = level * SLOTS + slot;
            let Slot { head, tail, .. } = self.slots[place];
            let deadline = self.nodes[head as usize].deadline;
            if head == tail && is_within(deadline, level, start) {
                // A single entry need not move. Those of other slots are due later.
                self.slots[place].earliest = deadline;
                return;
            }
            if level == 0 {
                if self.unordered[0] & 1 << slot == 0 {
                    // All entries of the slot are due at its start.
                    return;
                }
                self.order_lowest(place, start);
                continue;
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
            let place = level * SLOTS + slot;
            let Slot { head, tail, .. } = self.slots[place];
            let deadline = self.nodes[head as usize].deadline;
            let is_only = head == tail && is_within(deadline, level, start);
            if level == 0 && !is_only && self.unordered[0] & 1 << slot != 0 {
                self.order_lowest(place, start);
                continue;
            }
            // A single entry need not move.
            if level == 0 || is_only {
                return match ahead {
                    Some(ahead) if ahead <= deadline => Some((self.pop_run(), ahead)),
                    _ if deadline > now => None,
                    _ => {
                        // Nothing is due before the first slot's start.
                        self.elapsed = start;
                        self.remove(head);
                        Some((head, deadline))
                    }
                };
            }
            self.elapsed = start;
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
            let Node { next, deadline, number, .. } = self.nodes[index as usize];
            self.link(index, deadline, number);
            index = next;
        }
    }

    /// Puts a slot of the lowest level in order: entries with later deadlines leave it, and the
    /// others are sorted by number.
    fn order_lowest(&mut self, place: usize, start: u64) {
        self.elapsed = start;
        let mut index = self.slots[place].head;
        let mut same = core::mem::take(&mut self.scratch);
        self.clear(place);
        while index != NONE {
            let Node { next, deadline, number, .. } = self.nodes[index as usize];
            if deadline == start {
                same.push((number, index));
            } else {
                self.link(index, deadline, number);
            }
            index = next;
        }
        same.sort_unstable();
        for (number, index) in same.drain(..) {
            self.link(index, start, number);
        }
        if same.capacity() <= KEPT {
            self.scratch = same;
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
        let is_unordered = self.unordered[level] & 1 << slot != 0;
        self.clear(place);
        self.run.begin(start);
        while index != NONE {
            let Node { next, deadline, number, .. } = self.nodes[index as usize];
            if deadline <= now && is_within(deadline, level, start) {
                self.nodes[index as usize].place = IN_RUN;
                self.run.push(index, deadline);
                self.linked -= 1;
            } else {
                self.link(index, deadline, number);
            }
            index = next;
        }
        self.run.sort(bits);
        if is_unordered {
            let nodes = &self.nodes;
            self.run.order_equal(|index| nodes[index as usize].number);
        }
    }
}

#[cfg(test)]
mod tests;
