//! What the charts show: the figures of a report as lines and bars.

use serde_json::Value;

use crate::headline::{self, is_own};
use crate::stats::Spread;
use crate::svg::{Lines, Series};
use crate::{Entry, titled};

/// The least number of different sizes of a curve.
const SIZES_MIN: usize = 3;
/// Implementations in one chart; beside them it would be unreadable.
const SERIES_MAX: usize = 10;

/// Forms of the same programs, which would hide the others.
const VARIANTS: [&str; 5] =
    ["raw-again", "floor-again", "raw-pwait2", "windlass-driven", "windlass-timer"];

/// Percentiles, as the drivers name them, and the same of servers.
const PERCENTILES: [(&str, [&str; 2]); 3] = [
    ("50", ["p50_us", "latency_p50_us"]),
    ("99", ["p99_us", "latency_p99_us"]),
    ("99.9", ["p999_us", "latency_p999_us"]),
];

/// Returns a chart for each case of a suite that is measured at several sizes.
#[must_use]
pub fn curves(results: &[Entry], suite: &str) -> Vec<Lines> {
    let timed = || results.iter().filter(|e| e.suite == suite && !e.params.contains_key("tool"));
    let mut charts: Vec<(String, Lines)> = Vec::new();
    for entry in timed() {
        let sizes = entry.params.iter().filter(|(_, value)| value.is_u64());
        for (size, _) in sizes {
            let key = titled(entry, &[size, "profile"]);
            let id = format!("{size} of {key}");
            if charts.iter().any(|(of, _)| *of == id) {
                continue;
            }
            let beside: Vec<&Entry> =
                timed().filter(|other| titled(other, &[size, "profile"]) == key).collect();
            if let Some(chart) = curve(&beside, size, key) {
                charts.push((id, chart));
            }
        }
    }
    charts.into_iter().map(|(_, chart)| chart).collect()
}

