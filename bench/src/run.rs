//! A whole run: builds, times, counts.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use windlass_bench_driver::protocol::{Awake, Case, Trigger};

use crate::child::Refusal;
use crate::cli::{Options, Pin};
use crate::counts::Build;
use crate::instructions::{Counted, Tool};
use crate::meta::Meta;
use crate::plan;
use crate::program::{LACKS, PROGRAMS, Program, RAW};
use crate::report::{Entry, Report};
use crate::servers;
use crate::stats::{Line, Spread};
use crate::syscalls;
use crate::timing::{Contender, Entrant, taking_part, time};

/// Builds of which instructions are counted; the first one is also timed.
const PROFILES: [&str; 2] = ["release", "lto"];

/// Runs what the command line asks for.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new(Meta::now(options.quick));
    let pin = options.cpu.unwrap_or_else(last_allowed_cpu);
    let suites: Vec<&str> =
        plan::SUITES.iter().copied().filter(|suite| options.wants_suite(suite)).collect();
    let mut contenders = contenders(options, &suites, PROFILES[0], &mut report);
    for suite in suites {
        for (_, peer, reason) in
            LACKS.iter().filter(|(of, peer, _)| *of == suite && options.wants_peer(peer))
        {
            report.refuse(suite, "*", peer, Refusal::Unsupported((*reason).to_owned()));
        }
        time_suite(suite, options, pin, &mut contenders, &mut report);
        if options.no_counts {
            continue;
        }
        if suite == "dispatch" && options.wants_case("instructions") {
            instructions(options, &contenders, &mut report);
        }
        if !plan::counted(suite, options.quick).is_empty() && options.wants_case("instructions") {
            count_in_memory(suite, options, &contenders, &mut report);
        }
        if !traced(suite).is_empty() && options.wants_case("system_calls") {
            count_syscalls(suite, &contenders, &mut report);
        }
    }
    servers::run(options, pin, &mut report);
    report.meta = Meta::now(options.quick);
    Ok(report)
}

/// Builds every program that takes part.
fn contenders(
    options: &Options,
    suites: &[&str],
    profile: &str,
    report: &mut Report,
) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for program in PROGRAMS {
        let takes_part = program.suites().iter().any(|suite| suites.contains(suite));
        if !takes_part || !program.is_wanted(&options.peers) {
            continue;
        }
        eprintln!("building {} ({profile})", program.name);
        match program.build(profile) {
            Ok(path) => contenders.extend(backends(program, options, &path)),
            Err(reason) => {
                let refusal = Refusal::Unsupported(reason);
                for suite in program.suites().into_iter().filter(|suite| suites.contains(suite)) {
                    report.refuse(suite, "*", program.name, refusal.clone());
                }
            }
        }
    }
    contenders
}

fn backends(program: &'static Program, options: &Options, path: &Path) -> Vec<Contender> {
    let backends = program.backends(&options.backends).into_iter();
    backends.map(|backend| Contender::new(program, backend, path.to_owned())).collect()
}

fn time_suite(
    suite: &str,
    options: &Options,
    pin: Pin,
    contenders: &mut [Contender],
    report: &mut Report,
) {
    let groups = plan::groups(suite, options.quick);
    for group in groups.iter().filter(|group| options.wants_case(&plan::describe(&group[0]).0)) {
        eprintln!("{suite}/{}", title(group));
        let shape = plan::shape(&group[0], options.quick);
        let mut takes_part = taking_part(group[0].part());
        let taking_part = contenders.iter_mut().filter(|contender| takes_part(contender));
        if let [case] = &group[..] {
            let mut entrants: Vec<_> =
                taking_part.map(|contender| Entrant { contender, case }).collect();
            time(&mut entrants, shape, pin, report);
            continue;
        }
        // A program has one case prepared at a time, so each case of a group has its own.
        let taking_part: Vec<&Contender> = taking_part.map(|contender| &*contender).collect();
        let all = group
            .iter()
            .flat_map(|case| taking_part.iter().map(move |contender| (contender.another(), case)));
        let mut all: Vec<(Contender, &Case)> = all.collect();
        let mut entrants: Vec<_> =
            all.iter_mut().map(|(contender, case)| Entrant { contender, case }).collect();
        time(&mut entrants, shape, pin, report);
    }
    contenders.iter_mut().for_each(Contender::rest);
}

