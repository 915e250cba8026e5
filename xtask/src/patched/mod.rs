//! `cargo xtask patched`, and the stage `patched` of `cargo xtask ci`: crates of others that use
//! tungstenite, unchanged, with tungstenite and with ours in its place by `[patch.crates-io]`.
//!
//! Each crate runs its own tests of WebSockets, or a program of ours that makes an echo, a Close
//! and an error by it. What ran must be the same with both, and is a row of the table in
//! `docs/tungstenite-interface.md`. Everything is generated in `compat/patched` in the target
//! directory; the crates come from the registry.

mod list;
mod workspace;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use self::list::{Check, USERS, User};
use self::workspace::Workspace;
use crate::command::Cmd;
use crate::output::Output;
use crate::programs::Packages;
use crate::repository;
use crate::stage::{Report, Setting, Stage};
use crate::tally::Tally;

/// The name of the stage.
pub(crate) const STAGE: &str = "patched";

/// The announcement of the crates, by which the tally knows their program. They count as tests.
const ANNOUNCEMENT: &str = "     Running compat/patch (xtask/patched)";

/// The part of the stage that the registry is needed for.
const PART: &str = "the registry";

/// Where everything is, in the target directory.
const FOLDER: &str = "compat/patched";

/// The page with the table.
const PAGE: &str = "docs/tungstenite-interface.md";

/// The head of the table.
const HEAD: &str = "| crate | tungstenite | with it | with ours |\n|---|---|---|---|\n";

/// The time limit of one command.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// The stage.
pub(crate) fn stage(root: &Path) -> Stage {
    of(root, Vec::new())
}

fn of(root: &Path, only: Vec<String>) -> Stage {
    let root = root.to_path_buf();
    Stage::counted(STAGE, move |tally, output| check(&root, &only, tally, output))
}

/// Runs the stage alone, or only the crates with these names. Returns whether everything passed.
///
/// # Errors
///
/// If there is no such crate, or the workspace cannot be read.
pub(crate) fn run(only: Vec<String>) -> Result<bool> {
    if let Some(name) = only.iter().find(|name| USERS.iter().all(|user| user.name != **name)) {
        bail!("there is no crate {name} in xtask/src/patched/list.rs");
    }
    let root = repository::root();
    let packages = Arc::new(Packages::read(&root)?);
    let mut report = Report::new(Setting { root: root.clone(), packages, ..Setting::default() });
    report.run(of(&root, only));
    report.print_summary();
    println!("{}", report.counts());
    Ok(report.succeeded())
}

/// Runs the crates. Returns the failures.
fn check(
    root: &Path,
    only: &[String],
    tally: &mut Tally,
    output: &mut Output,
) -> Result<Vec<String>> {
    tally.begin_part(PART);
    let folder = repository::target(root).join(FOLDER);
    let [theirs, ours] = match workspace::write(root, &folder)? {
        Ok(workspaces) => workspaces,
        Err(reason) => {
            tally.leave_out(PART, reason);
            return Ok(Vec::new());
        }
    };
    theirs.check_sources(false)?;
    ours.check_sources(true)?;
    let missing = workspace::missing_features(&theirs, &ours);
    ensure!(missing.is_empty(), "our packages lack the features {missing:?}");

    let say = |line: &str, tally: &mut Tally, output: &mut Output| {
        output.say(&format!("{line}\n"));
        tally.feed(line);
    };
    say(ANNOUNCEMENT, tally, output);
    let wanted = |user: &&User| only.is_empty() || only.iter().any(|name| name == user.name);
    let page = std::fs::read_to_string(root.join(PAGE))?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut passed = 0;
    for user in USERS.iter().filter(wanted) {
        let with_theirs = theirs.observe(root, user, true, output);
        // A test that fails only now and then with ours is a failure.
        let with_ours = ours.observe(root, user, with_theirs.is_repeated, output);
        let observed = [with_theirs, with_ours];
        let mut different = differences(&observed);
        let row = row(user, &observed);
        if !has_row(&page, &row) {
            different.push(format!("{PAGE} has not the row {row}"));
        }
        passed += usize::from(different.is_empty());
        let result = if different.is_empty() { "ok" } else { "FAILED" };
        say(&format!("test {} ... {result}", user.label()), tally, output);
        for line in different {
            output.say(&format!("    {line}\n"));
            failures.push(format!("{}: {line}", user.label()));
        }
        rows.push(row);
    }
    let failed = rows.len() - passed;
    output.say(&format!("{HEAD}{}\n", rows.join("\n")));
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let result = format!("test result: {word}. {passed} passed; {failed} failed; 0 ignored");
    say(&result, tally, output);
    Ok(failures)
}

