//! Child programs: started, read and stopped by their ids, and killed in any case.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, PipeReader, Write as _},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        LazyLock,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time for a program to stop after SIGTERM.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A running program. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    /// The lines of both its outputs, which are also in its log. Disconnected when it has closed
    /// them.
    lines: Receiver<String>,
}

impl Process {
    /// Starts `command` with its output in the file `log`. The calling thread must not end before
    /// the program.
    pub(crate) fn start(command: Command, log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut command = bound_to_us(command);
        let log = File::create(log).with_context(|| log.display().to_string())?;
        let (output, writer) = std::io::pipe()?;
        command.stdin(Stdio::null()).stderr(writer.try_clone()?).stdout(writer);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        // The reader sees the end of the output only if no writing end is open here.
        drop(command);
        Ok(Self { name, child, lines: lines_of(output, log) })
    }

    /// Waits for a line for which `find` returns a value.
    pub(crate) fn wait_for<T>(
        &self,
        patience: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) => {
                    if let Some(found) = find(&line) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} says nothing for {patience:?}", self.name)
                }
                Err(RecvTimeoutError::Disconnected) => bail!("{} ended too early", self.name),
            }
        }
    }

    /// Waits until the program ends by itself. Stops it if it prints nothing for the time
    /// `silence`.
    pub(crate) fn wait_end(self, silence: Duration) -> Result<ExitStatus> {
        Ok(self.lines_to_end(silence)?.1)
    }

    /// The same, and returns the remaining lines.
    pub(crate) fn lines_to_end(mut self, silence: Duration) -> Result<(Vec<String>, ExitStatus)> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(silence) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} says nothing for {silence:?} and is stopped", self.name)
                }
                // It has closed its output, so it ends or has ended.
                Err(RecvTimeoutError::Disconnected) => return Ok((lines, self.child.wait()?)),
            }
        }
    }

    /// Sends SIGTERM to the program and waits for its end.
    pub(crate) fn stop(self) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        self.wait_end(WAIT_MAX)
    }

    /// Returns whether it still runs.
    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only if the program was already waited for. Then std does not send the
        // signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that the kernel kills when the starting thread ends, so that even SIGKILL to
/// this program leaves no children (PR_SET_PDEATHSIG in prctl(2), set by setpriv(1)). Without
/// setpriv it returns the command unchanged.
fn bound_to_us(command: Command) -> Command {
    static CAN_BIND: LazyLock<bool> = LazyLock::new(|| {
        let asked = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    });
    if !*CAN_BIND {
        return command;
    }
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    bound
}

/// Reads lines in a separate thread, so that a wait for one has a time limit, and copies them to
/// `log`.
fn lines_of(output: PipeReader, mut log: File) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while matches!(output.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            // The log is only informative. A full disk or a dropped receiver must not stop the
            // program.
            let _ = log.write_all(&line);
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            line.clear();
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any of these programs needs.
    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, Path::new("/dev/null")).expect("the shell starts")
    }

    #[test]
    fn a_line_is_waited_for() {
        let process = shell("echo one; echo two 2 >&2; exec sleep 1000");
        let found = process.wait_for(LONG, |line| line.strip_prefix("two ").map(str::to_owned));
        assert_eq!(found.expect("it comes"), "2");
        let status = process.stop().expect("it stops");
        assert!(!status.success(), "the signal ended it");
    }

    #[test]
    fn a_program_that_ends_before_its_line_is_an_error() {
        let error =
            shell("echo one").wait_for(LONG, |_| None::<()>).expect_err("there is no such line");
        assert!(error.to_string().contains("too early"), "{error}");
    }

    #[test]
    fn the_exit_status_is_returned() {
        let status = shell("exit 3").wait_end(LONG).expect("it ends");
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let start = || {
            let process = shell("echo ready; exec sleep 1000");
            process.wait_for(LONG, |line| (line == "ready").then_some(())).expect("it starts");
            process
        };
        let process = std::thread::spawn(start).join().expect("no panic");
        let status = process.wait_end(LONG).expect("it ends");
        assert!(!status.success(), "the signal ended it");
    }

    #[test]
    fn a_silent_program_is_stopped() {
        let process = shell("exec sleep 1000");
        let pid = Pid::from_child(&process.child);
        let error = process.wait_end(Duration::from_millis(50)).expect_err("it says nothing");
        assert!(error.to_string().contains("says nothing"), "{error}");
        assert!(rustix::process::test_kill_process(pid).is_err(), "it is gone");
    }
}
