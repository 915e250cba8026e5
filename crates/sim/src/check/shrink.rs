//! Makes the list of choices of a failing run simpler, as long as it fails in the same way.
//!
//! 1. A candidate counts only if the run fails at the same place. The choices that this run has
//!    made take its place, so numbers that were not used are gone.
//! 2. Fewer faults are better than fewer other choices, then smaller numbers, then shorter lists.
//!    A candidate that is not better is dropped, so it ends.
//! 3. Faults go first: without them the rest is simpler.
//! 4. It ends after a number of runs or a time: a failing run may be a long one.

use std::time::{Duration, Instant};

use crate::choices::{Case, TRACKS, Track};

/// The order in which tracks are made simpler. Identities are left alone.
const ORDER: [Track; TRACKS - 1] = [Track::Fault, Track::Workload, Track::Time, Track::Schedule];

/// How complex a run is; less is better.
fn measure(case: &Case) -> (usize, usize, u128, usize) {
    let values = || case.tracks.iter().flatten();
    let sum = values().map(|value| u128::from(*value)).sum();
    (case.faults(), case.weight(), sum, case.tracks.iter().map(Vec::len).sum())
}

/// Without zeros at the ends: they are what follows anyway.
fn trimmed(mut case: Case) -> Case {
    for values in &mut case.tracks {
        let len = values.iter().rposition(|value| *value != 0).map_or(0, |last| last + 1);
        values.truncate(len);
    }
    case
}

/// A shrunk run.
pub(super) struct Shrunk {
    pub(super) case: Case,
    pub(super) runs: u64,
}

/// Shrinks a failing run, in at most so many runs and, but for the last run, in this time. `run`
/// returns the choices of a run if it fails in the same way.
pub(super) fn shrink(
    case: Case,
    (runs_max, time_max): (u64, Duration),
    mut run: impl FnMut(&Case) -> Option<Case>,
) -> Shrunk {
    let start = Instant::now();
    let mut best = Best { case: trimmed(case), runs: 0, runs_max, start, time_max, run: &mut run };
    loop {
        let before = measure(&best.case);
        for track in ORDER {
            best.zero_all(track as usize);
        }
        for track in ORDER {
            best.zero_parts(track as usize);
        }
        best.delete_parts(Track::Workload as usize);
        for track in ORDER {
            best.lower(track as usize);
        }
        if measure(&best.case) >= before || best.is_spent() {
            return Shrunk { case: best.case, runs: best.runs };
        }
    }
}

struct Best<'r> {
    case: Case,
    runs: u64,
    runs_max: u64,
    start: Instant,
    time_max: Duration,
    run: &'r mut dyn FnMut(&Case) -> Option<Case>,
}

impl Best<'_> {
    fn is_spent(&self) -> bool {
        self.runs >= self.runs_max || self.start.elapsed() >= self.time_max
    }

    /// Runs a candidate, and keeps it if it fails and is better.
    fn attempt(&mut self, candidate: &Case) -> bool {
        if self.is_spent() || measure(candidate) >= measure(&self.case) {
            return false;
        }
        self.runs += 1;
        let made = (self.run)(candidate).map(trimmed);
        match made {
            Some(made) if measure(&made) < measure(&self.case) => {
                self.case = made;
                true
            }
            _ => false,
        }
    }

    fn zero_all(&mut self, track: usize) {
        let mut candidate = self.case.clone();
        candidate.tracks[track].clear();
        self.attempt(&candidate);
    }

    /// The places of a track that are not zero.
    fn used(&self, track: usize) -> Vec<usize> {
        let values = self.case.tracks[track].iter().enumerate();
        values.filter(|(_, value)| **value != 0).map(|(index, _)| index).collect()
    }

    /// Sets halves of the track to zero, then quarters, down to single choices.
    fn zero_parts(&mut self, track: usize) {
        let mut size = self.used(track).len().div_ceil(2);
        while size > 0 && !self.is_spent() {
            let mut start = 0;
            loop {
                let used = self.used(track);
                if start >= used.len() || self.is_spent() {
                    break;
                }
                let mut candidate = self.case.clone();
                for index in used.iter().skip(start).take(size) {
                    candidate.tracks[track][*index] = 0;
                }
                if !self.attempt(&candidate) {
                    start += size;
                }
            }
            size /= 2;
        }
    }

    /// Takes parts out of the list: whole operations of the test.
    fn delete_parts(&mut self, track: usize) {
        let mut size = self.case.tracks[track].len().div_ceil(2).min(64);
        while size > 0 && !self.is_spent() {
            let mut start = 0;
            while start < self.case.tracks[track].len() && !self.is_spent() {
                let mut candidate = self.case.clone();
                let values = &mut candidate.tracks[track];
                let end = (start + size).min(values.len());
                values.drain(start..end);
                if !self.attempt(&candidate) {
                    start += size;
                }
            }
            size /= 2;
        }
    }

    /// Makes single numbers smaller, by halves.
    fn lower(&mut self, track: usize) {
        for index in self.used(track) {
            let (mut low, mut tries) = (0, 0);
            while let Some(value) = self.case.tracks[track].get(index).copied() {
                if low + 1 >= value || tries == 16 || self.is_spent() {
                    break;
                }
                tries += 1;
                let middle = low + (value - low) / 2;
                let mut candidate = self.case.clone();
                candidate.tracks[track][index] = middle;
                if !self.attempt(&candidate) {
                    low = middle;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(fault: &[u64], workload: &[u64]) -> Case {
        let mut case = Case::default();
        case.tracks[Track::Fault as usize] = fault.to_vec();
        case.tracks[Track::Workload as usize] = workload.to_vec();
        case
    }

    fn at(case: &Case, track: Track, index: usize) -> u64 {
        case.tracks[track as usize].get(index).copied().unwrap_or(0)
    }

    #[test]
    fn only_the_choices_that_matter_are_left() {
        let first = case(&[1; 200], &[900; 100]);
        let shrunk = shrink(first, (10_000, Duration::MAX), |case| {
            let fails = at(case, Track::Fault, 17) == 1
                && at(case, Track::Fault, 103) == 1
                && at(case, Track::Workload, 5) > 40;
            fails.then(|| case.clone())
        });
        assert_eq!(shrunk.case.to_string(), "fault=17:1,103:1;workload=5:41");
        assert!(shrunk.runs < 300, "{}", shrunk.runs);
    }

    #[test]
    fn operations_before_the_one_that_matters_are_deleted() {
        let mut workload = vec![3; 50];
        workload[40] = 7;
        let shrunk = shrink(case(&[], &workload), (10_000, Duration::MAX), |case| {
            let has = case.tracks[Track::Workload as usize].contains(&7);
            has.then(|| case.clone())
        });
        assert_eq!(shrunk.case.to_string(), "workload=0:7");
    }

    #[test]
    fn identities_are_left_alone() {
        let mut first = case(&[1; 5], &[9; 5]);
        first.tracks[Track::Identity as usize] = vec![1 << 60];
        let shrunk = shrink(first, (10_000, Duration::MAX), |case| Some(case.clone()));
        assert_eq!(shrunk.case.to_string(), format!("identity=0:{}", 1_u64 << 60));
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let shrunk = shrink(case(&[1; 1000], &[]), (10, Duration::MAX), |_| None);
        assert_eq!((shrunk.runs, shrunk.case.faults()), (10, 1000));
    }

    #[test]
    fn the_time_is_bounded() {
        let shrunk = shrink(case(&[1; 1000], &[]), (10, Duration::ZERO), |_| None);
        assert_eq!((shrunk.runs, shrunk.case.faults()), (0, 1000));
    }
}
