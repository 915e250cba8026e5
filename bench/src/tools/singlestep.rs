//! Counts instructions by running a program one step at a time (ptrace(2)).
//!
//! Exact, like callgrind, and the program makes its real system calls: valgrind 3.19 does not know
//! epoll_pwait2(2), so a program that prefers it takes its fall-back path there. A repeated string
//! instruction counts once per repetition, which hardware counters see as one.
//!
//! [`run`] counts the measured parts of a program that says where they begin and end; [`Attached`]
//! counts all that a process does between two moments, for servers, which say nothing.
#![allow(unsafe_code, reason = "ptrace(2) and waitpid(2) have no safe form")]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use windlass_bench_driver::{STEPPED, pin};

/// Has the C library copy and fill long ranges with vector instructions, of which each is one,
/// rather than with a repeated string instruction, of which every byte would be one.
pub(crate) const TUNABLES: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824",
);

/// Ends the program with its tracer.
const OPTIONS: libc::c_int = libc::PTRACE_O_EXITKILL;

/// Longest time until a stepped process has done what there is to do.
const SLEEPS_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

/// How a traced program has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// By this signal, which it has not received yet.
    Signal(libc::c_int),
    /// It has ended, well or not.
    Ended(bool),
}

/// Runs a program whose input and output are files, and counts the instructions of each of its
/// measured parts.
///
/// The tracer is a thread of its own on the same processor as the program: they take turns at every
/// step, and waking another processor takes several times as long.
///
/// # Errors
///
/// If it cannot be traced, or ends badly.
pub(crate) fn run(program: &Path, input: File, output: File) -> io::Result<Vec<u64>> {
    let tracer = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            // SAFETY: sched_getcpu(3) takes nothing and fails only where the kernel is older than
            // ours.
            let cpu = unsafe { libc::sched_getcpu() };
            // Where pinning is forbidden it only takes longer.
            let _ = usize::try_from(cpu).is_ok_and(pin);
            run_here(program, input, output)
        });
        tracer.join()
    });
    tracer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// [`run`], traced by the calling thread: a program belongs to the thread that started it.
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

/// A process of ours that is stepped while it goes on with what it does. Only its first thread is.
#[derive(Debug)]
pub(crate) struct Attached {
    process: libc::pid_t,
    tracer: std::thread::JoinHandle<io::Result<u64>>,
}

impl Attached {
    /// Begins to step a process that runs, from a thread on processor `cpu`, which is best the
    /// process's own. Counting has begun when this returns.
    ///
    /// A call in which the process waits is broken off, as by a signal, so it may go round its loop
    /// once for nothing.
    ///
    /// # Errors
    ///
    /// If it cannot be traced, or has several threads: some would go uncounted.
    pub(crate) fn begin(process: u32, cpu: Option<usize>) -> io::Result<Self> {
        if std::fs::read_dir(format!("/proc/{process}/task"))?.count() != 1 {
            return Err(io::Error::other("it has several threads"));
        }
        let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
        let (sender, begun) = std::sync::mpsc::channel();
        let tracer = std::thread::spawn(move || {
            // Where pinning is forbidden it only takes longer.
            let _ = cpu.is_some_and(pin);
            let seized = trace(libc::PTRACE_SEIZE, process, OPTIONS)
                .and_then(|()| trace(libc::PTRACE_INTERRUPT, process, 0))
                .and_then(|()| wait(process));
            // Who began this waits for it.
            let _ = sender.send(());
            step_until_asked_to_end(process, seized?)
        });
        // It also ends, with an error, if the tracer has ended.
        let _ = begun.recv();
        Ok(Self { process, tracer })
    }

    /// Waits until the process waits for something, asks it to end, and says how many instructions
    /// it has executed until then.
    ///
    /// # Errors
    ///
    /// If tracing has failed, or the process has ended before.
    pub(crate) fn end(self) -> io::Result<u64> {
        let begun = std::time::Instant::now();
        while begun.elapsed() < SLEEPS_WITHIN && !self.tracer.is_finished() && !self.is_asleep()? {
            // sleep: nothing tells of another process that falls asleep.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // SAFETY: it takes numbers (kill(2)). It fails only where the process has ended, and then
        // the tracer says so.
        unsafe { libc::kill(self.process, libc::SIGTERM) };
        self.tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// While it is stepped it runs or is stopped by its tracer; it sleeps only in a call that waits
    /// (proc(5), `/proc/pid/stat`).
    fn is_asleep(&self) -> io::Result<bool> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process))?;
        Ok(stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S')))
    }
}

/// Steps a stopped process until a SIGTERM comes, which it gets.
fn step_until_asked_to_end(pid: libc::pid_t, mut stop: Stop) -> io::Result<u64> {
    let mut count = 0;
    loop {
        let signal = match stop {
            Stop::Ended(_) => return Err(io::Error::other("the traced program has ended")),
            Stop::Signal(libc::SIGTERM) => {
                trace(libc::PTRACE_DETACH, pid, libc::SIGTERM)?;
                return Ok(count);
            }
            Stop::Signal(libc::SIGTRAP) => 0,
            Stop::Signal(signal) => signal,
        };
        trace(libc::PTRACE_SINGLESTEP, pid, signal)?;
        stop = wait(pid)?;
        count += u64::from(stop == Stop::Signal(libc::SIGTRAP));
    }
}

/// From the stop at exec to the end.
fn step_through(child: &Child) -> io::Result<Vec<u64>> {
    let pid = pid(child);
    let mut stop = wait(pid)?;
    trace(libc::PTRACE_SETOPTIONS, pid, OPTIONS)?;
    let mut counts = Vec::new();
    let mut counting: Option<u64> = None;
    loop {
        let signal = match stop {
            Stop::Ended(true) => return Ok(counts),
            Stop::Ended(false) => return Err(io::Error::other("the traced program failed")),
            Stop::Signal(libc::SIGUSR1) => {
                match counting.take() {
                    Some(count) => counts.push(count),
                    None => counting = Some(0),
                }
                0
            }
            // A step done, or the stop at exec.
            Stop::Signal(libc::SIGTRAP) => 0,
            Stop::Signal(signal) => signal,
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

fn wait(pid: libc::pid_t) -> io::Result<Stop> {
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
        Stop::Signal(libc::WSTOPSIG(status))
    } else {
        Stop::Ended(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0)
    })
}

fn end(mut child: Child) {
    // Both fail only if it has ended already.
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
            // A sandbox may forbid to trace; that must be said, not hidden.
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
