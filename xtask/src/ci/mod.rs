//! `cargo xtask ci`: what a new machine runs on a clean clone, after `.ci/install`.
//!
//! The stages stand in [`stages`], the list of test programs that must turn up in `.ci/expected-suites`.
//! The last line that is printed is the plain count of tests and stages.

mod backends;
mod readme;
mod smoke;
mod stages;
mod suites;

use std::time::Duration;

use anyhow::Result;

use self::suites::Expected;
use crate::stage::Report;
use crate::{check, repository};

/// How long one command may take. The whole run has ninety minutes; a command that needs so many of them hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Runs the stages; `only` restricts them. With `update_suites` the list of expected programs is rewritten
/// for the stages that ran. Returns whether everything passed.
///
/// # Errors
///
/// When the workspace or the list of expected programs cannot be read.
pub(crate) fn run(only: &[String], update_suites: bool) -> Result<bool> {
    let outcome = run_stages(only, update_suites);
    if outcome.is_err() {
        // Who reads only the last line must see that something is wrong.
        println!("0 passed, 1 failed, 0 skipped");
    }
    outcome
}

fn run_stages(only: &[String], update_suites: bool) -> Result<bool> {
    let root = repository::root();
    let mut expected = Expected::read(&root)?;
    let stages = check::select(stages::all(&root)?, only)?;
    let mut report = Report::new(root.clone(), Some(LIMIT));
    for stage in stages {
        let ended = report.run(stage);
        if ended.skipped.is_some() {
            continue;
        }
        if update_suites {
            expected.update(ended.name, &ended.tally);
        }
        let wrong = expected.compare(ended.name, &ended.tally);
        for failure in &wrong {
            println!("{}: {failure}", ended.name);
        }
        ended.failures.extend(wrong);
    }
    if update_suites {
        expected.write(&root)?;
    }
    report.print_summary();
    println!("{}", report.counts());
    Ok(report.succeeded())
}
