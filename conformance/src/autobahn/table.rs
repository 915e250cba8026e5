//! The committed table of outcomes, and the differences of a run from it.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::cases::CaseId;
use super::verdict::{CaseOutcome, Outcomes};

/// The comment at the beginning of the table of `subject`.
fn header(subject: &str) -> String {
    format!(
        "\
# What the Autobahn TestSuite 25.10.1 says of {subject}. A run that differs from this fails.
# After a change: run with `--update`, and look at the difference.
# case | behaviour | closing | code of the Close frame of {subject}
"
    )
}

/// Reads a table. A missing file is an empty table.
pub(super) fn read(path: &Path) -> Result<Outcomes> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Outcomes::new()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Writes the outcomes of `run` into the table of `subject`. Cases that did not run keep their
/// outcomes.
pub(super) fn update(path: &Path, subject: &str, run: &Outcomes) -> Result<()> {
    let mut table = read(path)?;
    table.extend(run.iter().map(|(case, outcome)| (case.clone(), outcome.clone())));
    std::fs::write(path, print(subject, &table)).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Outcomes> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (case, outcome) =
                line.split_once('|').with_context(|| format!("`{line}` has no outcome"))?;
            Ok((case.trim().parse()?, outcome.parse()?))
        })
        .collect()
}

pub(super) fn print(subject: &str, table: &Outcomes) -> String {
    let mut text = header(subject);
    for (case, outcome) in table {
        text.push_str(&format!("{case} | {outcome}\n"));
    }
    text
}

/// Returns the fault of the run of `case`, if it has one. `is_good` says which outcomes count.
pub(super) fn fault(
    case: &CaseId,
    run: &Outcomes,
    table: &Outcomes,
    is_good: fn(&CaseOutcome, &CaseId) -> bool,
) -> Option<String> {
    let Some(outcome) = run.get(case) else {
        return Some(format!("{case}: has not run"));
    };
    if !is_good(outcome, case) {
        return Some(format!("{case}: {outcome}"));
    }
    match table.get(case) {
        Some(expected) if expected == outcome => None,
        Some(expected) => Some(format!("{case}: {outcome}; in the table it is {expected}")),
        None => Some(format!("{case}: {outcome}; it is not in the table")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "1.1.1 | OK | OK | 1000\n9.1.1 | OK | OK | 1000\n10.1.1 | OK | OK | none\n";

    fn table(text: &str) -> Outcomes {
        parse(text).expect("it is well formed")
    }

    fn fault_of(case: &str, run: &str) -> Option<String> {
        fault(&case.parse().expect("a name"), &table(run), &table(TABLE), CaseOutcome::is_passed)
    }

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let printed = print("Windlass", &table(TABLE));
        assert_eq!(printed, format!("{}{TABLE}", header("Windlass")));
        assert_eq!(table(&printed), table(TABLE));
        assert!(parse("1.1.1\n").is_err());
        assert!(parse("1.1.1 | OK\n").is_err());
    }

    #[test]
    fn the_same_outcome_is_no_fault() {
        assert_eq!(fault_of("1.1.1", TABLE), None);
    }

    #[test]
    fn missing_failed_and_different_cases_are_faults() {
        assert!(fault_of("1.1.1", "").is_some());
        assert!(fault_of("1.1.1", "1.1.1 | FAILED | OK | 1000\n").is_some());
        assert!(fault_of("1.1.1", "1.1.1 | OK | OK | none\n").is_some());
        assert!(fault_of("1.1.2", "1.1.2 | OK | OK | 1000\n").is_some());
    }

    #[test]
    fn a_case_that_fails_is_a_fault_although_the_table_says_the_same() {
        let failed = table("1.1.1 | FAILED | OK | 1000\n");
        let case = "1.1.1".parse().expect("a name");
        assert!(fault(&case, &failed, &failed, CaseOutcome::is_passed).is_some());
    }

    #[test]
    fn an_update_keeps_what_did_not_run() {
        let path = std::env::temp_dir().join(format!("conformance-table-{}", std::process::id()));
        update(&path, "it", &table(TABLE)).expect("it is written");
        update(&path, "it", &table("9.1.1 | OK | OK | 1001\n")).expect("it is written");
        let read = read(&path);
        std::fs::remove_file(&path).expect("it is there");
        let expected = TABLE.replace("9.1.1 | OK | OK | 1000", "9.1.1 | OK | OK | 1001");
        assert_eq!(read.expect("it is read"), table(&expected));
    }
}
