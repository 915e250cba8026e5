//! The suites and their cases.

pub(crate) mod cluster;
pub(crate) mod http;
mod in_memory;
pub(crate) mod load;
pub(crate) mod servers;
pub(crate) mod tasks;
pub(crate) mod tls;
pub(crate) mod websocket;

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_bench_driver::calls::CALLS;
use windlass_bench_driver::http::HttpCase;
use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::{Awake, Case, Trigger, Writer};

pub(crate) use in_memory::{is_counted_with_lto, size};

/// The suites without servers, in the order in which they run.
pub(crate) const SUITES: &[&str] = &[
    "dispatch", "kick", "poll0", "timers", "streams", "flow", "wakeup", "latency", "tasks", "http",
    "engine", "unmask", "utf8", "deflate", "calls", "startup",
];

/// Returns the names of all suites, also of those that measure servers. A suite may have cases of
/// both kinds.
pub(crate) fn suite_names() -> Vec<&'static str> {
    let others = servers::SUITES.iter().filter(|suite| !SUITES.contains(suite));
    SUITES.iter().chain(others).copied().collect()
}

/// Returns the timed cases of any suite.
pub(crate) fn all(suite: &str, quick: bool) -> Vec<Case> {
    let groups = groups(suite, quick).into_iter().flatten();
    groups.chain(servers::cases(suite, quick)).collect()
}

/// Returns the timed cases of a suite, in groups. The slices of a group are interleaved, because
/// its cases are compared with each other.
pub(crate) fn groups(suite: &str, quick: bool) -> Vec<Vec<Case>> {
    let each_alone = |cases: Vec<Case>| cases.into_iter().map(|case| vec![case]).collect();
    match suite {
        "dispatch" => each_alone(dispatch(quick)),
        "kick" => each_alone(kick()),
        "poll0" => each_alone(poll0()),
        "timers" => each_alone(timers(quick)),
        "streams" => each_alone(streams()),
        "flow" => flow(),
        "calls" => vec![calls()],
        "startup" => vec![vec![Case::FirstEvent]],
        "wakeup" => each_alone(wakeup()),
        "latency" => each_alone(tasks::latency(quick)),
        "tasks" => each_alone(tasks::tasks(quick)),
        "http" => each_alone(http::cases(quick)),
        _ => each_alone(in_memory::cases(suite, quick)),
    }
}

fn dispatch(quick: bool) -> Vec<Case> {
    // A program skips what its limit of open files does not allow.
    let one: &[usize] =
        if quick { &[1, 1_000, 8_000] } else { &[1, 10, 100, 1_000, 8_000, 100_000] };
    let all: &[usize] = if quick { &[16, 1_024] } else { &[16, 64, 256, 1_024] };
    let devices: &[usize] = if quick { &[100] } else { &[100, 1_000, 4_000, 10_000] };
    let mut cases = Vec::new();
    for trigger in [Trigger::Edge, Trigger::Level] {
        cases.extend(one.iter().map(|&registered| Case::OneReady { registered, trigger }));
        cases.extend(all.iter().map(|&registered| Case::AllReady { registered, trigger }));
        cases.extend(devices.iter().map(|&subscribers| Case::FourFds { subscribers, trigger }));
    }
    cases.push(Case::EightTypes { registered: 256, ready: 64 });
    cases.push(Case::StaysReady { registered: 1 });
    cases.push(Case::RegisterDelete { registered: 1_000 });
    cases.push(Case::RegistrationMemory { registered: 10_000 });
    cases
}

/// All calls are one group, because they are compared with each other.
fn calls() -> Vec<Case> {
    CALLS.iter().map(|&call| Case::SystemCall { call: call.to_owned() }).collect()
}

fn kick() -> Vec<Case> {
    [false, true].map(|guest| Case::Kick { guest }).into()
}

fn poll0() -> Vec<Case> {
    let empty = [1, 1_000].map(|registered| Case::EmptyTurn { registered });
    empty.into_iter().chain([Case::ReadyTurn { registered: 1 }]).collect()
}

