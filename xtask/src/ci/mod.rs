//! `cargo xtask ci`: the run on a new machine and a clean clone, after `.ci/install`.
//!
//! [`stages`] has the stages. `.ci/expected-suites` lists the test programs that must run. The last
//! line of the output is the plain count of tests and stages.

mod backends;
mod compat;
mod conformance;
mod readme;
mod simulator;
mod smoke;
mod stages;
mod suites;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

pub(crate) use self::suites::Expected;
use crate::programs::Packages;
use crate::stage::{Report, Setting, Stage};
use crate::{check, repository};

/// The time limit of one command. The whole run has ninety minutes, so a command that takes this
/// long hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The same with `--full`.
const LONG_LIMIT: Duration = Duration::from_secs(60 * 60);

/// The choice of stages.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    /// Include the long stages.
    pub(crate) full: bool,
    /// Run only these stages, if there are any.
    pub(crate) only: Vec<String>,
}

impl Choice {
    fn of(&self, mut stages: Vec<Stage>) -> Result<Vec<Stage>> {
        if self.only.is_empty() {
            let other = if self.full { stages::SHORT } else { stages::LONG };
            stages.retain(|stage| !other.contains(&stage.name));
        }
        check::select(stages, &self.only)
    }

    fn limit(&self) -> Duration {
        let is_long =
            self.full || self.only.iter().any(|name| stages::LONG.contains(&name.as_str()));
        if is_long { LONG_LIMIT } else { LIMIT }
    }
}

/// Runs the stages. With `update_suites`, it rewrites the list of expected programs for the stages
/// that ran. Returns whether everything passed.
///
/// # Errors
///
/// If the workspace or the list of expected programs cannot be read.
pub(crate) fn run(choice: &Choice, update_suites: bool) -> Result<bool> {
    let outcome = run_stages(choice, update_suites);
    if outcome.is_err() {
        // A reader of the last line must see the failure.
        println!("0 passed, 1 failed, 0 skipped");
    }
    outcome
}

fn run_stages(choice: &Choice, update_suites: bool) -> Result<bool> {
    let root = repository::root();
    let mut expected = Expected::read(&root)?;
    let stages = choice.of(stages::all(&root)?)?;
    let packages = Arc::new(Packages::read(&root)?);
    let mut report =
        Report::new(Setting { root: root.clone(), limit: Some(choice.limit()), packages });
    report.run_lanes(stages, |ended| {
        if ended.skipped.is_some() {
            return;
        }
        if update_suites {
            expected.update(ended.name, &ended.tally);
        }
        let mut wrong = expected.compare(ended.name, &ended.tally);
        if ended.name == stages::NEWCOMERS {
            let loud = ended.tally.loud().iter();
            wrong.extend(loud.map(|suite| {
                format!(
                    "`{suite}` passes but prints a panic, which looks like a failure: catch it \
                     with `caught`"
                )
            }));
        }
        for failure in &wrong {
            println!("{}: {failure}", ended.name);
        }
        ended.failures.extend(wrong);
    });
    if update_suites {
        expected.write(&root)?;
    }
    report.print_summary();
    println!("{}", report.counts());
    Ok(report.succeeded())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(full: bool, only: &[&str]) -> Vec<&'static str> {
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        let stages = stages::all(&repository::root()).expect("the workspace is readable");
        let chosen = Choice { full, only }.of(stages).expect("they are there");
        chosen.iter().map(|stage| stage.name).collect()
    }

    #[test]
    fn a_full_run_replaces_short_stages_by_whole_ones() {
        let (ordinary, full) = (chosen(false, &[]), chosen(true, &[]));
        let less: Vec<_> = ordinary.iter().filter(|name| !full.contains(name)).collect();
        let more: Vec<_> = full.iter().filter(|name| !ordinary.contains(name)).collect();
        assert_eq!(less, [&"autobahn", &"bench"]);
        assert_eq!(
            more,
            [
                &"simulator-whole",
                &"autobahn-whole",
                &"aws-lc",
                &"patched",
                &"planted",
                &"book",
                &"coverage",
                &"musl",
                &"aarch64",
                &"bench-whole",
                &"asan-whole",
                &"miri-long"
            ]
        );
    }

    #[test]
    fn a_long_stage_that_is_named_runs() {
        assert_eq!(chosen(false, &["miri-long"]), ["miri-long"]);
        let choice = |only: &str| Choice { full: false, only: vec![only.to_owned()] };
        assert_eq!(choice("miri-long").limit(), LONG_LIMIT);
        assert_eq!(choice("miri").limit(), LIMIT);
    }
}
