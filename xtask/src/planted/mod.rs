//! `cargo xtask planted`, and the stage `planted` of `cargo xtask ci --full`: faults that are
//! planted one at a time, and the number of seeds after which the simulator finds each.
//!
//! 1. A fault is a patch in `tests/sim/faults` of a crate. [`Fault`] says what stands above it.
//! 2. Patches are applied to a copy of the tree, which has a target directory of its own.
//! 3. The test that the patch names runs with [`SEEDS_MAX`] seeds, and reports the failing one. If
//!    the fault ends the process instead, the number of seeds is searched for.
//! 4. The table in [`DOCUMENT`] has the numbers of the last `--record`. They depend on the code, so
//!    a fault may take more seeds, but not [`LOOSENESS`] times as many.

mod fault;
mod tree;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::fault::Fault;
use self::tree::Tree;
use crate::ci::Expected;
use crate::output::Output;
use crate::programs::Packages;
use crate::repository;
use crate::stage::{Report, Setting, Stage};
use crate::tally::Tally;

/// The name of the stage.
pub(crate) const STAGE: &str = "planted";

/// The announcement of the faults, by which the tally knows their program.
const ANNOUNCEMENT: &str = "     Running planted faults (xtask/planted)";

/// The time limit of one command. The first one compiles what the tests depend on.
const LIMIT: Duration = Duration::from_secs(4 * 60);

/// A fault that needs more seeds is not found.
const SEEDS_MAX: u64 = 10_000;

/// The factor by which the number of seeds may grow, from at least [`SEEDS_MIN`].
const LOOSENESS: u64 = 10;
const SEEDS_MIN: u64 = 100;

/// The document with the table, and the marks around it.
const DOCUMENT: &str = "docs/simulator.md";
const BEGIN: &str = "<!-- planted -->\n\n";
const END: &str = "\n<!-- /planted -->";

/// Writes the table.
const REPAIR: &str = "`cargo xtask planted --record` writes it";

/// The stage.
pub(crate) fn stage(root: &Path) -> Stage {
    of(root, Vec::new(), false)
}

fn of(root: &Path, only: Vec<String>, records: bool) -> Stage {
    let root = root.to_path_buf();
    Stage::counted(STAGE, move |tally, output| check(&root, &only, records, tally, output))
}

/// Plants all faults, or only those with these names, and writes their rows of the table if
/// `records`. Returns whether all were found.
///
/// # Errors
///
/// If there is no such fault.
pub(crate) fn run(only: Vec<String>, records: bool) -> Result<bool> {
    let root = repository::root();
    let faults = fault::all(&root)?;
    if let Some(name) = only.iter().find(|name| faults.iter().all(|fault| fault.name() != **name)) {
        bail!("there is no patch {name}.patch in tests/sim/faults of a crate");
    }
    let packages = Arc::new(Packages::read(&root)?);
    let mut report = Report::new(Setting { root: root.clone(), packages, ..Setting::default() });
    report.run(of(&root, only, records));
    report.print_summary();
    println!("{}", report.counts());
    Ok(report.succeeded())
}

/// What is wrong with patches and the table, without planting: for tidy.
///
/// # Errors
///
/// If files cannot be read, or git cannot be started.
pub(crate) fn violations(root: &Path) -> Result<Vec<(String, String)>> {
    let mut wrong = Vec::new();
    let faults = fault::all(root)?;
    for fault in &faults {
        if let Some(reason) = fault.apply(root, &["--check"])? {
            wrong.push((fault.path.clone(), format!("does not apply any more: {reason}")));
        }
    }
    let text = std::fs::read_to_string(root.join(DOCUMENT))?;
    let rows = rows(part(&text)?);
    let names: Vec<[&str; 3]> = faults.iter().map(cells).collect();
    if !rows.iter().map(|(cells, _)| *cells).eq(names) {
        wrong.push((DOCUMENT.to_owned(), format!("has not the planted faults; {REPAIR}")));
    }
    let expected = Expected::read(root)?.least(STAGE);
    if expected != faults.len() as u64 {
        let reason = format!("expects {expected} planted faults of {}", faults.len());
        wrong.push((".ci/expected-suites".to_owned(), reason));
    }
    Ok(wrong)
}

