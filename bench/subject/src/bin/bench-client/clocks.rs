//! The time, and the processor time of this process and of the server.
#![allow(unsafe_code, reason = "another process's clock, which rustix does not have")]

use std::io;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use windlass_bench_driver::PRIORITIES;
use windlass_bench_driver::protocol::Outcome;

/// The clock of another process's processor time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    process: libc::pid_t,
    clock: libc::clockid_t,
}

impl ServerClock {
    /// # Errors
    ///
    /// If there is no such process.
    pub(crate) fn of(process: u32) -> io::Result<Self> {
        let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
        let mut clock = 0;
        // SAFETY: the clock is writable for the length of the call.
        match unsafe { libc::clock_getcpuclockid(process, &raw mut clock) } {
            0 => Ok(Self { process, clock }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Makes the kernel update the clock. The clock of a running process is as old as the last tick
    /// (`read_sum_exec_runtime` in the kernel's `kernel/sched/cputime.c`), some milliseconds. A
    /// change of policy or priority takes the process out of the queue and puts it back, which
    /// updates the clock. The process has the processor for itself, so its priority does not
    /// matter.
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

    pub(crate) fn ns(self) -> u64 {
        self.refresh();
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is writable for the length of the call; of a process that has ended it
        // stays zero.
        unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// The values of the clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    wall: Instant,
    own_ns: u64,
    server_ns: u64,
}

impl Moment {
    pub(crate) fn now(server: ServerClock) -> Self {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own_ns = own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64;
        Self { wall: Instant::now(), own_ns, server_ns: server.ns() }
    }
}

/// The measured part of a slice. It begins after the warm-up rounds, and ends before the wait for
/// the rounds in flight.
#[derive(Debug)]
pub(crate) struct Window {
    clock: ServerClock,
    warm: u64,
    rounds: u64,
    done: u64,
    begin: Option<(Moment, u64)>,
    end: Option<(Moment, u64)>,
}

impl Window {
    pub(crate) fn new(clock: ServerClock, warm: u64, rounds: u64) -> Self {
        Self { clock, warm, rounds, done: 0, begin: None, end: None }
    }

    /// Counts finished rounds. Returns true as long as new rounds should begin.
    pub(crate) fn count(&mut self, rounds: u64) -> bool {
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
    pub(crate) fn end(&mut self) {
        self.end = Some((Moment::now(self.clock), self.done));
    }

    /// Returns the result. `allocations` is unknown here.
    pub(crate) fn outcome(&self) -> Outcome {
        let (Some((begin, first)), Some((end, last))) = (self.begin, self.end) else {
            return Outcome::default();
        };
        let ns = end.wall.duration_since(begin.wall).as_nanos().max(1) as u64;
        let units = last - first;
        let (own, server) = (end.own_ns - begin.own_ns, end.server_ns - begin.server_ns);
        let mut outcome = Outcome { ns, units, turns: self.done, ..Outcome::default() };
        let mut put = |name: &str, value| outcome.gauges.insert(name.to_owned(), value);
        put("client_cpu_share", own as f64 / ns as f64);
        put("server_cpu_share", server as f64 / ns as f64);
        put("server_cpu_ns", server as f64);
        outcome
    }
}
