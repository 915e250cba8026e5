//! The frame of the clients of servers: the requests that they answer ([`serve`]), and the measured
//! part of a slice ([`Window`]), with the time and the processor time of both sides.
#![allow(unsafe_code, reason = "the processor time of processes")]

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Instant;

use crate::affinity::{self, PRIORITIES};
use crate::alloc;
use crate::measured::{Error, Measured};
use crate::protocol::{Case, Outcome, Reply, Request, ServerInfo};

/// Answers requests from standard input until the end of the input. `connect` sets up a case.
pub fn serve<F>(version: &str, connect: F) -> ExitCode
where
    F: Fn(&Case, &ServerInfo) -> Result<Box<dyn Measured>, Error>,
{
    let mut connected: Option<Box<dyn Measured>> = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => answer(request, version, &connect, &mut connected),
            Err(error) => Err(error.into()),
        };
        let reply = reply.unwrap_or_else(|error| Reply::Failed { reason: error.to_string() });
        let text = serde_json::to_string(&reply).expect("replies are plain data");
        if writeln!(io::stdout(), "{text}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn answer<F>(
    request: Request,
    version: &str,
    connect: &F,
    connected: &mut Option<Box<dyn Measured>>,
) -> Result<Reply, Error>
where
    F: Fn(&Case, &ServerInfo) -> Result<Box<dyn Measured>, Error>,
{
    match request {
        Request::Hello { cpu, first } => {
            if first && !affinity::raise_priority() {
                return Err("not allowed to come first".into());
            }
            let pinned = cpu.is_some_and(affinity::pin);
            Ok(Reply::Hello { version: version.to_owned(), pinned })
        }
        Request::Connect { case, server } => {
            *connected = None;
            *connected = Some(connect(&case, &server)?);
            Ok(Reply::Ready)
        }
        Request::Slice { rounds } => {
            let measured = connected.as_mut().ok_or("nothing is connected")?;
            Ok(Reply::Slice(measured.slice(rounds)?))
        }
        Request::Prepare { .. } => Err("a client has nothing to prepare".into()),
    }
}

/// The clock of another process's processor time.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    process: libc::pid_t,
    clock: libc::clockid_t,
}

impl ServerClock {
    /// The clock of the process with this number.
    ///
    /// # Errors
    ///
    /// If there is no such process.
    pub fn of(process: u32) -> io::Result<Self> {
        let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
        let mut clock = 0;
        // SAFETY: the clock is writable for the length of the call.
        match unsafe { libc::clock_getcpuclockid(process, &raw mut clock) } {
            0 => Ok(Self { process, clock }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Makes the kernel update the clock. The clock of a running process is as old as the last tick
    /// (`read_sum_exec_runtime` in the kernel's `kernel/sched/cputime.c`). A change of policy or
    /// priority takes the process out of the queue and puts it back, which updates the clock. The
    /// process has the processor for itself, so its priority does not matter.
    fn refresh(self) {
        // SAFETY: it takes a number.
        let policy = unsafe { libc::sched_getscheduler(self.process) };
        let both = match policy {
            libc::SCHED_FIFO => PRIORITIES.map(|priority| (policy, priority)),
            _ => [(libc::SCHED_BATCH, 0), (libc::SCHED_OTHER, 0)],
        };
        for (policy, priority) in both {
            let parameters = libc::sched_param { sched_priority: priority };
            // SAFETY: the parameters are readable for the length of the call. Where it is refused
            // the clock stays as it is.
            unsafe { libc::sched_setscheduler(self.process, policy, &raw const parameters) };
        }
    }

    /// Processor time of the process up to now, in nanoseconds.
    #[must_use]
    pub fn ns(self) -> u64 {
        self.refresh();
        clock_ns(self.clock)
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable for the length of the call; of a process that has ended it
    // stays zero.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The values of the clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    wall: Instant,
    own_ns: u64,
    server_ns: u64,
    /// Allocations of this process.
    allocations: u64,
}

impl Moment {
    fn now(server: ServerClock) -> Self {
        let (own_ns, server_ns) = (clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID), server.ns());
        Self { wall: Instant::now(), own_ns, server_ns, allocations: alloc::counts().allocations }
    }
}

/// The measured part of a slice. It begins after the warm-up rounds, and ends before the wait for
/// the rounds in flight.
#[derive(Debug)]
pub struct Window {
    clock: ServerClock,
    warm: u64,
    rounds: u64,
    done: u64,
    begin: Option<(Moment, u64)>,
    end: Option<(Moment, u64)>,
}

impl Window {
    /// A slice with this many rounds, and as a warm-up those before them.
    #[must_use]
    pub fn new(clock: ServerClock, warm: u64, rounds: u64) -> Self {
        Self { clock, warm, rounds, done: 0, begin: None, end: None }
    }

    /// Counts finished rounds. Returns true as long as new rounds should begin.
    pub fn count(&mut self, rounds: u64) -> bool {
        self.done += rounds;
        match self.begin {
            None if self.done >= self.warm => {
                self.begin = Some((Moment::now(self.clock), self.done))
            }
            Some((_, begun)) if self.done >= begun + self.rounds && self.end.is_none() => {
                self.end = Some((Moment::now(self.clock), self.done));
            }
            _ => {}
        }
        self.end.is_none()
    }

    /// Ends the measured part, whatever its number of rounds is.
    pub fn end(&mut self) {
        self.end = Some((Moment::now(self.clock), self.done));
    }

    /// Returns the result. Its allocations are those of this process.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let (Some((begin, first)), Some((end, last))) = (self.begin, self.end) else {
            return Outcome::default();
        };
        let ns = end.wall.duration_since(begin.wall).as_nanos().max(1) as u64;
        let units = last - first;
        let (own, server) = (end.own_ns - begin.own_ns, end.server_ns - begin.server_ns);
        let allocations = end.allocations - begin.allocations;
        let gauges = Default::default();
        let mut outcome = Outcome { ns, units, turns: self.done, allocations, gauges };
        let mut put = |name: &str, value| outcome.gauges.insert(name.to_owned(), value);
        put("client_cpu_share", own as f64 / ns as f64);
        put("server_cpu_share", server as f64 / ns as f64);
        put("client_cpu_ns", own as f64);
        put("server_cpu_ns", server as f64);
        outcome
    }
}
