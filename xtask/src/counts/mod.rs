//! `cargo xtask counts`, and the stage `counts` of `cargo xtask ci`: the counts of the benchmarks
//! must not grow.
//!
//! `windlass-bench --counts-only` counts user instructions, system calls, allocations and bytes of
//! windlass. [`mod@compare`] compares them with the committed list, which [`list`] reads and
//! writes. A new row needs no code here: it is recorded as soon as the benchmark counts it.

mod compare;
mod list;
mod load;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::compare::{Measured, Verdict, compare, over, record};
use self::list::{Count, List, PATH, RECORD, Row};
use crate::ci::Expected;
use crate::command::Cmd;
use crate::output::Output;
use crate::programs::Packages;
use crate::repository;
use crate::stage::{Report, Setting, Stage};
use crate::tally::Tally;

/// The name of the stage.
pub(crate) const STAGE: &str = "counts";

/// The announcement of the rows, by which the tally knows their program. Rows count as tests.
const ANNOUNCEMENT: &str = "     Running .ci/expected-counts (xtask/counts)";

/// The suites that are counted.
const SUITES: &[&str] = &[
    "dispatch",
    "kick",
    "poll0",
    "timers",
    "streams",
    "flow",
    "wakeup",
    "latency",
    "tasks",
    "http",
    "engine",
    "unmask",
    "utf8",
    "echo",
    "broadcast",
    "websocket",
    // An echo with the bus in memory: it needs neither nats-server nor its client.
    "cluster",
];

/// The time limit of one run of the benchmark, with its build.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What counts depend on beside the measured code. With another value they are not compared.
const DECISIVE: &[&str] = &["rustc", "libc"];

/// The stage. It is skipped where another compiler or C library than the recorded one is used,
/// because counts depend on both.
pub(crate) fn stage(root: &Path) -> Stage {
    let list = match List::read(root) {
        Ok(list) => list,
        Err(error) => return Stage::inspect(STAGE, move || Err(error)),
    };
    if let Some(reason) = difference(&list.environment, &environment(), DECISIVE) {
        return Stage::skip(STAGE, reason);
    }
    let root = root.to_path_buf();
    Stage::counted(STAGE, move |tally, output| check(&root, &list, tally, output))
}

/// Runs the stage alone, or records the counts again. Returns whether everything passed.
///
/// # Errors
///
/// If the workspace or a list cannot be read or written, or if the benchmark fails.
pub(crate) fn run(is_recording: bool) -> Result<bool> {
    let root = repository::root();
    let packages = std::sync::Arc::new(Packages::read(&root)?);
    if is_recording {
        return record_again(&root, Tally::new(packages));
    }
    let mut report = Report::new(Setting { root: root.clone(), limit: Some(LIMIT), packages });
    report.run(stage(&root));
    report.print_summary();
    println!("{}", report.counts());
    Ok(report.succeeded())
}

/// Counts and compares. Returns the failures.
fn check(root: &Path, list: &List, tally: &mut Tally, output: &mut Output) -> Result<Vec<String>> {
    let mut measured = measure(root, SUITES, output)?;
    let over = over(list, &measured);
    if !over.is_empty() {
        output.say("some counts are over the recorded ones: their suites are counted again\n");
        let suites: Vec<&str> = over.iter().map(String::as_str).collect();
        measured.take_smaller(measure(root, &suites, output)?);
    }
    let verdicts = compare(list, &measured);
    let mut failures = tell(&verdicts, tally, output);
    failures.extend(measured.failures());
    if !failures.is_empty() {
        let machine = ["cpu", "kernel", "valgrind"];
        if let Some(difference) = difference(&list.environment, &environment(), &machine) {
            failures.push(format!("perhaps not by a change of the code: {difference}"));
        }
    }
    Ok(failures)
}

