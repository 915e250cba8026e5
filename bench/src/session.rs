//! A run from step to step: what is shown, kept in files, and left out.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::MeasureError;
use crate::interrupt;
use crate::limit::{Limit, time_is_over};
use crate::options::Options;
use crate::plan::Step;
use crate::report::meta::Meta;
use crate::report::{Entry, Report, headline, html};
use crate::requirements;
use crate::{notes, targets};

/// The least share of the slices that a budget leaves.
const SCALE_MIN: f64 = 0.05;
/// The share of the time of a quick run that counts take from its slices.
pub(crate) const COUNTS_SHARE: f64 = 0.35;
/// The number of characters of the bar.
const BAR: usize = 20;

/// A run.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) report: Report,
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    budget: Option<Duration>,
    /// The beginning of the time that the budget limits.
    started: Instant,
    /// Minutes of the runs that this one resumes.
    minutes_before: f64,
    /// Expected seconds of the steps that are left: of those that can be shortened, what stays of
    /// them at least, and of the others.
    left_scaled: f64,
    left_scaled_min: f64,
    left_fixed: f64,
    /// Seconds that the finished steps took, and that were expected of them.
    took: f64,
    expected: f64,
    is_terminal: bool,
    number: usize,
    count: usize,
}

impl Session {
    /// Begins a run, or goes on with one that has a report.
    pub(crate) fn new(options: &Options, resumed: Option<Report>) -> Self {
        let report = resumed.unwrap_or_else(|| Report::new(Meta::now(options.quick)));
        Self {
            minutes_before: report.meta.minutes,
            report,
            json: options.json.clone(),
            html: options.html.clone(),
            budget: options.budget(),
            started: Instant::now(),
            left_scaled: 0.0,
            left_scaled_min: 0.0,
            left_fixed: 0.0,
            took: 0.0,
            expected: 0.0,
            is_terminal: std::io::stderr().is_terminal(),
            number: 0,
            count: 0,
        }
    }

    /// Leaves the time of the builds out of the budget of a quick run: it is that of measuring.
    pub(crate) fn start_after_build(&mut self, options: &Options) {
        if options.quick {
            self.started = Instant::now();
        }
    }

    /// Returns whether a step is already in the report. One that failed is tried again.
    pub(crate) fn is_done(&self, step: &Step) -> bool {
        self.report.is_done(&step.key)
    }

    /// Sets the steps of the run.
    pub(crate) fn expect(&mut self, steps: &[Step]) {
        (self.count, self.left_scaled, self.left_scaled_min, self.left_fixed) = (0, 0.0, 0.0, 0.0);
        for step in steps {
            if !self.is_done(step) {
                self.count += 1;
                self.add_left(step, 1.0);
            }
        }
    }

    fn add_left(&mut self, step: &Step, sign: f64) {
        if step.is_scaled() {
            self.left_scaled += sign * step.seconds;
            self.left_scaled_min += sign * step.seconds_min;
        } else {
            self.left_fixed += sign * step.seconds;
        }
    }

    /// Returns how much longer than expected the finished steps took.
    fn pace(&self) -> f64 {
        if self.expected < 5.0 { 1.0 } else { (self.took / self.expected).clamp(0.2, 5.0) }
    }

    /// Returns what is left of the time for a step, or `None` if that is too little.
    fn limit(&self, step: &Step) -> Option<Limit> {
        let Some(budget) = self.budget else { return Some(Limit { scale: 1.0, end: None }) };
        let end = Some(self.started + budget);
        let left = budget.checked_sub(self.started.elapsed())?.as_secs_f64() / self.pace();
        if !step.is_scaled() {
            return Some(Limit { scale: 1.0, end });
        }
        let is_quick = self.report.meta.quick;
        // The counts of a quick run end with its time.
        let share = if is_quick { COUNTS_SHARE } else { 1.0 };
        let counts_max = share * budget.as_secs_f64() / self.pace();
        let left = left - self.left_fixed.min(counts_max);
        let slices = self.left_scaled - self.left_scaled_min;
        let scale = (left - self.left_scaled_min) / slices.max(1e-3);
        let is_enough = !is_quick || left > step.seconds_min;
        is_enough.then(|| Limit { scale: scale.clamp(SCALE_MIN, 1.0), end })
    }

