//! What a run consists of: its steps in their order, and how long they take.

use serde_json::Value;
use windlass_bench_driver::protocol::Case;

use crate::cases::{self, Length, Shape, servers::ServerShape};
use crate::options::Options;
use crate::programs::{PROGRAMS, Program, servers::SERVERS};
use crate::requirements::descriptors;
use crate::syscalls;

/// What a step does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Times the cases of a group, which are compared with each other.
    Time(Vec<Case>),
    /// Counts the allocations and bytes of a case.
    Allocations(Case),
    /// Counts the instructions of the suite.
    Instructions,
    /// Counts the system calls of the suite.
    SystemCalls,
    /// Times a case of servers.
    Server(Case),
    /// Counts instructions, system calls and, without times, allocations of servers.
    ServerCounts,
}

/// A part of a run that is measured as a whole.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) suite: &'static str,
    pub(crate) work: Work,
    /// Its name, which a record keeps of what is done.
    pub(crate) key: String,
    /// About how long it takes.
    pub(crate) seconds: f64,
    /// About how much of it does not depend on the number and length of the slices.
    pub(crate) seconds_min: f64,
}

impl Step {
    fn new(suite: &'static str, work: Work, seconds_min: f64, slices_seconds: f64) -> Self {
        let key = match &work {
            Work::Time(group) => format!("{suite}/{}", title(group)),
            Work::Allocations(case) => {
                format!("{suite}/{} (allocations)", title(std::slice::from_ref(case)))
            }
            Work::Instructions => format!("{suite}/instructions"),
            Work::SystemCalls => format!("{suite}/system_calls"),
            Work::Server(case) => format!("{suite}/{}", title(std::slice::from_ref(case))),
            Work::ServerCounts => format!("{suite}/counts"),
        };
        Self { suite, work, key, seconds: seconds_min + slices_seconds, seconds_min }
    }

    /// Returns the cases that the step needs a machine for.
    pub(crate) fn cases(&self) -> &[Case] {
        match &self.work {
            Work::Time(group) => group,
            Work::Allocations(case) | Work::Server(case) => std::slice::from_ref(case),
            _ => &[],
        }
    }

    /// Returns whether the step measures servers.
    pub(crate) fn is_of_servers(&self) -> bool {
        matches!(self.work, Work::Server(_) | Work::ServerCounts)
    }

