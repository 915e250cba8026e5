//! Exact counts of user-space instructions.
//!
//! A program runs the same case for two numbers of rounds. The difference of the counts, divided by
//! the difference of the rounds, is the cost of a round. The workload's own cost (the writes that
//! fire the sources) is counted in the same program without the turns, and subtracted. Rounds with
//! different numbers of ready sources give a line: instructions per turn and per event.
//!
//! `perf stat` counts if the processor's counters are available. Otherwise, as on most virtual
//! machines, the program is single-stepped ([`singlestep`]). If tracing is forbidden, callgrind
//! counts. It sets its counter to zero at the entry of the measured part, and dumps it at the exit.
//! Stepping and callgrind count all cases in one run of a program.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use windlass_bench_driver::protocol::{Case, Reply, Request};

use super::singlestep;
use crate::cases;
use crate::child::parse;
use crate::error::MeasureError;

/// The tools that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tool {
    /// `perf stat -e instructions:u`.
    Perf,
    /// ptrace(2), one instruction at a time.
    Singlestep,
    /// valgrind's callgrind.
    Callgrind,
}

impl Tool {
    /// Returns the first tool that works here, or the reason why there is none.
    pub(crate) fn find() -> Result<Self, String> {
        Self::first_of([Self::Perf, Self::Singlestep, Self::Callgrind])
    }

    /// Returns the first tool that works here and gives the same count in every run.
    pub(crate) fn find_exact() -> Result<Self, String> {
        Self::first_of([Self::Singlestep, Self::Callgrind, Self::Perf])
    }

    fn first_of(tools: [Self; 3]) -> Result<Self, String> {
        let works = |tool: &Self| match tool {
            Self::Perf => perf(Path::new("true"), &[]).is_ok(),
            Self::Singlestep => can_step(),
            Self::Callgrind => Command::new("valgrind")
                .arg("--version")
                .output()
                .is_ok_and(|output| output.status.success()),
        };
        let none = "neither `perf stat -e instructions:u`, ptrace nor valgrind works here";
        tools.into_iter().find(works).ok_or_else(|| none.to_owned())
    }

    /// Returns the tool for code that reads the clock. A stepped read is slow enough for the kernel
    /// to change the clock meanwhile, and begins again then. In callgrind it is a system call.
    pub(crate) fn for_clock(self) -> Self {
        let can_run = self == Self::Singlestep && Self::first_of([Self::Callgrind; 3]).is_ok();
        if can_run { Self::Callgrind } else { self }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Singlestep => "singlestep",
            Self::Callgrind => "callgrind",
        }
    }

    /// Returns the instructions per round of each case, without those of the workload.
    pub(crate) fn count(
        self,
        program: &Path,
        backend: &str,
        cases: &[CountedCase],
    ) -> Result<Vec<f64>, MeasureError> {
        let count_slices = match self {
            Self::Perf => {
                let each = cases.iter().map(|counted| {
                    let turns = perf_difference(program, backend, counted, false)?;
                    if !cases::has_idle_workload(&counted.case) {
                        return Ok(turns);
                    }
                    Ok(turns - perf_difference(program, backend, counted, true)?)
                });
                return each.collect();
            }
            Self::Singlestep => stepped,
            Self::Callgrind => callgrind,
        };
        let counts = count_slices(program, &slices_of(backend, cases))?;
        let expected: usize = cases.iter().map(CountedCase::slices).sum();
        if counts.len() != expected {
            return Err(MeasureError::Failed(format!(
                "{} slices were counted, not {expected}",
                counts.len()
            )));
        }
        let mut rest = &counts[..];
        let per_round = cases.iter().map(|counted| {
            let (slices, after) = rest.split_at(counted.slices());
            rest = after;
            counted.without_workload(slices)
        });
        Ok(per_round.collect())
    }
}

/// Number of slices of a case that are counted with its turns, and as many without them.
const SLICES: usize = 3;

/// Returns the requests that count each case in its slices.
fn slices_of(backend: &str, cases: &[CountedCase]) -> Vec<Request> {
    let mut requests = Vec::new();
    for counted in cases {
        for idle in [true, false] {
            if idle && !cases::has_idle_workload(&counted.case) {
                continue;
            }
            requests.push(counted.prepare(backend, idle));
            // The first slice is a warm-up, for everything that happens only once.
            requests.extend(
                [counted.few, counted.few, counted.many].map(|rounds| Request::Slice { rounds }),
            );
        }
    }
    requests
}

