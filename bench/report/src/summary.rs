//! The generated parts of documents, as Markdown.

use std::fmt::Write;

use serde_json::Value;

use crate::curves::in_words;
use crate::headline::{self, CaseOf, Verdict};
use crate::pictures::MEMORY;
use crate::stats::Spread;
use crate::suites::about;
use crate::svg::label;
use crate::{Entry, Report};

/// Returns a part; `None` if there is none of this name.
#[must_use]
pub fn part(name: &str, report: &Report) -> Option<String> {
    Some(match name {
        "machine" => facts(report),
        "figures" => figures(report),
        "instructions" => instructions(report),
        "suites" => suites(report),
        "behind" => behind(report),
        _ => return None,
    })
}

/// Breaks a paragraph into lines, as the documents have them.
fn paragraph(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 100 {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

fn machine(report: &Report) -> String {
    let meta = &report.meta;
    let mut text = format!("Measured on {}: {}", meta.day(), meta.machine());
    if meta.memory_mib > 0 {
        write!(text, ", {} MiB of memory, {}", meta.memory_mib, meta.rustc)
            .expect("writing to a string");
    }
    text += &format!("; windlass {}, commit {}.", meta.version, meta.git);
    if let Some(ns) = meta.empty_call_ns {
        text += &format!(" An empty system call takes {ns:.0} ns here.");
    }
    if let Some(share) = meta.coverage_percent {
        text += &format!(" The tests run {share:.1} % of the lines.");
    }
    if meta.quick {
        text += " This was a quick run, with few cases and short slices.";
    }
    paragraph(&text)
}

/// The machine and the run as a table.
fn facts(report: &Report) -> String {
    let meta = &report.meta;
    let rows = [
        ("date", Some(meta.date.clone())),
        ("machine", Some(meta.machine())),
        ("memory", (meta.memory_mib > 0).then(|| format!("{} MiB", meta.memory_mib))),
        ("compiler", (!meta.rustc.is_empty()).then(|| meta.rustc.clone())),
        ("version", Some(format!("windlass {}, commit {}", meta.version, meta.git))),
        ("empty system call", meta.empty_call_ns.map(|ns| format!("{ns:.0} ns (getppid)"))),
        ("time of the run", Some(format!("{:.0} minutes", meta.minutes))),
        ("kind of run", meta.quick.then(|| "quick: few cases and short slices".to_owned())),
        ("lines that the tests run", meta.coverage_percent.map(|share| format!("{share:.1} %"))),
    ];
    let mut text = "| | |\n|---|---|\n".to_owned();
    for (name, fact) in rows {
        if let Some(fact) = fact {
            writeln!(text, "| {name} | {fact} |").expect("writing to a string");
        }
    }
    text
}

/// A row of the README: what, the suite and case, the parameters, the figure, and the names of the
/// others.
struct Row {
    what: &'static str,
    case: &'static str,
    params: &'static [(&'static str, &'static str)],
    figure: &'static str,
    own: &'static str,
    others: &'static [&'static str],
    /// Behind the number.
    unit: &'static str,
}

const ROWS: [Row; 8] = [
    Row {
        what: "one event of 1,000 descriptors, with the system calls",
        case: "dispatch/one_ready",
        params: &[("registered", "1000"), ("trigger", "edge")],
        figure: "ns_per_event",
        own: "windlass",
        others: &["eventp", "mio-slab", "calloop"],
        unit: "ns",
    },
    Row {
        what: "memory of a registration, with its value",
        case: "dispatch/registration_memory",
        params: &[],
        figure: "bytes_per_registration",
        own: "windlass",
        others: &["eventp", "mio-slab", "calloop"],
        unit: "bytes",
    },
    Row {
        what: "echo of 20 bytes over 100 WebSockets, on one processor",
        case: "echo/messages",
        params: &[("bytes", "20"), ("connections", "100"), ("depth", "1")],
        figure: "messages_per_s",
        own: "windlass",
        others: &["uwebsockets", "tungstenite"],
        unit: "messages/s",
    },
    Row {
        what: "broadcast of 64 bytes to 100 WebSockets, 16 in flight",
        case: "broadcast/publish",
        params: &[("bytes", "64"), ("receivers", "100"), ("outstanding", "16")],
        figure: "deliveries_per_s",
        own: "windlass",
        others: &["uwebsockets", "tungstenite"],
        unit: "messages/s",
    },
    Row {
        what: "memory of a server for an idle WebSocket",
        case: "memory/idle_connection",
        params: &[],
        figure: MEMORY[0],
        own: "windlass",
        others: &["uwebsockets", "tungstenite"],
        unit: "bytes",
    },
    Row {
        what: "a message and its echo between tasks, 16 pairs: half are faster than",
        case: "latency/ping_pong",
        params: &[
            ("pairs", "16"),
            ("live_timers", "0"),
            ("echoed_by", "own_task"),
            ("exact_reads", "false"),
        ],
        figure: "p50_us",
        own: "windlass-task",
        others: &["tokio", "compio", "asio"],
        unit: "µs",
    },
    Row {
        what: "requests of axum over 16 connections, client on another processor",
        case: "http/requests",
        params: &[
            ("server", "axum"),
            ("connections", "16"),
            ("live_timers", "0"),
            ("client", "own_processor"),
        ],
        figure: "server_cpu_us_per_request",
        own: "windlass-task",
        others: &["tokio"],
        unit: "µs of the processor",
    },
    Row {
        what: "WebSockets on tokio: echo of 20 bytes over 100 connections",
        case: "websocket/messages",
        params: &[("bytes", "20"), ("connections", "100"), ("depth", "1")],
        figure: "messages_per_s",
        own: "windlass-websocket",
        others: &["tungstenite", "fastwebsockets", "yawc"],
        unit: "messages/s",
    },
];

/// Returns the entry of a row that is of this implementation, on epoll if there are several.
fn find<'a>(report: &'a Report, row: &Row, name: &str) -> Option<(&'a Entry, f64)> {
    let has = |entry: &Entry| {
        row.params.iter().all(|(param, wanted)| {
            let text =
                |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            entry.params.get(*param).is_some_and(|value| text(value) == *wanted)
        })
    };
    let mut entries = report.results.iter().filter(|entry| {
        let case = row.case.split_once('/');
        Some((&*entry.suite, &*entry.case)) == case
            && entry.implementation == name
            && entry.metrics.contains_key(row.figure)
            && has(entry)
    });
    let entry =
        entries.clone().find(|entry| entry.backend == "epoll").or_else(|| entries.next())?;
    Some((entry, entry.metrics.get(row.figure)?.median))
}

