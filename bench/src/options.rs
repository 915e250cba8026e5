//! The command line.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use windlass_bench_driver::protocol::Case;

use crate::cases;
use crate::pin::Pin;
use crate::programs::servers::SERVERS;
use crate::programs::{PROGRAMS, Program, WINDLASS, Workspace};
use crate::tools::instructions::Tool;

/// Measures windlass and its peers in one interleaved run, and reports figures and ratios.
#[derive(Debug, Parser)]
#[command(name = "windlass-bench", version)]
pub(crate) struct Options {
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

    /// Count instructions in the release build alone: the builds with fat LTO take minutes
    #[arg(long)]
    pub(crate) no_lto: bool,

    /// Only count: instructions, system calls, allocations and bytes of windlass, without times and
    /// without peers
    #[arg(long, conflicts_with = "no_counts")]
    pub(crate) counts_only: bool,
}

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
    PossibleValuesParser::new(cases::SUITES.iter().chain(cases::servers::SUITES))
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

/// Returns the output of `--list`.
pub(crate) fn list() -> String {
    let mut text = String::new();
    for suite in cases::SUITES {
        writeln!(text, "{suite}").expect("writing to a string");
        for case in cases::groups(suite, false).into_iter().flatten() {
            let (name, params) = cases::describe(&case);
            let params: Vec<String> = params.iter().map(|(k, v)| format!("{k}={v}")).collect();
            writeln!(text, "    {name} {}", params.join(" ")).expect("writing to a string");
        }
    }
    for suite in cases::servers::SUITES {
        writeln!(text, "{suite}").expect("writing to a string");
        for case in cases::servers::cases(suite, false) {
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
    use crate::programs::{TOKIO_MULTI_THREAD, WINDLASS_TASK};
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
            [WINDLASS, "windlass-driven", "windlass-timer", WINDLASS_TASK, "windlass-flow"]
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
    fn the_list_names_every_suite_and_program() {
        let text = list();
        assert!(cases::SUITES.iter().all(|suite| text.contains(suite)));
        assert!(PROGRAMS.iter().all(|program| text.contains(program.name)));
    }
}
