//! `windlass serve` and its page in a headless Chromium, controlled by the DevTools protocol. The
//! tests are ignored if there is no browser.

mod appearance;
mod axe;
mod chat;
mod echo;
mod forwarder;
#[path = "../suite/harness.rs"]
mod harness;
mod live;
mod load;
mod page;
mod picture;
mod tls;

use std::{
    path::Path,
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use libtest_mimic::{Completion, Trial};
use windlass_testkit::{
    browser::{self as chromium, Browser},
    devtools, mimic,
};

/// A test with the browser as its argument.
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
        members_are_counted_and_their_coming_is_told
        in_a_cluster_the_members_at_this_server_are_counted
        each_tab_has_its_own_guest_and_all_have_a_chosen_name
        a_server_that_goes_and_comes_back_is_noticed;
    echo:
        an_echo_run_counts_what_it_has_verified
        an_echo_run_can_be_stopped
        an_invalid_run_does_not_start
        a_wrong_byte_ends_the_run
        a_lost_message_ends_the_run
        a_doubled_message_ends_the_run
        the_command_that_measures_the_server_is_shown;
    live:
        the_figures_are_those_of_the_server
        a_graph_tells_its_values
        without_status_the_page_has_no_live_view
        nothing_from_a_peer_is_markup_in_the_live_view
        the_link_of_a_room_with_a_long_name_leads_there
        the_figures_of_a_lost_connection_go_and_come_back
        a_live_view_that_is_lost_alone_comes_back;
    load:
        a_button_shows_what_the_server_can_do
        the_part_of_the_page_itself_is_named
        a_server_for_others_has_no_button;
    tls:
        the_page_works_by_https;
    appearance:
        it_fits_wide_and_narrow_in_light_and_dark
        nothing_moves_while_it_is_used
        nothing_moves_when_the_script_comes_late
        it_can_be_used_with_the_keyboard_alone
        every_control_has_a_name_and_a_state;
};

fn start(program: &Path) -> Browser {
    Browser::start(program, Path::new(env!("CARGO_TARGET_TMPDIR")))
}

fn main() -> ExitCode {
    let program = Arc::new(chromium::find());
    // The first test starts it. It is not started to list the tests.
    let browser = Arc::new(OnceLock::new());
    let trial = |(name, scenario): Scenario| {
        let (program, browser) = (Arc::clone(&program), Arc::clone(&browser));
        Trial::ignorable_test(name, move || match &*program {
            Ok(program) => {
                scenario(browser.get_or_init(|| start(program)));
                Ok(Completion::Completed)
            }
            Err(reason) => Ok(Completion::ignored_with(reason)),
        })
    };
    let mut trials: Vec<_> = SCENARIOS.iter().copied().map(trial).collect();
    let picture = ("picture::of_a_minute_under_load", picture::of_a_minute_under_load as fn(&_));
    trials.push(trial(picture).with_ignored_flag(true));
    trials.push(axe::trial(&program, &browser));
    let code = mimic::run(trials);
    // This is the last owner, so the browser ends before this program.
    drop(browser);
    code
}
