//! The limit of a step in time.

use std::time::{Duration, Instant};

use crate::error::MeasureError;
use crate::interrupt;
use crate::report::OVER_BUDGET;

/// What is left of the time of a run for one of its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The share of the slices for which there is time.
    pub(crate) scale: f64,
    /// The end of the run.
    pub(crate) end: Option<Instant>,
}

/// Returns why a measurement was left out.
pub(crate) fn time_is_over() -> MeasureError {
    MeasureError::Unsupported(OVER_BUDGET.to_owned())
}

/// Counts that follow each other while there is time. They cannot be shortened.
#[derive(Debug)]
pub(crate) struct Counting {
    end: Option<Instant>,
    /// The time of the longest one so far, which the next one may take as well.
    longest: Duration,
}

impl Counting {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { end: limit.end, longest: Duration::ZERO }
    }

    /// Counts, or returns `None` if there is no time for it or the run is interrupted.
    pub(crate) fn next<T>(&mut self, count: impl FnOnce() -> T) -> Option<T> {
        let started = Instant::now();
        let is_over = self.end.is_some_and(|end| started + self.longest >= end);
        if is_over || interrupt::is_set() {
            return None;
        }
        let counted = count();
        self.longest = self.longest.max(started.elapsed());
        Some(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_begins_that_takes_longer_than_the_time_left() {
        let within = |seconds| Limit {
            scale: 1.0,
            end: Some(Instant::now() + Duration::from_secs(seconds)),
        };
        let mut counting = Counting::new(within(3600));
        assert_eq!(counting.next(|| 1), Some(1));
        counting.longest = Duration::from_secs(3700);
        assert_eq!(counting.next(|| 2), None);
        assert_eq!(Counting::new(within(0)).next(|| 3), None);
        counting.end = None;
        assert_eq!(counting.next(|| 4), Some(4), "without a budget");
        assert_eq!(counting.longest, Duration::from_secs(3700));
    }
}
