//! Counts instructions by running a program one step at a time (ptrace(2)).
//!
//! The counts are exact, as with callgrind, and the program makes its real system calls. valgrind
//! 3.19 does not support epoll_pwait2(2), so programs that use it take their fallback path there. A
//! repeated string instruction counts once per repetition, whereas hardware counters count it once.
//!
//! [`run`] counts the measured parts of a program, which marks their begin and end. [`Attached`]
//! counts all instructions of a process between two moments, for servers, which have no marks.
#![allow(unsafe_code, reason = "ptrace(2) and waitpid(2) have no safe form")]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use windlass_bench_driver::{STEPPED, pin};

use crate::interrupt;

/// Makes the C library copy and fill long ranges with vector instructions. A repeated string
/// instruction would count once per byte.
pub(crate) const TUNABLES: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824",
);

/// Ends the program with its tracer.
const OPTIONS: libc::c_int = libc::PTRACE_O_EXITKILL;

/// Maximum time until a stepped process sleeps.
const SLEEPS_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

/// How a traced program has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceStop {
    /// Before the delivery of this signal.
    Signal(libc::c_int),
    /// It has ended; true if it succeeded.
    Ended(bool),
}

/// Runs a program whose input and output are files, and counts the instructions of each of its
/// measured parts.
///
/// The tracer is a separate thread on the same processor as the program. They take turns at every
/// step, and waking another processor takes several times as long.
///
/// # Errors
///
/// If it cannot be traced, or fails.
pub(crate) fn run(program: &Path, input: File, output: File) -> io::Result<Vec<u64>> {
    let tracer = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            // SAFETY: sched_getcpu(3) takes nothing and fails only where the kernel is older than
            // ours.
            let cpu = unsafe { libc::sched_getcpu() };
            // If pinning is forbidden, counting takes longer.
            let _ = usize::try_from(cpu).is_ok_and(pin);
            run_here(program, input, output)
        });
        tracer.join()
    });
    tracer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// [`run`] with the calling thread as the tracer: the thread that started a program traces it.
fn run_here(program: &Path, input: File, output: File) -> io::Result<Vec<u64>> {
    let mut command = Command::new(program);
    command
        .env(STEPPED, "1")
        .env(TUNABLES.0, TUNABLES.1)
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null());
    // SAFETY: between fork and exec only ptrace(2) is called, which allocates nothing and takes no
    // lock.
    unsafe {
        command.pre_exec(|| trace(libc::PTRACE_TRACEME, 0, 0));
    }
    let child = command.spawn()?;
    let counts = step_through(&child);
    if counts.is_err() {
        end(child);
    }
    counts
}

/// A running process that is stepped. Only its first thread is.
#[derive(Debug)]
pub(crate) struct Attached {
    process: libc::pid_t,
    tracer: std::thread::JoinHandle<io::Result<u64>>,
}

impl Attached {
    /// Begins to step a running process, from a thread on processor `cpu`, ideally the process's
    /// own. Counting has begun when this returns.
    ///
    /// This interrupts a call in which the process waits, as a signal does. So its loop may run
    /// once without an event.
    ///
    /// # Errors
    ///
    /// If it cannot be traced, or has several threads, because only one would be counted.
    pub(crate) fn begin(process: u32, cpu: Option<usize>) -> io::Result<Self> {
        if std::fs::read_dir(format!("/proc/{process}/task"))?.count() != 1 {
            return Err(io::Error::other("it has several threads"));
        }
        let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
        let (sender, begun) = std::sync::mpsc::channel();
        let tracer = std::thread::spawn(move || {
            // If pinning is forbidden, counting takes longer.
            let _ = cpu.is_some_and(pin);
            let seized = trace(libc::PTRACE_SEIZE, process, OPTIONS)
                .and_then(|()| trace(libc::PTRACE_INTERRUPT, process, 0))
                .and_then(|()| wait(process));
            // The receiver waits in `begin`.
            let _ = sender.send(());
            step_until_asked_to_end(process, seized?)
        });
        // This fails if the tracer has ended, and `end` reports that.
        let _ = begun.recv();
        Ok(Self { process, tracer })
    }

