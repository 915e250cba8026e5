//! The results of a run, as JSON and as text.

pub(crate) mod html;
pub(crate) mod meta;
pub(crate) mod stats;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use crate::error::MeasureError;
use crate::targets::Reached;
use meta::Meta;
use stats::Spread;

/// The result of one implementation in one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) suite: String,
    pub(crate) case: String,
    pub(crate) params: BTreeMap<String, Value>,
    #[serde(rename = "impl")]
    pub(crate) implementation: String,
    pub(crate) backend: String,
    pub(crate) version: String,
    pub(crate) metrics: BTreeMap<String, Spread>,
}

impl Entry {
    /// Returns the title of its row in a table, which names backends other than epoll.
    pub(crate) fn title(&self) -> String {
        if let Some(Value::String(call)) = self.params.get("call") {
            return call.clone();
        }
        let name = format!("{} {}", self.implementation, self.version);
        if self.backend == "epoll" { name } else { format!("{name} on {}", self.backend) }
    }
}

/// A measurement that was skipped, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Skipped {
    pub(crate) suite: String,
    pub(crate) case: String,
    #[serde(rename = "impl")]
    pub(crate) implementation: String,
    pub(crate) reason: String,
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) meta: Meta,
    pub(crate) results: Vec<Entry>,
    pub(crate) skipped: Vec<Skipped>,
    /// The targets of which a figure was measured.
    pub(crate) targets: Vec<Reached>,
    /// Sentences about the figures.
    pub(crate) notes: Vec<String>,
    failures: Vec<Skipped>,
}

/// The JSON, which has the same form for all suites.
#[derive(Debug, Serialize)]
pub(crate) struct Json<'a> {
    meta: &'a Meta,
    results: &'a [Entry],
    skipped: &'a [Skipped],
    targets: &'a [Reached],
    notes: &'a [String],
}

impl Report {
    pub(crate) fn new(meta: Meta) -> Self {
        Self {
            meta,
            results: Vec::new(),
            skipped: Vec::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Notes a measurement that was skipped. A failure also makes the run fail.
    pub(crate) fn skip(&mut self, suite: &str, case: &str, name: &str, error: MeasureError) {
        let (reason, failed) = match error {
            MeasureError::Unsupported(reason) => (reason, false),
            MeasureError::Failed(reason) | MeasureError::TimedOut(reason) => {
                (format!("failed: {reason}"), true)
            }
        };
        let skip = Skipped {
            suite: suite.to_owned(),
            case: case.to_owned(),
            implementation: name.to_owned(),
            reason,
        };
        if self.skipped.contains(&skip) {
            return;
        }
        if failed {
            eprintln!("  {name}: {}", skip.reason);
            self.failures.push(skip.clone());
        }
        self.skipped.push(skip);
    }

    /// Adds the metrics of an entry that do not depend on time: allocations, bytes, sends.
    pub(crate) fn push_counts(&mut self, mut entry: Entry) {
        let is_count = |name: &str| {
            name.starts_with("allocations_per_")
                || name.starts_with("sends_per_")
                || name.starts_with("would_block_per_")
                || name.split('_').any(|word| word == "bytes")
        };
        entry.metrics.retain(|name, _| is_count(name));
        if !entry.metrics.is_empty() {
            self.results.push(entry);
        }
    }

    /// Returns the failures, without the cases that an implementation or the machine does not
    /// support.
    pub(crate) fn failures(&self) -> &[Skipped] {
        &self.failures
    }

    pub(crate) fn json(&self) -> Json<'_> {
        let Self { meta, results, skipped, targets, notes, .. } = self;
        Json { meta, results, skipped, targets, notes }
    }

    /// Returns tables of the entries with the same case and parameters, as they were measured.
    /// Times and instructions of an implementation stand in one row.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for entry in &self.results {
            let (title, row) = (table_title(entry), entry.title());
            let table = match tables.iter().position(|table| table.title == title) {
                Some(found) => &mut tables[found],
                None => tables.push_mut(Table { title, rows: Vec::new() }),
            };
            let metrics = entry.metrics.clone();
            match table.rows.iter_mut().find(|(of, _)| *of == row) {
                Some((_, all)) => all.extend(metrics),
                None => table.rows.push((row, metrics)),
            }
        }
        tables
    }

    /// Returns the tables as text.
    pub(crate) fn text(&self) -> String {
        let meta = &self.meta;
        let mut text = format!(
            "windlass {} ({}), Linux {}, {} × {}, {}{}\n",
            meta.version,
            meta.git,
            meta.kernel,
            meta.cores,
            meta.cpu,
            meta.date,
            if meta.quick { ", quick" } else { "" },
        );
        for table in self.tables() {
            table.print(&mut text);
        }
        for note in &self.notes {
            writeln!(text, "{note}").expect("writing to a string");
        }
        for target in &self.targets {
            writeln!(text, "{target}").expect("writing to a string");
        }
        for skip in &self.skipped {
            let Skipped { suite, case, implementation, reason } = skip;
            writeln!(text, "skipped: {suite}/{case} {implementation}: {reason}")
                .expect("writing to a string");
        }
        text
    }
}

/// Returns suite, case and parameters in one line.
pub(crate) fn title(entry: &Entry) -> String {
    titled(entry, &[])
}

/// Returns the title of an entry's table. The tool that counts instructions is not part of it, so
/// that they stand beside the times. Neither is a system call, which has a row of its own.
fn table_title(entry: &Entry) -> String {
    let is_beside_times = entry.params.contains_key("profile");
    titled(entry, if is_beside_times { &["tool", "call"] } else { &["call"] })
}

