//! A set of watched descriptors with the ready list of epoll(7).
//!
//! 1. An entry is in the ready list at most once. Wakes before it is reported merge.
//! 2. A wait takes entries from the front. A level-triggered one goes to the end again, and leaves
//!    the list when a wait finds it no longer ready. An edge-triggered one leaves at once.
//! 3. A one-shot entry loses its interest with its event, until it is modified.
//! 4. ERR and HUP are always of interest.

use std::collections::VecDeque;

use crate::ids::{ActorId, Fd, mask};
use crate::slab::{Key, Slab};

/// A watched descriptor.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) fd: Fd,
    pub(crate) mask: u32,
    pub(crate) data: u64,
    /// In the ready list.
    is_linked: bool,
    /// A fault holds its event back, so it is not linked.
    is_delayed: bool,
}

impl Entry {
    fn is_enabled(&self) -> bool {
        self.mask & !mask::MODES != 0
    }

    /// The part of a readiness that is reported.
    pub(crate) fn reported(&self, ready: u32) -> u32 {
        ready & self.mask & !mask::MODES
    }
}

/// A set of watched descriptors, of one actor.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) actor: ActorId,
    entries: Slab<Entry>,
    live: usize,
    ready: VecDeque<Key>,
}

impl Set {
    pub(crate) fn new(actor: ActorId) -> Self {
        Self { actor, entries: Slab::default(), live: 0, ready: VecDeque::new() }
    }

    pub(crate) fn add(&mut self, fd: Fd, bits: u32, data: u64) -> Key {
        self.live += 1;
        self.entries.insert(Entry {
            fd,
            mask: bits | mask::ERR | mask::HUP,
            data,
            is_linked: false,
            is_delayed: false,
        })
    }

    pub(crate) fn entry(&self, key: Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(crate) fn modify(&mut self, key: Key, bits: u32, data: u64) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.mask = bits | mask::ERR | mask::HUP;
            entry.data = data;
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.live -= 1;
        // Keys of removed entries stay in the list, but only as many as there are entries.
        if self.ready.len() > 2 * self.live + 64 {
            self.ready.retain(|key| self.entries.get(*key).is_some());
        }
        Some(entry)
    }

    /// Puts an entry into the ready list, if it has an interest in one of the bits of a wake; 0 is
    /// a wake for all. Returns whether the set's owner is to be told.
    pub(crate) fn link(&mut self, key: Key, bits: u32) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let is_interested = entry.is_enabled() && (bits == 0 || bits & entry.mask != 0);
        if !is_interested || entry.is_delayed {
            return false;
        }
        if !entry.is_linked {
            entry.is_linked = true;
            self.ready.push_back(key);
        }
        true
    }

    /// The number of keys in the ready list, with those of entries that are gone.
    pub(crate) fn linked(&self) -> usize {
        self.ready.len()
    }

    /// The first entry of the ready list, without those that are gone.
    pub(crate) fn front(&mut self) -> Option<(Key, &Entry)> {
        while let Some(key) = self.ready.front() {
            if self.entries.get(*key).is_some() {
                break;
            }
            self.ready.pop_front();
        }
        let key = *self.ready.front()?;
        self.entries.get(key).map(|entry| (key, entry))
    }

    /// Takes the first key out of the ready list. Its entry may be gone.
    pub(crate) fn unlink_front(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_linked = false;
        }
        Some(key)
    }

    /// The event of an entry was reported: it goes where its mode says.
    pub(crate) fn report(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.mask & mask::ONESHOT != 0 {
            entry.mask &= mask::MODES;
        } else if entry.mask & mask::ET == 0 && !entry.is_linked && !entry.is_delayed {
            entry.is_linked = true;
            self.ready.push_back(key);
        }
    }

    /// Holds the event of an entry back, or lets it go.
    pub(crate) fn set_delayed(&mut self, key: Key, is_delayed: bool) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_delayed = is_delayed;
        }
    }

    /// An entry by an index that a fault has chosen, if there is one that can be reported.
    pub(crate) fn candidate(&self, slot: u32) -> Option<(Key, &Entry)> {
        let key = self.entries.key_at(slot)?;
        let entry = self.entries.get(key)?;
        let can_be = entry.mask & (mask::IN | mask::OUT) != 0 && !entry.is_linked;
        can_be.then_some((key, entry))
    }

    pub(crate) fn slots(&self) -> u32 {
        self.entries.slots()
    }

    /// All entries, for the end of the set.
    pub(crate) fn keys(&self) -> Vec<(Key, Fd)> {
        let fd = |key: Key| self.entries.get(key).map(|entry| (key, entry.fd));
        self.entries.keys().filter_map(fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(bits: u32) -> (Set, Key) {
        let mut set = Set::new(ActorId(0));
        let key = set.add(Fd::from_raw(1), bits, 7);
        (set, key)
    }

    /// Reports the first entry as a wait does, if there is one.
    fn report(set: &mut Set) -> Option<u64> {
        let (key, entry) = set.front()?;
        let data = entry.data;
        set.unlink_front();
        set.report(key);
        Some(data)
    }

    #[test]
    fn a_level_stays_in_the_list_and_an_edge_leaves_it() {
        let (mut level, key) = set(mask::IN);
        assert!(level.link(key, mask::IN) && level.link(key, mask::IN));
        assert_eq!((level.linked(), report(&mut level), report(&mut level)), (1, Some(7), Some(7)));
        let (mut edge, key) = set(mask::IN | mask::ET);
        edge.link(key, 0);
        assert_eq!((report(&mut edge), report(&mut edge)), (Some(7), None));
        assert!(edge.link(key, mask::IN));
        assert_eq!(report(&mut edge), Some(7));
    }

    #[test]
    fn a_one_shot_hears_nothing_until_it_is_modified() {
        let (mut set, key) = set(mask::IN | mask::ONESHOT);
        set.link(key, 0);
        assert_eq!(report(&mut set), Some(7));
        assert!(!set.link(key, 0) && !set.link(key, mask::HUP));
        set.modify(key, mask::OUT | mask::ONESHOT, 8);
        assert!(!set.link(key, mask::IN) && set.link(key, mask::OUT));
        assert_eq!(report(&mut set), Some(8));
    }

    #[test]
    fn errors_are_of_interest_to_everybody() {
        let (mut set, key) = set(0);
        assert!(!set.link(key, mask::IN));
        assert!(set.link(key, mask::ERR));
    }

    #[test]
    fn removed_entries_leave_a_bounded_list() {
        let mut set = Set::new(ActorId(0));
        for _ in 0..10_000 {
            let key = set.add(Fd::from_raw(1), mask::IN, 0);
            set.link(key, 0);
            set.remove(key);
        }
        assert!(set.linked() <= 65, "{}", set.linked());
        assert!(set.front().is_none());
    }

    #[test]
    fn a_delayed_entry_is_not_linked_twice() {
        let (mut set, key) = set(mask::IN);
        set.link(key, 0);
        set.unlink_front();
        set.set_delayed(key, true);
        assert!(!set.link(key, mask::IN));
        set.set_delayed(key, false);
        assert!(set.link(key, mask::IN));
        assert_eq!(set.linked(), 1);
    }
}
