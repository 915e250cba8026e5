//! Due entries of a wheel, sorted by deadline.

/// The largest number of bits in which the deadlines of a run may differ.
pub(super) const SPAN_BITS_MAX: u32 = u32::BITS;

/// A run of at most this many records is sorted by comparing them, without a second array.
const SMALL: usize = 64;

/// The bits that one pass of the radix sort looks at.
const DIGIT_BITS: u32 = 8;

/// An array that had room for more records than this gives its memory back at the end of its use.
pub(super) const KEPT: usize = 16 << 10;

/// Entries that were due together, the earliest first. An entry that leaves the run keeps its
/// record there, which is skipped.
#[derive(Debug)]
pub(super) struct Run {
    /// The deadline after `start` in the high half, the index in the low half.
    records: Vec<u64>,
    /// The other array of the sort. Empty between sorts.
    scratch: Vec<u64>,
    start: u64,
    /// The first record that was not taken.
    at: usize,
    /// The entries that have not been taken and have not left.
    len: usize,
}

impl Run {
    pub(super) const fn new() -> Self {
        Self { records: Vec::new(), scratch: Vec::new(), start: 0, at: 0, len: 0 }
    }

    /// Makes room for a small run, so that later turns with few due timers do not allocate.
    pub(super) fn reserve(&mut self) {
        self.records.reserve_exact(SMALL);
    }

    /// The number of entries.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Begins a run. The last one is over.
    pub(super) fn begin(&mut self, start: u64) {
        debug_assert_eq!(self.len, 0, "the run is not over");
        self.start = start;
    }

    /// Adds an entry whose deadline is less than `1 << SPAN_BITS_MAX` after the run's start.
    pub(super) fn push(&mut self, index: u32, deadline: u64) {
        self.records.push((deadline - self.start) << 32 | u64::from(index));
        self.len += 1;
    }

    /// Sorts the entries by deadline. Equal ones keep their order. `bits` is the number of bits in
    /// which deadlines may differ.
    pub(super) fn sort(&mut self, bits: u32) {
        if self.records.len() <= SMALL {
            // Stable, and needs no memory for so few.
            self.records.sort_by_key(|record| record >> 32);
            return;
        }
        for shift in (0..bits).step_by(DIGIT_BITS as usize) {
            self.sort_digit(32 + shift);
        }
        self.scratch.clear();
    }

    /// Sorts entries with the same deadline by a number.
    pub(super) fn order_equal(&mut self, number: impl Fn(u32) -> u64) {
        for equal in self.records.chunk_by_mut(|a, b| a >> 32 == b >> 32) {
            equal.sort_unstable_by_key(|record| number(*record as u32));
        }
    }

    /// One pass of the radix sort.
    fn sort_digit(&mut self, shift: u32) {
        let digit = |record: u64| (record >> shift) as usize & ((1 << DIGIT_BITS) - 1);
        let mut places = [0u32; 1 << DIGIT_BITS];
        for record in &self.records {
            places[digit(*record)] += 1;
        }
        let mut sum = 0;
        for place in &mut places {
            sum += core::mem::replace(place, sum);
        }
        self.scratch.resize(self.records.len(), 0);
        for record in &self.records {
            let place = &mut places[digit(*record)];
            self.scratch[*place as usize] = *record;
            *place += 1;
        }
        core::mem::swap(&mut self.records, &mut self.scratch);
    }

    /// A time that is not after the next deadline.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        if self.len == 0 { None } else { self.records.get(self.at).map(|r| self.deadline(*r)) }
    }

    fn deadline(&self, record: u64) -> u64 {
        self.start + (record >> 32)
    }

    /// The index of the entry at a distance from the first one, or of one that has left.
    pub(super) fn ahead(&self, distance: usize) -> Option<u32> {
        self.records.get(self.at + distance).map(|record| *record as u32)
    }

    /// The deadline of the first entry, which [`pop`](Self::pop) then takes. `stays` tells whether
    /// an index has not left.
    pub(super) fn first(&mut self, stays: impl Fn(u32) -> bool) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        loop {
            let record = *self.records.get(self.at)?;
            if stays(record as u32) {
                return Some(self.deadline(record));
            }
            self.at += 1;
        }
    }

    /// Takes the first entry.
    pub(super) fn pop(&mut self) -> u32 {
        let index = self.records[self.at] as u32;
        self.at += 1;
        self.leave();
        index
    }

    /// An entry has left the run.
    pub(super) fn leave(&mut self) {
        self.len -= 1;
        if self.len == 0 {
            self.at = 0;
            self.records.clear();
            if self.records.capacity() > KEPT {
                self.records = Vec::new();
                self.scratch = Vec::new();
            }
        }
    }
}
