//! The targets of the reactor, of windlass-task and of what runs on it: which figure has to be how
//! large, and whether it was.

mod http;
mod kick;
mod tungstenite;
mod websocket;

use crate::cases;
use crate::programs::{WINDLASS, WINDLASS_TASK, WINDLASS_TIMER};
use crate::report::stats::Spread;
use crate::report::{Entry, Reached, title};

/// Two times nearer than this cannot be told apart (see "Known bias" in `docs/benchmarks.md`).
const TIE: f64 = 1.1;

/// The same where both programs do nothing but the same system call. The row `raw-again` shows
/// whether a run is as quiet.
const NARROW_TIE: f64 = 1.02;

/// A bound.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// A figure that a case has to reach.
struct Target {
    implementation: &'static str,
    case: &'static str,
    /// Parameters that the row has, `name=value`.
    params: &'static [&'static str],
    /// The only backend that it is about.
    backend: Option<&'static str>,
    metric: &'static str,
    /// Divides the metric by one of another case of the same implementation.
    over: Option<(&'static str, &'static str)>,
    bound: Bound,
    tie: f64,
}

impl Target {
    const fn new(case: &'static str, metric: &'static str, bound: Bound) -> Self {
        let (implementation, tie) = (WINDLASS_TASK, TIE);
        Self { implementation, case, params: &[], backend: None, metric, over: None, bound, tie }
    }

    /// The target of a reactor on epoll, over a hand-written loop or over itself.
    const fn of(
        implementation: &'static str,
        case: &'static str,
        metric: &'static str,
        bound: f64,
    ) -> Self {
        let target = Self::new(case, metric, AtMost(bound));
        Self { implementation, backend: Some("epoll"), tie: NARROW_TIE, ..target }
    }

    const fn with(self, params: &'static [&'static str]) -> Self {
        Self { params, ..self }
    }

    const fn on(self, backend: &'static str) -> Self {
        Self { backend: Some(backend), ..self }
    }

    const fn over(self, case: &'static str, metric: &'static str) -> Self {
        Self { over: Some((case, metric)), ..self }
    }
}

use Bound::{AtLeast, AtMost};

/// All targets. A metric that ends in `_ratio` is of times, unless it is of instructions.
const TARGETS: &[Target] = &[
    Target::of(WINDLASS, "one_ready", "ns_over_raw_ratio", 1.02),
    Target::of(WINDLASS, "four_fds", "ns_over_raw_ratio", 1.02),
    Target::of(WINDLASS, "empty_turn", "ns_over_raw_ratio", 1.03),
    Target::of(WINDLASS_TIMER, "empty_turn", "ns_over_raw_ratio", 1.06),
    Target::of(WINDLASS_TIMER, "stays_ready", "ns_over_no_timer_ratio", 1.03),
    Target::new("ping_pong", "p999_over_tokio_ratio", AtMost(0.25)).with(&[
        "echoed_by=same_task",
        "pairs=16",
        "exact_reads=true",
    ]),
    Target::new("ping_pong", "rate_over_tokio_ratio", AtLeast(0.95)).with(&[
        "echoed_by=same_task",
        "pairs=16",
        "exact_reads=true",
    ]),
    Target::new("ping_pong", "p50_over_best_peer_ratio", AtMost(1.0)).with(&["echoed_by=own_task"]),
    Target::new("ping_pong", "p99_over_best_peer_ratio", AtMost(1.0)).with(&["echoed_by=own_task"]),
    Target::new("ping_pong", "p50_over_best_peer_ratio", AtMost(0.85))
        .with(&["echoed_by=own_task"])
        .on("uring"),
    Target::new("ping_pong", "would_block_per_message", AtMost(0.0)).with(&["exact_reads=false"]),
    Target::new("ping_pong", "failed_syscalls_per_message", AtMost(0.0)),
    Target::new("accept_churn", "rate_over_tokio_ratio", AtLeast(1.0)),
    Target::new("task_round_trip", "ns_over_tokio_ratio", AtMost(1.0)),
    Target::new("self_wake", "user_instructions_per_poll", AtMost(40.0)).with(&["turns=false"]),
    Target::new("spawn", "allocations_per_task", AtMost(1.0)),
    Target::new("turn_per_poll", "ns_per_turn", AtLeast(1.0)).over("short_sleep", "ns_per_sleep"),
    Target::new("turn_per_poll", "ns_per_turn", AtLeast(5.0)).over("short_sleep", "ns_per_sleep"),
];

