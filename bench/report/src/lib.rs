//! The results of a run, as JSON, as text, as a page, and as tables and pictures of the documents.
//!
//! `windlass-bench` fills a [`Report`]. `cargo xtask tidy` compares the documents with the newest
//! record by the same code that writes them.

#![deny(unsafe_code)]

pub mod baseline;
pub mod curves;
pub mod documents;
pub mod error;
pub mod headline;
pub mod html;
pub mod meta;
pub mod pictures;
pub mod stats;
pub mod suites;
pub mod summary;
pub mod svg;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use error::MeasureError;
use meta::Meta;
use stats::Spread;

/// The result of one implementation in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The suite.
    pub suite: String,
    /// The name of the case.
    pub case: String,
    /// Its parameters, and how it was measured.
    pub params: BTreeMap<String, Value>,
    /// What was measured.
    #[serde(rename = "impl")]
    pub implementation: String,
    /// Its way to wait, or `memory`.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// The figures by their names.
    pub metrics: BTreeMap<String, Spread>,
    /// The slices of the timed figure, in the order of the repetitions. Those of one case belong
    /// together, so that ratios can be taken within a repetition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

impl Entry {
    /// Returns whether both are the same measurement, of which one is newer.
    fn is_again(&self, other: &Self) -> bool {
        (&self.suite, &self.case, &self.params, &self.implementation, &self.backend)
            == (&other.suite, &other.case, &other.params, &other.implementation, &other.backend)
    }

    /// Returns the title of its row in a table, which names backends other than epoll.
    #[must_use]
    pub fn title(&self) -> String {
        if let Some(Value::String(call)) = self.params.get("call") {
            return call.clone();
        }
        let name = format!("{} {}", self.implementation, self.version);
        if self.backend == "epoll" { name } else { format!("{name} on {}", self.backend) }
    }

    /// Returns the title without the version. That memory has no backend goes without saying.
    #[must_use]
    pub fn short_title(&self) -> String {
        match &*self.backend {
            "epoll" | "memory" => self.implementation.clone(),
            backend => format!("{} on {backend}", self.implementation),
        }
    }
}

/// A measurement that was skipped, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The suite.
    pub suite: String,
    /// The case, or `*` for all.
    pub case: String,
    /// The implementation, or `*` for all.
    #[serde(rename = "impl")]
    pub implementation: String,
    /// Why.
    pub reason: String,
    /// The step of a failure, or of a count that a budget has left out. A resumed run tries it
    /// again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
}

impl Skipped {
    /// Returns whether this is a failure, and not what an implementation or the machine lacks.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.reason.starts_with(FAILED)
    }

    /// Returns whether a budget has left it out.
    #[must_use]
    pub fn is_over_budget(&self) -> bool {
        self.reason == OVER_BUDGET
    }
}

/// A target with the figure that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// Suite, case and parameters.
    pub row: String,
    /// The implementation.
    #[serde(rename = "impl")]
    pub implementation: String,
    /// Its backend.
    pub backend: String,
    /// The name of the figure.
    pub metric: String,
    /// The figure.
    pub value: f64,
    /// `at most 0.25`
    pub bound: String,
    /// `met`, `tie` or `missed`.
    pub verdict: String,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, implementation, backend, metric, value, bound, verdict } = self;
        let value = number(*value);
        write!(
            f,
            "target {verdict}: {row} {implementation} on {backend}: {metric} {value}, {bound}"
        )
    }
}

/// How the reason of a failure begins, in contrast to that of a skipped measurement.
const FAILED: &str = "failed: ";

/// The reason of what a budget has left out.
pub const OVER_BUDGET: &str = "its time was over: raise --budget, or choose cases with --case";

/// The results of a run. Its JSON has the same form for all suites.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The machine, the versions and the time.
    pub meta: Meta,
    /// All figures.
    pub results: Vec<Entry>,
    /// What was not measured.
    pub skipped: Vec<Skipped>,
    /// The targets of which a figure was measured.
    pub targets: Vec<Reached>,
    /// Sentences about the figures.
    pub notes: Vec<String>,
    /// The steps that have ended, so that a run can be resumed, with their seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub done: BTreeMap<String, f64>,
}

