//! A command in a sandbox that forbids rings, like that of containers.

#![allow(
    unsafe_code,
    reason = "prctl(2) takes a program by its address, in a child between fork(2) and execve(2)"
)]

use std::{io, os::unix::process::CommandExt as _, process::Command};

/// Makes `io_uring_setup(2)` fail with `EPERM` in the command. Other calls are not affected.
pub(crate) fn without_rings(mut command: Command) -> Command {
    // SAFETY: `forbid` makes two system calls, allocates nothing and takes no lock: it may run in a
    // child of a process with threads.
    unsafe { command.pre_exec(forbid) };
    command
}

fn forbid() -> io::Result<()> {
    let number = u32::try_from(libc::SYS_io_uring_setup).expect("the number of a call");
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    // `struct seccomp_data` begins with the number of the call. On another architecture it is the
    // number of another call, which is allowed; this program makes none.
    let mut program = [
        libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: number },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: refusal },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: the option takes numbers alone (PR_SET_NO_NEW_PRIVS(2const)).
    let mut outcome = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if outcome == 0 {
        // SAFETY: the program is as long as it says and lives through the call, which copies it
        // (PR_SET_SECCOMP(2const)).
        outcome = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        };
    }
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
