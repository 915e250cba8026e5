//! Children of fork(2), which share every descriptor with their parent. A child's calls on its copy
//! of a reactor must not affect the parent's.
//!
//! Each test runs in a process of its own with one thread. The binary starts itself again with the
//! test's name and a backend. Where rings are forbidden, their tests show as ignored, with the
//! reason.

#![deny(unsafe_code)]

use windlass_testkit::fork as tools;

mod registrations;
mod streams;

use std::process::{Command, ExitCode};

use libtest_mimic::{Failed, Trial};
use windlass::Backend;

use tools::{die_in_time, reactor_on};

/// The names of the test and the backend, set in a process that is started for that test alone.
const ALONE: &str = "WINDLASS_FORK_ALONE";

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

fn all() -> Vec<Test> {
    tests![
        registrations::a_reactor_dropped_by_a_child_leaves_the_parents_alone,
        registrations::a_childs_exit_drops_no_registration_of_the_parent,
        registrations::a_registration_deleted_by_a_child_is_the_parents_still,
        registrations::an_exclusive_registration_changed_by_a_child_is_the_parents_still,
        registrations::a_descriptor_taken_out_by_a_child_is_the_parents_still,
        registrations::a_group_deleted_by_a_child_is_the_parents_still,
        registrations::a_signal_set_deleted_by_a_child_is_the_parents_still,
        registrations::an_embedded_reactor_dropped_by_a_child_still_wakes_the_parents_host,
        registrations::a_registration_deleted_by_a_childs_embedded_reactor_is_the_parents_still,
        registrations::a_reactor_taken_apart_by_a_child_leaves_the_parents_alone,
        registrations::a_child_is_refused_the_shortest_turn,
        registrations::a_timer_of_a_child_leaves_the_parents_alarm_alone,
        registrations::the_alarm_stands_still_while_the_machine_is_suspended,
        registrations::a_closure_posted_to_the_parent_is_not_dropped_by_a_child,
        streams::a_listener_deleted_by_a_child_accepts_for_the_parent,
        streams::a_stream_sends_nothing_from_a_child,
        streams::output_that_waits_is_sent_by_the_parent_alone,
        streams::a_stream_does_nothing_in_a_child_that_was_forked_in_its_handler,
        streams::a_handler_that_panics_in_a_child_resets_nothing,
        streams::a_session_released_before_a_fork_goes_on_in_the_parent_alone,
        streams::a_child_with_the_id_of_its_parent_is_another_process,
    ]
    .to_vec()
}

fn start_again(name: &str, backend: Backend) -> Result<(), Failed> {
    let output =
        Command::new(std::env::current_exe()?).env(ALONE, format!("{name}@{backend}")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    for line in said.lines().filter(|line| line.starts_with("skipped here: ")) {
        eprintln!("{line}");
    }
    if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status).into()) }
}

fn main() -> ExitCode {
    if let Ok(alone) = std::env::var(ALONE) {
        let (name, backend) = alone.split_once('@').expect("a test and a backend");
        let (_, test) =
            all().into_iter().find(|(known, _)| *known == name).expect("the name of a test");
        die_in_time();
        test(backend.parse().expect("the name of a backend"));
        return ExitCode::SUCCESS;
    }
    let mut trials = Vec::new();
    for backend in [Backend::Epoll, Backend::Uring, Backend::Poll] {
        let refusal = reactor_on(backend).err().map(|why| why.to_string());
        for (name, _) in all() {
            let title = format!("{name}::{backend}");
            let cannot_embed = backend == Backend::Poll && name.contains("embedded");
            let why = refusal
                .clone()
                .or_else(|| cannot_embed.then(|| "poll(2) cannot be embedded".to_owned()));
            trials.push(match why {
                None => Trial::test(title, move || start_again(name, backend)),
                Some(why) => Trial::test(format!("{title}, ignored: {why}"), || Ok(()))
                    .with_ignored_flag(true),
            });
        }
    }
    windlass_testkit::mimic::run(trials)
}
