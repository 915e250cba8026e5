//! Metrics and the admin listener: values compared with what clients did, and who gets an answer.

use windlass_testkit::{backend, exposition, panics, waiting};

mod admin;
mod clients;
mod exposition_errors;
mod inspection;
mod live;
mod promtool;
mod rejections;
mod values;

use std::{process::ExitCode, time::Duration};

use libtest_mimic::Trial;

fn main() -> ExitCode {
    let tests: [(&str, fn()); 44] = [
        ("values::messages_and_bytes", values::messages_and_bytes_are_those_of_the_clients),
        ("values::rejections_and_closes", values::rejections_and_closes_are_counted_by_cause),
        ("values::most_connections", values::the_most_connections_are_those_of_all_workers),
        ("values::pings_and_pongs", values::pings_and_pongs_are_those_of_the_clients),
        ("values::idle_pings", values::pings_to_idle_clients_are_counted),
        ("values::drops", values::drops_are_counted_by_policy),
        ("values::evictions", values::evictions_are_counted_by_reason),
        ("values::a_busy_worker", values::a_busy_worker_does_not_stop_the_metrics),
        ("values::scrapes_during_load", || {
            values::scrapes_during_full_load(Duration::from_secs(1));
        }),
        ("rejections::address_limit", rejections::an_address_above_its_limit),
        ("rejections::timeout", rejections::late_requests),
        ("rejections::draining", rejections::requests_during_a_drain),
        ("rejections::over_budget", rejections::a_server_over_its_budget),
        ("live::figures", live::its_figures_are_those_of_the_clients),
        ("live::slow_receivers", live::a_slow_receiver_is_seen),
        ("live::reserved_topic", live::no_client_reaches_its_topic),
        ("live::off", live::it_is_off_by_default),
        ("live::bounded", live::it_is_bounded),
        ("admin::each_path", admin::each_path_has_its_answer),
        ("admin::kept_connection", admin::a_connection_is_kept_for_further_requests),
        ("admin::foreign_host", admin::a_foreign_host_is_rejected),
        ("admin::token", admin::elsewhere_only_the_token_gets_an_answer),
        ("admin::rejections", admin::rejections_are_counted_and_reported),
        ("admin::silent", admin::silent_connections_keep_nobody_out),
        ("admin::flood", admin::a_flood_from_one_address_keeps_no_other_out),
        ("admin::first_byte", admin::a_silent_connection_is_closed_soon),
        ("admin::pipelined", admin::pipelined_requests_share_a_copy),
        ("admin::unix_socket", admin::a_unix_socket_needs_no_token),
        ("admin::access", admin::access_changes_while_it_runs),
        ("admin::hand_over", admin::it_ends_readiness_and_leaves_its_socket),
        ("admin::stalled", admin::a_worker_in_a_long_handler_is_reported),
        ("admin::drain", admin::a_drain_ends_readiness_and_then_the_listener),
        ("inspection::orders", inspection::connections_come_by_their_order),
        ("inspection::rooms", inspection::rooms_are_listed_and_select_connections),
        ("inspection::disconnect", inspection::clients_are_disconnected_by_what_names_them),
        ("inspection::parameters", inspection::a_bad_parameter_is_named),
        ("inspection::busy_worker", inspection::a_busy_worker_is_left_out),
        ("inspection::open_health", inspection::probes_need_no_token_if_health_is_open),
        ("inspection::open_health_cost", inspection::open_health_costs_little),
        ("inspection::reloads", inspection::reloads_of_the_program_are_counted),
        ("exposition::accepts", exposition_errors::what_the_format_allows_is_accepted),
        ("exposition::rejects", exposition_errors::each_error_of_the_format_is_found),
        ("promtool::alerts", promtool::alerts_are_about_families_that_exist),
        ("promtool::families", promtool::the_documented_families_are_there),
    ];
    let mut trials: Vec<_> = tests
        .into_iter()
        .map(|(name, test)| {
            Trial::test(name, move || {
                test();
                Ok(())
            })
        })
        .collect();
    let long = || {
        values::scrapes_during_full_load(Duration::from_secs(60));
        Ok(())
    };
    // It takes a minute.
    trials.push(Trial::test("values::scrapes_during_a_long_load", long).with_ignored_flag(true));
    trials.push(Trial::ignorable_test("promtool::check_alerts", promtool::check_alerts));
    trials.push(Trial::ignorable_test("promtool::check_metrics", promtool::check_metrics));
    windlass_testkit::mimic::run(trials)
}
