//! A growing array whose places are named by index and generation, so that a stale name finds nothing.

/// The next free place, where there is none.
const NONE: u32 = u32::MAX;

/// Capacity grows by an eighth: a registration's share of it stays small (the 64-byte bound of a registration).
const GROWTH_DIVISOR: usize = 8;

/// A table of [`LARGE`] elements that has come to this many bytes is about to have [`PAGES`].
const MANY: usize = 32 << 10;

/// From so many bytes on the common allocators give a block pages of its own (glibc: `M_MMAP_THRESHOLD`, mallopt(3)): those that nothing was written to are not resident, and to
/// grow is to map more of them, not to copy. Below it each growth leaves a hole behind, and by several thousand streams the holes were a tenth of what all of them had resident.
const PAGES: usize = 128 << 10;

/// Elements of this size make up most of what a registration has in tables.
const LARGE: usize = 32;

/// Makes room for one more element and, when it must grow, for an eighth more, or up to where growing is cheap.
pub(crate) fn reserve_one<T>(vec: &mut Vec<T>) {
    if vec.len() == vec.capacity() {
        grow(vec);
    }
}

#[cold]
fn grow<T>(vec: &mut Vec<T>) {
    let bytes = size_of::<T>() * vec.len();
    let more = if size_of::<T>() >= LARGE && (MANY..PAGES).contains(&bytes) {
        PAGES.div_ceil(size_of::<T>()) - vec.len()
    } else {
        vec.len() / GROWTH_DIVISOR
    };
    vec.reserve_exact(more.max(8));
}

/// Values that are found by index and generation.
///
/// A place's generation rises when it is vacated. One whose generations are used up is retired: it would come back
/// to the first one, and with it a name that somebody may still hold.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    places: Vec<Place<T>>,
    free: u32,
    len: usize,
    /// The first generation of every place. It differs between reactors, so that a key of one is not a key of another.
    first_generation: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

impl<T> Arena<T> {
    pub(crate) fn new(first_generation: u32) -> Self {
        Self { places: Vec::new(), free: NONE, len: 0, first_generation }
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The index and the generation that the next [`insert`](Self::insert) will give.
    ///
    /// # Panics
    /// After `max_index` places: the callers bound their number far below.
    pub(crate) fn next(&self, max_index: u32) -> (u32, u32) {
        match self.places.get(self.free as usize) {
            Some(place) => (self.free, place.generation),
            None => {
                let index = u32::try_from(self.places.len()).unwrap_or(NONE);
                assert!(index <= max_index, "an arena has used up its places");
                (index, self.first_generation)
            }
        }
    }

    /// Stores a value at the place that [`next`](Self::next) told.
    pub(crate) fn insert(&mut self, value: T) {
        self.len += 1;
        if let Some(place) = self.places.get_mut(self.free as usize) {
            self.free = place.next_free;
            place.value = Some(value);
        } else {
            reserve_one(&mut self.places);
            self.places.push(Place { generation: self.first_generation, next_free: NONE, value: Some(value) });
        }
    }

    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let place = self.places.get(index as usize)?;
        if place.generation == generation { place.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let place = self.places.get_mut(index as usize)?;
        if place.generation == generation { place.value.as_mut() } else { None }
    }

    /// The value at an index that is known to be taken.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.value.as_mut()
    }

    /// The generation of an index that is known to be taken.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.places[index as usize].generation
    }

    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let place = self.places.get_mut(index as usize)?;
        if place.generation != generation {
            return None;
        }
        let value = place.value.take()?;
        self.len -= 1;
        place.generation = place.generation.wrapping_add(1);
        if place.generation != self.first_generation {
            place.next_free = self.free;
            self.free = index;
        }
        Some(value)
    }

    /// Index, generation and value of each place that is taken, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        (0u32..).zip(&self.places).filter_map(|(i, place)| Some((i, place.generation, place.value.as_ref()?)))
    }

    /// Takes the last value of the array, if there is one; for taking everything apart.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32, T)> {
        while let Some(place) = self.places.pop() {
            if let Some(value) = place.value {
                self.len -= 1;
                let index = u32::try_from(self.places.len()).unwrap_or(NONE);
                return Some((index, place.generation, value));
            }
        }
        self.free = NONE;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(arena: &mut Arena<u32>, value: u32) -> (u32, u32) {
        let name = arena.next(u32::MAX - 1);
        arena.insert(value);
        name
    }

    #[test]
    fn a_name_finds_its_value_until_it_is_removed() {
        let mut arena = Arena::new(7);
        let (a, b) = (put(&mut arena, 1), put(&mut arena, 2));
        assert_eq!((arena.get(a.0, a.1), arena.get(b.0, b.1), arena.len()), (Some(&1), Some(&2), 2));
        assert_eq!(arena.remove(a.0, a.1), Some(1));
        assert_eq!((arena.get(a.0, a.1).copied(), arena.remove(a.0, a.1), arena.len()), (None, None, 1));
        let c = put(&mut arena, 3);
        assert_eq!(c, (a.0, a.1 + 1), "the place is used again under the next generation");
        assert_eq!((arena.get(a.0, a.1), arena.get(c.0, c.1)), (None, Some(&3)));
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_retired() {
        let mut arena = Arena::new(5);
        let (index, _) = put(&mut arena, 1);
        arena.places[index as usize].generation = 4; // the last one before 5 comes round again
        assert_eq!(arena.remove(index, 4), Some(1));
        let (next, generation) = put(&mut arena, 2);
        assert_eq!((next, generation), (index + 1, 5));
        assert_eq!(arena.get(index, 5), None, "the first generation's name stays dead");
    }

    #[test]
    fn a_generation_of_another_reactor_finds_nothing() {
        let (mut ours, mut theirs) = (Arena::new(100), Arena::new(1 << 20));
        let key = put(&mut theirs, 1);
        put(&mut ours, 2);
        assert_eq!(ours.get(key.0, key.1), None);
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
        let mut arena = Arena::new(1);
        let a = put(&mut arena, 1);
        put(&mut arena, 2);
        arena.remove(a.0, a.1);
        assert_eq!(arena.pop().map(|(_, _, v)| v), Some(2));
        assert!(arena.pop().is_none());
        assert_eq!(arena.len(), 0);
    }
}