/// Returns the cases of a suite whose instructions are counted per round.
pub(crate) fn counted(suite: &str, quick: bool) -> Vec<Case> {
    match suite {
        "kick" => vec![Case::Kick { guest: false }],
        "poll0" => poll0(),
        "timers" => counted_timers(),
        "streams" => streams(),
        "flow" => [false, true].map(|polled| Case::Uncontended { polled }).into(),
        "latency" | "tasks" => tasks::counted(suite),
        "http" => http::counted(),
        _ => in_memory::counted(suite, quick),
    }
}

/// Returns whether the case can run without the implementation, as the idle workload. What that
/// costs is subtracted from the instruction counts.
pub(crate) fn has_idle_workload(case: &Case) -> bool {
    if tasks::has(case) {
        return matches!(case, Case::PingPong { .. });
    }
    if http::has(case) {
        return true;
    }
    let starts_timers = matches!(
        case,
        Case::InsertCancel { .. }
            | Case::Insert { .. }
            | Case::Fire { .. }
            | Case::Every { .. }
            | Case::Reset { .. }
    );
    !starts_timers && !matches!(case.suite(), "streams" | "flow" | "wakeup")
}

/// Returns whether the counted cases of a suite read the clock.
pub(crate) fn reads_clock(suite: &str) -> bool {
    matches!(suite, "timers" | "latency" | "tasks" | "http")
}

/// Returns whether a round is counted as a whole: each round begins with an empty subject.
pub(crate) fn is_counted_whole(case: &Case) -> bool {
    matches!(case, Case::Insert { .. } | Case::Fire { .. })
}

/// Returns the counted cases of the suite `timers`. Counting is slow, so there are fewer timers
/// than in the timed cases.
fn counted_timers() -> Vec<Case> {
    let mut cases = turns_beside_timers();
    cases.extend([
        Case::InsertCancel { alive: 1_000 },
        Case::InsertCancel { alive: 100_000 },
        Case::Reset { alive: 100_000 },
        Case::Insert { count: 1_000 },
        Case::Fire { count: 1_000 },
        Case::Every { period_ns: 1 },
    ]);
    cases
}

fn streams() -> Vec<Case> {
    vec![Case::StreamWrites { streams: 100, bytes: 20 }]
}

/// Without a timer, to compare, and with one or many.
pub(crate) fn turns_beside_timers() -> Vec<Case> {
    [0, 1, 100_000].map(|alive| Case::TurnBeside { alive }).into()
}

fn timers(quick: bool) -> Vec<Case> {
    let many = if quick { 100_000 } else { 1_000_000 };
    let mut cases = turns_beside_timers();
    cases.extend([
        Case::InsertCancel { alive: 1_000 },
        Case::InsertCancel { alive: 1_000_000 },
        Case::Reset { alive: 1_000_000 },
        Case::Insert { count: many },
        Case::Fire { count: many },
        Case::Every { period_ns: 1 },
        Case::LoneSleep { us: 50, slack_ns: 50_000 },
        Case::LoneSleep { us: 200, slack_ns: 50_000 },
        Case::LoneSleep { us: 200, slack_ns: 1 },
        Case::LoneSleep { us: 1_000, slack_ns: 50_000 },
        Case::LoneSleep { us: 10_000, slack_ns: 50_000 },
    ]);
    cases
}

fn flow() -> Vec<Vec<Case>> {
    let maxima = [None, Some(100), Some(10)];
    let limited = |writer| Case::Burst { writer, maximum: Some(10) };
    let unlimited = Case::Burst { writer: Writer::Blocking, maximum: None };
    vec![
        vec![unlimited, limited(Writer::Blocking), limited(Writer::Spin), limited(Writer::Poll)],
        maxima.map(|maximum| Case::Latency { maximum }).into(),
        maxima.map(|maximum| Case::Coalescing { maximum }).into(),
        vec![Case::Uncontended { polled: false }],
        vec![Case::Uncontended { polled: true }],
    ]
}

