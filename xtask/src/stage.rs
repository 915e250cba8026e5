//! Stages and their report. A stage is a named check that passes, fails, or is skipped with a
//! reason. A report runs stages, one after another or in parallel. It continues after a failure and
//! lists all failures at the end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::command::Cmd;
use crate::lanes::{self, Lane};
use crate::output::Output;
use crate::programs::{Packages, Programs};
use crate::tally::{Counts, Failed, Ignored, LeftOut, Suite, Tally};

/// The work of a stage. A text is the reason of a failure or of a skip.
pub(crate) enum Work {
    /// Commands that must succeed. A later one runs even if an earlier one failed.
    Commands(Vec<Cmd>),
    /// Commands that run tests. The tests are counted instead of the stage.
    Tests(Vec<Cmd>),
    /// Tests in several parts with the same programs.
    Parts(Vec<Part>),
    /// Code of this program. It returns the failures, one per line.
    Inspect(Box<dyn FnOnce() -> anyhow::Result<Vec<String>> + Send>),
    /// Code of this program that adds its tests to the tally. It returns the failures.
    Counted(Box<Counting>),
    /// The stage cannot run here.
    Skip(String),
}

/// The work of [`Work::Counted`].
type Counting = dyn FnOnce(&mut Tally, &mut Output) -> anyhow::Result<Vec<String>> + Send;

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Commands(commands) => f.debug_tuple("Commands").field(commands).finish(),
            Self::Tests(commands) => f.debug_tuple("Tests").field(commands).finish(),
            Self::Parts(parts) => f.debug_tuple("Parts").field(parts).finish(),
            Self::Inspect(_) => f.write_str("Inspect"),
            Self::Counted(_) => f.write_str("Counted"),
            Self::Skip(reason) => f.debug_tuple("Skip").field(reason).finish(),
        }
    }
}

/// Some of the tests of a stage, for example those on one backend.
#[derive(Debug)]
pub(crate) struct Part {
    /// The suffix of its programs' names.
    pub(crate) name: &'static str,
    /// The steps, or the reason why the part cannot run here.
    pub(crate) steps: Result<Vec<Step>, String>,
}

/// One step of a part.
#[derive(Debug)]
pub(crate) enum Step {
    Command(Cmd),
    /// Programs that cargo builds but does not run.
    Programs(Programs),
}

/// A named piece of work.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Its lane, if it runs in parallel to the tests: see [`lanes`].
    pub(crate) lane: Option<Lane>,
    /// Parts that cannot run here, with the reasons.
    left_out: Vec<(&'static str, String)>,
}

impl Stage {
    fn new(name: &'static str, work: Work) -> Self {
        Self { name, work, lane: None, left_out: Vec::new() }
    }

    /// Moves it to a lane.
    pub(crate) fn in_lane(mut self, lane: Lane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Leaves out a part that cannot run here.
    pub(crate) fn leaving_out(mut self, part: &'static str, reason: String) -> Self {
        self.left_out.push((part, reason));
        self
    }

    /// Lets its commands build in a target directory below the common one. Cargo locks a target
    /// directory while it builds.
    pub(crate) fn with_target(mut self, target: &str) -> Self {
        if let Work::Commands(commands) | Work::Tests(commands) = &mut self.work {
            *commands = commands.drain(..).map(|command| command.target(target)).collect();
        }
        self
    }

    /// Sets an environment variable of its commands.
    pub(crate) fn with_env(mut self, name: &str, value: &str) -> Self {
        if let Work::Commands(commands) | Work::Tests(commands) = &mut self.work {
            *commands = commands.drain(..).map(|command| command.env(name, value)).collect();
        }
        self
    }

    pub(crate) fn commands(name: &'static str, commands: Vec<Cmd>) -> Self {
        Self::new(name, Work::Commands(commands))
    }

    pub(crate) fn tests(name: &'static str, commands: Vec<Cmd>) -> Self {
        Self::new(name, Work::Tests(commands))
    }

    pub(crate) fn parts(name: &'static str, parts: Vec<Part>) -> Self {
        Self::new(name, Work::Parts(parts))
    }

    pub(crate) fn inspect(
        name: &'static str,
        inspect: impl FnOnce() -> anyhow::Result<Vec<String>> + Send + 'static,
    ) -> Self {
        Self::new(name, Work::Inspect(Box::new(inspect)))
    }

    pub(crate) fn counted(
        name: &'static str,
        count: impl FnOnce(&mut Tally, &mut Output) -> anyhow::Result<Vec<String>> + Send + 'static,
    ) -> Self {
        Self::new(name, Work::Counted(Box::new(count)))
    }

    pub(crate) fn skip(name: &'static str, reason: impl Into<String>) -> Self {
        Self::new(name, Work::Skip(reason.into()))
    }
}

/// The result of a stage.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    /// The processor time of its commands and their children.
    pub(crate) processor: Duration,
    /// The failures.
    pub(crate) failures: Vec<String>,
    /// The reason why it did not run.
    pub(crate) skipped: Option<String>,
    pub(crate) tally: Tally,
    counts_tests: bool,
}