/// Plants the faults. Returns the failures.
fn check(
    root: &Path,
    only: &[String],
    records: bool,
    tally: &mut Tally,
    output: &mut Output,
) -> Result<Vec<String>> {
    let say = |line: &str, tally: &mut Tally, output: &mut Output| {
        output.say(&format!("{line}\n"));
        tally.feed(line);
    };
    say(ANNOUNCEMENT, tally, output);
    let text = std::fs::read_to_string(root.join(DOCUMENT))?;
    let known = rows(part(&text)?);
    let known_of = |fault| known.iter().find(|(row, _)| *row == cells(fault)).map(|row| row.1);
    let tree = Tree::new(root)?;
    let faults = fault::all(root)?;
    let is_wanted = |fault: &&Fault| only.is_empty() || only.iter().any(|it| it == fault.name());
    let (mut table, mut failures) = (Vec::new(), Vec::new());
    for fault in faults.iter().filter(is_wanted) {
        let found = tree.with(fault, |tree| seeds_until(|seeds| observe(root, tree, fault, seeds)));
        let outcome = found.and_then(|found| found).and_then(|seeds| {
            table.push((fault, seeds));
            match known_of(fault).filter(|_| !records) {
                Some(before) if seeds > LOOSENESS * before.max(SEEDS_MIN) => {
                    bail!("it takes {seeds} seeds, and has taken {before}: what sees less?")
                }
                _ => Ok(seeds),
            }
        });
        let (word, text) = match outcome {
            Ok(seeds) => ("ok", format!("{seeds} seeds")),
            Err(error) => ("FAILED", format!("{error:#}")),
        };
        say(&format!("test {} ... {word}", fault.name()), tally, output);
        output.say(&format!("    {}: {text}\n", fault.fault));
        if word != "ok" {
            failures.push(format!("{}: {text}", fault.path));
        }
    }
    let failed = failures.len();
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let passed = table.len().saturating_sub(failed);
    say(
        &format!("test result: {word}. {passed} passed; {failed} failed; 0 ignored"),
        tally,
        output,
    );
    let printed = print(&table);
    output.say(&printed);
    if records && failures.is_empty() {
        // The others keep their rows.
        let measured = |fault| table.iter().find(|(other, _)| *other == fault).map(|row| row.1);
        let row = |fault| Some((fault, measured(fault).or_else(|| known_of(fault))?));
        let whole = print(&faults.iter().filter_map(row).collect::<Vec<_>>());
        std::fs::write(root.join(DOCUMENT), text.replace(part(&text)?, &whole))?;
    }
    Ok(failures)
}

/// What one run of a test has shown.
#[derive(Debug, PartialEq, Eq)]
enum Observed {
    /// No failure.
    Nothing,
    /// The number of the first seed that fails.
    Seed(u64),
    /// The process has ended.
    Crash,
    /// The test did not run.
    Broken(String),
}

fn observe(root: &Path, tree: &Tree, fault: &Fault, seeds: u64) -> Observed {
    let mut kept = Output::kept();
    let ended = tree.test(fault, seeds).run(root, Some(LIMIT), &mut Tally::default(), &mut kept);
    read(&kept.into_kept(), &fault.program, ended.err())
}

/// Reads the output of a test of this program, and the reason why the command did not succeed.
fn read(text: &str, program: &str, failure: Option<String>) -> Observed {
    let seed = text.lines().find_map(|line| {
        let (seed, _) = line.trim_start().strip_prefix("seed ")?.split_once(" fails: ")?;
        seed.parse().ok()
    });
    // A compiler may end so too.
    let has_begun = text.lines().any(|line| {
        let path = line.trim_start().strip_prefix("Running tests/");
        path.is_some_and(|path| path.split(['/', '.']).next() == Some(program))
    });
    let has_crashed = text.contains("(signal: ") || text.contains("memory allocation of");
    match (seed, failure) {
        (Some(seed), Some(_)) => Observed::Seed(seed),
        (None, Some(_)) if has_begun && has_crashed => Observed::Crash,
        (None, None) if text.contains("test result: ok. 1 passed") => Observed::Nothing,
        (_, None) => Observed::Broken("the test does not exist".to_owned()),
        (_, Some(failure)) => {
            let error = text.lines().find(|line| line.starts_with("error"));
            Observed::Broken(format!("{failure}: {}", error.unwrap_or_default()))
        }
    }
}

