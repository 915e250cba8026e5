//! A run beside an earlier one: what became worse by more than the noise of both.
//!
//! 1. Times of two runs are never compared. Each time is divided by that of another program of its
//!    own run, the same one in both, within each repetition.
//! 2. The interval of the change is a bootstrap of these ratios: repetitions are drawn from each
//!    run again and again, with replacement.
//! 3. The noise is what the runs found between two processes of the same program. A suite without
//!    such a pair has the tie of all times, a tenth.
//! 4. A change is worse only if its whole interval is beyond the noise. Counts have no noise.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::headline::{self, CaseOf, TIE, cases, cost_ratios, is_own};
use crate::stats::{Spread, median};
use crate::{Entry, Report};

/// Draws of the bootstrap.
const DRAWS: usize = 2_000;
/// The least number of repetitions of which a bootstrap says something.
const REPETITIONS_MIN: usize = 5;
/// Programs that run twice in each case, and their second names.
const PAIRS: [(&str, &str); 2] = [("raw", "raw-again"), ("floor", "floor-again")];
/// Counted figures, and by how much each may grow. The kernel counts memory in pages.
const COUNTED: [(&str, f64); 4] = [
    ("user_instructions_per_", 0.01),
    ("syscalls_per_", 0.01),
    ("allocations_per_", 0.01),
    ("bytes_per_", 0.05),
];

/// A figure of both runs.
#[derive(Clone, Debug)]
pub struct Change {
    /// Suite, case, parameters and implementation.
    pub row: String,
    /// The name of the figure.
    pub figure: String,
    /// What it costs now over what it cost, with the interval of 95 %.
    pub change: Spread,
    /// The change that means nothing.
    pub noise: f64,
}

impl Change {
    fn is_worse(&self) -> bool {
        self.change.low > 1.0 + self.noise
    }

    fn is_better(&self) -> bool {
        self.change.high < 1.0 / (1.0 + self.noise)
    }
}

/// All figures of both runs.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// In the order of the new run.
    pub changes: Vec<Change>,
    /// Timed rows of which the earlier run has no counterpart, or of too few repetitions.
    pub without: usize,
}

impl Comparison {
    /// Returns whether a figure is worse.
    #[must_use]
    pub fn has_regressions(&self) -> bool {
        self.changes.iter().any(Change::is_worse)
    }

    /// Returns what became worse or better, and how many figures did not change.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut same = 0;
        for change in &self.changes {
            let word = match (change.is_worse(), change.is_better()) {
                (true, _) => "worse",
                (_, true) => "better",
                _ => {
                    same += 1;
                    continue;
                }
            };
            let Spread { median, low, high } = change.change;
            writeln!(
                text,
                "{word}: {median:.3} ({low:.3}–{high:.3}) of the baseline, noise {:.3}: {} {}",
                change.noise, change.row, change.figure
            )
            .expect("writing to a string");
        }
        let all = self.changes.len();
        writeln!(text, "baseline: {same} of {all} figures are unchanged within the noise")
            .expect("writing to a string");
        if self.without > 0 {
            writeln!(
                text,
                "baseline: {} timed rows have no counterpart or too few repetitions",
                self.without
            )
            .expect("writing to a string");
        }
        text
    }
}

/// Compares the figures of windlass in two runs.
#[must_use]
pub fn compare(old: &Report, new: &Report) -> Comparison {
    let (old_cases, new_cases) = (cases(&old.results), cases(&new.results));
    let noise = noise(old_cases.iter().chain(&new_cases));
    let mut comparison = Comparison::default();
    for case in &new_cases {
        let before = old_cases.iter().find(|old| old.title == case.title);
        for entry in case.entries.iter().filter(|entry| is_own(&entry.implementation)) {
            let found = before.and_then(|old| find(old, entry).map(|found| (old, found)));
            let Some((before, found)) = found else {
                comparison.without += usize::from(!entry.samples.is_empty());
                continue;
            };
            let row = format!("{} {}", case.title, entry.title());
            if !entry.samples.is_empty() {
                let noise = noise.get(case.suite).copied().unwrap_or(TIE);
                match timed(before, found, case, entry) {
                    Some((figure, change)) => {
                        comparison.changes.push(Change { row: row.clone(), figure, change, noise })
                    }
                    None => comparison.without += 1,
                }
            }
            comparison.changes.extend(counted(found, entry).map(|(name, change, noise)| Change {
                row: row.clone(),
                figure: name.to_owned(),
                change,
                noise,
            }));
        }
    }
    comparison
}

