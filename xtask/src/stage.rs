//! A stage is one named thing that passes, fails or is skipped for a reason; a report runs stages one
//! after another, goes on after a failure and tells at the end what failed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::Cmd;
use crate::tally::{Counts, Ignored, LeftOut, Tally};

/// What a stage does. Its text is the reason where it fails or is skipped.
pub(crate) enum Work {
    /// Commands, each of which must succeed; a later one runs although an earlier one failed.
    Commands(Vec<Cmd>),
    /// Commands that run tests: the tests are counted in place of the stage.
    Tests(Vec<Cmd>),
    /// The same, in parts that have the same programs.
    Parts(Vec<Part>),
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
            Self::Parts(parts) => f.debug_tuple("Parts").field(parts).finish(),
            Self::Inspect(_) => f.write_str("Inspect"),
            Self::Skip(reason) => f.debug_tuple("Skip").field(reason).finish(),
        }
    }
}

/// Some of the tests of a stage, all on one backend, say.
#[derive(Debug)]
pub(crate) struct Part {
    /// What the names of its programs end in.
    pub(crate) name: &'static str,
    /// Why it cannot run here, otherwise.
    pub(crate) commands: Result<Vec<Cmd>, String>,
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

    pub(crate) fn parts(name: &'static str, parts: Vec<Part>) -> Self {
        Self { name, work: Work::Parts(parts) }
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
            counts_tests: matches!(stage.work, Work::Tests(_) | Work::Parts(_)),
        };
        match stage.work {
            Work::Commands(commands) | Work::Tests(commands) => self.run_all(commands, &mut ended),
            Work::Parts(parts) => {
                for part in parts {
                    ended.tally.begin_part(part.name);
                    match part.commands {
                        Ok(commands) => self.run_all(commands, &mut ended),
                        Err(reason) => ended.tally.leave_out(part.name, reason),
                    }
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

    fn run_all(&self, commands: Vec<Cmd>, ended: &mut Ended) {
        for command in commands {
            let outcome = command.run(&self.root, self.limit, &mut ended.tally);
            ended.failures.extend(outcome.err());
        }
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
            for LeftOut { part, reason } in ended.tally.left_out() {
                println!("  skipped in {}: everything on {part}: {reason}", ended.name);
            }
            for skipped in skipped(ended.tally.ignored()) {
                println!("  skipped in {}: {skipped}", ended.name);
            }
        }
        for ended in &self.ended {
            for failure in &ended.failures {
                println!("  FAILED {}: {failure}", ended.name);
            }
        }
    }
}

/// So many tests that a program skips for one reason are named.
const NAMED_MAX: usize = 5;

/// A line for each test, or one for all that a program skips for the same reason, if they are many.
fn skipped(ignored: &[Ignored]) -> Vec<String> {
    let mut by_reason = BTreeMap::<_, Vec<&str>>::new();
    for Ignored { suite, test, reason } in ignored {
        by_reason.entry((suite, reason)).or_default().push(test);
    }
    let mut lines = Vec::new();
    for ((suite, reason), tests) in by_reason {
        if tests.len() > NAMED_MAX {
            lines.push(format!("{suite}: {} tests: {reason}", tests.len()));
        } else {
            lines.extend(tests.iter().map(|test| format!("{suite}: {test}: {reason}")));
        }
    }
    lines
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
    fn a_part_that_cannot_run_is_one_skipped_test_and_the_others_run() {
        let mut report = report();
        let result = || Ok(vec![echo("Running tests/a.rs (x/a-1)"), echo("test result: ok. 7 passed; 0 failed")]);
        let part = |name, commands| Part { name, commands };
        let parts = vec![part("a", result()), part("b", Err("forbidden".to_owned())), part("c", result())];
        let ended = report.run(Stage::parts("p", parts));
        assert_eq!(ended.counts().to_string(), "14 passed, 0 failed, 1 skipped");
        assert!(ended.tally.suites().keys().eq(["a tests/a.rs on a", "a tests/a.rs on c"]));
    }

    #[test]
    fn many_tests_that_are_skipped_for_one_reason_are_one_line() {
        let ignored = |test: usize, reason: &str| Ignored {
            suite: "s".to_owned(),
            test: format!("t{test}"),
            reason: reason.to_owned(),
        };
        let mut all: Vec<Ignored> = (0..6).map(|test| ignored(test, "no rings")).collect();
        all.push(ignored(6, "no browser"));
        assert_eq!(skipped(&all), ["s: t6: no browser", "s: 6 tests: no rings"]);
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
