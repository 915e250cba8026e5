//! Copies of bytes to send, which stay at their addresses until their sends are submitted.
//!
//! # The protocol of this module
//!
//! 1. A copy is neither moved, changed nor freed before [`Copies::clear`].
//! 2. [`Copies::clear`] begins a new generation. No other one, of these copies or of others in the
//!    process, has the same number. So the address of a [`Copied`] is used only while its copy
//!    exists.

#![allow(unsafe_code, reason = "bytes are written to and read from chunks; the protocol above")]

use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

/// The size of a chunk of copies, in bytes.
pub(super) const CHUNK: usize = 64 << 10;

/// The maximum number of chunks kept for reuse.
const CHUNKS_KEPT: usize = 16;

/// Copies of bytes. They stay at their addresses until all are released.
pub(super) struct Copies {
    /// Boxes of [`CHUNK`] bytes, as raw pointers: moving or reborrowing a box would invalidate the
    /// pointers that sends have into it.
    chunks: Vec<NonNull<[u8; CHUNK]>>,
    /// The chunk in use, and the number of its bytes in use.
    chunk: usize,
    used: usize,
    /// A number that changes with every release of all copies. No other list of copies has it.
    generation: u64,
}

/// A copy of bytes, valid for one generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    generation: u64,
    start: *const u8,
    len: usize,
}

// SAFETY: The pointer is only read by the `Copies` that have the generation's number, on their
// thread (protocol 2).
unsafe impl Send for Copied {}

impl Copied {
    /// No copy. No generation has the number zero.
    pub(crate) const NONE: Self = Self { generation: 0, start: ptr::null(), len: 0 };
}

impl Default for Copies {
    fn default() -> Self {
        Self { chunks: Vec::new(), chunk: 0, used: 0, generation: next_generation() }
    }
}

/// A number that no list of copies has had before.
fn next_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Copies {
    /// Whether a copy is of this generation.
    #[inline]
    pub(super) fn has(&self, copied: Copied) -> bool {
        copied.generation == self.generation
    }

    /// The address and the length of a copy, which must be of this generation.
    #[inline]
    pub(super) fn find(&self, copied: Copied) -> (*const u8, usize) {
        assert!(self.has(copied), "it is a copy of this generation");
        (copied.start, copied.len)
    }

    /// Copies bytes, so that they can be found for other streams.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Copied {
        Copied { start: self.keep(bytes), generation: self.generation, len: bytes.len() }
    }

    /// Copies bytes, and returns their address.
    #[inline]
    pub(super) fn keep(&mut self, bytes: &[u8]) -> *const u8 {
        assert!(bytes.len() <= CHUNK, "longer ones are sent without the ring");
        if self.used + bytes.len() > CHUNK {
            (self.chunk, self.used) = (self.chunk + 1, 0);
        }
        if self.chunk == self.chunks.len() {
            self.add_chunk();
        }
        // SAFETY: `used` plus the length of the bytes is at most the chunk's size, and the chunk is
        // allocated until `let_go`.
        let place = unsafe { self.chunks[self.chunk].cast::<u8>().add(self.used) };
        self.used += bytes.len();
        // SAFETY: The destination has room for the bytes and does not overlap them: only this
        // function writes to a chunk, and all copies made before lie in front of it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
        place.as_ptr()
    }

    #[cold]
    #[inline(never)]
    fn add_chunk(&mut self) {
        let chunk: Box<[u8; CHUNK]> = match vec![0; CHUNK].into_boxed_slice().try_into() {
            Ok(chunk) => chunk,
            Err(_) => unreachable!("it has as many bytes"),
        };
        self.chunks.push(NonNull::from(Box::leak(chunk)));
    }

    /// Releases all copies. No send has a pointer to one.
    pub(super) fn clear(&mut self) {
        if self.used == 0 && self.chunk == 0 {
            return;
        }
        self.let_go(CHUNKS_KEPT);
        (self.chunk, self.used, self.generation) = (0, 0, next_generation());
    }

    /// Frees all but the first `kept` chunks.
    fn let_go(&mut self, kept: usize) {
        for chunk in self.chunks.drain(kept.min(self.chunks.len())..) {
            // SAFETY: It came from a box of this type and was removed from the list. No send has a
            // pointer into it (protocol 1).
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.let_go(0);
    }
}

#[cfg(test)]
mod tests {
    use core::slice;

    use super::*;

    #[test]
    fn copies_stay_where_they_are_and_few_chunks_are_kept() {
        let mut copies = Copies::default();
        let made: Vec<_> = (0..2000_u32).map(|index| copies.copy(&[index as u8; 1000])).collect();
        for (index, copied) in made.into_iter().enumerate() {
            let (start, len) = copies.find(copied);
            // SAFETY: a copy is neither changed nor freed before `clear` (protocol 1).
            let bytes = unsafe { slice::from_raw_parts(start, len) };
            assert_eq!(bytes, [index as u8; 1000]);
        }
        assert!(copies.chunks.len() > CHUNKS_KEPT);
        copies.clear();
        assert_eq!(copies.chunks.len(), CHUNKS_KEPT);
    }

    #[test]
    #[should_panic(expected = "it is a copy of this generation")]
    fn a_copy_of_an_earlier_generation_is_not_found() {
        let mut copies = Copies::default();
        let copied = copies.copy(b"old");
        copies.clear();
        copies.find(copied);
    }
}
