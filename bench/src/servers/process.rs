//! A server that runs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use windlass_bench_driver::protocol::{Case, Server};

use crate::child::Refusal;

/// Longest time until a server listens; under a tool that counts it takes seconds.
const START_MAX: Duration = Duration::from_secs(60);

/// Longest time for a server, and for the tool that it runs under, to end after SIGTERM. The tool
/// writes its report in that time.
const END_MAX: Duration = Duration::from_secs(30);

/// A server, perhaps under a tool that counts.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) server: Server,
}

/// The arguments of a server for a case.
pub(crate) fn arguments(case: &Case, cpu: Option<usize>, first: bool) -> Vec<String> {
    let mode = if matches!(case, Case::Publish { .. }) { "broadcast" } else { "echo" };
    let mut arguments = vec![mode.to_owned()];
    if matches!(case, Case::Messages { deflate: true, .. }) {
        arguments.push("--deflate".to_owned());
    }
    if let Some(cpu) = cpu {
        arguments.extend(["--cpu".to_owned(), cpu.to_string()]);
    }
    if first {
        arguments.push("--first".to_owned());
    }
    arguments
}

impl Process {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(mut command: Command) -> Result<Self, Refusal> {
        let failed = |what: String| Refusal::Failed(what);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| failed(format!("does not start: {error}")))?;
        let output = child.stdout.take();
        let (sender, line) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if output.is_some_and(|output| BufReader::new(output).read_line(&mut line).is_ok()) {
                // Nobody waits any more if it took too long.
                let _ = sender.send(line);
            }
        });
        let said = line.recv_timeout(START_MAX).map_err(|_| failed("says nothing".into()));
        let server = said.and_then(|line| {
            serde_json::from_str(&line).map_err(|error| failed(format!("says `{line}`: {error}")))
        });
        match server {
            Ok(server) => Ok(Self { child, server }),
            Err(refusal) => {
                end(&mut child);
                Err(refusal)
            }
        }
    }

    /// Allocations so far, as its memory has them.
    pub(crate) fn allocations(&self) -> Option<u64> {
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.server.process)).ok()?;
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, self.server.allocations_at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Asks the server, and with it the tool that it runs under, to end, and waits until the tool
    /// has written its report. Kills a server that does not end in time.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        self.finish_within(END_MAX)
    }

    fn finish_within(mut self, limit: Duration) -> Result<(), Refusal> {
        let process = self.server.process.to_string();
        let asked = Command::new("kill").args([OsStr::new("-TERM"), OsStr::new(&process)]).status();
        if !asked.is_ok_and(|status| status.success()) {
            return Err(Refusal::Failed("the server has ended".into()));
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
        Err(Refusal::TimedOut(reason))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Both calls fail only when it has ended already.
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
        let refusal = Process::start(Command::new("/bin/true")).unwrap_err();
        assert!(matches!(refusal, Refusal::Failed(_)));
    }

    #[test]
    fn a_server_that_does_not_end_is_killed_and_reported() {
        let line = r#"{"address":"127.0.0.1:1","process":'$$',"version":"1","allocations_at":0}"#;
        let script = format!("trap '' TERM; echo '{line}'; exec sleep infinity");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let process = Process::start(command).unwrap();
        let proc = format!("/proc/{}", process.server.process);
        assert!(Path::new(&proc).exists());
        let refusal = process.finish_within(Duration::from_millis(50)).unwrap_err();
        let reason = "the server did not end within 0.05 s of SIGTERM, and was killed";
        assert_eq!(refusal, Refusal::TimedOut(reason.into()));
        assert!(!Path::new(&proc).exists());
    }

    #[test]
    fn a_server_is_told_what_its_case_needs() {
        let case = Case::Publish { receivers: 1, bytes: 1, outstanding: 1 };
        assert_eq!(arguments(&case, Some(1), true), ["broadcast", "--cpu", "1", "--first"]);
        assert_eq!(arguments(&Case::Upgrade { parallel: 1 }, None, false), ["echo"]);
    }
}
