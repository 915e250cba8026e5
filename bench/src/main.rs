//! Benchmarks of windlass and its peers: runs suites by name, and reports figures and ratios.
//!
//! Each implementation is a small program of its own, which shares the driver (`bench/driver`).
//! This program builds them, runs their slices interleaved, counts instructions and system calls
//! with the available tools, and writes the report. See `bench/README.md`.

#![deny(unsafe_code)]

mod cases;
mod child;
mod counts;
mod interrupt;
mod limit;
mod notes;
mod options;
mod pace;
mod pin;
mod plan;
mod programs;
mod record;
mod requirements;
mod run;
mod servers;
mod session;
mod syscalls;
mod targets;
mod timing;
mod tools;

use std::process::ExitCode;

use clap::Parser;
use windlass_bench_report as report;
use windlass_bench_report::error;

use options::{Command, Options};
use report::Report;
use session::Session;

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    match &options.command {
        Some(Command::Record(record)) => return record::measure(record),
        Some(Command::Tables(tables)) => return record::tables(tables),
        None => {}
    }
    if options.list {
        print!("{}", options::list());
        return Ok(ExitCode::SUCCESS);
    }
    // Read first: a file that is missing must not be noticed after the run.
    let baseline = options.baseline.as_deref().map(Report::read).transpose()?;
    let steps = plan::plan(&options);
    if steps.is_empty()
        && let Some(nearest) = options.nearest_cases()
    {
        let wanted = options.case.as_deref().unwrap_or_default();
        eprintln!("error: no case of these suites is `{wanted}`; the nearest is `{}`", nearest[0]);
        eprintln!("\n`--list` names all suites and cases");
        return Ok(ExitCode::from(2));
    }
    let mut session = begin(&options, None);
    run::run(&options, &steps, &mut session)?;
    print!("{}", session.report.text());
    if interrupt::is_set() {
        eprintln!("interrupted: the results so far are kept");
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    let mut is_worse = false;
    if let Some(baseline) = baseline {
        let comparison = report::baseline::compare(&baseline, &session.report);
        print!("{}", comparison.text());
        is_worse = comparison.has_regressions();
    }
    let has_failed = session.report.failures().next().is_some();
    Ok(if has_failed || is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Begins a run, which keeps what it has when it is interrupted.
fn begin(options: &Options, resumed: Option<Report>) -> Session {
    interrupt::watch();
    Session::new(options, resumed)
}
