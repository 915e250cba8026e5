//! Counts the system calls of a round, all together and by their names, so that a dearer call
//! cannot hide behind an equal number.

use std::collections::BTreeMap;

use windlass_bench_driver::protocol::{Awake, Case, EchoedBy, Trigger};

use crate::cases;
use crate::error::MeasureError;
use crate::limit::{Counting, Limit, time_is_over};
use crate::report::stats::Spread;
use crate::report::{Entry, Report};
use crate::timing::Implementation;
use crate::tools::instructions::CountedCase;
use crate::tools::strace::{self, PerRound};

/// A case whose system calls are counted.
struct TracedCase {
    counted: CountedCase,
    metric: &'static str,
    /// Writes per round that belong to the workload.
    own: f64,
    /// The metric for the calls that failed. A read that finds nothing fails with `EAGAIN`.
    failed: Option<&'static str>,
    /// The calls are counted by their names as well. Which calls threads make depends on the
    /// schedule.
    by_name: bool,
}

/// A call that is rarer is none of a round: it belongs to the start or to a rare event.
const RARE: f64 = 0.02;

impl TracedCase {
    /// Returns the metrics of a round. Their names end in the unit of the total.
    fn metrics(&self, per_round: &PerRound) -> BTreeMap<String, Spread> {
        let total = (self.metric.to_owned(), per_round.calls - self.own);
        let failed = self.failed.map(|failed| (failed.to_owned(), per_round.failed));
        let unit = self.metric.trim_start_matches("syscalls_per_");
        let named =
            per_round.by_name.iter().filter(|_| self.by_name).filter_map(|(name, calls)| {
                let calls = if name == "write" { calls - self.own } else { *calls };
                (calls >= RARE).then(|| (format!("{name}_calls_per_{unit}"), calls))
            });
        let all = [total].into_iter().chain(failed).chain(named);
        all.map(|(name, count)| (name, Spread::exact(count))).collect()
    }
}

