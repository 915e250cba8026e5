//! The command line.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use windlass_bench_driver::protocol::Case;

use crate::cases;
use crate::pin::Pin;
use crate::programs::servers::SERVERS;
use crate::programs::{PROGRAMS, Program, WINDLASS, Workspace};
use crate::report::suites::about;
use crate::tools::instructions::Tool;

/// Measures windlass and its peers in one interleaved run, and reports figures and ratios.
#[derive(Debug, Parser)]
#[command(name = "windlass-bench", version)]
#[command(args_conflicts_with_subcommands = true, subcommand_precedence_over_arg = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Suites to run [default: all]
    #[arg(value_parser = suite_names())]
    pub(crate) suites: Vec<String>,

    /// List suites, cases and implementations, and exit
    #[arg(long)]
    pub(crate) list: bool,

    /// Run fewer cases with shorter slices: some minutes for all suites, after the build
    #[arg(long)]
    pub(crate) quick: bool,

    /// Peers to measure beside windlass and the hand-written programs; may be repeated [default:
    /// all]
    #[arg(long = "peer", value_name = "NAME", value_parser = peer_names())]
    pub(crate) peers: Vec<String>,

    /// Backends on which windlass is measured, separated by commas; may be repeated [default:
    /// epoll,uring]
    #[arg(long = "backend", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = backend_names())]
    pub(crate) backends: Vec<String>,

    /// Run only cases whose name contains this text, or that have these parameters:
    /// `ping_pong pairs=16`; `instructions` and `system_calls` are the counts, and with
    /// --counts-only also `allocations`
    #[arg(long, value_name = "TEXT")]
    pub(crate) case: Option<String>,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the results as one HTML page to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Processor for the measured programs: its number, or `none` for no pinning [default: the last
    /// allowed one]
    #[arg(long, value_name = "CPU")]
    pub(crate) cpu: Option<Pin>,

    /// Tool that counts instructions [default: the first of these that works here]
    #[arg(long, value_enum)]
    pub(crate) tool: Option<Tool>,

    /// Build of the timed programs. Servers are always those of `release`
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    pub(crate) profile: Profile,

    /// Do not count instructions and system calls, which needs valgrind, perf or strace
    #[arg(long)]
    pub(crate) no_counts: bool,

    /// Count instructions in the release build alone: the builds with fat LTO take minutes. A quick
    /// run does so anyway, unless it only counts
    #[arg(long)]
    pub(crate) no_lto: bool,

    /// Only count: instructions, system calls, allocations and bytes of windlass, without times and
    /// without peers
    #[arg(long, conflicts_with = "no_counts")]
    pub(crate) counts_only: bool,

    /// Minutes for the run. Slices are left out to keep them, and cases once they are over
    /// [default: one for a quick run of one suite without its build, none otherwise]
    #[arg(long, value_name = "MINUTES")]
    pub(crate) budget: Option<f64>,

    /// Compare with the JSON of an earlier run, and fail if a figure of windlass is worse than the
    /// noise of both runs explains
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
}

/// What the program does instead of running suites.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure everything once, and write the record of this machine. A record that is begun is
    /// continued
    Record(RecordOptions),
    /// Write the tables and pictures of the documents from the newest record
    Tables(TablesOptions),
}

#[derive(Debug, Args)]
pub(crate) struct RecordOptions {
    /// Minutes for the whole record, with the builds
    #[arg(long, value_name = "MINUTES", default_value_t = 80.0)]
    pub(crate) budget: f64,

    /// The record to write or to continue [default: bench/record/DATE.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Only these suites; may be repeated [default: all]
    #[arg(long = "suite", value_name = "NAME", value_parser = suite_names())]
    pub(crate) suites: Vec<String>,

    /// Fewer cases with shorter slices, to try it
    #[arg(long)]
    pub(crate) quick: bool,

    /// Do not count instructions in builds with fat LTO
    #[arg(long)]
    pub(crate) no_lto: bool,

    /// The summary of `cargo llvm-cov --json --summary-only`, whose share of lines is noted
    #[arg(long, value_name = "FILE")]
    pub(crate) coverage: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TablesOptions {
    /// The record [default: the newest of bench/record]
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Only check that the documents have the figures of the record
    #[arg(long)]
    pub(crate) check: bool,

    /// Also write the record as one HTML page to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// The minutes of a quick run of one suite.
const QUICK_MINUTES: f64 = 0.9;

/// The builds that can be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// Without LTO, as most programs are built.
    Release,
    /// With fat LTO and one codegen unit.
    Lto,
}

impl Profile {
    /// Its name in the manifests and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Lto => "lto",
        }
    }
}

/// The suites that the command line can name.
fn suite_names() -> PossibleValuesParser {
    PossibleValuesParser::new(cases::suite_names())
}

/// The peers that `--peer` can name.
fn peer_names() -> PossibleValuesParser {
    let servers = SERVERS.iter().map(|server| &server.program);
    let peers =
        PROGRAMS.iter().chain(servers).filter(|program| program.workspace != Workspace::Root);
    // Some peers have a program for each kind of suite.
    let names: BTreeSet<_> = peers.map(|program| program.name).collect();
    PossibleValuesParser::new(names)
}