    /// Runs a step unless it is done, the machine lacks something, or the time is over. What it has
    /// found is printed and written. Nothing is kept of a step that is interrupted.
    pub(crate) fn step(
        &mut self,
        step: &Step,
        run: impl FnOnce(&mut Report, Limit),
    ) -> anyhow::Result<()> {
        if interrupt::is_set() || self.is_done(step) {
            return Ok(());
        }
        self.number += 1;
        let case = step.key.split_once('/').map_or("", |(_, case)| case);
        if let Some(reason) = requirements::lack(step.cases()) {
            self.report.skip(step.suite, case, "*", MeasureError::Unsupported(reason));
            self.report.done.insert(step.key.clone(), 0.0);
            return self.ended(step, 0.0, 1.0);
        }
        let Some(limit) = self.limit(step) else {
            self.report.skip(step.suite, case, "*", time_is_over());
            return self.ended(step, 0.0, 1.0);
        };
        self.show(&step.key);
        let mut found = Report::new(self.report.meta.clone());
        let started = Instant::now();
        run(&mut found, limit);
        let seconds = started.elapsed().as_secs_f64();
        if interrupt::is_set() {
            return Ok(());
        }
        self.print_results(&found.results);
        self.report.add_step(&step.key, (seconds * 100.0).round() / 100.0, found);
        self.ended(step, seconds, limit.scale)
    }

    fn ended(&mut self, step: &Step, seconds: f64, scale: f64) -> anyhow::Result<()> {
        self.add_left(step, -1.0);
        if seconds > 0.0 {
            self.took += seconds;
            self.expected += step.seconds_min + (step.seconds - step.seconds_min) * scale;
        }
        // The page is large, and is written at the end.
        match self.json.clone() {
            Some(path) => self.finish_meta().write(&path),
            None => Ok(()),
        }
    }

    /// Brings what is computed from the results up to date.
    fn finish_meta(&mut self) -> &Report {
        let report = &mut self.report;
        let now = Meta::now(report.meta.quick);
        let call = report.results.iter().find(|entry| {
            entry.params.get("call").is_some_and(|call| call.as_str() == Some("getppid"))
        });
        let price = call.and_then(|entry| entry.metrics.get("ns_per_call"));
        if self.took > 0.0 {
            report.meta.add_commit(&now.git);
        }
        report.meta = Meta {
            minutes: self.minutes_before + self.started.elapsed().as_secs_f64() / 60.0,
            empty_call_ns: price.map(|spread| spread.median),
            coverage_percent: report.meta.coverage_percent,
            build_seconds: report.meta.build_seconds,
            git: std::mem::take(&mut report.meta.git),
            ..now
        };
        report.targets = targets::reached(&report.results);
        report.notes = notes::of(&report.results);
        report
    }

    /// Writes the files of the run.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.clear();
        let (json, page) = (self.json.clone(), self.html.clone());
        let report = self.finish_meta();
        if let Some(path) = json {
            report.write(&path)?;
        }
        if let Some(path) = page {
            std::fs::write(&path, html::page(report))
                .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Shows the step that begins: a line, or on a terminal a bar with the time that is left.
    fn show(&self, key: &str) {
        if !self.is_terminal {
            eprintln!("{key}");
            return;
        }
        let share = (self.number - 1) as f64 / self.count.max(1) as f64;
        let filled = (share * BAR as f64) as usize;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        let mut left = (self.left_scaled + self.left_fixed) * self.pace();
        if let Some(budget) = self.budget {
            left = left.min(budget.saturating_sub(self.started.elapsed()).as_secs_f64());
        }
        let (number, count, left) = (self.number, self.count, in_words(left));
        eprint!("\r\x1b[2K{bar} {number}/{count}, {left} left: {key}");
        // Nothing is lost if a progress bar cannot be shown.
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }

    /// Prints what is new in the report, a line a case with the ratio first.
    fn print_results(&self, results: &[Entry]) {
        self.clear();
        for case in headline::cases(results) {
            match headline::of(&case) {
                Some(headline) => println!("{}", headline.line(&case.title)),
                None => {
                    println!("{:>28}  {}  {} figures", "", case.title, case.entries.len());
                }
            }
        }
    }
}

fn in_words(seconds: f64) -> String {
    if seconds < 60.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::plan::plan;
    use crate::report::stats::Spread;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from([&["windlass-bench"], arguments].concat())
    }

    fn entry(suite: &str) -> Entry {
        Entry {
            suite: suite.into(),
            case: "case".into(),
            params: [].into(),
            implementation: "windlass".into(),
            backend: "epoll".into(),
            version: "1".into(),
            metrics: [("ns_per_call".to_owned(), Spread::exact(1.0))].into(),
            samples: Vec::new(),
        }
    }