/// Adds the verdicts to the tally, one test for each row, and returns the failures.
fn tell(verdicts: &BTreeMap<Row, Verdict>, tally: &mut Tally, output: &mut Output) -> Vec<String> {
    let mut say = |line: &str| {
        output.say(&format!("{line}\n"));
        tally.feed(line);
    };
    say(ANNOUNCEMENT);
    let (mut failures, mut ignored) = (Vec::new(), 0);
    for (row, verdict) in verdicts {
        match verdict {
            Verdict::Passed => {}
            Verdict::Better(hint) => say(&format!("better: {hint}")),
            Verdict::Failed(failure) => failures.push(failure.clone()),
            Verdict::Skipped(reason) => {
                ignored += 1;
                say(&format!("test {row} ... ignored, {reason}"));
            }
        }
    }
    let (failed, word) = (failures.len(), if failures.is_empty() { "ok" } else { "FAILED" });
    let passed = verdicts.len() - failed - ignored;
    say(&format!("test result: {word}. {passed} passed; {failed} failed; {ignored} ignored"));
    failures
}

/// Runs suites of the benchmark and reads their counts.
fn measure(root: &Path, suites: &[&str], output: &mut Output) -> Result<Measured> {
    let directory = root.join("target/ci");
    std::fs::create_dir_all(&directory)?;
    let json = directory.join("counts.json");
    // A report of an earlier run must not be taken for that of this one.
    match std::fs::remove_file(&json) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let path = json.to_str().context("the path is not UTF-8")?;
    let bench = Cmd::cargo(["run", "--release", "-p", "windlass-bench", "--"])
        .args(suites.iter().copied())
        .args(["--quick", "--counts-only", "--json", path]);
    // The report of a run that failed names the failures.
    let ended = bench.run(root, Some(LIMIT), &mut Tally::default(), output);
    let text = match (std::fs::read_to_string(&json), ended) {
        (Ok(text), _) => text,
        (Err(_), Err(failure)) => bail!("{failure}"),
        (Err(error), Ok(_)) => return Err(error).context("the benchmark wrote no JSON"),
    };
    Ok(Measured::of(&serde_json::from_str(&text)?))
}

/// Counts twice, the second time beside programs that keep all processors busy, and writes the
/// list. So a count that depends on the schedule is found, and is not compared later.
fn record_again(root: &Path, mut tally: Tally) -> Result<bool> {
    let mut output = Output::Live;
    let first = measure(root, SUITES, &mut output)?;
    let second = load::beside(|| measure(root, SUITES, &mut output))?;
    for measured in [&first, &second] {
        if let Some(failure) = measured.failures().first() {
            bail!("nothing is recorded, because a measurement failed: {failure}");
        }
    }
    let before = List::read(root).unwrap_or_default();
    let list = List { environment: environment(), rows: record(&first, &second) };
    for line in changes(&before, &list) {
        println!("{line}");
    }
    list.write(root)?;
    // The number of rows is the number of tests of the stage.
    let failures = tell(&compare(&list, &first), &mut tally, &mut Output::kept());
    if let Some(failure) = failures.first() {
        bail!("the list does not agree with its own measurement: {failure}");
    }
    let mut expected = Expected::read(root)?;
    expected.update(STAGE, &tally);
    expected.write(root)?;
    println!("recorded {} rows in {PATH}", list.rows.len());
    Ok(true)
}

/// The differences of two lists, one per line.
fn changes(before: &List, after: &List) -> Vec<String> {
    let mut lines = Vec::new();
    for (row, count) in &after.rows {
        match before.rows.get(row) {
            None => lines.push(format!("new: {row} is {count}")),
            Some(old) if old.to_string() != count.to_string() => {
                lines.push(format!("changed: {row} is {count}, was {old}"));
            }
            Some(_) => {}
        }
    }
    let gone = before.rows.keys().filter(|row| !after.rows.contains_key(row));
    lines.extend(gone.map(|row| format!("gone: {row}")));
    let varying = after.rows.iter().filter(|(_, count)| matches!(count, Count::Varying(..)));
    lines.extend(varying.map(|(row, count)| format!("not compared: {row} {count}")));
    lines
}