/// The name of a group's case, and the parameters of each.
fn title(group: &[Case]) -> String {
    let params = group.iter().map(|case| {
        let (_, params) = plan::describe(case);
        let params: Vec<String> = params.values().map(Value::to_string).collect();
        params.join(" ")
    });
    let params: Vec<String> = params.collect();
    format!("{} {}", plan::describe(&group[0]).0, params.join(", ")).trim_end().to_owned()
}

/// Counts instructions of a suite by the round, in both builds where that tells something.
fn count_in_memory(suite: &str, options: &Options, timed: &[Contender], report: &mut Report) {
    let tool = options.tool.map_or_else(Tool::find, Ok);
    for profile in PROFILES {
        let is_timed = profile == PROFILES[0];
        if !is_timed && !plan::counted(suite, options.quick).iter().any(plan::is_counted_with_lto) {
            continue;
        }
        let built;
        let contenders = if is_timed {
            timed
        } else {
            built = contenders(options, &[suite], profile, report);
            &built
        };
        Build { profile, contenders, timed, is_timed }.count(suite, options.quick, &tool, report);
    }
}

/// Numbers of ready sources through which the line is laid.
fn ready_counts(quick: bool) -> &'static [u64] {
    if quick { &[1, 16, 64] } else { &[1, 4, 16, 64, 256] }
}

/// Cases whose instructions per event are counted beside the line.
fn counted_cases() -> Vec<(Counted, u64)> {
    let trigger = Trigger::Edge;
    let one = |case| (Counted::new(case, 1), 1);
    vec![
        one(Case::OneReady { registered: 400, trigger }),
        one(Case::FourFds { subscribers: 100, trigger }),
        (Counted::new(Case::EightTypes { registered: 256, ready: 64 }, 64), 64),
    ]
}

/// Counts instructions in both builds.
fn instructions(options: &Options, timed: &[Contender], report: &mut Report) {
    let tool = match options.tool.map_or_else(Tool::find, Ok) {
        Ok(tool) => tool,
        Err(reason) => {
            report.refuse("dispatch", "instructions", "*", Refusal::Unsupported(reason));
            return;
        }
    };
    for profile in PROFILES {
        let built;
        let contenders = if profile == PROFILES[0] {
            timed
        } else {
            built = contenders(options, &["dispatch"], profile, report);
            &built
        };
        let mut counts = Vec::new();
        for contender in contenders.iter().filter(|c| c.program.has("dispatch")) {
            eprintln!(
                "dispatch/instructions {} ({profile}, {})",
                contender.program.name,
                tool.name()
            );
            match count(tool, contender, options.quick) {
                Ok(count) => counts.push((contender, count)),
                Err(refusal) => {
                    report.refuse("dispatch", "instructions", contender.program.name, refusal);
                }
            }
        }
        let version =
            |name: &str| timed.iter().find(|c| c.program.name == name).map(|c| c.version.clone());
        let raw =
            counts.iter().find(|(c, _)| c.program.name == RAW).map(|(_, count)| count.clone());
        for (contender, count) in counts {
            let version = version(contender.program.name).unwrap_or_default();
            let raw = raw.as_ref().filter(|_| contender.program.name != RAW);
            report.results.extend(count.entries(contender, &version, profile, tool, raw));
        }
    }
}

/// The counts of one implementation in one build.
#[derive(Clone)]
struct Counts {
    line: Line,
    /// Instructions per event, beside the case.
    cases: Vec<(Case, f64)>,
}

fn count(tool: Tool, contender: &Contender, quick: bool) -> Result<Counts, Refusal> {
    let ready = ready_counts(quick);
    let trigger = Trigger::Edge;
    let mut all: Vec<Counted> = ready
        .iter()
        .map(|&n| Counted::new(Case::AllReady { registered: n as usize, trigger }, n))
        .collect();
    let others = counted_cases();
    all.extend(others.iter().map(|(counted, _)| counted.clone()));
    let counts = tool.count(&contender.path, contender.backend, &all)?;
    let points: Vec<(f64, f64)> =
        ready.iter().zip(&counts).map(|(&n, &count)| (n as f64, count)).collect();
    let line = Line::fit(&points).ok_or_else(|| Refusal::Failed("no line".into()))?;
    let cases = others.into_iter().zip(&counts[ready.len()..]);
    let cases = cases.map(|((counted, ready), count)| (counted.case, count / ready as f64));
    Ok(Counts { line, cases: cases.collect() })
}

