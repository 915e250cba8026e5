//! A whole run: builds the programs, times them and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use windlass_bench_driver::protocol::{Case, Trigger};

use crate::cases::{self, Shape};
use crate::counts::Build;
use crate::error::MeasureError;
use crate::interrupt;
use crate::limit::{Counting, Limit, time_is_over};
use crate::options::Options;
use crate::pin::{Pin, allowed_cpus};
use crate::plan::{Step, Work, scaled};
use crate::programs::build::{Built, build};
use crate::programs::{PROGRAMS, Program, RAW, UNSUPPORTED};
use crate::report::stats::{Line, Spread};
use crate::report::{Entry, Report};
use crate::servers;
use crate::session::Session;
use crate::syscalls;
use crate::timing::{self, CaseRun, Implementation, participating, time};
use crate::tools::instructions::{CountedCase, Tool};

/// Returns the builds whose instructions are counted in this run. The first one is also timed.
fn profiles(options: &Options) -> Vec<&'static str> {
    let timed = options.profile.name();
    let is_also_counted = |profile: &&str| *profile != timed && options.counts_with_lto();
    [timed].into_iter().chain(["lto"].into_iter().filter(is_also_counted)).collect()
}

/// The programs that are built before the first step, so that their time is not that of a case.
struct Programs {
    timed: Built,
    /// With fat LTO, if instructions of them are counted.
    lto: Built,
}

impl Programs {
    fn build(options: &Options, steps: &[Step]) -> Self {
        let suites: BTreeSet<&str> = steps.iter().map(|step| step.suite).collect();
        let takes_part = |program: &Program| {
            program.suites().iter().any(|suite| suites.contains(suite))
                && options.wants_program(program)
                && options.lacks_processors(program, allowed_cpus().len()).is_none()
        };
        let all = || PROGRAMS.iter().filter(|program| takes_part(program)).copied();
        let servers = servers::programs(options, &suites);
        let timed = options.profile.name();
        let mut release = Vec::from_iter(all());
        if timed == "release" {
            release.extend(servers.iter().copied());
        }
        let mut programs = Self { timed: build(&release, timed), lto: Built::default() };
        if timed != "release" && !servers.is_empty() {
            // Servers are always those of `release`.
            programs.timed.extend(build(&servers, "release"));
        }
        let counted = |program: &Program| {
            let is_counted = |step: &Step| {
                matches!(step.work, Work::Instructions)
                    && program.suites().contains(&step.suite)
                    && has_lto_counts(step.suite, options.quick)
            };
            steps.iter().any(is_counted)
        };
        let lto: Vec<Program> = all().filter(counted).collect();
        if profiles(options).len() > 1 && !lto.is_empty() {
            programs.lto = build(&lto, "lto");
        }
        programs
    }
}

/// Returns whether the counts of a suite differ much in the build with fat LTO.
fn has_lto_counts(suite: &str, quick: bool) -> bool {
    suite == "dispatch" || cases::counted(suite, quick).iter().any(cases::is_counted_with_lto)
}

/// Runs the steps of the requested suites that the session has not done.
pub(crate) fn run(options: &Options, steps: &[Step], session: &mut Session) -> anyhow::Result<()> {
    let pin = options.cpu.unwrap_or_else(Pin::default_cpu);
    session.expect(steps);
    let left: Vec<&Step> = steps.iter().filter(|step| !session.is_done(step)).collect();
    if left.is_empty() {
        return session.finish();
    }
    let programs = Programs::build(options, steps);
    session.start_after_build(options);
    let kind = |step: &Step| (step.suite, step.is_of_servers());
    for steps in left.chunk_by(|one, other| kind(one) == kind(other)) {
        if interrupt::is_set() {
            break;
        }
        let (suite, is_of_servers) = kind(steps[0]);
        let steps = steps.iter().copied();
        if is_of_servers {
            servers::run(suite, steps, options, &programs.timed, pin, session)?;
            continue;
        }
        for (_, peer, reason) in
            UNSUPPORTED.iter().filter(|(of, peer, _)| *of == suite && options.wants_peer(peer))
        {
            let error = MeasureError::Unsupported((*reason).to_owned());
            session.report.skip(suite, "*", peer, error);
        }
        let timed = options.profile.name();
        let mut implementations =
            implementations(options, suite, timed, &programs.timed, &mut session.report);
        for step in steps {
            session.step(step, |report, limit| {
                work(step, limit, options, pin, &programs, &mut implementations, report);
            })?;
        }
    }
    session.finish()
}

