//! [`Slots`]: values that are removed by the index that they were given.

/// A list with vacancies. Insertion and removal take constant time.
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// The first vacancy, or a number beyond the end.
    vacant: usize,
    len: usize,
}

enum Slot<T> {
    Used(T),
    /// The next vacancy.
    Vacant(usize),
}

/// The end of the list of vacancies.
const NONE: usize = usize::MAX;

/// An empty list gives its memory back if it had room for more than this.
const KEPT: usize = 16;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: NONE, len: 0 }
    }
}

impl<T> Slots<T> {
    pub(super) fn insert(&mut self, value: T) -> usize {
        self.len += 1;
        let index = self.vacant;
        match self.slots.get_mut(index) {
            Some(slot) => {
                let Slot::Vacant(next) = *slot else { unreachable!("the list of vacancies") };
                self.vacant = next;
                *slot = Slot::Used(value);
                index
            }
            None => {
                self.slots.push(Slot::Used(value));
                self.slots.len() - 1
            }
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        match self.slots.get(index) {
            Some(Slot::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Puts a value in place of another.
    pub(super) fn replace(&mut self, index: usize, value: T) -> Option<T> {
        match self.slots.get_mut(index) {
            Some(Slot::Used(old)) => Some(core::mem::replace(old, value)),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<T> {
        let slot = self.slots.get_mut(index)?;
        if let Slot::Vacant(_) = slot {
            return None;
        }
        let removed = core::mem::replace(slot, Slot::Vacant(self.vacant));
        self.vacant = index;
        self.len -= 1;
        if self.len == 0 && self.slots.capacity() > KEPT {
            *self = Self::default();
        }
        match removed {
            Slot::Used(value) => Some(value),
            Slot::Vacant(_) => None,
        }
    }

    /// The values in the order of their indices.
    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|slot| match slot {
            Slot::Used(value) => Some(value),
            Slot::Vacant(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vacancy_is_filled_and_an_empty_list_gives_its_memory_back() {
        let mut slots = Slots::default();
        let indices: Vec<_> = (0..100).map(|value| slots.insert(value)).collect();
        assert_eq!(slots.remove(7), Some(7));
        assert_eq!(
            (slots.remove(7), slots.get(7).copied(), slots.replace(7, 0)),
            (None, None, None)
        );
        assert_eq!(slots.insert(1007), 7);
        assert_eq!((slots.insert(100), slots.replace(3, 1003)), (100, Some(3)));
        for index in indices {
            assert!(slots.remove(index).is_some());
        }
        assert_eq!(slots.slots.len(), 101);
        assert_eq!(slots.remove(100), Some(100));
        assert_eq!(slots.slots.capacity(), 0);
        assert_eq!((slots.remove(0), slots.insert(5)), (None, 0));
        assert_eq!(slots.into_values().collect::<Vec<_>>(), [5]);
    }
}
