//! Why a task has no output.

use core::{any::Any, fmt};
use std::io;

/// Why a task has no output: the error of a [`JoinHandle`](crate::JoinHandle).
///
/// It is `Send` and not `Sync`, because of the payload. In `anyhow`, write
/// `.map_err(io::Error::from)?`.
///
/// ```
/// use windlass_task::{JoinError, block_on, spawn};
///
/// block_on(async {
///     let task = spawn(std::future::pending::<()>());
///     task.abort();
///     assert!(matches!(task.await, Err(JoinError::Cancelled)));
/// });
/// ```
#[non_exhaustive]
pub enum JoinError {
    /// The task was aborted, or its executor was dropped, before the future was ready.
    Cancelled,
    /// The future has panicked, with this payload.
    Panicked(Box<dyn Any + Send>),
}

impl JoinError {
    /// Whether the task was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled)
    }

    /// Whether the task has panicked.
    #[must_use]
    pub fn is_panic(&self) -> bool {
        matches!(self, Self::Panicked(_))
    }

    /// Resumes the panic of the task.
    ///
    /// # Errors
    /// The error itself if the task was cancelled.
    ///
    /// # Panics
    /// With the panic of the task.
    pub fn resume_panic(self) -> Result<std::convert::Infallible, Self> {
        match self {
            Self::Panicked(payload) => std::panic::resume_unwind(payload),
            Self::Cancelled => Err(self),
        }
    }

    /// The message of the panic, if it is text.
    fn message(&self) -> Option<&str> {
        let Self::Panicked(payload) = self else { return None };
        let text = payload.downcast_ref::<&'static str>().copied();
        text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("Cancelled"),
            Self::Panicked(_) => f.debug_tuple("Panicked").field(&self.message()).finish(),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.message()) {
            (Self::Cancelled, _) => f.write_str("the task was cancelled"),
            (Self::Panicked(_), Some(message)) => write!(f, "the task has panicked: {message}"),
            (Self::Panicked(_), None) => f.write_str("the task has panicked"),
        }
    }
}

impl core::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> Self {
        io::Error::other(error.to_string())
    }
}