/// Returns the cases of a suite whose system calls are counted.
fn traced(suite: &str) -> Vec<TracedCase> {
    let case = |case, metric| TracedCase {
        counted: CountedCase { case, few: 100, many: 300 },
        metric,
        own: 0.0,
        failed: None,
        by_name: true,
    };
    // The calls of a turn do not vary, so a few turns tell them. Tracing is slow.
    let turns = |case, ready: u32| TracedCase {
        counted: CountedCase { case, few: 4, many: 12 },
        metric: "syscalls_per_turn",
        own: ready.into(),
        failed: None,
        by_name: true,
    };
    let messages = |case, metric, failed| TracedCase {
        counted: CountedCase { case, few: 64, many: 1_088 },
        metric,
        own: 0.0,
        failed: Some(failed),
        by_name: true,
    };
    let ping_pong = |pairs, live_timers| {
        let echoed_by = EchoedBy::OwnTask;
        let case = Case::PingPong { echoed_by, pairs, exact_reads: false, live_timers };
        messages(case, "syscalls_per_message", "failed_syscalls_per_message")
    };
    let trigger = Trigger::Edge;
    match suite {
        // The writes that fire the sources are the workload's.
        "dispatch" => vec![
            TracedCase {
                own: 1.0,
                ..case(Case::OneReady { registered: 100, trigger }, "syscalls_per_event")
            },
            turns(Case::AllReady { registered: 16, trigger }, 16),
            turns(Case::FourFds { subscribers: 100, trigger }, 1),
            turns(Case::EightTypes { registered: 256, ready: 64 }, 64),
            turns(Case::StaysReady { registered: 1 }, 0),
        ],
        // The driver's write and read, and those of the handler.
        "kick" => {
            let kick = case(Case::Kick { guest: false }, "syscalls_per_kick");
            vec![TracedCase { own: 4.0, ..kick }]
        }
        "poll0" => vec![
            case(Case::EmptyTurn { registered: 100 }, "syscalls_per_turn"),
            turns(Case::ReadyTurn { registered: 1 }, 0),
        ],
        "timers" => {
            let beside = cases::turns_beside_timers().into_iter().map(|case| turns(case, 0));
            let pair = case(Case::InsertCancel { alive: 1_000 }, "syscalls_per_pair");
            [pair].into_iter().chain(beside).collect()
        }
        "flow" => [false, true]
            .map(|polled| case(Case::Uncontended { polled }, "syscalls_per_item"))
            .into(),
        // The number of calls to start and end threads varies by one or two, so there are many
        // wakes.
        "wakeup" => {
            let running = Case::WakeRunning { awake: Awake::InHandler };
            let running = CountedCase { case: running, few: 1_000, many: 6_000 };
            let sleeping =
                || TracedCase { by_name: false, ..case(Case::WakeSleeping, "syscalls_per_wake") };
            vec![TracedCase { counted: running, ..sleeping() }, sleeping()]
        }
        "latency" => vec![ping_pong(1, 0), ping_pong(1, 1), ping_pong(16, 0)],
        "http" => {
            let (metric, failed) = ("syscalls_per_request", "failed_syscalls_per_request");
            cases::http::traced().into_iter().map(|case| messages(case, metric, failed)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether system calls of a suite are counted.
pub(crate) fn counts(suite: &str) -> bool {
    !traced(suite).is_empty()
}

/// Counts the system calls of a suite.
pub(crate) fn count(
    suite: &str,
    implementations: &[Implementation],
    limit: Limit,
    report: &mut Report,
) {
    let mut counting = Counting::new(limit);
    let traced = traced(suite);
    if let Some(reason) = strace::unavailable().filter(|_| !traced.is_empty()) {
        report.skip(suite, "system_calls", "*", MeasureError::Unsupported(reason));
        return;
    }
    for traced in traced {
        let counted = &traced.counted;
        let (case, mut params) = cases::describe(&counted.case);
        params.insert("tool".to_owned(), "strace".into());
        for implementation in implementations.iter().filter(|c| c.program.has(counted.case.part()))
        {
            eprintln!("{suite}/{case} {} (strace)", implementation.program.name);
            let (path, backend) = (&implementation.path, implementation.backend);
            let per_round = counting.next(|| strace::per_round(path, backend, counted));
            match per_round.unwrap_or_else(|| Err(time_is_over())) {
                Ok(per_round) => report.results.push(Entry {
                    suite: suite.to_owned(),
                    case: case.clone(),
                    params: params.clone(),
                    implementation: implementation.program.name.to_owned(),
                    backend: implementation.backend.to_owned(),
                    version: implementation.version.clone(),
                    metrics: traced.metrics(&per_round),
                    samples: Vec::new(),
                }),
                Err(error) => report.skip(suite, &case, implementation.program.name, error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writes_of_the_workload_are_none_of_a_turn() {
        let traced = &traced("dispatch")[1];
        let by_name = [("epoll_wait", 1.0), ("write", 16.0), ("brk", 0.001)];
        let by_name = by_name.map(|(name, calls)| (name.to_owned(), calls)).into();
        let metrics = traced.metrics(&PerRound { calls: 17.0, failed: 0.0, by_name });
        let names: Vec<_> = metrics.keys().map(String::as_str).collect();
        assert_eq!(names, ["epoll_wait_calls_per_turn", "syscalls_per_turn"]);
        assert!(metrics.values().all(|count| count.median == 1.0));
    }

    #[test]
    fn the_calls_of_a_turn_are_counted_by_name_and_those_of_threads_are_not() {
        for suite in cases::SUITES {
            assert!(traced(suite).iter().all(|case| case.by_name == (*suite != "wakeup")));
            for case in traced(suite) {
                assert!(case.metric.starts_with("syscalls_per_"));
                assert_eq!(case.counted.case.suite(), *suite);
            }
        }
    }
}
