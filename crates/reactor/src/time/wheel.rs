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
//! A periodic timer is often the next one again. So an entry that is inserted to be the next may be
//! kept out of the slots, as the *front*:
//!
//! 5. The front is before every other entry: its deadline is earlier, or the same and its number is
//!    lower. An entry with an earlier deadline moves it into a slot.
//!
//! Entries are indices that the caller assigns. The caller also stores their nodes ([`Nodes`]),
//! beside what else a reset needs.

use core::num::NonZeroU16;

use super::run::{KEPT, Run, SPAN_BITS_MAX};

const GROUP_BITS: u32 = 6;
const SLOTS: usize = 1 << GROUP_BITS;
const LEVELS: usize = 11;
const NONE: u32 = u32::MAX;
/// How many entries ahead the wheel prefetches the nodes. Entries of a run are scattered in memory,
/// and a handler takes less time than a read of memory.
const AHEAD: usize = 8;

/// What holds an entry: level and slot as one number, or one of the constants. Not zero, so an
/// `Option` of a node is as large as the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder(NonZeroU16);

impl Holder {
    const NONE: Self = Self(NonZeroU16::MAX);
    const RUN: Self = Self(NonZeroU16::new(u16::MAX - 1).unwrap());
    const FRONT: Self = Self(NonZeroU16::new(u16::MAX - 2).unwrap());
    /// Not in the wheel, and waiting to be inserted again.
    const HELD: Self = Self(NonZeroU16::new(u16::MAX - 3).unwrap());

    fn of_slot(slot: usize) -> Self {
        u16::try_from(slot + 1).ok().and_then(NonZeroU16::new).map_or(Self::NONE, Self)
    }

    /// The number of the slot. Not one, if the entry is elsewhere.
    fn slot(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

/// The wheel's part of an entry.
///
/// The order of the fields is fixed. Those that a reset in place uses come first, so they are
/// likely in one line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Node {
    deadline: u64,
    /// Rises with every insertion and reset.
    number: u64,
    holder: Holder,
    prev: u32,
    next: u32,
}

impl Node {
    /// The node of an entry that is not in a wheel.
    pub(crate) const ABSENT: Self =
        Self { deadline: 0, number: 0, holder: Holder::NONE, prev: NONE, next: NONE };

    /// Whether the entry is in the wheel, or held.
    pub(crate) fn is_waiting(&self) -> bool {
        self.holder != Holder::NONE
    }
}

/// The nodes of all entries, by index. An entry in the wheel has a node.
pub(crate) trait Nodes {
    /// The node at an index, if there is one.
    fn find(&self, index: u32) -> Option<&Node>;

    #[inline]
    fn node(&self, index: u32) -> &Node {
        self.find(index).expect("what is in the wheel has a node")
    }

    fn node_mut(&mut self, index: u32) -> &mut Node;

