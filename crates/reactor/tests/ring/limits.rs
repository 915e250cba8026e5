//! The resources that a ring needs from the process: memory, locked memory, and permission for
//! io_uring_enter(2).

#![allow(
    unsafe_code,
    reason = "a filter of system calls, a limit, and another user, each set in a child"
)]

use std::{io::Write as _, os::unix::net::UnixStream};

use rustix::process::{Resource, Rlimit, setrlimit};
use windlass::{
    Backend, BuildError, Builder, Errno, Key, Reactor, RingError,
    stream::{Input, Stream, StreamHandler, StreamOptions, Workers},
};

use crate::{
    processes::in_child,
    tools::{builder, run_dry},
};

/// Ignores its input.
struct Silent;

impl StreamHandler for Silent {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

fn with_stream(reactor: &mut Reactor) -> (Key, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let key = StreamOptions::new().register(ours, Silent, reactor).unwrap();
    run_dry(reactor);
    (key, peer)
}

/// The resident memory of this process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

pub(crate) fn buffers_that_nothing_was_received_into_take_no_memory() {
    const REACTORS: usize = 32;
    let one = || {
        let mut reactor = builder().build().unwrap();
        let stream = with_stream(&mut reactor);
        assert_eq!(reactor.stats().buffer_bytes >> 20, 4, "as many as are made by default");
        (reactor, stream)
    };
    // Includes the allocations that happen once.
    let first = one();
    let before = resident();
    let mut reactors: Vec<_> = (0..REACTORS).map(|_| one()).collect();
    let each = (resident() - before) / REACTORS;
    assert!(each < 400 << 10, "{each} bytes a reactor");
    // The buffers that received data are in use.
    let (reactor, (_, peer)) = &mut reactors[0];
    peer.write_all(&[1; 10_000]).unwrap();
    assert!(run_dry(reactor) > 0);
    drop(first);
}

/// From here on io_uring_enter(2) fails with `EPERM`. All other calls work.
fn forbid_enter() {
    let number = u32::try_from(libc::SYS_io_uring_enter).unwrap();
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut program = [
        libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: number },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: refusal },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: this option takes no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program are valid throughout the call, which copies them.
    let outcome =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(outcome, 0);
}

pub(crate) fn a_filter_that_forbids_to_enter_is_found_when_the_reactor_is_built() {
    in_child(|| {
        forbid_enter();
        let error = builder().build().unwrap_err();
        assert_eq!(error, BuildError::Ring(RingError::Forbidden(Errno::PERM)));
    });
}

pub(crate) fn a_preferred_ring_that_must_not_be_entered_is_replaced_by_epoll() {
    in_child(|| {
        forbid_enter();
        let mut reactor = preferring().build().unwrap();
        let stats = reactor.stats();
        assert_eq!(stats.backend, Backend::Epoll);
        assert_eq!(stats.ring_error, Some(RingError::Forbidden(Errno::PERM)));
        let (_, mut peer) = with_stream(&mut reactor);
        peer.write_all(&[1]).unwrap();
        assert!(run_dry(&mut reactor) > 0);
    });
    let stats = preferring().build().unwrap().stats();
    assert_eq!((stats.backend, stats.ring_error), (Backend::Uring, None), "in the parent");
}

/// As many workers have rings as the limit allows, and the others epoll.
pub(crate) fn workers_tell_why_one_of_them_has_no_ring() {
    as_nobody("limits::workers_tell_why_one_of_them_has_no_ring", 64 << 10, || {
        let workers = Workers::new(20).start(|_| Ok(preferring().build()?)).unwrap();
        assert_eq!(workers.backend(), Backend::Epoll);
        assert_eq!(workers.ring_error(), Some(RingError::Os(Errno::NOMEM)));
        workers.stop();
        workers.join().unwrap();
        let rings: Vec<_> = std::iter::from_fn(|| preferring().build().ok()).take(20).collect();
        let with_rings = rings.iter().filter(|ring| ring.stats().ring_error.is_none()).count();
        assert!((1..20).contains(&with_rings), "{with_rings}");
    });
}

