//! The rate of paced requests that is the same for all implementations.
//!
//! At 70 % of its own rate a faster server has more to do than a slower one, and longer queues for
//! the same reason. At a common rate all servers do the same work in the same time.

use windlass_bench_driver::http::{HttpCase, PACE, PacedRate, REACHED_PER_S};
use windlass_bench_driver::protocol::Case;

use crate::cases::Length;
use crate::pin::Pin;
use crate::programs::TOKIO;
use crate::report::stats::Spread;
use crate::timing::CaseRun;

/// Slices in which the rate of each implementation is measured.
const SLICES: usize = 3;

/// Returns the case with the rate that is common to these runs. `None` if their case has another
/// rate, or if no implementation can be measured.
pub(crate) fn at_common_rate(runs: &mut [CaseRun<'_>], length: Length, pin: Pin) -> Option<Case> {
    let own = with_rate(runs.first()?.case, PacedRate::Own)?;
    let reached: Vec<(&str, f64)> = runs
        .iter_mut()
        .filter_map(|run| Some((run.implementation.program.name, reached(run, &own, length, pin)?)))
        .collect();
    let per_s = (common(&reached)? * PACE).round() as u64;
    with_rate(runs.first()?.case, PacedRate::PerSecond(per_s.max(1)))
}

/// Returns the same case with another rate, if its rate is the common one.
fn with_rate(case: &Case, rate: PacedRate) -> Option<Case> {
    match *case {
        Case::Http(HttpCase::PacedRequests {
            server,
            connections,
            live_timers,
            rate: PacedRate::Common,
        }) => Some(Case::Http(HttpCase::PacedRequests { server, connections, live_timers, rate })),
        _ => None,
    }
}

/// Returns the rate that an implementation reaches. `None` after an error: then it fails again when
/// it is measured, and that error is reported.
fn reached(run: &mut CaseRun<'_>, own: &Case, length: Length, pin: Pin) -> Option<f64> {
    let rate = measured(run, own, length, pin);
    if rate.is_none() {
        run.implementation.rest();
    }
    rate
}

fn measured(run: &mut CaseRun<'_>, own: &Case, length: Length, pin: Pin) -> Option<f64> {
    let rounds = run.implementation.prepare(own, length, pin).ok()?;
    let mut rates = Vec::with_capacity(SLICES);
    for _ in 0..SLICES {
        let outcome = run.implementation.slice(rounds.div_ceil(2)).ok()?;
        rates.push(*outcome.gauges.get(REACHED_PER_S)?);
    }
    Spread::of(rates).map(|spread| spread.median)
}

/// The rate of tokio, which the target is about. Without tokio that of the slowest.
fn common(reached: &[(&str, f64)]) -> Option<f64> {
    let tokio = reached.iter().find(|(name, _)| *name == TOKIO).map(|&(_, rate)| rate);
    tokio.or_else(|| reached.iter().map(|&(_, rate)| rate).reduce(f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_driver::http::HttpServer;

    #[test]
    fn the_common_rate_is_that_of_tokio_or_of_the_slowest() {
        assert_eq!(common(&[("raw", 3.0), (TOKIO, 2.0), ("asio", 1.0)]), Some(2.0));
        assert_eq!(common(&[("raw", 3.0), ("asio", 1.0)]), Some(1.0));
        assert_eq!(common(&[]), None);
    }

    #[test]
    fn only_a_common_rate_is_replaced() {
        let case = |rate| {
            let server = HttpServer::Mock;
            Case::Http(HttpCase::PacedRequests { server, connections: 16, live_timers: 1, rate })
        };
        let found = PacedRate::PerSecond(7);
        assert_eq!(with_rate(&case(PacedRate::Common), found), Some(case(found)));
        assert_eq!(with_rate(&case(PacedRate::Own), found), None);
        assert_eq!(with_rate(&Case::WakeSleeping, found), None);
    }
}
