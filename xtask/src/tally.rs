//! Counts tests in the output of `cargo test`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::programs::Packages;

/// Replaces the package of a program whose package is unknown.
const NOBODY: &str = "-";

/// A test program. Two packages may have programs of the same name.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Suite {
    pub(crate) package: String,
    /// `windlass src/lib.rs`, `suite tests/suite.rs` or `windlass doc-tests`. Followed by ` on
    /// PART` if it runs in several parts of a stage.
    pub(crate) program: String,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.program)
    }
}

/// The results of one test program.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// The number of tests of the program, without filtered ones.
    pub(crate) fn total(self) -> u64 {
        self.passed + self.failed + self.ignored
    }

    /// Adds `other`.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The plain count that ends a run.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

/// A test that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ignored {
    /// Its program, as in [`Tally::suites`].
    pub(crate) suite: Suite,
    pub(crate) test: String,
    pub(crate) reason: String,
}

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Its program, as in [`Tally::suites`].
    pub(crate) suite: Suite,
    pub(crate) test: String,
    /// The first lines of its output, at most [`SAID_MAX`].
    pub(crate) said: Vec<String>,
}

/// The number of lines that are kept of what a failed test printed.
const SAID_MAX: usize = 8;

/// A part of a stage that cannot run here.
#[derive(Debug)]
pub(crate) struct LeftOut {
    pub(crate) part: String,
    pub(crate) reason: String,
}

/// The suffix of the names of programs that run in this part of a stage.
fn ending(part: &str) -> String {
    if part.is_empty() { String::new() } else { format!(" on {part}") }
}

/// Counts tests by program. It is fed line by line.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    packages: Arc<Packages>,
    suites: BTreeMap<Suite, Counts>,
    ignored: Vec<Ignored>,
    failed: Vec<Failed>,
    /// The index in `failed` of the test whose output follows.
    saying: Option<usize>,
    current: Suite,
    /// The path of the current program, if its package is not known yet.
    unknown: Option<String>,
    /// The start time of the current program.
    since: Option<Instant>,
    took: BTreeMap<Suite, Duration>,
    /// Whether the current program has printed a panic.
    panicked: bool,
    loud: BTreeSet<Suite>,
    /// The suffix of the programs' names: see [`begin_part`](Self::begin_part).
    part: String,
    left_out: Vec<LeftOut>,
    /// How many tests of the current program have reported that they skip themselves. Its harness
    /// counts them as passed.
    skipped: u64,
}

impl Tally {
    /// A tally of programs that belong to these packages.
    pub(crate) fn new(packages: Arc<Packages>) -> Self {
        Self { packages, ..Self::default() }
    }

    /// Begins a part of the stage. The names of the programs that follow end in ` on PART`, unless
    /// `part` is empty.
    pub(crate) fn begin_part(&mut self, part: &str) {
        self.part = ending(part);
    }

    /// Records a part that cannot run here. It counts as one ignored test.
    pub(crate) fn leave_out(&mut self, part: &str, reason: String) {
        self.left_out.push(LeftOut { part: part.to_owned(), reason });
    }

    /// The parts that cannot run here.
    pub(crate) fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Whether a program belongs to a part that cannot run here.
    pub(crate) fn is_left_out(&self, suite: &Suite) -> bool {
        self.left_out.iter().any(|left_out| suite.program.ends_with(&ending(&left_out.part)))
    }

    /// Reads one line of the output.
    pub(crate) fn feed(&mut self, line: &str) {
        let line = line.trim();
        if let Some(announced) = announced(line) {
            self.begin(&announced);
        } else if let Some(mut counts) = result_counts(line) {
            self.look_again();
            let skipped = counts.passed.min(std::mem::take(&mut self.skipped));
            counts.passed -= skipped;
            counts.ignored += skipped;
            self.suites.entry(self.current.clone()).or_default().add(counts);
            if std::mem::take(&mut self.panicked) && counts.failed == 0 {
                self.loud.insert(self.current.clone());
            }
            // Documentation tests print several results. The time of the next one begins here.
            if let Some(since) = self.since.replace(Instant::now()) {
                *self.took.entry(self.current.clone()).or_default() += since.elapsed();
            }
        } else if let Some(ignored) = ignored_test(line) {
            self.ignore(ignored);
        } else if let Some(skipped) = skipped_test(line) {
            self.skipped += 1;
            self.ignore(skipped);
        } else if let Some(test) = failed_test(line) {
            self.fail(test.to_owned());
        } else if let Some(test) = output_of(line) {
            self.saying = self.index_of_failed(test);
        } else {
            if line.starts_with("thread '") && line.contains(" panicked at ") {
                self.panicked = true;
            }
            self.say(line);
        }
    }

