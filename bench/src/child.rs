//! A running program that is measured.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use windlass_bench_driver::protocol::{Outcome, Reply, Request};

use crate::error::MeasureError;
use crate::interrupt;
use crate::pin::Pin;

/// Maximum time for an answer. The slowest program takes some seconds to set a million timers. A
/// program that has lost an event would never answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The time between two looks at whether the run is interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    /// `None` after it was closed, which ends the program.
    requests: Option<ChildStdin>,
    /// The lines of its output. A thread reads them, so that a wait for one has a time limit.
    replies: Receiver<String>,
    pub(crate) version: String,
}

impl Child {
    /// Starts a program and pins it.
    pub(crate) fn start(path: &Path, pin: Pin) -> Result<Self, MeasureError> {
        Self::start_as(path, pin, false)
    }

    /// Starts a program and pins it. With `first` it gets a real-time priority.
    pub(crate) fn start_as(path: &Path, pin: Pin, first: bool) -> Result<Self, MeasureError> {
        let mut process =
            Command::new(path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| MeasureError::failed(format!("does not start: {error}")))?;
        let (Some(requests), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(MeasureError::failed("has no standard streams"));
        };
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let version = String::new();
        let mut child = Self { process, requests: Some(requests), replies, version };
        let cpu = match pin {
            Pin::Nowhere => None,
            Pin::To(cpu) => Some(cpu),
        };
        match child.ask(&Request::Hello { cpu, first })? {
            Reply::Hello { version, pinned } => {
                if cpu.is_some() && !pinned {
                    eprintln!("{}: not allowed to pin", path.display());
                }
                child.version = version;
                Ok(child)
            }
            reply => Err(MeasureError::failed(format!("answered the greeting with {reply:?}"))),
        }
    }

    /// Runs rounds of the prepared case.
    pub(crate) fn slice(&mut self, rounds: u64) -> Result<Outcome, MeasureError> {
        match self.ask(&Request::Slice { rounds })? {
            Reply::Slice(outcome) => Ok(outcome),
            reply => Err(MeasureError::failed(format!("answered a slice with {reply:?}"))),
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply, MeasureError> {
        let line = serde_json::to_string(request).expect("requests are plain data");
        let Some(requests) = &mut self.requests else {
            return Err(MeasureError::failed("has ended"));
        };
        writeln!(requests, "{line}").map_err(|_| MeasureError::failed("has ended"))?;
        parse(&self.answer()?)
    }

    /// Waits for a line, and looks again and again whether the run is interrupted.
    fn answer(&self) -> Result<String, MeasureError> {
        let started = Instant::now();
        loop {
            match self.replies.recv_timeout(LOOK_EVERY) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(MeasureError::failed("has ended without an answer"));
                }
                Err(RecvTimeoutError::Timeout) if interrupt::is_set() => {
                    return Err(MeasureError::failed("the run was interrupted"));
                }
                Err(RecvTimeoutError::Timeout) if started.elapsed() >= ANSWER_MAX => {
                    let reason = format!("no answer within {} s", ANSWER_MAX.as_secs());
                    return Err(MeasureError::TimedOut(reason));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Parses an answer. An answer that reports an error becomes an error.
pub(crate) fn parse(line: &str) -> Result<Reply, MeasureError> {
    match serde_json::from_str(line) {
        Ok(Reply::Unsupported { reason }) => Err(MeasureError::Unsupported(reason)),
        Ok(Reply::Failed { reason }) => Err(MeasureError::Failed(reason)),
        Ok(reply) => Ok(reply),
        Err(error) => {
            Err(MeasureError::failed(format!("sent a line that is not a reply: {error}")))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.requests = None;
        // A program that hangs would not read the end of its input. Both calls fail only if it has
        // already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_is_not_a_failure() {
        let line = r#"{"reply":"unsupported","reason":"x"}"#;
        assert_eq!(parse(line).unwrap_err(), MeasureError::Unsupported("x".into()));
        let line = r#"{"reply":"failed","reason":"y"}"#;
        assert_eq!(parse(line).unwrap_err(), MeasureError::Failed("y".into()));
        assert!(matches!(parse("nonsense"), Err(MeasureError::Failed(_))));
        assert!(matches!(parse(r#"{"reply":"ready"}"#), Ok(Reply::Ready)));
    }

    #[test]
    fn a_program_that_says_nothing_is_a_failure() {
        assert!(matches!(
            Child::start(Path::new("/bin/true"), Pin::Nowhere),
            Err(MeasureError::Failed(_))
        ));
    }
}