    /// Waits until the process sleeps, and sends SIGTERM to it. Returns the number of instructions
    /// that it has executed until then.
    ///
    /// # Errors
    ///
    /// If tracing has failed, or the process has already ended.
    pub(crate) fn end(self) -> io::Result<u64> {
        let begun = std::time::Instant::now();
        while begun.elapsed() < SLEEPS_WITHIN && !self.tracer.is_finished() && !self.is_asleep()? {
            // sleep: no event tells that another process has fallen asleep.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // SAFETY: it takes numbers (kill(2)). It fails only where the process has ended, and then
        // the tracer says so.
        unsafe { libc::kill(self.process, libc::SIGTERM) };
        self.tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Returns whether the process sleeps, which it does only in a call that waits (proc(5),
    /// `/proc/pid/stat`). Otherwise it runs, or its tracer has stopped it.
    fn is_asleep(&self) -> io::Result<bool> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process))?;
        Ok(stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S')))
    }
}

/// Steps a stopped process until SIGTERM arrives, and then delivers the signal.
fn step_until_asked_to_end(pid: libc::pid_t, mut stop: TraceStop) -> io::Result<u64> {
    let mut count = 0;
    loop {
        let signal = match stop {
            TraceStop::Ended(_) => return Err(io::Error::other("the traced program has ended")),
            _ if interrupt::is_set() => return Err(io::Error::other("the run was interrupted")),
            TraceStop::Signal(libc::SIGTERM) => {
                trace(libc::PTRACE_DETACH, pid, libc::SIGTERM)?;
                return Ok(count);
            }
            TraceStop::Signal(libc::SIGTRAP) => 0,
            TraceStop::Signal(signal) => signal,
        };
        trace(libc::PTRACE_SINGLESTEP, pid, signal)?;
        stop = wait(pid)?;
        count += u64::from(stop == TraceStop::Signal(libc::SIGTRAP));
    }
}

/// Traces a program from the stop at exec(2) to its end.
fn step_through(child: &Child) -> io::Result<Vec<u64>> {
    let pid = pid(child);
    let mut stop = wait(pid)?;
    trace(libc::PTRACE_SETOPTIONS, pid, OPTIONS)?;
    let mut counts = Vec::new();
    let mut counting: Option<u64> = None;
    loop {
        let signal = match stop {
            TraceStop::Ended(true) => return Ok(counts),
            TraceStop::Ended(false) => return Err(io::Error::other("the traced program failed")),
            _ if interrupt::is_set() => return Err(io::Error::other("the run was interrupted")),
            TraceStop::Signal(libc::SIGUSR1) => {
                match counting.take() {
                    Some(count) => counts.push(count),
                    None => counting = Some(0),
                }
                0
            }
            // The end of a step, or the stop at exec(2).
            TraceStop::Signal(libc::SIGTRAP) => 0,
            TraceStop::Signal(signal) => signal,
        };
        if let Some(count) = &mut counting {
            *count += 1;
            trace(libc::PTRACE_SINGLESTEP, pid, signal)?;
        } else {
            trace(libc::PTRACE_CONT, pid, signal)?;
        }
        stop = wait(pid)?;
    }
}

fn pid(child: &Child) -> libc::pid_t {
    libc::pid_t::try_from(child.id()).expect("a process number is a pid_t")
}

fn trace(request: libc::c_uint, pid: libc::pid_t, data: libc::c_int) -> io::Result<()> {
    // SAFETY: the requests used here take numbers and no addresses (ptrace(2)).
    let done = unsafe { libc::ptrace(request, pid, 0_usize, libc::c_long::from(data)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn wait(pid: libc::pid_t) -> io::Result<TraceStop> {
    let mut status = 0;
    loop {
        // SAFETY: the status is a writable integer for the length of the call (waitpid(2)).
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if waited == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(if libc::WIFSTOPPED(status) {
        TraceStop::Signal(libc::WSTOPSIG(status))
    } else {
        TraceStop::Ended(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0)
    })
}

fn end(mut child: Child) {
    // Both calls fail only if it has already ended.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_measured_parts_has_no_counts() {
        let null = || File::options().read(true).write(true).open("/dev/null").unwrap();
        match run(Path::new("/bin/true"), null(), null()) {
            Ok(counts) => assert!(counts.is_empty()),
            // A sandbox may forbid tracing. Then this must be the error.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        let failed = run(Path::new("/bin/false"), null(), null());
        assert!(failed.is_err());
    }

    #[test]
    fn a_process_that_runs_is_stepped_until_it_has_nothing_to_do() {
        use std::io::{Read, Write};
        let mut cat =
            Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, mut output) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let mut copied = [0; 5];
        let mut copy = || {
            input.write_all(b"bytes").unwrap();
            output.read_exact(&mut copied).unwrap();
        };
        // It has started when it has copied something.
        copy();
        let attached = Attached::begin(cat.id(), None).unwrap();
        copy();
        copy();
        match attached.end() {
            Ok(count) => assert!((20..100_000).contains(&count), "{count}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert!(!cat.wait().unwrap().success(), "it was asked to end");
        assert_eq!(copied, *b"bytes");
    }
}