/// The table of the README. What the record lacks is no row.
fn figures(report: &Report) -> String {
    let mut text = "| what | Windlass | for comparison |\n|---|---|---|\n".to_owned();
    for row in &ROWS {
        let Some((_, own)) = find(report, row, row.own) else { continue };
        let others = row.others.iter().filter_map(|name| {
            let (entry, value) = find(report, row, name)?;
            let version = entry.version.split('.').take(2).collect::<Vec<_>>().join(".");
            // A wrapper of C++ has no version that says anything.
            let version = if version == "0.0" { String::new() } else { format!(" {version}") };
            Some(format!("{name}{version}: {}", rounded(value)))
        });
        let others: Vec<String> = others.collect();
        writeln!(
            text,
            "| {} | **{} {}** | {} |",
            row.what,
            rounded(own),
            row.unit,
            others.join(", ")
        )
        .expect("writing to a string");
    }
    if let Some(seconds) = report.meta.build_seconds {
        let what = "a release build of the reactor and its dependencies, from nothing";
        writeln!(text, "| {what} | **{seconds:.0} s** | |").expect("writing to a string");
    }
    text + "\n" + &machine(report)
}

/// Writes a figure with three digits.
fn rounded(value: f64) -> String {
    if value >= 1_000.0 {
        let unit = 10_f64.powi(value.log10().floor() as i32 - 2);
        return label((value / unit).round() * unit);
    }
    if value >= 100.0 { format!("{value:.0}") } else { crate::number(value) }
}

