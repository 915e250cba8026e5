//! System calls, counted by strace as the difference of two numbers of rounds.

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerRound {
    pub(crate) calls: f64,
    /// Those that returned an error.
    pub(crate) failed: f64,
}

/// Returns the system calls per round of a case.
pub(crate) fn per_round(
    program: &Path,
    backend: &str,
    counted: &CountedCase,
) -> Result<PerRound, MeasureError> {
    let few = total(program, backend, counted, counted.few)?;
    let many = total(program, backend, counted, counted.many)?;
    Ok(PerRound {
        calls: counted.per_round(few.0, many.0),
        failed: counted.per_round(few.1, many.1),
    })
}

fn total(
    program: &Path,
    backend: &str,
    counted: &CountedCase,
    rounds: u64,
) -> Result<(u64, u64), MeasureError> {
    let file =
        ScratchFile::new("strace").map_err(|error| MeasureError::Failed(error.to_string()))?;
    let mut command = Command::new("strace");
    // Workloads call pread64(2) to see whether a loop sleeps. No measured code calls it.
    command.args(["-f", "-c", "-e", "trace=!pread64", "-o"]).arg(&file.0).arg(program);
    run_script(&mut command, &[counted.prepare(backend, false), Request::Slice { rounds }])?;
    let text = std::fs::read_to_string(&file.0).unwrap_or_default();
    let calls =
        calls(&text).ok_or_else(|| MeasureError::Failed("strace's summary has no total".into()))?;
    Ok((calls, failed_calls(&text)))
}

/// Returns the fifth column of the last line of `strace -c`, which is empty if no call failed.
fn failed_calls(text: &str) -> u64 {
    let line = text.lines().rfind(|line| line.trim_end().ends_with("total"));
    line.and_then(|line| line.split_whitespace().nth(4)?.parse().ok()).unwrap_or(0)
}

/// Returns the fourth column of the last line of `strace -c`.
pub(crate) fn calls(text: &str) -> Option<u64> {
    let line = text.lines().rfind(|line| line.trim_end().ends_with("total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::calls;

    #[test]
    fn the_total_is_found_with_and_without_errors() {
        let text = "% time  seconds  usecs/call  calls  errors syscall\n\
                    100.00    0.000000           0        29         1 total\n";
        assert_eq!(calls(text), Some(29));
        assert_eq!(calls("100.00    0.000000           0        31           total\n"), Some(31));
        assert_eq!(calls("nothing"), None);
    }
}
