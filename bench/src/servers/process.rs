//! A running server.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use windlass_bench_driver::cluster::ClusterCase;
use windlass_bench_driver::load::LoadCase;
use windlass_bench_driver::protocol::{Case, ServerInfo};

use crate::cases;
use crate::error::MeasureError;

/// Maximum time until a server listens; under a tool this takes seconds.
const START_MAX: Duration = Duration::from_secs(60);

/// Maximum time for a server, and the tool that it runs under, to end after SIGTERM. The tool
/// writes its report in that time.
const END_MAX: Duration = Duration::from_secs(30);

/// A server, perhaps under a tool.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) server: ServerInfo,
}

/// Returns the arguments of a server for a case.
pub(crate) fn arguments(case: &Case, cpu: Option<usize>, first: bool) -> Vec<String> {
    let traffic = cases::websocket::traffic(case);
    let case = case.workload();
    let is_broadcast =
        matches!(case, Case::Publish { .. } | Case::Cluster(ClusterCase::FanOut { .. }));
    let mode = if is_broadcast { "broadcast" } else { "echo" };
    let mut arguments = vec![mode.to_owned()];
    if let Case::Messages { deflate: true, .. } | Case::IdleConnection { deflate: true, .. } = case
    {
        arguments.push("--deflate".to_owned());
    }
    if let Some(traffic) = traffic {
        arguments.extend(["--traffic".to_owned(), traffic.to_owned()]);
    }
    if let Case::BurstOfWork { work_us, .. } | Case::Load(LoadCase::BurstOfOne { work_us, .. }) =
        case
    {
        arguments.extend(["--work-us".to_owned(), work_us.to_string()]);
    }
    if let Some(workers) = cases::server_threads(case) {
        arguments.extend(["--workers".to_owned(), workers.to_string()]);
    }
    let is_secure = match case {
        Case::Tls(case) => case.is_secure(),
        Case::WebsocketOnly(case) => case.is_secure(),
        _ => false,
    };
    if is_secure {
        arguments.push("--tls".to_owned());
    }
    if let Case::Cluster(ClusterCase::NodeEcho { bus, .. }) = case {
        arguments.extend(["--nodes".to_owned(), u8::from(*bus).to_string()]);
    }
    if let Some(cpu) = cpu {
        arguments.extend(["--cpu".to_owned(), cpu.to_string()]);
    }
    if first {
        arguments.push("--first".to_owned());
    }
    arguments
}

impl ServerProcess {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(mut command: Command) -> Result<Self, MeasureError> {
        let failed = |what: String| MeasureError::Failed(what);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| failed(format!("does not start: {error}")))?;
        let output = child.stdout.take();
        let (sender, line) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if output.is_some_and(|output| BufReader::new(output).read_line(&mut line).is_ok()) {
                // The receiver is gone if this took too long.
                let _ = sender.send(line);
            }
        });
        let said = line.recv_timeout(START_MAX).map_err(|_| failed("says nothing".into()));
        let server = said.and_then(|line| {
            serde_json::from_str(&line).map_err(|error| failed(format!("says `{line}`: {error}")))
        });
        match server {
            Ok(server) => Ok(Self { child, server }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// Returns the number of allocations so far, from the server's memory.
    pub(crate) fn allocations(&self) -> Option<u64> {
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.server.process)).ok()?;
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, self.server.allocations_at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Sends SIGTERM to the server, and waits until it and its tool have ended. The tool writes its
    /// report at its end. Kills a server that does not end in time.
    pub(crate) fn finish(self) -> Result<(), MeasureError> {
        self.finish_within(END_MAX)
    }

    fn finish_within(mut self, limit: Duration) -> Result<(), MeasureError> {
        let process = self.server.process.to_string();
        let asked = Command::new("kill").args([OsStr::new("-TERM"), OsStr::new(&process)]).status();
        if !asked.is_ok_and(|status| status.success()) {
            return Err(MeasureError::Failed("the server has ended".into()));
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < limit {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return Ok(());
            }
            // sleep: waitpid(2) has no form with a time limit.
            std::thread::sleep(Duration::from_millis(10));
        }
        let seconds = limit.as_secs_f64();
        let reason =
            format!("the server did not end within {seconds} s of SIGTERM, and was killed");
        Err(MeasureError::TimedOut(reason))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Both calls fail only if it has already ended.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_program_that_says_nothing_is_a_failure() {
        let error = ServerProcess::start(Command::new("/bin/true")).unwrap_err();
        assert!(matches!(error, MeasureError::Failed(_)));
    }

    #[test]
    fn a_server_that_does_not_end_is_killed_and_reported() {
        let line = r#"{"address":"127.0.0.1:1","process":'$$',"version":"1","allocations_at":0}"#;
        let script = format!("trap '' TERM; echo '{line}'; exec sleep infinity");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let process = ServerProcess::start(command).unwrap();
        let proc = format!("/proc/{}", process.server.process);
        assert!(Path::new(&proc).exists());
        let error = process.finish_within(Duration::from_millis(50)).unwrap_err();
        let reason = "the server did not end within 0.05 s of SIGTERM, and was killed";
        assert_eq!(error, MeasureError::TimedOut(reason.into()));
        assert!(!Path::new(&proc).exists());
    }

    #[test]
    fn a_server_gets_the_arguments_of_its_case() {
        let case = Case::Publish { receivers: 1, bytes: 1, outstanding: 1 };
        assert_eq!(arguments(&case, Some(1), true), ["broadcast", "--cpu", "1", "--first"]);
        assert_eq!(arguments(&Case::Upgrade { parallel: 1 }, None, false), ["echo"]);
        let case = Case::BurstOfWork { connections: 1, work_us: 200 };
        assert_eq!(arguments(&case, None, false), ["echo", "--work-us", "200"]);
        let case = Case::Load(LoadCase::BurstOfOne { burst: 9, others: 1, work_us: 200 });
        assert_eq!(arguments(&case, None, false), ["echo", "--work-us", "200"]);
        let case = Case::Load(LoadCase::Workers { workers: 4, connections: 32 });
        assert_eq!(arguments(&case, None, false), ["echo", "--workers", "4"]);
        let workload = Box::new(Case::IdleConnection { connections: 1, deflate: true });
        let case = Case::Websocket { workload };
        assert_eq!(arguments(&case, None, false), ["echo", "--deflate", "--traffic", "idle"]);
    }
}
