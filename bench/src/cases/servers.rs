//! The cases of the suites that measure servers.

use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::{Case, Content};

use super::{cluster, load, tls, websocket};

/// The suites, in the order in which they run.
pub(crate) const SUITES: &[&str] = &[
    "echo",
    "broadcast",
    "handshake",
    "memory",
    "websocket",
    "tls",
    "cluster",
    "scaling",
    "fairness",
    "fixed-rate",
    "startup",
];

const KIB: usize = 1024;

/// Returns the cases of a suite. A quick run has shorter slices, and fewer cases: not those with so
/// many connections that their set-up takes most of the time.
pub(crate) fn cases(suite: &str, quick: bool) -> Vec<Case> {
    match suite {
        "echo" => echo(quick),
        "broadcast" => broadcast(quick),
        "handshake" => vec![Case::Upgrade { parallel: 16 }],
        "memory" => vec![Case::IdleConnection { connections: 5_000, deflate: false }],
        "websocket" => websocket::cases(quick),
        "tls" => tls::cases(),
        "cluster" => cluster::cases(),
        "scaling" => load::scaling(quick),
        "fairness" => load::fairness(),
        "fixed-rate" => load::fixed_rate(quick),
        "startup" => vec![Case::Load(LoadCase::FirstAnswer)],
        _ => Vec::new(),
    }
}

fn messages(content: Content, connections: usize, bytes: usize, depth: usize) -> Case {
    Case::Messages { content, bytes, connections, depth, deflate: false }
}

fn echo(quick: bool) -> Vec<Case> {
    use Content::{Ascii, Binary, Json, TwoByte};
    let shapes = [
        (100, 20, 1),
        (10, KIB, 1),
        (10, 16 * KIB, 1),
        (200, 16 * KIB, 1),
        (500, 16 * KIB, 1),
        (10, 64, 16),
        (100, 64, 16),
        (100, KIB, 16),
        (10, 64, 128),
    ];
    let mut cases: Vec<Case> = shapes
        .into_iter()
        .map(|(connections, bytes, depth)| messages(Binary, connections, bytes, depth))
        .collect();
    cases.extend([
        messages(Ascii, 10, 16 * KIB, 1),
        messages(TwoByte, 10, 16 * KIB, 1),
        messages(TwoByte, 100, 128, 1),
    ]);
    let deflated = |connections, bytes| Case::Messages {
        content: Json,
        bytes,
        connections,
        depth: 1,
        deflate: true,
    };
    cases.extend([deflated(10, KIB), deflated(100, 128)]);
    cases.push(Case::BurstOfWork { connections: 100, work_us: 200 });
    let is_small =
        |case: &Case| !matches!(case, Case::Messages { connections, .. } if *connections > 100);
    cases.retain(|case| !quick || is_small(case));
    cases
}

fn broadcast(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let receivers: &[usize] = if quick { &[100] } else { &[100, 500] };
    for &receivers in receivers {
        for bytes in [64, KIB] {
            cases.extend([1, 16].map(|outstanding| Case::Publish {
                receivers,
                bytes,
                outstanding,
            }));
        }
    }
    cases
}

/// The number and length of the slices of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerShape {
    /// Length of the measured part of a slice in nanoseconds.
    pub(crate) slice_ns: u64,
    /// Number of slices of each server.
    pub(crate) slices: usize,
}

pub(crate) fn shape(case: &Case, quick: bool) -> ServerShape {
    let (slice_ms, slices) = if quick { (20, 7) } else { (60, 25) };
    match case.workload() {
        // A slice has enough publications for a percentile.
        Case::Cluster(_) => {
            ServerShape { slice_ns: 200_000_000, slices: if quick { 5 } else { 15 } }
        }
        Case::Load(case) => load::shape(case, quick),
        Case::IdleConnection { .. } => ServerShape { slice_ns: 0, slices: 1 },
        case if tls::is_idle(case) => ServerShape { slice_ns: 0, slices: 1 },
        _ => ServerShape { slice_ns: slice_ms * 1_000_000, slices },
    }
}

/// Returns the cases whose instructions and system calls are counted, with the number of rounds of
/// the longer count.
pub(crate) fn counted(suite: &str, quick: bool) -> Vec<(Case, u64)> {
    let is_counted = |case: &Case| match *case.workload() {
        Case::Tls(ref case) => tls::counted_rounds(case).is_some(),
        Case::WebsocketOnly(ref case) => websocket::counted_rounds(case).is_some(),
        Case::Cluster(ref case) => cluster::counted_rounds(case).is_some(),
        Case::Messages { connections, .. } => connections <= 100,
        Case::Publish { receivers, .. } => receivers == 100,
        Case::Upgrade { .. } | Case::Load(LoadCase::FirstAnswer) => true,
        _ => false,
    };
    // The cases whose counts do not follow from those of other cases.
    let is_quick = |case: &Case| match *case {
        Case::Websocket { .. } | Case::WebsocketOnly(_) => {
            websocket::is_counted_quickly(case.workload())
        }
        Case::Messages { deflate: true, .. } => false,
        Case::Messages { connections, bytes, depth, .. } => {
            depth != 16 || (connections, bytes) == (10, 64)
        }
        Case::Publish { bytes, .. } => bytes == 64,
        _ => true,
    };
    let rounds = |case: &Case| match *case.workload() {
        Case::Tls(ref case) => tls::counted_rounds(case).unwrap_or(0),
        Case::WebsocketOnly(ref case) => websocket::counted_rounds(case).unwrap_or(0),
        Case::Cluster(ref case) => cluster::counted_rounds(case).unwrap_or(0),
        Case::Messages { bytes, depth, .. } if bytes <= KIB => 2_000 * depth.min(16) as u64,
        Case::Publish { .. } => 32_000,
        _ => 500,
    };
    let all =
        cases(suite, quick).into_iter().filter(is_counted).filter(|case| !quick || is_quick(case));
    all.map(|case| (case.clone(), rounds(&case))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_has_its_own_cases() {
        for suite in SUITES {
            let all = cases(suite, false);
            assert!(all.iter().all(|case| case.suite() == *suite));
            assert!(cases(suite, true).iter().all(|case| all.contains(case)));
            assert!(!cases(suite, true).is_empty());
        }
    }

    #[test]
    fn what_is_counted_is_measured() {
        for suite in SUITES {
            for quick in [false, true] {
                let (measured, counted) = (cases(suite, quick), counted(suite, quick));
                assert!(
                    counted.iter().all(|(case, rounds)| measured.contains(case) && *rounds > 0)
                );
            }
            assert!(counted(suite, true).len() <= counted(suite, false).len());
        }
    }
}