    #[test]
    fn a_step_that_is_done_is_not_run_again_by_a_resumed_run() {
        let options = options(&["utf8", "--quick"]);
        let steps = plan(&options);
        let mut session = Session::new(&options, None);
        session.expect(&steps);
        session.step(&steps[0], |report, _| report.results.push(entry("utf8"))).unwrap();
        let report = session.report.clone();
        let mut resumed = Session::new(&options, Some(report));
        resumed.expect(&steps);
        assert_eq!(resumed.count, steps.len() - 1);
        resumed.step(&steps[0], |_, _| panic!("it is done")).unwrap();
        resumed.step(&steps[1], |report, _| report.results.push(entry("utf8"))).unwrap();
        assert_eq!(resumed.report.results.len(), 2);
    }

    #[test]
    fn a_step_that_failed_is_kept_and_tried_again_by_a_resumed_run() {
        let options = options(&["utf8", "--quick"]);
        let steps = plan(&options);
        let figure = |value: f64| Entry {
            metrics: [("ns_per_call".to_owned(), Spread::exact(value))].into(),
            ..entry("utf8")
        };
        let fails = |report: &mut Report, value| {
            report.results.push(figure(value));
            report.skip("utf8", "validate", "mio", MeasureError::failed("it has ended"));
            report.skip("utf8", "validate", "tokio", MeasureError::Unsupported("no".into()));
        };
        let mut session = Session::new(&options, None);
        session.expect(&steps);
        session.step(&steps[0], |report, _| fails(report, 1.0)).unwrap();
        assert_eq!((session.report.results.len(), session.report.failures().count()), (1, 1));
        // It may fail again, and is still tried again.
        for value in [2.0, 3.0] {
            session = Session::new(&options, Some(session.report));
            session.expect(&steps);
            assert_eq!(session.count, steps.len());
            session.step(&steps[0], |report, _| fails(report, value)).unwrap();
            assert_eq!((session.report.results.len(), session.report.skipped.len()), (1, 2));
        }
        let is_over = |report: &mut Report| report.skip("utf8", "*", "*", time_is_over());
        session.step(&steps[0], |report, _| is_over(report)).unwrap();
        assert!(!session.is_done(&steps[0]) && session.report.failures().next().is_none());
        session.step(&steps[0], |report, _| report.results.push(figure(4.0))).unwrap();
        assert!(session.is_done(&steps[0]) && session.report.failures().next().is_none());
        let [kept] = &session.report.results[..] else { panic!("one figure, the newest") };
        assert_eq!(kept.metrics["ns_per_call"], Spread::exact(4.0));
    }

    #[test]
    fn each_step_is_written_when_it_ends() {
        let path = std::env::temp_dir().join(format!("windlass-bench-{}.json", std::process::id()));
        let options = options(&["utf8", "--quick", "--json", path.to_str().unwrap()]);
        let steps = plan(&options);
        let mut session = Session::new(&options, None);
        session.step(&steps[0], |report, _| report.results.push(entry("utf8"))).unwrap();
        let written = Report::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((written.results.len(), written.done.len()), (1, 1));
    }

    #[test]
    fn the_counts_of_a_quick_run_have_their_share_of_the_time_and_end_with_it() {
        let options = options(&["dispatch", "--quick", "--budget", "1"]);
        let steps = plan(&options);
        let mut session = Session::new(&options, None);
        session.expect(&steps);
        let counts = steps.iter().find(|step| !step.is_scaled()).unwrap();
        assert_eq!(
            session.limit(counts).unwrap().end,
            Some(session.started + session.budget.unwrap())
        );
        // Of a minute, what counts leave is 39 seconds.
        session.left_fixed = 1_000.0;
        session.left_scaled = 139.0;
        session.left_scaled_min = 0.0;
        let scale = session.limit(&steps[0]).unwrap().scale;
        assert!((0.25..=0.29).contains(&scale), "{scale}");
        let long = Step { seconds_min: 50.0, ..plan(&options).remove(0) };
        assert!(session.limit(&long).is_none(), "the counts would get less");
        session.left_fixed = 0.0;
        assert!(session.limit(&long).is_some());
    }

    #[test]
    fn a_budget_shortens_slices_and_then_leaves_steps_out() {
        let options = options(&["utf8", "--budget", "1"]);
        let steps = plan(&options);
        let mut session = Session::new(&options, None);
        session.expect(&steps);
        (session.left_scaled, session.left_scaled_min, session.left_fixed) = (240.0, 0.0, 0.0);
        let scale = session.limit(&steps[0]).unwrap().scale;
        assert!((0.2..=0.25).contains(&scale), "a minute of four: {scale}");
        session.budget = Some(Duration::ZERO);
        session.step(&steps[0], |_, _| panic!("the time is over")).unwrap();
        assert!(session.report.skipped[0].is_over_budget());
        assert!(!session.is_done(&steps[0]), "a resumed run measures it");
    }
}
