//! A counter under test, and the checks of its counts.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::measured::Error;
use crate::protocol::Writer;

/// Time for which the reader works on each read in the cases `latency` and `coalescing`: 8 000
/// reads per second.
pub(super) const READER_WORK: Duration = Duration::from_micros(125);

/// The properties of a counter to create.
#[derive(Clone, Copy, Debug)]
pub struct CounterSetup {
    /// The maximum, at which a write waits or fails. `None`: no maximum, or the highest one
    /// possible.
    pub maximum: Option<u32>,
    /// A read takes one instead of all.
    pub semaphore: bool,
    /// A write or read that would wait fails with `WouldBlock`.
    pub nonblocking: bool,
    /// [`CounterSubject::reader`] will be used.
    pub polls_reader: bool,
    /// [`CounterSubject::writer`] will be used.
    pub polls_writer: bool,
}

/// A counter under test, which two threads share by reference. Implementations mark the measured
/// methods `#[inline]`, because they replace the user's own calls.
pub trait CounterSubject: Send + Sync + Sized + 'static {
    /// Creates a counter.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it cannot have this maximum; otherwise the
    /// kernel's error.
    fn new(setup: &CounterSetup) -> Result<Self, Error>;

    /// Adds one.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it is full and does not block.
    fn write(&self) -> io::Result<()>;

    /// Takes all of it, or one if it is a semaphore.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it is empty and does not block.
    fn read(&self) -> io::Result<u64>;

    /// Returns the current count, if it can be read without taking it.
    fn count(&self) -> Option<u64>;

    /// The descriptor that is readable while something can be read.
    fn reader(&self) -> BorrowedFd<'_>;

    /// The descriptor that is writable while one can be written.
    fn writer(&self) -> BorrowedFd<'_>;
}

/// Returns an error for a count at the maximum, which a write must not reach.
pub(super) fn check_below(count: u64, maximum: Option<u32>) -> Result<(), Error> {
    match maximum {
        Some(maximum) if count >= u64::from(maximum) => {
            Err(format!("a count of {count} at maximum {maximum}").into())
        }
        _ => Ok(()),
    }
}

/// The counts of a writer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WriteCounts {
    pub(super) writes: u64,
    pub(super) would_blocks: u64,
    pub(super) cpu_ns: u64,
}

/// The counts of a reader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadCounts {
    pub(super) reads: u64,
    pub(super) items: u64,
    /// Maximum number that one read took.
    pub(super) batch_max: u64,
    pub(super) cpu_ns: u64,
}

impl ReadCounts {
    pub(super) fn add(&mut self, items: u64) {
        self.reads += 1;
        self.items += items;
        self.batch_max = self.batch_max.max(items);
    }

    /// Compares the items with the writes, and the largest batch with the maximum.
    pub(super) fn check(&self, writes: u64, maximum: Option<u32>) -> Result<(), Error> {
        if self.items != writes {
            return Err(format!("{} were read of {writes} written", self.items).into());
        }
        check_below(self.batch_max, maximum)
    }
}

/// Returns the properties of the counter for a writer of this mode.
pub(super) fn setup_for(writer: Writer, maximum: Option<u32>) -> CounterSetup {
    let nonblocking = writer != Writer::Blocking;
    CounterSetup {
        maximum,
        semaphore: false,
        nonblocking,
        polls_reader: true,
        polls_writer: writer == Writer::Poll,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_doubled_or_too_much_is_refused() {
        let mut taken = ReadCounts::default();
        taken.add(9);
        taken.add(3);
        assert!(taken.check(12, Some(10)).is_ok());
        assert!(taken.check(13, Some(10)).is_err());
        assert!(taken.check(12, Some(9)).is_err(), "nine is reached by no write");
        assert!(taken.check(12, None).is_ok());
    }
}
