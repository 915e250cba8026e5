//! The ID of a connection.

use core::{fmt, str::FromStr};

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 30;

/// The highest index of a worker.
const WORKER_MAX: u32 = (1 << (64 - INDEX_BITS - GENERATION_BITS)) - 1;

/// The highest index of a slot. It bounds the number of simultaneous connections of a service.
pub(crate) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

/// The index of no connection.
pub(crate) const NO_CONN: u32 = u32::MAX;

/// The highest generation; generations start at 0. A slot that has used all of them is retired.
pub(crate) const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

/// Identifies a connection from [`on_open`](crate::Handler::on_open) until it is closed. Afterwards
/// the ID is invalid; the next connection in the same slot has another ID. `Copy`, and usable on
/// any thread: see [`Sender`](crate::Sender).
///
/// The ID also contains the worker of a [`Server`](crate::Server) that serves the connection.
///
/// ```
/// use windlass_server::ConnectionId;
///
/// let id = ConnectionId::from_bits(17);
/// assert_eq!(id.to_string(), "0.17.0");
/// assert_eq!(ConnectionId::from_bits(id.to_bits()), id);
/// assert_eq!("0.17.0".parse(), Ok(id));
/// ```
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

    /// Returns the ID as a number, for a log or an external table.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Converts such a number back to an ID. A number that belongs to no connection is simply not
    /// found.
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
    /// Worker, slot, and number of earlier uses of the slot: `0.17.3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.worker(), self.index(), self.generation())
    }
}

/// The text is no ID of a connection.
///
/// ```
/// use windlass_server::{ConnectionId, InvalidConnectionId};
///
/// assert_eq!("17".parse::<ConnectionId>(), Err(InvalidConnectionId));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConnectionId;

impl fmt::Display for InvalidConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an ID of a connection has three numbers, such as 0.17.3")
    }
}

impl core::error::Error for InvalidConnectionId {}

impl FromStr for ConnectionId {
    type Err = InvalidConnectionId;

    /// Reads an ID as it is displayed.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('.').map(str::parse::<u32>);
        let mut next = |max: u32| match parts.next() {
            Some(Ok(number)) if number <= max => Ok(number),
            _ => Err(InvalidConnectionId),
        };
        let worker = next(WORKER_MAX)?;
        let (index, generation) = (next(INDEX_MAX)?, next(GENERATION_MAX)?);
        let id = Self::new(worker as u16, index, generation);
        if parts.next().is_some() { Err(InvalidConnectionId) } else { Ok(id) }
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
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "1024.0.0", "0.16777216.0", "-1.2.3"] {
            assert_eq!(text.parse::<ConnectionId>(), Err(InvalidConnectionId), "{text}");
        }
        assert_eq!(ConnectionId::new(5, 7, 9).to_string(), "5.7.9");
    }
}
