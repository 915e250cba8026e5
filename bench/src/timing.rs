//! Times cases on all implementations, slice by slice in turn.

use std::collections::BTreeMap;
use std::path::PathBuf;

use windlass_bench_driver::protocol::{Case, Outcome, Reply, Request};

use crate::child::{Child, Refusal};
use crate::cli::Pin;
use crate::plan::{self, Length, Shape};
use crate::program::{EVENTFD, Program, RAW, WINDLASS};
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

    /// The same program once more, on its own.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.program, self.backend, self.path.clone())
    }

    /// Sets the case up, and finds how many rounds last as long as a slice should.
    fn prepare(&mut self, case: &Case, length: Length, pin: Pin) -> Result<u64, Refusal> {
        let child = match &mut self.child {
            Some(child) => child,
            none => none.insert(Child::start(&self.path, pin)?),
        };
        self.version.clone_from(&child.version);
        let backend = self.backend.to_owned();
        match child.ask(&Request::Prepare { case: case.clone(), backend, idle: false })? {
            Reply::Ready => match length {
                Length::Ns(ns) => calibrate(child, ns),
                Length::Rounds(rounds) => Ok(rounds),
            },
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
        if !matches!(refusal, Refusal::Unsupported(_)) {
            self.child = None;
        }
        report.refuse(case.suite(), &plan::describe(case).0, self.program.name, refusal);
    }
}

/// Says of contenders, one after the other, whether they take part: those whose program has the
/// part of a suite. Where the backend is of no account, a program that has several takes part once;
/// its contenders follow each other.
pub(crate) fn taking_part(part: &str) -> impl FnMut(&Contender) -> bool {
    let mut before = None;
    move |contender| {
        let again = before.replace(contender.program.name) == Some(contender.program.name);
        contender.program.has(part) && !(again && plan::works_in_memory(part))
    }
}

/// An implementation in a case. Every entrant of a measurement is a program of its own.
#[derive(Debug)]
pub(crate) struct Entrant<'a> {
    pub(crate) contender: &'a mut Contender,
    pub(crate) case: &'a Case,
}

