//! Who is registered: keys, and one live cell for each descriptor number.

use core::fmt;

use crate::{
    arena::{Arena, reserve_one},
    cell::{CellPtr, Flags},
    turn::ReactorOps,
};

/// The name of one registration: a place and its generation.
///
/// A descriptor's number comes again as soon as it is closed. A key does not, in any reactor of the
/// process: one that is stale, of another reactor or of another kind finds nothing (`NotFound`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// What a key names. It stands in the upper two bits of the index.
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
    /// The key of a cell that is in no reactor.
    pub(crate) const UNREGISTERED: Self = Self(u64::MAX);

    pub(crate) const fn new(kind: Kind, (index, generation): (u32, u32)) -> Self {
        Self((generation as u64) << 32 | (kind as u64) << 30 | index as u64)
    }

    /// Index and generation, if the key is of this kind.
    pub(crate) fn parts(self, kind: Kind) -> Option<(u32, u32)> {
        let [low, generation] =
            [self.0 & 0xffff_ffff, self.0 >> 32].map(|half| u32::try_from(half).unwrap_or(0));
        (low >> 30 == kind as u32).then_some((low & INDEX_BITS, generation))
    }

    /// The key as a number, to carry it where only a number fits. Equal keys have equal numbers.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// A key of a number from [`to_bits`](Self::to_bits), or any other: one that names nothing is
    /// `NotFound` wherever it is used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// What it names, its place, and the place's generation: `Key(timer 3 #7)`. The place is no
/// descriptor's number.
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

/// What the table knows of a descriptor's number.
#[derive(Clone, Copy, Default)]
struct Number(u8);

impl Number {
    /// A live cell has the number, or one that has deleted itself and whose handler still runs.
    const TAKEN: u8 = 1;
    /// The epoll set may have an entry under this number that belongs to nobody (rule 7).
    const TAINTED: u8 = 2;
}

/// The cells of a reactor, by key and by descriptor number.
pub(crate) struct Registry<R: ReactorOps> {
    cells: Arena<CellPtr<R>>,
    /// By number (rule 7: one live cell a number, decided here before the kernel is asked).
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

    /// Whether a live cell, or one that is just leaving, has the number.
    pub(crate) fn is_taken(&self, fd: i32) -> bool {
        self.number(fd).0 & Number::TAKEN != 0
    }

    /// Whether the epoll set may have an entry of nobody under the number.
    pub(crate) fn is_tainted(&self, fd: i32) -> bool {
        self.number(fd).0 & Number::TAINTED != 0
    }

    pub(crate) fn taint(&mut self, fd: i32) {
        self.number_mut(fd).0 |= Number::TAINTED;
    }

    /// The epoll set has been built anew: no number is tainted any more.
    pub(crate) fn cleanse(&mut self) {
        for number in &mut self.numbers {
            number.0 &= !Number::TAINTED;
        }
        for (_, _, cell) in self.cells.iter() {
            cell.set_flag(Flags::TAINTED, false);
        }
    }

    /// The key that [`insert`](Self::insert) will give to the next cell.
    pub(crate) fn next_key(&mut self) -> Key {
        Key::new(Kind::Descriptor, self.cells.next(MAX_INDEX))
    }

    /// Enters a cell whose key, number and so on are set. The mark says when.
    pub(crate) fn insert(&mut self, cell: CellPtr<R>, mark: u32) {
        self.number_mut(cell.fd()).0 |= Number::TAKEN;
        self.cells.insert_noted(cell, mark);
    }

    /// The mark that a registered cell was entered with.
    pub(crate) fn mark(&self, cell: CellPtr<R>) -> u32 {
        let (index, generation) =
            cell.key().parts(Kind::Descriptor).expect("a registered cell has a key");
        self.cells.note(index, generation).expect("a registered cell has a place")
    }

    /// The cell that a key of the user's names.
    pub(crate) fn get(&self, key: Key) -> Option<CellPtr<R>> {
        self.find(key).filter(|cell| !cell.has_flag(Flags::HIDDEN))
    }

    /// The cell that a key of the user's or of the reactor's streams names.
    pub(crate) fn find(&self, key: Key) -> Option<CellPtr<R>> {
        let (index, generation) = key.parts(Kind::Descriptor)?;
        let cell = *self.cells.get(index, generation)?;
        (!cell.has_flag(Flags::INTERNAL)).then_some(cell)
    }

    /// Strikes a cell: its key is stale from here on. The number stays taken if the cell is
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

    /// The handler of the cell that was leaving has returned.
    pub(crate) fn release_number(&mut self, fd: i32) {
        self.number_mut(fd).0 &= !Number::TAKEN;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = CellPtr<R>> {
        self.cells.iter().map(|(_, _, cell)| *cell)
    }

    /// Strikes any one cell; for taking the reactor apart.
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
