//! Why an item was rejected.

use core::fmt;
use std::io;

/// Why an item was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushReason {
    /// There is no room at present.
    Full,
    /// No room became free before the timeout.
    TimedOut,
    /// The item does not even fit into an empty mailbox: it weighs more than `bytes_max`, or
    /// `items_max` is zero.
    TooLarge,
    /// The mailbox was closed or dropped.
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

/// A rejected item, and the reason.
pub struct PushError<T> {
    /// The reason.
    pub reason: PushReason,
    /// The unchanged item.
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
