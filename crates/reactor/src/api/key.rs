//! Keys: they name descriptors, timers, groups and streams.

use core::fmt;

/// The key of one registration: an index and its generation.
///
/// The kernel reuses a descriptor number as soon as it is closed. A key is never reused, in any
/// reactor of the process. A key that is stale, from another reactor or of another kind gives
/// `NotFound`. `Copy`, `Send` and `Sync`: other threads may keep it for a call of a
/// [`Remote`](crate::Remote).
///
/// ```
/// use std::time::Duration;
/// use windlass::{Key, NotFound, Reactor};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let key = reactor.after(Duration::from_secs(1), || {})?;
/// let number: u64 = key.to_bits();
/// reactor.cancel(Key::from_bits(number))?;
/// assert_eq!(reactor.cancel(key), Err(NotFound));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// The kind of object a key names, stored in the upper two bits of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
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

    pub(crate) const fn new(kind: KeyKind, (index, generation): (u32, u32)) -> Self {
        Self((generation as u64) << 32 | (kind as u64) << 30 | index as u64)
    }

    /// The index and the generation, if the key is of this kind.
    #[inline]
    pub(crate) fn parts(self, kind: KeyKind) -> Option<(u32, u32)> {
        let [low, generation] =
            [self.0 & 0xffff_ffff, self.0 >> 32].map(|half| u32::try_from(half).unwrap_or(0));
        (low >> 30 == kind as u32).then_some((low & INDEX_BITS, generation))
    }

    /// The kind of object it names.
    pub(crate) const fn kind(self) -> KeyKind {
        match self.0 >> 30 & 3 {
            0 => KeyKind::Descriptor,
            1 => KeyKind::Timer,
            2 => KeyKind::Group,
            _ => KeyKind::Stream,
        }
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
        let name = match self.kind() {
            KeyKind::Descriptor => "descriptor",
            KeyKind::Timer => "timer",
            KeyKind::Group => "group",
            KeyKind::Stream => "stream",
        };
        let (index, generation) = (self.0 & u64::from(INDEX_BITS), self.0 >> 32);
        write!(f, "Key({name} {index} #{generation})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_kind() {
        let key = Key::new(KeyKind::Timer, (5, 9));
        assert_eq!((key.kind(), key.parts(KeyKind::Timer)), (KeyKind::Timer, Some((5, 9))));
        assert_eq!(key.parts(KeyKind::Descriptor), None);
        assert_eq!(Key::from_bits(key.to_bits()), key);
        let last = Key::new(KeyKind::Group, (MAX_INDEX, u32::MAX));
        assert_eq!(last.parts(KeyKind::Group), Some((MAX_INDEX, u32::MAX)));
    }

    #[test]
    fn a_key_says_what_it_names() {
        let key = |kind| Key::new(kind, (3, 7));
        let said = [KeyKind::Descriptor, KeyKind::Timer, KeyKind::Group, KeyKind::Stream]
            .map(|kind| format!("{:?}", key(kind)));
        assert_eq!(
            said,
            ["Key(descriptor 3 #7)", "Key(timer 3 #7)", "Key(group 3 #7)", "Key(stream 3 #7)"]
        );
        assert_eq!(format!("{:?}", Key::UNREGISTERED), "Key(none)");
        assert_eq!(format!("{:?}", Key::from_bits(0)), "Key(descriptor 0 #0)");
    }
}
