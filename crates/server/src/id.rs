//! The name of a connection.

use core::fmt;

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 30;

/// The highest index of a place, so many connections a service may have at once.
pub(crate) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

/// Generations run from 0 to here; a place that has used them up is not used again.
pub(crate) const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

/// Names a connection, from [`on_open`](crate::Handler::on_open) until it is closed, and nothing
/// afterwards: the next one in its place has another name. `Copy`, and good on any thread: see
/// [`Sender`](crate::Sender).
///
/// It also says which worker of a [`Server`](crate::Server) has the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

impl ConnectionId {
    pub(crate) const fn new(worker: u16, index: u32, generation: u32) -> Self {
        Self(
            ((worker as u64) << (INDEX_BITS + GENERATION_BITS))
                | ((generation as u64) << INDEX_BITS)
                | index as u64,
        )
    }

    pub(crate) const fn worker(self) -> u16 {
        (self.0 >> (INDEX_BITS + GENERATION_BITS)) as u16
    }

    pub(crate) const fn index(self) -> u32 {
        self.0 as u32 & INDEX_MAX
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32 & GENERATION_MAX
    }

    /// The name as a number, for a log or a table elsewhere.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The name of such a number. One that no connection has is merely not found.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({self})")
    }
}

impl fmt::Display for ConnectionId {
    /// Worker, place, and how often the place was used: `0.17.3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.worker(), self.index(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        for (worker, index, generation) in [(0, 0, 0), (1023, INDEX_MAX, GENERATION_MAX), (5, 7, 9)]
        {
            let id = ConnectionId::new(worker, index, generation);
            assert_eq!((id.worker(), id.index(), id.generation()), (worker, index, generation));
            assert_eq!(ConnectionId::from_bits(id.to_bits()), id);
        }
        assert_eq!(ConnectionId::new(5, 7, 9).to_string(), "5.7.9");
    }
}
