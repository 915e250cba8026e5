//! The suite `http`.

use windlass_bench_driver::http::{ClientPlace, HttpCase, HttpServer, PacedRate};
use windlass_bench_driver::protocol::{Case, Reply, Request};

use super::{RAW, WINDLASS_TASK, passes, replies};

/// All cases of the mock, with small parameters.
fn mock_cases() -> Vec<Case> {
    let server = HttpServer::Mock;
    let mut cases = Vec::new();
    for live_timers in [0, 1] {
        for connections in [1, 3] {
            for client in [ClientPlace::SameThread, ClientPlace::OwnProcessor] {
                cases.push(HttpCase::Requests { server, client, connections, live_timers });
            }
            for rate in [PacedRate::Own, PacedRate::PerSecond(5_000)] {
                cases.push(HttpCase::PacedRequests { server, connections, live_timers, rate });
            }
        }
    }
    cases.into_iter().map(Case::Http).collect()
}

#[test]
fn the_raw_loop_answers_every_request() {
    for case in mock_cases() {
        passes(RAW, &case);
    }
    let case = HttpCase::IdleKeepAlive { server: HttpServer::Mock, connections: 3 };
    let prepare = Request::Prepare { case: Case::Http(case), backend: "epoll".into(), idle: false };
    let replies = replies(RAW, &[prepare]);
    assert!(matches!(replies[..], [Reply::Unsupported { .. }]), "{replies:?}");
}

#[test]
fn tasks_of_windlass_answer_every_request_on_every_backend() {
    let mut cases = mock_cases();
    cases.push(Case::Http(HttpCase::IdleKeepAlive { server: HttpServer::Mock, connections: 3 }));
    for case in cases {
        for backend in ["epoll", "uring", "poll"] {
            let prepare =
                Request::Prepare { case: case.clone(), backend: backend.into(), idle: false };
            let slice = Request::Slice { rounds: 5 };
            let replies = replies(WINDLASS_TASK, &[prepare, slice.clone(), slice]);
            // Rings may be forbidden here.
            let refused = backend == "uring" && matches!(replies[0], Reply::Failed { .. });
            let done = matches!(replies[..], [_, Reply::Slice(_), Reply::Slice(_)]);
            assert!(refused || done, "{backend} {case:?}: {replies:?}");
        }
    }
}

#[test]
fn several_threads_answer_every_request_on_every_backend() {
    let case = Case::Http(HttpCase::MultiThread { threads: 2, connections: 5 });
    for backend in ["epoll", "uring", "poll"] {
        let prepare = Request::Prepare { case: case.clone(), backend: backend.into(), idle: false };
        let slice = Request::Slice { rounds: 20 };
        let replies = replies(WINDLASS_TASK, &[prepare, slice.clone(), slice]);
        // Rings may be forbidden here.
        if backend == "uring" && matches!(replies[0], Reply::Failed { .. }) {
            continue;
        }
        let [_, Reply::Slice(one), Reply::Slice(two)] = &replies[..] else {
            panic!("{backend}: {replies:?}");
        };
        // The client has compared the bodies of as many responses.
        assert!(one.units >= 20 && two.units >= 20, "{backend}: {one:?} {two:?}");
        assert!(one.gauges["server_cpu_us_per_request"] >= 0.0);
    }
}

#[test]
fn hyper_answers_every_request_on_every_backend() {
    let server = HttpServer::Hyper;
    for case in [
        HttpCase::Requests {
            server,
            client: ClientPlace::SameThread,
            connections: 3,
            live_timers: 0,
        },
        HttpCase::PacedRequests { server, connections: 2, live_timers: 1, rate: PacedRate::Own },
        HttpCase::IdleKeepAlive { server, connections: 3 },
    ] {
        for backend in ["epoll", "uring", "poll"] {
            let case = Case::Http(case.clone());
            let prepare = Request::Prepare { case, backend: backend.into(), idle: false };
            let replies = replies(WINDLASS_TASK, &[prepare, Request::Slice { rounds: 5 }]);
            // Rings may be forbidden here.
            let refused = backend == "uring" && matches!(replies[0], Reply::Failed { .. });
            assert!(
                refused || matches!(replies[..], [_, Reply::Slice(_)]),
                "{backend} {replies:?}"
            );
        }
    }
}

#[test]
fn a_client_on_another_processor_tells_the_servers_time() {
    let case = Case::Http(HttpCase::PacedRequests {
        server: HttpServer::Mock,
        connections: 2,
        live_timers: 0,
        rate: PacedRate::Own,
    });
    for reply in super::slices(WINDLASS_TASK, &case) {
        let Reply::Slice(outcome) = reply else { panic!("{reply:?}") };
        assert!(outcome.gauges["server_cpu_us_per_request"] >= 0.0);
        assert!(outcome.gauges["requests_per_s_before"] > 0.0);
        assert!(outcome.gauges["p50_us"] <= outcome.gauges["latency_us_max"]);
    }
}
