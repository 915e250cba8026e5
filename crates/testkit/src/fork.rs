//! Child processes, and a parent's reactor that can check its registrations.

#![allow(
    unsafe_code,
    reason = "fork(2), waitpid(2), _exit(2), alarm(2) and signals to this process"
)]

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd as _, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    thread,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Backend, BuildError, Errno, Interest, Key, Reactor, Stop, interest};

pub const NOW: Duration = Duration::ZERO;

/// Longer than a process of this program lives.
pub const FOR_EVER: Duration = Duration::from_secs(600);

/// The time limit of a process in seconds. Far above its normal time, for machines under load.
const PATIENCE_SECONDS: u32 = 30;

/// Makes the kernel end this process if it hangs.
pub fn die_in_time() {
    // SAFETY: the call takes a number. The signal that follows ends the process.
    unsafe { libc::alarm(PATIENCE_SECONDS) };
}

/// Calls fork(2). Returns `None` in the child.
pub fn fork() -> Option<i32> {
    // SAFETY: this process has one thread at this time, so the child may call any function
    // (fork(2)).
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // A child does not inherit the alarm.
        die_in_time();
        return None;
    }
    Some(pid)
}

/// Ends the child, without destructors or exit handlers. So it releases none of the parent's
/// resources.
pub fn leave(outcome: thread::Result<()>) -> ! {
    // SAFETY: the call takes a number and ends the process.
    unsafe { libc::_exit(i32::from(outcome.is_err())) }
}

/// Waits for a child, which must have succeeded.
pub fn reap(pid: i32) {
    let mut status = 0;
    // SAFETY: the status is valid for writes throughout the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child says why on stderr");
}

/// The next child of this process is the first one in a PID namespace of its own, so it has the ID
/// 1. Returns false, with a line that says so, if that is forbidden here.
pub fn next_child_has_id_1() -> bool {
    let is_done = [libc::CLONE_NEWPID, libc::CLONE_NEWUSER | libc::CLONE_NEWPID]
        .into_iter()
        // SAFETY: the call takes a number. This process has one thread.
        .any(|what| unsafe { libc::unshare(what) } == 0);
    if !is_done {
        eprintln!("skipped here: fork: a PID namespace is forbidden");
    }
    is_done
}

/// Runs the body in a child. The child's exit status is 0 if the body returns.
pub fn in_child(body: impl FnOnce()) {
    match fork() {
        None => leave(catch_unwind(AssertUnwindSafe(body))),
        Some(pid) => reap(pid),
    }
}

/// Sends this process a signal.
pub fn raise(signal: i32) {
    // SAFETY: the call takes a number.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

pub fn reactor_on(backend: Backend) -> Result<Reactor, BuildError> {
    Reactor::builder().backend(backend).build()
}

pub fn counter() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

pub fn fire(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

pub fn drain(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

/// The numbers of the handlers that were called, in order.
pub type Log = Rc<RefCell<Vec<u32>>>;

/// A registered eventfd that the test can make ready. Its handler drains it and records a number.
pub struct RegisteredCounter {
    pub fd: OwnedFd,
    pub key: Key,
}

pub fn register(
    reactor: &mut Reactor,
    interest: Interest,
    who: u32,
    log: &Log,
) -> RegisteredCounter {
    let fd = counter();
    let theirs = fd.as_fd().try_clone_to_owned().unwrap();
    let log = log.clone();
    let handler = move |fd: &mut OwnedFd| {
        drain(fd);
        log.borrow_mut().push(who);
    };
    let key = interest.with_fd(theirs).with_handler(handler).register_into(reactor).unwrap();
    RegisteredCounter { fd, key }
}

/// A reactor with a level-triggered registration and one of another manner, as before a fork.
pub struct Parent {
    pub reactor: Reactor,
    pub first: RegisteredCounter,
    pub second: RegisteredCounter,
    pub log: Log,
}

impl Parent {
    pub fn new(backend: Backend) -> Self {
        let mut reactor = reactor_on(backend).unwrap();
        let log = Log::default();
        let manner = interest().read().edge_triggered();
        let manner = if reactor.supports(manner) { manner } else { interest().read() };
        let first = register(&mut reactor, interest().read(), 1, &log);
        let second = register(&mut reactor, manner, 2, &log);
        // On a ring, a wait arms the polls.
        reactor.run_once(NOW).unwrap();
        Self { reactor, first, second, log }
    }

    /// Checks that all registrations fire, and that a stop and a wake work.
    pub fn assert_works(&mut self) {
        let Self { reactor, first, second, log } = self;
        for registered in [first, second] {
            drain(&registered.fd);
            fire(&registered.fd);
        }
        while log.borrow().len() < 2 {
            reactor.run_once(FOR_EVER).unwrap();
        }
        log.borrow_mut().sort_unstable();
        assert_eq!(*log.take(), [1, 2]);
        assert_wakes(reactor);
    }
}

/// Checks that a stop and a remote call from another thread wake the loop. Otherwise the loop would
/// wait longer than the process lives.
pub fn assert_wakes(reactor: &mut Reactor) {
    let stop: Stop = reactor.stop_handle();
    let thread = thread::spawn(move || stop.stop());
    while !reactor.stop_requested() {
        reactor.run_once(FOR_EVER).unwrap();
    }
    reactor.run().unwrap();
    thread.join().unwrap();
    let remote = reactor.remote();
    let thread = thread::spawn(move || {
        remote.call(|_| ()).unwrap();
        remote.stop();
    });
    reactor.run().unwrap();
    thread.join().unwrap();
}

/// Checks that the call was rejected because the reactor belongs to the parent.
pub fn assert_refused<T: std::fmt::Debug>(outcome: io::Result<T>) {
    assert_eq!(outcome.unwrap_err().raw_os_error(), Some(Errno::STALE.raw_os_error()));
}
