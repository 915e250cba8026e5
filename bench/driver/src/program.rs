//! The main loop of a measured program.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use crate::affinity;
use crate::calls::{self, Prices};
use crate::deflate::{self, DeflateSubject};
use crate::dispatch::{self, Subject};
use crate::flow::{self, CounterSubject};
use crate::kick;
use crate::measured::{Error, Measured, TooFewFiles, Unsupported};
use crate::poll0::{self, PollSubject};
use crate::protocol::{Case, Reply, Request};
use crate::server::raise_open_files;
use crate::sleep::{self, SleepSubject};
use crate::startup::{self, StartSubject};
use crate::streams::{self, StreamSubject};
use crate::tasks::{self, TaskSubject};
use crate::timers::{self, TimerSubject};
use crate::unmask::{self, UnmaskSubject};
use crate::utf8::{self, Utf8Subject};
use crate::wakeup::{self, CallSubject, LoopSubject, QueueSubject};
use crate::websocket::{self, EngineSubject};

/// A suite, or a part of one (see [`Case::part`]), and the function that sets up its cases.
pub struct Suite {
    part: &'static str,
    prepare: Prepare,
}

type Prepare = fn(&Case, &str, bool) -> Result<Box<dyn Measured>, Error>;

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite").field("part", &self.part).finish_non_exhaustive()
    }
}

impl Suite {
    /// The suite `dispatch`, for a reactor.
    pub fn dispatch<S: Subject>() -> Self {
        Self { part: "dispatch", prepare: dispatch::prepare::<S> }
    }

    /// The suite `kick`, for a reactor.
    pub fn kick<S: Subject>() -> Self {
        Self { part: "kick", prepare: kick::prepare::<S> }
    }

    /// The suite `poll0`, for a reactor.
    pub fn poll0<S: PollSubject>() -> Self {
        Self { part: "poll0", prepare: poll0::prepare::<S> }
    }

    /// The suite `calls`.
    pub fn calls<P: Prices>() -> Self {
        Self { part: "calls", prepare: calls::prepare::<P> }
    }

    /// The part `first_event` of the suite `startup`.
    pub fn first_event<S: StartSubject>() -> Self {
        Self { part: "startup/first_event", prepare: startup::prepare::<S> }
    }

    /// The suite `timers`, for anything that keeps timers.
    pub fn timers<T: TimerSubject>() -> Self {
        Self { part: "timers", prepare: timers::prepare::<T> }
    }

    /// The part `sleep` of the suite `timers`.
    pub fn sleep<S: SleepSubject>() -> Self {
        Self { part: "timers/sleep", prepare: sleep::prepare::<S> }
    }

    /// The suite `streams`, for a reactor with byte streams.
    pub fn streams<S: StreamSubject>() -> Self {
        Self { part: "streams", prepare: streams::prepare::<S> }
    }

    /// The suite `flow`, for a counter.
    pub fn flow<C: CounterSubject>() -> Self {
        Self { part: "flow", prepare: flow::prepare::<C> }
    }

    /// The part `wake` of the suite `wakeup`, for a loop that can be woken.
    pub fn wake<L: LoopSubject>() -> Self {
        Self { part: "wakeup/wake", prepare: wakeup::prepare_wake::<L> }
    }

    /// The part `call` of the suite `wakeup`, for a loop that runs closures of other threads.
    pub fn call<C: CallSubject>() -> Self {
        Self { part: "wakeup/call", prepare: wakeup::prepare_call::<C> }
    }

    /// The part `post` of the suite `wakeup`, for a bounded queue.
    pub fn post<Q: QueueSubject>() -> Self {
        Self { part: "wakeup/post", prepare: wakeup::prepare_post::<Q> }
    }

    /// The suite `latency`, for what has sockets and tasks.
    pub fn latency<S: TaskSubject>() -> Self {
        Self { part: "latency", prepare: tasks::prepare::<S> }
    }

    /// The suite `tasks`, for the same.
    pub fn tasks<S: TaskSubject>() -> Self {
        Self { part: "tasks", prepare: tasks::prepare::<S> }
    }

    /// The suite `http` with the mock.
    pub fn http<S: TaskSubject>() -> Self {
        Self { part: "http", prepare: tasks::prepare::<S> }
    }

    /// The suite `http` with the servers of hyper and axum.
    pub fn http_server<S: TaskSubject>() -> Self {
        Self { part: "http/server", prepare: tasks::prepare::<S> }
    }