    /// Tells the processor that an entry is read soon.
    fn prefetch(&self, index: u32);
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    head: u32,
    tail: u32,
    /// No entry is due earlier. Exact unless the earliest entry was removed or reset.
    earliest: u64,
}

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
    /// The deadline of the front. Zero without one, so that no deadline is earlier.
    front_deadline: u64,
    /// The front, or `NONE`.
    front: u32,
    /// One bit per level: set if a slot of the level is occupied.
    levels: u32,
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
            front_deadline: 0,
            front: NONE,
            levels: 0,
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
        self.linked + self.run.len() + usize::from(self.front != NONE)
    }

    fn place(&self, deadline: u64) -> (usize, usize) {
        let differing = deadline ^ self.elapsed;
        let level = (u64::BITS - 1).saturating_sub(differing.leading_zeros()) / GROUP_BITS;
        let slot = deadline >> (level * GROUP_BITS) & (SLOTS as u64 - 1);
        (level as usize, usize::try_from(slot).unwrap_or(0))
    }

    /// Adds an entry that is not in the wheel. A deadline earlier than `elapsed` is replaced by
    /// `elapsed`.
    pub(crate) fn insert(&mut self, nodes: &mut impl Nodes, index: u32, deadline: u64) {
        debug_assert!(!nodes.node(index).is_waiting(), "inserted twice");
        if self.slots.is_empty() {
            self.slots.resize(LEVELS * SLOTS, EMPTY);
            self.run.reserve();
        }
        let deadline = deadline.max(self.elapsed);
        if deadline < self.front_deadline {
            self.move_front(nodes);
        }
        self.number += 1;
        self.link(nodes, index, deadline, self.number);
        self.linked += 1;
    }

    /// The same for an entry that is likely the next one.
    pub(crate) fn insert_next(&mut self, nodes: &mut impl Nodes, index: u32, deadline: u64) {
        let deadline = deadline.max(self.elapsed);
        // After an insertion there are slots.
        if self.slots.is_empty() || self.next_deadline().is_some_and(|next| next <= deadline) {
            return self.insert(nodes, index, deadline);
        }
        if self.front != NONE {
            self.move_front(nodes);
        }
        self.number += 1;
        (self.front, self.front_deadline) = (index, deadline);
        let node = nodes.node_mut(index);
        (node.deadline, node.number, node.holder) = (deadline, self.number, Holder::FRONT);
    }

    /// Moves the front into a slot.
    fn move_front(&mut self, nodes: &mut impl Nodes) {
        let index = self.take_front();
        let Node { deadline, number, .. } = *nodes.node(index);
        self.link(nodes, index, deadline, number);
        self.linked += 1;
    }

    /// From now on there is no front.
    fn take_front(&mut self) -> u32 {
        self.front_deadline = 0;
        core::mem::replace(&mut self.front, NONE)
    }

    /// Resets an entry without moving it, if its slot begins before the deadline. Otherwise returns
    /// false, and the entry must be removed and inserted.
    pub(crate) fn reset_in_place(&mut self, node: &mut Node, deadline: u64) -> bool {
        let place = node.holder.slot();
        let (level, slot) = (place / SLOTS, place % SLOTS);
        // The other holders are not slots. The front must stay before this entry.
        if level >= LEVELS
            || self.start_of(level, slot) > deadline
            || deadline < self.front_deadline
        {
            return false;
        }
        self.number += 1;
        (node.deadline, node.number) = (deadline, self.number);
        self.slots[place].earliest = self.slots[place].earliest.min(deadline);
        self.unordered[level] |= 1 << slot;
        true
    }

    fn link(&mut self, nodes: &mut impl Nodes, index: u32, deadline: u64, number: u64) {
        let (level, slot) = self.place(deadline);
        let place = level * SLOTS + slot;
        self.levels |= 1 << level;
        self.occupied[level] |= 1 << slot;
        let list = &mut self.slots[place];
        let prev = list.tail;
        list.tail = index;
        list.earliest = list.earliest.min(deadline);
        if prev == NONE {
            list.head = index;
        } else {
            let prev = nodes.node_mut(prev);
            prev.next = index;
            if prev.number > number {
                self.unordered[level] |= 1 << slot;
            }
        }
        let holder = Holder::of_slot(place);
        *nodes.node_mut(index) = Node { deadline, number, holder, prev, next: NONE };
    }

    /// Removes an entry. True if it was in the wheel.
    pub(crate) fn remove(&mut self, nodes: &mut impl Nodes, index: u32) -> bool {
        let node = nodes.node_mut(index);
        let Node { prev, next, .. } = *node;
        match core::mem::replace(&mut node.holder, Holder::NONE) {
            Holder::NONE => return false,
            Holder::HELD => {}
            // Its record in the run is skipped, because the holder says that it has left.
            Holder::RUN => self.run.leave(),
            Holder::FRONT => _ = self.take_front(),
            holder => self.unlink(nodes, holder.slot(), prev, next),
        }
        true
    }

    /// Takes an entry out of the wheel, if it is there. It waits until [`release`](Self::release).
    pub(crate) fn hold(&mut self, nodes: &mut impl Nodes, index: u32) {
        self.remove(nodes, index);
        nodes.node_mut(index).holder = Holder::HELD;
    }

    /// Inserts an entry that is held.
    pub(crate) fn release(&mut self, nodes: &mut impl Nodes, index: u32, deadline: u64) {
        debug_assert!(nodes.node(index).holder == Holder::HELD, "released twice");
        nodes.node_mut(index).holder = Holder::NONE;
        self.insert(nodes, index, deadline);
    }

    /// Takes an entry out of its slot's list. `prev` and `next` are its neighbours.
    fn unlink(&mut self, nodes: &mut impl Nodes, place: usize, prev: u32, next: u32) {
        self.linked -= 1;
        if prev == NONE {
            self.slots[place].head = next;
        } else {
            nodes.node_mut(prev).next = next;
        }
        if next == NONE {
            self.slots[place].tail = prev;
        } else {
            nodes.node_mut(next).prev = prev;
        }
        if self.slots[place].head == NONE {
            self.clear(place);
        }
    }

    fn clear(&mut self, place: usize) {
        let (level, slot) = (place / SLOTS, place % SLOTS);
        self.slots[place] = EMPTY;
        self.occupied[level] &= !(1 << slot);
        self.unordered[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// The first occupied level and slot.
    fn first(&self) -> Option<(usize, usize)> {
        let level = self.levels.trailing_zeros() as usize;
        self.occupied.get(level).map(|bits| (level, bits.trailing_zeros() as usize))
    }

    /// An instant before which nothing is due: the next deadline, or an earlier instant if the next
    /// one was removed or reset.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.front != NONE {
            return Some(self.front_deadline);
        }
        let linked = self.first().map(|(level, slot)| self.slots[level * SLOTS + slot].earliest);
        match (self.run.next_deadline(), linked) {
            (Some(run), Some(linked)) => Some(run.min(linked)),
            (run, linked) => run.or(linked),
        }
    }

    /// Moves entries until the first one is due, or until nothing is due. Then
    /// [`next_deadline`](Self::next_deadline) is at most `now` only if an entry is due. `now` must
    /// not decrease between calls.
    pub(crate) fn advance(&mut self, nodes: &mut impl Nodes, now: u64) {
        if self.front != NONE && self.front_deadline <= now {
            return;
        }
        // An entry of the run is due.
        while self.run.len() == 0 {
            let Some((level, slot)) = self.first() else { break };
            let start = self.start_of(level, slot);
            if start > now {
                break;
            }
            let place = level * SLOTS + slot;
            let Slot { head, tail, .. } = self.slots[place];
            let deadline = nodes.node(head).deadline;
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
                self.order_lowest(nodes, place, start);
                continue;
            }
            self.take_due(nodes, level, slot, start, now);
        }
        if self.run.len() == 0 {
            // The remaining entries start after `now`, so their places are the same relative to
            // `now`.
            self.elapsed = self.elapsed.max(now);
        }
    }

    /// True if the front is not due, and time may pass to `now` without a look at any entry. Then
    /// nothing is due at `now`.
    pub(crate) fn is_quiet(&mut self, now: u64) -> bool {
        let begins = |(level, slot)| self.start_of(level, slot) <= now;
        if self.front == NONE || self.front_deadline <= now || self.first().is_some_and(begins) {
            return false;
        }
        // The entries of a run are due, and none of them is before the front.
        debug_assert_eq!(self.run.len(), 0, "the front is not due");
        self.elapsed = self.elapsed.max(now);
        true
    }

    /// Takes the first entry due at `now`, with its deadline. `now` must not decrease between
    /// calls.
    pub(crate) fn pop_due(&mut self, nodes: &mut impl Nodes, now: u64) -> Option<(u32, u64)> {
        if self.front != NONE && self.front_deadline <= now {
            let deadline = self.front_deadline;
            let index = self.take_front();
            nodes.node_mut(index).holder = Holder::NONE;
            return Some((index, deadline));
        }
        loop {
            // An entry that has left the run may have no node any more.
            let is_in_run = |node: &Node| node.holder == Holder::RUN;
            let ahead = self.run.first(|index| nodes.find(index).is_some_and(is_in_run));
            // All entries of the run are due.
            let limit = ahead.unwrap_or(now);
            let first = self.first().map(|(level, slot)| (level, slot, self.start_of(level, slot)));
            let Some((level, slot, start)) = first.filter(|(.., start)| *start <= limit) else {
                // The slots start after `limit`, so places are the same relative to it.
                self.elapsed = self.elapsed.max(limit);
                return ahead.map(|deadline| (self.pop_run(nodes), deadline));
            };
            let place = level * SLOTS + slot;
            let Slot { head, tail, .. } = self.slots[place];
            let deadline = nodes.node(head).deadline;
            let is_only = head == tail && is_within(deadline, level, start);
            if level == 0 && !is_only && self.unordered[0] & 1 << slot != 0 {
                self.order_lowest(nodes, place, start);
                continue;
            }
            // A single entry need not move.
            if level == 0 || is_only {
                return match ahead {
                    Some(ahead) if ahead <= deadline => Some((self.pop_run(nodes), ahead)),
                    _ if deadline > now => None,
                    _ => {
                        // Nothing is due before the first slot's start.
                        self.elapsed = start;
                        self.remove(nodes, head);
                        Some((head, deadline))
                    }
                };
            }
            self.elapsed = start;
            if ahead.is_some() {
                self.move_down(nodes, place);
            } else {
                self.take_due(nodes, level, slot, start, now);
            }
        }
    }

    /// Takes the first entry of the run.
    fn pop_run(&mut self, nodes: &mut impl Nodes) -> u32 {
        let index = self.run.pop();
        if let Some(soon) = self.run.ahead(AHEAD) {
            nodes.prefetch(soon);
        }
        nodes.node_mut(index).holder = Holder::NONE;
        index
    }

    fn start_of(&self, level: usize, slot: usize) -> u64 {
        let shift = u32::try_from(level).unwrap_or(0) * GROUP_BITS;
        // The groups above the level come from `elapsed`. The last level has none above it.
        let above = u64::MAX.checked_shl(shift + GROUP_BITS).unwrap_or(0) & self.elapsed;
        above | (slot as u64) << shift
    }

    fn move_down(&mut self, nodes: &mut impl Nodes, place: usize) {
        let mut index = self.slots[place].head;
        self.clear(place);
        while index != NONE {
            let Node { next, deadline, number, .. } = *nodes.node(index);
            self.link(nodes, index, deadline, number);
            index = next;
        }
    }

    /// Puts a slot of the lowest level in order: entries with later deadlines leave it, and the
    /// others are sorted by number.
    fn order_lowest(&mut self, nodes: &mut impl Nodes, place: usize, start: u64) {
        self.elapsed = start;
        let mut index = self.slots[place].head;
        let mut same = core::mem::take(&mut self.scratch);
        self.clear(place);
        while index != NONE {
            let Node { next, deadline, number, .. } = *nodes.node(index);
            if deadline == start {
                same.push((number, index));
            } else {
                self.link(nodes, index, deadline, number);
            }
            index = next;
        }
        same.sort_unstable();
        for (number, index) in same.drain(..) {
            self.link(nodes, index, start, number);
        }
        if same.capacity() <= KEPT {
            self.scratch = same;
        }
    }

    /// Sorts the due entries of a slot of a higher level into the run, which is empty. The others
    /// move down. The slot is the first one, and its `start` is not after `now`.
    fn take_due(
        &mut self,
        nodes: &mut impl Nodes,
        level: usize,
        slot: usize,
        start: u64,
        now: u64,
    ) {
        let (place, bits) = (level * SLOTS + slot, u32::try_from(level).unwrap_or(0) * GROUP_BITS);
        let is_due = self.slots[place].earliest <= now;
        // Later entries are placed relative to the first one that is due.
        self.elapsed = if is_due { start } else { now };
        if !is_due || bits > SPAN_BITS_MAX {
            return self.move_down(nodes, place);
        }
        let mut index = self.slots[place].head;
        let is_unordered = self.unordered[level] & 1 << slot != 0;
        self.clear(place);
        self.run.begin(start);
        while index != NONE {
            let Node { next, deadline, number, .. } = *nodes.node(index);
            if deadline <= now && is_within(deadline, level, start) {
                nodes.node_mut(index).holder = Holder::RUN;
                self.run.push(index, deadline);
                self.linked -= 1;
            } else {
                self.link(nodes, index, deadline, number);
            }
            index = next;
        }
        self.run.sort(bits);
        if is_unordered {
            self.run.order_equal(|index| nodes.node(index).number);
        }
    }
}

#[cfg(test)]
mod tests;
