//! What the figures of a run say about the calls by which loops wait.

use std::collections::BTreeSet;

use crate::programs::{RAW, RAW_PWAIT2, WINDLASS};
use crate::report::Entry;

/// The calls by which a loop waits.
const WAITS: [&str; 8] = [
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "io_uring_enter",
    "poll",
    "ppoll",
    "select",
    "pselect6",
];

/// The cases of which the time of the hand-written loops is hardly more than that of their call,
/// with a text.
const PRICES: [(&str, &str); 3] = [
    ("stays_ready", "without a limit, one ready"),
    ("ready_turn", "a limit of zero, one ready"),
    ("empty_turn", "a limit of zero, none ready"),
];

/// Returns the notes of a report.
pub(crate) fn of(results: &[Entry]) -> Vec<String> {
    let suites: BTreeSet<&str> = results.iter().map(|entry| &*entry.suite).collect();
    let prices = PRICES.iter().filter_map(|(case, text)| prices(case, text, results));
    prices.chain(suites.into_iter().filter_map(|suite| waits(suite, results))).collect()
}

/// Tells the prices of the two calls in a case, with the fewest sources of which there is a figure.
fn prices(case: &str, text: &str, results: &[Entry]) -> Option<String> {
    let of = |name: &str| {
        let mut entries = results.iter().filter(|entry| {
            entry.case == case && entry.implementation == name && entry.backend == "epoll"
        });
        entries
            .find_map(|entry| entry.metrics.get("ns_per_turn"))
            .map(|ns| format!("{:.0}", ns.median))
    };
    let (wait, pwait2) = (of(RAW)?, of(RAW_PWAIT2)?);
    Some(format!("prices: {text}: epoll_wait {wait} ns, epoll_pwait2 {pwait2} ns"))
}

/// Tells by which calls windlass waits in a suite, and which implementations wait by others.
fn waits(suite: &str, results: &[Entry]) -> Option<String> {
    let mut calls: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for entry in results.iter().filter(|entry| entry.suite == suite && entry.backend == "epoll") {
        let named = entry.metrics.keys().filter_map(|name| Some(name.split_once("_calls_per_")?.0));
        let waits: BTreeSet<&str> = named.filter(|name| WAITS.contains(name)).collect();
        let name = &*entry.implementation;
        match calls.iter_mut().find(|(of, _)| *of == name) {
            Some((_, all)) => all.extend(waits),
            None => calls.push((name, waits)),
        }
    }
    calls.retain(|(_, waits)| !waits.is_empty());
    let own = calls.iter().find(|(name, _)| name.starts_with(WINDLASS))?.clone();
    let text = |waits: &BTreeSet<&str>| waits.iter().copied().collect::<Vec<_>>().join(" and ");
    let others = calls.iter().filter(|(_, waits)| *waits != own.1);
    let others: Vec<String> =
        others.map(|(name, waits)| format!("{name} by {}", text(waits))).collect();
    let others = if others.is_empty() { "so do the others".into() } else { others.join(", ") };
    Some(format!("waits: {suite}: {} by {}; {others}", own.0, text(&own.1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::stats::Spread;

    fn entry(case: &str, implementation: &str, metrics: &[(&str, f64)]) -> Entry {
        let metric = |(name, value): &(&str, f64)| ((*name).to_owned(), Spread::exact(*value));
        Entry {
            suite: "dispatch".into(),
            case: case.into(),
            params: [].into(),
            implementation: implementation.into(),
            backend: "epoll".into(),
            version: "1".into(),
            metrics: metrics.iter().map(metric).collect(),
            samples: Vec::new(),
        }
    }

    #[test]
    fn what_waits_by_another_call_is_told() {
        let total = ("syscalls_per_event", 1.0);
        let (old, new) =
            (("epoll_wait_calls_per_event", 1.0), ("epoll_pwait2_calls_per_event", 1.0));
        let results = [
            entry("one_ready", "raw", &[total, old]),
            entry("one_ready", "windlass", &[total, new]),
            entry("one_ready", "windlass-timer", &[total, new]),
            entry("one_ready", "mio", &[total, old, ("read_calls_per_event", 1.0)]),
            entry("one_ready", "none", &[total]),
        ];
        let told =
            "waits: dispatch: windlass by epoll_pwait2; raw by epoll_wait, mio by epoll_wait";
        assert_eq!(of(&results), [told]);
        let alike = "waits: dispatch: windlass by epoll_pwait2; so do the others";
        assert_eq!(of(&results[1..3]), [alike]);
        assert!(of(&results[..1]).is_empty());
    }

    #[test]
    fn the_prices_are_those_of_the_two_floors() {
        let results = [
            entry("ready_turn", "raw", &[("ns_per_turn", 394.0)]),
            entry("ready_turn", "raw-pwait2", &[("ns_per_turn", 498.0)]),
            entry("empty_turn", "raw", &[("ns_per_turn", 159.0)]),
        ];
        let price = "prices: a limit of zero, one ready: epoll_wait 394 ns, epoll_pwait2 498 ns";
        assert_eq!(of(&results), [price]);
    }
}
