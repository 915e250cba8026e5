//! Times one case on all implementations, slice by slice in turn.

use std::path::PathBuf;

use windlass_bench_driver::protocol::{Case, Outcome, Reply, Request};

use crate::child::{Child, Refusal};
use crate::cli::Pin;
use crate::plan;
use crate::program::{Program, RAW, WINDLASS};
use crate::report::{Entry, Report};
use crate::stats::Spread;

/// An implementation that takes part in a run, on one backend.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) program: &'static Program,
    pub(crate) backend: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// `None` before its first case and after it has failed: the next case starts it afresh.
    child: Option<Child>,
}

impl Contender {
    pub(crate) fn new(program: &'static Program, backend: &'static str, path: PathBuf) -> Self {
        Self { program, backend, path, version: String::new(), child: None }
    }

    /// Ends the program until it is needed again.
    pub(crate) fn rest(&mut self) {
        self.child = None;
    }

    /// Sets the case up, and finds how many rounds last as long as a slice should.
    fn prepare(&mut self, case: &Case, settings: &Settings) -> Result<u64, Refusal> {
        let child = match &mut self.child {
            Some(child) => child,
            none => none.insert(Child::start(&self.path, settings.pin)?),
        };
        self.version.clone_from(&child.version);
        let backend = self.backend.to_owned();
        match child.ask(&Request::Prepare { case: case.clone(), backend, idle: false })? {
            Reply::Ready => calibrate(child, settings.slice_ns),
            reply => Err(Refusal::Failed(format!("not ready but {reply:?}"))),
        }
    }

    fn slice(&mut self, rounds: u64) -> Result<Outcome, Refusal> {
        match &mut self.child {
            Some(child) => child.slice(rounds),
            None => Err(Refusal::Failed("has ended".into())),
        }
    }

    /// Notes a refusal; after a failure nothing that the program says can be relied on.
    fn refused(&mut self, case: &Case, refusal: Refusal, report: &mut Report) {
        if matches!(refusal, Refusal::Failed(_)) {
            self.child = None;
        }
        report.refuse(case.suite(), &plan::describe(case).0, self.program.name, refusal);
    }
}

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) pin: Pin,
    pub(crate) slice_ns: u64,
    pub(crate) slices: usize,
}

/// Doubles and more until a slice is long enough to judge by, which also warms everything up.
fn calibrate(child: &mut Child, slice_ns: u64) -> Result<u64, Refusal> {
    let mut rounds = 1;
    loop {
        let outcome = child.slice(rounds)?;
        let ns = outcome.ns.max(1);
        if ns >= slice_ns / 2 || outcome.ns == 0 || rounds >= 1 << 30 {
            return Ok((rounds * slice_ns / ns).clamp(1, rounds * 4));
        }
        rounds *= (slice_ns / ns).clamp(2, 16);
    }
}

/// The samples of one contender, in the order of the repetitions.
struct Samples {
    contender: usize,
    rounds: u64,
    outcomes: Vec<Outcome>,
}

impl Samples {
    fn ns_per_unit(&self) -> impl Iterator<Item = f64> {
        self.outcomes.iter().map(|outcome| outcome.ns as f64 / outcome.units.max(1) as f64)
    }
}

/// Runs a case on every contender and adds what came out to the report.
pub(crate) fn time(case: &Case, contenders: &mut [&mut Contender], settings: &Settings, report: &mut Report) {
    let mut samples = Vec::new();
    for (number, contender) in contenders.iter_mut().enumerate() {
        match contender.prepare(case, settings) {
            Ok(rounds) => {
                samples.push(Samples { contender: number, rounds, outcomes: Vec::new() });
            }
            Err(refusal) => contender.refused(case, refusal, report),
        }
    }
    let slices = match case {
        Case::RegistrationMemory { .. } => 1,
        // A round of these is a million timers that have to be made, and waited for, each time.
        Case::Insert { .. } | Case::Fire { .. } => settings.slices.div_ceil(4),
        _ => settings.slices,
    };
    let mut shuffle = Shuffle(slices as u64);
    for _ in 0..slices {
        shuffle.apply(&mut samples);
        samples.retain_mut(|sample| {
            let contender = &mut contenders[sample.contender];
            match contender.slice(sample.rounds) {
                Ok(outcome) => {
                    sample.outcomes.push(outcome);
                    true
                }
                Err(refusal) => {
                    contender.refused(case, refusal, report);
                    false
                }
            }
        });
    }
    samples.sort_by_key(|sample| sample.contender);
    report.results.extend(entries(case, &samples, contenders));
}