/// The backends that `--backend` can name.
fn backend_names() -> PossibleValuesParser {
    let windlass = PROGRAMS.iter().find(|program| program.name == WINDLASS);
    PossibleValuesParser::new(windlass.map_or(&[][..], |program| program.backends))
}

impl Options {
    /// Returns the options of a run for a record.
    pub(crate) fn of_record(record: &RecordOptions, file: PathBuf) -> Self {
        let mut options = Self::parse_from(["windlass-bench"]);
        options.suites.clone_from(&record.suites);
        options.quick = record.quick;
        options.no_lto = record.no_lto;
        options.budget = Some(record.budget);
        options.json = Some(file);
        options
    }

    /// Returns the time that limits the run.
    pub(crate) fn budget(&self) -> Option<Duration> {
        let is_quick = self.quick && self.suites.len() == 1 && !self.counts_only;
        let minutes = self.budget.or_else(|| is_quick.then_some(QUICK_MINUTES))?;
        Some(Duration::from_secs_f64(minutes.max(0.0) * 60.0))
    }

    /// Returns whether instructions of handshakes are counted in steps. That takes minutes.
    pub(crate) fn steps_handshakes(&self) -> bool {
        !self.quick || self.counts_only
    }

    /// Returns whether instructions are counted in the builds with fat LTO, too. A quick run has no
    /// time for those.
    pub(crate) fn counts_with_lto(&self) -> bool {
        !self.no_lto && (!self.quick || self.counts_only)
    }

    /// Returns the cases of the wanted suites if `--case` names none of them, nearest first.
    pub(crate) fn nearest_cases(&self) -> Option<Vec<String>> {
        let wanted = self.case.as_deref()?;
        let word = wanted.split_whitespace().next().unwrap_or_default();
        let mut names: BTreeSet<String> = COUNTS.map(str::to_owned).into();
        for suite in cases::suite_names().iter().filter(|suite| self.wants_suite(suite)) {
            names.extend(cases::all(suite, self.quick).iter().map(name_of));
        }
        let mut names = Vec::from_iter(names);
        names.sort_by(|one, other| {
            let near = |name: &str| strsim::jaro_winkler(word, name);
            near(other).total_cmp(&near(one))
        });
        Some(names)
    }

    /// Returns whether cases with this name are to be run.
    pub(crate) fn wants_case(&self, name: &str) -> bool {
        self.case.as_deref().is_none_or(|text| name.contains(text))
    }

    /// Returns whether this case is to be run: each word is in its name, or is one of its
    /// parameters with its value.
    pub(crate) fn wants(&self, case: &Case) -> bool {
        let (name, params) = cases::describe(case);
        let is_met = |word: &str| match word.split_once('=') {
            None => name.contains(word),
            Some((param, wanted)) => {
                params.get(param).is_some_and(|value| cases::text(value) == wanted)
            }
        };
        self.case.as_deref().is_none_or(|text| text.split_whitespace().all(is_met))
    }

    /// Returns whether this peer is to be measured.
    pub(crate) fn wants_peer(&self, name: &str) -> bool {
        !self.counts_only && (self.peers.is_empty() || self.peers.iter().any(|peer| peer == name))
    }

    /// Returns why this program is not measured although it is wanted, on a machine with so many
    /// processors. What is named is measured anyway.
    pub(crate) fn lacks_processors(&self, program: &Program, allowed: usize) -> Option<String> {
        let is_named = self.peers.iter().any(|peer| peer == program.name);
        program.lacks_processors(allowed).filter(|_| !is_named)
    }

    /// Returns whether this program is to be measured. The programs of this workspace always are,
    /// except that only those of windlass are counted without times.
    pub(crate) fn wants_program(&self, program: &Program) -> bool {
        if self.counts_only {
            return program.workspace == Workspace::Root && program.name.starts_with(WINDLASS);
        }
        program.workspace == Workspace::Root || self.wants_peer(program.name)
    }

    /// Returns the tool that counts instructions, or why there is none. Counts alone are compared
    /// with those of other runs, so they need an exact tool.
    pub(crate) fn find_tool(&self) -> Result<Tool, String> {
        let find = if self.counts_only { Tool::find_exact } else { Tool::find };
        self.tool.map_or_else(find, Ok)
    }

    /// Returns whether this suite is to be run.
    pub(crate) fn wants_suite(&self, name: &str) -> bool {
        self.suites.is_empty() || self.suites.iter().any(|suite| suite == name)
    }
}

/// The counts that `--case` can name beside cases.
const COUNTS: [&str; 3] = ["instructions", "system_calls", "allocations"];

fn name_of(case: &Case) -> String {
    cases::describe(case).0
}