    /// The suite `http` with the mock on several threads.
    pub fn http_multi_thread<S: TaskSubject>() -> Self {
        Self { part: "http/multi_thread", prepare: tasks::prepare::<S> }
    }

    /// The suite `engine`, for a server's end of a connection.
    pub fn engine<S: EngineSubject>() -> Self {
        Self { part: "engine", prepare: websocket::prepare::<S> }
    }

    /// The suite `engine` with only the copy that replaces recv(2).
    pub fn engine_copying() -> Self {
        Self { part: "engine", prepare: websocket::prepare_copying }
    }

    /// The suite `unmask`.
    pub fn unmask<S: UnmaskSubject>() -> Self {
        Self { part: "unmask", prepare: unmask::prepare::<S> }
    }

    /// The suite `utf8`.
    pub fn utf8<S: Utf8Subject>() -> Self {
        Self { part: "utf8", prepare: utf8::prepare::<S> }
    }

    /// The suite `deflate`.
    pub fn deflate<S: DeflateSubject>() -> Self {
        Self { part: "deflate", prepare: deflate::prepare::<S> }
    }
}

/// A measured program.
#[derive(Debug)]
pub struct Program {
    /// Version of the measured library.
    pub version: String,
    /// The suites and parts that it supports.
    pub suites: Vec<Suite>,
}

impl Program {
    /// Answers requests from standard input until the end of the input.
    pub fn serve(self) -> ExitCode {
        raise_open_files();
        let mut prepared: Option<Box<dyn Measured>> = None;
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else {
                return ExitCode::FAILURE;
            };
            let reply = match serde_json::from_str(&line) {
                Ok(request) => self.answer(request, &mut prepared),
                Err(error) => Reply::Failed { reason: format!("no request: {error}") },
            };
            let text = serde_json::to_string(&reply).expect("replies are plain data");
            // The line can only fail if the parent has ended.
            if writeln!(io::stdout(), "{text}").is_err() {
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    }

    fn answer(&self, request: Request, prepared: &mut Option<Box<dyn Measured>>) -> Reply {
        match request {
            Request::Hello { cpu, .. } => Reply::Hello {
                version: self.version.clone(),
                pinned: cpu.is_some_and(affinity::pin_main),
            },
            Request::Prepare { case, backend, idle } => {
                *prepared = None;
                let Some(suite) = self.suites.iter().find(|suite| suite.part == case.part()) else {
                    let reason = format!("no part in `{}`", case.part());
                    return Reply::Unsupported { reason };
                };
                match (suite.prepare)(&case, &backend, idle) {
                    Ok(measured) => {
                        *prepared = Some(measured);
                        Reply::Ready
                    }
                    Err(error) => failed(error),
                }
            }
            Request::Connect { .. } => Reply::Failed { reason: "this is no client".into() },
            Request::Slice { rounds } => match prepared {
                Some(measured) => match measured.slice(rounds) {
                    Ok(outcome) => Reply::Slice(outcome),
                    Err(error) => failed(error),
                },
                None => Reply::Failed { reason: "nothing is prepared".into() },
            },
        }
    }
}

fn failed(error: Error) -> Reply {
    let reason = error.to_string();
    match error.is::<Unsupported>() || error.is::<TooFewFiles>() {
        true => Reply::Unsupported { reason },
        false => Reply::Failed { reason },
    }
}

/// Returns the newest version of the package `name` in the text of a Cargo.lock, or `unknown`.
pub fn locked_version(lock: &str, name: &str) -> String {
    // The versions of a package are in ascending order.
    let package = format!("name = \"{name}\"\nversion = \"");
    let version = lock.rsplit_once(&package).and_then(|(_, rest)| rest.split_once('"'));
    version.map_or_else(|| "unknown".to_owned(), |(version, _)| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::locked_version;

    #[test]
    fn the_version_stands_after_the_name() {
        let lock = "[[package]]\nname = \"mio\"\nversion = \"1.2.4\"\nsource = \"x\"\n";
        assert_eq!(locked_version(lock, "mio"), "1.2.4");
        assert_eq!(locked_version(lock, "tokio"), "unknown");
        let newer = format!("{lock}\n{}", lock.replace("1.2.4", "1.3.0"));
        assert_eq!(locked_version(&newer, "mio"), "1.3.0");
    }
}