/// The instructions of dispatch over the hand-written loop, in both builds.
fn instructions(report: &Report) -> String {
    let of = |name: &str, profile: &str| {
        let entry = report.results.iter().find(|entry| {
            entry.case == "instructions"
                && entry.implementation == name
                && entry.backend == "epoll"
                && entry.params.get("profile").is_some_and(|of| of == profile)
        })?;
        let over = |unit: &str| {
            let name = format!("over_raw_user_instructions_per_{unit}");
            let whole = format!("user_instructions_per_{unit}");
            entry.metrics.get(&name).or_else(|| entry.metrics.get(&whole)).map(|of| of.median)
        };
        Some((entry, format!("{:.0} + {:.0}", over("turn")?, over("event")?)))
    };
    let mut text = "| user instructions over the hand-written loop | release: a turn + an event \
                    | fat LTO |\n|---|---|---|\n"
        .to_owned();
    let mut names: Vec<&str> = Vec::new();
    let counted = report.results.iter().filter(|entry| entry.case == "instructions");
    for entry in counted.filter(|entry| entry.suite == "dispatch" && entry.backend == "epoll") {
        if !names.contains(&&*entry.implementation) {
            names.push(&entry.implementation);
        }
    }
    for name in names.into_iter().filter(|name| !name.ends_with("-again")) {
        let (release, lto) = (of(name, "release"), of(name, "lto"));
        let Some((entry, _)) = release.as_ref().or(lto.as_ref()) else { continue };
        let title = if name == "raw" {
            "the loop itself, in full".to_owned()
        } else {
            format!("{name} {}", entry.version)
        };
        let cell = |of: Option<(&Entry, String)>| of.map_or(String::new(), |(_, text)| text);
        let (one, other) = (cell(release.clone()), cell(lto.clone()));
        writeln!(text, "| {title} | {one} | {other} |").expect("writing to a string");
    }
    text
}

/// Returns the title of a case without what is the same for all.
fn short(case: &CaseOf<'_>) -> String {
    let title = case.title.split_once('/').map_or(&*case.title, |(_, title)| title);
    title.replace(" profile=release", "")
}

/// All cases of all suites.
fn suites(report: &Report) -> String {
    let cases = headline::cases(&report.results);
    let mut suites: Vec<&str> = Vec::new();
    for case in &cases {
        if !suites.contains(&case.suite) {
            suites.push(case.suite);
        }
    }
    let mut text = String::new();
    for suite in suites {
        let mut rows = String::new();
        for case in cases.iter().filter(|case| case.suite == suite) {
            rows += &row(case);
        }
        let about = about(suite);
        write!(text, "### `{suite}`\n\n{}\n\n", paragraph(&format!("Measures {about}.")))
            .expect("writing to a string");
        text += if rows.starts_with("| `call") {
            "| call | nanoseconds |\n|---|---|\n"
        } else {
            "| case | Windlass | best other | cost over it |\n|---|---|---|---|\n"
        };
        text += &rows;
        text.push('\n');
    }
    text
}

/// The row of a case. The prices of calls are a row each.
fn row(case: &CaseOf<'_>) -> String {
    let Some(headline) = headline::of(case) else {
        let call = |entry: &&Entry| {
            let price = entry.metrics.get("ns_per_call")?;
            Some(format!("| `call {}` | {} |\n", entry.title(), rounded(price.median)))
        };
        return case.entries.iter().filter_map(call).collect();
    };
    let own = headline.own.metrics.get(headline.figure).map_or(f64::NAN, |of| of.median);
    let figure = format!("{} {}", rounded(own), in_words(headline.figure));
    let (Some(other), Some(ratio)) = (headline.other, headline.ratio) else {
        return format!("| `{}` | {figure} | | |\n", short(case));
    };
    let theirs = other.metrics.get(headline.figure).map_or(f64::NAN, |of| of.median);
    format!(
        "| `{}` | {figure} | {} {} | {} |\n",
        short(case),
        other.implementation,
        rounded(theirs),
        interval(ratio)
    )
}

