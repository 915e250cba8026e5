//! The cases of the suites `scaling`, `fairness`, `fixed-rate` and `startup`.

use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::Case;

use super::servers::ServerShape;

const KIB: usize = 1024;

/// Returns the cases of the suite `scaling`.
pub(super) fn scaling(quick: bool) -> Vec<Case> {
    let counts: &[usize] = if quick { &[10, 100, 1_000] } else { &[10, 100, 1_000, 10_000] };
    let connections = counts.iter().map(|&connections| LoadCase::Connections { connections });
    let workers = [1, 2, 4].map(|workers| LoadCase::Workers { workers, connections: 100 });
    connections.chain(workers).map(Case::Load).collect()
}

/// Returns the cases of the suite `fairness`.
pub(super) fn fairness() -> Vec<Case> {
    let hot = [(0, 64), (64, 64), (16, 16 * KIB)];
    let hot = hot.map(|(depth, bytes)| LoadCase::HotConnection { depth, bytes, quiet: 100 });
    let burst = LoadCase::BurstOfOne { burst: 100, others: 20, work_us: 200 };
    hot.into_iter().chain([burst]).map(Case::Load).collect()
}

/// Returns the cases of the suite `fixed-rate`.
pub(super) fn fixed_rate(quick: bool) -> Vec<Case> {
    let shares: &[u32] = if quick { &[10, 50, 90] } else { &[10, 25, 50, 75, 90, 95] };
    let case = |&per_cent| Case::Load(LoadCase::AtRate { per_cent, connections: 100 });
    shares.iter().map(case).collect()
}

/// Returns the number and length of a case's slices. Percentiles need longer ones than rates.
pub(super) fn shape(case: &LoadCase, quick: bool) -> ServerShape {
    let (slice_ms, slices) = match (case, quick) {
        // A slice is one start.
        (LoadCase::FirstAnswer, true) => (0, 51),
        (LoadCase::FirstAnswer, false) => (0, 201),
        (LoadCase::Connections { .. } | LoadCase::Workers { .. }, true) => (40, 5),
        (LoadCase::Connections { .. } | LoadCase::Workers { .. }, false) => (100, 15),
        (_, true) => (100, 5),
        (_, false) => (300, 15),
    };
    ServerShape { slice_ns: slice_ms * 1_000_000, slices }
}

/// Returns the unit of a case.
pub(super) fn unit(case: &LoadCase) -> &'static str {
    if matches!(case, LoadCase::FirstAnswer) { "start" } else { "message" }
}
