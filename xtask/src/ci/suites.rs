//! The test programs that each stage must run. A program that disappears is a failure.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::tally::{Suite, Tally};

/// The path of the list.
const PATH: &str = ".ci/expected-suites";

const HEADER: &str = "\
# The test programs of each stage of `cargo xtask ci`, and how many tests each has at least.
# A program that is missing, has fewer tests, or is not listed fails the run. The exception is a
# part of a stage that cannot run on a machine.
# After a change: `cargo xtask ci --only STAGE --update-suites`, and look at the difference.
# stage | package | program | tests
";

/// The committed list: stage, then program of a package, then minimum number of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected(BTreeMap<String, BTreeMap<Suite, u64>>);

impl Expected {
    /// Reads the list.
    ///
    /// # Errors
    ///
    /// If it is missing or a line is malformed.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(PATH)).with_context(|| PATH.to_owned())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut expected = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parts: Vec<&str> = line.split('|').map(str::trim).collect();
            let [stage, package, program, least] = parts[..] else {
                bail!("{PATH}: `{line}` is not `stage | package | program | tests`");
            };
            let least = least
                .parse()
                .with_context(|| format!("{PATH}: `{line}` does not end in a number"))?;
            let suites = expected.0.entry(stage.to_owned()).or_default();
            let suite = Suite { package: package.to_owned(), program: program.to_owned() };
            if suites.insert(suite, least).is_some() {
                bail!("{PATH}: `{line}` is listed twice");
            }
        }
        Ok(expected)
    }

    /// How many tests `stage` has at least.
    pub(crate) fn least(&self, stage: &str) -> u64 {
        self.0.get(stage).map_or(0, |suites| suites.values().sum())
    }

    /// The differences between the list and the programs that `stage` ran.
    pub(super) fn compare(&self, stage: &str, tally: &Tally) -> Vec<String> {
        let (ran, none) = (tally.suites(), BTreeMap::new());
        let expected = self.0.get(stage).unwrap_or(&none);
        let mut wrong = Vec::new();
        for (suite, least) in expected {
            let total = ran.get(suite).map_or(0, |counts| counts.total());
            if total < *least && !tally.is_left_out(suite) {
                wrong.push(format!(
                    "`{suite}` has {total} tests, but {PATH} expects {least}: restore them, or run \
                     with --update-suites"
                ));
            }
        }
        for (suite, counts) in ran {
            if counts.total() > 0 && !expected.contains_key(suite) {
                wrong.push(format!("`{suite}` is not in {PATH}: add it with --update-suites"));
            }
        }
        wrong
    }

    /// Replaces the expected programs of `stage` by those that ran.
    pub(crate) fn update(&mut self, stage: &str, tally: &Tally) {
        let mut suites = self.0.remove(stage).unwrap_or_default();
        suites.retain(|suite, _| tally.is_left_out(suite));
        for (suite, counts) in tally.suites() {
            if counts.total() > 0 {
                suites.insert(suite.clone(), counts.total());
            }
        }
        if !suites.is_empty() {
            self.0.insert(stage.to_owned(), suites);
        }
    }

    /// Writes the list back.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(crate) fn write(&self, root: &Path) -> Result<()> {
        std::fs::write(root.join(PATH), self.print()).with_context(|| PATH.to_owned())
    }

    fn print(&self) -> String {
        let mut text = HEADER.to_owned();
        for (stage, suites) in &self.0 {
            for (Suite { package, program }, least) in suites {
                text.push_str(&format!("{stage} | {package} | {program} | {least}\n"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Packages;
    use std::sync::Arc;

    /// A tally of programs, given by their files and the numbers of passed tests. Their packages
    /// are unknown.
    fn ran(programs: &[(&str, u64)]) -> Tally {
        let mut tally = Tally::default();
        for (name, passed) in programs {
            feed(&mut tally, name, &format!("{passed} passed"));
        }
        tally
    }

    fn feed(tally: &mut Tally, name: &str, counts: &str) {
        let (program, path) = name.split_once(' ').expect("a program and a file");
        tally.feed(&format!("Running {path} (target/debug/deps/{program}-0123)"));
        tally.feed(&format!("test result: ok. {counts}; 0 failed"));
    }

    #[test]
    fn the_list_of_this_repository_is_readable() {
        let list = Expected::read(&crate::repository::root()).expect("no program is listed twice");
        assert!(list.0.contains_key("test"));
    }

    fn expected() -> Expected {
        Expected::parse(
            "# x\ntest | - | a src/lib.rs | 3\n\ntest | - | b tests/b.rs | 1\n\
             asan | - | a src/lib.rs | 2\n",
        )
        .expect("the list is well formed")
    }

    #[test]
    fn the_same_programs_are_in_order() {
        let ran = ran(&[("a src/lib.rs", 4), ("b tests/b.rs", 1), ("empty tests/e.rs", 0)]);
        assert!(expected().compare("test", &ran).is_empty());
    }

    #[test]
    fn a_program_that_vanished_or_shrank_is_found() {
        let wrong = expected().compare("test", &ran(&[("a src/lib.rs", 2)]));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    /// Two programs of one name, in two packages.
    fn two_packages(tests: [u64; 2]) -> Tally {
        let packages =
            Packages::read(&crate::repository::root()).expect("the workspace is readable");
        let mut tally = Tally::new(Arc::new(packages));
        for (package, passed) in ["conformance", "xtask"].iter().zip(tests) {
            tally.feed(&format!("Running tests/suite.rs ({package}/suite)"));
            tally.feed(&format!("test result: ok. {passed} passed; 0 failed"));
        }
        tally
    }

    #[test]
    fn tests_missing_in_one_package_are_not_replaced_by_those_of_another() {
        let list =
            "s | conformance | suite tests/suite.rs | 5\ns | xtask | suite tests/suite.rs | 2\n";
        let list = Expected::parse(list).expect("well formed");
        assert!(list.compare("s", &two_packages([5, 2])).is_empty());
        let wrong = list.compare("s", &two_packages([4, 3]));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        let expected =
            "`conformance suite tests/suite.rs` has 4 tests, but .ci/expected-suites expects 5";
        assert!(wrong[0].starts_with(expected), "{wrong:?}");
    }

    #[test]
    fn the_committed_list_is_in_its_written_form_and_names_existing_packages() {
        let root = crate::repository::root();
        let list = Expected::read(&root).expect("it is well formed");
        assert_eq!(list.print(), std::fs::read_to_string(root.join(PATH)).expect("it is there"));
        let packages = crate::metadata::workspace(&root).expect("the workspace is readable");
        let is_there =
            |suite: &&Suite| packages.iter().any(|package| package.name == suite.package);
        let gone: Vec<&Suite> =
            list.0.values().flat_map(BTreeMap::keys).filter(|suite| !is_there(suite)).collect();
        assert!(gone.is_empty(), "{gone:?}");
    }

    #[test]
    fn an_ignored_test_counts_as_existing() {
        let mut ran = Tally::default();
        feed(&mut ran, "a src/lib.rs", "1 passed; 1 ignored");
        assert!(expected().compare("asan", &ran).is_empty());
    }

    #[test]
    fn an_unlisted_program_is_found() {
        let wrong = expected().compare("asan", &ran(&[("a src/lib.rs", 2), ("c tests/c.rs", 1)]));
        assert_eq!(
            wrong,
            ["`- c tests/c.rs` is not in .ci/expected-suites: add it with --update-suites"]
        );
    }

    #[test]
    fn an_update_is_read_back_unchanged() {
        let mut list = expected();
        list.update("test", &ran(&[("a src/lib.rs", 9), ("empty tests/e.rs", 0)]));
        let read = Expected::parse(&list.print()).expect("it reads its own writing");
        assert_eq!(read, list);
        assert!(read.compare("test", &ran(&[("a src/lib.rs", 8)])).len() == 1);
        assert!(read.compare("asan", &ran(&[("a src/lib.rs", 2)])).is_empty());
    }

    #[test]
    fn programs_of_a_part_that_cannot_run_stay_expected() {
        let mut list = Expected::parse(
            "s | - | a tests/a.rs on epoll | 3\ns | - | a tests/a.rs on uring | 3\n",
        )
        .expect("well formed");
        let mut tally = Tally::default();
        tally.begin_part("epoll");
        feed(&mut tally, "a tests/a.rs", "3 passed");
        assert_eq!(list.compare("s", &tally).len(), 1, "the ring's are missing");
        tally.leave_out("uring", "forbidden".to_owned());
        assert!(list.compare("s", &tally).is_empty());
        let before = list.print();
        list.update("s", &tally);
        assert_eq!(list.print(), before);
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        for wrong in
            ["test | a", "test | a | 3", "test | p | a | many", "t | p | a | 3\nt | p | a | 4"]
        {
            assert!(Expected::parse(wrong).is_err(), "{wrong}");
        }
    }
}
