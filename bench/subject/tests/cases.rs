//! Runs every case with small parameters in the programs of this workspace, as a test of the
//! benchmark.

#[path = "cases/http.rs"]
mod http;

use std::io::Write;
use std::process::{Command, Stdio};

use windlass_bench_driver::protocol::{
    Awake, Case, Compressor, Content, EchoedBy, Reply, Request, Script, Trigger, Writer,
};

/// Runs two slices of a case in a program and returns the replies to them.
fn slices(program: &str, case: &Case) -> Vec<Reply> {
    let prepare = Request::Prepare { case: case.clone(), backend: "epoll".into(), idle: false };
    replies(program, &[prepare, Request::Slice { rounds: 3 }, Request::Slice { rounds: 5 }])
        .split_off(1)
}

/// Returns the answers of a program.
fn replies(program: &str, requests: &[Request]) -> Vec<Reply> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut input = child.stdin.take().expect("a pipe");
    for request in requests {
        writeln!(input, "{}", serde_json::to_string(request).unwrap()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const RAW: &str = env!("CARGO_BIN_EXE_bench-raw");
const RAW_PWAIT2: &str = env!("CARGO_BIN_EXE_bench-raw-pwait2");
const WINDLASS: &str = env!("CARGO_BIN_EXE_bench-windlass");
const DRIVEN: &str = env!("CARGO_BIN_EXE_bench-windlass-driven");
const BESIDE_TIMER: &str = env!("CARGO_BIN_EXE_bench-windlass-timer");
const FLOW: &str = env!("CARGO_BIN_EXE_bench-flow");
const EVENTFD: &str = env!("CARGO_BIN_EXE_bench-eventfd");
const STD: &str = env!("CARGO_BIN_EXE_bench-std");
const WINDLASS_TASK: &str = env!("CARGO_BIN_EXE_bench-windlass-task");
const MEMCPY: &str = env!("CARGO_BIN_EXE_bench-memcpy");
const TUNGSTENITE: &str = env!("CARGO_BIN_EXE_bench-tungstenite");

/// The driver compares the counts of all handlers, so an outcome means that they were right.
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

#[test]
fn turns_that_do_not_wait_find_what_is_ready_on_every_backend() {
    let (empty, ready) = (Case::EmptyTurn { registered: 10 }, Case::ReadyTurn { registered: 10 });
    for case in [&empty, &ready, &Case::StaysReady { registered: 10 }] {
        passes(RAW, case);
        passes(RAW_PWAIT2, case);
        passes(BESIDE_TIMER, case);
        pass_on_every_backend(case);
    }
}

#[test]
fn every_system_call_can_be_made_and_returns_as_expected() {
    for call in windlass_bench_driver::calls::CALLS {
        let case = Case::SystemCall { call: (*call).to_owned() };
        let replies = slices(env!("CARGO_BIN_EXE_bench-calls"), &case);
        // Rings may be forbidden here.
        let is_refused = |reply: &Reply| match reply {
            Reply::Failed { reason } => reason == "nothing is prepared",
            _ => false,
        };
        let is_done = |reply: &Reply| matches!(reply, Reply::Slice(outcome) if outcome.units > 0);
        let passed = replies.iter().all(is_done)
            || (call.starts_with("io_uring") && replies.iter().all(is_refused));
        assert!(passed, "{call}: {replies:?}");
    }
}

/// Passes on every backend of windlass.
fn pass_on_every_backend(case: &Case) {
    for backend in ["epoll", "uring", "poll"] {
        let prepare = Request::Prepare { case: case.clone(), backend: backend.into(), idle: false };
        let replies = replies(WINDLASS, &[prepare, Request::Slice { rounds: 7 }]);
        // Rings may be forbidden here.
        let refused = backend == "uring" && matches!(replies[0], Reply::Failed { .. });
        assert!(refused || matches!(replies[1], Reply::Slice(_)), "{backend}: {replies:?}");
    }
}

/// All cases of the suites `latency` and `tasks`, with small parameters.
fn task_cases() -> Vec<Case> {
    let mut cases = vec![
        Case::TaskRoundTrip { live_timers: 0 },
        Case::TaskRoundTrip { live_timers: 1 },
        Case::SelfWake { turns: true, live_timers: 1 },
        Case::SelfWake { turns: false, live_timers: 0 },
        Case::TurnPerPoll { live_timers: 0 },
        Case::Spawn { batch: 1, live_timers: 0 },
        Case::Spawn { batch: 3, live_timers: 1 },
        Case::SpawnRemote { bound: 512 },
        Case::SleepCancel { alive: 10, polled: true },
        Case::SleepCancel { alive: 0, polled: false },
        Case::ShortSleep { ns: 0, live_timers: 0 },
        Case::ManySleeps { count: 10 },
        Case::TaskSleep { us: 10, slack_ns: 1 },
    ];
    for live_timers in [0, 1] {
        for pairs in [1, 3] {
            for echoed_by in [EchoedBy::SameTask, EchoedBy::OwnTask] {
                cases.push(Case::PingPong {
                    echoed_by,
                    pairs,
                    exact_reads: pairs == 1,
                    live_timers,
                });
            }
            cases.push(Case::AcceptChurn { parallel: pairs, live_timers });
        }
    }
    cases
}

#[test]
fn tasks_of_windlass_do_as_the_driver_expects_on_every_backend() {
    for case in task_cases() {
        passes(WINDLASS_TASK, &case);
        for backend in ["uring", "poll"] {
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
fn the_raw_loop_has_sockets_and_no_tasks() {
    for case in task_cases() {
        match &case {
            Case::PingPong { .. }
            | Case::AcceptChurn { .. }
            | Case::TaskRoundTrip { .. }
            | Case::TurnPerPoll { .. }
            | Case::TaskSleep { .. } => passes(RAW, &case),
            _ => {
                let prepare =
                    Request::Prepare { case: case.clone(), backend: "epoll".into(), idle: false };
                let replies = replies(RAW, &[prepare]);
                assert!(matches!(replies[..], [Reply::Unsupported { .. }]), "{replies:?}");
            }
        }
    }
}

#[test]
fn a_message_in_request_and_response_finds_no_empty_socket() {
    let case = Case::PingPong {
        echoed_by: EchoedBy::OwnTask,
        pairs: 2,
        exact_reads: false,
        live_timers: 0,
    };
    for reply in slices(WINDLASS_TASK, &case) {
        let Reply::Slice(outcome) = reply else { panic!("{reply:?}") };
        assert_eq!(outcome.gauges["would_block_per_message"], 0.0);
        assert!(outcome.gauges["p50_us"] <= outcome.gauges["latency_us_max"]);
    }
}

fn dispatch_cases() -> Vec<Case> {
    let mut cases = vec![
        Case::EightTypes { registered: 32, ready: 8 },
        Case::StaysReady { registered: 3 },
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
fn the_raw_loops_call_exactly_the_expected_handlers() {
    for case in dispatch_cases() {
        passes(RAW, &case);
        passes(RAW_PWAIT2, &case);
    }
}

#[test]
fn windlass_calls_exactly_the_expected_handlers() {
    for case in dispatch_cases() {
        passes(WINDLASS, &case);
        passes(DRIVEN, &case);
        passes(BESIDE_TIMER, &case);
    }
}

#[test]
fn each_start_has_one_event_on_every_backend() {
    passes(RAW, &Case::FirstEvent);
    pass_on_every_backend(&Case::FirstEvent);
}

#[test]
fn windlass_keeps_timers_as_the_driver_expects() {
    for case in [
        Case::InsertCancel { alive: 100 },
        Case::Reset { alive: 100 },
        Case::Insert { count: 100 },
        Case::Fire { count: 100 },
        Case::Every { period_ns: 1 },
        Case::TurnBeside { alive: 10 },
        Case::LoneSleep { us: 10, slack_ns: 1 },
    ] {
        passes(WINDLASS, &case);
    }
    passes(RAW, &Case::LoneSleep { us: 10, slack_ns: 1 });
}

#[test]
fn the_raw_loop_has_no_timers_and_says_so() {
    let replies = slices(env!("CARGO_BIN_EXE_bench-raw"), &Case::Every { period_ns: 1 });
    assert!(
        replies.iter().all(|reply| matches!(reply, Reply::Failed { .. })),
        "nothing was prepared: {replies:?}"
    );
}

/// Returns the cases of the suite `flow` with this maximum.
fn flow_cases(maximum: Option<u32>) -> Vec<Case> {
    let bursts = [Writer::Blocking, Writer::Spin, Writer::Poll]
        .map(|writer| Case::Burst { writer, maximum });
    let mut cases = vec![Case::Latency { maximum }, Case::Coalescing { maximum }];
    cases.extend(bursts);
    cases
}

fn wake_cases(spins: &[u64]) -> Vec<Case> {
    let mut cases = vec![
        Case::WakeRunning { awake: Awake::InHandler },
        Case::WakeRunning { awake: Awake::Turning },
        Case::WakeSleeping,
    ];
    cases.extend(spins.iter().map(|&spin_us| Case::RoundTrip { spin_us }));
    cases
}

fn post_cases() -> Vec<Case> {
    vec![Case::Post { senders: 1, bound: 8 }, Case::Post { senders: 3, bound: 1024 }]
}

#[test]
fn a_plain_eventfd_counts_and_wakes_as_the_driver_expects() {
    let mut cases = flow_cases(None);
    cases.extend([false, true].map(|polled| Case::Uncontended { polled }));
    cases.extend(wake_cases(&[0, 50]));
    for case in cases {
        passes(EVENTFD, &case);
    }
}

#[test]
fn a_plain_eventfd_has_no_maximum_and_says_so() {
    let prepare = Request::Prepare {
        case: Case::Latency { maximum: Some(10) },
        backend: "epoll".into(),
        idle: false,
    };
    let replies = replies(EVENTFD, &[prepare]);
    assert!(matches!(replies[..], [Reply::Unsupported { .. }]), "{replies:?}");
}

#[test]
fn the_latch_and_the_mailbox_do_as_the_driver_expects() {
    for case in wake_cases(&[0, 50]).into_iter().chain(post_cases()) {
        passes(FLOW, &case);
    }
}

#[test]
fn the_standard_channel_does_as_the_driver_expects() {
    passes(STD, &Case::Call { bound: 4, spin_us: 0 });
    for case in post_cases() {
        passes(STD, &case);
    }
}

#[test]
fn a_counter_with_a_maximum_counts_as_the_driver_expects() {
    let mut cases = flow_cases(Some(10));
    cases.extend(flow_cases(None));
    cases.extend([false, true].map(|polled| Case::Uncontended { polled }));
    for case in cases {
        passes(WINDLASS, &case);
    }
}

#[test]
fn a_remote_wakes_calls_and_posts_as_the_driver_expects() {
    for program in [WINDLASS, BESIDE_TIMER] {
        for spin_us in [0, 50] {
            passes(program, &Case::Call { bound: 4, spin_us });
        }
        for case in wake_cases(&[0, 50]).into_iter().chain(post_cases()) {
            passes(program, &case);
        }
    }
}

/// Messages in one frame, in fragments, several in a buffer, and cut by reads.
fn echo_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for content in [Content::Binary, Content::Ascii, Content::TwoByte] {
        for bytes in [0, 1, 20, 125, 126, 1_024, 16_384, 65_535, 65_536, 71_680] {
            for (messages, fragments, read_bytes) in
                [(1, 1, 65_536), (16, 1, 65_536), (3, 4, 1_460), (1, 1, 131_072)]
            {
                cases.push(Case::Echo { content, bytes, messages, fragments, read_bytes });
            }
        }
        cases.push(Case::Echo { content, bytes: 1_024, messages: 2, fragments: 3, read_bytes: 1 });
    }
    cases
}

#[test]
fn windlass_echoes_what_it_receives() {
    for program in [WINDLASS, TUNGSTENITE] {
        for case in echo_cases() {
            passes(program, &case);
        }
        passes(program, &Case::IdleEngine { engines: 3 });
    }
}

#[test]
fn the_copy_takes_the_same_cases_and_has_no_engine() {
    for case in echo_cases() {
        passes(MEMCPY, &case);
    }
    let prepare = Request::Prepare {
        case: Case::IdleEngine { engines: 3 },
        backend: "epoll".into(),
        idle: false,
    };
    assert!(matches!(replies(MEMCPY, &[prepare])[..], [Reply::Unsupported { .. }]));
}

#[test]
fn what_is_unmasked_is_what_was_masked() {
    for (bytes, offset) in [(1, 6), (20, 6), (126, 8), (1_024, 8), (16_384, 0), (65_536, 14)] {
        passes(WINDLASS, &Case::Unmask { bytes, offset });
        passes(MEMCPY, &Case::Unmask { bytes, offset });
    }
}

#[test]
fn text_is_validated_whole_and_in_pieces() {
    for script in Script::ALL {
        for (bytes, pieces) in [(20, 1), (1_024, 1), (1_024, 4), (1_024, 300)] {
            passes(WINDLASS, &Case::Validate { script, bytes, pieces });
            passes(STD, &Case::Validate { script, bytes, pieces });
        }
    }
}

#[test]
fn messages_are_compressed_and_inflated_in_every_setting() {
    let bytes = 1_024;
    for window_bits in 9..=15 {
        for takeover in [false, true] {
            passes(WINDLASS, &Case::Inflate { bytes, window_bits, takeover });
            for level in [1, 6, 9] {
                let case =
                    |compressor| Case::Compress { bytes, level, window_bits, takeover, compressor };
                passes(WINDLASS, &case(Compressor::Dedicated));
                if !takeover {
                    passes(WINDLASS, &case(Compressor::Shared));
                }
            }
        }
    }
}
