//! [`ReadBuffer`]: bytes that were received before they are read.
//!
//! An empty read buffer has no memory. It takes a buffer from the executor's [`SpareBuffers`] with
//! the first bytes, and returns it with the last ones.

use core::{cell::RefCell, mem};

use crate::io::Unfilled;

/// The number of unread bytes from which a stream receives no more.
pub(crate) const READ_BUFFER_MAX: usize = 64 << 10;

/// The number of unused buffers that an executor keeps, each with at most [`SPARE_CAPACITY_MAX`]
/// bytes.
const SPARES_MAX: usize = 64;
const SPARE_CAPACITY_MAX: usize = 16 << 10;

/// Unused buffers of an executor.
#[derive(Default)]
pub(crate) struct SpareBuffers(RefCell<Vec<Vec<u8>>>);

impl SpareBuffers {
    #[inline]
    fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    #[inline]
    fn keep(&self, buffer: Vec<u8>) {
        let mut spares = self.0.borrow_mut();
        if spares.len() < SPARES_MAX && buffer.capacity() <= SPARE_CAPACITY_MAX {
            spares.push(buffer);
        }
    }
}

/// Bytes in the order of their arrival.
#[derive(Default)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    /// The number of bytes at the front that were read.
    start: usize,
}

impl ReadBuffer {
    pub(crate) const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8], spares: &SpareBuffers) {
        if self.bytes.capacity() == 0 {
            self.bytes = spares.take();
        } else if self.start > 0 && self.bytes.len() + bytes.len() > self.bytes.capacity() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Copies bytes without removing them. Returns their number.
    #[inline]
    pub(crate) fn peek<B: Unfilled + ?Sized>(&self, buffer: &mut B) -> usize {
        buffer.put(&self.bytes[self.start..])
    }

    /// Removes bytes from the front. Returns their number.
    #[inline]
    pub(crate) fn read<B: Unfilled + ?Sized>(
        &mut self,
        buffer: &mut B,
        spares: &SpareBuffers,
    ) -> usize {
        let count = self.peek(buffer);
        self.start += count;
        if self.is_empty() {
            let mut emptied = mem::take(self).bytes;
            emptied.clear();
            spares.keep(emptied);
        }
        count
    }

    /// Takes all bytes.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let Self { mut bytes, start } = mem::take(self);
        bytes.drain(..start);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_an_empty_inbox_has_no_memory() {
        let spares = SpareBuffers::default();
        let mut read_buffer = ReadBuffer::default();
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for round in 1..200_usize {
            let bytes: Vec<u8> = (0..round % 17)
                .map(|_| {
                    next_in = next_in.wrapping_add(1);
                    next_in
                })
                .collect();
            read_buffer.push(&bytes, &spares);
            let mut buffer = vec![0; round % 13];
            let count = read_buffer.peek(&mut *buffer);
            let mut again = vec![0; round % 13];
            assert_eq!(read_buffer.read(&mut *again, &spares), count);
            assert_eq!(buffer, again);
            for byte in &buffer[..count] {
                next_out = next_out.wrapping_add(1);
                assert_eq!(*byte, next_out);
            }
        }
        let rest = read_buffer.take();
        assert_eq!(usize::from(next_in.wrapping_sub(next_out)), rest.len() % 256);
        read_buffer.push(b"x", &spares);
        read_buffer.read(&mut [0; 2][..], &spares);
        assert_eq!(read_buffer.bytes.capacity(), 0);
        assert_eq!(spares.0.borrow().len(), 1);
    }

    #[test]
    fn few_small_buffers_are_kept() {
        let spares = SpareBuffers::default();
        spares.keep(Vec::with_capacity(SPARE_CAPACITY_MAX + 1));
        assert!(spares.0.borrow().is_empty());
        (0..2 * SPARES_MAX).for_each(|_| spares.keep(Vec::with_capacity(100)));
        assert_eq!(spares.0.borrow().len(), SPARES_MAX);
    }

    #[test]
    fn an_inbox_that_is_never_empty_does_not_grow_for_ever() {
        let spares = SpareBuffers::default();
        let mut read_buffer = ReadBuffer::default();
        read_buffer.push(&[0; 10], &spares);
        for _ in 0..if cfg!(miri) { 100 } else { 10_000 } {
            read_buffer.push(&[0; 100], &spares);
            assert_eq!(read_buffer.read(&mut [0; 100][..], &spares), 100);
        }
        assert!(read_buffer.bytes.capacity() < 1000, "{}", read_buffer.bytes.capacity());
    }
}
