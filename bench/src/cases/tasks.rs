//! The cases of the suites `latency` and `tasks`, and the targets of windlass in them.

use windlass_bench_driver::protocol::{Case, EchoedBy};

use super::{Length, Shape};

/// Numbers of live timers. A timer changes how a loop waits.
const LIVE_TIMERS: [usize; 2] = [0, 1];

/// Returns the cases of the suite `latency`.
pub(super) fn latency(quick: bool) -> Vec<Case> {
    let pairs: &[usize] = if quick { &[1, 16] } else { &[1, 4, 16] };
    let parallel: &[usize] = if quick { &[1] } else { &[1, 16] };
    let mut cases = Vec::new();
    for live_timers in LIVE_TIMERS {
        for echoed_by in [EchoedBy::SameTask, EchoedBy::OwnTask] {
            // In one task, exact reads let a task go on and on. A task of its own shows whether
            // reads find an empty socket.
            let usual = echoed_by == EchoedBy::SameTask;
            let exact: &[bool] = if quick { &[usual] } else { &[usual, !usual] };
            for &exact_reads in exact {
                cases.extend(pairs.iter().map(|&pairs| Case::PingPong {
                    echoed_by,
                    pairs,
                    exact_reads,
                    live_timers,
                }));
            }
        }
        cases.extend(parallel.iter().map(|&parallel| Case::AcceptChurn { parallel, live_timers }));
        cases.push(Case::TaskRoundTrip { live_timers });
    }
    cases
}

/// Returns the cases of the suite `tasks`.
pub(super) fn tasks(quick: bool) -> Vec<Case> {
    let many = if quick { 100_000 } else { 1_000_000 };
    let mut cases = Vec::new();
    for live_timers in LIVE_TIMERS {
        cases.extend([
            Case::SelfWake { turns: true, live_timers },
            Case::TurnPerPoll { live_timers },
            Case::Spawn { batch: 1, live_timers },
            Case::Spawn { batch: 100, live_timers },
            Case::ShortSleep { ns: 0, live_timers },
            Case::ShortSleep { ns: 1, live_timers },
        ]);
    }
    cases.push(Case::SpawnRemote { bound: 512 });
    for alive in [0, 1, many] {
        cases.push(Case::SleepCancel { alive, polled: true });
    }
    cases.extend([
        Case::SleepCancel { alive: 0, polled: false },
        Case::ManySleeps { count: 1_000 },
        Case::TaskSleep { us: 200, slack_ns: 50_000 },
        Case::TaskSleep { us: 200, slack_ns: 1 },
    ]);
    cases
}

/// Returns the cases of either suite whose instructions are counted.
pub(super) fn counted(suite: &str) -> Vec<Case> {
    let echoed_by = EchoedBy::OwnTask;
    match suite {
        "latency" => vec![
            Case::PingPong { echoed_by, pairs: 1, exact_reads: false, live_timers: 0 },
            Case::PingPong { echoed_by, pairs: 1, exact_reads: false, live_timers: 1 },
            Case::PingPong { echoed_by, pairs: 16, exact_reads: false, live_timers: 0 },
        ],
        "tasks" => vec![
            Case::SelfWake { turns: true, live_timers: 0 },
            Case::SelfWake { turns: false, live_timers: 0 },
            Case::Spawn { batch: 100, live_timers: 0 },
            Case::SleepCancel { alive: 0, polled: true },
            Case::ShortSleep { ns: 0, live_timers: 0 },
        ],
        _ => Vec::new(),
    }
}

/// Returns whether the case is one of these suites.
pub(crate) fn has(case: &Case) -> bool {
    matches!(case.suite(), "latency" | "tasks")
}

/// Returns the numbers of rounds of a counted case. There are as many as make rare events, such as
/// a turn after 61 polls, a part of the mean.
pub(crate) fn rounds(case: &Case) -> (u64, u64) {
    match case {
        Case::SelfWake { .. } | Case::Spawn { .. } => (610, 6_710),
        Case::SleepCancel { .. } | Case::ShortSleep { .. } => (64, 1_088),
        _ => (64, 448),
    }
}

/// Returns the slices of a case. Those of sockets take a second, because TCP and the scheduler need
/// some time to settle.
pub(super) fn shape(case: &Case, quick: bool) -> Shape {
    let (ns, slices) = match (case.suite(), quick) {
        ("latency", false) => (1_000_000_000, 5),
        ("latency", true) => (50_000_000, 5),
        (_, false) => (250_000_000, 5),
        (_, true) => (20_000_000, 5),
    };
    match case {
        Case::TaskSleep { .. } => {
            Shape { length: Length::Rounds(if quick { 50 } else { 400 }), slices }
        }
        _ => Shape { length: Length::Ns(ns), slices },
    }
}

/// Returns the unit of a case of these suites.
pub(super) fn unit(case: &Case) -> &'static str {
    match case {
        Case::PingPong { .. } => "message",
        Case::AcceptChurn { .. } => "connection",
        Case::TaskRoundTrip { .. } => "round_trip",
        Case::SelfWake { .. } => "poll",
        Case::TurnPerPoll { .. } => "turn",
        Case::Spawn { .. } | Case::SpawnRemote { .. } => "task",
        Case::SleepCancel { .. } => "pair",
        _ => "sleep",
    }
}

/// Returns the number of rounds of a slice that is not timed.
pub(super) fn untimed_rounds(case: &Case) -> u64 {
    match case {
        Case::ManySleeps { .. } => 1_000,
        Case::TaskSleep { .. } => 10,
        _ => 128,
    }
}

/// Returns whether the allocations of a slice are those of one thread, and depend on no clock.
pub(super) fn counts_allocations(case: &Case) -> bool {
    match case {
        // The number of sleeps that are alive at once depends on the clock.
        Case::ManySleeps { .. } | Case::TaskSleep { .. } => false,
        Case::TaskRoundTrip { .. } | Case::SpawnRemote { .. } => false,
        // The backlog of accepted connections depends on the kernel.
        Case::AcceptChurn { .. } => false,
        _ => has(case),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_loop_that_waits_is_also_beside_a_live_timer() {
        for quick in [false, true] {
            let all = [latency(quick), tasks(quick)].concat();
            let alone = |case: &&Case| serde_json::to_string(case).unwrap().contains("timers\":0");
            for case in all.iter().filter(alone) {
                let beside = serde_json::to_string(case).unwrap().replace("s\":0", "s\":1");
                assert!(all.contains(&serde_json::from_str(&beside).unwrap()), "{beside}");
            }
        }
    }

    #[test]
    fn slices_of_sockets_take_a_second() {
        for case in latency(false) {
            assert_eq!(shape(&case, false).length, Length::Ns(1_000_000_000));
            assert!(has(&case));
        }
    }
}
