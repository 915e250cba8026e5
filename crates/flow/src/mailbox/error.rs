//! Why an item was not taken.

use core::fmt;
use std::io;

/// Why an item was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushReason {
    /// There is no room now.
    Full,
    /// There was no room for as long as the sender would wait.
    TimedOut,
    /// It would not fit into the empty mailbox: it weighs more than `bytes_max`, or `items_max` is
    /// zero.
    TooLarge,
    /// The mailbox is closed, or gone.
    Closed,
}

impl fmt::Display for PushReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the mailbox is full",
            Self::TimedOut => "the mailbox was full for too long",
            Self::TooLarge => "the item is larger than the mailbox",
            Self::Closed => "the mailbox is closed",
        })
    }
}

impl std::error::Error for PushReason {}

impl From<PushReason> for io::Error {
    fn from(reason: PushReason) -> Self {
        let kind = match reason {
            PushReason::Full => io::ErrorKind::WouldBlock,
            PushReason::TimedOut => io::ErrorKind::TimedOut,
            PushReason::TooLarge => io::ErrorKind::InvalidInput,
            PushReason::Closed => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, reason)
    }
}

/// An item that was not taken, and why.
pub struct PushError<T> {
    /// Why.
    pub reason: PushReason,
    /// The item, unharmed.
    pub item: T,
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PushError").field(&self.reason).finish()
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T> std::error::Error for PushError<T> {}

impl<T> From<PushError<T>> for io::Error {
    fn from(e: PushError<T>) -> Self {
        e.reason.into()
    }
}
