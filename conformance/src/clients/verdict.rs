//! The results of the tests.

use std::fmt;

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed(String),
    Ignored(String),
}

/// The end of a line in the format of `cargo test`, by which `cargo xtask ci` counts.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
            Self::Ignored(reason) => write!(f, "ignored, {reason}"),
        }
    }
}

/// Reads the lines that a client has printed, and returns a verdict for every expected test. A test
/// that the client does not print has failed, and so has one that is not expected.
pub(super) fn read(lines: &[String], expected: &[&str]) -> Vec<(String, Verdict)> {
    let said: Vec<(&str, Verdict)> = lines.iter().filter_map(|line| verdict_in(line)).collect();
    let mut verdicts = Vec::new();
    for name in expected {
        let mut of_it = said.iter().filter(|(test, _)| test == name).map(|(_, verdict)| verdict);
        let verdict = match (of_it.next(), of_it.next()) {
            (Some(verdict), None) => verdict.clone(),
            (None, _) => Verdict::Failed("the client says nothing of it".to_owned()),
            (Some(_), Some(_)) => {
                Verdict::Failed("the client says several things of it".to_owned())
            }
        };
        verdicts.push(((*name).to_owned(), verdict));
    }
    for (test, _) in said.iter().filter(|(test, _)| !expected.contains(test)) {
        verdicts.push(((*test).to_owned(), Verdict::Failed("nobody asked for it".to_owned())));
    }
    verdicts
}

/// Parses `test NAME ... ok` or `test NAME ... FAILED: why`.
fn verdict_in(line: &str) -> Option<(&str, Verdict)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let verdict = match rest.strip_prefix("FAILED: ") {
        Some(reason) => Verdict::Failed(reason.to_owned()),
        None if rest == "ok" => Verdict::Passed,
        None => Verdict::Failed(format!("the client says `{rest}`")),
    };
    Some((name, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(lines: &[&str]) -> Vec<String> {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        read(&lines, &["a", "b"])
            .into_iter()
            .map(|(name, verdict)| format!("{name} {verdict}"))
            .collect()
    }

    #[test]
    fn what_the_client_says_counts() {
        let said = ["test a ... ok", "something else", "test b ... FAILED: why"];
        assert_eq!(verdicts(&said), ["a ok", "b FAILED: why"]);
    }

    #[test]
    fn silence_and_surplus_fail() {
        let said = ["test a ... ok", "test a ... ok", "test c ... ok"];
        let failed = [
            "a FAILED: the client says several things of it",
            "b FAILED: the client says nothing of it",
            "c FAILED: nobody asked for it",
        ];
        assert_eq!(verdicts(&said), failed);
        assert_eq!(
            verdicts(&["test a ... okay", "test b ... ok"])[0],
            "a FAILED: the client says `okay`"
        );
    }
}
