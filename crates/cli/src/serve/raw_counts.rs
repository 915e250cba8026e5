//! The server's counts so far, over all workers.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// RawCounts that all workers share. They are updated when a connection changes, and with every
/// receive.
#[derive(Debug, Default)]
pub(crate) struct RawCounts {
    accepted: AtomicU64,
    open: AtomicU64,
    open_max: AtomicU64,
    failed: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) reading_paused: AtomicU64,
    pub(crate) accepting_paused: AtomicU64,
    pub(crate) limits_reached: AtomicU64,
}

/// Adds to a count. Relaxed suffices, because nothing is ordered by counts.
pub(crate) fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl RawCounts {
    pub(crate) fn opened(&self) {
        add(&self.accepted, 1);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.open_max.fetch_max(open, Ordering::Relaxed);
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> u64 {
        read(&self.open)
    }

    /// Number of times that listeners paused accepting.
    pub(crate) fn accepting_paused(&self) -> u64 {
        read(&self.accepting_paused)
    }

    /// Number of times that the connection limit was reached.
    pub(crate) fn limits_reached(&self) -> u64 {
        read(&self.limits_reached)
    }

    pub(crate) fn closed(&self, failed: bool) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        add(&self.failed, u64::from(failed));
    }
}

impl fmt::Display for RawCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [accepted, open_max, failed, bytes] =
            [&self.accepted, &self.open_max, &self.failed, &self.bytes].map(read);
        let [reading, accepting] = [&self.reading_paused, &self.accepting_paused].map(read);
        write!(f, "{accepted} connections, {open_max} at most at once, {failed} broken off, ")?;
        write!(f, "{bytes} bytes echoed, reading paused {reading} times, ")?;
        write!(f, "accepting paused {accepting} times, ")?;
        write!(f, "connection limit reached {} times", self.limits_reached())
    }
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_once_is_kept() {
        let counts = RawCounts::default();
        counts.opened();
        counts.opened();
        counts.closed(true);
        counts.opened();
        counts.closed(false);
        let line = counts.to_string();
        assert!(line.starts_with("3 connections, 2 at most at once, 1 broken off, "), "{line}");
    }
}