    fn begin(&mut self, announced: &Announced) {
        let (package, program) = match announced {
            Announced::Program { name, path } => (self.packages.of_program(path), name),
            Announced::Documentation { name, library } => (self.packages.of_library(library), name),
        };
        self.unknown = match announced {
            Announced::Program { path, .. } if package.is_none() => Some((*path).to_owned()),
            _ => None,
        };
        let package = package.unwrap_or(NOBODY).to_owned();
        self.current = Suite { package, program: format!("{program}{}", self.part) };
        self.skipped = 0;
        self.panicked = false;
        self.since = Some(Instant::now());
    }

    /// Finds the package of a program that was announced before its compiler had listed its
    /// sources. Miri compiles a program after the announcement.
    fn look_again(&mut self) {
        if let Some(path) = self.unknown.take() {
            match self.packages.of_program(&path) {
                Some(package) => self.current.package = package.to_owned(),
                None => self.unknown = Some(path),
            }
        }
    }

    fn ignore(&mut self, (test, reason): (String, String)) {
        self.look_again();
        self.ignored.push(Ignored { suite: self.current.clone(), test, reason });
    }

    fn fail(&mut self, test: String) {
        self.look_again();
        self.failed.push(Failed { suite: self.current.clone(), test, said: Vec::new() });
    }

    fn index_of_failed(&self, test: &str) -> Option<usize> {
        self.failed.iter().rposition(|failed| failed.suite == self.current && failed.test == test)
    }

    /// Keeps a line of a failed test's output, which ends at the list of all failures.
    fn say(&mut self, line: &str) {
        if line == "failures:" {
            self.saying = None;
        } else if let Some(index) = self.saying
            && !line.is_empty()
            && let said = &mut self.failed[index].said
            && said.len() < SAID_MAX
        {
            said.push(line.to_owned());
        }
    }

    /// The test programs that ran.
    pub(crate) fn suites(&self) -> &BTreeMap<Suite, Counts> {
        &self.suites
    }

    /// The run time of each program.
    pub(crate) fn took(&self) -> &BTreeMap<Suite, Duration> {
        &self.took
    }

    /// The programs that have printed a panic although all of their tests passed. Readers take such
    /// a panic for a failure.
    pub(crate) fn loud(&self) -> &BTreeSet<Suite> {
        &self.loud
    }

    /// The tests that did not run.
    pub(crate) fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// The tests that failed.
    pub(crate) fn failed(&self) -> &[Failed] {
        &self.failed
    }

    /// The counts of all programs together.
    pub(crate) fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.suites.values() {
            sum.add(*counts);
        }
        sum.ignored += u64::try_from(self.left_out.len()).unwrap_or(u64::MAX);
        sum
    }
}

/// Cargo's announcement of the tests that follow.
#[derive(Debug, PartialEq, Eq)]
enum Announced {
    Program { name: String, path: String },
    Documentation { name: String, library: String },
}

/// Cargo announces a test program by `Running unittests src/lib.rs
/// (target/debug/deps/windlass-0123abcd)` or `Doc-tests windlass`. The name consists of the parts
/// that are the same in every build.
fn announced(line: &str) -> Option<Announced> {
    if let Some(library) = line.strip_prefix("Doc-tests ") {
        return Some(Announced::Documentation {
            name: format!("{library} doc-tests"),
            library: library.to_owned(),
        });
    }
    let (source, path) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let source = source.strip_prefix("unittests ").unwrap_or(source);
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.rsplit_once('-').map_or(file, |(stem, _hash)| stem);
    Some(Announced::Program { name: format!("{stem} {source}"), path: path.to_owned() })
}

/// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s`
fn result_counts(line: &str) -> Option<Counts> {
    let (_verdict, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let Some((number, label)) = part.trim().split_once(' ') else {
            continue;
        };
        let Ok(number) = number.parse::<u64>() else {
            continue;
        };
        match label {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.ignored = number,
            _ => {}
        }
    }
    Some(counts)
}

/// The name in `test name ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(test.trim_end())
}

/// The name in `---- name stdout ----`, which comes before the output of a failed test, or in
/// `---- name ----`, as libtest-mimic prints it.
fn output_of(line: &str) -> Option<&str> {
    let test = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(test.strip_suffix(" stdout").unwrap_or(test))
}

/// The name and the reason in `test name ... ignored, reason`.
fn ignored_test(line: &str) -> Option<(String, String)> {
    let (test, state) = line.strip_prefix("test ")?.rsplit_once(" ... ignored")?;
    let reason = state.trim_start_matches(',').trim();
    let reason = if reason.is_empty() { "no reason given" } else { reason };
    Some((test.to_owned(), reason.to_owned()))
}

/// The name and the reason in `skipped here: name: reason`. A test that cannot run here prints it,
/// and its harness counts the test as passed. It can be anywhere in a line, because another test
/// may be printing.
fn skipped_test(line: &str) -> Option<(String, String)> {
    let (_, said) = line.split_once("skipped here: ")?;
    // Names of tests contain pairs of colons, and no blank.
    let (test, reason) = said.split_once(": ")?;
    Some((test.to_owned(), reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling windlass v0.1.0
     Running unittests src/lib.rs (target/debug/deps/windlass-51ab0c94ee3fa2d1)

running 3 tests
test cell::tests::a ... ok
test cell::tests::b ... ignored, Miri knows no signalfd
test cell::tests::c ... FAILED

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/suite.rs (target/debug/deps/suite-0011223344556677)
test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.20s
   Doc-tests windlass
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.30s
all doctests ran in 0.5s
test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.30s
";

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.feed(line));
        tally
    }

    fn names(tally: &Tally) -> Vec<&str> {
        tally.suites().keys().map(|suite| &*suite.program).collect()
    }

    fn suite(program: &str) -> Suite {
        Suite { package: NOBODY.to_owned(), program: program.to_owned() }
    }

    #[test]
    fn programs_are_counted_apart_and_summed() {
        let tally = tally(OUTPUT);
        assert_eq!(
            names(&tally),
            ["suite tests/suite.rs", "windlass doc-tests", "windlass src/lib.rs"]
        );
        assert_eq!(tally.suites()[&suite("windlass doc-tests")].passed, 6);
        assert!(tally.took().keys().eq(tally.suites().keys()), "how long each took is known");
        assert_eq!(tally.sum().to_string(), "47 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn programs_of_one_name_belong_to_two_packages() {
        let packages =
            Packages::read(&crate::repository::root()).expect("the workspace is readable");
        let mut tally = Tally::new(Arc::new(packages));
        for package in ["conformance", "xtask", "nobody's"] {
            tally.feed(&format!("Running a.rs ({package}/a)"));
            tally.feed("test result: ok. 1 passed; 0 failed");
        }
        tally.feed("Doc-tests windlass_flow");
        tally.feed("test result: ok. 1 passed; 0 failed");
        let names: Vec<String> = tally.suites().keys().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "- a a.rs",
                "conformance a a.rs",
                "windlass-flow windlass_flow doc-tests",
                "xtask a a.rs"
            ]
        );
    }

    #[test]
    fn ignored_tests_come_with_their_reasons() {
        let tally = tally(OUTPUT);
        assert_eq!(
            tally.ignored(),
            [Ignored {
                suite: suite("windlass src/lib.rs"),
                test: "cell::tests::b".to_owned(),
                reason: "Miri knows no signalfd".to_owned(),
            }]
        );
    }

    #[test]
    fn failed_tests_come_with_what_they_printed() {
        let many: String = (0..20).map(|line| format!("line {line}\n")).collect();
        let output = format!(
            "\
     Running tests/a.rs (target/debug/deps/a-0011223344556677)
test x::y          ... FAILED
test z ... FAILED
test silent ... FAILED

failures:

---- x::y stdout ----

thread 'x::y' (7) panicked at tests/a.rs:1:2:
not in time
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- z ----
{many}

failures:
    x::y
    z

test result: FAILED. 0 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out
"
        );
        let tally = tally(&output);
        let failed: Vec<_> =
            tally.failed().iter().map(|failed| (&*failed.test, &*failed.said)).collect();
        let [(y, said), (z, most), (silent, nothing)] = &failed[..] else { panic!("{failed:?}") };
        assert_eq!((*y, *z, *silent), ("x::y", "z", "silent"));
        assert_eq!(said[..2], ["thread 'x::y' (7) panicked at tests/a.rs:1:2:", "not in time"]);
        assert_eq!((most.len(), &*most[0]), (SAID_MAX, "line 0"));
        assert!(nothing.is_empty());
        assert_eq!(tally.failed()[0].suite, suite("a tests/a.rs"));
    }

    #[test]
    fn an_ignored_test_without_a_reason_says_so() {
        let (_, reason) = ignored_test("test a ... ignored").expect("it is an ignored test");
        assert_eq!(reason, "no reason given");
    }

    #[test]
    fn a_test_that_skips_itself_counts_as_ignored() {
        let output = "\
     Running tests/suite/main.rs (target/debug/deps/suite-0011223344556677)
test a::epoll::x ... ok
test a::poll::x ... skipped here: suite::a::uring::x: io_uring is forbidden here: EPERM (os error 1)
ok
test a::uring::x ... ok
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
     Running tests/b.rs (target/debug/deps/b-0011223344556677)
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
        let tally = tally(output);
        assert_eq!(
            tally.suites()[&suite("suite tests/suite/main.rs")],
            Counts { passed: 2, failed: 0, ignored: 1 }
        );
        assert_eq!(
            tally.suites()[&suite("b tests/b.rs")],
            Counts { passed: 2, failed: 0, ignored: 0 }
        );
        let [ignored] = tally.ignored() else { panic!("{:?}", tally.ignored()) };
        assert_eq!(ignored.suite, suite("suite tests/suite/main.rs"));
        assert_eq!(ignored.test, "suite::a::uring::x");
        assert_eq!(ignored.reason, "io_uring is forbidden here: EPERM (os error 1)");
    }

    #[test]
    fn a_program_that_passes_and_shows_panics_is_found() {
        let shown = "thread '<unnamed>' (28588) panicked at tests/a.rs:135:9:\nasked for";
        let program = |name: &str, shown: &str, counts: &str| {
            format!("Running tests/{name}.rs (x/{name}-1)\n{shown}\ntest result: ok. {counts}\n")
        };
        let output = program("quiet", "it panicked at noon", "1 passed; 0 failed")
            + &program("loud", shown, "1 passed; 0 failed")
            + &program("broken", shown, "1 passed; 1 failed")
            + &program("last", "", "1 passed; 0 failed");
        assert!(tally(&output).loud().iter().eq([&suite("loud tests/loud.rs")]));
    }

    #[test]
    fn a_programs_name_ends_in_its_part() {
        let mut tally = Tally::default();
        for part in ["", "epoll"] {
            tally.begin_part(part);
            tally.feed("Running tests/b.rs (target/debug/deps/b-0011223344556677)");
            tally.feed("test result: ok. 2 passed; 0 failed; 0 ignored");
        }
        tally.leave_out("uring", "forbidden".to_owned());
        assert_eq!(names(&tally), ["b tests/b.rs", "b tests/b.rs on epoll"]);
        assert_eq!(tally.sum().to_string(), "4 passed, 0 failed, 1 skipped");
        let is_left_out = |program| tally.is_left_out(&suite(program));
        assert!(is_left_out("b tests/b.rs on uring") && !is_left_out("b tests/b.rs on epoll"));
    }

    #[test]
    fn other_lines_count_nothing() {
        let tally = tally("test a ... ok\nRunning wild\nresult: 5 passed\n");
        assert_eq!(tally.sum(), Counts::default());
    }
}