/// Returns the cost of these entries against one of their parameters.
#[must_use]
pub fn curve(entries: &[&Entry], size: &str, title: String) -> Option<Lines> {
    let figure = entries.iter().find_map(|entry| headline::figure(entry))?;
    let mut lines: Vec<(&str, Series)> = Vec::new();
    for entry in entries {
        let at = entry.params.get(size).and_then(Value::as_f64);
        let Some((at, value)) = at.zip(entry.metrics.get(figure)) else { continue };
        let name = entry.short_title();
        let place = match lines.iter().position(|(_, line)| line.name == name) {
            Some(place) => place,
            None => {
                let line = Series { name, points: Vec::new() };
                lines.push((&entry.implementation, line));
                lines.len() - 1
            }
        };
        lines[place].1.points.push((at, *value));
    }
    lines.retain(|(name, line)| line.points.len() >= SIZES_MIN && !VARIANTS.contains(name));
    lines.sort_by_key(|(name, _)| !is_own(name));
    let mut series: Vec<Series> = lines.into_iter().map(|(_, line)| line).collect();
    series.truncate(SERIES_MAX);
    for line in &mut series {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let title = format!("{title}: {}", in_words(figure));
    (!series.is_empty()).then(|| Lines { title, x_label: size.replace('_', " "), series })
}

/// Returns the percentiles of a case, if it has several, as lines against the percentile. The
/// horizontal axis is the part of the messages that took longer, turned over.
#[must_use]
pub fn distribution(entries: &[&Entry], title: String) -> Option<Lines> {
    let mut series: Vec<(bool, Series)> = Vec::new();
    for entry in entries.iter().filter(|e| !VARIANTS.contains(&&*e.implementation)) {
        let points: Vec<(f64, Spread)> = PERCENTILES
            .iter()
            .filter_map(|(percent, names)| {
                let value = names.iter().find_map(|name| entry.metrics.get(*name))?;
                let percent: f64 = percent.parse().ok()?;
                Some((1.0 / (1.0 - percent / 100.0), *value))
            })
            .collect();
        if points.len() > 1 {
            let name = entry.short_title();
            series.push((!is_own(&entry.implementation), Series { name, points }));
        }
    }
    series.sort_by_key(|(is_other, _)| *is_other);
    let mut series: Vec<Series> = series.into_iter().map(|(_, line)| line).collect();
    series.truncate(SERIES_MAX);
    let title = format!("{title}: microseconds");
    let x_label = "one message in so many took longer (2 is p50, 100 is p99)".to_owned();
    (!series.is_empty()).then_some(Lines { title, x_label, series })
}

/// Returns the name of a figure for a reader: `nanoseconds an event`.
#[must_use]
pub fn in_words(figure: &str) -> String {
    let each = |unit: &str| {
        let unit = unit.replace('_', " ");
        let vowel = unit.starts_with(['a', 'e', 'i', 'o', 'u']);
        format!("{} {unit}", if vowel { "an" } else { "a" })
    };
    if let Some(unit) = figure.strip_prefix("ns_per_") {
        return format!("nanoseconds {}", each(unit));
    }
    if let Some(unit) = figure.strip_prefix("user_instructions_per_") {
        return format!("user instructions {}", each(unit));
    }
    if let Some(unit) = figure.strip_prefix("syscalls_per_") {
        return format!("system calls {}", each(unit));
    }
    if let Some(what) = figure.strip_suffix("_per_s") {
        return format!("{} a second", what.replace('_', " "));
    }
    if let Some(what) = figure.strip_suffix("_us") {
        return format!("{}, microseconds", what.replace('_', " "));
    }
    if let Some((what, unit)) = figure.split_once("_bytes_per_") {
        return format!("bytes {} ({})", each(unit), what.replace('_', " "));
    }
    figure.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(implementation: &str, registered: u64, ns: f64) -> Entry {
        Entry {
            implementation: implementation.into(),
            params: [
                ("registered".to_owned(), registered.into()),
                ("trigger".to_owned(), "edge".into()),
            ]
            .into(),
            metrics: [("ns_per_event".to_owned(), Spread::exact(ns))].into(),
            ..crate::tests::sample().results[0].clone()
        }
    }

    #[test]
    fn a_case_at_several_sizes_is_a_curve_with_windlass_first() {
        let of = |name: &str| [1, 10, 100].map(|count| entry(name, count, 400.0 + count as f64));
        let results = [of("mio"), of("windlass"), of("raw-again")].concat();
        let charts = curves(&results, "dispatch");
        assert_eq!(charts.len(), 1);
        let names: Vec<&str> = charts[0].series.iter().map(|line| &*line.name).collect();
        assert_eq!(names, ["windlass", "mio"]);
        assert_eq!(charts[0].title, "dispatch/one_ready trigger=edge: nanoseconds an event");
        assert!(curves(&results[..2], "dispatch").is_empty(), "two sizes are no curve");
    }

    #[test]
    fn percentiles_are_a_distribution() {
        let metrics = [("p50_us", 10.0), ("p99_us", 50.0), ("p999_us", 90.0)];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), Spread::exact(value)));
        let with = Entry { metrics: metrics.into(), ..entry("windlass", 1, 1.0) };
        let lines = distribution(&[&with], "x".into()).unwrap();
        let at: Vec<i64> = lines.series[0].points.iter().map(|p| p.0.round() as i64).collect();
        assert_eq!(at, [2, 100, 1_000]);
        assert!(distribution(&[&entry("windlass", 1, 1.0)], "x".into()).is_none());
    }

    #[test]
    fn figures_have_names_for_readers() {
        assert_eq!(in_words("ns_per_event"), "nanoseconds an event");
        assert_eq!(in_words("messages_per_s"), "messages a second");
        assert_eq!(in_words("latency_p99_us"), "latency p99, microseconds");
        assert_eq!(in_words("rss_bytes_per_connection"), "bytes a connection (rss)");
    }
}
