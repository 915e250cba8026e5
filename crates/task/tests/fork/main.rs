//! Children of fork(2), which have a copy of their parent's executor. A child must not run it, and
//! dropping it must not affect the parent.
//!
//! Beside them are tests that need a process of their own for another reason.
//!
//! Each test runs in a process of its own with one thread. The binary starts itself again with the
//! test's name and a backend. Where rings are forbidden, their tests show as ignored, with the
//! reason.

#![deny(unsafe_code)]

use windlass_testkit::{fork as tools, ptrace};

mod children;
mod signals;
mod sockets;
mod syscalls;
mod workers;

use std::process::{Command, ExitCode};

use libtest_mimic::{Failed, Trial};
use windlass::Backend;

use tools::{die_in_time, reactor_on};

/// The names of the test and the backend, set in a process that is started for that test alone.
const ALONE: &str = "WINDLASS_TASK_FORK_ALONE";

type Test = (&'static str, fn(Backend));

/// Names tests by module and function, like libtest.
macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        [$((
            concat!(stringify!($module), "::", stringify!($name)),
            $module::$name as fn(Backend),
        )),*]
    };
}

const ALL: &[Test] = &tests![
    children::block_on_in_a_child_panics_and_polls_nothing,
    children::a_turn_outside_of_block_on_panics_in_a_child,
    children::an_executor_dropped_by_a_child_leaves_the_parents_alone,
    children::futures_that_wait_to_be_spawned_are_the_parents_still,
    children::a_task_that_returns_in_a_child_ends_block_on_with_a_panic,
    children::a_child_may_build_an_executor_of_its_own,
    children::a_pool_of_threads_does_not_make_a_child_hang,
    signals::a_signal_to_the_process_is_told_to_each_executor,
    signals::a_child_listens_for_itself,
    sockets::streams_dropped_by_a_child_are_the_parents_still,
    sockets::streams_dropped_in_a_task_that_forked_are_the_parents_still,
    sockets::a_child_cannot_detach_a_stream_that_receives,
    sockets::a_process_without_descriptors_keeps_a_stream_whose_socket_it_cannot_take,
    syscalls::request_and_response_find_no_empty_socket,
    syscalls::a_turn_without_input_makes_one_wait,
    syscalls::a_local_wake_makes_no_system_call,
    syscalls::streams_that_are_dropped_together_take_one_submission,
    syscalls::a_connection_that_is_answered_and_dropped_cancels_nothing,
    syscalls::a_connection_between_two_tasks_makes_three_submissions,
    workers::a_worker_without_descriptors_sleeps_until_its_deadline,
];

fn start_again(name: &str, backend: Backend) -> Result<(), Failed> {
    let output =
        Command::new(std::env::current_exe()?).env(ALONE, format!("{name}@{backend}")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status).into()) }
}

fn main() -> ExitCode {
    if let Ok(alone) = std::env::var(ALONE) {
        let (name, backend) = alone.split_once('@').expect("a test and a backend");
        let (_, test) = ALL.iter().find(|(known, _)| *known == name).expect("the name of a test");
        die_in_time();
        test(backend.parse().expect("the name of a backend"));
        return ExitCode::SUCCESS;
    }
    let mut trials = Vec::new();
    for backend in [Backend::Epoll, Backend::Uring, Backend::Poll] {
        let refusal = reactor_on(backend).err().map(|why| why.to_string());
        for (name, _) in ALL {
            let title = format!("{name}::{backend}");
            trials.push(match &refusal {
                None => Trial::test(title, move || start_again(name, backend)),
                Some(why) => Trial::test(format!("{title}, ignored: {why}"), || Ok(()))
                    .with_ignored_flag(true),
            });
        }
    }
    windlass_testkit::mimic::run(trials)
}
