//! User-space instructions, exactly counted.
//!
//! A program runs the same case for two different numbers of rounds; the difference between the
//! counts, divided by the difference between the rounds, is what one round costs. What the workload
//! itself costs (the writes that fire the sources) is counted in the same program with the turns left
//! out, and taken off. Rounds with different numbers of ready sources then give a line: instructions
//! per turn, and per event.
//!
//! `perf stat` counts where the processor's counters can be had. Where they cannot (most virtual
//! machines), callgrind does: it sets its counter to zero when the measured part is entered and dumps
//! it when it is left, so one run of a program answers for all cases.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use windlass_bench_driver::protocol::{Case, Reply, Request};

use crate::child::{Refusal, parse};

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Perf,
    Callgrind,
}

impl Tool {
    /// The better of the tools that work here, or why there is none.
    pub(crate) fn find() -> Result<Self, String> {
        if perf(Path::new("true"), &[]).is_ok() {
            return Ok(Self::Perf);
        }
        let valgrind = Command::new("valgrind").arg("--version").output();
        match valgrind {
            Ok(output) if output.status.success() => Ok(Self::Callgrind),
            _ => Err("neither `perf stat -e instructions:u` nor valgrind works here".to_owned()),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Callgrind => "callgrind",
        }
    }

    /// Instructions per round of each case, the workload's own taken off.
    pub(crate) fn count(
        self,
        program: &Path,
        backend: &str,
        cases: &[Counted],
    ) -> Result<Vec<f64>, Refusal> {
        match self {
            Self::Perf => cases
                .iter()
                .map(|counted| {
                    let turns = perf_difference(program, backend, counted, false)?;
                    Ok(turns - perf_difference(program, backend, counted, true)?)
                })
                .collect(),
            Self::Callgrind => callgrind(program, backend, cases),
        }
    }
}

/// A case to count, and its numbers of rounds.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) case: Case,
    pub(crate) few: u64,
    pub(crate) many: u64,
}

impl Counted {
    /// Enough rounds for about `events` events.
    pub(crate) fn new(case: Case, ready: u64, events: u64) -> Self {
        let few = (events / ready).max(4);
        Self {
            case,
            few,
            many: few * 3,
        }
    }

    pub(crate) fn per_round(&self, few: u64, many: u64) -> f64 {
        (many as f64 - few as f64) / (self.many - self.few) as f64
    }

    pub(crate) fn prepare(&self, backend: &str, idle: bool) -> Request {
        Request::Prepare {
            case: self.case.clone(),
            backend: backend.to_owned(),
            idle,
        }
    }
}

/// Runs a command that gives these requests to a program; returns how many slices it ran.
pub(crate) fn run_script(command: &mut Command, requests: &[Request]) -> Result<usize, Refusal> {
    let replies = run(command, &script(requests))?;
    let mut slices = 0;
    for line in replies.lines() {
        slices += usize::from(matches!(parse(line)?, Reply::Slice(_)));
    }
    Ok(slices)
}

/// Requests as a program reads them.
fn script(requests: &[Request]) -> String {
    let mut script = String::new();
    for request in requests {
        let line = serde_json::to_string(request).expect("requests are plain data");
        writeln!(script, "{line}").expect("writing to a string");
    }
    script
}