/// A case to count, and its numbers of rounds.
#[derive(Clone, Debug)]
pub(crate) struct CountedCase {
    pub(crate) case: Case,
    pub(crate) few: u64,
    pub(crate) many: u64,
}

impl CountedCase {
    /// Chooses enough rounds for some dozen events. More are not needed, because counts hardly
    /// vary, and steps are slow.
    pub(crate) fn new(case: Case, ready: u64) -> Self {
        let few = (8 / ready).max(2);
        Self { case, few, many: few * 3 }
    }

    /// The number of slices in which it is counted.
    fn slices(&self) -> usize {
        if cases::has_idle_workload(&self.case) { 2 * SLICES } else { SLICES }
    }

    /// The instructions per round, less those of the idle workload if there is one.
    fn without_workload(&self, counts: &[u64]) -> f64 {
        match *counts {
            [_, idle_few, idle_many, _, few, many] => {
                self.per_round(few, many) - self.per_round(idle_few, idle_many)
            }
            [.., few, many] => self.per_round(few, many),
            _ => f64::NAN,
        }
    }

    /// The count per round, from the counts of the two slices. If a round is counted as a whole,
    /// both slices are one round.
    pub(crate) fn per_round(&self, few: u64, many: u64) -> f64 {
        if self.few == self.many {
            return many as f64 / self.many as f64;
        }
        (many as f64 - few as f64) / (self.many - self.few) as f64
    }

    pub(crate) fn prepare(&self, backend: &str, idle: bool) -> Request {
        Request::Prepare { case: self.case.clone(), backend: backend.to_owned(), idle }
    }
}

/// Runs a command that passes these requests to a program. Returns the number of slices.
pub(crate) fn run_script(
    command: &mut Command,
    requests: &[Request],
) -> Result<usize, MeasureError> {
    slices(&run(command, &script(requests))?)
}

/// Returns the number of slices in a program's replies, or the error that one reports.
fn slices(replies: &str) -> Result<usize, MeasureError> {
    let mut slices = 0;
    for line in replies.lines() {
        slices += usize::from(matches!(parse(line)?, Reply::Slice(_)));
    }
    Ok(slices)
}

/// Returns the requests as the input of a program.
fn script(requests: &[Request]) -> String {
    let mut script = String::new();
    for request in requests {
        let line = serde_json::to_string(request).expect("requests are plain data");
        writeln!(script, "{line}").expect("writing to a string");
    }
    script
}

