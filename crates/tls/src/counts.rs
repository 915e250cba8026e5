//! Counts of handshakes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many handshakes there were, and how they ended. Read from any thread; the counts are
/// independent of each other.
///
/// ```
/// # fn main() -> Result<(), windlass_tls::TlsConfigError> {
/// use windlass_tls::TlsConnector;
///
/// let connector = TlsConnector::builder().insecure().build()?;
/// assert_eq!(connector.handshakes().completed, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Sessions that were made.
    pub started: u64,
    /// Handshakes that ended well, with the resumed ones.
    pub completed: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Handshakes that one of the sides rejected.
    pub failed: u64,
    /// Handshakes whose connection ended: the peer has closed it, or it took too long.
    pub abandoned: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) started: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) abandoned: AtomicU64,
}

impl Counters {
    pub(crate) fn counts(&self) -> HandshakeCounts {
        HandshakeCounts {
            started: self.started.load(Relaxed),
            completed: self.completed.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            abandoned: self.abandoned.load(Relaxed),
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
