//! A table whose keys are never reused: an index of a slot and the slot's generation.

/// A slot's number in the low half of a key, its generation in the high half.
pub(crate) type Key = u64;

/// The number of the slot that a key names.
pub(crate) fn slot_of(key: Key) -> u32 {
    key as u32
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of values. Freed slots are used again, the last one first.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a value.
    ///
    /// # Panics
    ///
    /// If 2³² slots are in use.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2³² slots")
        });
        let place = &mut self.slots[slot as usize];
        place.generation += 1;
        place.value = Some(value);
        Key::from(place.generation) << 32 | Key::from(slot)
    }

    /// The value of a key that has not been removed.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(slot_of(key) as usize)?;
        if Key::from(slot.generation) == key >> 32 { slot.value.as_ref() } else { None }
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(slot_of(key) as usize)?;
        if Key::from(slot.generation) == key >> 32 { slot.value.as_mut() } else { None }
    }

    /// Takes a value out.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(slot_of(key) as usize)?;
        if Key::from(slot.generation) != key >> 32 {
            return None;
        }
        let value = slot.value.take()?;
        // A slot whose generations are used up is retired.
        if slot.generation < u32::MAX {
            self.free.push(slot_of(key));
        }
        Some(value)
    }

    /// The key of the value in a slot.
    pub(crate) fn key_at(&self, slot: u32) -> Option<Key> {
        let place = self.slots.get(slot as usize)?;
        place.value.as_ref()?;
        Some(Key::from(place.generation) << 32 | Key::from(slot))
    }

    /// The number of slots, used or free.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("`insert` checks it")
    }

    /// All keys in use, in the order of their slots.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        (0..self.slots()).filter_map(|slot| self.key_at(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_used_again_although_its_slot_is() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(slot_of(first), slot_of(second));
        assert_ne!(first, second);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
        assert_eq!(slab.key_at(slot_of(second)), Some(second));
        assert_eq!(slab.keys().count(), 1);
    }

    #[test]
    fn the_slot_that_was_freed_last_is_used_first() {
        let mut slab = Slab::default();
        let keys: Vec<Key> = (0..4).map(|value| slab.insert(value)).collect();
        slab.remove(keys[1]);
        slab.remove(keys[3]);
        assert_eq!(slot_of(slab.insert(9)), 3);
        assert_eq!(slot_of(slab.insert(9)), 1);
        assert_eq!(slot_of(slab.insert(9)), 4);
    }
}
