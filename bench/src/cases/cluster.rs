//! The cases of the suite `cluster`.

use windlass_bench_driver::cluster::ClusterCase;
use windlass_bench_driver::protocol::Case;

/// Returns the cases.
pub(crate) fn cases() -> Vec<Case> {
    let echo = [false, true].map(|bus| ClusterCase::NodeEcho { bytes: 20, connections: 100, bus });
    let fan_out = [(100, 1), (1_000, 1), (100, 16), (1_000, 16)];
    let fan_out = fan_out.map(|(receivers, outstanding)| ClusterCase::FanOut {
        receivers,
        bytes: 64,
        outstanding,
    });
    echo.into_iter().chain(fan_out).map(Case::Cluster).collect()
}

/// Returns the unit of a case.
pub(crate) fn unit(case: &ClusterCase) -> &'static str {
    match case {
        ClusterCase::NodeEcho { .. } => "message",
        ClusterCase::FanOut { .. } => "delivery",
    }
}

/// Returns the number of rounds of the longer count of a case, if it is counted.
pub(crate) fn counted_rounds(case: &ClusterCase) -> Option<u64> {
    // So many that the start of the server does not show in the difference of the two cases.
    matches!(case, ClusterCase::NodeEcho { .. }).then_some(10_000)
}