/// Returns the output of `--list`.
pub(crate) fn list() -> String {
    let mut text = String::new();
    for suite in cases::suite_names() {
        writeln!(text, "{suite}: {}", about(suite)).expect("writing to a string");
        for case in cases::all(suite, false) {
            let (name, params) = cases::describe(&case);
            let params: Vec<String> = params.iter().map(|(k, v)| format!("{k}={v}")).collect();
            writeln!(text, "    {name} {}", params.join(" ")).expect("writing to a string");
        }
    }
    writeln!(text, "implementations").expect("writing to a string");
    for program in PROGRAMS.iter().chain(SERVERS.iter().map(|server| &server.program)) {
        let (parts, backends) = (program.parts.join(", "), program.backends.join(", "));
        writeln!(text, "    {:<17} {parts} on {backends}", program.name)
            .expect("writing to a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{TOKIO_MULTI_THREAD, WINDLASS_TASK, WINDLASS_TUNGSTENITE};
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn counts_without_times_are_those_of_windlass() {
        let wanted = |arguments: &[&str]| {
            let options = Options::parse_from([&["windlass-bench"], arguments].concat());
            let wanted = PROGRAMS.iter().filter(|program| options.wants_program(program));
            wanted.map(|program| program.name).collect::<Vec<_>>()
        };
        assert_eq!(
            wanted(&["--counts-only"]),
            [
                WINDLASS,
                "windlass-driven",
                "windlass-timer",
                WINDLASS_TASK,
                WINDLASS_TUNGSTENITE,
                "windlass-flow"
            ]
        );
        let some = wanted(&["--peer", "mio"]);
        assert!(some.contains(&"raw") && some.contains(&"mio") && !some.contains(&"tokio"));
    }

    #[test]
    fn what_lacks_processors_is_measured_only_if_it_is_named() {
        let program = PROGRAMS.iter().find(|program| program.name == TOKIO_MULTI_THREAD).unwrap();
        let lacks = |arguments: &[&str], allowed| {
            let options = Options::parse_from([&["windlass-bench"], arguments].concat());
            assert!(options.wants_program(program));
            options.lacks_processors(program, allowed)
        };
        assert!(lacks(&[], 2).is_some());
        assert_eq!(lacks(&[], 4), None);
        let named = ["--peer", TOKIO_MULTI_THREAD, "--peer", "tokio"];
        assert_eq!(lacks(&named, 2), None);
    }

    #[test]
    fn a_case_is_chosen_by_its_name_and_its_parameters() {
        let case = Case::RoundTrip { spin_us: 50 };
        let wants =
            |text: &str| Options::parse_from(["windlass-bench", "--case", text]).wants(&case);
        assert!(wants("round") && wants("spin_us=50") && wants("round_trip spin_us=50"));
        assert!(!wants("post") && !wants("spin_us=5") && !wants("round_trip spin_us=0"));
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest() {
        let told = |arguments: &[&str]| {
            let error = Options::try_parse_from([&["windlass-bench"], arguments].concat());
            let error = error.unwrap_err();
            (error.exit_code(), error.to_string())
        };
        for (arguments, nearest) in [
            (&["dispach"][..], "dispatch"),
            (&["--peer", "mio-slap"], "mio-slab"),
            (&["record", "--suite", "echoo"], "echo"),
        ] {
            let (code, text) = told(arguments);
            assert!(code == 2 && text.contains(&format!("'{nearest}'")), "{text}");
        }
        let nearest = |arguments: &[&str]| {
            let options = Options::parse_from([&["windlass-bench"], arguments].concat());
            options.nearest_cases().map(|names| names[0].clone())
        };
        assert_eq!(nearest(&["dispatch", "--case", "one_raedy"]).as_deref(), Some("one_ready"));
        assert_eq!(nearest(&["echo", "--case", "mesages bytes=20"]).as_deref(), Some("messages"));
        assert_eq!(nearest(&["dispatch"]), None);
    }

    #[test]
    fn only_a_quick_run_of_one_suite_and_a_record_have_a_budget() {
        let budget = |arguments: &[&str]| {
            Options::parse_from([&["windlass-bench"], arguments].concat()).budget()
        };
        assert_eq!(budget(&["dispatch"]), None);
        assert!(budget(&["dispatch", "--quick"]).is_some_and(|time| time.as_secs() < 60));
        assert_eq!(budget(&["dispatch", "--quick", "--counts-only"]), None);
        assert_eq!(budget(&["--quick"]), None);
        assert_eq!(budget(&["--budget", "2"]), Some(Duration::from_secs(120)));
    }

    #[test]
    fn the_list_names_every_suite_and_program() {
        let text = list();
        let suites = cases::suite_names();
        let without: Vec<_> = suites.iter().filter(|suite| about(suite).is_empty()).collect();
        assert!(without.is_empty(), "not described in bench/report/src/suites.rs: {without:?}");
        for suite in suites {
            let begins = |line: &&str| line.starts_with(&format!("{suite}: "));
            assert_eq!(text.lines().filter(begins).count(), 1, "{suite}");
        }
        assert!(text.contains("    first_event ") && text.contains("    first_answer "));
        assert!(PROGRAMS.iter().all(|program| text.contains(program.name)));
    }
}
