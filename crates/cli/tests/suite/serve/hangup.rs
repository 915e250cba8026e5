//! `SIGHUP` and the terminal of programs that a test starts.

#![allow(unsafe_code, reason = "system calls in a child between fork(2) and execve(2)")]

use std::{io, os::unix::process::CommandExt as _, process::Command};

/// Restores the default action of `SIGHUP` in the program. It is ignored if the tests themselves
/// were started by `nohup`, and the program then ignores it too.
pub(crate) fn with_default_hangup(mut command: Command) -> Command {
    // SAFETY: `restore` makes one system call, allocates nothing and takes no lock. It may run in a
    // child of a process with threads.
    unsafe { command.pre_exec(restore) };
    command
}

/// Makes the program the leader of a session whose terminal is its standard input.
pub(crate) fn with_terminal(mut command: Command) -> Command {
    // SAFETY: `take_terminal` makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(take_terminal) };
    command
}

fn take_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    Ok(())
}

fn restore() -> io::Result<()> {
    // SAFETY: the default action involves no handler of this program.
    match unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
