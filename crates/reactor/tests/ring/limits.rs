//! What a ring costs and needs of the process: memory, the limit of locked memory, and leave to
//! enter the kernel.

#![allow(
    unsafe_code,
    reason = "a filter of system calls, a limit, and another user, each set in a child"
)]

use std::{io::Write as _, os::unix::net::UnixStream};

use rustix::process::{Resource, Rlimit, setrlimit};
use windlass::{
    BuildError, Errno, Key, Reactor, RingError,
    stream::{Input, Stream, StreamHandler, StreamOptions},
};

use crate::{
    processes::in_child,
    tools::{builder, run_dry},
};

/// Takes what comes.
struct Silent;

impl StreamHandler for Silent {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

fn with_stream(reactor: &mut Reactor) -> (Key, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let key = StreamOptions::new().register(ours, Silent, reactor).map_err(|e| e.reason).unwrap();
    run_dry(reactor);
    (key, peer)
}

/// Bytes of this process that are in memory.
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
    // What is allocated once.
    let first = one();
    let before = resident();
    let mut reactors: Vec<_> = (0..REACTORS).map(|_| one()).collect();
    let each = (resident() - before) / REACTORS;
    assert!(each < 400 << 10, "{each} bytes a reactor");
    // What was received into is in use.
    let (reactor, (_, peer)) = &mut reactors[0];
    peer.write_all(&[1; 10_000]).unwrap();
    assert!(run_dry(reactor) > 0);
    drop(first);
}

/// io_uring_enter(2) fails with `EPERM` from here on, and everything else is as it was.
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
    // SAFETY: it takes no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program live through the call, which copies them.
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

/// Makes this process one of a user who may not lock more memory than so many bytes, and who has
/// locked none yet.
fn be_nobody(locked: u64) -> Result<(), String> {
    setrlimit(Resource::Memlock, Rlimit { current: Some(locked), maximum: Some(locked) })
        .map_err(|e| e.to_string())?;
    // The kernel counts by user: one that no other test is.
    let user = 2_000_000_000 + std::process::id();
    // SAFETY: it takes numbers alone. With the user all capabilities go.
    if unsafe { libc::setresuid(user, user, user) } == 0 {
        Ok(())
    } else {
        Err("cannot become another user".into())
    }
}

/// Runs the body as a user who may lock so many bytes, in a child; where that cannot be had, the
/// test says so.
fn as_nobody(test: &str, locked: u64, body: impl FnOnce()) {
    let mut why = None;
    // SAFETY: it takes no argument.
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

/// Whether rings count as locked memory: so since Linux 6.14, and before 5.12.
fn accounts_for_rings() -> bool {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_refused = be_nobody(0).is_ok() && builder().build().is_err();
        // SAFETY: the child ends here.
        unsafe { libc::_exit(i32::from(is_refused)) };
    }
    let mut status = 0;
    // SAFETY: the status lives through the call.
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

/// The kernel takes some milliseconds to give back what a ring that was dropped has locked.
pub(crate) fn rings_that_are_dropped_make_room_for_others() {
    as_nobody("limits::rings_that_are_dropped_make_room_for_others", 256 << 10, || {
        for round in 0..200 {
            let mut reactor = builder().build().unwrap_or_else(|e| panic!("in round {round}: {e}"));
            drop(with_stream(&mut reactor));
        }
    });
}
