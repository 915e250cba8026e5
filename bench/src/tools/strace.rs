//! System calls, counted by strace as the difference of two numbers of rounds.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use windlass_bench_driver::protocol::Request;

use super::instructions::{CountedCase, ScratchFile, run_script};
use crate::error::MeasureError;

/// Returns why strace cannot be used here: it is missing, or tracing is forbidden.
pub(crate) fn unavailable() -> Option<String> {
    let output = Command::new("strace").args(["-c", "true"]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(_) => Some("strace may not trace here".to_owned()),
        Err(_) => Some("strace is not installed".to_owned()),
    }
}

/// The system calls of a round.
#[derive(Clone, Debug)]
pub(crate) struct PerRound {
    pub(crate) calls: f64,
    /// Those that returned an error.
    pub(crate) failed: f64,
    /// The calls by their names, of which there may be none in a round.
    pub(crate) by_name: BTreeMap<String, f64>,
}

/// Returns the system calls per round of a case.
pub(crate) fn per_round(
    program: &Path,
    backend: &str,
    counted: &CountedCase,
) -> Result<PerRound, MeasureError> {
    let few = summary(program, backend, counted, counted.few)?;
    let many = summary(program, backend, counted, counted.many)?;
    let calls = |calls: &BTreeMap<String, u64>, name| calls.get(name).copied().unwrap_or(0);
    let by_name = many.by_name.keys().map(|name| {
        let (few, many) = (calls(&few.by_name, name), calls(&many.by_name, name));
        (name.clone(), counted.per_round(few, many))
    });
    Ok(PerRound {
        calls: counted.per_round(few.calls, many.calls),
        failed: counted.per_round(few.failed, many.failed),
        by_name: by_name.collect(),
    })
}

fn summary(
    program: &Path,
    backend: &str,
    counted: &CountedCase,
    rounds: u64,
) -> Result<Summary, MeasureError> {
    let file =
        ScratchFile::new("strace").map_err(|error| MeasureError::Failed(error.to_string()))?;
    let mut command = Command::new("strace");
    // Workloads call pread64(2) to see whether a loop sleeps. No measured code calls it.
    command.args(["-f", "-c", "-e", "trace=!pread64", "-o"]).arg(&file.0).arg(program);
    run_script(&mut command, &[counted.prepare(backend, false), Request::Slice { rounds }])?;
    let text = std::fs::read_to_string(&file.0).unwrap_or_default();
    Summary::of(&text).ok_or_else(|| MeasureError::Failed("strace's summary has no total".into()))
}

/// What `strace -c` prints.
#[derive(Debug, PartialEq)]
struct Summary {
    calls: u64,
    failed: u64,
    by_name: BTreeMap<String, u64>,
}

impl Summary {
    /// Reads the lines of the calls and that of the total. The columns are: share of the time,
    /// seconds, microseconds a call, calls, errors, which is empty if there were none, and name.
    fn of(text: &str) -> Option<Self> {
        let mut by_name = BTreeMap::new();
        let mut total = None;
        for line in text.lines() {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (Some(&name), Some(Ok(calls))) =
                (columns.last(), columns.get(3).map(|calls| calls.parse::<u64>()))
            else {
                continue;
            };
            if name == "total" {
                let failed = columns[4].parse().unwrap_or(0);
                total = Some((calls, failed));
            } else {
                by_name.insert(name.to_owned(), calls);
            }
        }
        let (calls, failed) = total?;
        Some(Self { calls, failed, by_name })
    }
}

/// Returns the number of calls in the output of `strace -c`.
pub(crate) fn calls(text: &str) -> Option<u64> {
    Summary::of(text).map(|summary| summary.calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_with_and_without_errors() {
        let text = "% time  seconds  usecs/call  calls  errors syscall\n\
                    100.00    0.000000           0        29         1 total\n";
        assert_eq!(Summary::of(text).map(|summary| (summary.calls, summary.failed)), Some((29, 1)));
        assert_eq!(calls("100.00    0.000000           0        31           total\n"), Some(31));
        assert_eq!(calls("nothing"), None);
    }

    #[test]
    fn calls_are_told_apart_by_their_names() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n \
                    70.00    0.000007           0        20           epoll_pwait2\n \
                    30.00    0.000003           0         9         1 read\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    0.000010           0        29         1 total\n";
        let by_name = [("epoll_pwait2".to_owned(), 20), ("read".to_owned(), 9)].into();
        assert_eq!(Summary::of(text), Some(Summary { calls: 29, failed: 1, by_name }));
    }
}
