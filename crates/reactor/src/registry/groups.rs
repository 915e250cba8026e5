//! The members of each group.

use std::collections::BTreeMap;

use crate::{
    GroupReason, GroupState, Key,
    api::{
        group::ErasedGroup,
        key::{KeyKind, MAX_INDEX},
        ops::ReactorOps,
    },
    cell::{CellPtr, NO_GROUP},
    util::arena::Arena,
};

/// The groups of a reactor.
pub(crate) struct Groups(Arena<GroupRecord>);

/// A registered group: its state, which the members also hold, and the members' keys.
struct GroupRecord {
    state: GroupState,
    /// With their numbers in the order of their registration. A group may have very many, which
    /// leave in any order.
    members: BTreeMap<Key, u64>,
    /// The number of the next one.
    next: u64,
    is_paused: bool,
}

impl GroupRecord {
    fn add(&mut self, member: Key) {
        self.members.insert(member, self.next);
        self.next += 1;
    }

    /// The members, in the order of their registration.
    fn in_order(&self) -> Vec<Key> {
        let mut members: Vec<_> = self.members.iter().map(|(key, place)| (*place, *key)).collect();
        members.sort_unstable();
        members.into_iter().map(|(_, key)| key).collect()
    }
}

/// The slot of a group in the table.
#[derive(Clone, Copy)]
pub(crate) struct GroupSlot {
    pub(crate) index: u32,
    generation: u32,
}

impl Groups {
    pub(crate) const fn new() -> Self {
        Self(Arena::new())
    }

    pub(crate) fn state(&self, group: Key) -> Option<GroupState> {
        let (index, generation) = group.parts(KeyKind::Group)?;
        self.0.get(index, generation).map(|record| record.state.share())
    }

    /// The slot that the group has or will get.
    pub(crate) fn slot_for(
        &mut self,
        group: &ErasedGroup<impl ReactorOps>,
        groups_max: usize,
    ) -> Result<GroupSlot, GroupReason> {
        if group.members.is_empty() {
            return Err(GroupReason::Empty);
        }
        match group.joins {
            None if self.0.len() >= groups_max => Err(GroupReason::LimitReached),
            None => {
                let (index, generation) = self.0.next(MAX_INDEX);
                Ok(GroupSlot { index, generation })
            }
            Some(key) => {
                let (index, generation) = key.parts(KeyKind::Group).ok_or(GroupReason::NotFound)?;
                let record = self.0.get(index, generation).ok_or(GroupReason::NotFound)?;
                // The key may be made up. If two reactors shared a state, a handler of one could
                // run inside a handler of the other.
                if record.state.is(&group.state) {
                    Ok(GroupSlot { index, generation })
                } else {
                    Err(GroupReason::NotFound)
                }
            }
        }
    }

    /// Names a group, or takes its name away. False if there is no such group.
    pub(crate) fn set_name(&mut self, group: Key, name: Option<Box<str>>) -> bool {
        group.parts(KeyKind::Group).is_some_and(|place| self.0.set_name(place, name))
    }

    /// The keys of all groups, with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Option<&str>)> {
        self.0.iter().map(|(index, generation, _)| {
            (Key::new(KeyKind::Group, (index, generation)), self.0.name(index))
        })
    }

    /// The key of the group at an index; `None` for [`NO_GROUP`].
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        self.0.at(index).map(|_| Key::new(KeyKind::Group, (index, self.0.generation(index))))
    }

    /// Adds the members that were registered for a slot, of which no user code has run since. A new
    /// group gets the state. Returns the group's key.
    pub(crate) fn add(
        &mut self,
        slot: GroupSlot,
        state: GroupState,
        is_new: bool,
        members: &[Key],
    ) -> Key {
        let GroupSlot { index, generation } = slot;
        if is_new {
            self.0.insert(GroupRecord {
                state,
                members: BTreeMap::new(),
                next: 0,
                is_paused: false,
            });
        }
        let record = self.0.get_mut(index, generation).expect("found or inserted in this call");
        members.iter().for_each(|key| record.add(*key));
        Key::new(KeyKind::Group, (index, generation))
    }

    /// Removes a group. Returns its state and its members, in the order of their registration.
    pub(crate) fn remove(&mut self, group: Key) -> Option<(GroupState, Vec<Key>)> {
        let (index, generation) = group.parts(KeyKind::Group)?;
        let record = self.0.remove(index, generation)?;
        let members = record.in_order();
        Some((record.state, members))
    }

    /// Whether a group is paused, by its index.
    pub(crate) fn is_paused(&self, group: u32) -> bool {
        self.0.at(group).is_some_and(|record| record.is_paused)
    }

    /// Marks a registered group as paused or not.
    pub(crate) fn set_paused(&mut self, group: Key, is_paused: bool) {
        let place = group.parts(KeyKind::Group);
        if let Some(record) = place.and_then(|(index, at)| self.0.get_mut(index, at)) {
            record.is_paused = is_paused;
        }
    }

    /// The members of a group, in the order of their registration.
    pub(crate) fn members(&self, group: Key) -> Option<Vec<Key>> {
        let (index, generation) = group.parts(KeyKind::Group)?;
        self.0.get(index, generation).map(GroupRecord::in_order)
    }

    /// Adds a stream that a member has accepted, and its cell.
    pub(crate) fn join(&mut self, group: u32, member: Key, cell: CellPtr) {
        if let Some(record) = self.0.at_mut(group) {
            record.add(member);
            cell.set_group(group);
        }
    }

    /// Removes a member from its group, and the group with its last member. Runs no user code,
    /// because the member still holds the state. `running` is the cell that has deleted itself and
    /// whose handler still runs.
    pub(crate) fn leave(&mut self, group: u32, member: Key, running: Option<CellPtr>) {
        let Some(record) = self.0.at_mut(group) else {
            return;
        };
        record.members.remove(&member);
        if record.members.is_empty() {
            let generation = self.0.generation(group);
            self.0.remove(group, generation);
            // The place may be given to another group while the handler of this cell still runs.
            if let Some(cell) = running.filter(|cell| cell.group() == group) {
                cell.set_group(NO_GROUP);
            }
        }
    }

    /// Takes an arbitrary group out, when the reactor is dropped.
    pub(crate) fn pop(&mut self) -> Option<GroupState> {
        self.0.pop().map(|(_, _, record)| record.state)
    }
}
