//! `windlass serve` and its page in a real browser: headless Chromium, driven over the DevTools
//! protocol. Where there is none, the tests are ignored.

mod chat;
mod chromium;
mod devtools;
mod echo;
mod forwarder;
#[path = "../serve/harness.rs"]
mod harness;
mod looks;
mod page;

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use libtest_mimic::{Arguments, Completion, Trial};

use self::chromium::Browser;

/// A test, given the browser.
type Scenario = (&'static str, fn(&Browser));

macro_rules! scenarios {
    ($($module:ident: $($name:ident)*;)*) => {
        [$($((concat!(stringify!($module), "::", stringify!($name)), $module::$name),)*)*]
    };
}

const SCENARIOS: &[Scenario] = &scenarios! {
    chat:
        two_tabs_of_a_room_read_each_other_once
        another_room_reads_nothing_of_it
        a_room_is_a_path_for_other_clients
        strange_names_are_rooms_or_refused
        what_others_send_is_text_and_never_markup
        a_server_that_goes_and_comes_back_is_noticed;
    echo:
        an_echo_run_counts_what_it_has_verified
        an_echo_run_can_be_stopped
        a_run_that_makes_no_sense_does_not_start
        a_wrong_byte_ends_the_run
        a_lost_message_ends_the_run
        a_doubled_message_ends_the_run;
    looks:
        it_fits_wide_and_narrow_in_light_and_dark
        nothing_moves_while_it_is_used
        it_can_be_used_with_the_keyboard_alone
        every_control_has_a_name_and_its_state_is_told;
};

fn main() -> ExitCode {
    let program = Arc::new(chromium::find());
    // Started by the first test that runs, and by none when there is only a list to print.
    let browser = Arc::new(OnceLock::new());
    let trials = SCENARIOS.iter().map(|&(name, scenario)| {
        let (program, browser) = (Arc::clone(&program), Arc::clone(&browser));
        Trial::ignorable_test(name, move || match &*program {
            Ok(program) => {
                scenario(browser.get_or_init(|| Browser::start(program)));
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(reason)),
        })
    });
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials.collect());
    // The last owner: the browser ends before this program does.
    drop(browser);
    conclusion.exit_code()
}
