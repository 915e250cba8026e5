//! Counts tests by reading what `cargo test` prints.

use std::collections::BTreeMap;
use std::fmt;

/// What one test program reported.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// How many tests the program has, filtered ones left out.
    pub(crate) fn total(self) -> u64 {
        self.passed + self.failed + self.ignored
    }

    /// Adds `other` to these.
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
    pub(crate) test: String,
    pub(crate) reason: String,
}

/// Counts by test program, fed line by line.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    suites: BTreeMap<String, Counts>,
    ignored: Vec<Ignored>,
    current: String,
}

impl Tally {
    /// Takes one line of the output.
    pub(crate) fn feed(&mut self, line: &str) {
        let line = line.trim();
        if let Some(suite) = suite_name(line) {
            self.current = suite;
        } else if let Some(counts) = result_counts(line) {
            self.suites.entry(self.current.clone()).or_default().add(counts);
        } else if let Some(ignored) = ignored_test(line) {
            self.ignored.push(Ignored { test: format!("{}: {}", self.current, ignored.test), reason: ignored.reason });
        }
    }

    /// The test programs that ran, by name: `windlass src/lib.rs`, `suite tests/suite.rs`,
    /// `windlass doc-tests`.
    pub(crate) fn suites(&self) -> &BTreeMap<String, Counts> {
        &self.suites
    }

    /// The tests that did not run.
    pub(crate) fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// All programs together.
    pub(crate) fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.suites.values() {
            sum.add(*counts);
        }
        sum
    }
}

/// Cargo announces a test program by `Running unittests src/lib.rs (target/debug/deps/windlass-0123abcd)` or
/// `Doc-tests windlass`. The name is made of the parts that do not change from build to build.
fn suite_name(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} doc-tests"));
    }
    let (path, program) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let path = path.strip_prefix("unittests ").unwrap_or(path);
    let file = program.rsplit('/').next().unwrap_or(program);
    let stem = file.rsplit_once('-').map_or(file, |(stem, _hash)| stem);
    Some(format!("{stem} {path}"))
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

/// `test name ... ignored, reason`
fn ignored_test(line: &str) -> Option<Ignored> {
    let (test, state) = line.strip_prefix("test ")?.rsplit_once(" ... ignored")?;
    let reason = state.trim_start_matches(',').trim();
    Some(Ignored {
        test: test.to_owned(),
        reason: if reason.is_empty() { "no reason given".to_owned() } else { reason.to_owned() },
    })
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

    #[test]
    fn programs_are_told_apart_and_summed() {
        let tally = tally(OUTPUT);
        let names: Vec<&str> = tally.suites().keys().map(String::as_str).collect();
        assert_eq!(names, ["suite tests/suite.rs", "windlass doc-tests", "windlass src/lib.rs"]);
        assert_eq!(tally.suites()["windlass doc-tests"].passed, 6);
        assert_eq!(tally.sum().to_string(), "47 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn ignored_tests_come_with_their_reasons() {
        let tally = tally(OUTPUT);
        assert_eq!(
            tally.ignored(),
            [Ignored {
                test: "windlass src/lib.rs: cell::tests::b".to_owned(),
                reason: "Miri knows no signalfd".to_owned(),
            }]
        );
    }

    #[test]
    fn an_ignored_test_without_a_reason_says_so() {
        let ignored = ignored_test("test a ... ignored").expect("it is an ignored test");
        assert_eq!(ignored.reason, "no reason given");
    }

    #[test]
    fn other_lines_count_nothing() {
        let tally = tally("test a ... ok\nRunning wild\nresult: 5 passed\n");
        assert_eq!(tally.sum(), Counts::default());
    }
}
