//! The program with tokio's multi-thread runtime, which `windlass-bench` measures on machines with
//! four processors. It runs on any.

use std::io::Write;
use std::process::{Command, Stdio};

use windlass_bench_driver::http::{ClientPlace, HttpCase, HttpServer, PacedRate};
use windlass_bench_driver::protocol::{Case, Reply, Request};

/// Returns the replies to a case and two slices.
fn replies(case: HttpCase) -> Vec<Reply> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_windlass-bench-peer-tokio-multi-thread"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut input = child.stdin.take().expect("a pipe");
    let case = Case::Http(case);
    let slice = Request::Slice { rounds: 20 };
    for request in
        [Request::Prepare { case, backend: "epoll".into(), idle: false }, slice.clone(), slice]
    {
        writeln!(input, "{}", serde_json::to_string(&request).unwrap()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The client compares the body of each response, of which there are as many as asked for.
fn assert_answered(case: &HttpCase) {
    let replies = replies(case.clone());
    let [_, Reply::Slice(one), Reply::Slice(two)] = &replies[..] else {
        panic!("{case:?}: {replies:?}");
    };
    assert!(one.units >= 20 && two.units >= 20, "{case:?}: {one:?} {two:?}");
}

#[test]
fn the_threads_of_a_case_answer_every_request() {
    assert_answered(&HttpCase::MultiThread { threads: 2, connections: 5 });
}

#[test]
fn every_server_answers_every_request() {
    for server in [HttpServer::Mock, HttpServer::Hyper, HttpServer::Axum] {
        for live_timers in [0, 1] {
            let client = ClientPlace::OwnProcessor;
            for case in [
                HttpCase::Requests { server, client, connections: 3, live_timers },
                HttpCase::PacedRequests {
                    server,
                    connections: 3,
                    live_timers,
                    rate: PacedRate::PerSecond(5_000),
                },
            ] {
                assert_answered(&case);
            }
        }
    }
}

#[test]
fn a_client_on_the_servers_thread_is_not_supported() {
    let server = HttpServer::Mock;
    for case in [
        HttpCase::Requests {
            server,
            client: ClientPlace::SameThread,
            connections: 1,
            live_timers: 0,
        },
        HttpCase::IdleKeepAlive { server, connections: 1 },
    ] {
        let replies = replies(case);
        assert!(matches!(replies[0], Reply::Unsupported { .. }), "{replies:?}");
    }
}
