//! Turns a test that hangs into one that fails. The failure lists the threads and their waits, and
//! no process is left behind.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    process::Child,
    sync::{Mutex, mpsc},
    thread::{Thread, ThreadId},
    time::Duration,
};

use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use windlass_flow::EventCounter;

/// The time limit of a test. It is far above the normal time, for machines under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that was started and not reaped.
struct Other {
    test: ThreadId,
    role: String,
    counter: EventCounter,
}

/// By process id. An id cannot be reused before the process is reaped.
static OTHERS: Mutex<BTreeMap<i32, Other>> = Mutex::new(BTreeMap::new());

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The tests that were given up. One that was slow without hanging continues until this process
/// ends.
static GIVEN_UP: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// Records a process that the calling test has started.
///
/// # Panics
/// If the test was given up. The process is killed.
pub(crate) fn add(child: &mut Child, counter: &EventCounter, role: &[&str]) {
    let other =
        Other { test: std::thread::current().id(), role: role.join(" "), counter: counter.clone() };
    let given_up = GIVEN_UP.lock().unwrap();
    if given_up.contains(&other.test) {
        child.kill().unwrap();
        child.wait().unwrap();
        drop(given_up);
        panic!("this test was given up");
    }
    OTHERS.lock().unwrap().insert(pid(child).as_raw_nonzero().get(), other);
}

/// Removes a process that has ended, or ends by itself, and is about to be reaped.
pub(crate) fn forget(child: &Child) {
    OTHERS.lock().unwrap().remove(&pid(child).as_raw_nonzero().get());
}

/// Runs a test on its own thread, and fails if it hangs.
pub(crate) fn within_patience(test: Box<dyn FnOnce() + Send>) -> Result<(), Failed> {
    let (done, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _tell = done;
        test();
    });
    let hung = ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
    if hung {
        GIVEN_UP.lock().unwrap().push(thread.thread().id());
    }
    let left = end_others(thread.thread());
    if hung {
        return Err(format!("it hangs\n{left}").into());
    }
    thread.join().map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_default()
            .into()
    })
}

/// Kills the processes that the test has left, and returns what it was doing. A surviving process
/// would keep the output open for its reader.
fn end_others(test: &Thread) -> String {
    let mut text = doing("the test", "self");
    OTHERS.lock().unwrap().retain(|&number, other| {
        if other.test != test.id() {
            return true;
        }
        text += &doing(&other.role, &number.to_string());
        let _ = writeln!(text, "  its counter: {:?}", other.counter);
        let _ = Pid::from_raw(number).map(|pid| kill_process(pid, Signal::KILL));
        false
    });
    text
}

/// The wait channel of each thread of a process, and the contents of its eventfds.
fn doing(name: &str, number: &str) -> String {
    let mut text = format!("{name} (process {number}):\n");
    for thread in fs::read_dir(format!("/proc/{number}/task")).into_iter().flatten().flatten() {
        let part = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let (call, place) = (part("syscall"), part("wchan"));
        let _ = writeln!(
            text,
            "  thread {}: {}, {place}",
            thread.file_name().to_string_lossy(),
            call.trim()
        );
    }
    for fd in fs::read_dir(format!("/proc/{number}/fdinfo")).into_iter().flatten().flatten() {
        let info = fs::read_to_string(fd.path()).unwrap_or_default();
        let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
        let _ = count.map(|count| {
            writeln!(text, "  eventfd {}: {}", fd.file_name().to_string_lossy(), count.trim())
        });
    }
    text
}
