//! How many connections the workers of a server have together, and had at most.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The workers share it. They write it when connections come and go, and at no other time.
///
/// The numbers order no other memory accesses, so `Relaxed` is enough.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections {
    now: AtomicU64,
    most: AtomicU64,
}

impl OpenConnections {
    /// Notes how many connections a worker has, and how many it had at its last call.
    pub(crate) fn note(&self, before: u64, now: u64) {
        if now <= before {
            self.now.fetch_sub(before - now, Relaxed);
            return;
        }
        let more = now - before;
        let all = self.now.fetch_add(more, Relaxed) + more;
        if all > self.most.load(Relaxed) {
            self.most.fetch_max(all, Relaxed);
        }
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }
}
