//! Bugs that only a ring can have: memory whose address the kernel still holds, reused descriptor
//! numbers, full queues, children of fork(2).
//!
//! Where rings are forbidden the tests show as ignored, with the reason. Some tests need a process
//! of their own, for example if a failure would end the process. For those the binary starts itself
//! again with the test's name.

use windlass_testkit::{panics, ptrace};

mod attacks;
#[cfg(windlass_force_ring)]
mod features;
mod guests;
mod limits;
mod memory;
mod processes;
mod queues;
mod storms;
mod syscalls;
mod tools;

use std::{
    io::Write as _,
    process::{Command, ExitCode},
};

use libtest_mimic::{Failed, Trial};
use windlass_testkit::mimic;

/// The name of the test, set in a process that is started for that test alone.
const ALONE: &str = "WINDLASS_RING_ALONE";

type Test = (&'static str, fn());

/// Names tests by module and function, like libtest.
macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn())),*]
    };
}

/// Tests that may share a process with other tests.
fn together() -> Vec<Test> {
    #[cfg_attr(
        not(windlass_force_ring),
        expect(unused_mut, reason = "the tests below are of another build")
    )]
    let mut tests = tests![
        memory::memory_of_deleted_cells_is_used_again_though_completions_wait,
        memory::what_has_completed_already_is_not_reported_after_a_deletion,
        memory::what_was_reaped_before_a_change_is_not_reported_after_it,
        memory::a_deletion_outside_a_turn_closes_the_file_at_once,
        memory::the_end_of_a_reactor_lets_go_of_files,
        memory::a_panic_in_a_turn_lets_go_of_files,
        memory::a_deleted_cell_is_not_watched_by_the_list_that_names_it,
        queues::a_turn_fetches_more_than_the_kernel_makes_ready_at_once,
        queues::nothing_is_lost_where_completions_overflow,
        queues::deletions_while_completions_overflow_are_harmless,
        queues::a_queue_of_one_entry_takes_any_number,
        queues::short_submissions_are_tried_again,
        queues::what_has_found_no_room_is_submitted_before_the_wait,
        queues::a_kernel_that_takes_nothing_does_not_make_the_loop_spin,
        queues::more_changes_than_there_are_generations,
        queues::a_poll_that_was_cancelled_long_ago_is_not_taken_for_the_present_one,
        queues::a_hang_up_that_nobody_asked_for_does_not_spin,
        queues::a_poll_that_was_refused_is_armed_again_by_a_change_to_what_it_was,
        queues::edges_that_come_between_two_waits_are_one_event,
        queues::one_who_was_quiet_hears_what_it_asked_for,
        guests::a_host_hears_of_an_exclusive_registration_after_it_was_changed,
        guests::a_host_is_woken_again_for_what_a_turn_had_no_room_for,
        storms::numbers_that_come_again_and_again,
    ]
    .to_vec();
    #[cfg(windlass_force_ring)]
    tests.extend(tests![
        features::a_ring_does_without_each_of_them,
        features::what_is_missing_is_named,
    ]);
    tests
}

/// Tests that need a process of their own.
fn alone() -> Vec<Test> {
    tests![
        attacks::a_child_of_fork_neither_sends_nor_takes_what_is_queued,
        attacks::a_leaked_reactor_does_no_harm,
        attacks::a_dead_cells_memory_is_kept_while_the_kernel_has_not_let_go,
        processes::a_child_of_fork_is_refused,
        processes::a_reactor_dropped_by_a_child_leaves_the_parents_alone,
        processes::a_childs_own_ring_outlives_the_parents_that_it_drops,
        processes::epoll_refuses_a_child_too,
        processes::nothing_to_do_makes_no_system_call,
        guests::a_ring_that_leaves_its_host_keeps_nothing_of_it,
        guests::a_host_hears_of_a_number_that_has_come_again,
        guests::a_child_of_fork_does_not_keep_the_parents_host_asleep,
        syscalls::a_busy_poll_spins_in_user_space,
        syscalls::a_turn_is_one_system_call_and_a_deletion_another,
        syscalls::sends_of_a_driver_go_with_the_call_that_waits,
        syscalls::more_sends_than_the_queue_holds_make_few_system_calls,
        syscalls::who_waits_for_priority_alone_sleeps_beside_plain_data,
        limits::buffers_that_nothing_was_received_into_take_no_memory,
        limits::a_filter_that_forbids_to_enter_is_found_when_the_reactor_is_built,
        limits::a_preferred_ring_that_must_not_be_entered_is_replaced_by_epoll,
        limits::workers_tell_why_one_of_them_has_no_ring,
        limits::a_limit_of_locked_memory_is_named,
        limits::a_ring_is_to_be_had_though_little_memory_may_be_locked,
        limits::as_many_rings_as_8_mib_are_enough_for,
        limits::rings_that_are_dropped_make_room_for_others,
        syscalls::so_many_rings_of_a_thread_are_registered_as_the_kernel_keeps_indices,
    ]
    .to_vec()
}

fn start_again(name: &str) -> Result<(), Failed> {
    let output = Command::new(std::env::current_exe()?).env(ALONE, name).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    for line in said.lines().filter(|line| line.starts_with("skipped here: ")) {
        writeln!(std::io::stderr(), "{line}")?;
    }
    if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status).into()) }
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(ALONE) {
        let (_, test) =
            alone().into_iter().find(|(known, _)| *known == name).expect("the name of a test");
        test();
        return ExitCode::SUCCESS;
    }
    let refusal = tools::builder().build().err().map(|why| why.to_string());
    let run = |test: fn()| {
        move || -> Result<(), Failed> {
            test();
            Ok(())
        }
    };
    let together = together().into_iter().map(|(name, test)| Trial::test(name, run(test)));
    let alone = alone().into_iter().map(|(name, _)| Trial::test(name, move || start_again(name)));
    let trials = together.chain(alone).map(|trial| match &refusal {
        None => trial,
        Some(why) => Trial::test(format!("{}, ignored: {why}", trial.name()), || Ok(()))
            .with_ignored_flag(true),
    });
    mimic::run(trials.collect())
}
