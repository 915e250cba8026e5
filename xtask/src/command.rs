//! Runs a command, shows its output and counts the tests in it.

use std::fmt;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::output::Output;
use crate::tally::Tally;

/// The variable that names cargo's target directory.
const TARGET: &str = "CARGO_TARGET_DIR";

/// A command to run in the repository.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    program: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    /// The working directory, if it is not the repository's root.
    directory: Option<PathBuf>,
    /// The target directory, below the common one.
    target: Option<String>,
}

impl Cmd {
    /// `program` without arguments.
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: None,
            target: None,
        }
    }

    /// `cargo` with these arguments.
    pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new("cargo").args(arguments)
    }

    /// Adds arguments.
    pub(crate) fn args<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.arguments.extend(arguments.into_iter().map(str::to_owned));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it in this directory.
    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_path_buf());
        self
    }

    /// Builds in a directory of this name below the common target directory.
    pub(crate) fn target(mut self, name: &str) -> Self {
        self.target = Some(name.to_owned());
        self
    }

    /// Converts it for the standard library. It runs in `root` unless it has its own directory, and
    /// has no input.
    pub(crate) fn build(&self, root: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir(self.directory.as_deref().unwrap_or(root))
            .stdin(Stdio::null())
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(target) = &self.target {
            let common = std::env::var_os(TARGET)
                .map_or_else(|| root.join("target"), |common| root.join(common));
            command.env(TARGET, common.join(target));
        }
        command
    }

    /// Runs it to the end. Its output is shown or kept, and the tests in it are counted. With a
    /// `limit`, the command gets its own process group, which is killed at the limit. Returns the
    /// processor time of the command and its children.
    ///
    /// # Errors
    ///
    /// The reason why the command did not succeed, as a sentence.
    pub(crate) fn run(
        &self,
        root: &Path,
        limit: Option<Duration>,
        tally: &mut Tally,
        output: &mut Output,
    ) -> Result<Duration, String> {
        output.say(&format!("$ {self}\n"));
        let (mut child, pipe) = self
            .start(root, limit.is_some())
            .map_err(|error| format!("`{}` cannot be started: {error}", self.program))?;
        let timed_out = read_until_end(&child, pipe, limit, tally, output);
        let (status, processor) =
            wait(&mut child).map_err(|error| format!("`{self}` has no exit status: {error}"))?;
        if timed_out {
            let limit = limit.unwrap_or_default().as_secs();
            return Err(format!("`{self}` was killed after {limit} s, its time limit"));
        }
        if !status.success() {
            return Err(format!("`{self}`: {status}"));
        }
        Ok(processor)
    }

    fn start(&self, root: &Path, own_group: bool) -> std::io::Result<(Child, PipeReader)> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = self.build(root);
        // Both streams share one pipe, so that cargo's announcements stay next to the results.
        command.stderr(writer.try_clone()?).stdout(writer);
        if own_group {
            command.process_group(0);
        }
        // `command` holds the writing ends of the pipe. They are closed here, so that the reader
        // sees the end.
        let child = command.spawn()?;
        Ok((child, reader))
    }
}

/// Waits for a child. Returns the processor time of the child and its children, which the kernel
/// keeps until the child is reaped.
fn wait(child: &mut Child) -> std::io::Result<(ExitStatus, Duration)> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    Ok((child.wait()?, processor_time(&status)))
}

/// User and system time of a process and of its reaped children: fields 14 to 17 of
/// proc_pid_stat(5).
fn processor_time(status: &str) -> Duration {
    // The name may contain anything. The third field follows it.
    let fields = status.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 =
        fields.skip(14 - 3).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    // USER_HZ is 100 on every 64-bit Linux that Rust supports.
    Duration::from_millis(ticks * 10)
}

/// Reads the output and counts the tests in it, until all writing ends of the pipe are closed.
/// Returns whether the limit was exceeded.
fn read_until_end(
    child: &Child,
    pipe: PipeReader,
    limit: Option<Duration>,
    tally: &mut Tally,
    output: &mut Output,
) -> bool {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (finished, watch) = mpsc::channel::<()>();
    let stopped = std::thread::scope(|scope| {
        let watchdog = scope.spawn(move || {
            let (limit, group) = (limit?, group?);
            // The child is reaped only after this thread has ended, so its id cannot be reused yet.
            let timed_out = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            let there = if timed_out { running(group) } else { String::new() };
            (timed_out && kill_process_group(group, Signal::KILL).is_ok()).then_some(there)
        });
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            let text = String::from_utf8_lossy(&line);
            output.say(&text);
            tally.feed(&text);
            line.clear();
        }
        drop(finished);
        watchdog.join().unwrap_or(None)
    });
    output.say(stopped.as_deref().unwrap_or_default());
    stopped.is_some()
}