impl Ended {
    /// The tests that it ran, or the stage itself as one test. A stage of tests can fail without a
    /// failed test: it did not compile, a program crashed, or a suite is missing. That counts as
    /// one failure.
    pub(crate) fn counts(&self) -> Counts {
        if self.skipped.is_some() {
            return Counts { ignored: 1, ..Counts::default() };
        }
        let failed = u64::from(!self.failures.is_empty());
        if !self.counts_tests {
            let ignored = self.tally.sum().ignored;
            return Counts { passed: 1 - failed, failed, ignored };
        }
        let mut counts = self.tally.sum();
        counts.failed = counts.failed.max(failed);
        counts
    }

    /// The result as one word.
    fn verdict(&self) -> &'static str {
        match (&self.skipped, self.failures.is_empty()) {
            (Some(_), _) => "skipped",
            (None, true) => "passed",
            (None, false) => "FAILED",
        }
    }
}

/// The settings that stages share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    pub(crate) root: PathBuf,
    /// The time limit of one command.
    pub(crate) limit: Option<Duration>,
    /// Finds the packages of test programs.
    pub(crate) packages: Arc<Packages>,
}

impl Setting {
    /// Runs one stage to its end.
    pub(crate) fn perform(&self, stage: Stage, output: &mut Output) -> Ended {
        output.say(&format!("== {}\n", stage.name));
        let start = Instant::now();
        let mut ended = Ended {
            name: stage.name,
            took: Duration::ZERO,
            processor: Duration::ZERO,
            failures: Vec::new(),
            skipped: None,
            tally: Tally::new(Arc::clone(&self.packages)),
            counts_tests: matches!(stage.work, Work::Tests(_) | Work::Parts(_) | Work::Counted(_)),
        };
        for (part, reason) in stage.left_out {
            ended.tally.leave_out(part, reason);
        }
        match stage.work {
            Work::Commands(commands) | Work::Tests(commands) => {
                commands.iter().for_each(|command| self.run(command, &mut ended, output));
            }
            Work::Parts(parts) => {
                parts.into_iter().for_each(|part| self.part(part, &mut ended, output))
            }
            Work::Inspect(inspect) => match inspect() {
                Ok(failures) => ended.failures = failures,
                Err(error) => ended.failures.push(format!("{error:#}")),
            },
            Work::Counted(count) => match count(&mut ended.tally, output) {
                Ok(failures) => ended.failures = failures,
                Err(error) => ended.failures.push(format!("{error:#}")),
            },
            Work::Skip(reason) => ended.skipped = Some(reason),
        }
        ended.took = start.elapsed();
        for failure in &ended.failures {
            output.say(&format!("{}: {failure}\n", ended.name));
        }
        output.say(&format!("{}\n", line(&ended)));
        ended
    }

    fn part(&self, part: Part, ended: &mut Ended, output: &mut Output) {
        ended.tally.begin_part(part.name);
        let steps = match part.steps {
            Ok(steps) => steps,
            Err(reason) => return ended.tally.leave_out(part.name, reason),
        };
        for step in steps {
            match step {
                Step::Command(command) => self.run(&command, ended, output),
                Step::Programs(programs) => match programs.build(&self.packages, output) {
                    Ok(commands) => {
                        for (announcement, command) in commands {
                            output.say(&format!("{announcement}\n"));
                            ended.tally.feed(&announcement);
                            self.run(&command, ended, output);
                        }
                    }
                    Err(failure) => ended.failures.push(failure),
                },
            }
        }
    }