fn wakeup() -> Vec<Case> {
    let bound = 1024;
    vec![
        Case::WakeRunning { awake: Awake::InHandler },
        Case::WakeRunning { awake: Awake::Turning },
        Case::WakeSleeping,
        Case::RoundTrip { spin_us: 0 },
        Case::RoundTrip { spin_us: 50 },
        Case::Call { bound, spin_us: 0 },
        Case::Call { bound, spin_us: 50 },
        Case::Post { senders: 1, bound },
        Case::Post { senders: 4, bound },
    ]
}

/// The length of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// As many rounds as take about this many nanoseconds.
    Ns(u64),
    /// This number of rounds.
    Rounds(u64),
}

/// The number and length of the slices of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) length: Length,
    /// Number of slices of each implementation.
    pub(crate) slices: usize,
}

/// Returns the number and length of a case's slices.
pub(crate) fn shape(case: &Case, quick: bool) -> Shape {
    let (slice, slices) = if quick { (2_000_000, 8_usize) } else { (10_000_000, 31) };
    let fixed = |rounds, slices| Shape { length: Length::Rounds(rounds), slices };
    match case {
        case if tasks::has(case) => tasks::shape(case, quick),
        Case::Http(http) => http::shape(http, quick),
        Case::RegistrationMemory { .. } | Case::IdleEngine { .. } => fixed(1, 1),
        Case::LoneSleep { us, .. } => fixed((20_000 / us).clamp(2, 50), slices),
        // The connections that are accepted are made before, which is not timed.
        Case::SystemCall { call } if call.contains("accept4") => fixed(256, slices),
        // A percentile of a few kicks would be the longest of them.
        Case::Kick { guest: true } => Shape {
            length: Length::Ns(if quick { 100_000_000 } else { 1_000_000_000 }),
            slices: if quick { 5 } else { 15 },
        },
        // A round of these creates a million timers and waits for them.
        Case::Insert { .. } | Case::Fire { .. } => {
            Shape { length: Length::Ns(slice), slices: slices.div_ceil(4) }
        }
        // The unit is a millisecond, because the reader sleeps for one at a time.
        Case::Burst { .. } => fixed(if quick { 200 } else { 1_000 }, if quick { 3 } else { 7 }),
        // The unit is an event. A backlog without a maximum needs as many events as the benchmarks
        // of the kernel patch have, which takes half a second.
        Case::Latency { .. } => fixed(if quick { 2_000 } else { 5_000 }, if quick { 2 } else { 7 }),
        Case::Coalescing { .. } => fixed(10_000, if quick { 2 } else { 7 }),
        _ => Shape { length: Length::Ns(slice), slices },
    }
}

/// A gauge of a case that is compared in addition to its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    /// The name of the gauge in the driver.
    pub(crate) gauge: &'static str,
    /// The name of the metric for the ratio.
    pub(crate) ratio: &'static str,
}

/// Returns the gauge that is divided by that of the plain eventfd without a maximum, which is in
/// the same group.
pub(crate) fn over_unlimited(case: &Case) -> Option<Compared> {
    match case {
        Case::Burst { .. } => Some(Compared {
            gauge: "writer_cpu_us_per_s",
            ratio: "writer_cpu_over_unlimited_eventfd_ratio",
        }),
        Case::Latency { .. } => {
            Some(Compared { gauge: "p999_us", ratio: "p999_over_unlimited_eventfd_ratio" })
        }
        _ => None,
    }
}

/// Returns the gauge of windlass that is divided by that of each peer.
pub(crate) fn over_peer(case: &Case) -> Option<Compared> {
    let waker = Compared { gauge: "waker_ns_per_wake", ratio: "windlass_waker_ns_over_this_ratio" };
    let kick = Compared { gauge: "p50_us", ratio: "windlass_p50_over_this_ratio" };
    match case {
        Case::WakeSleeping => Some(waker),
        Case::Kick { guest: true } => Some(kick),
        _ => None,
    }
}

/// Returns the gauge that is divided by that of the hand-written loop.
pub(crate) fn over_raw(case: &Case) -> Option<Compared> {
    let kick = Compared { gauge: "p50_us", ratio: "p50_over_raw_ratio" };
    matches!(case, Case::Kick { guest: true }).then_some(kick)
}

