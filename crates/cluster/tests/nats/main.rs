//! Nodes over a real nats-server. Each test names a guarantee.
//!
//! Where there is no nats-server, its tests show as ignored, with the reason.

use windlass_testkit::{nats_fake as fake, nats_jwt as jwt, nats_server as server};

mod access;
mod batch;
mod crossing;
mod hostile;
mod load;
mod node;
mod outage;
mod payload;
mod relay;
mod tls;

use std::process::ExitCode;

use libtest_mimic::{Completion, Trial};

fn main() -> ExitCode {
    let without_server: [(&'static str, fn()); 16] = [
        ("batch::in_hand", batch::what_was_in_hand_when_the_connection_ended_is_counted),
        ("tls::first", tls::tls_may_come_first),
        ("tls::own_certificate", tls::the_given_certificate_may_be_that_of_the_server),
        ("tls::credentials", tls::credentials_are_not_sent_without_the_tls_that_is_wanted),
        ("hostile::first_line", hostile::a_first_line_without_end_is_refused),
        ("hostile::endless", hostile::endless_lines_and_messages_end_the_connection),
        ("hostile::long", hostile::a_long_message_arrives),
        ("hostile::texts", hostile::texts_of_the_server_forge_no_line),
        ("hostile::questions", hostile::many_questions_do_not_add_up),
        ("hostile::reads_nothing", hostile::a_server_that_reads_nothing_is_lost),
        ("hostile::answers_nothing", hostile::a_server_that_answers_nothing_is_lost),
        ("hostile::answers", hostile::a_server_that_answers_is_kept),
        ("hostile::lame_duck", hostile::an_announced_end_is_told_once),
        ("hostile::echo", hostile::credentials_that_come_back_are_not_shown),
        ("hostile::asks_first", hostile::a_server_may_ask_first),
        ("hostile::stop_in_event", hostile::a_bus_may_be_stopped_in_an_event),
    ];
    let tests: [(&'static str, fn()); 26] = [
        ("crossing::once_for_each_interested_node", crossing::once_for_each_interested_node),
        ("crossing::own_never_twice", crossing::own_publications_never_arrive_twice),
        ("crossing::in_order", crossing::publications_of_each_publisher_arrive_in_order),
        ("crossing::any_topic", crossing::any_topic_and_both_kinds_of_messages_cross),
        ("crossing::foreign", crossing::what_is_no_publication_is_dropped_and_counted),
        ("crossing::invented", crossing::an_invented_number_or_epoch_claims_little),
        ("crossing::end", crossing::what_is_published_right_before_the_end_arrives),
        ("outage::killed", outage::a_killed_server_loses_the_oldest_and_counts_them),
        ("outage::in_flight", outage::a_connection_that_ends_under_load_repeats_nothing),
        ("outage::stopped", outage::a_stopped_server_is_noticed_and_nothing_arrives_twice),
        ("outage::stopped_for_long", || outage::stopped_for(20)),
        ("outage::partition", outage::both_sides_of_a_partition_publish),
        ("outage::traffic", outage::a_silent_connection_with_traffic_is_noticed),
        ("outage::late_server", outage::a_server_may_start_after_its_nodes),
        ("outage::second_server", outage::another_server_takes_over),
        ("payload::two_mebibytes", payload::two_mebibytes_cross_if_the_server_allows_them),
        ("payload::too_large", payload::what_is_too_large_is_refused_and_counted),
        ("payload::smaller_maximum", payload::a_server_with_a_smaller_maximum_takes_over),
        ("load::many_topics", load::topics_are_subscribed_to_and_given_up_without_a_trace),
        ("load::slow_node", load::nobody_waits_for_a_slow_node),
        ("load::bounded", load::what_waits_for_a_full_connection_is_bounded),
        ("access::credentials", access::users_tokens_and_seeds_open_a_server),
        ("access::credentials_file", access::a_file_of_credentials_opens_a_server),
        ("access::refused", access::wrong_credentials_are_an_event),
        ("access::permissions", access::a_missing_permission_is_an_event),
        ("access::tls", access::tls_with_certificates_of_both_sides),
    ];
    let trial = |(name, test): (&'static str, fn())| {
        let run = move || {
            if server::program().is_none() {
                return Ok(Completion::ignored_with("there is no nats-server"));
            }
            test();
            Ok(Completion::Completed)
        };
        // It takes as long as its name says.
        Trial::ignorable_test(name, run).with_ignored_flag(name == "outage::stopped_for_long")
    };
    let always = without_server.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    let trials = tests.into_iter().map(trial).chain(always).collect();
    windlass_testkit::mimic::run(trials)
}
