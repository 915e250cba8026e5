//! Why an item was rejected.

use core::fmt;
use std::io;

use crate::Returned;

/// Why an item was rejected.
///
/// ```
/// use std::{io, sync::Arc, time::Duration};
/// use windlass_flow::{Bounds, Latch, PushReason, weighed_mailbox};
///
/// # fn main() -> io::Result<()> {
/// let latch = Arc::new(Latch::new()?);
/// let bounds = Bounds::items(9).bytes(8);
/// let (sender, inbox) = weighed_mailbox(bounds, latch, |text: &&str| text.len());
/// let reason = |outcome: Result<(), windlass_flow::PushError<&str>>| outcome.unwrap_err().reason;
/// assert_eq!(reason(sender.push("far too long")), PushReason::TooLarge);
/// sender.push("12345")?;
/// assert_eq!(reason(sender.try_push("12345")), PushReason::Full);
/// assert_eq!(reason(sender.push_timeout("12345", Duration::ZERO)), PushReason::TimedOut);
/// inbox.close();
/// assert_eq!(reason(sender.push("1")), PushReason::Closed);
/// assert_eq!(io::Error::from(PushReason::Closed).kind(), io::ErrorKind::BrokenPipe);
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// use std::sync::Arc;
/// use windlass_flow::{Bounds, Latch, PushReason, mailbox};
///
/// # fn main() -> std::io::Result<()> {
/// let (sender, inbox) = mailbox(Bounds::items(9), Arc::new(Latch::new()?));
/// drop(inbox);
/// let error = sender.push("a letter").unwrap_err();
/// assert_eq!(error.reason, PushReason::Closed);
/// assert_eq!(error.item.into_inner(), "a letter");
/// # Ok(())
/// # }
/// ```
pub struct PushError<T> {
    /// The reason.
    pub reason: PushReason,
    /// The unchanged item.
    pub item: Returned<T>,
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