impl Counts {
    fn entries(
        &self,
        contender: &Contender,
        version: &str,
        profile: &str,
        tool: Tool,
        raw: Option<&Self>,
    ) -> Vec<Entry> {
        let entry =
            |case: String, mut params: BTreeMap<String, Value>, metrics: Vec<(&str, f64)>| {
                params.insert("profile".to_owned(), profile.into());
                params.insert("tool".to_owned(), tool.name().into());
                let metrics = metrics.into_iter();
                Entry {
                    suite: "dispatch".to_owned(),
                    case,
                    params,
                    implementation: contender.program.name.to_owned(),
                    backend: contender.backend.to_owned(),
                    version: version.to_owned(),
                    metrics: metrics.map(|(k, v)| (k.to_owned(), Spread::exact(v))).collect(),
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
        let trigger = ("trigger".to_owned(), Value::from("edge"));
        let mut entries = vec![entry("instructions".into(), [trigger].into(), metrics)];
        for (number, (case, count)) in self.cases.iter().enumerate() {
            let (name, params) = plan::describe(case);
            let mut metrics = vec![("user_instructions_per_event", *count)];
            if let Some(raw) = raw {
                let over = count - raw.cases[number].1;
                metrics.push(("over_raw_user_instructions_per_event", over));
            }
            entries.push(entry(name, params, metrics));
        }
        entries
    }
}

/// A case whose system calls are counted.
struct Traced {
    counted: Counted,
    metric: &'static str,
    /// Calls of a round that are the workload's own.
    own: f64,
}

fn traced(suite: &str) -> Vec<Traced> {
    let case =
        |case, metric, own| Traced { counted: Counted { case, few: 100, many: 300 }, metric, own };
    let trigger = Trigger::Edge;
    match suite {
        // The write that fires the source.
        "dispatch" => {
            vec![case(Case::OneReady { registered: 100, trigger }, "syscalls_per_event", 1.0)]
        }
        "poll0" => vec![case(Case::EmptyTurn { registered: 100 }, "syscalls_per_turn", 0.0)],
        "timers" => vec![case(Case::InsertCancel { alive: 1_000 }, "syscalls_per_pair", 0.0)],
        "flow" => [false, true]
            .map(|polled| case(Case::Uncontended { polled }, "syscalls_per_item", 0.0))
            .into(),
        // Threads that start and end make a call more or less, so there are many wakes.
        "wakeup" => vec![
            Traced {
                counted: Counted {
                    case: Case::WakeRunning { awake: Awake::InHandler },
                    few: 1_000,
                    many: 6_000,
                },
                metric: "syscalls_per_wake",
                own: 0.0,
            },
            case(Case::WakeSleeping, "syscalls_per_wake", 0.0),
        ],
        _ => Vec::new(),
    }
}

fn count_syscalls(suite: &str, contenders: &[Contender], report: &mut Report) {
    if let Some(reason) = syscalls::unavailable() {
        report.refuse(suite, "system_calls", "*", Refusal::Unsupported(reason));
        return;
    }
    for Traced { counted, metric, own } in traced(suite) {
        let (case, mut params) = plan::describe(&counted.case);
        params.insert("tool".to_owned(), "strace".into());
        for contender in contenders.iter().filter(|c| c.program.has(counted.case.part())) {
            eprintln!("{suite}/{case} {} (strace)", contender.program.name);
            match syscalls::per_round(&contender.path, contender.backend, &counted) {
                Ok(calls) => report.results.push(Entry {
                    suite: suite.to_owned(),
                    case: case.clone(),
                    params: params.clone(),
                    implementation: contender.program.name.to_owned(),
                    backend: contender.backend.to_owned(),
                    version: contender.version.clone(),
                    metrics: [(metric.to_owned(), Spread::exact(calls - own))].into(),
                }),
                Err(refusal) => report.refuse(suite, &case, contender.program.name, refusal),
            }
        }
    }
}

/// The last processor that we may run on: interrupts and the shell are more often on the first.
fn last_allowed_cpu() -> Pin {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let last = list.and_then(|list| list.trim().rsplit([',', '-']).next()?.parse().ok());
    last.map_or(Pin::Nowhere, Pin::To)
}
