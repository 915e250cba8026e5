//! A thread of another process that is stopped for a while.

#![allow(unsafe_code, reason = "ptrace(2) and waitpid(2) take addresses")]

use std::{fs, io, ptr};

use rustix::process::Pid;

/// A thread that a tracer has stopped. Dropping this lets it go on.
pub(crate) struct StoppedThread(libc::pid_t);

impl StoppedThread {
    /// Stops the first thread of a process whose name begins like this, of which the
    /// kernel keeps fifteen characters.
    pub(crate) fn of(process: Pid, name: &str) -> Self {
        let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
        let task = fs::read_dir(tasks).expect("it runs").flatten().find(|task| {
            let name_of = fs::read_to_string(task.path().join("comm"));
            name_of.is_ok_and(|of| of.starts_with(name))
        });
        let task = task.expect("it has such a thread").file_name();
        let id = task.to_str().and_then(|id| id.parse().ok());
        let thread: libc::pid_t = id.expect("a number");
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: this request uses no memory (ptrace(2), PTRACE_SEIZE).
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) };
        assert_eq!(seized, 0, "{}", io::Error::last_os_error());
        // SAFETY: nor does this one.
        let stopped = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) };
        assert_eq!(stopped, 0, "{}", io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: the status is written before the call returns. Only this thread is waited for.
        let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        assert_eq!(waited, thread, "{}", io::Error::last_os_error());
        Self(thread)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: this request uses no memory (ptrace(2), PTRACE_DETACH). It fails if the thread
        // has ended.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}
