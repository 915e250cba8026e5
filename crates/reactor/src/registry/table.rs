//! The registry: one live cell for each key and each descriptor number.

use crate::{
    api::{
        key::{Key, KeyKind, MAX_INDEX},
        ops::ReactorOps,
    },
    cell::{CellFlags, CellPtr, OwnedCell},
    util::arena::{Arena, reserve},
};

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
    cells: Arena<OwnedCell<R>>,
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
        if self.numbers.len() <= index {
            let missing = index + 1 - self.numbers.len();
            reserve(&mut self.numbers, missing);
            self.numbers.resize(index + 1, Number::default());
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
    pub(crate) fn clear_taint(&mut self) {
        for number in &mut self.numbers {
            number.0 &= !Number::TAINTED;
        }
        for (_, _, cell) in self.cells.iter() {
            cell.set_flag(CellFlags::TAINTED, false);
        }
    }

    /// The key that [`insert`](Self::insert) will assign to the next cell.
    pub(crate) fn next_key(&mut self) -> Key {
        Key::new(KeyKind::Descriptor, self.cells.next(MAX_INDEX))
    }

    /// Names a registered cell, or takes its name away.
    pub(crate) fn set_name(&mut self, cell: CellPtr<R>, name: Option<Box<str>>) {
        self.cells.set_name(Self::place(cell), name);
    }

    /// The name of a registered cell.
    pub(crate) fn name(&self, cell: CellPtr<R>) -> Option<&str> {
        self.cells.name(Self::place(cell).0)
    }

    /// Adds a cell whose key, number and flags are set. `mark` is the current turn's mark.
    pub(crate) fn insert(&mut self, cell: OwnedCell<R>, mark: u32) {
        self.number_mut(cell.fd()).0 |= Number::TAKEN;
        self.cells.insert_noted(cell, mark);
    }

    /// The slot of a registered cell: its index and its generation.
    fn place(cell: CellPtr<R>) -> (u32, u32) {
        cell.key().parts(KeyKind::Descriptor).expect("a registered cell has a key")
    }

    /// The mark that was passed when the cell was added.
    pub(crate) fn mark(&self, cell: CellPtr<R>) -> u32 {
        let (index, generation) = Self::place(cell);
        self.cells.note(index, generation).expect("a registered cell has a place")
    }

    /// The cell that a user's key names.
    pub(crate) fn get(&self, key: Key) -> Option<CellPtr<R>> {
        self.find(key).filter(|cell| !cell.has_flag(CellFlags::HIDDEN))
    }

    /// The cell that a key of the user or of the reactor's streams names.
    pub(crate) fn find(&self, key: Key) -> Option<CellPtr<R>> {
        let (index, generation) = key.parts(KeyKind::Descriptor)?;
        let cell = **self.cells.get(index, generation)?;
        (!cell.has_flag(CellFlags::INTERNAL)).then_some(cell)
    }

    /// A registered cell, as its owner holds it.
    pub(crate) fn owned(&self, cell: CellPtr<R>) -> OwnedCell<R> {
        let (index, generation) = Self::place(cell);
        *self.cells.get(index, generation).expect("a registered cell has a place")
    }

    /// Removes a cell and gives it up. Its key is stale afterwards. The number stays taken if the
    /// cell is `leaving`.
    pub(crate) fn remove(&mut self, cell: CellPtr<R>, leaving: bool) -> OwnedCell<R> {
        let (index, generation) = Self::place(cell);
        let removed = self.cells.remove(index, generation).expect("a registered cell has a place");
        debug_assert_eq!(*removed, cell, "the table and the cell disagree");
        if !leaving {
            self.release_number(cell.fd());
        }
        removed
    }

    /// Releases the number of a cell that was leaving and whose handler has returned.
    pub(crate) fn release_number(&mut self, fd: i32) {
        self.number_mut(fd).0 &= !Number::TAKEN;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = CellPtr<R>> {
        self.cells.iter().map(|(_, _, cell)| **cell)
    }

    /// Removes an arbitrary cell, when the reactor is dropped or taken apart.
    pub(crate) fn pop(&mut self) -> Option<OwnedCell<R>> {
        self.cells.pop().map(|(_, _, cell)| cell)
    }
}
