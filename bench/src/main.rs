//! Benchmarks of windlass and its peers: runs suites by name, and reports figures and ratios.
//!
//! Each implementation is a small program of its own, which shares the driver (`bench/driver`).
//! This program builds them, runs their slices interleaved, counts instructions and system calls
//! with the available tools, and writes the report. See `bench/README.md`.

#![deny(unsafe_code)]

mod cases;
mod child;
mod counts;
mod error;
mod notes;
mod options;
mod pace;
mod pin;
mod programs;
mod report;
mod run;
mod servers;
mod syscalls;
mod targets;
mod timing;
mod tools;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

fn main() -> anyhow::Result<ExitCode> {
    let options = options::Options::parse();
    if options.list {
        print!("{}", options::list());
        return Ok(ExitCode::SUCCESS);
    }
    let report = run::run(&options)?;
    print!("{}", report.text());
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report.json())? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &options.html {
        std::fs::write(path, report::html::page(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