/// The results with a crate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Observed {
    is_success: bool,
    /// The result of each test, or each line that the program printed.
    seen: BTreeMap<String, String>,
    /// Whether its tests ran twice.
    is_repeated: bool,
}

impl Observed {
    /// Without a result it is no success.
    fn new(is_success: bool, seen: BTreeMap<String, String>) -> Self {
        Self { is_success: is_success && !seen.is_empty(), seen, is_repeated: false }
    }
}

impl Workspace {
    /// Builds a crate, and runs its tests or the program.
    fn observe(&self, root: &Path, user: &User, may_repeat: bool, output: &mut Output) -> Observed {
        let mut cargo = |arguments: &[&str], place: &str, rest: &[&str]| {
            let manifest = self.folder.join(place).join(user.label()).join("Cargo.toml");
            let command = Cmd::cargo(arguments.iter().copied())
                .args(["--manifest-path", &*manifest.to_string_lossy()])
                .args(rest.iter().copied())
                .directory(&self.folder)
                // Packages of the registry are the same in both workspaces, and are compiled once.
                .target(&format!("{FOLDER}/target"))
                // Copies are members, whose warnings cargo would show.
                .env("RUSTFLAGS", "--cap-lints=allow");
            let mut kept = Output::kept();
            let ended = command.run(root, Some(LIMIT), &mut Tally::default(), &mut kept);
            let text = kept.into_kept();
            output.say(&text);
            // The first line is the command.
            (ended.is_ok(), text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
        };
        let (is_built, _) = cargo(&["build", "--quiet"], "programs", &[]);
        if !is_built {
            return Observed::default();
        }
        let Check::Tests(options, names) = user.check else {
            let (is_success, lines) = cargo(&["run", "--quiet"], "programs", &[]);
            let lines = lines.into_iter().enumerate();
            let seen = lines.map(|(at, line)| (format!("line {:2}", at + 1), line)).collect();
            return Observed::new(is_success, seen);
        };
        let arguments = [options, &["--", names]].concat();
        let test = || cargo(&["test", "--no-fail-fast"], "packages", &arguments);
        let observed = test_twice(may_repeat, test);
        if observed.is_repeated {
            output.say(&format!("repeated: {} in {}\n", user.label(), self.folder.display()));
        }
        observed
    }
}

/// The results of tests. They may depend on time, or on a port that is free, and run once more if
/// they fail.
fn test_twice(may_repeat: bool, mut test: impl FnMut() -> (bool, Vec<String>)) -> Observed {
    let (mut is_success, mut lines) = test();
    let is_repeated = may_repeat && !is_success;
    if is_repeated {
        (is_success, lines) = test();
    }
    Observed { is_repeated, ..Observed::new(is_success, results(&lines)) }
}

/// The result of each test, by its name. Two programs may have tests of one name.
fn results(lines: &[String]) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut program = 0;
    for line in lines {
        if line.starts_with("running ") {
            program += 1;
        }
        let test = line.strip_prefix("test ").and_then(|test| test.split_once(" ... "));
        if let Some((test, result)) = test {
            seen.insert(format!("{program} {test}"), result.trim().to_owned());
        }
    }
    seen
}

/// Failures, and results that only one of them has.
fn differences([theirs, ours]: &[Observed; 2]) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, one, other) in [("tungstenite", theirs, ours), ("windlass", ours, theirs)] {
        if !one.is_success {
            lines.push(format!("fails with {name}"));
        }
        let only = one.seen.iter().filter(|(key, value)| other.seen.get(*key) != Some(value));
        lines.extend(only.map(|(key, value)| format!("only with {name}: {key}: {value}")));
    }
    lines
}