    fn run(&self, command: &Cmd, ended: &mut Ended, output: &mut Output) {
        match command.run(&self.root, self.limit, &mut ended.tally, output) {
            Ok(processor) => ended.processor += processor,
            Err(failure) => ended.failures.push(failure),
        }
    }
}

/// Runs stages and keeps their results.
#[derive(Debug)]
pub(crate) struct Report {
    setting: Setting,
    ended: Vec<Ended>,
}

impl Report {
    pub(crate) fn new(setting: Setting) -> Self {
        Self { setting, ended: Vec::new() }
    }

    /// Runs one stage, prints its result and returns it.
    pub(crate) fn run(&mut self, stage: Stage) -> &mut Ended {
        let ended = self.setting.perform(stage, &mut Output::Live);
        let last = self.ended.len();
        self.ended.push(ended);
        &mut self.ended[last]
    }

    /// Runs stages, with their lanes in parallel. Passes each result to `look`, which may add
    /// failures.
    pub(crate) fn run_lanes(&mut self, stages: Vec<Stage>, mut look: impl FnMut(&mut Ended)) {
        let ended = &mut self.ended;
        lanes::run(&self.setting, stages, |mut one| {
            look(&mut one);
            ended.push(one);
        });
    }

    /// The counts of all stages together.
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for ended in &self.ended {
            sum.add(ended.counts());
        }
        sum
    }

    /// Whether no stage failed.
    pub(crate) fn succeeded(&self) -> bool {
        self.ended.iter().all(|ended| ended.failures.is_empty())
    }

    /// Prints the table of stages, the skipped tests with their reasons, and every failure with the
    /// first lines that the failed tests printed.
    pub(crate) fn print_summary(&self) {
        println!("\nsummary:");
        for ended in &self.ended {
            println!("  {}", line(ended));
            for line in slow(ended.tally.took()) {
                println!("    {line}");
            }
        }
        for ended in &self.ended {
            for LeftOut { part, reason } in ended.tally.left_out() {
                println!("  skipped in {}: {part}: {reason}", ended.name);
            }
            for skipped in skipped(ended.tally.ignored()) {
                println!("  skipped in {}: {skipped}", ended.name);
            }
        }
        for ended in &self.ended {
            for failure in &ended.failures {
                println!("  FAILED {}: {failure}", ended.name);
            }
            for Failed { suite, test, said } in ended.tally.failed() {
                println!("  FAILED {}: {suite}: {test}", ended.name);
                said.iter().for_each(|line| println!("    {line}"));
            }
        }
    }
}

/// Skipped tests of one program and reason are named, up to this number.
const NAMED_MAX: usize = 5;

/// One line for each skipped test, or one line for all tests that a program skips for the same
/// reason, if they are many.
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

/// Test programs that take at most this time share one line.
const QUICK: Duration = Duration::from_secs(1);

/// The run time of each program, the slowest first. It does not include compilation.
fn slow(took: &BTreeMap<Suite, Duration>) -> Vec<String> {
    let (mut slow, quick): (Vec<_>, Vec<_>) = took.iter().partition(|(_, took)| **took > QUICK);
    slow.sort_by_key(|(_, took)| std::cmp::Reverse(**took));
    let mut lines: Vec<String> =
        slow.iter().map(|(suite, took)| format!("{:6.1} s {suite}", took.as_secs_f64())).collect();
    if !quick.is_empty() {
        let sum: Duration = quick.iter().map(|(_, took)| **took).sum();
        lines.push(format!(
            "{:6.1} s {} programs of at most a second each",
            sum.as_secs_f64(),
            quick.len()
        ));
    }
    lines
}