fn work(
    step: &Step,
    limit: Limit,
    options: &Options,
    pin: Pin,
    programs: &Programs,
    implementations: &mut [Implementation],
    report: &mut Report,
) {
    let suite = step.suite;
    match &step.work {
        Work::Time(group) => {
            let shape = scaled(cases::shape(&group[0], options.quick), limit.scale);
            time_group(group, shape, pin, implementations, report);
        }
        Work::Allocations(case) => count_allocations(case, pin, implementations, report),
        Work::Instructions => {
            implementations.iter_mut().for_each(Implementation::rest);
            if suite == "dispatch" {
                instructions(options, implementations, programs, limit, report);
            } else {
                count_in_memory(suite, options, implementations, programs, limit, report);
            }
        }
        Work::SystemCalls => {
            implementations.iter_mut().for_each(Implementation::rest);
            syscalls::count(suite, implementations, limit, report);
        }
        Work::Server(_) | Work::ServerCounts => unreachable!("a step of servers"),
    }
}

/// Returns the programs that take part in a suite, on each backend.
fn implementations(
    options: &Options,
    suite: &str,
    profile: &'static str,
    built: &Built,
    report: &mut Report,
) -> Vec<Implementation> {
    let mut implementations = Vec::new();
    let takes_part =
        |program: &&Program| program.suites().contains(&suite) && options.wants_program(program);
    for program in PROGRAMS.iter().filter(takes_part) {
        let lack = options.lacks_processors(program, allowed_cpus().len());
        match lack.map_or_else(|| built.path(program), Err) {
            Ok(path) => implementations.extend(backends(program, options, profile, &path)),
            Err(reason) => {
                report.skip(suite, "*", program.name, MeasureError::Unsupported(reason));
            }
        }
    }
    implementations
}

fn backends(
    program: &'static Program,
    options: &Options,
    profile: &'static str,
    path: &Path,
) -> Vec<Implementation> {
    let backends = program.backends(&options.backends).into_iter();
    let on = |backend| Implementation::new(program, backend, profile, path.to_owned());
    backends.map(on).collect()
}

fn time_group(
    group: &[Case],
    shape: Shape,
    pin: Pin,
    implementations: &mut [Implementation],
    report: &mut Report,
) {
    let mut takes_part = participating(group[0].part());
    let participating =
        implementations.iter_mut().filter(|implementation| takes_part(implementation));
    if let [case] = group {
        let mut runs: Vec<_> =
            participating.map(|implementation| CaseRun { implementation, case }).collect();
        time(&mut runs, shape, pin, report);
        return;
    }
    // A program has one prepared case at a time, so each case of a group has its own program.
    let participating: Vec<&Implementation> =
        participating.map(|implementation| &*implementation).collect();
    let all = group.iter().flat_map(|case| {
        participating.iter().map(move |implementation| (implementation.another(), case))
    });
    let mut all: Vec<(Implementation, &Case)> = all.collect();
    let mut runs: Vec<_> =
        all.iter_mut().map(|(implementation, case)| CaseRun { implementation, case }).collect();
    time(&mut runs, shape, pin, report);
}

/// Counts the allocations and bytes of a case, in slices that are not timed.
fn count_allocations(
    case: &Case,
    pin: Pin,
    implementations: &mut [Implementation],
    report: &mut Report,
) {
    let rounds = cases::untimed_rounds(case);
    let mut takes_part = participating(case.part());
    for implementation in implementations.iter_mut() {
        if takes_part(implementation) {
            timing::count(&mut CaseRun { implementation, case }, rounds, pin, report);
        }
    }
}

/// Counts the instructions of a suite per round, in both builds where they differ much.
fn count_in_memory(
    suite: &'static str,
    options: &Options,
    timed: &[Implementation],
    programs: &Programs,
    limit: Limit,
    report: &mut Report,
) {
    let tool = options.find_tool();
    let mut counting = Counting::new(limit);
    for profile in profiles(options) {
        let is_timed = profile == options.profile.name();
        if !is_timed && !has_lto_counts(suite, options.quick) {
            continue;
        }
        let built;
        let implementations = if is_timed {
            timed
        } else {
            built = implementations(options, suite, profile, &programs.lto, report);
            &built
        };
        Build { profile, implementations, timed, is_timed }.count(
            suite,
            options.quick,
            &tool,
            &mut counting,
            report,
        );
    }
}

/// Returns the numbers of ready sources that determine the line.
fn ready_counts(quick: bool) -> &'static [u64] {
    if quick { &[1, 16, 64] } else { &[1, 4, 16, 64, 256] }
}

/// Returns the cases whose instructions are counted in addition to the line, and the events of a
/// round. All of them are timed as well, so that times and instructions stand side by side.
fn counted_cases() -> Vec<(CountedCase, u64)> {
    let trigger = Trigger::Edge;
    let one = |case| (CountedCase::new(case, 1), 1);
    vec![
        one(Case::StaysReady { registered: 1 }),
        one(Case::OneReady { registered: 1_000, trigger }),
        one(Case::FourFds { subscribers: 100, trigger }),
        (CountedCase::new(Case::EightTypes { registered: 256, ready: 64 }, 64), 64),
    ]
}

