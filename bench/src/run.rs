//! A whole run: builds the programs, times them and counts.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use windlass_bench_driver::protocol::{Case, Trigger};

use crate::cases;
use crate::counts::Build;
use crate::error::MeasureError;
use crate::notes;
use crate::options::Options;
use crate::pin::{Pin, allowed_cpus};
use crate::programs::{PROGRAMS, Program, RAW, UNSUPPORTED};
use crate::report::meta::Meta;
use crate::report::stats::{Line, Spread};
use crate::report::{Entry, Report};
use crate::servers;
use crate::syscalls;
use crate::targets;
use crate::timing::{self, CaseRun, Implementation, participating, time};
use crate::tools::instructions::{CountedCase, Tool};

/// Returns the builds whose instructions are counted in this run. The first one is also timed.
fn profiles(options: &Options) -> Vec<&'static str> {
    let timed = options.profile.name();
    let is_also_counted = |profile: &&str| *profile != timed && !options.no_lto;
    [timed].into_iter().chain(["lto"].into_iter().filter(is_also_counted)).collect()
}

/// Runs the requested suites.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new(Meta::now(options.quick));
    let pin = options.cpu.unwrap_or_else(Pin::default_cpu);
    let suites: Vec<&str> =
        cases::SUITES.iter().copied().filter(|suite| options.wants_suite(suite)).collect();
    let mut implementations =
        implementations(options, &suites, options.profile.name(), &mut report);
    for suite in suites {
        for (_, peer, reason) in
            UNSUPPORTED.iter().filter(|(of, peer, _)| *of == suite && options.wants_peer(peer))
        {
            report.skip(suite, "*", peer, MeasureError::Unsupported((*reason).to_owned()));
        }
        if options.counts_only {
            count_allocations(suite, options, pin, &mut implementations, &mut report);
        } else {
            time_suite(suite, options, pin, &mut implementations, &mut report);
        }
        if options.no_counts {
            continue;
        }
        if suite == "dispatch" && options.wants_case("instructions") {
            instructions(options, &implementations, &mut report);
        }
        if !cases::counted(suite, options.quick).is_empty() && options.wants_case("instructions") {
            count_in_memory(suite, options, &implementations, &mut report);
        }
        if options.wants_case("system_calls") {
            syscalls::count(suite, &implementations, &mut report);
        }
    }
    servers::run(options, pin, &mut report);
    report.targets = targets::reached(&report.results);
    report.notes = notes::of(&report.results);
    report.meta = Meta::now(options.quick);
    Ok(report)
}

/// Builds every program that takes part.
fn implementations(
    options: &Options,
    suites: &[&str],
    profile: &'static str,
    report: &mut Report,
) -> Vec<Implementation> {
    let mut implementations = Vec::new();
    for program in PROGRAMS {
        let takes_part = program.suites().iter().any(|suite| suites.contains(suite));
        if !takes_part || !options.wants_program(program) {
            continue;
        }
        let lack = options.lacks_processors(program, allowed_cpus().len());
        let built = match lack {
            Some(reason) => Err(reason),
            None => {
                eprintln!("building {} ({profile})", program.name);
                program.build(profile)
            }
        };
        match built {
            Ok(path) => implementations.extend(backends(program, options, profile, &path)),
            Err(reason) => {
                let error = MeasureError::Unsupported(reason);
                for suite in program.suites().into_iter().filter(|suite| suites.contains(suite)) {
                    report.skip(suite, "*", program.name, error.clone());
                }
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

fn time_suite(
    suite: &str,
    options: &Options,
    pin: Pin,
    implementations: &mut [Implementation],
    report: &mut Report,
) {
    let groups = cases::groups(suite, options.quick);
    for group in groups.iter().filter(|group| group.iter().any(|case| options.wants(case))) {
        eprintln!("{suite}/{}", title(group));
        let shape = cases::shape(&group[0], options.quick);
        let mut takes_part = participating(group[0].part());
        let participating =
            implementations.iter_mut().filter(|implementation| takes_part(implementation));
        if let [case] = &group[..] {
            let mut runs: Vec<_> =
                participating.map(|implementation| CaseRun { implementation, case }).collect();
            time(&mut runs, shape, pin, report);
            continue;
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
    implementations.iter_mut().for_each(Implementation::rest);
}

/// Counts the allocations and bytes of a suite's cases, in slices that are not timed.
fn count_allocations(
    suite: &str,
    options: &Options,
    pin: Pin,
    implementations: &mut [Implementation],
    report: &mut Report,
) {
    if !options.wants_case("allocations") {
        return;
    }
    let all = cases::groups(suite, options.quick).into_iter().flatten();
    for case in all.filter(cases::counts_allocations) {
        eprintln!("{suite}/{} (allocations)", title(std::slice::from_ref(&case)));
        let rounds = cases::untimed_rounds(&case);
        let mut takes_part = participating(case.part());
        for implementation in implementations.iter_mut() {
            if takes_part(implementation) {
                let mut run = CaseRun { implementation, case: &case };
                timing::count(&mut run, rounds, pin, report);
            }
        }
    }
    implementations.iter_mut().for_each(Implementation::rest);
}

/// Returns the name of a group's case, and the parameters of each.
fn title(group: &[Case]) -> String {
    let params = group.iter().map(|case| {
        let (_, params) = cases::describe(case);
        let params: Vec<String> = params.values().map(Value::to_string).collect();
        params.join(" ")
    });
    let params: Vec<String> = params.collect();
    format!("{} {}", cases::describe(&group[0]).0, params.join(", ")).trim_end().to_owned()
}

/// Counts the instructions of a suite per round, in both builds where they differ much.
fn count_in_memory(suite: &str, options: &Options, timed: &[Implementation], report: &mut Report) {
    let tool = options.find_tool();
    for profile in profiles(options) {
        let is_timed = profile == options.profile.name();
        if !is_timed && !cases::counted(suite, options.quick).iter().any(cases::is_counted_with_lto)
        {
            continue;
        }
        let built;
        let implementations = if is_timed {
            timed
        } else {
            built = implementations(options, &[suite], profile, report);
            &built
        };
        Build { profile, implementations, timed, is_timed }.count(
            suite,
            options.quick,
            &tool,
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
fn instructions(options: &Options, timed: &[Implementation], report: &mut Report) {
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
            built = implementations(options, &["dispatch"], profile, report);
            &built
        };
        let mut counts = Vec::new();
        for implementation in implementations.iter().filter(|c| c.program.has("dispatch")) {
            eprintln!(
                "dispatch/instructions {} ({profile}, {})",
                implementation.program.name,
                tool.name()
            );
            match count(tool, implementation, options.quick) {
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
