//! The core's numbered rules: each cited rule exists, and each rule is cited by the code that
//! enforces it and by a test that breaks with it.

use std::collections::BTreeSet;

use super::architecture;
use super::{RustFile, Violation};

/// The crate that the rules are about.
const CORE: &str = "crates/reactor/";
/// The sources that must cite each rule.
const CORE_SOURCE: &str = "crates/reactor/src/";

/// The tests that must cite each rule, in a comment or in the name of a test.
const CORE_TESTS: &[&str] =
    &["crates/reactor/tests/", "crates/testkit/tests/compile_fail/reactor/"];

/// The rules of the design.
const RULES: std::ops::RangeInclusive<u32> = 1..=14;

/// Compares ARCHITECTURE.md with the core.
pub(super) fn check(files: &[RustFile<'_>], listed: &BTreeSet<u32>, found: &mut Vec<Violation>) {
    for rule in RULES {
        if !listed.contains(&rule) {
            let message = format!("rule {rule} is not listed under \"Rules of the core\"");
            found.push(Violation::new(architecture::PATH, 0, message));
        }
    }
    let (mut cited, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let is_test = CORE_TESTS.iter().any(|tests| file.path.starts_with(tests));
        if !is_test && !file.path.starts_with(CORE) {
            continue;
        }
        for (line, rule) in citations(&file.source.comments) {
            if !listed.contains(&rule) {
                let message = format!("cites rule {rule}, which {} lacks", architecture::PATH);
                found.push(Violation::new(file.path, line, message));
            }
            if file.path.starts_with(CORE_SOURCE) {
                cited.insert(rule);
            } else if is_test {
                tested.insert(rule);
            }
        }
        if is_test {
            tested.extend(file.source.code.iter().filter_map(|line| named(line)));
        }
    }
    for rule in listed.difference(&cited) {
        let message = format!("no comment in {CORE_SOURCE} cites rule {rule}");
        found.push(Violation::new(architecture::PATH, 0, message));
    }
    for rule in listed.difference(&tested) {
        let message = format!("no test in {} cites rule {rule}", CORE_TESTS[0]);
        found.push(Violation::new(architecture::PATH, 0, message));
    }
}

/// The rule in the name of a test: `fn rule_7_…`.
fn named(line: &str) -> Option<u32> {
    let (_, name) = line.split_once("fn rule_")?;
    name.split('_').next()?.parse().ok()
}

/// The line (from 1) and number of each citation: `rule 7`, or `rules 3, 4 and 8`. A citation may
/// span two lines.
fn citations(comments: &[String]) -> Vec<(usize, u32)> {
    let mut words = Vec::new();
    for (index, line) in comments.iter().enumerate() {
        words.extend(line.split_whitespace().map(|word| (index + 1, word)));
    }
    let mut found = Vec::new();
    let mut in_list = false;
    for (line, word) in words {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if matches!(bare, "rule" | "rules" | "Rule" | "Rules") {
            in_list = true;
        } else if bare.is_empty() || bare == "and" || bare == "or" {
            // The marks of a comment, or a list that continues.
        } else if let (true, Ok(rule)) = (in_list, bare.parse()) {
            found.push((line, rule));
            // `rule 3: 4 bytes` cites one rule only.
            in_list = word.ends_with(',') || word.ends_with(char::is_numeric);
        } else {
            in_list = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::rust;
    use super::*;

    fn cited(text: &str) -> Vec<u32> {
        let file = rust("a.rs", text);
        let found = citations(&file.source.comments);
        found.into_iter().map(|(_, rule)| rule).collect()
    }

    fn listed() -> BTreeSet<u32> {
        RULES.collect()
    }

    fn violations(text: &str, listed: &BTreeSet<u32>) -> Vec<String> {
        let tests = "// rules 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13\nfn rule_14_holds() {}";
        with_tests(text, tests, listed)
    }

    fn with_tests(text: &str, tests: &str, listed: &BTreeSet<u32>) -> Vec<String> {
        let files =
            [rust("crates/reactor/src/cell.rs", text), rust("crates/reactor/tests/a.rs", tests)];
        let mut found = Vec::new();
        check(&files, listed, &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_without_a_test_is_found() {
        let all = "// rules 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14\n";
        assert!(with_tests(all, all, &listed()).is_empty());
        let tests = "// rules 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13\nfn no_rule_14() {}";
        let found = with_tests(all, tests, &listed());
        assert_eq!(found, ["ARCHITECTURE.md: no test in crates/reactor/tests/ cites rule 14"]);
    }

    #[test]
    fn citations_come_single_in_lists_and_over_two_lines() {
        assert_eq!(cited("// Rule 4: no way back."), [4]);
        assert_eq!(cited("// kept (rules 3, 4 and 8)."), [3, 4, 8]);
        assert_eq!(cited("// as rule\n// 12 asks"), [12]);
        assert_eq!(cited("// rule 3: 4 bytes"), [3]);
    }

    #[test]
    fn code_and_other_numbers_cite_nothing() {
        assert!(cited("let rule = 99; \"rule 98\"; // 14 events").is_empty());
        assert!(cited("// as a rule of thumb 3 times").is_empty());
    }

    #[test]
    fn a_rule_that_does_not_exist_cannot_be_cited() {
        let all = "// rules 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14\n";
        assert!(violations(all, &listed()).is_empty());
        let found = violations(&format!("{all}\n\nf(); // rule 15"), &listed());
        assert_eq!(
            found,
            ["crates/reactor/src/cell.rs:4: cites rule 15, which ARCHITECTURE.md lacks"]
        );
    }

    #[test]
    fn a_rule_that_nothing_cites_is_found() {
        let some = "// rules 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13";
        let found = violations(some, &listed());
        assert_eq!(found, ["ARCHITECTURE.md: no comment in crates/reactor/src/ cites rule 14"]);
    }

    #[test]
    fn a_rule_that_is_not_listed_is_found() {
        let found = violations("", &BTreeSet::new());
        let unlisted = found.iter().filter(|found| found.contains("is not listed")).count();
        assert_eq!(unlisted, 14);
    }
}
