//! The counter's state as a value, without any memory: the valid changes of `{maximum, count}`.

use super::error::{Corrupt, SetMaximumError, WriteError};

/// A valid pair of maximum and count: `count <= maximum` and `maximum >= 1`, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    maximum: u32,
    count: u32,
}

impl Word {
    /// None if the count is above the maximum, or the maximum is zero.
    pub(super) const fn new(maximum: u32, count: u32) -> Option<Self> {
        if maximum == 0 || count > maximum { None } else { Some(Self { maximum, count }) }
    }

    pub(super) const fn pack(self) -> u64 {
        ((self.maximum as u64) << 32) | self.count as u64
    }

    /// Checks a word that another process may have written.
    #[expect(clippy::cast_possible_truncation, reason = "each half is 32 bits")]
    pub(super) const fn unpack(packed: u64) -> Result<Self, Corrupt> {
        match Self::new((packed >> 32) as u32, packed as u32) {
            Some(word) => Ok(word),
            None => Err(Corrupt),
        }
    }

    pub(super) const fn maximum(self) -> u32 {
        self.maximum
    }

    pub(super) const fn count(self) -> u32 {
        self.count
    }

    /// The level of the reader's side: the count is above zero.
    pub(super) const fn is_readable(self) -> bool {
        self.count > 0
    }

    /// The writer side's level: a write of one would succeed.
    pub(super) const fn is_writable(self) -> bool {
        self.maximum - self.count > 1
    }

    pub(super) const fn is_overflowed(self) -> bool {
        self.count == self.maximum
    }

    /// The word after a write; `None` if there is no room for it.
    pub(super) const fn written(self, n: u32) -> Result<Option<Self>, WriteError> {
        if n == 0 {
            Err(WriteError::Zero)
        } else if n >= self.maximum {
            Err(WriteError::TooLarge)
        } else if self.maximum - self.count > n {
            Ok(Some(Self { count: self.count + n, ..self }))
        } else {
            Ok(None)
        }
    }

    /// The word after a signal; `None` at the maximum.
    pub(super) const fn signalled(self) -> Option<Self> {
        if self.is_overflowed() { None } else { Some(Self { count: self.count + 1, ..self }) }
    }

    /// The word after a read; `None` if the count is zero.
    pub(super) const fn taken(self, semaphore: bool) -> Option<Self> {
        match self.count {
            0 => None,
            n if semaphore => Some(Self { count: n - 1, ..self }),
            _ => Some(Self { count: 0, ..self }),
        }
    }

    pub(super) const fn with_maximum(self, maximum: u32) -> Result<Self, SetMaximumError> {
        if maximum > self.count {
            Ok(Self { maximum, ..self })
        } else {
            Err(SetMaximumError::NotAboveCount)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MAX: u32 = u32::MAX;

    fn word(maximum: u32, count: u32) -> Word {
        Word::new(maximum, count).unwrap()
    }

    #[test]
    fn a_word_survives_packing_and_impossible_ones_are_rejected() {
        for (maximum, count) in [(1, 0), (1, 1), (10, 9), (MAX, 0), (MAX, MAX)] {
            let packed = word(maximum, count).pack();
            assert_eq!(packed, (u64::from(maximum) << 32) + u64::from(count));
            assert_eq!(Word::unpack(packed), Ok(word(maximum, count)));
        }
        for packed in
            [0, 1, u64::from(MAX), (9 << 32) + 10, (u64::from(MAX - 1) << 32) + u64::from(MAX)]
        {
            assert_eq!(Word::unpack(packed), Err(Corrupt), "{packed:#x}");
        }
    }

    #[test]
    fn the_levels_are_those_of_the_patch() {
        // (maximum, count, readable, writable, overflowed): count > 0, maximum - 1 > count, count
        // == maximum.
        for (maximum, count, readable, writable, overflowed) in [
            (1, 0, false, false, false),
            (1, 1, true, false, true),
            (2, 0, false, true, false),
            (2, 1, true, false, false),
            (2, 2, true, false, true),
            (10, 8, true, true, false),
            (10, 9, true, false, false),
            (10, 10, true, false, true),
            (MAX, MAX - 2, true, true, false),
            (MAX, MAX - 1, true, false, false),
            (MAX, MAX, true, false, true),
        ] {
            let word = word(maximum, count);
            assert_eq!(
                (word.is_readable(), word.is_writable(), word.is_overflowed()),
                (readable, writable, overflowed),
                "{word:?}"
            );
        }
    }

    #[test]
    fn a_write_reaches_at_most_one_below_the_maximum() {
        assert_eq!(word(10, 0).written(0), Err(WriteError::Zero));
        assert_eq!(word(10, 0).written(10), Err(WriteError::TooLarge));
        assert_eq!(word(10, 0).written(MAX), Err(WriteError::TooLarge));
        assert_eq!(word(10, 0).written(9), Ok(Some(word(10, 9))));
        assert_eq!(word(10, 1).written(9), Ok(None));
        assert_eq!(word(10, 9).written(1), Ok(None));
        assert_eq!(word(10, 10).written(1), Ok(None));
        assert_eq!(word(1, 0).written(1), Err(WriteError::TooLarge));
        assert_eq!(word(MAX, 1).written(MAX - 2), Ok(Some(word(MAX, MAX - 1))));
        assert_eq!(word(MAX, MAX).written(MAX - 1), Ok(None));
    }

    #[test]
    fn a_signal_reaches_the_maximum_and_stays_there() {
        assert_eq!(word(2, 1).signalled(), Some(word(2, 2)));
        assert_eq!(word(2, 2).signalled(), None);
        assert_eq!(word(MAX, MAX).signalled(), None);
    }

    #[test]
    fn a_read_takes_all_or_one() {
        assert_eq!(word(9, 0).taken(false), None);
        assert_eq!(word(9, 0).taken(true), None);
        assert_eq!(word(9, 9).taken(false), Some(word(9, 0)));
        assert_eq!(word(9, 9).taken(true), Some(word(9, 8)));
    }

    #[test]
    fn a_maximum_must_be_above_the_count() {
        assert_eq!(word(9, 5).with_maximum(6), Ok(word(6, 5)));
        assert_eq!(word(9, 5).with_maximum(5), Err(SetMaximumError::NotAboveCount));
        assert_eq!(word(9, 0).with_maximum(0), Err(SetMaximumError::NotAboveCount));
        assert_eq!(word(9, 9).with_maximum(MAX), Ok(word(MAX, 9)));
    }
}
