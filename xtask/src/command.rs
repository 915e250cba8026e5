//! Runs a command, shows what it prints and counts the tests in it.

use std::fmt;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::tally::Tally;

/// A command to run in the repository.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    program: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Cmd {
    /// `program` without arguments.
    pub(crate) fn new(program: &str) -> Self {
        Self { program: program.to_owned(), arguments: Vec::new(), variables: Vec::new() }
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

    /// The command for the standard library, in directory `root`, without input.
    pub(crate) fn build(&self, root: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir(root)
            .stdin(Stdio::null())
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it to the end, printing its output as it comes. With a `limit` the command is given a process
    /// group of its own, which is killed when the time is up.
    ///
    /// # Errors
    ///
    /// A sentence that says why the command did not succeed.
    pub(crate) fn run(&self, root: &Path, limit: Option<Duration>, tally: &mut Tally) -> Result<(), String> {
        println!("$ {self}");
        let (mut child, output) = self
            .start(root, limit.is_some())
            .map_err(|error| format!("`{}` cannot be started: {error}", self.program))?;
        let timed_out = read_until_end(&child, output, limit, tally);
        let status = child.wait().map_err(|error| format!("`{self}` cannot be waited for: {error}"))?;
        if timed_out {
            let limit = limit.unwrap_or_default().as_secs();
            return Err(format!("`{self}` was stopped after {limit} s"));
        }
        if !status.success() {
            return Err(format!("`{self}`: {status}"));
        }
        Ok(())
    }

    fn start(&self, root: &Path, own_group: bool) -> std::io::Result<(Child, PipeReader)> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = self.build(root);
        // One pipe for both streams keeps cargo's announcements beside the results they announce.
        command.stderr(writer.try_clone()?).stdout(writer);
        if own_group {
            command.process_group(0);
        }
        // `command` holds the pipe's writing ends and is dropped here, so that the reader sees the end.
        let child = command.spawn()?;
        Ok((child, reader))
    }
}

/// Copies the output and counts the tests in it until everybody has closed the pipe. Returns whether the
/// limit had to be enforced.
fn read_until_end(child: &Child, output: PipeReader, limit: Option<Duration>, tally: &mut Tally) -> bool {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (finished, watch) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watchdog = scope.spawn(move || {
            let (Some(limit), Some(group)) = (limit, group) else {
                return false;
            };
            // The child is waited for only after this thread has ended: its id cannot be reused yet.
            let timed_out = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if timed_out {
                print!("{}", running(group));
            }
            timed_out && kill_process_group(group, Signal::KILL).is_ok()
        });
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            let text = String::from_utf8_lossy(&line);
            // The macro and not the stream: a test of this program must not print test results of its own.
            print!("{text}");
            tally.feed(&text);
            line.clear();
        }
        drop(finished);
        watchdog.join().unwrap_or(false)
    })
}

/// The processes of a group, a line each: what hangs is among them, and is not always what printed last.
fn running(group: Pid) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let part = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let status = part("stat");
        // After the name, which may hold anything: state, parent, group.
        let mut fields = status.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next().unwrap_or_default();
        if fields.nth(1).and_then(|field| field.parse().ok()) == Some(group.as_raw_nonzero().get()) {
            let (id, place, line) = (entry.file_name(), part("wchan"), part("cmdline").replace('\0', " "));
            text.push_str(&format!("still there: {} {state} {place} {line}\n", id.to_string_lossy()));
        }
    }
    text
}

/// As one would type it.
impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = |text: &str| {
            if text.contains([' ', '$', '"']) || text.is_empty() { format!("'{text}'") } else { text.to_owned() }
        };
        for (name, value) in &self.variables {
            write!(f, "{name}={} ", quote(value))?;
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
        let script = "echo 'Running tests/a.rs (x/a-1)' >&2; echo 'test result: ok. 2 passed; 0 failed'";
        shell(script).run(Path::new("."), None, &mut tally).expect("the shell succeeds");
        assert_eq!(tally.suites()["a tests/a.rs"].passed, 2);
    }

    #[test]
    fn a_failing_command_is_named() {
        let error = shell("exit 3").run(Path::new("."), None, &mut Tally::default()).expect_err("the shell fails");
        assert!(error.contains("sh -c 'exit 3'"), "{error}");
        assert!(error.contains('3'), "{error}");
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let error = shell("sleep 1000 & wait")
            .run(Path::new("."), Some(Duration::from_millis(50)), &mut Tally::default())
            .expect_err("it is stopped");
        assert!(error.contains("was stopped"), "{error}");
    }

    #[test]
    fn the_processes_of_a_command_that_hangs_are_named() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().expect("there is a sleep");
        let text = running(Pid::from_child(&child));
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        assert!(text.contains("sleep 1000") && text.contains(&child.id().to_string()), "{text:?}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn input_is_closed() {
        shell("cat")
            .run(Path::new("."), Some(Duration::from_secs(60)), &mut Tally::default())
            .expect("cat sees the end of its input at once");
    }

    #[test]
    fn it_is_shown_as_one_would_type_it() {
        let cmd = Cmd::cargo(["test", "-p", "windlass"]).env("RUSTFLAGS", "--cfg x");
        assert_eq!(cmd.to_string(), "RUSTFLAGS='--cfg x' cargo test -p windlass");
    }
}