    /// Returns whether the step takes less time with fewer slices.
    pub(crate) fn is_scaled(&self) -> bool {
        matches!(self.work, Work::Time(_) | Work::Server(_))
    }
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

/// The time to prepare a program for a case and to warm it up.
const PREPARE_SECONDS: f64 = 0.2;
/// The time to start a server.
const START_SECONDS: f64 = 0.02;
/// The time to open a connection and to warm it up.
const CONNECTION_SECONDS: f64 = 0.003;
/// The time to open a connection that stays idle.
const IDLE_CONNECTION_SECONDS: f64 = 0.000_3;
/// The time to count a server in a case, and in one whose instructions are counted in steps.
const SERVER_COUNT_SECONDS: f64 = 1.5;
const SERVER_STEP_SECONDS: f64 = 25.0;

/// Returns about how long it takes to count the instructions of one program.
fn count_seconds(suite: &str, options: &Options) -> f64 {
    let both_builds = match suite {
        "engine" => 30.0,
        "dispatch" | "streams" => 15.0,
        _ => 3.0,
    };
    if options.counts_with_lto() { both_builds } else { both_builds / 4.0 }
}

/// Returns all steps of a run.
pub(crate) fn plan(options: &Options) -> Vec<Step> {
    let mut steps = Vec::new();
    for &suite in cases::SUITES.iter().filter(|suite| options.wants_suite(suite)) {
        in_suite(suite, options, &mut steps);
    }
    for &suite in cases::servers::SUITES.iter().filter(|suite| options.wants_suite(suite)) {
        of_servers(suite, options, &mut steps);
    }
    steps
}

fn in_suite(suite: &'static str, options: &Options, steps: &mut Vec<Step>) {
    let quick = options.quick;
    let groups = cases::groups(suite, quick);
    if options.counts_only {
        if options.wants_case("allocations") {
            let all = groups.into_iter().flatten().filter(cases::counts_allocations);
            steps.extend(all.map(|case| Step::new(suite, Work::Allocations(case), 1.0, 0.0)));
        }
    } else {
        let wanted = groups.into_iter().filter(|group| group.iter().any(|c| options.wants(c)));
        steps.extend(wanted.map(|group| {
            let programs = programs(options, |program| program.has(group[0].part()));
            let runs = programs as f64 * group.len() as f64;
            let shape = cases::shape(&group[0], quick);
            let slice = match shape.length {
                Length::Ns(ns) => ns as f64 / 1e9,
                Length::Rounds(_) => 0.1,
            };
            let slices = runs * slice * shape.slices as f64;
            Step::new(suite, Work::Time(group), runs * PREPARE_SECONDS, slices)
        }));
    }
    if options.no_counts {
        return;
    }
    let counts = programs(options, |program| program.suites().contains(&suite)) as f64;
    let has_instructions = suite == "dispatch" || !cases::counted(suite, quick).is_empty();
    if has_instructions && options.wants_case("instructions") {
        let seconds = counts * count_seconds(suite, options);
        steps.push(Step::new(suite, Work::Instructions, seconds, 0.0));
    }
    if syscalls::counts(suite) && options.wants_case("system_calls") {
        steps.push(Step::new(suite, Work::SystemCalls, counts, 0.0));
    }
}

fn of_servers(suite: &'static str, options: &Options, steps: &mut Vec<Step>) {
    let of = |takes_part: &dyn Fn(&Program) -> bool| {
        let servers = SERVERS.iter().map(|server| &server.program);
        let wanted = servers.filter(|server| takes_part(server) && options.wants_program(server));
        wanted.map(|server| server.backends(&options.backends).len()).sum::<usize>() as f64
    };
    if !options.counts_only {
        let all = cases::servers::cases(suite, options.quick);
        steps.extend(all.into_iter().filter(|case| options.wants(case)).map(|case| {
            let ServerShape { slice_ns, slices } = cases::servers::shape(&case, options.quick);
            let servers = of(&|server| server.has(case.part()));
            // A slice has a warm-up. One without a length is a start.
            let slice = if slice_ns > 0 { 1.5 * slice_ns as f64 / 1e9 } else { START_SECONDS };
            let slices = servers * slice * slices as f64;
            let connections = descriptors(&cases::describe(&case).1) as f64;
            let each = if slice_ns > 0 { CONNECTION_SECONDS } else { IDLE_CONNECTION_SECONDS };
            let prepare = 2.0 * PREPARE_SECONDS + connections * each;
            Step::new(suite, Work::Server(case), servers * prepare, slices)
        }));
    }
    let words = ["instructions", "system_calls", "allocations"];
    let is_wanted = words.iter().any(|word| options.wants_case(word));
    let counted = cases::servers::counted(suite, options.quick);
    if !options.no_counts && is_wanted && !counted.is_empty() {
        let programs = of(&|server| server.suites().contains(&suite));
        let each = counted.iter().map(|(case, _)| match case.workload() {
            Case::Upgrade { .. } if options.steps_handshakes() => SERVER_STEP_SECONDS,
            _ => SERVER_COUNT_SECONDS,
        });
        let seconds = programs * each.sum::<f64>();
        steps.push(Step::new(suite, Work::ServerCounts, seconds, 0.0));
    }
}

/// Returns how many programs take part, on each backend.
fn programs(options: &Options, takes_part: impl Fn(&Program) -> bool) -> usize {
    let wanted = PROGRAMS.iter().filter(|p| takes_part(p) && options.wants_program(p));
    wanted.map(|program| program.backends(&options.backends).len()).sum()
}

/// The least number of slices of a case that a budget shortens. Of fewer the slices are shortened.
const SLICES_MIN: usize = 7;
/// The shortest slice.
const SLICE_NS_MIN: u64 = 2_000_000;

/// Returns a shape that takes this share of the time.
pub(crate) fn scaled(shape: Shape, scale: f64) -> Shape {
    let (slices, rest) = scaled_slices(shape.slices, scale);
    let length = match shape.length {
        Length::Ns(ns) => Length::Ns(scaled_ns(ns, rest)),
        length @ Length::Rounds(_) => length,
    };
    Shape { length, slices }
}

/// The same for servers.
pub(crate) fn scaled_server(shape: ServerShape, scale: f64) -> ServerShape {
    let (slices, rest) = scaled_slices(shape.slices, scale);
    ServerShape { slice_ns: scaled_ns(shape.slice_ns, rest), slices }
}

/// Returns the number of slices, and the share of their length that is left.
fn scaled_slices(slices: usize, scale: f64) -> (usize, f64) {
    let wanted = slices as f64 * scale;
    let least = SLICES_MIN.min(slices);
    let scaled = (wanted.round() as usize).clamp(least, slices);
    let rest = if scaled > least { 1.0 } else { (wanted / scaled as f64).min(1.0) };
    (scaled, rest)
}

fn scaled_ns(ns: u64, scale: f64) -> u64 {
    ((ns as f64 * scale) as u64).clamp(SLICE_NS_MIN.min(ns), ns)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;
    use crate::session::COUNTS_SHARE;

    fn plan_of(arguments: &[&str]) -> Vec<Step> {
        plan(&Options::parse_from([&["windlass-bench"], arguments].concat()))
    }

    #[test]
    fn the_steps_of_a_whole_run_have_different_names() {
        let steps = plan_of(&[]);
        let names: BTreeSet<&str> = steps.iter().map(|step| &*step.key).collect();
        assert_eq!(names.len(), steps.len());
        assert!(steps.iter().all(|step| step.seconds > 0.0));
        let suites: BTreeSet<&str> = steps.iter().map(|step| step.suite).collect();
        assert_eq!(suites.len(), cases::suite_names().len());
    }

    #[test]
    fn a_case_and_the_counts_are_chosen_by_their_names() {
        let steps = plan_of(&["dispatch", "--case", "one_ready", "--no-counts"]);
        assert!(!steps.is_empty() && steps.iter().all(|step| step.key.contains("one_ready")));
        let steps = plan_of(&["echo", "--case", "instructions"]);
        assert!(matches!(&steps[..], [Step { work: Work::ServerCounts, .. }]));
        let steps = plan_of(&["engine", "--quick", "--counts-only"]);
        assert!(steps.iter().all(|step| !step.is_scaled()));
    }

    #[test]
    fn a_quick_run_of_a_suite_has_time_for_each_of_its_steps() {
        for suite in cases::suite_names() {
            let budget = Options::parse_from(["windlass-bench", suite, "--quick"]).budget();
            let seconds = budget.expect("a quick run has a budget").as_secs_f64();
            let seconds = seconds * (1.0 - COUNTS_SHARE);
            for step in plan_of(&[suite, "--quick"]).iter().filter(|step| step.is_scaled()) {
                assert!(step.seconds_min < seconds, "{}: {}", step.key, step.seconds_min);
            }
        }
    }

    #[test]
    fn a_budget_takes_slices_first_and_then_their_length() {
        let many = Shape { length: Length::Ns(10_000_000), slices: 31 };
        assert_eq!(scaled(many, 0.5), Shape { slices: 16, ..many });
        assert_eq!(scaled(many, 0.01).slices, SLICES_MIN);
        let tenth = scaled(many, 0.1);
        assert_eq!(tenth, Shape { length: Length::Ns(4_428_571), slices: SLICES_MIN });
        let few = Shape { length: Length::Ns(1_000_000_000), slices: 5 };
        assert_eq!(scaled(few, 0.5), Shape { length: Length::Ns(500_000_000), ..few });
        assert_eq!(scaled(few, 0.0), Shape { length: Length::Ns(SLICE_NS_MIN), ..few });
        let server = ServerShape { slice_ns: 0, slices: 1 };
        assert_eq!(scaled_server(server, 0.1), server);
    }
}
