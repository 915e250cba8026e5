//! A stage is one named thing that passes, fails or is skipped for a reason; a report runs stages one
//! after another, goes on after a failure and tells at the end what failed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::Cmd;
use crate::tally::{Counts, Ignored, Tally};

/// What a stage does. Its text is the reason where it fails or is skipped.
pub(crate) enum Work {
    /// Commands, each of which must succeed; a later one runs although an earlier one failed.
    Commands(Vec<Cmd>),
    /// Commands that run tests: the tests are counted in place of the stage.
    Tests(Vec<Cmd>),
    /// Code of this program; returns what is wrong, one line each.
    Inspect(Box<dyn FnOnce() -> anyhow::Result<Vec<String>>>),
    /// Cannot run here.
    Skip(String),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Commands(commands) => f.debug_tuple("Commands").field(commands).finish(),
            Self::Tests(commands) => f.debug_tuple("Tests").field(commands).finish(),
            Self::Inspect(_) => f.write_str("Inspect"),
            Self::Skip(reason) => f.debug_tuple("Skip").field(reason).finish(),
        }
    }
}

/// One named piece of work.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

impl Stage {
    pub(crate) fn commands(name: &'static str, commands: Vec<Cmd>) -> Self {
        Self { name, work: Work::Commands(commands) }
    }

    pub(crate) fn tests(name: &'static str, commands: Vec<Cmd>) -> Self {
        Self { name, work: Work::Tests(commands) }
    }

    pub(crate) fn inspect(name: &'static str, inspect: impl FnOnce() -> anyhow::Result<Vec<String>> + 'static) -> Self {
        Self { name, work: Work::Inspect(Box::new(inspect)) }
    }

    pub(crate) fn skip(name: &'static str, reason: impl Into<String>) -> Self {
        Self { name, work: Work::Skip(reason.into()) }
    }
}

/// How a stage ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    /// What went wrong; empty where nothing did.
    pub(crate) failures: Vec<String>,
    /// Why it did not run.
    pub(crate) skipped: Option<String>,
    pub(crate) tally: Tally,
    counts_tests: bool,
}

impl Ended {
    /// The tests it ran, or the stage itself as one. A stage of tests that failed without a failed test
    /// (it did not compile, a program crashed, a suite is missing) counts as one failure more.
    pub(crate) fn counts(&self) -> Counts {
        if self.skipped.is_some() {
            return Counts { ignored: 1, ..Counts::default() };
        }
        let failed = u64::from(!self.failures.is_empty());
        if !self.counts_tests {
            return Counts { passed: 1 - failed, failed, ignored: 0 };
        }
        let mut counts = self.tally.sum();
        counts.failed = counts.failed.max(failed);
        counts
    }

    /// One word for the table.
    fn verdict(&self) -> &'static str {
        match (&self.skipped, self.failures.is_empty()) {
            (Some(_), _) => "skipped",
            (None, true) => "passed",
            (None, false) => "FAILED",
        }
    }
}

/// Runs stages and remembers how they ended.
#[derive(Debug)]
pub(crate) struct Report {
    root: PathBuf,
    /// How long one command may take.
    limit: Option<Duration>,
    ended: Vec<Ended>,
}

impl Report {
    pub(crate) fn new(root: PathBuf, limit: Option<Duration>) -> Self {
        Self { root, limit, ended: Vec::new() }
    }

    /// Runs one stage, prints its line and time, and returns how it ended.
    pub(crate) fn run(&mut self, stage: Stage) -> &mut Ended {
        println!("== {}", stage.name);
        let start = Instant::now();
        let mut ended = Ended {
            name: stage.name,
            took: Duration::ZERO,
            failures: Vec::new(),
            skipped: None,
            tally: Tally::default(),
            counts_tests: matches!(stage.work, Work::Tests(_)),
        };
        match stage.work {
            Work::Commands(commands) | Work::Tests(commands) => {
                for command in commands {
                    let outcome = command.run(&self.root, self.limit, &mut ended.tally);
                    ended.failures.extend(outcome.err());
                }
            }
            Work::Inspect(inspect) => match inspect() {
                Ok(failures) => ended.failures = failures,
                Err(error) => ended.failures.push(format!("{error:#}")),
            },
            Work::Skip(reason) => ended.skipped = Some(reason),
        }
        ended.took = start.elapsed();
        for failure in &ended.failures {
            println!("{}: {failure}", ended.name);
        }
        println!("{}", line(&ended));
        let last = self.ended.len();
        self.ended.push(ended);
        &mut self.ended[last]
    }

    /// All stages together.
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for ended in &self.ended {
            sum.add(ended.counts());
        }
        sum
    }

    /// Whether every stage passed or was skipped.
    pub(crate) fn succeeded(&self) -> bool {
        self.ended.iter().all(|ended| ended.failures.is_empty())
    }

    /// Prints the table of stages, everything that was skipped with its reason, and every failure.
    pub(crate) fn print_summary(&self) {
        println!("\nsummary:");
        for ended in &self.ended {
            println!("  {}", line(ended));
        }
        for ended in &self.ended {
            for Ignored { test, reason } in ended.tally.ignored() {
                println!("  skipped in {}: {test}: {reason}", ended.name);
            }
        }
        for ended in &self.ended {
            for failure in &ended.failures {
                println!("  FAILED {}: {failure}", ended.name);
            }
        }
    }
}

fn line(ended: &Ended) -> String {
    let mut line = format!("{}: {} in {:.1} s", ended.name, ended.verdict(), ended.took.as_secs_f64());
    if ended.counts_tests {
        line.push_str(&format!(" ({})", ended.counts()));
    }
    if let Some(reason) = &ended.skipped {
        line.push_str(&format!(": {reason}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::new(PathBuf::from("."), None)
    }

    fn echo(line: &str) -> Cmd {
        Cmd::new("echo").args([line])
    }

    #[test]
    fn a_failure_does_not_stop_the_stages_after_it() {
        let mut report = report();
        report.run(Stage::commands("a", vec![Cmd::new("false")]));
        report.run(Stage::commands("b", vec![Cmd::new("true")]));
        assert!(!report.succeeded());
        assert_eq!(report.counts().to_string(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn tests_are_counted_in_place_of_their_stage() {
        let mut report = report();
        report.run(Stage::tests("t", vec![echo("test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured")]));
        assert_eq!(report.counts().to_string(), "7 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn tests_that_cannot_even_start_are_one_failure() {
        let mut report = report();
        report.run(Stage::tests("t", vec![Cmd::new("false")]));
        assert_eq!(report.counts().to_string(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_skipped_stage_is_counted_as_skipped_and_does_not_fail() {
        let mut report = report();
        report.run(Stage::skip("m", "no nightly toolchain"));
        assert!(report.succeeded());
        assert_eq!(report.counts().to_string(), "0 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn an_inspection_fails_by_what_it_finds() {
        let mut report = report();
        report.run(Stage::inspect("i", || Ok(vec!["x".to_owned()])));
        report.run(Stage::inspect("j", || anyhow::bail!("no git")));
        assert_eq!(report.ended[0].failures, ["x"]);
        assert_eq!(report.ended[1].failures, ["no git"]);
    }
}
