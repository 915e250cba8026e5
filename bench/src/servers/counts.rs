//! Instructions and system calls of servers.
//!
//! A server runs under a tool twice, with two numbers of messages. Start, accepting and warm-up are
//! in both counts, so the difference belongs to the messages. Callgrind counts the instructions,
//! strace the system calls.
//!
//! The instructions of handshakes are counted in steps (ptrace(2)) if that is allowed. valgrind
//! hides the processor's instructions for SHA-1, and without them the hash is a large part of a
//! handshake. A server is stepped from the end of its warm-up until it sleeps.

use std::path::Path;
use std::process::Command;

use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::{Case, Reply, Request};

use super::built::{BuiltServer, Processors};
use super::process::ServerProcess;
use crate::cases::servers::counted;
use crate::child::Child;
use crate::error::MeasureError;
use crate::limit::{Counting, Limit, time_is_over};
use crate::options::Options;
use crate::report::stats::Spread;
use crate::report::{Entry, Report};
use crate::tools::instructions::{self, ScratchFile};
use crate::tools::singlestep::{Attached, TUNABLES};
use crate::tools::strace;

/// The tools that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerTool {
    Callgrind,
    Singlestep,
    Strace,
}

impl ServerTool {
    fn name(self) -> &'static str {
        match self {
            Self::Callgrind => "callgrind",
            Self::Singlestep => "singlestep",
            Self::Strace => "strace",
        }
    }

    /// Returns the name of its counts for `--case`.
    fn case(self) -> &'static str {
        match self {
            Self::Callgrind | Self::Singlestep => "instructions",
            Self::Strace => "system_calls",
        }
    }

    fn metric(self, unit: &str) -> String {
        match self {
            Self::Callgrind | Self::Singlestep => format!("user_instructions_per_{unit}"),
            Self::Strace => format!("syscalls_per_{unit}"),
        }
    }

    /// Returns why it cannot be used here; `None` if it can.
    fn unavailable(self) -> Option<String> {
        match self {
            Self::Callgrind => {
                let works = Command::new("valgrind")
                    .arg("--version")
                    .output()
                    .is_ok_and(|output| output.status.success());
                (!works).then(|| "valgrind is not installed".to_owned())
            }
            Self::Singlestep => {
                (!instructions::can_step()).then(|| "ptrace(2) is not allowed".to_owned())
            }
            Self::Strace => strace::unavailable(),
        }
    }

    /// Returns the tool for this case: another one, if that fits better, works here and has the
    /// time.
    fn fit_for(self, case: &Case, options: &Options) -> Self {
        let is_stepped = self == Self::Callgrind
            && matches!(case.workload(), Case::Upgrade { .. })
            && options.steps_handshakes();
        if is_stepped && Self::Singlestep.unavailable().is_none() { Self::Singlestep } else { self }
    }

    fn command(self, program: &Path, report: &Path) -> Command {
        match self {
            Self::Callgrind => {
                let mut file = std::ffi::OsString::from("--callgrind-out-file=");
                file.push(report);
                let mut command = Command::new("valgrind");
                command
                    .env(TUNABLES.0, TUNABLES.1)
                    .args(["--tool=callgrind", "-q"])
                    .arg(file)
                    .arg(program);
                command
            }
            Self::Singlestep => {
                let mut command = Command::new(program);
                command.env(TUNABLES.0, TUNABLES.1);
                command
            }
            Self::Strace => {
                let mut command = Command::new("strace");
                command.args(["-f", "-c", "-o"]).arg(report).arg(program);
                command
            }
        }
    }

    /// Returns the count in a report.
    fn total(self, report: &str) -> Option<u64> {
        match self {
            Self::Callgrind => {
                report.lines().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
            }
            Self::Singlestep => None,
            Self::Strace => strace::calls(report),
        }
    }
}

/// A server that is counted, and the client for it.
#[derive(Clone, Copy)]
struct CountSetup<'a> {
    built: &'a BuiltServer,
    client: &'a Path,
    processors: Processors,
}

/// Counts the instructions and system calls of a suite, a case after another while there is time. A
/// server that times out under a tool is killed, and its further cases are not counted with that
/// tool.
pub(super) fn count(
    suite: &str,
    servers: &[BuiltServer],
    client: &Path,
    options: &Options,
    processors: Processors,
    limit: Limit,
    report: &mut Report,
) {
    // The same program twice has the same counts.
    let once = servers.iter().filter(|built| built.name() != "floor-again");
    let setups: Vec<_> = once.map(|built| CountSetup { built, client, processors }).collect();
    let tools = [ServerTool::Callgrind, ServerTool::Strace];
    let wanted = tools.into_iter().filter(|tool| options.wants_case(tool.case()));
    let mut all: Vec<_> = wanted.map(|tool| (tool, setups.clone(), Counting::new(limit))).collect();
    for (case, rounds) in &counted(suite, options.quick) {
        for (tool, setups, counting) in &mut all {
            let tool = tool.fit_for(case, options);
            if let Some(reason) = tool.unavailable() {
                report.skip(suite, tool.case(), "*", MeasureError::Unsupported(reason));
                continue;
            }
            let counted = counting.next(|| {
                setups.retain(|setup| {
                    !setup.built.server.program.has(case.part())
                        || count_case(tool, case, *rounds, *setup, report)
                });
            });
            if counted.is_none() {
                report.skip(suite, &crate::cases::describe(case).0, tool.name(), time_is_over());
            }
        }
    }
}