/// Doubles and more until a slice is long enough to judge by, which also warms everything up.
pub(crate) fn calibrate(child: &mut Child, slice_ns: u64) -> Result<u64, Refusal> {
    // Not judged by: it also does what setting up has left to do. A ring arms ten thousand polls in
    // its first wait.
    child.slice(1)?;
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

/// The samples of one entrant, in the order of the repetitions.
struct Samples {
    entrant: usize,
    rounds: u64,
    outcomes: Vec<Outcome>,
}

impl Samples {
    fn ns_per_unit(&self) -> impl Iterator<Item = f64> {
        self.outcomes.iter().map(|outcome| outcome.ns as f64 / outcome.units.max(1) as f64)
    }
}

impl Samples {
    fn gauge(&self, name: &str) -> impl Iterator<Item = f64> {
        self.outcomes.iter().filter_map(move |outcome| outcome.gauges.get(name).copied())
    }
}

/// Runs all entrants interleaved and adds what came out to the report.
pub(crate) fn time(entrants: &mut [Entrant<'_>], shape: Shape, pin: Pin, report: &mut Report) {
    let mut samples = Vec::new();
    for (number, Entrant { contender, case }) in entrants.iter_mut().enumerate() {
        match contender.prepare(case, shape.length, pin) {
            Ok(rounds) => {
                samples.push(Samples { entrant: number, rounds, outcomes: Vec::new() });
            }
            Err(refusal) => contender.refused(case, refusal, report),
        }
    }
    let mut shuffle = Shuffle(shape.slices as u64);
    for _ in 0..shape.slices {
        shuffle.apply(&mut samples);
        samples.retain_mut(|sample| {
            let Entrant { contender, case } = &mut entrants[sample.entrant];
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
    samples.sort_by_key(|sample| sample.entrant);
    let entries = samples.iter().map(|sample| entry(sample, &samples, entrants));
    report.results.extend(entries);
}

/// What is reported of one entrant, with its ratios to others.
fn entry(sample: &Samples, samples: &[Samples], entrants: &[Entrant<'_>]) -> Entry {
    let Entrant { contender, case } = &entrants[sample.entrant];
    let (name, mut params) = plan::describe(case);
    if plan::is_timed(case) {
        params.insert("profile".to_owned(), "release".into());
    }
    let mut metrics = BTreeMap::new();
    let mut put = |name: String, spread: Option<Spread>| {
        metrics.extend(spread.map(|spread| (name, spread)));
    };
    let unit = plan::unit(case);
    if plan::is_timed(case) {
        put(format!("ns_per_{unit}"), Spread::of(sample.ns_per_unit()));
    }
    if plan::has_one_thread(case) {
        let allocations = sample.outcomes.iter().map(|o| o.allocations as f64 / o.units as f64);
        put(format!("allocations_per_{unit}"), Spread::of(allocations));
    }
    for name in sample.outcomes.first().into_iter().flat_map(|outcome| outcome.gauges.keys()) {
        put(name.clone(), gauge_spread(name, sample.gauge(name)));
    }
    for (name, spread) in ratios(sample, samples, entrants) {
        put(name.to_owned(), spread);
    }
    Entry {
        suite: case.suite().to_owned(),
        case: name,
        params,
        implementation: contender.program.name.to_owned(),
        backend: plan::backend(case.suite(), contender.backend),
        version: contender.version.clone(),
        metrics,
    }
}

/// Of what a slice found to be the largest, the largest of all slices counts: a bound holds always
/// or it does not hold.
fn gauge_spread(name: &str, values: impl Iterator<Item = f64>) -> Option<Spread> {
    if name.ends_with("_max") {
        values.reduce(f64::max).map(Spread::exact)
    } else {
        Spread::of(values)
    }
}

fn ratios(
    sample: &Samples,
    samples: &[Samples],
    entrants: &[Entrant<'_>],
) -> Vec<(&'static str, Option<Spread>)> {
    let (case, this) =
        (entrants[sample.entrant].case, entrants[sample.entrant].contender.program.name);
    let find = |wanted: &dyn Fn(&Entrant<'_>) -> bool| {
        samples.iter().find(|s| wanted(&entrants[s.entrant]))
    };
    let in_this_case =
        |name: &str| find(&|other| other.contender.program.name == name && other.case == case);
    let mut ratios = Vec::new();
    if let Some(raw) = in_this_case(RAW).filter(|_| this != RAW && plan::is_timed(case)) {
        ratios.push(("ns_over_raw_ratio", ratio(sample.ns_per_unit(), raw.ns_per_unit())));
    }
    if let Some(windlass) = in_this_case(WINDLASS).filter(|_| this != WINDLASS && this != RAW) {
        if plan::is_timed(case) {
            ratios.push((
                "windlass_ns_over_this_ratio",
                ratio(windlass.ns_per_unit(), sample.ns_per_unit()),
            ));
        }
        if let Some(compared) = plan::over_peer(case) {
            let both = ratio(windlass.gauge(compared.gauge), sample.gauge(compared.gauge));
            ratios.push((compared.ratio, both));
        }
    }
    let unlimited =
        find(&|other| other.contender.program.name == EVENTFD && plan::is_unlimited(other.case));
    let unlimited = unlimited.filter(|unlimited| unlimited.entrant != sample.entrant);
    if let Some((compared, unlimited)) = plan::over_unlimited(case).zip(unlimited) {
        ratios.push((
            compared.ratio,
            ratio(sample.gauge(compared.gauge), unlimited.gauge(compared.gauge)),
        ));
    }
    ratios
}

/// Ratio of two entrants, taken within each repetition: what slows the machine slows both.
pub(crate) fn ratio(
    one: impl Iterator<Item = f64>,
    other: impl Iterator<Item = f64>,
) -> Option<Spread> {
    Spread::of(one.zip(other).map(|(one, other)| one / other))
}

/// Orders the contenders anew in each repetition, so that none always runs after the same one.
pub(crate) struct Shuffle(pub(crate) u64);

impl Shuffle {
    pub(crate) fn apply<T>(&mut self, items: &mut [T]) {
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
        Samples { entrant: 0, rounds: 1, outcomes: ns.iter().map(outcome).collect() }
    }

    #[test]
    fn a_ratio_is_taken_within_each_repetition() {
        // The machine was four times as slow in the second repetition, for both.
        let (one, other) = (samples(&[200, 800, 200]), samples(&[100, 400, 100]));
        let ratio = ratio(one.ns_per_unit(), other.ns_per_unit()).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn the_largest_is_the_largest_of_all_slices() {
        let values = [9.0, 3.0, 10.0, 1.0];
        let batch = gauge_spread("items_per_read_max", values.into_iter()).unwrap();
        assert_eq!((batch.low, batch.median, batch.high), (10.0, 10.0, 10.0));
        assert_eq!(gauge_spread("items_per_read", values.into_iter()).unwrap().median, 6.0);
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
