//! How many completions a wait waits for, where `Builder::ring_wait_batch` is set: a few at a time
//! cost less each than one by one, if they come soon.
//!
//! Such a wait lasts until so many completions have come, or until its time limit is over and
//! there is one. How many have a chance to come is not known, so it is tried: the number grows
//! while waits end by it, and falls to half of what has come when one has ended by its time. Then
//! it does not grow above that for [`CALM`] waits: a wait that ends by its time is time that nobody
//! has, so it must be rare.

/// The most completions that are waited for.
const BATCH_MAX: u32 = 16;

/// For so many waits the batch is not tried above what has been too much.
const CALM: u32 = 512;

/// The number of completions to wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBatch {
    batch: u32,
    most: u32,
    /// How many waits `most` is in force.
    left: u32,
}

impl WaitBatch {
    pub(super) const fn new() -> Self {
        Self { batch: 1, most: BATCH_MAX, left: 0 }
    }

    pub(super) const fn batch(self) -> u32 {
        self.batch
    }

    /// A wait has ended, with so many completions.
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

    /// One connection that answers and is answered: of some hundred waits one lasts too long.
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
