//! For streams that do not block.

use std::io;

use crate::error::Error;

/// An error that may say that a call would block.
pub trait NonBlockingError: Sized {
    /// `None` if the call would block, otherwise the error.
    fn into_non_blocking(self) -> Option<Self>;
}

impl NonBlockingError for io::Error {
    fn into_non_blocking(self) -> Option<Self> {
        (self.kind() != io::ErrorKind::WouldBlock).then_some(self)
    }
}

impl NonBlockingError for Error {
    fn into_non_blocking(self) -> Option<Self> {
        match self {
            Self::Io(error) => error.into_non_blocking().map(Self::Io),
            other => Some(other),
        }
    }
}

/// A result whose error may say that the call would block.
pub trait NonBlockingResult {
    /// The result without that case.
    type Result;

    /// `Ok(None)` if the call would block.
    fn no_block(self) -> Self::Result;
}

impl<T, E> NonBlockingResult for Result<T, E>
where
    E: NonBlockingError,
{
    type Result = Result<Option<T>, E>;

    fn no_block(self) -> Self::Result {
        self.map(Some).or_else(|error| error.into_non_blocking().map_or(Ok(None), Err))
    }
}