fn preferring() -> Builder {
    Reactor::builder().backend(Backend::UringOrEpoll)
}

/// Changes the user of this process to one that has locked no memory yet, and sets the limit of
/// locked memory.
fn be_nobody(locked: u64) -> Result<(), String> {
    setrlimit(Resource::Memlock, Rlimit { current: Some(locked), maximum: Some(locked) })
        .map_err(|e| e.to_string())?;
    // The kernel counts locked memory per user. No other test uses this one.
    let user = 2_000_000_000 + std::process::id();
    // SAFETY: the call takes only numbers. The change of user drops all capabilities.
    if unsafe { libc::setresuid(user, user, user) } == 0 {
        Ok(())
    } else {
        Err("cannot become another user".into())
    }
}

/// Runs the body in a child as a user with that limit of locked memory. If that is not possible,
/// the test reports it.
fn as_nobody(test: &str, locked: u64, body: impl FnOnce()) {
    let mut why = None;
    // SAFETY: the call takes no argument.
    if unsafe { libc::geteuid() } != 0 {
        why = Some("only root can become another user".to_owned());
    }
    if why.is_none() && !accounts_for_rings() {
        why = Some("this kernel does not count rings as locked memory".to_owned());
    }
    match why {
        Some(why) => {
            std::io::stderr()
                .write_all(format!("skipped here: {test}: {why}\n").as_bytes())
                .unwrap();
        }
        None => in_child(|| {
            be_nobody(locked).unwrap();
            body();
        }),
    }
}

/// True if rings count as locked memory. They do since Linux 6.14, and did before 5.12.
fn accounts_for_rings() -> bool {
    // SAFETY: this process has one thread, so the child may call any function (fork(2)).
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_refused = be_nobody(0).is_ok() && builder().build().is_err();
        // SAFETY: the child ends here without destructors or exit handlers.
        unsafe { libc::_exit(i32::from(is_refused)) };
    }
    let mut status = 0;
    // SAFETY: the status is valid for writes throughout the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status != 0
}

pub(crate) fn a_limit_of_locked_memory_is_named() {
    as_nobody("limits::a_limit_of_locked_memory_is_named", 0, || {
        let error = builder().build().unwrap_err();
        assert_eq!(error, BuildError::Ring(RingError::Os(Errno::NOMEM)));
        let text = error.to_string();
        assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("CAP_IPC_LOCK"), "{text}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::OutOfMemory);
    });
}

pub(crate) fn a_ring_is_to_be_had_though_little_memory_may_be_locked() {
    as_nobody("limits::a_ring_is_to_be_had_though_little_memory_may_be_locked", 64 << 10, || {
        let mut reactors = vec![builder().build().expect("64 KiB are enough for one")];
        let (_, mut peer) = with_stream(&mut reactors[0]);
        peer.write_all(&[1; 10_000]).unwrap();
        assert!(run_dry(&mut reactors[0]) > 0);
        reactors.push(builder().build().expect("and for another"));
    });
}

pub(crate) fn as_many_rings_as_8_mib_are_enough_for() {
    as_nobody("limits::as_many_rings_as_8_mib_are_enough_for", 8 << 20, || {
        let reactors: Vec<_> = std::iter::from_fn(|| builder().build().ok()).take(100).collect();
        assert_eq!(reactors.len(), 100);
    });
}

/// The kernel releases the locked memory of a dropped ring some milliseconds later.
pub(crate) fn rings_that_are_dropped_make_room_for_others() {
    as_nobody("limits::rings_that_are_dropped_make_room_for_others", 256 << 10, || {
        for round in 0..200 {
            let mut reactor = builder().build().unwrap_or_else(|e| panic!("in round {round}: {e}"));
            drop(with_stream(&mut reactor));
        }
    });
}
