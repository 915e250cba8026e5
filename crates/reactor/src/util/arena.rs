//! A growing array whose slots are named by index and generation. A stale name finds nothing.

use std::collections::BTreeMap;

use crate::util::{
    generations::{BLOCK, Generations, PROCESS},
    prefetch::prefetch,
};

/// The end of the free list.
const NONE: u32 = u32::MAX;

/// Capacity grows by an eighth, to keep the unused share of each registration small (a registration
/// is bounded by 64 bytes).
const GROWTH_DIVISOR: usize = 8;

/// From this many bytes on, a table of [`LARGE`] elements grows to [`PAGES`] at once.
const MANY: usize = 32 << 10;

/// From this size on, common allocators give a block its own pages (glibc: `M_MMAP_THRESHOLD`,
/// mallopt(3)). Untouched pages are not resident, and growing maps more pages without copying.
/// Below this size each growth leaves a hole in the heap. With several thousand streams, the holes
/// were a noticeable part of their resident memory.
const PAGES: usize = 128 << 10;

/// Elements of at least this size make up most of a registration's table memory.
const LARGE: usize = 32;

/// Makes room for one more element.
pub(crate) fn reserve_one<T>(vec: &mut Vec<T>) {
    reserve(vec, 1);
}

/// Makes room for so many more elements. A full table grows by an eighth at least, or up to the
/// size where growing is cheap.
pub(crate) fn reserve<T>(vec: &mut Vec<T>, count: usize) {
    if vec.capacity() - vec.len() < count {
        grow(vec, count);
    }
}

#[cold]
fn grow<T>(vec: &mut Vec<T>, count: usize) {
    let bytes = size_of::<T>() * vec.len();
    let more = if size_of::<T>() >= LARGE && (MANY..PAGES).contains(&bytes) {
        PAGES.div_ceil(size_of::<T>()) - vec.len()
    } else {
        vec.len() / GROWTH_DIVISOR
    };
    vec.reserve_exact(more.max(count).max(8));
}

#[cold]
#[inline(never)]
fn forget_name(names: &mut BTreeMap<u32, Box<str>>, index: u32) {
    names.remove(&index);
}

/// Values that are found by index and generation.
///
/// A slot's generation rises when the slot is vacated. Generations are drawn for the whole process,
/// so no name is ever reused, in this arena or another. A slot without generations left is retired.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    slots: Vec<ArenaSlot<T>>,
    free: u32,
    len: usize,
    generations: &'static Generations,
    /// The first generation of new slots.
    fresh: u32,
    /// The block of indices that `fresh` was drawn for; `NONE` before the first draw.
    fresh_block: u32,
    /// The names of values that have one, by index. A name goes with its value.
    names: BTreeMap<u32, Box<str>>,
}

