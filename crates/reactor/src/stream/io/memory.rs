//! The memory that the streams of a reactor hold for buffered bytes, in both directions.
//!
//! 1. Each owner of such memory adds it here when it allocates, and subtracts it when it frees it,
//!    also if a panic drops the owner.
//! 2. Shared bytes count once, however many streams hold them: the table has their number of
//!    holders.
//! 3. A stream without buffered bytes never uses this module.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

/// The memory of a shared piece beside its bytes: its place in the output, and the counts of the
/// `Arc`.
const PIECE: usize = 48;

/// The total of one reactor.
#[derive(Debug, Default)]
pub(crate) struct BufferMemory {
    bytes: Cell<usize>,
    /// The number of pieces that hold the shared bytes, by address. The address stays valid as long
    /// as one piece holds them.
    shared: RefCell<BTreeMap<usize, usize>>,
}

impl BufferMemory {
    pub(in crate::stream) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(in crate::stream) fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    pub(in crate::stream) fn subtract(&self, bytes: usize) {
        debug_assert!(self.bytes.get() >= bytes, "what is taken off was counted");
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Adds a piece that holds these bytes.
    pub(in crate::stream) fn hold(&self, bytes: &Arc<[u8]>) {
        let mut shared = self.shared.borrow_mut();
        let pieces = shared.entry(address(bytes)).or_insert(0);
        *pieces += 1;
        self.add(PIECE + if *pieces == 1 { bytes.len() } else { 0 });
    }

    /// Removes a piece that held these bytes, just before it is dropped.
    pub(in crate::stream) fn release(&self, bytes: &Arc<[u8]>) {
        let mut shared = self.shared.borrow_mut();
        let Some(pieces) = shared.get_mut(&address(bytes)) else { return };
        *pieces -= 1;
        let is_last = *pieces == 0;
        if is_last {
            shared.remove(&address(bytes));
        }
        self.subtract(PIECE + if is_last { bytes.len() } else { 0 });
    }

    /// A piece's share of the memory of its shared bytes.
    pub(in crate::stream) fn share(&self, bytes: &Arc<[u8]>) -> usize {
        let pieces = self.shared.borrow().get(&address(bytes)).copied().unwrap_or(1);
        PIECE + bytes.len() / pieces.max(1)
    }
}

fn address(bytes: &Arc<[u8]>) -> usize {
    Arc::as_ptr(bytes).cast::<u8>().addr()
}

/// Received bytes that are not delivered yet.
pub(crate) struct Undelivered {
    pub(in crate::stream) bytes: Vec<u8>,
    memory: Rc<BufferMemory>,
}

impl Undelivered {
    pub(in crate::stream) fn new(bytes: Vec<u8>, memory: &Rc<BufferMemory>) -> Self {
        memory.add(bytes.capacity());
        Self { bytes, memory: Rc::clone(memory) }
    }

    pub(in crate::stream) fn into_bytes(mut self) -> Vec<u8> {
        self.memory.subtract(self.bytes.capacity());
        core::mem::take(&mut self.bytes)
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        // The handler may change the bytes, but not their capacity.
        self.memory.subtract(self.bytes.capacity());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_count_once_until_the_last_piece_is_gone() {
        let memory = BufferMemory::default();
        let bytes: Arc<[u8]> = vec![0; 1000].into();
        // The user's own clone is not counted, and must not keep the bytes counted.
        let _clone = Arc::clone(&bytes);
        for _ in 0..4 {
            memory.hold(&bytes);
        }
        assert_eq!((memory.bytes(), memory.share(&bytes)), (1000 + 4 * PIECE, 250 + PIECE));
        for _ in 0..3 {
            memory.release(&bytes);
        }
        assert_eq!((memory.bytes(), memory.share(&bytes)), (1000 + PIECE, 1000 + PIECE));
        memory.release(&bytes);
        assert_eq!((memory.bytes(), memory.shared.borrow().len()), (0, 0));
    }

    #[test]
    fn undelivered_bytes_count_as_long_as_they_are_there() {
        let memory = Rc::new(BufferMemory::default());
        let undelivered = Undelivered::new(Vec::with_capacity(500), &memory);
        assert_eq!(memory.bytes(), 500);
        drop(undelivered);
        assert_eq!(memory.bytes(), 0);
    }
}
