//! Why a task has no output.

use core::{any::Any, fmt};
use std::{
    io,
    sync::{Mutex, PoisonError},
};

/// Why a task has no output: the error of a [`JoinHandle`](crate::JoinHandle).
///
/// It is `Send` and `Sync`, so `?` makes a `Box<dyn Error + Send + Sync>` or an `anyhow::Error` of
/// it.
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
    Panicked(PanicPayload),
}

/// The payload of a panic, inside of a [`JoinError`].
///
/// A payload need not be `Sync`. So it is in a lock, and only its owner reaches it.
pub struct PanicPayload(
    /// A box, because panics are rare, and each task has room for the error in place of its output.
    Box<Mutex<Box<dyn Any + Send>>>,
);

impl PanicPayload {
    /// The payload, as [`std::panic::catch_unwind`] returns it.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message of the panic, if it is text. A copy, because code of the user's writes it.
    fn message(&self) -> Option<String> {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
    }
}

impl From<Box<dyn Any + Send>> for PanicPayload {
    fn from(payload: Box<dyn Any + Send>) -> Self {
        Self(Box::new(Mutex::new(payload)))
    }
}

impl fmt::Debug for PanicPayload {
    /// Shows the message, if it is text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message().fmt(f)
    }
}

impl JoinError {
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        Self::Panicked(payload.into())
    }

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
        std::panic::resume_unwind(self.try_into_panic()?)
    }

    /// The payload of the task's panic.
    ///
    /// ```
    /// use windlass_task::{JoinHandle, block_on, spawn};
    ///
    /// block_on(async {
    ///     let task: JoinHandle<()> = spawn(async { std::panic::resume_unwind(Box::new(7)) });
    ///     let payload = task.await.unwrap_err().try_into_panic().unwrap();
    ///     assert_eq!(*payload.downcast::<i32>().unwrap(), 7);
    /// });
    /// ```
    ///
    /// # Errors
    /// The error itself if the task was cancelled.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self {
            Self::Panicked(payload) => Ok(payload.into_inner()),
            Self::Cancelled => Err(self),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("Cancelled"),
            Self::Panicked(payload) => f.debug_tuple("Panicked").field(payload).finish(),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Panicked(payload) = self else { return f.write_str("the task was cancelled") };
        match payload.message() {
            Some(message) => write!(f, "the task has panicked: {message}"),
            None => f.write_str("the task has panicked"),
        }
    }
}

impl core::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> Self {
        io::Error::other(error)
    }
}