/// Counts a case and reports the result. Returns false if the server timed out.
fn count_case(
    tool: ServerTool,
    case: &Case,
    rounds: u64,
    setup: CountSetup<'_>,
    report: &mut Report,
) -> bool {
    let (name, mut params) = crate::cases::describe(case);
    params.insert("tool".to_owned(), tool.name().into());
    let built = setup.built;
    eprintln!("{}/{name} {} ({})", case.suite(), built.name(), tool.name());
    match per_round(tool, setup, case, rounds) {
        Ok((per_round, version)) => report.results.push(Entry {
            suite: case.suite().to_owned(),
            case: name,
            params,
            implementation: built.name().to_owned(),
            backend: built.backend.to_owned(),
            version,
            metrics: [(tool.metric(crate::cases::unit(case)), Spread::exact(per_round))].into(),
            samples: Vec::new(),
        }),
        Err(MeasureError::TimedOut(reason)) => {
            let title = format!("{} on {}", built.name(), built.backend);
            let reason = format!(
                "{reason}; it ran under {}, and its further cases are not counted with that tool",
                tool.name()
            );
            report.skip(case.suite(), &name, &title, MeasureError::TimedOut(reason));
            return false;
        }
        Err(error) => report.skip(case.suite(), &name, built.name(), error),
    }
    true
}

/// Measured rounds of a stepped slice. It has about twice as many more: the warm-up, and the rounds
/// in flight at its end. A step takes microseconds.
const STEPPED_ROUNDS: u64 = 32;

/// Rounds before the stepped slice, for everything that happens only once.
const UNSTEPPED_ROUNDS: u64 = 200;

/// Returns the count of a round, and the server's version.
fn per_round(
    tool: ServerTool,
    setup: CountSetup<'_>,
    case: &Case,
    rounds: u64,
) -> Result<(f64, String), MeasureError> {
    if tool == ServerTool::Singlestep {
        return stepped(setup, case);
    }
    if matches!(case, Case::Load(LoadCase::FirstAnswer)) {
        // The start itself is counted, and the whole process has nothing else to do.
        return total(tool, setup, case, 1).map(|start| (start.count as f64, start.version));
    }
    let few = total(tool, setup, case, 1)?;
    let many = total(tool, setup, case, rounds)?;
    let rounds = many.rounds - few.rounds;
    Ok(((many.count as f64 - few.count as f64) / rounds as f64, many.version))
}

/// The result of one run.
struct Total {
    count: u64,
    rounds: u64,
    version: String,
}

fn total(
    tool: ServerTool,
    setup: CountSetup<'_>,
    case: &Case,
    rounds: u64,
) -> Result<Total, MeasureError> {
    let built = setup.built;
    let file =
        ScratchFile::new("counts").map_err(|error| MeasureError::Failed(error.to_string()))?;
    let program = match built.server.counted {
        Some(counted) if tool == ServerTool::Callgrind => built.path().with_file_name(counted),
        _ => built.path().to_owned(),
    };
    let (process, mut client) = connected(tool.command(&program, &file.0), setup, case)?;
    let version = process.server.version.clone();
    let outcome = client.slice(rounds)?;
    process.finish()?;
    drop(client);
    let text = std::fs::read_to_string(&file.0).unwrap_or_default();
    let count = tool
        .total(&text)
        .ok_or_else(|| MeasureError::Failed(format!("{} has no total", tool.name())))?;
    Ok(Total { count, rounds: outcome.turns, version })
}

/// Returns the count of a round of a stepped server: all instructions in a slice, after another
/// slice has warmed it up. When the server sleeps again, it has finished everything that the client
/// began.
fn stepped(setup: CountSetup<'_>, case: &Case) -> Result<(f64, String), MeasureError> {
    let failed =
        |error: std::io::Error| MeasureError::Failed(format!("cannot be stepped: {error}"));
    let command = ServerTool::Singlestep.command(setup.built.path(), Path::new(""));
    let (process, mut client) = connected(command, setup, case)?;
    client.slice(UNSTEPPED_ROUNDS)?;
    let attached =
        Attached::begin(process.server.process, setup.processors.server).map_err(failed)?;
    let outcome = client.slice(STEPPED_ROUNDS);
    let count = attached.end().map_err(failed)?;
    let version = process.server.version.clone();
    process.finish()?;
    Ok((count as f64 / outcome?.turns as f64, version))
}

/// Starts a server, perhaps under a tool, and a client that is connected to it.
fn connected(
    mut command: Command,
    CountSetup { built, client, processors }: CountSetup<'_>,
    case: &Case,
) -> Result<(ServerProcess, Child), MeasureError> {
    command.args(built.arguments(case, processors.server, false));
    let process = ServerProcess::start(command)?;
    let mut client = Child::start(client, processors.client_pin())?;
    match client.ask(&Request::Connect { case: case.clone(), server: process.server.clone() })? {
        Reply::Ready => Ok((process, client)),
        reply => Err(MeasureError::Failed(format!("not ready but {reply:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::ServerTool;

    #[test]
    fn the_total_is_found_in_each_tools_report() {
        assert_eq!(
            ServerTool::Callgrind.total("events: Ir\nfn=(1) x\ntotals: 123456\n"),
            Some(123_456)
        );
        assert_eq!(ServerTool::Strace.total("100.00  0.0  0  29  1 total\n"), Some(29));
        assert_eq!(ServerTool::Callgrind.total("events: Ir\n"), None);
    }
}