/// All lists.
fn all() -> impl Iterator<Item = &'static Target> {
    [TARGETS, kick::TARGETS, http::TARGETS, websocket::TARGETS, tungstenite::TARGETS]
        .into_iter()
        .flatten()
}

/// Returns the targets of which there is a figure, in the order of the list.
pub(crate) fn reached(results: &[Entry]) -> Vec<Reached> {
    let mut all = Vec::new();
    for target in self::all() {
        let entries = results.iter().filter(|entry| target.is_about(entry));
        all.extend(entries.filter_map(|entry| target.judge(entry, results)));
    }
    all
}

fn param(entry: &Entry, name: &str) -> Option<String> {
    entry.params.get(name).map(cases::text)
}

impl Target {
    fn is_about(&self, entry: &Entry) -> bool {
        let has = |wanted: &&str| {
            wanted.split_once('=').is_some_and(|(name, value)| {
                param(entry, name).is_some_and(|actual| actual == value)
            })
        };
        entry.implementation == self.implementation
            && entry.case == self.case
            && self.params.iter().all(has)
            && self.backend.is_none_or(|backend| entry.backend == backend)
    }

    fn judge(&self, entry: &Entry, results: &[Entry]) -> Option<Reached> {
        let value = entry.metrics.get(self.metric)?.median;
        let mut metric = self.metric.to_owned();
        let mut row = title(entry);
        let value = match self.over {
            None => value,
            Some((case, other)) => {
                let beside = |found: &&Entry| {
                    found.case == case
                        && found.implementation == entry.implementation
                        && found.backend == entry.backend
                        && param(found, "live_timers") == param(entry, "live_timers")
                };
                let found = results.iter().filter(beside);
                let (found, divisor): (&Entry, &Spread) = found
                    .filter_map(|found| Some((found, found.metrics.get(other)?)))
                    .min_by(|one, other| one.1.median.total_cmp(&other.1.median))?;
                metric = format!("{metric} over {other}");
                row = format!("{row}, {}", title(found));
                value / divisor.median
            }
        };
        let is_count = self.metric.contains("instructions");
        let is_time = self.over.is_some() || (self.metric.ends_with("_ratio") && !is_count);
        let tie = if is_time { self.tie } else { 1.0 };
        let (is_met, is_near, bound) = match self.bound {
            AtMost(bound) => (value <= bound, value <= bound * tie, format!("at most {bound}")),
            AtLeast(bound) => (value >= bound, value * tie >= bound, format!("at least {bound}")),
        };
        let verdict = match (is_met, is_near) {
            (true, _) => "met",
            (false, true) => "tie",
            (false, false) => "missed",
        };
        let (implementation, backend) = (entry.implementation.clone(), entry.backend.clone());
        let verdict = verdict.to_owned();
        Some(Reached { row, implementation, backend, metric, value, bound, verdict })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::WINDLASS_TUNGSTENITE;
    use serde_json::Value;

    fn entry(
        case: &str,
        params: &[(&str, Value)],
        backend: &str,
        metrics: &[(&str, f64)],
    ) -> Entry {
        let own = |(name, value): &(&str, Value)| ((*name).to_owned(), value.clone());
        let metric = |(name, value): &(&str, f64)| ((*name).to_owned(), Spread::exact(*value));
        Entry {
            suite: "latency".into(),
            case: case.into(),
            params: params.iter().map(own).collect(),
            implementation: WINDLASS_TASK.into(),
            backend: backend.into(),
            version: "1".into(),
            metrics: metrics.iter().map(metric).collect(),
            samples: Vec::new(),
        }
    }

    #[test]
    fn a_target_is_met_missed_or_too_near_to_tell() {
        let pairs = [("echoed_by", "own_task".into()), ("pairs", 16.into())];
        let verdicts = |backend: &str, ratio: f64| {
            let entry = entry("ping_pong", &pairs, backend, &[("p50_over_best_peer_ratio", ratio)]);
            reached(&[entry]).iter().map(|reached| reached.verdict.clone()).collect::<Vec<_>>()
        };
        assert_eq!(verdicts("epoll", 0.9), ["met"]);
        assert_eq!(verdicts("epoll", 1.05), ["tie"]);
        assert_eq!(verdicts("epoll", 1.2), ["missed"]);
        assert_eq!(verdicts("uring", 0.9), ["met", "tie"], "a ring has a target of its own");
    }

    #[test]
    fn a_reactor_is_judged_more_narrowly_than_a_runtime() {
        let verdict = |ratio: f64| {
            let entry = entry("one_ready", &[], "epoll", &[("ns_over_raw_ratio", ratio)]);
            reached(&[Entry { implementation: WINDLASS.into(), ..entry }])[0].verdict.clone()
        };
        assert_eq!([1.02, 1.03, 1.05].map(verdict), ["met", "tie", "missed"]);
    }

    #[test]
    fn counts_have_no_ties() {
        let params = [("turns", false.into())];
        let entry = entry("self_wake", &params, "epoll", &[("user_instructions_per_poll", 40.5)]);
        let reached = reached(&[entry]);
        assert_eq!(reached[0].verdict, "missed");
        let of_release = [("profile", "release".into())];
        let ratio = [("instructions_over_tungstenite_ratio", 0.51)];
        let theirs = super::tests::entry("echo", &of_release, "epoll", &ratio);
        let theirs =
            super::reached(&[Entry { implementation: WINDLASS_TUNGSTENITE.into(), ..theirs }]);
        assert_eq!(theirs[0].verdict, "missed", "nor does their ratio");
        assert!(
            reached[0].to_string().contains("self_wake turns=false windlass-task on epoll"),
            "{reached:?}"
        );
    }

    #[test]
    fn a_turn_is_divided_by_a_sleep_of_the_same_loop() {
        let timers = [("live_timers", 0.into())];
        let turn = entry("turn_per_poll", &timers, "epoll", &[("ns_per_turn", 600.0)]);
        let sleep = |backend, ns| entry("short_sleep", &timers, backend, &[("ns_per_sleep", ns)]);
        let all = reached(&[turn.clone(), sleep("uring", 1.0), sleep("epoll", 200.0)]);
        let values: Vec<_> = all.iter().map(|reached| (reached.value, &*reached.verdict)).collect();
        assert_eq!(values, [(3.0, "met"), (3.0, "missed")]);
        assert!(reached(&[turn]).is_empty(), "there is nothing to divide by");
    }

    #[test]
    fn every_target_is_of_a_case_that_is_measured() {
        for target in super::all() {
            let of = |suite| [cases::groups(suite, true).concat(), cases::counted(suite, true)];
            let suites = ["dispatch", "kick", "poll0", "latency", "tasks", "http", "engine"];
            let all = suites.map(of).concat().concat();
            let all = [all, cases::servers::cases("websocket", true)].concat();
            let entries = all.iter().map(|case| {
                let (name, params) = cases::describe(case);
                let entry = entry(&name, &[], target.backend.unwrap_or("epoll"), &[]);
                let profile = ("profile".to_owned(), "release".into());
                let params = params.into_iter().chain([profile]).collect();
                Entry { params, implementation: target.implementation.into(), ..entry }
            });
            assert!(entries.into_iter().any(|entry| target.is_about(&entry)), "{}", target.case);
        }
    }
}
