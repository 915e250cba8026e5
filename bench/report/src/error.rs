//! Why something was not measured.

/// Why something was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasureError {
    /// The implementation or the machine does not support it.
    Unsupported(String),
    /// It failed: wrong handlers, an error, a crash or no output.
    Failed(String),
    /// It failed after a long wait: it did not answer or end in time, and was killed.
    TimedOut(String),
}

impl MeasureError {
    /// Makes the error of a failure.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}
