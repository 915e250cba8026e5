//! The record: everything, measured once on one machine, and the documents that show it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::interrupt;
use crate::options::{Options, RecordOptions, TablesOptions};
use crate::plan;
use crate::report::meta::Meta;
use crate::report::{Report, documents, html};
use crate::run;

/// Measures what the record lacks, and writes it after each step.
pub(crate) fn measure(record: &RecordOptions) -> anyhow::Result<ExitCode> {
    let now = Meta::now(record.quick);
    let file = match &record.file {
        Some(file) => file.clone(),
        None => folder().join(format!("{}.json", now.day())),
    };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut report = if file.exists() { Report::read(&file)? } else { Report::new(now.clone()) };
    if let Some(difference) = difference(&report.meta, &now) {
        bail!("{} is of another run: {difference}; choose another --file", file.display());
    }
    if let Some(path) = &record.coverage {
        report.meta.coverage_percent = Some(coverage(path)?);
    }
    if report.meta.build_seconds.is_none() {
        report.meta.build_seconds = build_seconds();
    }
    let options = Options::of_record(record, file.clone());
    // What was left out may be measured now.
    let steps = plan::plan(&options);
    report.skipped.retain(|skip| !(skip.is_over_budget() && skip.step.is_empty()));
    let mut session = crate::begin(&options, Some(report));
    run::run(&options, &steps, &mut session)?;
    let report = &session.report;
    let left = steps.iter().filter(|step| !session.is_done(step)).count();
    for failure in report.failures() {
        println!("{}/{} {}: {}", failure.suite, failure.case, failure.implementation, {
            &failure.reason
        });
    }
    println!("{}: {} figures in {:.0} minutes", file.display(), report.results.len(), {
        report.meta.minutes
    });
    if left > 0 {
        println!("{left} of {} steps are left: the same command continues", steps.len());
    }
    Ok(match (interrupt::is_set(), left) {
        (true, _) => ExitCode::from(interrupt::STATUS),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::FAILURE,
    })
}

/// Writes the documents, or checks them.
pub(crate) fn tables(tables: &TablesOptions) -> anyhow::Result<ExitCode> {
    let root = root();
    let record = match &tables.record {
        Some(record) => record.clone(),
        None => documents::newest(&root).context("there is no record in bench/record")?,
    };
    let report = Report::read(&record)?;
    if let Some(path) = &tables.html {
        std::fs::write(path, html::page(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let differing = documents::differing(&root, &report)?;
    for (path, text) in &differing {
        println!("{}{path}", if tables.check { "differs: " } else { "" });
        if !tables.check {
            let path = root.join(path);
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let is_wrong = tables.check && !differing.is_empty();
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds the reactor from nothing, and returns the time. `None` if it does not build.
fn build_seconds() -> Option<f64> {
    let target = std::env::current_exe().ok()?.with_file_name("build-time");
    // It is there if an earlier run was killed.
    let _ = std::fs::remove_dir_all(&target);
    let build = |arguments: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["--quiet", "--locked"]).args(arguments).current_dir(root());
        command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    // What is downloaded is no part of a build.
    if !build(&["fetch"]) {
        return None;
    }
    let started = Instant::now();
    let path = target.to_string_lossy();
    let is_built = build(&["build", "--release", "-p", "windlass", "--target-dir", &path]);
    let seconds = started.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&target).ok()?;
    is_built.then(|| (seconds * 10.0).round() / 10.0)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn folder() -> PathBuf {
    root().join(documents::RECORDS)
}

/// Returns why two runs do not belong into one record.
fn difference(one: &Meta, other: &Meta) -> Option<String> {
    let differs = |name: &str, one: &str, other: &str| {
        (one != other).then(|| format!("{name} {one}, and here {other}"))
    };
    differs("processor", &one.cpu, &other.cpu)
        .or_else(|| differs("Linux", &one.kernel, &other.kernel))
        .or_else(|| differs("processors", &one.cores.to_string(), &other.cores.to_string()))
        .or_else(|| differs("quick", &one.quick.to_string(), &other.quick.to_string()))
        .or_else(|| differs("compiler", &one.rustc, &other.rustc))
}

/// Reads the share of lines in the summary of cargo-llvm-cov.
fn coverage(path: &Path) -> anyhow::Result<f64> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let summary: Value = serde_json::from_str(&text)?;
    summary["data"][0]["totals"]["lines"]["percent"]
        .as_f64()
        .with_context(|| format!("{} is no summary of cargo-llvm-cov", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_machine() {
        let meta = |cpu: &str| Meta { cpu: cpu.into(), ..Meta::default() };
        assert_eq!(difference(&meta("a"), &meta("a")), None);
        let told = difference(&meta("a"), &meta("b")).unwrap();
        assert_eq!(told, "processor a, and here b");
    }

    #[test]
    fn the_share_of_lines_is_read() {
        let path = std::env::temp_dir().join(format!("coverage-{}.json", std::process::id()));
        std::fs::write(&path, r#"{"data":[{"totals":{"lines":{"percent":91.5}}}]}"#).unwrap();
        let share = coverage(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(share.unwrap(), 91.5);
    }
}