fn entries(case: &Case, samples: &[Samples], contenders: &[&mut Contender]) -> Vec<Entry> {
    let of = |name| samples.iter().find(|s| contenders[s.contender].program.name == name);
    let (raw, windlass) = (of(RAW), of(WINDLASS));
    let unit = plan::unit(case);
    let (name, mut params) = plan::describe(case);
    if plan::is_timed(case) {
        params.insert("profile".to_owned(), "release".into());
    }
    let entry = |sample: &Samples| {
        let contender = &contenders[sample.contender];
        let mut metrics = std::collections::BTreeMap::new();
        let mut put = |name: String, spread: Option<Spread>| {
            metrics.extend(spread.map(|spread| (name, spread)));
        };
        if plan::is_timed(case) {
            put(format!("ns_per_{unit}"), Spread::of(sample.ns_per_unit()));
            let this = contender.program.name;
            if let Some(raw) = raw.filter(|_| this != RAW) {
                put("ns_over_raw_ratio".into(), ratio(sample, raw));
            }
            if let Some(windlass) = windlass.filter(|_| this != WINDLASS && this != RAW) {
                put("windlass_ns_over_this_ratio".into(), ratio(windlass, sample));
            }
        }
        let allocations = sample.outcomes.iter().map(|o| o.allocations as f64 / o.units as f64);
        put(format!("allocations_per_{unit}"), Spread::of(allocations));
        if let Some(outcome) = sample.outcomes.last() {
            for (name, &value) in &outcome.gauges {
                put(name.clone(), Some(Spread::exact(value)));
            }
        }
        Entry {
            suite: case.suite().to_owned(),
            case: name.clone(),
            params: params.clone(),
            implementation: contender.program.name.to_owned(),
            backend: contender.backend.to_owned(),
            version: contender.version.clone(),
            metrics,
        }
    };
    samples.iter().map(entry).collect()
}

/// Ratio of two contenders, taken within each repetition: what slows the machine slows both.
fn ratio(one: &Samples, other: &Samples) -> Option<Spread> {
    Spread::of(one.ns_per_unit().zip(other.ns_per_unit()).map(|(one, other)| one / other))
}

/// Orders the contenders anew in each repetition, so that none always runs after the same one.
struct Shuffle(u64);

impl Shuffle {
    fn apply<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // Knuth's linear congruential generator (MMIX); the high bits are the random ones.
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            items.swap(last, (self.0 >> 33) as usize % (last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ns: &[u64]) -> Samples {
        let outcome = |&ns| Outcome { ns, units: 10, ..Outcome::default() };
        Samples { contender: 0, rounds: 1, outcomes: ns.iter().map(outcome).collect() }
    }

    #[test]
    fn a_ratio_is_taken_within_each_repetition() {
        // The machine was four times as slow in the second repetition, for both.
        let ratio = ratio(&samples(&[200, 800, 200]), &samples(&[100, 400, 100])).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn the_order_changes_and_nobody_is_lost() {
        let (mut shuffle, mut items) = (Shuffle(1), [0, 1, 2, 3, 4]);
        let mut firsts = Vec::new();
        for _ in 0..50 {
            shuffle.apply(&mut items);
            firsts.push(items[0]);
        }
        assert!((0..5).all(|item| firsts.contains(&item)));
    }
}
