//! Children of fork(2), and turns whose system calls are counted. Each test has a process of its
//! own.

#![allow(unsafe_code, reason = "fork(2), waitpid(2), and a filter of system calls")]

use std::rc::Rc;

use windlass::{AddReason, Backend, Errno, Interest, Reactor, interest};

use crate::tools::{Log, NOW, Noting, builder, counter, fire, heard, noting, run_dry};

/// Runs the body in a child. The child's exit status is 0 if the body returns.
pub(crate) fn in_child(body: impl FnOnce()) {
    // SAFETY: this process has one thread, so the child may call any function (fork(2)).
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: the child ends here without destructors or exit handlers, so it releases none of
        // the parent's resources.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the status is valid for writes throughout the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child says why on stderr");
}

fn refused(reactor: &mut Reactor, fd: &Rc<std::os::fd::OwnedFd>, log: &Log, key: windlass::Key) {
    let newcomer = Noting {
        fd: Rc::new(counter(1)),
        interest: interest().read(),
        who: 9,
        log: log.clone(),
        drains: true,
    };
    assert_eq!(reactor.add(newcomer).unwrap_err(), AddReason::Os(Errno::STALE));
    let edge: Interest = interest().read().edge_triggered();
    let error = std::io::Error::from(reactor.modify(key, edge).unwrap_err());
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    fire(&**fd);
    reactor.after(std::time::Duration::from_secs(1), || {}).unwrap();
    let error = reactor.run_once(NOW).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    assert!(heard(log).is_empty());
}

fn parent_and_child(
    mut reactor: Reactor,
    in_the_child: impl FnOnce(&mut Reactor, &Rc<std::os::fd::OwnedFd>, &Log, windlass::Key),
) {
    let log = Log::default();
    let fd = Rc::new(counter(0));
    let key = noting(&mut reactor, &fd, interest().read(), 1, &log);
    // A change that is not yet submitted to the ring, and a poll that is armed.
    run_dry(&mut reactor);
    let late = Rc::new(counter(0));
    noting(&mut reactor, &late, interest().read(), 2, &log);
    in_child(|| in_the_child(&mut reactor, &fd, &log, key));
    let _ = rustix::io::read(&*fd, &mut [0; 8]);
    run_dry(&mut reactor);
    heard(&log);
    fire(&*fd);
    fire(&*late);
    run_dry(&mut reactor);
    assert_eq!(heard(&log), [1, 2], "the parent's works as before");
    reactor.delete(key).unwrap();
    fire(&*fd);
    assert_eq!(run_dry(&mut reactor), 0);
}

pub(crate) fn a_child_of_fork_is_refused() {
    parent_and_child(builder().build().unwrap(), |reactor, fd, log, key| {
        // The shortest possible turn, which only looks for events.
        let error = reactor.run_once(NOW).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
        refused(reactor, fd, log, key);
        // Calls that cannot fail change nothing of the parent's.
        reactor.delete(key).unwrap();
    });
}

pub(crate) fn a_reactor_dropped_by_a_child_leaves_the_parents_alone() {
    parent_and_child(builder().build().unwrap(), |reactor, _, _, _| {
        let own = Reactor::builder().backend(Backend::Epoll).build().unwrap();
        drop(std::mem::replace(reactor, own));
    });
}

/// The kernel stores registered ring indices per thread. The child's indices differ from the
/// parent's.
pub(crate) fn a_childs_own_ring_outlives_the_parents_that_it_drops() {
    rings_of_both(builder);
    // If the kernel knows the ring's thread, only that thread can release an index.
    #[cfg(windlass_force_ring)]
    rings_of_both(|| {
        let features = windlass::RingFeatures::ALL.without(windlass::RingFeatures::SINGLE_ISSUER);
        builder().ring_features(features, None)
    });
}

fn rings_of_both(builder: fn() -> windlass::Builder) {
    parent_and_child(builder().build().unwrap(), |reactor, _, log, _| {
        let own = builder().build().unwrap();
        drop(std::mem::replace(reactor, own));
        let fd = Rc::new(counter(0));
        noting(reactor, &fd, interest().read(), 3, log);
        for _ in 0..3 {
            fire(&*fd);
            run_dry(reactor);
            assert_eq!(heard(log), [3]);
        }
    });
}

pub(crate) fn epoll_refuses_a_child_too() {
    let reactor = Reactor::builder().backend(Backend::Epoll).build().unwrap();
    parent_and_child(reactor, refused);
}

/// Kills the process with a signal at any system call except exit_group(2).
fn forbid_system_calls() {
    let load_number = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_exit = libc::sock_filter {
        code: 0x15,
        jt: 0,
        jf: 1,
        k: u32::try_from(libc::SYS_exit_group).unwrap(),
    };
    let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let kill = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS };
    let mut program = [load_number, is_exit, allow, kill];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: this option takes no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program are valid throughout the call, which copies them.
    let outcome =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(outcome, 0);
}

/// Ends the process like `_exit`. Under AddressSanitizer `_exit` would make an extra system call
/// first.
fn leave(status: i32) {
    // SAFETY: the call takes a number and ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
}

pub(crate) fn nothing_to_do_makes_no_system_call() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let fds: Vec<_> = (0..10).map(|_| Rc::new(counter(0))).collect();
    for (who, fd) in fds.iter().enumerate() {
        let manner = [
            interest().read(),
            interest().read().edge_triggered(),
            interest().read().one_shot(),
            interest(),
        ];
        noting(&mut reactor, fd, manner[who % 4], who, &log);
    }
    fds.iter().for_each(fire);
    run_dry(&mut reactor);
    assert_eq!(heard(&log).len(), 8);
    // SAFETY: this process has one thread, so the child may call any function (fork(2)). It ends
    // below.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child must create its own reactor.
        let mut reactor = builder().build().unwrap();
        for (who, fd) in fds.iter().enumerate() {
            let manner = [interest().read(), interest().read().edge_triggered()][who % 2];
            noting(&mut reactor, &Rc::new(counter(0)), manner, who, &log);
            drop(fd.clone());
        }
        run_dry(&mut reactor);
        forbid_system_calls();
        for _ in 0..1000 {
            if !matches!(reactor.run_once(NOW), Ok(0)) {
                leave(2);
            }
        }
        leave(0);
    }
    let mut status = 0;
    // SAFETY: the status is valid for writes throughout the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "31 is a system call that was made");
}