/// Returns suite, case and parameters in one line, without some of them.
fn titled(entry: &Entry, without: &[&str]) -> String {
    let mut title = format!("{}/{}", entry.suite, entry.case);
    for (name, value) in entry.params.iter().filter(|(name, _)| !without.contains(&&***name)) {
        match value {
            Value::String(value) => write!(title, " {name}={value}"),
            value => write!(title, " {name}={value}"),
        }
        .expect("writing to a string");
    }
    title
}

/// Formats a figure with its significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ if value == value.trunc() => format!("{value:.0}"),
        _ => format!("{value:.3}"),
    }
}

fn cell(spread: Option<&Spread>) -> String {
    let Some(spread) = spread else {
        return String::new();
    };
    if spread.low == spread.high {
        return number(spread.median);
    }
    format!("{} ({}–{})", number(spread.median), number(spread.low), number(spread.high))
}

/// A table of the report.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// The rows by their titles.
    pub(crate) rows: Vec<(String, BTreeMap<String, Spread>)>,
}

impl Table {
    /// Returns the names of all metrics, sorted.
    pub(crate) fn metrics(&self) -> BTreeSet<&str> {
        self.rows.iter().flat_map(|(_, metrics)| metrics.keys().map(String::as_str)).collect()
    }

    fn print(&self, text: &mut String) {
        writeln!(text, "\n{}", self.title).expect("writing to a string");
        let names = self.metrics();
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(names.iter().map(|&name| name.to_owned()));
        for (title, metrics) in &self.rows {
            let mut row = vec![title.clone()];
            row.extend(names.iter().map(|&name| cell(metrics.get(name))));
            rows.push(row);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> =
            (0..=names.len()).map(|column| width(column).unwrap_or(0)).collect();
        for row in &rows {
            let mut line = format!("    {:<1$}", row[0], widths[0]);
            for (value, width) in row.iter().zip(&widths).skip(1) {
                write!(line, "  {value:>width$}").expect("writing to a string");
            }
            writeln!(text, "{}", line.trim_end()).expect("writing to a string");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Report {
        let meta = Meta {
            version: "1".into(),
            git: "abc".into(),
            kernel: "6".into(),
            cpu: "c <&>".into(),
            cores: 2,
            date: "2026-01-01T00:00:00Z".into(),
            quick: true,
        };
        let mut report = Report::new(meta);
        let spread = Spread { median: 2.0, low: 1.0, high: 3.0 };
        report.results.push(Entry {
            suite: "dispatch".into(),
            case: "one_ready".into(),
            params: [("registered".to_owned(), Value::from(1))].into(),
            implementation: "raw".into(),
            backend: "epoll".into(),
            version: "1".into(),
            metrics: [("ns_per_event".to_owned(), spread)].into(),
        });
        report.results.push(Entry { backend: "uring".into(), ..report.results[0].clone() });
        report.skip("dispatch", "one_ready", "mio", MeasureError::Unsupported("no".into()));
        report
    }

    #[test]
    fn the_json_has_the_shape_that_all_suites_share() {
        let value = serde_json::to_value(sample().json()).unwrap();
        assert_eq!(value["meta"]["quick"], true);
        let result = &value["results"][0];
        assert_eq!((&result["impl"], &result["params"]["registered"]), (&"raw".into(), &1.into()));
        assert_eq!(result["metrics"]["ns_per_event"]["median"], 2.0);
        assert_eq!(value["skipped"][0]["impl"], "mio");
    }

    #[test]
    fn counts_are_told_from_times() {
        let mut report = sample();
        let names = ["allocations_per_pair", "engine_bytes", "ns_per_pair", "gib_per_s"];
        let metrics = names.map(|name| (name.to_owned(), Spread::exact(1.0))).into();
        report.push_counts(Entry { metrics, ..report.results[0].clone() });
        report.push_counts(report.results[0].clone());
        assert_eq!(report.results.len(), 3, "an entry without counts is left out");
        let counts: Vec<_> = report.results[2].metrics.keys().collect();
        assert_eq!(counts, ["allocations_per_pair", "engine_bytes"]);
    }

    #[test]
    fn times_and_instructions_stand_in_one_row() {
        let mut report = sample();
        let with = |params: &[(&str, &str)], metric: &str| Entry {
            params: params.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            metrics: [(metric.to_owned(), Spread::exact(5.0))].into(),
            ..sample().results[0].clone()
        };
        let (release, tool) = (("profile", "release"), ("tool", "singlestep"));
        report.results = vec![
            with(&[release], "ns_per_event"),
            with(&[release, tool], "user_instructions_per_event"),
            with(&[("tool", "strace")], "syscalls_per_event"),
            with(&[("call", "one")], "ns_per_call"),
            with(&[("call", "two")], "ns_per_call"),
        ];
        let tables = report.tables();
        let shapes: Vec<_> = tables.iter().map(|t| (t.rows.len(), t.metrics().len())).collect();
        assert_eq!(shapes, [(1, 2), (1, 1), (2, 1)], "calls are rows of one table");
        assert_eq!(tables[2].rows[1].0, "two");
    }

    #[test]
    fn only_failures_fail_the_run() {
        let mut report = sample();
        assert!(report.failures().is_empty());
        report.skip("dispatch", "one_ready", "mio", MeasureError::Failed("wrong handler".into()));
        assert_eq!(report.failures().len(), 1);
        assert_eq!(report.skipped.len(), 2);
    }

    #[test]
    fn the_text_names_case_implementation_and_reason() {
        let text = sample().text();
        assert!(text.contains("dispatch/one_ready registered=1"));
        assert!(text.contains("2 (1–3)") && text.contains("raw 1 "));
        assert!(text.contains("raw 1 on uring ") && text.contains("mio: no"));
    }
}
