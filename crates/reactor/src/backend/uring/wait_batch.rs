//! The number of completions that a wait waits for, if `Builder::ring_wait_batch` is set. Several
//! completions at a time cost less each than one by one, if they come soon.
//!
//! Such a wait ends when that many completions have come, or when its time limit has expired and
//! there is at least one. The best number is unknown, so it is found by trial:
//!
//! 1. The number grows while waits reach it.
//! 2. When a wait ends by its time limit, the number falls to half of the completions that came.
//! 3. For the next [`CALM`] waits it does not grow above that. A wait that ends by its time limit
//!    wastes time, so it must be rare.

/// The maximum number of completions to wait for.
const BATCH_MAX: u32 = 16;

/// The number of waits during which a batch size that was too large is not tried again.
const CALM: u32 = 512;

/// The number of completions to wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBatch {
    batch: u32,
    most: u32,
    /// The number of waits for which `most` still applies.
    left: u32,
}

impl WaitBatch {
    pub(super) const fn new() -> Self {
        Self { batch: 1, most: BATCH_MAX, left: 0 }
    }

    pub(super) const fn batch(self) -> u32 {
        self.batch
    }

    /// Adapts the number after a wait that has seen `seen` completions.
    pub(super) fn learn(&mut self, seen: usize) {
        let seen = u32::try_from(seen).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.most = BATCH_MAX;
        }
        if seen >= self.batch {
            self.batch = (self.batch + 1).min(self.most);
        } else {
            (self.most, self.left) = ((seen / 2).max(1), CALM);
            self.batch = self.most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_grows_while_it_comes_and_falls_to_half_of_what_came() {
        let mut batch = WaitBatch::new();
        for _ in 0..100 {
            batch.learn(100);
        }
        assert_eq!(batch.batch(), BATCH_MAX);
        batch.learn(10);
        assert_eq!(batch.batch(), 5);
        for _ in 1..CALM {
            batch.learn(10);
            assert_eq!(batch.batch(), 5, "what was too much is not tried again for a while");
        }
        (0..10).for_each(|_| batch.learn(10));
        assert_eq!(batch.batch(), 5, "and then it has been tried and was too much");
        batch.learn(0);
        assert_eq!(batch.batch(), 1);
    }

    /// With one connection that sends and waits for a reply, one wait in some hundred lasts too
    /// long.
    #[test]
    fn a_lone_connection_is_rarely_kept_waiting() {
        let mut batch = WaitBatch::new();
        let mut late = 0;
        for _ in 0..10_000 {
            late += u32::from(batch.batch() > 1);
            batch.learn(1);
        }
        assert!((1..=10_000 / CALM + 1).contains(&late), "{late}");
    }
}