/// Runs a command to its end with the script as its input.
fn run(command: &mut Command, input: &str) -> Result<String, Refusal> {
    let failed = |what: String| Refusal::Failed(what);
    // A file, for a pipe would have to be written while the output is read.
    let file =
        Scratch::new("script").map_err(|error| failed(format!("no scratch file: {error}")))?;
    std::fs::write(&file.0, input).map_err(|error| failed(format!("no script: {error}")))?;
    let input = std::fs::File::open(&file.0).map_err(|error| failed(error.to_string()))?;
    let output = command
        .stdin(input)
        .stderr(Stdio::null())
        .output()
        .map_err(|error| {
            failed(format!(
                "{:?} does not start: {error}",
                command.get_program()
            ))
        })?;
    if !output.status.success() {
        return Err(failed(format!(
            "{:?} ended with {}",
            command.get_program(),
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A file name of our own that is gone when this is dropped, with the dumps that stand beside it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(what: &str) -> std::io::Result<Self> {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("windlass-bench-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory)?;
        Ok(Self(directory.join(what)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(directory) = self.0.parent() {
            // Nothing depends on it being gone, so an error is no reason to fail a measurement.
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn perf_difference(
    program: &Path,
    backend: &str,
    counted: &Counted,
    idle: bool,
) -> Result<f64, Refusal> {
    let total = |rounds| {
        let requests = [counted.prepare(backend, idle), Request::Slice { rounds }];
        perf(program, &requests)
    };
    // Starting up varies by some thousand instructions from run to run, so the slices are long.
    let (few, many) = (
        counted.few,
        counted.few + (counted.many - counted.few) * 100,
    );
    Ok((total(many)? as f64 - total(few)? as f64) / (many - few) as f64)
}

fn perf(program: &Path, requests: &[Request]) -> Result<u64, Refusal> {
    let file = Scratch::new("perf").map_err(|error| Refusal::Failed(error.to_string()))?;
    let mut command = Command::new("perf");
    command
        .args(["stat", "-x", ",", "-e", "instructions:u", "-o"])
        .arg(&file.0);
    run_script(command.arg("--").arg(program), requests)?;
    let text = std::fs::read_to_string(&file.0).unwrap_or_default();
    perf_count(&text).ok_or_else(|| Refusal::Failed("perf counts no instructions here".into()))
}

/// Finds the count in `perf stat -x,`: the first field of the line that names the event.
fn perf_count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse().ok()?;
        line.contains("instructions").then_some(count)
    })
}

fn callgrind(program: &Path, backend: &str, cases: &[Counted]) -> Result<Vec<f64>, Refusal> {
    let mut requests = Vec::new();
    for counted in cases {
        for idle in [true, false] {
            requests.push(counted.prepare(backend, idle));
            // Once to warm up: what is done the first time only is not counted.
            requests.extend(
                [counted.few, counted.few, counted.many].map(|rounds| Request::Slice { rounds }),
            );
        }
    }
    let file = Scratch::new("dump").map_err(|error| Refusal::Failed(error.to_string()))?;
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&file.0);
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet"])
        .arg(out)
        .args([
            "--zero-before=windlass_bench_counted",
            "--dump-after=windlass_bench_counted",
        ]);
    let slices = run_script(command.arg(program), &requests)?;
    if slices != cases.len() * 6 {
        return Err(Refusal::Failed(format!(
            "{slices} slices, not {}",
            cases.len() * 6
        )));
    }
    let dumps: Result<Vec<u64>, Refusal> =
        (1..=slices).map(|number| dumped(&file.0, number)).collect();
    let per_case = dumps?;
    let counts = cases
        .iter()
        .zip(per_case.chunks_exact(6))
        .map(|(counted, dumps)| {
            counted.per_round(dumps[4], dumps[5]) - counted.per_round(dumps[1], dumps[2])
        });
    Ok(counts.collect())
}

/// The total of dump `number`: callgrind appends it to the name it was given.
fn dumped(file: &Path, number: usize) -> Result<u64, Refusal> {
    let path = file.with_extension(number.to_string());
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Refusal::Failed(format!("callgrind dumped nothing: {error}")))?;
    let total = text.lines().find_map(|line| line.strip_prefix("summary:"));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| Refusal::Failed("callgrind's dump has no summary".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_driver::protocol::Trigger;

    #[test]
    fn a_round_costs_the_difference() {
        let case = Case::AllReady {
            registered: 16,
            trigger: Trigger::Edge,
        };
        let counted = Counted::new(case, 16, 1_600);
        assert_eq!((counted.few, counted.many), (100, 300));
        assert_eq!(counted.per_round(1_000 + 100 * 87, 1_000 + 300 * 87), 87.0);
    }

    #[test]
    fn perf_says_the_count_first_or_that_it_has_none() {
        let text = "# started\n\n123456,,instructions:u,1000,100.00,,\n";
        assert_eq!(perf_count(text), Some(123_456));
        assert_eq!(
            perf_count("<not supported>,,instructions:u,0,100.00,,\n"),
            None
        );
    }

    #[test]
    fn a_scratch_file_is_gone_afterwards() {
        let scratch = Scratch::new("x").unwrap();
        let directory = scratch.0.parent().unwrap().to_owned();
        std::fs::write(&scratch.0, "x").unwrap();
        drop(scratch);
        assert!(!directory.exists());
    }
}
