//! What the server has done so far, over all workers.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Counts that all workers share. They change when a connection does, and once for each batch of messages.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    open: AtomicU64,
    open_max: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) reading_paused: AtomicU64,
    pub(crate) accepting_paused: AtomicU64,
}

/// Adds to a count. Nobody orders anything by counts.
pub(crate) fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn opened(&self) {
        add(&self.accepted, 1);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.open_max.fetch_max(open, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self, failed: bool) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        add(&self.failed, u64::from(failed));
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [accepted, open_max, failed, bytes, messages] =
            [&self.accepted, &self.open_max, &self.failed, &self.bytes, &self.messages].map(read);
        let [refused, reading, accepting] = [&self.refused, &self.reading_paused, &self.accepting_paused].map(read);
        write!(f, "{accepted} connections, {open_max} at most at once, {failed} broken off, {refused} refused, ")?;
        write!(f, "{messages} messages, {bytes} bytes echoed, reading paused {reading} times, ")?;
        write!(f, "accepting paused {accepting} times")
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
        let counts = Counts::default();
        counts.opened();
        counts.opened();
        counts.closed(true);
        counts.opened();
        counts.closed(false);
        let line = counts.to_string();
        assert!(line.starts_with("3 connections, 2 at most at once, 1 broken off, "), "{line}");
    }
}