/// Returns whether the counter of the case has no maximum.
pub(crate) fn is_unlimited(case: &Case) -> bool {
    matches!(
        case,
        Case::Burst { maximum: None, .. }
            | Case::Latency { maximum: None }
            | Case::Coalescing { maximum: None }
    )
}

/// Returns the name and the parameters of a case for the report.
pub(crate) fn describe(case: &Case) -> (String, BTreeMap<String, Value>) {
    let Ok(Value::Object(fields)) = serde_json::to_value(case.workload()) else {
        unreachable!("a case is an object in JSON");
    };
    let mut params: BTreeMap<String, Value> = fields.into_iter().collect();
    let name = params.remove("case").and_then(|name| name.as_str().map(str::to_owned));
    for value in params.values_mut().filter(|value| value.is_null()) {
        *value = "unlimited".into();
    }
    (name.unwrap_or_default(), params)
}

/// Returns the text of a parameter, as the command line names it.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the unit of a case, which is the last word of its metrics' names.
pub(crate) fn unit(case: &Case) -> &'static str {
    match case {
        Case::OneReady { .. }
        | Case::AllReady { .. }
        | Case::FourFds { .. }
        | Case::EightTypes { .. } => "event",
        Case::StaysReady { .. }
        | Case::EmptyTurn { .. }
        | Case::ReadyTurn { .. }
        | Case::TurnBeside { .. } => "turn",
        Case::Kick { .. } => "kick",
        Case::LoneSleep { .. } => "sleep",
        Case::RegisterDelete { .. } | Case::InsertCancel { .. } => "pair",
        Case::RegistrationMemory { .. } => "registration",
        Case::Insert { .. } => "timer",
        Case::Fire { .. } | Case::Every { .. } => "firing",
        Case::Reset { .. } => "reset",
        Case::Burst { .. } => "ms",
        Case::Latency { .. } => "event",
        Case::Coalescing { .. } | Case::StreamWrites { .. } => "write",
        Case::Uncontended { .. } | Case::Post { .. } => "item",
        Case::WakeRunning { .. } | Case::WakeSleeping => "wake",
        Case::RoundTrip { .. } => "round_trip",
        Case::SystemCall { .. } => "call",
        Case::FirstEvent => "start",
        Case::Call { .. } | Case::Unmask { .. } | Case::Validate { .. } => "call",
        Case::Echo { .. } | Case::Compress { .. } | Case::Inflate { .. } => "message",
        Case::IdleEngine { .. } => "engine",
        Case::Messages { .. } | Case::BurstOfWork { .. } => "message",
        Case::Publish { .. } => "delivery",
        Case::Upgrade { .. } => "handshake",
        Case::IdleConnection { .. } => "connection",
        Case::Websocket { workload } => unit(workload),
        Case::WebsocketOnly(case) => websocket::unit(case),
        Case::Http(http) => http::unit(http),
        Case::Tls(case) => tls::unit(case),
        Case::Cluster(case) => cluster::unit(case),
        Case::Load(case) => load::unit(case),
        _ => tasks::unit(case),
    }
}

/// Returns whether the time of the case is a result. Memory cases have none, and some workloads run
/// at a fixed rate.
pub(crate) fn is_timed(case: &Case) -> bool {
    if let Case::Http(http) = case {
        return http::is_timed(http);
    }
    !matches!(
        case,
        Case::RegistrationMemory { .. }
            | Case::Burst { .. }
            | Case::Latency { .. }
            | Case::Coalescing { .. }
            | Case::IdleEngine { .. }
    )
}

/// Returns the number of the server's threads in a case that is about several.
pub(crate) fn server_threads(case: &Case) -> Option<usize> {
    match *case {
        Case::Load(LoadCase::Workers { workers, .. }) => Some(workers),
        Case::Http(HttpCase::MultiThread { threads, .. }) => Some(threads),
        _ => None,
    }
}

