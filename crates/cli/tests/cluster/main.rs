//! `windlass serve --cluster`: two servers with one nats-server. The tests are ignored if there is
//! no nats-server.

use windlass_testkit::{nats_fake as fake, nats_jwt as jwt, nats_server as nats};

#[path = "../suite/client.rs"]
mod client;
mod example;
#[path = "../suite/harness.rs"]
mod harness;
mod node;
mod options;
mod rooms;

use std::process::ExitCode;

use libtest_mimic::{Completion, Trial};

fn main() -> ExitCode {
    let tests: [(&str, fn()); 11] = [
        ("rooms::shared", rooms::a_message_goes_to_the_members_at_both_servers_and_crosses_once),
        ("rooms::notices", rooms::notices_about_members_stay_at_their_server),
        ("rooms::lost_and_back", rooms::a_lost_nats_server_is_seen_and_comes_back),
        ("rooms::shown", rooms::the_cluster_is_shown_where_the_server_is),
        ("rooms::longest_message", rooms::the_longest_message_is_what_nats_takes),
        ("options::identities", options::each_identity_is_taken_from_its_file),
        ("options::tls", options::tls_checks_the_server_and_shows_a_certificate),
        ("options::tls_first", options::tls_begins_before_the_nats_server_says_anything),
        ("options::prefixes", options::servers_with_other_prefixes_are_apart),
        ("options::errors", options::wrong_options_are_errors_that_name_them),
        ("example", example::its_script_runs_two_servers),
    ];
    let trials = tests.into_iter().map(|(name, test)| {
        Trial::ignorable_test(name, move || {
            if nats::program().is_none() {
                return Ok(Completion::ignored_with("there is no nats-server"));
            }
            test();
            Ok(Completion::Completed)
        })
    });
    windlass_testkit::mimic::run(trials.collect())
}