/// The number of seeds until a fault is found.
///
/// # Errors
///
/// If it is not found, or the test does not run.
fn seeds_until(mut run: impl FnMut(u64) -> Observed) -> Result<u64> {
    let (mut without, mut with) = (0, SEEDS_MAX);
    let mut seeds = with;
    loop {
        match run(seeds) {
            Observed::Seed(seed) => return Ok(seed + 1),
            Observed::Broken(reason) => bail!(reason),
            Observed::Nothing if seeds == SEEDS_MAX => bail!("{seeds} seeds do not find it"),
            Observed::Nothing => without = seeds,
            Observed::Crash => with = seeds,
        }
        if with == without + 1 {
            return Ok(with);
        }
        // Few seeds take little time, so it begins with one.
        seeds = (without + (with - without) / 2).min((without * 2).max(1));
    }
}

/// The cells of a fault's row, without the number of seeds.
fn cells(fault: &Fault) -> [&str; 3] {
    [&fault.fault, &fault.kind, &fault.test]
}

fn print(table: &[(&Fault, u64)]) -> String {
    let mut text = "| fault | kind | found by | seeds |\n|---|---|---|--:|\n".to_owned();
    for (fault, seeds) in table {
        let [fault, kind, test] = cells(fault);
        let _ = writeln!(text, "| {fault} | {kind} | `{test}` | {seeds} |");
    }
    text
}

/// The table of the document.
fn part(text: &str) -> Result<&str> {
    let part = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    part.map(|(part, _)| part).with_context(|| format!("{DOCUMENT} has no table of planted faults"))
}

fn rows(table: &str) -> Vec<([&str; 3], u64)> {
    let row = |line| {
        let cells: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        let ["", fault, kind, test, seeds, ""] = cells[..] else { return None };
        let seeds = seeds.parse().ok()?;
        Some(([fault, kind, test.trim_matches('`')], seeds))
    };
    table.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_a_failing_seed_is_read() {
        let failed = || Some("`cargo test`: exit status: 101".to_owned());
        let report = "thread 'a' panicked at b.rs:1:\nseed 17 fails: lost (c.rs:2)\n";
        let read = |text: &str, failure| read(text, "sim", failure);
        assert_eq!(read(report, failed()), Observed::Seed(17));
        let crash = "  process didn't exit successfully: `sim-1` (signal: 11, SIGSEGV)\n";
        for main in ["sim/main.rs", "sim.rs"] {
            let begun = format!("     Running tests/{main} (target/debug/deps/sim-1)\n");
            assert_eq!(read(&(begun + crash), failed()), Observed::Crash);
        }
        for before in ["", "     Running tests/other/main.rs (target/debug/deps/other-1)\n"] {
            let broken = read(&(before.to_owned() + crash), failed());
            assert!(matches!(broken, Observed::Broken(_)), "the compiler: {broken:?}");
        }
        let passed = |count| format!("test result: ok. {count} passed; 0 failed; 0 ignored\n");
        assert_eq!(read(&passed(1), None), Observed::Nothing);
        assert_eq!(read(&passed(0), None), Observed::Broken("the test does not exist".to_owned()));
        let Observed::Broken(reason) = read("error[E0425]: cannot find\n", failed()) else {
            panic!("it did not compile");
        };
        assert!(reason.contains("E0425") && reason.contains("101"), "{reason}");
    }

    #[test]
    fn seeds_are_counted_until_a_fault_is_found() {
        assert_eq!(seeds_until(|_| Observed::Seed(0)).ok(), Some(1));
        assert!(seeds_until(|_| Observed::Nothing).is_err());
        assert!(seeds_until(|_| Observed::Broken(String::new())).is_err());
        for first in [1, 2, 3, 100, 9_999, SEEDS_MAX] {
            let mut runs = 0;
            let crash = |seeds| {
                runs += 1;
                if seeds >= first { Observed::Crash } else { Observed::Nothing }
            };
            assert_eq!(seeds_until(crash).ok(), Some(first));
            assert!(runs < 40, "{runs}");
        }
    }

    #[test]
    fn the_table_is_read_as_it_is_printed() {
        let fault = Fault {
            path: "crates/a/tests/sim/faults/early.patch".to_owned(),
            fault: "a timer fires early".to_owned(),
            kind: "early timer".to_owned(),
            package: "a".to_owned(),
            program: "sim".to_owned(),
            test: "time::early".to_owned(),
        };
        let printed = print(&[(&fault, 7)]);
        assert_eq!(rows(&printed), [(cells(&fault), 7)]);
        let document = format!("text\n\n{BEGIN}{printed}{END}\n");
        assert_eq!(part(&document).ok(), Some(&*printed));
        assert!(part(&printed).is_err());
    }
}
