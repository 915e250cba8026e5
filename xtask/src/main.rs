//! The checks of the project: `cargo xtask check` before a commit, `cargo xtask ci` on a new
//! machine, `cargo xtask asm dispatch` to show the compiled inner loop.
//!
//! The checks are Rust code instead of shell scripts. So they have unit tests, and developers run
//! the same code as the CI.
#![deny(unsafe_code)]

mod arrows;
mod asm;
mod check;
mod ci;
mod command;
mod compat;
mod counts;
mod dist;
mod lanes;
mod markdown;
mod metadata;
mod output;
mod package;
mod patched;
mod planted;
mod programs;
mod prose;
mod registry;
mod repository;
mod source;
mod stage;
mod syscalls;
mod tally;
mod tidy;
mod toolchain;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line of `cargo xtask`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The checks of the project")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the checks for a commit: format, lints, documents, house rules, dependencies, tests
    Check {
        /// Leave out the slow stages: msrv, package, test-tools and loom
        #[arg(long)]
        fast: bool,
        /// Run only this stage; may be repeated
        #[arg(long = "only", value_name = "STAGE")]
        only: Vec<String>,
    },
    /// Run only the house rules and the dependency arrows, in seconds
    Tidy,
    /// Check the dependency arrows, between crates and between folders of a crate
    Arrows {
        /// List each item that is used upwards inside a crate, those allowed too
        #[arg(long)]
        list: bool,
    },
    /// Run all stages, as `.ci/run` does on a new machine
    Ci {
        /// Run only this stage; may be repeated
        #[arg(long = "only", value_name = "STAGE")]
        only: Vec<String>,
        /// Include the stages for a release: all Autobahn cases, long programs under Miri, all
        /// peers
        #[arg(long)]
        full: bool,
        /// Update `.ci/expected-suites` for the stages that ran
        #[arg(long)]
        update_suites: bool,
    },
    /// Compare the counts of the benchmarks with `.ci/expected-counts`: instructions, system calls,
    /// allocations and bytes
    Counts {
        /// Count twice and write the list instead
        #[arg(long)]
        record: bool,
    },
    /// Count words per sentence, wide lines, and names that several public types have
    Prose {
        /// Count in this checkout instead
        #[arg(long)]
        root: Option<PathBuf>,
    },
    /// Write the lists of system calls in `docs/syscalls`
    Syscalls,
    /// Compare the crates in `compat` with those whose interface they have: public items, and the
    /// tests of the published packages
    Compat {
        /// Compare only this
        #[arg(value_enum)]
        what: Option<compat::What>,
    },
    /// Run crates that use tungstenite with tungstenite, and with ours in its place
    Patched {
        /// Run only this crate; may be repeated
        #[arg(long = "only", value_name = "CRATE")]
        only: Vec<String>,
    },
    /// Plant faults, and count the seeds after which the simulator finds each
    Planted {
        /// Plant only the fault of this patch; may be repeated
        #[arg(long = "only", value_name = "NAME")]
        only: Vec<String>,
        /// Write the table in docs/simulator.md
        #[arg(long)]
        record: bool,
    },
    /// Pack the crates that can be published, and build the libraries from their packages
    Package,
    /// Build the release archive and its checksum in `target/dist`
    Dist {
        /// Fail if this tag does not match the version
        #[arg(long)]
        tag: Option<String>,
    },
    /// Disassemble a hot path, compiled with fat LTO
    Asm {
        /// Hot path to disassemble
        #[arg(value_enum)]
        what: asm::HotPath,
        /// Build profile
        #[arg(long, default_value = "lto")]
        profile: String,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Check { fast, only } => check::run(fast, &only),
        Task::Tidy => check::run(false, &["tidy".to_owned(), "arrows".to_owned()]),
        Task::Arrows { list: true } => arrows::list(&repository::root()).map(|()| true),
        Task::Arrows { list: false } => check::run(false, &["arrows".to_owned()]),
        Task::Ci { only, full, update_suites } => {
            ci::run(&ci::Choice { full, only }, update_suites)
        }
        Task::Counts { record } => counts::run(record),
        Task::Prose { root } => prose::run(&root.unwrap_or_else(repository::root)),
        Task::Compat { what } => compat::run(what),
        Task::Syscalls => syscalls::run(),
        Task::Patched { only } => patched::run(only),
        Task::Planted { only, record } => planted::run(only, record),
        Task::Package => package::run(),
        Task::Dist { tag } => dist::run(tag.as_deref()),
        Task::Asm { what, profile } => asm::run(what, &profile),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
