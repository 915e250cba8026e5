//! The cases of the suite `http`.

use windlass_bench_driver::http::{ClientPlace, HttpCase, HttpServer, PacedRate};
use windlass_bench_driver::protocol::Case;

use super::{Length, Shape};

/// Numbers of connections in the benchmark of corosio.
const CONNECTIONS: [usize; 4] = [1, 4, 16, 32];

/// Both places of the client.
const PLACES: [ClientPlace; 2] = [ClientPlace::SameThread, ClientPlace::OwnProcessor];

/// Idle connections in whose memory one of them hardly counts.
const IDLE: usize = 256;

/// Several threads, as in the benchmark of corosio.
const MULTI_THREAD: Case = Case::Http(HttpCase::MultiThread { threads: 4, connections: 32 });

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

fn paced(server: HttpServer, live_timers: usize, rate: PacedRate) -> Case {
    Case::Http(HttpCase::PacedRequests { server, connections: 16, live_timers, rate })
}

/// Returns the cases of the suite.
pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for live_timers in [0, 1] {
        for client in PLACES {
            let mock = |count| requests(HttpServer::Mock, client, count, live_timers);
            cases.extend(CONNECTIONS.map(mock));
        }
    }
    let some: &[usize] = if quick { &[1, 16] } else { &CONNECTIONS };
    for live_timers in [0, 1] {
        for (server, client) in LIBRARIES.iter().flat_map(|&server| PLACES.map(|p| (server, p))) {
            let all = some.iter().map(|&count| requests(server, client, count, live_timers));
            cases.extend(all);
        }
    }
    let servers = || [HttpServer::Mock].into_iter().chain(LIBRARIES);
    cases.push(paced(HttpServer::Mock, 0, PacedRate::Own));
    for live_timers in [0, 1] {
        cases.extend(servers().map(|server| paced(server, live_timers, PacedRate::Common)));
    }
    for server in servers() {
        cases.push(Case::Http(HttpCase::IdleKeepAlive { server, connections: IDLE }));
    }
    cases.push(MULTI_THREAD);
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
    matches!(case, HttpCase::Requests { .. } | HttpCase::MultiThread { .. })
}

/// Returns the slices of a case. They are as long as those of the suite `latency`, for the same
/// reason.
pub(super) fn shape(case: &HttpCase, quick: bool) -> Shape {
    let (ns, slices) = if quick { (50_000_000, 5) } else { (1_000_000_000, 5) };
    match case {
        HttpCase::IdleKeepAlive { .. } => Shape { length: Length::Rounds(1), slices: 1 },
        // A third of the rounds only finds the rate.
        HttpCase::PacedRequests { rate: PacedRate::Own, .. } => {
            Shape { length: Length::Ns(2 * ns), slices }
        }
        // A 99th percentile needs many slices: whatever else the machine does is in some of them.
        HttpCase::PacedRequests { .. } => Shape { length: Length::Ns(ns), slices: 3 * slices },
        HttpCase::Requests { .. } | HttpCase::MultiThread { .. } => {
            Shape { length: Length::Ns(ns), slices }
        }
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
    match case {
        HttpCase::IdleKeepAlive { .. } => true,
        // A timer of the workload makes no difference to connections with timers of their own.
        _ => has_one_thread(case) && (case.live_timers() == 0 || case.part() == "http"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_requests_is_also_beside_a_live_timer() {
        for quick in [false, true] {
            let all = cases(quick);
            let alone: Vec<_> = all
                .iter()
                .map(|case| serde_json::to_string(case).unwrap())
                .filter(|text| text.contains("timers\":0") && !text.contains("\"own\""))
                .collect();
            for text in &alone {
                let beside = serde_json::from_str(&text.replace("timers\":0", "timers\":1"));
                assert!(all.contains(&beside.unwrap()), "{text}");
            }
            assert_eq!(alone.len(), if quick { 19 } else { 27 });
        }
    }

    #[test]
    fn the_mock_is_measured_at_every_count_in_both_places() {
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
            assert!(all.contains(&MULTI_THREAD));
            assert!(all.iter().all(|case| case.suite() == "http" && has(case)));
        }
    }
}