/// The row of the table.
fn row(user: &User, observed: &[Observed; 2]) -> String {
    let [theirs, ours] = observed.each_ref().map(|observed| cell(user, observed));
    format!("| {} {} | {} | {theirs} | {ours} |", user.name, user.version, user.asks)
}

/// Whether this is one of the rows of the page.
fn has_row(page: &str, row: &str) -> bool {
    page.lines().any(|line| line == row)
}

fn cell(user: &User, Observed { is_success, seen, .. }: &Observed) -> String {
    match (is_success, &user.check) {
        (false, _) => "fails".to_owned(),
        (true, Check::Tests(..)) => {
            let passed = seen.values().filter(|result| **result == "ok").count();
            format!("its tests: {passed} pass")
        }
        (true, Check::Program(..)) => format!("our program: {} results", seen.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(seen: &[(&str, &str)]) -> Observed {
        let seen = seen.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Observed { is_success: true, seen: seen.collect(), is_repeated: false }
    }

    #[test]
    fn a_success_has_a_result() {
        assert!(!Observed::new(true, BTreeMap::new()).is_success);
        let seen = || observed(&[("line 1", "echo")]).seen;
        assert!(Observed::new(true, seen()).is_success);
        assert!(!Observed::new(false, seen()).is_success);
    }

    #[test]
    fn tests_that_fail_run_once_more_if_they_may() {
        let run = |may_repeat, results: [bool; 2]| {
            let mut results = results.into_iter();
            let test = || {
                let is_success = results.next().expect("two at most");
                (is_success, vec!["running 1 test".to_owned(), "test a ... ok".to_owned()])
            };
            let observed = test_twice(may_repeat, test);
            (observed.is_success, observed.is_repeated)
        };
        assert_eq!(run(true, [true, false]), (true, false));
        assert_eq!(run(true, [false, true]), (true, true));
        assert_eq!(run(true, [false, false]), (false, true));
        assert_eq!(run(false, [false, true]), (false, false));
    }

    #[test]
    fn results_of_two_programs_are_kept_apart() {
        let lines = ["running 1 test", "test a ... ok", "running 1 test", "test a ... FAILED"];
        let expected = [("1 a", "ok"), ("2 a", "FAILED")];
        assert_eq!(results(&lines.map(str::to_owned)), observed(&expected).seen);
    }

    #[test]
    fn each_difference_is_a_failure() {
        let same = || observed(&[("a", "1")]);
        assert!(differences(&[same(), same()]).is_empty());
        let failed = Observed { is_success: false, ..same() };
        assert_eq!(differences(&[same(), failed]), ["fails with windlass"]);
        let expected = ["only with tungstenite: b: 2", "only with windlass: b: 3"];
        let differ = [observed(&[("a", "1"), ("b", "2")]), observed(&[("a", "1"), ("b", "3")])];
        assert_eq!(differences(&differ), expected);
    }

    #[test]
    fn ten_crates_run_in_both_versions() {
        let mut names: Vec<&str> = USERS.iter().map(|user| user.name).collect();
        names.dedup();
        assert!(names.len() >= 10, "{names:?}");
        let versions = ["0.29", "0.30"];
        assert!(versions.iter().all(|asks| USERS.iter().any(|user| user.asks == *asks)));
    }

    #[test]
    fn the_page_has_a_row_for_each_crate_and_no_other() {
        let page = std::fs::read_to_string(repository::root().join(PAGE)).expect("it is there");
        let (_, table) = page.split_once(HEAD).expect("it has the table");
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), USERS.len());
        for (user, documented) in USERS.iter().zip(rows) {
            let start = format!("| {} {} | {} | ", user.name, user.version, user.asks);
            assert!(documented.starts_with(&start), "{documented}");
            let cells: Vec<&str> = documented.split(" | ").collect();
            assert_eq!(format!("{} |", cells[2]), cells[3], "{documented}");
        }
    }

    #[test]
    fn a_row_is_one_of_the_page_with_all_its_cells() {
        let user = &USERS[0];
        let row = |results: &[(&str, &str)]| super::row(user, &[observed(results), observed(&[])]);
        let page = format!("{HEAD}{}\n", row(&[("a", "ok")]));
        assert!(has_row(&page, &row(&[("a", "ok")])));
        assert!(!has_row(&page, &row(&[("a", "ok"), ("b", "ok")])));
    }
}
