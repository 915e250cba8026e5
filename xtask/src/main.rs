//! The project's own checks: `cargo xtask check` before a commit, `cargo xtask ci` on a new
//! machine, `cargo xtask asm dispatch` to look at what the inner loop compiles to.
//!
//! Everything is driven from here and not from shell scripts, so that the rules have unit tests and
//! a developer runs the very code that the machines run.
#![deny(unsafe_code)]

mod arrows;
mod asm;
mod check;
mod ci;
mod command;
mod dist;
mod lanes;
mod metadata;
mod output;
mod programs;
mod prose;
mod repository;
mod source;
mod stage;
mod tally;
mod tidy;
mod toolchain;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Command line of `cargo xtask`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The project's own checks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Format, lints, documents, house rules, dependency arrows, oldest compiler, tests.
    Check {
        /// Leave out what is slow and rarely fails: the oldest compiler and the tools' own tests.
        #[arg(long)]
        fast: bool,
        /// Run this stage alone; may be given several times.
        #[arg(long = "only", value_name = "STAGE")]
        only: Vec<String>,
    },
    /// The house rules alone, a second or two.
    Tidy,
    /// Everything a new machine runs after installing; `.ci/run` calls this.
    Ci {
        /// Run this stage alone; may be given several times.
        #[arg(long = "only", value_name = "STAGE")]
        only: Vec<String>,
        /// What takes long, too: all cases of Autobahn and the long programs under Miri. Before a
        /// release.
        #[arg(long)]
        full: bool,
        /// Write what ran into `.ci/expected-suites`, for the stages that ran.
        #[arg(long)]
        update_suites: bool,
    },
    /// Count the words of a mean sentence, wide lines, and names that several types have.
    Prose {
        /// Another checkout to count in.
        #[arg(long)]
        root: Option<PathBuf>,
    },
    /// Build the program for a release: an archive and its checksum in `target/dist`.
    Dist {
        /// Fail unless this is the tag of the workspace's version.
        #[arg(long)]
        tag: Option<String>,
    },
    /// Disassemble a hot path as it is compiled with fat LTO.
    Asm {
        /// Which hot path.
        #[arg(value_enum)]
        what: asm::HotPath,
        /// Profile to build with.
        #[arg(long, default_value = "lto")]
        profile: String,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Check { fast, only } => check::run(fast, &only),
        Task::Tidy => check::run(false, &["tidy".to_owned(), "arrows".to_owned()]),
        Task::Ci { only, full, update_suites } => {
            ci::run(&ci::Choice { full, only }, update_suites)
        }
        Task::Prose { root } => prose::run(&root.unwrap_or_else(repository::root)),
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
