//! The test programs that must turn up in each stage, so that one that vanishes is a failure and no silence.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::tally::Counts;

/// Where the list stands.
const PATH: &str = ".ci/expected-suites";

const HEADER: &str = "\
# The test programs of each stage of `cargo xtask ci`, and how many tests each has at least.
# A program that is missing, has fewer tests, or is not listed fails the run.
# After a change: `cargo xtask ci --only STAGE --update-suites`, and look at the difference.
# stage | program | tests
";

/// The committed list: stage, then program, then the least number of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected(BTreeMap<String, BTreeMap<String, u64>>);

impl Expected {
    /// Reads the list.
    ///
    /// # Errors
    ///
    /// When it is missing or a line is malformed.
    pub(super) fn read(root: &Path) -> Result<Self> {
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
            let [stage, suite, least] = parts[..] else {
                bail!("{PATH}: `{line}` is not `stage | program | tests`");
            };
            let least = least.parse().with_context(|| format!("{PATH}: `{line}` ends in no number"))?;
            let suites = expected.0.entry(stage.to_owned()).or_default();
            suites.insert(suite.to_owned(), least);
        }
        Ok(expected)
    }

    /// What is wrong with the programs that `stage` ran.
    pub(super) fn compare(&self, stage: &str, ran: &BTreeMap<String, Counts>) -> Vec<String> {
        let none = BTreeMap::new();
        let expected = self.0.get(stage).unwrap_or(&none);
        let mut wrong = Vec::new();
        for (suite, least) in expected {
            let total = ran.get(suite).map_or(0, |counts| counts.total());
            if total < *least {
                wrong.push(format!("`{suite}` has {total} tests, {PATH} expects {least}"));
            }
        }
        for (suite, counts) in ran {
            if counts.total() > 0 && !expected.contains_key(suite) {
                wrong.push(format!("`{suite}` is not in {PATH}"));
            }
        }
        wrong
    }

    /// Takes what `stage` ran for what is expected of it from now on.
    pub(super) fn update(&mut self, stage: &str, ran: &BTreeMap<String, Counts>) {
        let suites: BTreeMap<String, u64> = ran
            .iter()
            .filter(|(_, counts)| counts.total() > 0)
            .map(|(suite, counts)| (suite.clone(), counts.total()))
            .collect();
        if suites.is_empty() {
            self.0.remove(stage);
        } else {
            self.0.insert(stage.to_owned(), suites);
        }
    }

    /// Writes the list back.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn write(&self, root: &Path) -> Result<()> {
        std::fs::write(root.join(PATH), self.print()).with_context(|| PATH.to_owned())
    }

    fn print(&self) -> String {
        let mut text = HEADER.to_owned();
        for (stage, suites) in &self.0 {
            for (suite, least) in suites {
                text.push_str(&format!("{stage} | {suite} | {least}\n"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(programs: &[(&str, u64)]) -> BTreeMap<String, Counts> {
        programs
            .iter()
            .map(|(name, passed)| {
                let counts = Counts { passed: *passed, ..Counts::default() };
                ((*name).to_owned(), counts)
            })
            .collect()
    }

    fn expected() -> Expected {
        Expected::parse("# x\ntest | a src/lib.rs | 3\n\ntest | b tests/b.rs | 1\nasan | a src/lib.rs | 2\n")
            .expect("the list is well formed")
    }

    #[test]
    fn the_same_programs_are_in_order() {
        let ran = ran(&[("a src/lib.rs", 4), ("b tests/b.rs", 1), ("empty", 0)]);
        assert!(expected().compare("test", &ran).is_empty());
    }

    #[test]
    fn a_program_that_vanished_or_shrank_is_found() {
        let wrong = expected().compare("test", &ran(&[("a src/lib.rs", 2)]));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    #[test]
    fn an_ignored_test_is_there_all_the_same() {
        let mut ran = ran(&[("a src/lib.rs", 1)]);
        if let Some(counts) = ran.get_mut("a src/lib.rs") {
            counts.ignored = 1;
        }
        assert!(expected().compare("asan", &ran).is_empty());
    }

    #[test]
    fn a_program_nobody_listed_is_found() {
        let wrong = expected().compare("asan", &ran(&[("a src/lib.rs", 2), ("c", 1)]));
        assert_eq!(wrong, ["`c` is not in .ci/expected-suites"]);
    }

    #[test]
    fn an_update_is_what_is_read_back() {
        let mut list = expected();
        list.update("test", &ran(&[("a src/lib.rs", 9), ("empty", 0)]));
        let read = Expected::parse(&list.print()).expect("it reads its own writing");
        assert_eq!(read, list);
        assert!(read.compare("test", &ran(&[("a src/lib.rs", 8)])).len() == 1);
        assert!(read.compare("asan", &ran(&[("a src/lib.rs", 2)])).is_empty());
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        assert!(Expected::parse("test | a").is_err());
        assert!(Expected::parse("test | a | many").is_err());
    }
}
