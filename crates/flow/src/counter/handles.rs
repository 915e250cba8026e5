//! The pollable handles of a counter's two sides.

use std::{fmt, time::Duration};

#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(not(loom))]
use super::sides::Side;
use super::{Corrupt, EventCounter, ReadError, WriteError};

/// The reader's side of a counter. Its descriptor is readable while the count is above zero.
///
/// Use the descriptor only for polling. Reading or writing it makes it wrong until the counter's
/// next step.
///
/// ```
/// use rustix::event::{PollFd, PollFlags, Timespec, poll};
/// use windlass_flow::EventCounter;
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(10)?;
/// let reader = counter.reader()?;
/// let is_readable = || {
///     poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
/// };
/// assert!(!is_readable());
/// counter.write(4)?;
/// assert!(is_readable());
/// assert_eq!(reader.try_read()?, 4);
/// assert!(!is_readable());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CounterReader {
    counter: EventCounter,
}

/// The writer's side of a counter. Its descriptor is writable while there is room for a write of
/// one.
///
/// Use the descriptor only for polling, and poll it only for writing: its readability has no
/// meaning.
///
/// **For a counter between processes it is readable instead**, and never writable. Writability
/// would need a write to a descriptor that all processes share, and a hostile peer could make that
/// write wait. A handler that may get either kind checks [`EventCounter::is_shared`].
///
/// ```
/// use rustix::event::{PollFd, PollFlags, Timespec, poll};
/// use windlass_flow::EventCounter;
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::new(3)?;
/// let writer = counter.writer()?;
/// let is_writable = || {
///     poll(&mut [PollFd::new(&writer, PollFlags::OUT)], Some(&Timespec::default())) == Ok(1)
/// };
/// assert!(is_writable());
/// writer.try_write(2)?;
/// assert!(!is_writable());
/// counter.read()?;
/// assert!(is_writable());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CounterWriter {
    counter: EventCounter,
}

impl CounterReader {
    pub(super) const fn new(counter: EventCounter) -> Self {
        Self { counter }
    }

    /// The counter of this side.
    #[must_use]
    pub const fn counter(&self) -> &EventCounter {
        &self.counter
    }

    /// Calls [`EventCounter::read`].
    ///
    /// # Errors
    /// Those of [`EventCounter::read`].
    pub fn read(&self) -> Result<u32, ReadError> {
        self.counter.read()
    }

    /// Calls [`EventCounter::try_read`].
    ///
    /// # Errors
    /// Those of [`EventCounter::try_read`].
    pub fn try_read(&self) -> Result<u32, ReadError> {
        self.counter.try_read()
    }

    /// Calls [`EventCounter::read_timeout`].
    ///
    /// # Errors
    /// Those of [`EventCounter::read_timeout`].
    pub fn read_timeout(&self, timeout: Duration) -> Result<u32, ReadError> {
        self.counter.read_timeout(timeout)
    }
}

impl CounterWriter {
    pub(super) const fn new(counter: EventCounter) -> Self {
        Self { counter }
    }

    /// The counter of this side.
    #[must_use]
    pub const fn counter(&self) -> &EventCounter {
        &self.counter
    }

    /// Calls [`EventCounter::write`].
    ///
    /// # Errors
    /// Those of [`EventCounter::write`].
    pub fn write(&self, n: u32) -> Result<(), WriteError> {
        self.counter.write(n)
    }

    /// Calls [`EventCounter::try_write`].
    ///
    /// # Errors
    /// Those of [`EventCounter::try_write`].
    pub fn try_write(&self, n: u32) -> Result<(), WriteError> {
        self.counter.try_write(n)
    }

    /// Calls [`EventCounter::write_timeout`].
    ///
    /// # Errors
    /// Those of [`EventCounter::write_timeout`].
    pub fn write_timeout(&self, n: u32, timeout: Duration) -> Result<(), WriteError> {
        self.counter.write_timeout(n, timeout)
    }

    /// Calls [`EventCounter::signal`].
    ///
    /// # Errors
    /// Those of [`EventCounter::signal`].
    pub fn signal(&self) -> Result<bool, Corrupt> {
        self.counter.signal()
    }
}

#[cfg(not(loom))]
impl AsFd for CounterReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.core.fd(Side::Reader).expect("a side that was handed out is exposed").as_fd()
    }
}

#[cfg(not(loom))]
impl AsFd for CounterWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.core.fd(Side::Writer).expect("a side that was handed out is exposed").as_fd()
    }
}

impl fmt::Debug for CounterReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CounterReader").field(&self.counter).finish()
    }
}

impl fmt::Debug for CounterWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CounterWriter").field(&self.counter).finish()
    }
}

/// poll(2) in a loom model.
#[cfg(loom)]
mod model {
    use super::{CounterReader, CounterWriter};
    use crate::{
        counter::sides::{Side, SideFd},
        sys::EventFd,
    };

    impl CounterReader {
        fn fd(&self) -> &EventFd {
            let SideFd::Event(fd) = self.counter.core.fd(Side::Reader).unwrap();
            fd
        }

        /// Whether the descriptor is readable.
        pub fn is_ready(&self) -> bool {
            self.fd().levels().0
        }

        /// Waits until the descriptor is readable.
        pub fn wait_ready(&self) {
            self.fd().wait(None);
        }

        /// How many edges epoll(7) has reported.
        pub fn edges(&self) -> u32 {
            self.fd().edges().0
        }

        /// Waits for more edges than `seen`.
        pub fn wait_edge(&self, seen: u32) {
            self.fd().wait_readable_edge(seen);
        }
    }

    impl CounterWriter {
        fn fd(&self) -> &EventFd {
            let SideFd::Event(fd) = self.counter.core.fd(Side::Writer).unwrap();
            fd
        }

        /// Whether the descriptor is writable.
        pub fn is_ready(&self) -> bool {
            self.fd().levels().1
        }

        /// Waits until the descriptor is writable.
        pub fn wait_ready(&self) {
            self.fd().wait_writable();
        }

        /// How many edges epoll(7) has reported.
        pub fn edges(&self) -> u32 {
            self.fd().edges().1
        }

        /// Waits for more edges than `seen`.
        pub fn wait_edge(&self, seen: u32) {
            self.fd().wait_writable_edge(seen);
        }
    }
}
