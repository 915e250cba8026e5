//! The text as other programs see it.

use std::{
    io::{ErrorKind, Write as _},
    process::{Command, Stdio},
};

use libtest_mimic::{Completion, Failed};

use crate::{
    admin,
    clients::{Client, Site},
    exposition::Exposition,
};

/// The families, which `docs/server.md` lists.
const FAMILIES: &[&str] = &[
    "accept_pauses_total",
    "build_info",
    "close_codes_total",
    "codec_bytes_total",
    "connections",
    "connections_closed_total",
    "connections_opened_total",
    "evictions_total",
    "handshake_seconds",
    "handshakes_total",
    "limit_hits_total",
    "loop_lag_seconds",
    "memory_budget_bytes",
    "message_bytes_total",
    "messages_dropped_total",
    "messages_total",
    "output_buffered_bytes",
    "reloads_total",
    "subscriptions",
    "tls_handshake_failures_total",
    "tls_handshakes_total",
    "topics",
    "wire_bytes_total",
    "worker_turn_age_seconds",
];

/// What the listener adds about itself and its program.
const OF_ADMIN: &[&str] =
    &["admin_disconnections_total", "admin_refusals_total", "configuration_reloads_total"];

/// The figures of the process, which the listener adds.
const PROCESS: &[&str] = &[
    "cpu_seconds_total",
    "max_fds",
    "open_fds",
    "resident_memory_bytes",
    "start_time_seconds",
    "threads",
    "virtual_memory_bytes",
];

pub(crate) fn the_documented_families_are_there() {
    let site = Site::new(2, |_| {});
    let admin = admin::start(&site, |admin| admin);
    let of_listener = Exposition::parse(&admin::get(&admin, "/metrics", "").1);
    let mut families: Vec<_> = FAMILIES.iter().map(|name| format!("windlass_{name}")).collect();
    assert_eq!(Vec::from_iter(site.metrics().families()), families);
    // A listener adds its own.
    families.extend(OF_ADMIN.iter().map(|name| format!("windlass_{name}")));
    families.sort_unstable();
    families.splice(0..0, PROCESS.iter().map(|name| format!("process_{name}")));
    assert_eq!(Vec::from_iter(of_listener.families()), families);
    let documented = include_str!("../../../../docs/server.md");
    for family in &families {
        assert!(documented.contains(&format!("`{family}")), "{family} is documented");
    }
    site.end();
}

/// `promtool check rules` of the alerts, if the program is there.
pub(crate) fn check_alerts() -> Result<Completion, Failed> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/prometheus-alerts.yml");
    let output = match Command::new("promtool").args(["check", "rules", path]).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Completion::ignored_with("there is no promtool (package prometheus)"));
        }
        Err(error) => return Err(error.into()),
    };
    let report = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() && report.contains("rules found") {
        return Ok(Completion::Completed);
    }
    Err(format!("{}: {report}", output.status).into())
}

/// Each metric in an alert exists. promtool knows the syntax only.
pub(crate) fn alerts_are_about_families_that_exist() {
    let alerts = include_str!("../../../../docs/prometheus-alerts.yml");
    let is_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
    let named = alerts
        .split(|byte| !is_name(byte))
        .filter(|word| word.starts_with("windlass_") || word.starts_with("process_"));
    let families = FAMILIES.iter().chain(OF_ADMIN).map(|name| format!("windlass_{name}"));
    let mut known: Vec<_> = families.collect();
    known.extend(PROCESS.iter().map(|name| format!("process_{name}")));
    // They are there with TLS, and in a cluster.
    known.push("windlass_tls_certificate_expiry_timestamp_seconds".to_owned());
    known.push("windlass_cluster_connected".to_owned());
    let mut count = 0;
    for name in named.map(|name| name.strip_suffix("_bucket").unwrap_or(name)) {
        assert!(known.iter().any(|known| known == name), "{name}");
        count += 1;
    }
    assert!(count > 10, "{count}");
}

/// `promtool check metrics`, if the program is there.
pub(crate) fn check_metrics() -> Result<Completion, Failed> {
    let site = Site::new(2, |_| {});
    let mut client = Client::open(site.address, "/echo");
    client.send(1, b"hello");
    assert_eq!(client.next().1, b"hello");
    let admin = admin::start(&site, |admin| admin);
    let text = admin::get(&admin, "/metrics", "").1;
    site.end();
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Completion::ignored_with("there is no promtool (package prometheus)"));
        }
        Err(error) => return Err(error.into()),
    };
    child.stdin.take().ok_or("it has an input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    // It reports what it only dislikes too.
    if output.status.success() && report.is_empty() {
        return Ok(Completion::Completed);
    }
    Err(format!("{}: {report}", output.status).into())
}