fn line(ended: &Ended) -> String {
    let mut line =
        format!("{}: {} in {:.1} s", ended.name, ended.verdict(), ended.took.as_secs_f64());
    if !ended.processor.is_zero() {
        line.push_str(&format!(", processor time {:.1} s", ended.processor.as_secs_f64()));
    }
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
        Report::new(Setting { root: PathBuf::from("."), ..Setting::default() })
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
        report.run(Stage::tests(
            "t",
            vec![echo("test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured")],
        ));
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
    fn what_a_stage_leaves_out_is_counted_as_skipped_beside_it() {
        let mut report = report();
        let stage = Stage::commands("s", vec![Cmd::new("true")]);
        let ended = report.run(stage.leaving_out("a", "no a".to_owned()));
        assert_eq!(ended.tally.left_out()[0].reason, "no a");
        assert_eq!(report.counts().to_string(), "1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_part_that_cannot_run_is_one_skipped_test_and_the_others_run() {
        let mut report = report();
        let result = || {
            let lines = ["Running tests/a.rs (x/a-1)", "test result: ok. 7 passed; 0 failed"];
            Ok(lines.map(|line| Step::Command(echo(line))).into())
        };
        let part = |name, steps| Part { name, steps };
        let parts =
            vec![part("a", result()), part("b", Err("forbidden".to_owned())), part("c", result())];
        let ended = report.run(Stage::parts("p", parts));
        assert_eq!(ended.counts().to_string(), "14 passed, 0 failed, 1 skipped");
        let names: Vec<&str> = ended.tally.suites().keys().map(|suite| &*suite.program).collect();
        assert_eq!(names, ["a tests/a.rs on a", "a tests/a.rs on c"]);
    }

    fn suite(program: &str) -> Suite {
        Suite { package: "p".to_owned(), program: program.to_owned() }
    }

    #[test]
    fn programs_that_take_long_are_named_and_the_slowest_comes_first() {
        let took = [("a", 100), ("b", 1500), ("c", 61_000), ("d", 300)];
        let took = took.map(|(program, millis)| (suite(program), Duration::from_millis(millis)));
        let expected =
            ["  61.0 s p c", "   1.5 s p b", "   0.4 s 2 programs of at most a second each"];
        assert_eq!(slow(&took.into()), expected);
        assert!(slow(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn a_stage_prints_its_time_and_processor_time() {
        let mut report = report();
        let ended = report.run(Stage::commands("a", vec![Cmd::new("true")]));
        (ended.took, ended.processor) = (Duration::from_millis(2500), Duration::from_secs(4));
        assert_eq!(line(ended), "a: passed in 2.5 s, processor time 4.0 s");
        ended.processor = Duration::ZERO;
        assert_eq!(line(ended), "a: passed in 2.5 s");
    }

    #[test]
    fn a_stage_can_have_a_target_directory_of_its_own() {
        let print = Cmd::new("sh").args(["-c", "echo $CARGO_TARGET_DIR"]);
        let mut output = Output::kept();
        report()
            .setting
            .perform(Stage::commands("a", vec![print]).with_target("asan"), &mut output);
        let kept = output.into_kept();
        assert!(
            kept.lines().any(|line| line.ends_with("/asan") && !line.starts_with('$')),
            "{kept}"
        );
    }

    #[test]
    fn a_stage_can_set_a_variable() {
        let print = Cmd::new("sh").args(["-c", "test \"$CC\" = true"]);
        let stage = Stage::commands("a", vec![print]).with_env("CC", "true");
        assert!(report().run(stage).failures.is_empty());
    }

    #[test]
    fn many_tests_that_are_skipped_for_one_reason_are_one_line() {
        let ignored = |test: usize, reason: &str| Ignored {
            suite: suite("s"),
            test: format!("t{test}"),
            reason: reason.to_owned(),
        };
        let mut all: Vec<Ignored> = (0..6).map(|test| ignored(test, "no rings")).collect();
        all.push(ignored(6, "no browser"));
        assert_eq!(skipped(&all), ["p s: t6: no browser", "p s: 6 tests: no rings"]);
    }

    #[test]
    fn code_that_counts_its_tests_adds_them_to_the_report() {
        let mut report = report();
        let rows = |result: &'static str, failures: &'static [&'static str]| {
            Stage::counted("c", move |tally, _| {
                tally.feed("Running rows (x/rows)");
                tally.feed(result);
                Ok(failures.iter().map(|text| (*text).to_owned()).collect())
            })
        };
        report.run(rows("test result: ok. 5 passed; 0 failed; 1 ignored", &[]));
        assert_eq!(report.counts().to_string(), "5 passed, 0 failed, 1 skipped");
        report.run(rows("test result: FAILED. 4 passed; 1 failed; 0 ignored", &["over"]));
        report.run(Stage::counted("d", |_, _| anyhow::bail!("no JSON")));
        assert_eq!(report.counts().to_string(), "9 passed, 2 failed, 1 skipped");
        assert!(!report.succeeded() && report.ended[1].failures == ["over"]);
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