/// Returns the same implementation in another case.
fn find<'a>(case: &CaseOf<'a>, entry: &Entry) -> Option<&'a Entry> {
    let is_same = |other: &&&Entry| {
        (&other.implementation, &other.backend) == (&entry.implementation, &entry.backend)
    };
    case.entries.iter().find(is_same).copied()
}

/// Returns the change of a time, over a program that both runs have: the first in the order of the
/// report, which are the hand-written ones.
fn timed(
    old_case: &CaseOf<'_>,
    old: &Entry,
    new_case: &CaseOf<'_>,
    new: &Entry,
) -> Option<(String, Spread)> {
    let figure = headline::figure(new)?;
    let others = new_case.entries.iter().filter(|other| !is_own(&other.implementation));
    let (before, now) = others.copied().find_map(|other| {
        let before = cost_ratios(old, find(old_case, other)?, figure)?;
        Some((before, cost_ratios(new, other, figure)?))
    })?;
    let is_enough = before.len().min(now.len()) >= REPETITIONS_MIN;
    is_enough.then(|| (figure.to_owned(), bootstrap(&before, &now)))
}

/// Returns the counted figures of both.
fn counted<'a>(
    old: &'a Entry,
    new: &'a Entry,
) -> impl Iterator<Item = (&'a str, Spread, f64)> + use<'a> {
    new.metrics.iter().filter_map(|(name, now)| {
        let (_, noise) = COUNTED.iter().find(|(part, _)| {
            name.starts_with(part) || (*part == "bytes_per_" && name.contains(part))
        })?;
        let before = old.metrics.get(name)?;
        // A figure of zero cannot grow by a factor: one more counts as twice as much.
        let change = if before.median > 0.0 {
            now.median / before.median
        } else {
            1.0 + now.median.max(0.0)
        };
        Some((&**name, Spread::exact(change), *noise))
    })
}

/// Returns the noise of each suite that has a program twice: the largest distance of a median ratio
/// from one.
fn noise<'a>(cases: impl Iterator<Item = &'a CaseOf<'a>>) -> BTreeMap<&'a str, f64> {
    let mut noise = BTreeMap::new();
    for case in cases {
        let named = |name: &str| case.entries.iter().find(|e| e.implementation == name).copied();
        for (one, again) in PAIRS {
            let ratios = named(again)
                .zip(named(one))
                .and_then(|(again, one)| cost_ratios(again, one, headline::figure(again)?));
            if let Some(ratio) = ratios.and_then(|mut ratios| median(&mut ratios)) {
                let distance = ratio.max(1.0 / ratio) - 1.0;
                let largest = noise.entry(case.suite).or_insert(0.0_f64);
                *largest = largest.max(distance);
            }
        }
    }
    noise
}

/// Returns the quotient of two medians with its interval of 95 %.
fn bootstrap(before: &[f64], now: &[f64]) -> Spread {
    // Knuth's linear congruential generator (MMIX), so that equal runs have equal intervals.
    let mut state = 1_u64;
    let mut draw = |from: &[f64]| {
        let mut drawn = Vec::with_capacity(from.len());
        for _ in from {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            drawn.push(from[(state >> 33) as usize % from.len()]);
        }
        median(&mut drawn).unwrap_or(f64::NAN)
    };
    let mut quotients: Vec<f64> = (0..DRAWS).map(|_| draw(now) / draw(before)).collect();
    quotients.sort_by(f64::total_cmp);
    let rank = |share: f64| quotients[(share * (DRAWS - 1) as f64).round() as usize];
    Spread { median: rank(0.5), low: rank(0.025), high: rank(0.975) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(times: &[(&str, &[f64])], instructions: f64) -> Report {
        let mut report = crate::tests::sample();
        let of = |(name, samples): &(&str, &[f64])| Entry {
            implementation: (*name).into(),
            metrics: [("ns_per_event".to_owned(), Spread::of(samples.to_vec()).unwrap())].into(),
            samples: samples.to_vec(),
            ..crate::tests::sample().results[0].clone()
        };
        report.results = times.iter().map(of).collect();
        report.results.push(Entry {
            implementation: "windlass".into(),
            params: [("tool".to_owned(), "callgrind".into())].into(),
            metrics: [("user_instructions_per_event".to_owned(), Spread::exact(instructions))]
                .into(),
            samples: Vec::new(),
            ..report.results[0].clone()
        });
        report
    }

    const RAW: (&str, &[f64]) = ("raw", &[100.0, 101.0, 99.0, 100.0, 102.0]);
    const AGAIN: (&str, &[f64]) = ("raw-again", &[101.0, 101.0, 100.0, 102.0, 103.0]);

    #[test]
    fn a_run_beside_itself_is_unchanged() {
        let run = report(&[RAW, AGAIN, ("windlass", &[110.0, 111.0, 109.0, 110.0, 112.0])], 19.0);
        let comparison = compare(&run, &run);
        assert_eq!(comparison.changes.len(), 2, "a time and a count");
        assert!(!comparison.has_regressions());
        assert!(comparison.text().contains("2 of 2 figures are unchanged"));
    }

    #[test]
    fn a_slower_machine_is_no_regression_and_a_slower_program_is_one() {
        let old = report(&[RAW, AGAIN, ("windlass", &[110.0, 111.0, 109.0, 110.0, 112.0])], 19.0);
        let twice = |samples: &[f64]| samples.iter().map(|ns| ns * 2.0).collect::<Vec<_>>();
        let (raw, again) = (twice(RAW.1), twice(AGAIN.1));
        let own = twice(&[110.0, 111.0, 109.0, 110.0, 112.0]);
        let machine = report(&[("raw", &raw), ("raw-again", &again), ("windlass", &own)], 19.0);
        assert!(!compare(&old, &machine).has_regressions());
        let program = report(&[RAW, AGAIN, ("windlass", &own)], 19.0);
        let comparison = compare(&old, &program);
        assert!(comparison.has_regressions());
        assert!(comparison.text().starts_with("worse: 2.0"), "{}", comparison.text());
        assert!(compare(&program, &old).text().starts_with("better: 0.5"));
    }

    #[test]
    fn a_change_within_the_noise_of_the_same_program_twice_is_none() {
        let again: &[f64] = &[120.0, 121.0, 119.0, 120.0, 122.0];
        let run = |own: &[f64]| report(&[RAW, ("raw-again", again), ("windlass", own)], 19.0);
        let old = run(&[110.0, 111.0, 109.0, 110.0, 112.0]);
        let new = run(&[125.0, 126.0, 124.0, 125.0, 127.0]);
        let comparison = compare(&old, &new);
        assert!(comparison.changes[0].noise > 0.15 && !comparison.has_regressions());
    }

    #[test]
    fn one_more_instruction_in_nineteen_is_a_regression() {
        let run = |count| report(&[RAW, ("windlass", &[100.0; 5])], count);
        assert!(compare(&run(19.0), &run(20.0)).has_regressions());
        assert!(!compare(&run(19.0), &run(19.1)).has_regressions());
    }

    #[test]
    fn rows_without_a_counterpart_are_counted() {
        let old = report(&[RAW], 19.0);
        let new = report(&[RAW, ("windlass", &[100.0; 5])], 19.0);
        assert_eq!(compare(&old, &new).without, 1);
        let short = report(&[RAW, ("windlass", &[100.0; 2])], 19.0);
        let comparison = compare(&short, &short);
        assert_eq!((comparison.without, comparison.changes.len()), (1, 1), "two repetitions");
    }
}
