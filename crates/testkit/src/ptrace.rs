//! Counts system calls, and stops threads. The parent does it to a child with ptrace(2).

#![allow(unsafe_code, reason = "fork(2) and ptrace(2)")]

use std::{fs, ptr};

/// The exit status of a child that may not be traced.
const UNTRACED: i32 = 77;

/// Marks the borders of the counted spans. No other code makes this call.
pub fn mark() {
    // SAFETY: the call has no argument.
    unsafe { libc::getppid() };
}

/// The request of ptrace(2), which the C libraries declare differently.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// `PTRACE_GET_SYSCALL_INFO` and `PTRACE_SYSCALL_INFO_ENTRY` of `linux/ptrace.h`. The crate libc
/// has them and their type for glibc only.
const GET_SYSCALL_INFO: Request = 0x420e;
const ENTRY: u8 = 1;

/// The begin of `struct ptrace_syscall_info`. The kernel writes as much as there is room for.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    flags: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    /// The number of the call before it, and its result after it.
    value: i64,
}

/// Calls ptrace(2) from the parent.
fn ptrace(request: Request, pid: i32, address: usize, data: *mut libc::c_void) -> i64 {
    // SAFETY: the child is stopped, and the memory that the kernel writes to is valid throughout
    // the call.
    unsafe { libc::ptrace(request, pid, address, data) }
}

/// What a stopped child is about to do, or has just done.
enum Stopped {
    /// It makes the system call with this number.
    Enters(i64),
    /// A call has returned this, which is a negative error number if it has failed.
    Returns(i64),
}

fn stop_of(pid: i32) -> Stopped {
    let mut info = SyscallInfo::default();
    let written = ptrace(GET_SYSCALL_INFO, pid, size_of_val(&info), (&raw mut info).cast());
    assert!(usize::try_from(written).is_ok_and(|written| written >= size_of_val(&info)));
    if info.op == ENTRY { Stopped::Enters(info.value) } else { Stopped::Returns(info.value) }
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub number: i64,
    /// What it has returned: a negative error number if it has failed.
    pub result: i64,
}

/// The numbers of the system calls that a child makes between two [marks](mark), in order. `None`
/// where tracing is forbidden.
pub fn calls_between_marks(body: impl FnOnce()) -> Option<Vec<Vec<i64>>> {
    let spans = results_between_marks(body)?.into_iter();
    Some(spans.map(|span| span.into_iter().map(|call| call.number).collect()).collect())
}

/// As [`calls_between_marks`], with the results.
pub fn results_between_marks(body: impl FnOnce()) -> Option<Vec<Vec<Call>>> {
    // SAFETY: this process has one thread, so the child may call any function (fork(2)).
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the request takes no pointers. The child asks to be traced by its parent.
        let is_traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } == 0;
        // SAFETY: the call takes a number and stops this process.
        let traced = is_traced && unsafe { libc::raise(libc::SIGSTOP) } == 0;
        let status = if !traced {
            UNTRACED
        } else {
            i32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err())
        };
        // SAFETY: the child ends here without destructors or exit handlers, so it releases none of
        // the parent's resources.
        unsafe { libc::_exit(status) };
    }
    let (mut spans, mut is_first) = (Vec::new(), true);
    loop {
        let mut status = 0;
        // SAFETY: the status is valid for writes throughout the call.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        if libc::WIFEXITED(status) {
            match libc::WEXITSTATUS(status) {
                UNTRACED => return None,
                code => assert_eq!(code, 0, "the child says why on stderr"),
            }
            // The calls behind the last mark belong to the exit.
            spans.pop();
            return Some(spans);
        }
        assert!(libc::WIFSTOPPED(status), "{status:x}");
        if std::mem::take(&mut is_first) {
            let options = usize::try_from(libc::PTRACE_O_TRACESYSGOOD).unwrap();
            ptrace(libc::PTRACE_SETOPTIONS, pid, 0, ptr::without_provenance_mut(options));
        } else if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
            let span: Option<&mut Vec<Call>> = spans.last_mut();
            match (stop_of(pid), span) {
                (Stopped::Enters(libc::SYS_getppid), _) => spans.push(Vec::new()),
                (Stopped::Enters(number), Some(span)) => span.push(Call { number, result: 0 }),
                (Stopped::Returns(result), Some(span)) => {
                    // The mark itself has none.
                    if let Some(call) = span.last_mut() {
                        call.result = result;
                    }
                }
                (_, None) => {}
            }
        }
        ptrace(libc::PTRACE_SYSCALL, pid, 0, ptr::null_mut());
    }
}

/// A thread of another process that is stopped. It goes on when the value is dropped, on the thread
/// that has stopped it.
#[derive(Debug)]
pub struct StoppedThread(i32);

impl StoppedThread {
    /// Stops the first thread of a process with this name, of which the kernel keeps fifteen bytes.
    /// `None` where tracing is forbidden.
    pub fn of(process: i32, name: &str) -> Option<Self> {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
        let is_it = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|of| of.trim_end() == name)
        };
        let task = tasks.flatten().find(is_it).expect("it has such a thread").file_name();
        Self::new(task.to_str().and_then(|number| number.parse().ok()).expect("a number"))
    }

    fn new(thread: i32) -> Option<Self> {
        if ptrace(libc::PTRACE_SEIZE, thread, 0, ptr::null_mut()) != 0 {
            return None;
        }
        let it = Self(thread);
        assert_eq!(ptrace(libc::PTRACE_INTERRUPT, thread, 0, ptr::null_mut()), 0);
        let mut status = 0;
        // SAFETY: the status is valid for writes throughout the call.
        let stopped = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        assert!(stopped == thread && libc::WIFSTOPPED(status), "{stopped}: {status:x}");
        Some(it)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // It fails only if the process has been killed.
        ptrace(libc::PTRACE_DETACH, self.0, 0, ptr::null_mut());
    }
}