/// Returns whether one thread does all the work, so that the allocator's plain counters are exact.
pub(crate) fn has_one_thread(case: &Case) -> bool {
    match case {
        Case::TaskRoundTrip { .. } | Case::SpawnRemote { .. } | Case::Kick { guest: true } => false,
        Case::Uncontended { .. } => true,
        Case::Http(http) => http::has_one_thread(http),
        // It counts live bytes, not allocations.
        Case::IdleEngine { .. } => false,
        _ => !matches!(case.suite(), "flow" | "wakeup" | "calls"),
    }
}

/// Returns whether the allocations or bytes of the case are counted. The queue of `post` is counted
/// while it is set up.
pub(crate) fn counts_allocations(case: &Case) -> bool {
    if tasks::has(case) {
        return tasks::counts_allocations(case);
    }
    if let Case::Http(http) = case {
        return http::counts_allocations(http);
    }
    // Those of a start are counted with its time.
    let is_start = *case == Case::FirstEvent;
    (has_one_thread(case) && !is_start)
        || matches!(case, Case::IdleEngine { .. } | Case::Post { .. })
}

/// Returns the number of rounds of a slice that is not timed.
pub(crate) fn untimed_rounds(case: &Case) -> u64 {
    match case {
        Case::RegistrationMemory { .. }
        | Case::IdleEngine { .. }
        | Case::Insert { .. }
        | Case::Fire { .. } => 1,
        Case::Post { .. } => 1_000,
        case if tasks::has(case) => tasks::untimed_rounds(case),
        Case::Http(http) => http::untimed_rounds(http),
        _ => 64,
    }
}

/// Returns whether a suite runs in memory, without the kernel, and so without a backend.
pub(crate) fn works_in_memory(suite: &str) -> bool {
    matches!(suite, "engine" | "unmask" | "utf8" | "deflate")
}

/// Returns the name of the backend for the report.
pub(crate) fn backend(suite: &str, chosen: &str) -> String {
    if works_in_memory(suite) { "memory" } else { chosen }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_measures_a_part_of_the_full_one() {
        for suite in SUITES {
            let (some, all) = (groups(suite, true), groups(suite, false));
            assert!(!some.is_empty() && some.len() <= all.len());
            for group in all {
                assert!(group.iter().all(|case| case.suite() == *suite));
                assert!(
                    group.iter().all(|case| describe(case).0 == describe(&group[0]).0),
                    "a group is of one case"
                );
                let (quick, full) = (shape(&group[0], true), shape(&group[0], false));
                assert!(quick.slices <= full.slices);
            }
        }
    }

    #[test]
    fn what_is_read_against_the_unlimited_is_interleaved_with_it() {
        for group in
            groups("flow", false).iter().filter(|group| over_unlimited(&group[0]).is_some())
        {
            assert_eq!(group.iter().filter(|case| is_unlimited(case)).count(), 1);
        }
    }

    #[test]
    fn what_has_no_idle_workload_is_counted_with_it() {
        let all = SUITES.iter().flat_map(|suite| counted(suite, false));
        for case in all.filter(|case| !has_idle_workload(case)) {
            let suites = ["timers", "streams", "flow", "tasks"];
            assert!(suites.contains(&case.suite()), "{case:?}");
        }
        assert!(has_idle_workload(&Case::EmptyTurn { registered: 1 }));
        assert!(is_counted_whole(&Case::Fire { count: 1 }));
        assert_eq!(untimed_rounds(&Case::Fire { count: 1 }), 1);
    }

    #[test]
    fn no_maximum_is_said_in_a_word() {
        let (name, params) = describe(&Case::Latency { maximum: None });
        assert_eq!((name.as_str(), &params["maximum"]), ("latency", &"unlimited".into()));
        assert_eq!(describe(&Case::WakeSleeping), ("wake_sleeping".to_owned(), BTreeMap::new()));
    }

    #[test]
    fn a_case_is_described_by_its_fields() {
        let (name, params) = describe(&Case::AllReady { registered: 16, trigger: Trigger::Edge });
        assert_eq!(name, "all_ready");
        assert_eq!(params["registered"], 16);
        assert_eq!(params["trigger"], "edge");
    }
}
