//! The pictures of the documents.

use crate::curves::curve;
use crate::headline::{CaseOf, cases, figure, is_rate};
use crate::stats::Spread;
use crate::svg::{Bar, Bars, label, standalone};
use crate::{Entry, Report};

/// Returns the paths and texts of all pictures of which the record has the figures.
#[must_use]
pub fn all(report: &Report) -> Vec<(&'static str, String)> {
    let pictures = [
        ("docs/images/dispatch.svg", dispatch(report)),
        ("docs/images/servers.svg", servers(report)),
        ("docs/images/memory.svg", memory(report)),
    ];
    pictures.into_iter().filter_map(|(path, svg)| Some((path, standalone(&svg?)))).collect()
}

/// Nanoseconds an event against the number of descriptors, beside each peer.
fn dispatch(report: &Report) -> Option<String> {
    let is_edge = |entry: &&Entry| entry.params.get("trigger").is_some_and(|edge| edge == "edge");
    let one_ready: Vec<&Entry> = report
        .results
        .iter()
        .filter(|e| e.case == "one_ready" && !e.params.contains_key("tool"))
        .filter(is_edge)
        .collect();
    let mut lines = curve(&one_ready, "registered", String::new())?;
    lines.title = "One descriptor of N is ready: nanoseconds an event".to_owned();
    lines.x_label = "N, registered descriptors".to_owned();
    Some(lines.draw())
}

/// The cases of the picture of servers: what each begins with, and its name.
const SERVERS: [(&str, &str); 4] = [
    (
        "echo/messages bytes=20 connections=100 content=binary deflate=false depth=1",
        "Echo of 20 bytes, 100 connections",
    ),
    (
        "echo/messages bytes=16384 connections=10 content=binary deflate=false depth=1",
        "Echo of 16 KiB, 10 connections",
    ),
    (
        "echo/messages bytes=64 connections=10 content=binary deflate=false depth=16",
        "Echo of 64 bytes, 10 connections, 16 in flight",
    ),
    (
        "broadcast/publish bytes=64 outstanding=16 receivers=100",
        "Broadcast of 64 bytes to 100 connections, 16 in flight",
    ),
];

/// Throughput beside uWebSockets, which is one.
fn servers(report: &Report) -> Option<String> {
    let cases = cases(&report.results);
    let group = |(title, name): &(&str, &str)| {
        let case = cases.iter().find(|case| case.title == *title)?;
        let reference = case.entries.iter().find(|e| e.implementation == "uwebsockets")?;
        let named = ["windlass", "uwebsockets", "tungstenite", "fastwebsockets"];
        let bars = named.iter().enumerate().filter_map(|(colour, name)| {
            let entry = case
                .entries
                .iter()
                .find(|entry| entry.implementation == *name && entry.backend == "epoll")?;
            rate(entry, reference, colour)
        });
        Some(((*name).to_owned(), bars.collect::<Vec<_>>()))
    };
    let groups: Vec<_> = SERVERS.iter().filter_map(group).collect();
    let title = "Throughput of servers over that of uWebSockets".to_owned();
    (!groups.is_empty()).then(|| Bars { title, groups, has_one: true }.draw())
}

fn rate(entry: &Entry, reference: &Entry, colour: usize) -> Option<Bar> {
    let name = figure(entry).filter(|name| is_rate(name))?;
    let over = entry.samples.iter().zip(&reference.samples).map(|(one, other)| one / other);
    let value = Spread::of(over)?;
    let rate = entry.metrics.get(name)?.median;
    let text = format!("{:.2} · {} {}", value.median, label(rate), name.replace("_per_s", "/s"));
    Some(Bar { name: entry.implementation.clone(), value, text, colour })
}

/// The memory of an idle connection.
fn memory(report: &Report) -> Option<String> {
    let cases = cases(&report.results);
    let case = cases.iter().find(|case: &&CaseOf<'_>| case.suite == "memory")?;
    let name = MEMORY
        .into_iter()
        .find(|name| case.entries.iter().any(|entry| entry.metrics.contains_key(*name)))?;
    let shown = case
        .entries
        .iter()
        .filter(|entry| entry.backend == "epoll" && !entry.implementation.ends_with("-again"));
    let mut bars: Vec<Bar> = shown
        .filter_map(|entry| {
            let value = Spread::exact(entry.metrics.get(name)?.median);
            let text = format!("{} bytes", label(value.median));
            let colour = if entry.implementation == "windlass" { 0 } else { 7 };
            Some(Bar { name: entry.implementation.clone(), value, text, colour })
        })
        .collect();
    bars.sort_by(|one, other| one.value.median.total_cmp(&other.value.median));
    let title = "Memory of a server for an idle WebSocket connection".to_owned();
    let groups = vec![(String::new(), bars)];
    Some(Bars { title, groups, has_one: false }.draw())
}

/// The figure of an idle connection: what the server itself holds.
pub(crate) const MEMORY: [&str; 2] = ["anonymous_bytes_per_connection", "rss_bytes_per_connection"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_the_figures_has_no_pictures() {
        assert!(all(&crate::tests::sample()).is_empty());
    }

    #[test]
    fn memory_is_sorted_and_has_a_text_for_each_bar() {
        let of = |name: &str, bytes| Entry {
            suite: "memory".into(),
            implementation: name.into(),
            metrics: [(MEMORY[0].to_owned(), Spread::exact(bytes))].into(),
            samples: Vec::new(),
            ..crate::tests::sample().results[0].clone()
        };
        let mut report = crate::tests::sample();
        report.results = vec![of("yawc", 4_096.0), of("windlass", 246.0)];
        let pictures = all(&report);
        let [(path, svg)] = &pictures[..] else { panic!("one picture") };
        assert_eq!(*path, "docs/images/memory.svg");
        let places = ["246 bytes", "4,096 bytes"].map(|text| svg.find(text).unwrap());
        assert!(places[0] < places[1], "the smallest first");
    }
}
