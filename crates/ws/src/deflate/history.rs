//! The last bytes that a peer has sent. Its next messages may refer to them.

use alloc::vec::Vec;

/// A ring buffer of the last `size` bytes. Its memory grows with its contents.
pub(crate) struct History {
    bytes: Vec<u8>,
    /// The index of the oldest byte once the ring is full; 0 before.
    oldest: u32,
    size: u32,
}

impl History {
    /// An empty ring, which has allocated nothing. `size` must be a power of two.
    pub(crate) const fn new(size: usize) -> Self {
        assert!(size.is_power_of_two(), "a window has a power of two bytes");
        assert!(size <= 1 << 15, "no window of DEFLATE is larger");
        Self { bytes: Vec::new(), oldest: 0, size: size as u32 }
    }

    /// Appends `data`. Bytes older than the last `size` are dropped.
    pub(crate) fn push(&mut self, data: &[u8]) {
        let (size, oldest) = (self.size as usize, self.oldest as usize);
        let data = &data[data.len().saturating_sub(size)..];
        let (fresh, wrapped) = data.split_at(data.len().min(size - self.bytes.len()));
        self.grow(fresh.len());
        self.bytes.extend_from_slice(fresh);
        // At this point the ring is full, or no data is left.
        let (end, start) = wrapped.split_at(wrapped.len().min(size - oldest));
        self.bytes[oldest..][..end.len()].copy_from_slice(end);
        self.bytes[..start.len()].copy_from_slice(start);
        self.oldest = ((oldest + wrapped.len()) & (size - 1)) as u32;
    }

    /// Makes room for `more` bytes. It doubles the capacity, so that growth is cheap, but never
    /// exceeds the window.
    fn grow(&mut self, more: usize) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let target = needed.next_power_of_two().min(self.size as usize);
            self.bytes.reserve_exact(target - self.bytes.len());
        }
    }

    /// The contents of the ring, oldest first, in two pieces.
    pub(crate) fn pieces(&self) -> [&[u8]; 2] {
        let (newer, older) = self.bytes.split_at(self.oldest as usize);
        [older, newer]
    }

    /// The number of bytes in the ring.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_last_bytes_for_any_pieces() {
        for step in [1, 2, 3, 5, 7, 8, 9, 16, 17, 30] {
            let mut history = History::new(16);
            let mut all = Vec::new();
            let mut next = 0_u8;
            for _ in 0..40 {
                let piece: Vec<u8> = (0..step).map(|i| next.wrapping_add(i)).collect();
                next = next.wrapping_add(step);
                history.push(&piece);
                all.extend_from_slice(&piece);
                let expected = &all[all.len().saturating_sub(16)..];
                assert_eq!(history.pieces().concat(), expected, "pieces of {step}");
            }
            assert_eq!(history.bytes.capacity(), 16);
        }
    }

    #[test]
    fn its_memory_grows_with_its_contents() {
        let mut history = History::new(1 << 15);
        history.push(&[1; 100]);
        assert_eq!(history.bytes.capacity(), 128);
        history.push(&[]);
        assert_eq!(history.len(), 100);
        history.push(&[2; 1 << 16]);
        assert_eq!((history.len(), history.bytes.capacity()), (1 << 15, 1 << 15));
    }
}
