//! The registry: keys, and one live cell for each descriptor number.

use core::fmt;

use crate::{
    api::turn::ReactorOps,
    cell::{CellPtr, Flags},
    util::arena::{Arena, reserve_one},
};

/// The key of one registration: an index and its generation.
///
/// The kernel reuses a descriptor number as soon as it is closed. A key is never reused, in any
/// reactor of the process. A key that is stale, from another reactor or of another kind gives
/// `NotFound`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// The kind of object a key names, stored in the upper two bits of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Descriptor = 0,
    Timer = 1,
    Group = 2,
    Stream = 3,
}

/// The largest index that leaves room for the kind.
pub(crate) const MAX_INDEX: u32 = (1 << 30) - 2;
/// The bits of an index.
const INDEX_BITS: u32 = (1 << 30) - 1;

impl Key {
    /// The key of a cell that is not registered.
    pub(crate) const UNREGISTERED: Self = Self(u64::MAX);

    pub(crate) const fn new(kind: Kind, (index, generation): (u32, u32)) -> Self {
        Self((generation as u64) << 32 | (kind as u64) << 30 | index as u64)
    }

    /// The index and the generation, if the key is of this kind.
    pub(crate) fn parts(self, kind: Kind) -> Option<(u32, u32)> {
        let [low, generation] =
            [self.0 & 0xffff_ffff, self.0 >> 32].map(|half| u32::try_from(half).unwrap_or(0));
        (low >> 30 == kind as u32).then_some((low & INDEX_BITS, generation))
    }

    /// The key as a number, for places that store only a number. Equal keys have equal numbers.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Makes a key from a number, normally one from [`to_bits`](Self::to_bits). A key that names
    /// nothing gives `NotFound` wherever it is used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// Prints the kind, the index and the generation: `Key(timer 3 #7)`. The index is not a descriptor
/// number.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNREGISTERED {
            return f.write_str("Key(none)");
        }
        for (kind, name) in [
            (Kind::Descriptor, "descriptor"),
            (Kind::Timer, "timer"),
            (Kind::Group, "group"),
            (Kind::Stream, "stream"),
        ] {
            if let Some((index, generation)) = self.parts(kind) {
                return write!(f, "Key({name} {index} #{generation})");
            }
        }
        unreachable!("two bits have four values")
    }
}

/// The state of a descriptor number.
#[derive(Clone, Copy, Default)]
struct Number(u8);

impl Number {
    /// A live cell has the number, or a cell that has deleted itself and whose handler still runs.
    const TAKEN: u8 = 1;
    /// The epoll set may have an entry under this number that belongs to no cell (rule 7).
    const TAINTED: u8 = 2;
}

/// The cells of a reactor, by key and by descriptor number.
pub(crate) struct Registry<R: ReactorOps> {
    cells: Arena<CellPtr<R>>,
    /// By number (rule 7: one live cell for each number, checked before the kernel is called).
    numbers: Vec<Number>,
}