fn interval(ratio: Spread) -> String {
    let Spread { median, low, high } = ratio;
    if low == high { format!("{median:.2}") } else { format!("{median:.2} ({low:.2}–{high:.2})") }
}

/// The cases in which Windlass costs more, the largest ratio first.
fn behind(report: &Report) -> String {
    let cases = headline::cases(&report.results);
    let mut behind: Vec<(f64, String)> = Vec::new();
    let mut counts = [0; 3];
    for case in &cases {
        let Some(headline) = headline::of(case) else { continue };
        let Some((verdict, ratio)) = headline.verdict().zip(headline.ratio) else { continue };
        counts[verdict as usize] += 1;
        if verdict == Verdict::Behind {
            behind
                .push((ratio.median, row(case).replacen("| `", &format!("| `{}/", case.suite), 1)));
        }
    }
    behind.sort_by(|one, other| other.0.total_cmp(&one.0));
    let [ahead, tie, more] = counts;
    let text = format!(
        "Windlass costs less than the best other in {ahead} cases, as much in {tie}, and more in \
         these {more}:"
    );
    let rows: String = behind.into_iter().map(|(_, row)| row).collect();
    let head = "| case | Windlass | best other | cost over it |\n|---|---|---|---|\n";
    format!("{}\n\n{head}{rows}", paragraph(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, samples: &[f64]) -> Entry {
        Entry {
            implementation: name.into(),
            params: [
                ("registered".to_owned(), 1_000.into()),
                ("trigger".to_owned(), "edge".into()),
                ("profile".to_owned(), "release".into()),
            ]
            .into(),
            metrics: [("ns_per_event".to_owned(), Spread::of(samples.to_vec()).unwrap())].into(),
            samples: samples.to_vec(),
            ..crate::tests::sample().results[0].clone()
        }
    }

    fn report() -> Report {
        let mut report = crate::tests::sample();
        report.results = vec![entry("windlass", &[640.0; 3]), entry("eventp", &[512.3; 3])];
        report
    }

    #[test]
    fn the_readme_has_a_row_for_what_was_measured() {
        let text = figures(&report());
        let row = "| **640 ns** | eventp 1: 512 |";
        assert!(text.contains(row), "{text}");
        assert_eq!(text.matches("\n| ").count(), 1, "one row: {text}");
        assert!(text.contains("Measured on 2026-01-01") && !text.contains("release build"));
        let mut built = report();
        built.meta.build_seconds = Some(12.3);
        let row =
            "| a release build of the reactor and its dependencies, from nothing | **12 s** |";
        assert!(figures(&built).contains(row), "{}", figures(&built));
    }

    #[test]
    fn a_case_says_the_figure_the_other_and_the_ratio() {
        let row = "| `one_ready registered=1000 trigger=edge` | 640 nanoseconds an event | eventp \
                   512 | 1.25 |";
        assert!(suites(&report()).contains(row), "{}", suites(&report()));
        let behind = behind(&report());
        assert!(behind.contains("in 0 cases, as much in 0, and more in these 1:"));
        assert!(behind.contains("| `dispatch/one_ready registered=1000"), "{behind}");
    }

    #[test]
    fn lines_of_a_paragraph_have_a_hundred_columns() {
        let text = paragraph(&"word ".repeat(60));
        assert!(text.lines().all(|line| line.len() <= 100) && text.lines().count() == 3);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(rounded(123_456.0), "123,000");
        assert_eq!(rounded(512.3), "512");
        assert_eq!(rounded(9.5), "9.500");
    }
}