impl Report {
    /// Returns a report without results.
    #[must_use]
    pub fn new(meta: Meta) -> Self {
        Self {
            meta,
            results: Vec::new(),
            skipped: Vec::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// Reads the JSON of a run.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is no report.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no report of windlass-bench", path.display()))
    }

    /// Writes the JSON. A run that is killed meanwhile leaves the former file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let new = path.with_extension("new");
        let text = self.json()?;
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the JSON with a result in each line.
    fn json(&self) -> anyhow::Result<String> {
        let Value::Object(fields) = serde_json::to_value(self)? else {
            unreachable!("a report is an object in JSON");
        };
        let mut text = String::from("{");
        for (number, (name, value)) in fields.iter().enumerate() {
            text.push_str(if number == 0 { "\n" } else { ",\n" });
            match value {
                Value::Array(items) if !items.is_empty() => {
                    let items: Vec<String> = items.iter().map(Value::to_string).collect();
                    write!(text, "\"{name}\": [\n{}\n]", items.join(",\n"))?;
                }
                value => write!(text, "\"{name}\": {value}")?,
            }
        }
        Ok(text + "\n}\n")
    }

    /// Notes a measurement that was skipped. A failure also makes the run fail.
    pub fn skip(&mut self, suite: &str, case: &str, name: &str, error: MeasureError) {
        let (reason, failed) = match error {
            MeasureError::Unsupported(reason) => (reason, false),
            MeasureError::Failed(reason) | MeasureError::TimedOut(reason) => {
                (format!("{FAILED}{reason}"), true)
            }
        };
        let skip = Skipped {
            suite: suite.to_owned(),
            case: case.to_owned(),
            implementation: name.to_owned(),
            reason,
            step: String::new(),
        };
        if self.skipped.contains(&skip) {
            return;
        }
        if failed {
            eprintln!("  {name}: {}", skip.reason);
        }
        self.skipped.push(skip);
    }

    /// Adds what a step has found in so many seconds. What it found in an earlier run, in which it
    /// was not completed, is replaced.
    pub fn add_step(&mut self, step: &str, seconds: f64, found: Self) {
        let is_again = self.done.insert(step.to_owned(), seconds).is_some();
        self.skipped.retain(|skip| skip.step != step);
        for entry in found.results {
            match self.results.iter_mut().find(|old| is_again && old.is_again(&entry)) {
                Some(old) => *old = entry,
                None => self.results.push(entry),
            }
        }
        for mut skip in found.skipped {
            if skip.is_failure() || skip.is_over_budget() {
                skip.step = step.to_owned();
            }
            if !self.skipped.contains(&skip) {
                self.skipped.push(skip);
            }
        }
    }

    /// Returns whether a step has ended, nothing has failed, and nothing was left out.
    #[must_use]
    pub fn is_done(&self, step: &str) -> bool {
        self.done.contains_key(step) && !self.skipped.iter().any(|skip| skip.step == step)
    }

    /// Adds the metrics of an entry that do not depend on time: allocations, bytes, sends.
    pub fn push_counts(&mut self, mut entry: Entry) {
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
    pub fn failures(&self) -> impl Iterator<Item = &Skipped> {
        self.skipped.iter().filter(|skip| skip.is_failure())
    }

    /// Returns tables of the entries with the same case and parameters, as they were measured.
    /// Times and instructions of an implementation stand in one row.
    pub fn tables(&self) -> Vec<Table> {
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
    pub fn text(&self) -> String {
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
            let Skipped { suite, case, implementation, reason, .. } = skip;
            writeln!(text, "skipped: {suite}/{case} {implementation}: {reason}")
                .expect("writing to a string");
        }
        text
    }
}

/// Returns suite, case and parameters in one line.
pub fn title(entry: &Entry) -> String {
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
pub fn number(value: f64) -> String {
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
pub struct Table {
    /// Suite, case and parameters.
    pub title: String,
    /// The rows by their titles.
    pub rows: Vec<(String, BTreeMap<String, Spread>)>,
}

impl Table {
    /// Returns the names of all metrics, sorted.
    pub fn metrics(&self) -> BTreeSet<&str> {
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
            ..Meta::default()
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
            samples: vec![1.0, 2.0, 3.0],
        });
        report.results.push(Entry { backend: "uring".into(), ..report.results[0].clone() });
        report.skip("dispatch", "one_ready", "mio", MeasureError::Unsupported("no".into()));
        report
    }

    #[test]
    fn the_json_has_the_shape_that_all_suites_share() {
        let value: Value = serde_json::from_str(&sample().json().unwrap()).unwrap();
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
        assert_eq!(report.failures().count(), 0);
        report.skip("dispatch", "one_ready", "mio", MeasureError::Failed("wrong handler".into()));
        assert_eq!(report.failures().count(), 1);
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