/// The tools and the machine that counts depend on.
fn environment() -> BTreeMap<String, String> {
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let first = |text: String| lines(text).into_iter().next();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().map(lines).and_then(|lines| {
        let line = lines.into_iter().find(|line| line.starts_with("model name"))?;
        line.split_once(':').map(|(_, model)| model.trim().to_owned())
    });
    let values = [
        ("rustc", printed("rustc", &["-V"]).and_then(first)),
        ("libc", printed("getconf", &["GNU_LIBC_VERSION"]).and_then(first)),
        ("valgrind", printed("valgrind", &["--version"]).and_then(first)),
        ("kernel", std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().and_then(first)),
        ("cpu", cpu),
    ];
    let value = |(name, value): (&str, Option<String>)| {
        (name.to_owned(), value.unwrap_or_else(|| "none".to_owned()))
    };
    values.map(value).into()
}

fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first of these values that differs from the recorded one, as a sentence.
fn difference(
    recorded: &BTreeMap<String, String>,
    here: &BTreeMap<String, String>,
    names: &[&str],
) -> Option<String> {
    let value = |of: &BTreeMap<String, String>, name: &str| of.get(name).cloned();
    names.iter().find_map(|name| {
        let (then, now) = (value(recorded, name)?, value(here, name).unwrap_or_default());
        let text = format!(
            "the counts in {PATH} were recorded with {name} `{then}`, here it is `{now}`; record \
             them again with `{RECORD}`"
        );
        (then != now).then_some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::list::tests::row;
    use super::*;

    fn named(values: &[(&str, &str)]) -> BTreeMap<String, String> {
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn another_compiler_is_a_reason_to_skip_and_another_kernel_is_not() {
        let recorded = named(&[("rustc", "rustc 1.95.0"), ("libc", "glibc 2.36"), ("kernel", "6")]);
        let mut here = recorded.clone();
        assert_eq!(difference(&recorded, &here, DECISIVE), None);
        here.insert("kernel".to_owned(), "7".to_owned());
        assert_eq!(difference(&recorded, &here, DECISIVE), None);
        here.insert("rustc".to_owned(), "rustc 1.96.0".to_owned());
        let reason = "the counts in .ci/expected-counts were recorded with rustc `rustc 1.95.0`, \
                      here it is `rustc 1.96.0`; record them again with `cargo xtask counts \
                      --record`";
        assert_eq!(difference(&recorded, &here, DECISIVE).as_deref(), Some(reason));
    }

    #[test]
    fn the_environment_names_the_compiler() {
        let environment = environment();
        assert!(environment["rustc"].starts_with("rustc 1."), "{environment:?}");
        assert!(DECISIVE.iter().all(|name| environment.contains_key(*name)));
    }

    #[test]
    fn each_row_is_a_test_and_a_failure_names_it() {
        let verdicts = [
            (row("a=1"), Verdict::Passed),
            (row("a=2"), Verdict::Better("hint".to_owned())),
            (row("a=3"), Verdict::Failed("over".to_owned())),
            (row("a=4"), Verdict::Skipped("no rings".to_owned())),
        ];
        let packages = Packages::read(&repository::root()).expect("the workspace is readable");
        let mut tally = Tally::new(std::sync::Arc::new(packages));
        let mut output = Output::kept();
        assert_eq!(tell(&verdicts.into(), &mut tally, &mut output), ["over"]);
        assert_eq!(tally.sum().to_string(), "2 passed, 1 failed, 1 skipped");
        let names: Vec<String> = tally.suites().keys().map(ToString::to_string).collect();
        assert_eq!(names, ["xtask counts .ci/expected-counts"]);
        assert_eq!(tally.ignored()[0].reason, "no rings");
        assert!(output.into_kept().contains("better: hint"));
    }

    #[test]
    fn changes_of_the_list_are_shown() {
        let list = |rows: &[(&str, Count)]| {
            let rows = rows.iter().map(|(params, count)| (row(params), *count));
            List { rows: rows.collect(), ..List::default() }
        };
        let before = list(&[("a=1", Count::Steady(1.0)), ("a=2", Count::Steady(2.0))]);
        let after = list(&[("a=1", Count::Steady(3.0)), ("a=3", Count::Varying(1.0, 2.0))]);
        let lines = changes(&before, &after);
        let begins: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(begins, ["changed:", "new:", "gone:", "not"]);
        assert!(changes(&after, &after).len() == 1, "the row that is not compared");
    }
}
