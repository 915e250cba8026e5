//! Times cases on all implementations, whose slices take turns.

use std::collections::BTreeMap;
use std::path::PathBuf;

use windlass_bench_driver::protocol::{Case, Outcome, Reply, Request};

use crate::cases::{self, Length, Shape};
use crate::child::Child;
use crate::error::MeasureError;
use crate::pace;
use crate::pin::Pin;
use crate::programs::{
    EVENTFD, Program, RAW, TOKIO, TUNGSTENITE, TUNGSTENITE_UNTUNED, WINDLASS, WINDLASS_TASK,
    WINDLASS_TIMER, WINDLASS_TUNGSTENITE, Workspace,
};
use crate::report::stats::{Spread, rounded};
use crate::report::{Entry, Report};
use crate::requirements::too_few_processors;

/// An implementation on one backend.
#[derive(Debug)]
pub(crate) struct Implementation {
    pub(crate) program: &'static Program,
    pub(crate) backend: &'static str,
    /// The build.
    pub(crate) profile: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// `None` before its first case and after a failure. The next case starts it.
    child: Option<Child>,
}

impl Implementation {
    pub(crate) fn new(
        program: &'static Program,
        backend: &'static str,
        profile: &'static str,
        path: PathBuf,
    ) -> Self {
        Self { program, backend, profile, path, version: String::new(), child: None }
    }

    /// Ends the program. The next case starts it again.
    pub(crate) fn rest(&mut self) {
        self.child = None;
    }

    /// Returns the same implementation with a process of its own.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.program, self.backend, self.profile, self.path.clone())
    }

    /// Sets the case up. Returns the number of rounds of a slice.
    pub(crate) fn prepare(
        &mut self,
        case: &Case,
        length: Length,
        pin: Pin,
    ) -> Result<u64, MeasureError> {
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
            reply => Err(MeasureError::Failed(format!("not ready but {reply:?}"))),
        }
    }

    pub(crate) fn slice(&mut self, rounds: u64) -> Result<Outcome, MeasureError> {
        match &mut self.child {
            Some(child) => child.slice(rounds),
            None => Err(MeasureError::Failed("has ended".into())),
        }
    }

    /// Reports an error. After a failure the program is started again, because its state is
    /// unknown.
    fn failed(&mut self, case: &Case, error: MeasureError, report: &mut Report) {
        if !matches!(error, MeasureError::Unsupported(_)) {
            self.child = None;
        }
        report.skip(case.suite(), &cases::describe(case).0, self.program.name, error);
    }
}

/// Returns a filter for the implementations that take part in this part of a suite. A suite without
/// a backend takes the first implementation of each program, so the implementations of one program
/// must be adjacent.
pub(crate) fn participating(part: &str) -> impl FnMut(&Implementation) -> bool {
    let mut before = None;
    move |implementation| {
        let again =
            before.replace(implementation.program.name) == Some(implementation.program.name);
        implementation.program.has(part) && !(again && cases::works_in_memory(part))
    }
}

/// An implementation in a case.
#[derive(Debug)]
pub(crate) struct CaseRun<'a> {
    pub(crate) implementation: &'a mut Implementation,
    pub(crate) case: &'a Case,
}

