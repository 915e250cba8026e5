//! The cases of the suite `http`.

use windlass_bench_driver::http::{ClientPlace, HttpCase, HttpServer};
use windlass_bench_driver::protocol::Case;

use super::{Length, Shape};

/// Numbers of connections in the benchmark of corosio.
const CONNECTIONS: [usize; 4] = [1, 4, 16, 32];

/// Both places of the client.
const PLACES: [ClientPlace; 2] = [ClientPlace::SameThread, ClientPlace::OwnProcessor];

/// Idle connections in whose memory one of them hardly counts.
const IDLE: usize = 256;

/// The servers of libraries, with the same service on both runtimes.
const LIBRARIES: [HttpServer; 2] = [HttpServer::Hyper, HttpServer::Axum];

fn requests(
    server: HttpServer,
    client: ClientPlace,
    connections: usize,
    live_timers: usize,
) -> Case {
    Case::Http(HttpCase::Requests { server, client, connections, live_timers })
}

/// Returns the cases of the suite.
pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for live_timers in [0, 1] {
        for client in PLACES {
            cases.extend(
                CONNECTIONS.map(|connections| {
                    requests(HttpServer::Mock, client, connections, live_timers)
                }),
            );
        }
    }
    // hyper's connections have timers of their own.
    let some: &[usize] = if quick { &[1, 16] } else { &CONNECTIONS };
    for server in LIBRARIES {
        for client in PLACES {
            cases.extend(some.iter().map(|&connections| requests(server, client, connections, 0)));
        }
    }
    for server in [&[HttpServer::Mock][..], &LIBRARIES].concat() {
        cases.push(Case::Http(HttpCase::PacedRequests { server, connections: 16, live_timers: 0 }));
    }
    cases.push(Case::Http(HttpCase::PacedRequests {
        server: HttpServer::Mock,
        connections: 16,
        live_timers: 1,
    }));
    for server in [&[HttpServer::Mock][..], &LIBRARIES].concat() {
        cases.push(Case::Http(HttpCase::IdleKeepAlive { server, connections: IDLE }));
    }
    cases
}

/// Returns the cases whose instructions are counted.
pub(super) fn counted() -> Vec<Case> {
    let same = |server, connections, timers| {
        requests(server, ClientPlace::SameThread, connections, timers)
    };
    vec![
        same(HttpServer::Mock, 1, 0),
        same(HttpServer::Mock, 1, 1),
        same(HttpServer::Mock, 16, 0),
        same(HttpServer::Hyper, 1, 0),
        same(HttpServer::Hyper, 16, 0),
    ]
}

/// Returns the cases whose system calls are counted.
pub(crate) fn traced() -> Vec<Case> {
    let same = |server, connections| requests(server, ClientPlace::SameThread, connections, 0);
    vec![same(HttpServer::Mock, 1), same(HttpServer::Mock, 16), same(HttpServer::Hyper, 16)]
}

/// Returns whether the case is one of this suite.
pub(crate) fn has(case: &Case) -> bool {
    matches!(case, Case::Http(_))
}

/// Returns whether the client has its own processor, so that two threads run.
pub(super) fn has_one_thread(case: &HttpCase) -> bool {
    matches!(case, HttpCase::Requests { client: ClientPlace::SameThread, .. })
}

/// Returns whether the time of a request is a result. Paced requests come at a given rate.
pub(super) fn is_timed(case: &HttpCase) -> bool {
    matches!(case, HttpCase::Requests { .. })
}

/// Returns the slices of a case. They are as long as those of the suite `latency`, for the same
/// reason.
pub(super) fn shape(case: &HttpCase, quick: bool) -> Shape {
    let (ns, slices) = if quick { (50_000_000, 5) } else { (1_000_000_000, 5) };
    match case {
        HttpCase::IdleKeepAlive { .. } => Shape { length: Length::Rounds(1), slices: 1 },
        // A third of the rounds only finds the rate.
        HttpCase::PacedRequests { .. } => Shape { length: Length::Ns(2 * ns), slices },
        HttpCase::Requests { .. } => Shape { length: Length::Ns(ns), slices },
    }
}

/// Returns the unit of a case.
pub(super) fn unit(case: &HttpCase) -> &'static str {
    match case {
        HttpCase::IdleKeepAlive { .. } => "connection",
        _ => "request",
    }
}

/// Returns the number of rounds of a slice that is not timed.
pub(super) fn untimed_rounds(case: &HttpCase) -> u64 {
    if matches!(case, HttpCase::IdleKeepAlive { .. }) { 1 } else { 128 }
}

/// Returns whether the allocations or bytes of a case are counted.
pub(super) fn counts_allocations(case: &HttpCase) -> bool {
    has_one_thread(case) || matches!(case, HttpCase::IdleKeepAlive { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mock_is_measured_at_every_count_in_both_places_and_beside_a_timer() {
        for quick in [false, true] {
            let all = cases(quick);
            for connections in CONNECTIONS {
                for client in PLACES {
                    for timers in [0, 1] {
                        let case = requests(HttpServer::Mock, client, connections, timers);
                        assert!(all.contains(&case), "{case:?}");
                    }
                }
            }
            assert!(all.iter().all(|case| case.suite() == "http" && has(case)));
        }
    }
}