impl<R: ReactorOps> Registry<R> {
    pub(crate) const fn new() -> Self {
        Self { cells: Arena::new(), numbers: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    fn number(&self, fd: i32) -> Number {
        usize::try_from(fd).ok().and_then(|fd| self.numbers.get(fd)).copied().unwrap_or_default()
    }

    fn number_mut(&mut self, fd: i32) -> &mut Number {
        let index = usize::try_from(fd).expect("a registered descriptor is not negative");
        while self.numbers.len() <= index {
            reserve_one(&mut self.numbers);
            self.numbers.push(Number::default());
        }
        &mut self.numbers[index]
    }

    /// Whether the number belongs to a live cell, or to one that deleted itself and still runs.
    pub(crate) fn is_taken(&self, fd: i32) -> bool {
        self.number(fd).0 & Number::TAKEN != 0
    }

    /// Whether the epoll set may have an entry under the number that belongs to no cell.
    pub(crate) fn is_tainted(&self, fd: i32) -> bool {
        self.number(fd).0 & Number::TAINTED != 0
    }

    pub(crate) fn taint(&mut self, fd: i32) {
        self.number_mut(fd).0 |= Number::TAINTED;
    }

    /// Clears all taint, because the epoll set has been rebuilt.
    pub(crate) fn cleanse(&mut self) {
        for number in &mut self.numbers {
            number.0 &= !Number::TAINTED;
        }
        for (_, _, cell) in self.cells.iter() {
            cell.set_flag(Flags::TAINTED, false);
        }
    }

    /// The key that [`insert`](Self::insert) will assign to the next cell.
    pub(crate) fn next_key(&mut self) -> Key {
        Key::new(Kind::Descriptor, self.cells.next(MAX_INDEX))
    }

    /// Adds a cell whose key, number and flags are set. `mark` is the current turn's mark.
    pub(crate) fn insert(&mut self, cell: CellPtr<R>, mark: u32) {
        self.number_mut(cell.fd()).0 |= Number::TAKEN;
        self.cells.insert_noted(cell, mark);
    }

    /// The mark that was passed when the cell was added.
    pub(crate) fn mark(&self, cell: CellPtr<R>) -> u32 {
        let (index, generation) =
            cell.key().parts(Kind::Descriptor).expect("a registered cell has a key");
        self.cells.note(index, generation).expect("a registered cell has a place")
    }

    /// The cell that a user's key names.
    pub(crate) fn get(&self, key: Key) -> Option<CellPtr<R>> {
        self.find(key).filter(|cell| !cell.has_flag(Flags::HIDDEN))
    }

    /// The cell that a key of the user or of the reactor's streams names.
    pub(crate) fn find(&self, key: Key) -> Option<CellPtr<R>> {
        let (index, generation) = key.parts(Kind::Descriptor)?;
        let cell = *self.cells.get(index, generation)?;
        (!cell.has_flag(Flags::INTERNAL)).then_some(cell)
    }

    /// Removes a cell. Its key is stale afterwards. The number stays taken if the cell is
    /// `leaving`.
    pub(crate) fn remove(&mut self, cell: CellPtr<R>, leaving: bool) {
        let (index, generation) =
            cell.key().parts(Kind::Descriptor).expect("a registered cell has a key");
        let struck = self.cells.remove(index, generation);
        debug_assert_eq!(struck, Some(cell), "the books and the cell disagree");
        if !leaving {
            self.release_number(cell.fd());
        }
    }

    /// Releases the number of a cell that was leaving and whose handler has returned.
    pub(crate) fn release_number(&mut self, fd: i32) {
        self.number_mut(fd).0 &= !Number::TAKEN;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = CellPtr<R>> {
        self.cells.iter().map(|(_, _, cell)| *cell)
    }

    /// Removes an arbitrary cell, when the reactor is dropped or taken apart.
    pub(crate) fn pop(&mut self) -> Option<CellPtr<R>> {
        self.cells.pop().map(|(_, _, cell)| cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_kind() {
        let key = Key::new(Kind::Timer, (5, 9));
        assert_eq!(key.parts(Kind::Timer), Some((5, 9)));
        assert_eq!(key.parts(Kind::Descriptor), None);
        assert_eq!(Key::from_bits(key.to_bits()), key);
        let last = Key::new(Kind::Group, (MAX_INDEX, u32::MAX));
        assert_eq!(last.parts(Kind::Group), Some((MAX_INDEX, u32::MAX)));
    }

    #[test]
    fn a_key_says_what_it_names() {
        let key = |kind| Key::new(kind, (3, 7));
        let said = [Kind::Descriptor, Kind::Timer, Kind::Group, Kind::Stream]
            .map(|kind| format!("{:?}", key(kind)));
        assert_eq!(
            said,
            ["Key(descriptor 3 #7)", "Key(timer 3 #7)", "Key(group 3 #7)", "Key(stream 3 #7)"]
        );
        assert_eq!(format!("{:?}", Key::UNREGISTERED), "Key(none)");
        assert_eq!(format!("{:?}", Key::from_bits(0)), "Key(descriptor 0 #0)");
    }
}
