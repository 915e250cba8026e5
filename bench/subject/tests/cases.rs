//! Every case, small, through the raw loop and windlass: the benchmark itself must not rot.

use std::io::Write;
use std::process::{Command, Stdio};

use windlass_bench_driver::protocol::{Case, Reply, Request, Trigger};

/// Runs two slices of a case in a program and returns the replies to them.
fn slices(program: &str, case: &Case) -> Vec<Reply> {
    let prepare = Request::Prepare { case: case.clone(), backend: "epoll".into(), idle: false };
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program is built");
    let mut input = child.stdin.take().expect("a pipe");
    for request in [prepare, Request::Slice { rounds: 3 }, Request::Slice { rounds: 5 }] {
        writeln!(input, "{}", serde_json::to_string(&request).unwrap()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The driver compares the counts of all handlers itself, so an outcome says that they were right.
fn passes(program: &str, case: &Case) {
    let replies = slices(program, case);
    assert_eq!(replies.len(), 2, "{case:?}");
    for reply in replies {
        match reply {
            Reply::Slice(outcome) => assert!(outcome.units > 0, "{case:?}: {outcome:?}"),
            reply => panic!("{case:?}: {reply:?}"),
        }
    }
}

fn dispatch_cases() -> Vec<Case> {
    let mut cases = vec![
        Case::EightTypes { registered: 32, ready: 8 },
        Case::RegisterDelete { registered: 10 },
        Case::RegistrationMemory { registered: 100 },
    ];
    for trigger in [Trigger::Level, Trigger::Edge] {
        cases.extend([
            Case::OneReady { registered: 1, trigger },
            Case::OneReady { registered: 10, trigger },
            Case::AllReady { registered: 1024, trigger },
            Case::FourFds { subscribers: 5, trigger },
        ]);
    }
    cases
}

#[test]
fn the_raw_loop_calls_exactly_the_expected_handlers() {
    for case in dispatch_cases() {
        passes(env!("CARGO_BIN_EXE_bench-raw"), &case);
    }
}

#[test]
fn windlass_calls_exactly_the_expected_handlers() {
    for case in dispatch_cases() {
        passes(env!("CARGO_BIN_EXE_bench-windlass"), &case);
    }
}

#[test]
fn windlass_keeps_timers_as_the_driver_expects() {
    for case in [
        Case::InsertCancel { alive: 100 },
        Case::Reset { alive: 100 },
        Case::Insert { count: 100 },
        Case::Fire { count: 100 },
        Case::Every { period_ns: 1 },
    ] {
        passes(env!("CARGO_BIN_EXE_bench-windlass"), &case);
    }
}

#[test]
fn the_raw_loop_has_no_timers_and_says_so() {
    let replies = slices(env!("CARGO_BIN_EXE_bench-raw"), &Case::Every { period_ns: 1 });
    assert!(replies.iter().all(|reply| matches!(reply, Reply::Failed { .. })), "nothing was prepared: {replies:?}");
}