/// Runs a command to its end with this input.
fn run(command: &mut Command, input: &str) -> Result<String, MeasureError> {
    let failed = |what: String| MeasureError::Failed(what);
    // The input is a file, because a pipe would have to be written while the output is read.
    let file =
        ScratchFile::new("script").map_err(|error| failed(format!("no scratch file: {error}")))?;
    std::fs::write(&file.0, input).map_err(|error| failed(format!("no script: {error}")))?;
    let input = File::open(&file.0).map_err(|error| failed(error.to_string()))?;
    let output =
        command.stdin(input).stderr(Stdio::null()).output().map_err(|error| {
            failed(format!("{:?} does not start: {error}", command.get_program()))
        })?;
    if !output.status.success() {
        return Err(failed(format!("{:?} ended with {}", command.get_program(), output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The name of a temporary file. Dropping it removes the file, and callgrind's dumps beside it.
pub(crate) struct ScratchFile(pub(crate) PathBuf);

impl ScratchFile {
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

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if let Some(directory) = self.0.parent() {
            // A file that remains does no harm.
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn perf_difference(
    program: &Path,
    backend: &str,
    counted: &CountedCase,
    idle: bool,
) -> Result<f64, MeasureError> {
    let total = |rounds| {
        let requests = [counted.prepare(backend, idle), Request::Slice { rounds }];
        perf(program, &requests)
    };
    // The start-up varies between runs, so the slices are long.
    let (few, many) = (counted.few, counted.few + (counted.many - counted.few) * 100);
    Ok((total(many)? as f64 - total(few)? as f64) / (many - few) as f64)
}

fn perf(program: &Path, requests: &[Request]) -> Result<u64, MeasureError> {
    let file = ScratchFile::new("perf").map_err(|error| MeasureError::Failed(error.to_string()))?;
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", "instructions:u", "-o"]).arg(&file.0);
    run_script(command.arg("--").arg(program), requests)?;
    let text = std::fs::read_to_string(&file.0).unwrap_or_default();
    perf_count(&text).ok_or_else(|| MeasureError::Failed("perf counts no instructions here".into()))
}

/// Finds the count in the output of `perf stat -x,`: the first field of the line with the event.
fn perf_count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse().ok()?;
        line.contains("instructions").then_some(count)
    })
}

/// Returns whether programs may be traced here.
pub(crate) fn can_step() -> bool {
    stepped(Path::new("true"), &[]).is_ok()
}

fn stepped(program: &Path, requests: &[Request]) -> Result<Vec<u64>, MeasureError> {
    let failed =
        |error: std::io::Error| MeasureError::Failed(format!("cannot be stepped: {error}"));
    let (input, output) =
        (ScratchFile::new("script").map_err(failed)?, ScratchFile::new("replies").map_err(failed)?);
    std::fs::write(&input.0, script(requests)).map_err(failed)?;
    let replies = File::create(&output.0).map_err(failed)?;
    let counts =
        singlestep::run(program, File::open(&input.0).map_err(failed)?, replies).map_err(failed)?;
    slices(&std::fs::read_to_string(&output.0).map_err(failed)?)?;
    Ok(counts)
}

fn callgrind(program: &Path, requests: &[Request]) -> Result<Vec<u64>, MeasureError> {
    let file = ScratchFile::new("dump").map_err(|error| MeasureError::Failed(error.to_string()))?;
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&file.0);
    let mut command = Command::new("valgrind");
    command
        .env(singlestep::TUNABLES.0, singlestep::TUNABLES.1)
        .args(["--tool=callgrind", "--quiet"])
        .arg(out)
        .args(["--zero-before=windlass_bench_counted", "--dump-after=windlass_bench_counted"]);
    let slices = run_script(command.arg(program), requests).map_err(|error| match error {
        MeasureError::Failed(reason) if reason.contains("(os error 38)") => {
            MeasureError::Unsupported("valgrind lacks a system call that it makes".into())
        }
        error => error,
    })?;
    (1..=slices).map(|number| dumped(&file.0, number)).collect()
}

/// Returns the total of dump `number`, which callgrind appends to the file's name.
fn dumped(file: &Path, number: usize) -> Result<u64, MeasureError> {
    let path = file.with_extension(number.to_string());
    let text = std::fs::read_to_string(&path)
        .map_err(|error| MeasureError::Failed(format!("callgrind dumped nothing: {error}")))?;
    let total = text.lines().find_map(|line| line.strip_prefix("summary:"));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| MeasureError::Failed("callgrind's dump has no summary".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_driver::protocol::Trigger;

    #[test]
    fn a_round_costs_the_difference() {
        let case = Case::AllReady { registered: 16, trigger: Trigger::Edge };
        let counted = CountedCase::new(case, 16);
        assert_eq!((counted.few, counted.many), (2, 6));
        assert_eq!(counted.per_round(1_000 + 2 * 87, 1_000 + 6 * 87), 87.0);
        assert_eq!(counted.without_workload(&[9, 20, 60, 9, 2 * 87, 6 * 87]), 77.0);
    }

    #[test]
    fn a_case_without_an_idle_workload_is_counted_in_half_as_many_slices() {
        let pair = CountedCase::new(Case::InsertCancel { alive: 1 }, 1);
        assert_eq!((pair.few, pair.many), (8, 24));
        assert_eq!(pair.without_workload(&[9, 8 * 50, 24 * 50]), 50.0);
        let whole = CountedCase { case: Case::Fire { count: 10 }, few: 1, many: 1 };
        assert_eq!(whole.without_workload(&[9, 700, 710]), 710.0);
        let requests = slices_of("epoll", &[pair, whole]);
        assert_eq!(requests.len(), 2 * (1 + SLICES));
    }

    #[test]
    fn perf_says_the_count_first_or_that_it_has_none() {
        let text = "# started\n\n123456,,instructions:u,1000,100.00,,\n";
        assert_eq!(perf_count(text), Some(123_456));
        assert_eq!(perf_count("<not supported>,,instructions:u,0,100.00,,\n"), None);
    }

    #[test]
    fn a_scratch_file_is_gone_afterwards() {
        let scratch = ScratchFile::new("x").unwrap();
        let directory = scratch.0.parent().unwrap().to_owned();
        std::fs::write(&scratch.0, "x").unwrap();
        drop(scratch);
        assert!(!directory.exists());
    }
}