/// Counts the instructions of the suite `dispatch` in both builds.
fn instructions(
    options: &Options,
    timed: &[Implementation],
    programs: &Programs,
    limit: Limit,
    report: &mut Report,
) {
    let mut counting = Counting::new(limit);
    let tool = match options.find_tool() {
        Ok(tool) => tool,
        Err(reason) => {
            report.skip("dispatch", "instructions", "*", MeasureError::Unsupported(reason));
            return;
        }
    };
    for profile in profiles(options) {
        let built;
        let implementations = if profile == options.profile.name() {
            timed
        } else {
            built = implementations(options, "dispatch", profile, &programs.lto, report);
            &built
        };
        let mut counts = Vec::new();
        for implementation in implementations.iter().filter(|c| c.program.has("dispatch")) {
            eprintln!(
                "dispatch/instructions {} ({profile}, {})",
                implementation.program.name,
                tool.name()
            );
            let counted = counting.next(|| count(tool, implementation, options.quick));
            match counted.unwrap_or_else(|| Err(time_is_over())) {
                Ok(count) => counts.push((implementation, count)),
                Err(error) => {
                    report.skip("dispatch", "instructions", implementation.program.name, error);
                }
            }
        }
        let version =
            |name: &str| timed.iter().find(|c| c.program.name == name).map(|c| c.version.clone());
        let raw =
            counts.iter().find(|(c, _)| c.program.name == RAW).map(|(_, count)| count.clone());
        for (implementation, count) in counts {
            let version = version(implementation.program.name).unwrap_or_default();
            let raw = raw.as_ref().filter(|_| implementation.program.name != RAW);
            report.results.extend(count.entries(implementation, &version, profile, tool, raw));
        }
    }
}

/// The counts of one implementation in one build.
#[derive(Clone)]
struct DispatchCounts {
    line: Line,
    /// Instructions per event or turn of each further case.
    cases: Vec<(Case, f64)>,
}

fn count(
    tool: Tool,
    implementation: &Implementation,
    quick: bool,
) -> Result<DispatchCounts, MeasureError> {
    let ready = ready_counts(quick);
    let trigger = Trigger::Edge;
    let mut all: Vec<CountedCase> = ready
        .iter()
        .map(|&n| CountedCase::new(Case::AllReady { registered: n as usize, trigger }, n))
        .collect();
    let others = counted_cases();
    all.extend(others.iter().map(|(counted, _)| counted.clone()));
    let counts = tool.count(&implementation.path, implementation.backend, &all)?;
    let points: Vec<(f64, f64)> =
        ready.iter().zip(&counts).map(|(&n, &count)| (n as f64, count)).collect();
    let line = Line::fit(&points).ok_or_else(|| MeasureError::Failed("no line".into()))?;
    let cases = others.into_iter().zip(&counts[ready.len()..]);
    let cases = cases.map(|((counted, ready), count)| (counted.case, count / ready as f64));
    Ok(DispatchCounts { line, cases: cases.collect() })
}

impl DispatchCounts {
    fn entries(
        &self,
        implementation: &Implementation,
        version: &str,
        profile: &str,
        tool: Tool,
        raw: Option<&Self>,
    ) -> Vec<Entry> {
        let entry =
            |case: String, mut params: BTreeMap<String, Value>, metrics: Vec<(String, f64)>| {
                params.insert("profile".to_owned(), profile.into());
                params.insert("tool".to_owned(), tool.name().into());
                let metrics = metrics.into_iter();
                Entry {
                    suite: "dispatch".to_owned(),
                    case,
                    params,
                    implementation: implementation.program.name.to_owned(),
                    backend: implementation.backend.to_owned(),
                    version: version.to_owned(),
                    metrics: metrics.map(|(k, v)| (k, Spread::exact(v))).collect(),
                    samples: Vec::new(),
                }
            };
        let mut metrics = vec![
            ("user_instructions_per_turn", self.line.base),
            ("user_instructions_per_event", self.line.slope),
            ("fit_residual_max_instructions", self.line.residual_max),
        ];
        if let Some(raw) = raw {
            let over = [
                ("over_raw_user_instructions_per_turn", self.line.base - raw.line.base),
                ("over_raw_user_instructions_per_event", self.line.slope - raw.line.slope),
            ];
            metrics.extend(over);
        }
        let metrics = metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let trigger = ("trigger".to_owned(), Value::from("edge"));
        let mut entries = vec![entry("instructions".into(), [trigger].into(), metrics)];
        for (number, (case, count)) in self.cases.iter().enumerate() {
            let (name, params) = cases::describe(case);
            let unit = cases::unit(case);
            let mut metrics = vec![(format!("user_instructions_per_{unit}"), *count)];
            if let Some(raw) = raw {
                let over = count - raw.cases[number].1;
                metrics.push((format!("over_raw_user_instructions_per_{unit}"), over));
            }
            entries.push(entry(name, params, metrics));
        }
        entries
    }
}
