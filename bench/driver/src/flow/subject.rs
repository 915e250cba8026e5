//! A counter under test, and the checks of its counts.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::measured::Error;
use crate::protocol::Writer;

/// What the reader works on each read in the cases `latency` and `coalescing`: 8 000 a second.
pub(super) const READER_WORK: Duration = Duration::from_micros(125);

/// How a counter is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// A write that would reach it waits or is refused; `None`: no such thing, or as near as can be
    /// had.
    pub maximum: Option<u32>,
    /// A read takes one, not all.
    pub semaphore: bool,
    /// A write or read that would wait is refused with `WouldBlock`.
    pub nonblocking: bool,
    /// [`CounterSubject::reader`] will be asked for.
    pub polls_reader: bool,
    /// [`CounterSubject::writer`] will be asked for.
    pub polls_writer: bool,
}

/// A counter under test, shared by reference between two threads. Every implementation marks the
/// methods that are measured `#[inline]`: they stand for its user's own call.
pub trait CounterSubject: Send + Sync + Sized + 'static {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it cannot have this maximum; or what the kernel says.
    fn new(setup: &Setup) -> Result<Self, Error>;

    /// Adds one.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it is full and does not wait.
    fn write(&self) -> io::Result<()>;

    /// Takes all of it, or one.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it is empty and does not wait.
    fn read(&self) -> io::Result<u64>;

    /// The count now, if it can be had without taking it.
    fn count(&self) -> Option<u64>;

    /// Readable while something can be read.
    fn reader(&self) -> BorrowedFd<'_>;

    /// Writable while one can be written.
    fn writer(&self) -> BorrowedFd<'_>;
}

/// Refuses a count that writes alone must not reach.
pub(super) fn check_below(count: u64, maximum: Option<u32>) -> Result<(), Error> {
    match maximum {
        Some(maximum) if count >= u64::from(maximum) => {
            Err(format!("a count of {count} at maximum {maximum}").into())
        }
        _ => Ok(()),
    }
}

/// What a writer counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) writes: u64,
    pub(super) would_blocks: u64,
    pub(super) cpu_ns: u64,
}

/// What a reader counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) reads: u64,
    pub(super) items: u64,
    /// Largest number that one read took.
    pub(super) batch_max: u64,
    pub(super) cpu_ns: u64,
}

impl Taken {
    pub(super) fn add(&mut self, items: u64) {
        self.reads += 1;
        self.items += items;
        self.batch_max = self.batch_max.max(items);
    }

    /// Compares with what was written, and the largest batch with the maximum.
    pub(super) fn check(&self, writes: u64, maximum: Option<u32>) -> Result<(), Error> {
        if self.items != writes {
            return Err(format!("{} were read of {writes} written", self.items).into());
        }
        check_below(self.batch_max, maximum)
    }
}

/// How a writer of this mode has its counter made.
pub(super) fn setup_for(writer: Writer, maximum: Option<u32>) -> Setup {
    let nonblocking = writer != Writer::Blocking;
    Setup {
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
        let mut taken = Taken::default();
        taken.add(9);
        taken.add(3);
        assert!(taken.check(12, Some(10)).is_ok());
        assert!(taken.check(13, Some(10)).is_err());
        assert!(taken.check(12, Some(9)).is_err(), "nine is reached by no write");
        assert!(taken.check(12, None).is_ok());
    }
}