/// The order of the fields is fixed: the generation is next to the first fields of the value, and
/// likely in the same line of the cache.
#[derive(Debug)]
#[repr(C)]
struct ArenaSlot<T> {
    generation: u32,
    /// The next free slot while this slot is free, otherwise the note of its value.
    link: u32,
    value: Option<T>,
}

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self::of(&PROCESS)
    }

    const fn of(generations: &'static Generations) -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            len: 0,
            generations,
            fresh: 0,
            fresh_block: NONE,
            names: BTreeMap::new(),
        }
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The index and the generation that the next [`insert`](Self::insert) will use.
    ///
    /// # Panics
    /// After `max_index` slots. The callers' own limits are far below.
    #[inline(always)]
    pub(crate) fn next(&mut self, max_index: u32) -> (u32, u32) {
        match self.slots.get(self.free as usize) {
            Some(slot) => (self.free, slot.generation),
            None => {
                let index = self.fresh_slot();
                assert!(index <= max_index, "an arena has used up its slots");
                (index, self.fresh)
            }
        }
    }

    /// The index of a new slot. Its generation is then in `fresh`.
    fn fresh_slot(&mut self) -> u32 {
        loop {
            let index = u32::try_from(self.slots.len()).unwrap_or(NONE);
            let block = index / BLOCK;
            if block == self.fresh_block {
                return index;
            }
            self.fresh_block = block;
            match self.generations.draw(index) {
                Some(generation) => self.fresh = generation,
                // No generations are left for these indices, so the block stays empty.
                None => self.slots.extend((0..BLOCK).map(|_| ArenaSlot {
                    generation: 0,
                    link: NONE,
                    value: None,
                })),
            }
        }
    }

    /// Stores a value in the slot that [`next`](Self::next) returned.
    pub(crate) fn insert(&mut self, value: T) {
        self.insert_noted(value, 0);
    }

    /// The same, with a number that [`note`](Self::note) returns while the value exists.
    pub(crate) fn insert_noted(&mut self, value: T, note: u32) {
        self.len += 1;
        if let Some(slot) = self.slots.get_mut(self.free as usize) {
            self.free = slot.link;
            slot.link = note;
            slot.value = Some(value);
        } else {
            reserve_one(&mut self.slots);
            self.slots.push(ArenaSlot { generation: self.fresh, link: note, value: Some(value) });
        }
    }

    /// The number stored with a value.
    pub(crate) fn note(&self, index: u32, generation: u32) -> Option<u32> {
        self.get(index, generation).map(|_| self.slots[index as usize].link)
    }

    /// The number stored with the value at an index that is known to be occupied.
    pub(crate) fn note_at(&self, index: u32) -> u32 {
        self.slots[index as usize].link
    }

    /// Changes the number stored with the value at an index that is known to be occupied.
    pub(crate) fn set_note(&mut self, index: u32, note: u32) {
        self.slots[index as usize].link = note;
    }

    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        if slot.generation == generation { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation == generation { slot.value.as_mut() } else { None }
    }

    /// The value at an index.
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    /// The value at an index.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// Tells the processor that the value at an index is read soon.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            prefetch(slot);
        }
    }

    /// Names a value, or takes its name away. False if there is no such value.
    pub(crate) fn set_name(
        &mut self,
        (index, generation): (u32, u32),
        name: Option<Box<str>>,
    ) -> bool {
        if self.get(index, generation).is_none() {
            return false;
        }
        match name {
            Some(name) => self.names.insert(index, name),
            None => self.names.remove(&index),
        };
        true
    }

    /// The name of the value at an index that is known to be occupied.
    pub(crate) fn name(&self, index: u32) -> Option<&str> {
        self.names.get(&index).map(|name| &**name)
    }

    /// The generation of an index that is known to be occupied.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.slots[index as usize].generation
    }

    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        self.len -= 1;
        slot.generation = slot.generation.wrapping_add(1);
        if !self.names.is_empty() {
            forget_name(&mut self.names, index);
        }
        if Generations::begins_range(slot.generation) {
            match self.generations.draw(index) {
                Some(generation) => slot.generation = generation,
                None => return Some(value),
            }
        }
        slot.link = self.free;
        self.free = index;
        Some(value)
    }

    /// Index, generation and value of each occupied slot, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        (0u32..)
            .zip(&self.slots)
            .filter_map(|(i, slot)| Some((i, slot.generation, slot.value.as_ref()?)))
    }

    /// Removes the last value of the array, if any, when everything is taken apart.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32, T)> {
        while let Some(slot) = self.slots.pop() {
            if let Some(value) = slot.value {
                self.len -= 1;
                let index = u32::try_from(self.slots.len()).unwrap_or(NONE);
                return Some((index, slot.generation, value));
            }
        }
        self.free = NONE;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    const MAX: u32 = u32::MAX - 1;

    fn put(arena: &mut Arena<u32>, value: u32) -> (u32, u32) {
        let name = arena.next(MAX);
        arena.insert(value);
        name
    }

    /// Generations for the arenas of one test. They are reachable until the process ends, so that
    /// leak checkers do not report them.
    fn generations() -> &'static Generations {
        static KEPT: Mutex<Vec<&'static Generations>> = Mutex::new(Vec::new());
        let generations = Box::leak(Box::new(Generations::new()));
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(generations);
        generations
    }

    #[test]
    fn a_name_finds_its_value_until_it_is_removed() {
        let mut arena = Arena::of(generations());
        let (a, b) = (put(&mut arena, 1), put(&mut arena, 2));
        assert_eq!(
            (arena.get(a.0, a.1), arena.get(b.0, b.1), arena.len()),
            (Some(&1), Some(&2), 2)
        );
        assert_eq!(arena.remove(a.0, a.1), Some(1));
        assert_eq!(
            (arena.get(a.0, a.1).copied(), arena.remove(a.0, a.1), arena.len()),
            (None, None, 1)
        );
        let c = put(&mut arena, 3);
        assert_eq!(c, (a.0, a.1 + 1), "the slot is used again under the next generation");
        assert_eq!((arena.get(a.0, a.1), arena.get(c.0, c.1)), (None, Some(&3)));
    }

    #[test]
    fn a_note_is_told_while_its_value_is_there() {
        let mut arena = Arena::of(generations());
        let (index, generation) = arena.next(MAX);
        arena.insert_noted(1, 77);
        assert_eq!(
            (arena.note(index, generation), arena.note(index, generation + 1)),
            (Some(77), None)
        );
        arena.remove(index, generation);
        assert_eq!(arena.note(index, generation), None);
        let other = put(&mut arena, 2);
        assert_eq!((other.0, arena.note(other.0, other.1)), (index, Some(0)));
    }

    /// In an earlier version, reactors started at offsets of their own. The names of two reactors,
    /// with 10,945 others created between them, met after 82,466 reuses of a slot.
    #[test]
    fn a_name_of_another_arena_finds_nothing_however_often_a_place_is_used_again() {
        let generations = generations();
        let (mut first, between) = (Arena::of(generations), if cfg!(miri) { 10 } else { 10_945 });
        let theirs = put(&mut first, 1);
        for _ in 0..between {
            put(&mut Arena::of(generations), 1);
        }
        let mut last = Arena::of(generations);
        let ours = put(&mut last, 2);
        let mut seen = std::collections::BTreeSet::from([theirs, ours]);
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            for (arena, own, other) in [(&mut first, theirs, ours), (&mut last, ours, theirs)] {
                assert_eq!(arena.get(other.0, other.1), None);
                // The second slot is reused repeatedly, so it differs from the other arena's own.
                let name = put(arena, 3);
                assert!(seen.insert(name), "{name:?} comes twice");
                arena.remove(name.0, name.1);
                assert!(arena.get(own.0, own.1).is_some());
            }
        }
    }

    #[test]
    fn places_whose_generations_are_used_up_are_retired() {
        let generations = generations();
        let mut arena = Arena::of(generations);
        let first = put(&mut arena, 1);
        generations.use_up(0);
        // Uses the rest of the range that the slot already has.
        let mut name = first;
        let mut count = 0;
        while name.0 == first.0 {
            assert_eq!(arena.remove(name.0, name.1), Some(1));
            name = put(&mut arena, 1);
            count += 1;
        }
        assert_eq!(
            (count, name),
            (256, (1, first.1)),
            "the next slot of the block has the range, too"
        );
        let stale =
            (0..=256).filter(|step| arena.get(first.0, first.1.wrapping_add(*step)).is_some());
        assert_eq!(stale.count(), 0);
        // A new arena has no slot in that block at all.
        let mut other = Arena::of(generations);
        let names: Vec<_> = (0..3).map(|value| put(&mut other, value)).collect();
        assert_eq!(
            names.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
            [BLOCK, BLOCK + 1, BLOCK + 2]
        );
        assert_eq!(other.iter().count(), 3);
        assert_eq!((other.get(0, 0).copied(), other.remove(0, 0)), (None, None));
    }

    #[test]
    fn a_table_grows_by_little_and_a_large_one_by_pages() {
        let capacities = |len| {
            let (mut small, mut large) = (Vec::<u8>::new(), Vec::<[u64; 8]>::new());
            for _ in 0..len {
                reserve_one(&mut small);
                small.push(0);
                reserve_one(&mut large);
                large.push([0; 8]);
            }
            (small.capacity(), large.capacity())
        };
        assert_eq!(capacities(1), (8, 8));
        let (small, large) = capacities(500);
        assert!(small <= 563 && large <= 563, "{small} {large}");
        let (small, large) = capacities(600);
        assert!(small <= 675 && large == 2048, "{small} {large}");
        assert!(capacities(3000).1 <= 3375);
    }

    #[test]
    fn pop_takes_everything() {
        let mut arena = Arena::of(generations());
        let a = put(&mut arena, 1);
        put(&mut arena, 2);
        arena.remove(a.0, a.1);
        assert_eq!(arena.pop().map(|(_, _, v)| v), Some(2));
        assert!(arena.pop().is_none());
        assert_eq!(arena.len(), 0);
    }
}