/// Increases the number of rounds until a slice is long enough to measure, which also warms up the
/// program. Returns the number of rounds that takes `slice_ns`.
pub(crate) fn calibrate(child: &mut Child, slice_ns: u64) -> Result<u64, MeasureError> {
    // The first slice is not used, because it does delayed set-up work: a ring arms ten thousand
    // polls in its first wait.
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

/// The samples of one case run, in the order of the repetitions.
struct Samples {
    run: usize,
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

/// Runs all case runs interleaved, and adds the results to the report.
pub(crate) fn time(runs: &mut [CaseRun<'_>], shape: Shape, pin: Pin, report: &mut Report) {
    let mut samples = Vec::new();
    // A case at a common rate has no others in its group.
    let at_rate = pace::at_common_rate(runs, shape.length, pin);
    for (number, CaseRun { implementation, case }) in runs.iter_mut().enumerate() {
        match implementation.prepare(at_rate.as_ref().unwrap_or(case), shape.length, pin) {
            Ok(rounds) => {
                samples.push(Samples { run: number, rounds, outcomes: Vec::new() });
            }
            Err(error) => implementation.failed(case, error, report),
        }
    }
    let mut shuffle = Shuffle(shape.slices as u64);
    for _ in 0..shape.slices {
        shuffle.apply(&mut samples);
        samples.retain_mut(|sample| {
            let CaseRun { implementation, case } = &mut runs[sample.run];
            match implementation.slice(sample.rounds) {
                Ok(outcome) => {
                    sample.outcomes.push(outcome);
                    true
                }
                Err(error) => {
                    implementation.failed(case, error, report);
                    false
                }
            }
        });
    }
    samples.sort_by_key(|sample| sample.run);
    let entries = samples.iter().map(|sample| entry(sample, &samples, runs));
    report.results.extend(entries);
}

/// Runs a case without timing it, for its allocations and bytes.
pub(crate) fn count(run: &mut CaseRun<'_>, rounds: u64, pin: Pin, report: &mut Report) {
    let CaseRun { implementation, case } = run;
    let counted = implementation.prepare(case, Length::Rounds(rounds), pin).and_then(|rounds| {
        // The first slice is a warm-up, for everything that happens only once.
        implementation.slice(rounds)?;
        implementation.slice(rounds)
    });
    match counted {
        Ok(outcome) => {
            let sample = Samples { run: 0, rounds, outcomes: vec![outcome] };
            report.push_counts(entry(&sample, &[], std::slice::from_ref(run)));
        }
        Err(error) => implementation.failed(case, error, report),
    }
}

/// Returns the report entry of one case run, with its ratios to others.
fn entry(sample: &Samples, samples: &[Samples], runs: &[CaseRun<'_>]) -> Entry {
    let CaseRun { implementation, case } = &runs[sample.run];
    let (name, mut params) = cases::describe(case);
    if cases::is_timed(case) {
        params.insert("profile".to_owned(), implementation.profile.into());
    }
    params.extend(too_few_processors(case));
    let mut metrics = BTreeMap::new();
    let mut put = |name: String, spread: Option<Spread>| {
        metrics.extend(spread.map(|spread| (name, spread)));
    };
    let unit = cases::unit(case);
    if cases::is_timed(case) {
        put(format!("ns_per_{unit}"), Spread::of(sample.ns_per_unit()));
    }
    if cases::has_one_thread(case) {
        let allocations = sample.outcomes.iter().map(|o| o.allocations as f64 / o.units as f64);
        put(format!("allocations_per_{unit}"), Spread::of(allocations));
    }
    for name in sample.outcomes.first().into_iter().flat_map(|outcome| outcome.gauges.keys()) {
        put(name.clone(), gauge_spread(name, sample.gauge(name)));
    }
    for (name, spread) in ratios(sample, samples, runs) {
        put(name.to_owned(), spread);
    }
    if implementation.program.name == WINDLASS_TASK {
        for (name, spread) in over_peers(sample, samples, runs) {
            put(name, spread);
        }
    }
    Entry {
        suite: case.suite().to_owned(),
        case: name,
        params,
        implementation: implementation.program.name.to_owned(),
        backend: cases::backend(case.suite(), implementation.backend),
        version: implementation.version.clone(),
        metrics,
        samples: if cases::is_timed(case) { rounded(sample.ns_per_unit()) } else { Vec::new() },
    }
}

/// Returns the spread of a gauge. The result of a maximum is the maximum of all slices.
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
    runs: &[CaseRun<'_>],
) -> Vec<(&'static str, Option<Spread>)> {
    let (case, this) = (runs[sample.run].case, runs[sample.run].implementation.program.name);
    let find =
        |wanted: &dyn Fn(&CaseRun<'_>) -> bool| samples.iter().find(|s| wanted(&runs[s.run]));
    let in_this_case =
        |name: &str| find(&|other| other.implementation.program.name == name && other.case == case);
    let mut ratios = Vec::new();
    if let Some(raw) = in_this_case(RAW).filter(|_| this != RAW && cases::is_timed(case)) {
        ratios.push(("ns_over_raw_ratio", ratio(sample.ns_per_unit(), raw.ns_per_unit())));
    }
    if let Some((raw, compared)) =
        in_this_case(RAW).filter(|_| this != RAW).zip(cases::over_raw(case))
    {
        ratios
            .push((compared.ratio, ratio(sample.gauge(compared.gauge), raw.gauge(compared.gauge))));
    }
    let windlass = in_this_case(WINDLASS).or_else(|| in_this_case(WINDLASS_TASK));
    if let Some(without) = in_this_case(WINDLASS).filter(|_| this == WINDLASS_TIMER) {
        let both = ratio(sample.ns_per_unit(), without.ns_per_unit());
        ratios.push(("ns_over_no_timer_ratio", both.filter(|_| cases::is_timed(case))));
    }
    let is_other = ![WINDLASS, WINDLASS_TASK].contains(&this) && !this.starts_with(RAW);
    if let Some(windlass) = windlass.filter(|_| is_other) {
        if cases::is_timed(case) {
            ratios.push((
                "windlass_ns_over_this_ratio",
                ratio(windlass.ns_per_unit(), sample.ns_per_unit()),
            ));
        }
        if let Some(compared) = cases::over_peer(case) {
            let both = ratio(windlass.gauge(compared.gauge), sample.gauge(compared.gauge));
            ratios.push((compared.ratio, both));
        }
    }
    let theirs = [
        (TUNGSTENITE, "rate_over_tungstenite_ratio"),
        (TUNGSTENITE_UNTUNED, "rate_over_tungstenite-untuned_ratio"),
    ];
    for (name, rate) in theirs.into_iter().filter(|_| this == WINDLASS_TUNGSTENITE) {
        let rates = in_this_case(name).and_then(|it| ratio(it.ns_per_unit(), sample.ns_per_unit()));
        ratios.push((rate, rates.filter(|_| cases::is_timed(case))));
    }
    let unlimited = find(&|other| {
        other.implementation.program.name == EVENTFD && cases::is_unlimited(other.case)
    });
    let unlimited = unlimited.filter(|unlimited| unlimited.run != sample.run);
    if let Some((compared, unlimited)) = cases::over_unlimited(case).zip(unlimited) {
        ratios.push((
            compared.ratio,
            ratio(sample.gauge(compared.gauge), unlimited.gauge(compared.gauge)),
        ));
    }
    ratios
}

/// The figures of windlass that are divided by those of its peers.
const FIGURES: [&str; 6] = [
    "ns",
    "p50_us",
    "p99_us",
    "p999_us",
    "server_cpu_us_per_request",
    "heap_bytes_per_idle_connection",
];

/// Returns the time and the percentiles of windlass over those of tokio and of the best peer, which
/// is another one for each figure.
fn over_peers(
    sample: &Samples,
    samples: &[Samples],
    runs: &[CaseRun<'_>],
) -> Vec<(String, Option<Spread>)> {
    let case = runs[sample.run].case;
    let peers = || {
        samples.iter().filter(|other| {
            let CaseRun { implementation, case: other_case } = &runs[other.run];
            *other_case == case && implementation.program.workspace != Workspace::Root
        })
    };
    let tokio = || peers().find(|peer| runs[peer.run].implementation.program.name == TOKIO);
    let mut ratios = Vec::new();
    for figure in FIGURES {
        let values = |sample: &Samples| match figure {
            "ns" => sample.ns_per_unit().collect::<Vec<_>>(),
            gauge => sample.gauge(gauge).collect(),
        };
        let own = values(sample);
        if own.is_empty() || (figure == "ns" && !cases::is_timed(case)) {
            continue;
        }
        let name = figure.trim_end_matches("_us");
        let over = |other: &Samples| ratio(own.iter().copied(), values(other).into_iter());
        let median = |peer: &&Samples| Spread::of(values(peer)).map(|spread| spread.median);
        let by_median = |peer: &&Samples| median(peer).unwrap_or(f64::INFINITY);
        let best = peers().min_by(|one, other| by_median(one).total_cmp(&by_median(other)));
        ratios.extend(tokio().map(|tokio| (format!("{name}_over_tokio_ratio"), over(tokio))));
        ratios.extend(best.map(|best| (format!("{name}_over_best_peer_ratio"), over(best))));
    }
    ratios.extend(tokio().map(|tokio| {
        // The rates are the inverse of the times.
        ("rate_over_tokio_ratio".to_owned(), ratio(tokio.ns_per_unit(), sample.ns_per_unit()))
    }));
    ratios
}

/// Returns the ratio of two case runs, taken within each repetition, because a disturbance of the
/// machine slows both.
pub(crate) fn ratio(
    one: impl Iterator<Item = f64>,
    other: impl Iterator<Item = f64>,
) -> Option<Spread> {
    Spread::of(one.zip(other).map(|(one, other)| one / other))
}

/// Shuffles the order in each repetition, so that none always runs after the same one.
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
    use crate::programs::PROGRAMS;
    use windlass_bench_driver::protocol::EchoedBy;

    fn samples(ns: &[u64]) -> Samples {
        let outcome = |&ns| Outcome { ns, units: 10, ..Outcome::default() };
        Samples { run: 0, rounds: 1, outcomes: ns.iter().map(outcome).collect() }
    }

    #[test]
    fn a_ratio_is_taken_within_each_repetition() {
        // The machine was four times as slow in the second repetition, for both.
        let (one, other) = (samples(&[200, 800, 200]), samples(&[100, 400, 100]));
        let ratio = ratio(one.ns_per_unit(), other.ns_per_unit()).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
    }

    /// Passes on the samples and runs of these programs in one case, with their times in ns.
    fn with_runs(times: &[(&str, u64)], check: impl FnOnce(&[Samples], &[CaseRun<'_>])) {
        let case = Case::PingPong {
            echoed_by: EchoedBy::OwnTask,
            pairs: 1,
            exact_reads: false,
            live_timers: 0,
        };
        let implementation = |(name, _): &(&str, u64)| {
            let program = PROGRAMS.iter().find(|program| program.name == *name).unwrap();
            Implementation::new(program, "epoll", "release", PathBuf::new())
        };
        let mut all: Vec<_> = times.iter().map(implementation).collect();
        let runs: Vec<_> =
            all.iter_mut().map(|implementation| CaseRun { implementation, case: &case }).collect();
        let of = |(run, &(_, ns)): (usize, &(&str, u64))| {
            let gauges = [("p50_us".to_owned(), ns as f64 / 2.0)].into();
            let outcome = Outcome { ns, units: 1, gauges, ..Outcome::default() };
            Samples { run, rounds: 1, outcomes: vec![outcome] }
        };
        let samples: Vec<_> = times.iter().enumerate().map(of).collect();
        check(&samples, &runs);
    }

    #[test]
    fn tasks_are_compared_with_tokio_and_with_the_best_library() {
        let times = [(RAW, 1), (WINDLASS_TASK, 10), (TOKIO, 20), ("asio", 5)];
        with_runs(&times, |samples, runs| {
            let ratios: BTreeMap<_, _> =
                over_peers(&samples[1], samples, runs).into_iter().collect();
            let median = |name: &str| ratios[name].unwrap().median;
            assert_eq!(median("ns_over_tokio_ratio"), 0.5);
            assert_eq!(median("rate_over_tokio_ratio"), 2.0);
            assert_eq!(median("p50_over_best_peer_ratio"), 2.0, "the raw loop is no peer");
            assert!(!ratios.contains_key("p99_over_tokio_ratio"), "there is no such figure");
        });
    }

    #[test]
    fn a_far_timer_is_compared_with_none_and_the_noise_with_the_raw_loop() {
        let times = [(RAW, 10), ("raw-again", 11), (WINDLASS, 12), (WINDLASS_TIMER, 18)];
        with_runs(&times, |samples, runs| {
            let of = |run: usize| ratios(&samples[run], samples, runs);
            let median = |run: usize, name: &str| {
                let found = of(run).into_iter().find(|(of, _)| *of == name);
                found.and_then(|(_, spread)| Some(spread?.median))
            };
            assert_eq!(median(3, "ns_over_no_timer_ratio"), Some(1.5));
            assert_eq!(median(2, "ns_over_no_timer_ratio"), None);
            assert_eq!(median(1, "ns_over_raw_ratio"), Some(1.1));
            assert_eq!(median(1, "windlass_ns_over_this_ratio"), None, "it is no peer");
        });
    }

    #[test]
    fn a_crate_is_compared_with_the_one_whose_interface_it_has() {
        with_runs(&[(WINDLASS_TUNGSTENITE, 10), (TUNGSTENITE, 25)], |samples, runs| {
            let of = |run: usize| ratios(&samples[run], samples, runs);
            let rates = of(0).into_iter().find(|(name, _)| *name == "rate_over_tungstenite_ratio");
            assert_eq!(rates.and_then(|(_, spread)| Some(spread?.median)), Some(2.5));
            assert!(of(1).is_empty());
        });
    }

    #[test]
    fn without_tokio_there_is_no_ratio_to_it() {
        with_runs(&[(WINDLASS_TASK, 10), ("compio", 5)], |samples, runs| {
            let names: Vec<_> =
                over_peers(&samples[0], samples, runs).into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["ns_over_best_peer_ratio", "p50_over_best_peer_ratio"]);
        });
    }

    #[test]
    fn the_largest_is_the_largest_of_all_slices() {
        let values = [9.0, 3.0, 10.0, 1.0];
        let batch = gauge_spread("items_per_read_max", values.into_iter()).unwrap();
        assert_eq!((batch.low, batch.median, batch.high), (10.0, 10.0, 10.0));
        assert_eq!(gauge_spread("items_per_read", values.into_iter()).unwrap().median, 6.0);
    }

    #[test]
    fn the_order_changes_and_no_item_is_lost() {
        let (mut shuffle, mut items) = (Shuffle(1), [0, 1, 2, 3, 4]);
        let mut firsts = Vec::new();
        for _ in 0..50 {
            shuffle.apply(&mut items);
            firsts.push(items[0]);
        }
        assert!((0..5).all(|item| firsts.contains(&item)));
    }
}