/// Lists the processes of a group, one per line. A process that hangs is among them; it need not be
/// the one that printed last.
fn running(group: Pid) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let part = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let status = part("stat");
        // The name may contain anything. State, parent and group follow it.
        let mut fields = status.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next().unwrap_or_default();
        if fields.nth(1).and_then(|field| field.parse().ok()) == Some(group.as_raw_nonzero().get())
        {
            let (id, place, line) =
                (entry.file_name(), part("wchan"), part("cmdline").replace('\0', " "));
            text.push_str(&format!(
                "still there: {} {state} {place} {line}\n",
                id.to_string_lossy()
            ));
        }
    }
    text
}

/// Prints the command as one would type it.
impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = |text: &str| {
            if text.contains([' ', '$', '"']) || text.is_empty() {
                format!("'{text}'")
            } else {
                text.to_owned()
            }
        };
        for (name, value) in &self.variables {
            write!(f, "{name}={} ", quote(value))?;
        }
        if let Some(target) = &self.target {
            write!(f, "{TARGET}=target/{target} ")?;
        }
        f.write_str(&self.program)?;
        for argument in &self.arguments {
            write!(f, " {}", quote(argument))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Cmd {
        Cmd::new("sh").args(["-c", script])
    }

    #[test]
    fn both_streams_are_counted() {
        let mut tally = Tally::default();
        let script =
            "echo 'Running tests/a.rs (x/a-1)' >&2; echo 'test result: ok. 2 passed; 0 failed'";
        shell(script)
            .run(Path::new("."), None, &mut tally, &mut Output::kept())
            .expect("the shell succeeds");
        let counts: Vec<u64> = tally.suites().values().map(|counts| counts.passed).collect();
        assert_eq!(counts, [2]);
    }

    #[test]
    fn the_output_of_a_command_is_kept_or_shown() {
        let mut output = Output::kept();
        shell("echo one; echo two >&2")
            .run(Path::new("."), None, &mut Tally::default(), &mut output)
            .expect("success");
        assert_eq!(output.into_kept(), "$ sh -c 'echo one; echo two >&2'\none\ntwo\n");
    }

    #[test]
    fn processor_time_includes_children() {
        // A name may contain blanks and parentheses.
        let status = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 25 50 100 225 20 0 1 0 5 0 0";
        assert_eq!(processor_time(status), Duration::from_secs(4));
        // The child of a shell counts too.
        let busy = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; true";
        let took = shell(busy)
            .run(Path::new("."), None, &mut Tally::default(), &mut Output::kept())
            .expect("the shell succeeds");
        assert!(took > Duration::ZERO);
    }

    #[test]
    fn a_failing_command_is_named() {
        let error = shell("exit 3")
            .run(Path::new("."), None, &mut Tally::default(), &mut Output::kept())
            .expect_err("the shell fails");
        assert!(error.contains("sh -c 'exit 3'"), "{error}");
        assert!(error.contains('3'), "{error}");
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let error = shell("sleep 1000 & wait")
            .run(
                Path::new("."),
                Some(Duration::from_millis(50)),
                &mut Tally::default(),
                &mut Output::kept(),
            )
            .expect_err("it is stopped");
        assert!(error.contains("was killed"), "{error}");
    }

    #[test]
    fn the_processes_of_a_command_that_hangs_are_named() {
        let mut child =
            Command::new("sleep").arg("1000").process_group(0).spawn().expect("there is a sleep");
        let text = running(Pid::from_child(&child));
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        assert!(text.contains("sleep 1000") && text.contains(&child.id().to_string()), "{text:?}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn input_is_closed() {
        shell("cat")
            .run(
                Path::new("."),
                Some(Duration::from_secs(60)),
                &mut Tally::default(),
                &mut Output::kept(),
            )
            .expect("cat sees the end of its input at once");
    }

    #[test]
    fn a_command_is_printed_as_one_would_type_it() {
        let cmd = Cmd::cargo(["test", "-p", "windlass"]).env("RUSTFLAGS", "--cfg x");
        assert_eq!(cmd.to_string(), "RUSTFLAGS='--cfg x' cargo test -p windlass");
    }
}
