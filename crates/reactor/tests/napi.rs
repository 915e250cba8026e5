//! Busy polling of network cards by the kernel. Most tests have a process of their own: they look
//! for the reactor's set or ring among its descriptors, forbid system calls, or change its user.

#![allow(
    unsafe_code,
    reason = "descriptors by number, ioctl(2), io_uring_register(2), a filter of system calls, and \
              another user"
)]

use windlass_testkit::{own_process::is_own_process, rings};

use std::{
    io::{self, Write as _},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    ioctl::{Getter, Opcode, ioctl, opcode},
};
use windlass::{Backend, BuildError, Errno, NapiError, NapiPoll, Reactor, interest};

const NAPI: NapiPoll = NapiPoll { usecs: 37, budget: 11, prefer: true };

/// `struct epoll_params` of the kernel's `include/uapi/linux/eventpoll.h`.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
struct EpollParams {
    usecs: u32,
    budget: u16,
    prefer: u8,
    pad: u8,
}

const EPIOCGPARAMS: Opcode = opcode::read::<EpollParams>(0x8a, 2);

/// `struct io_uring_napi` of the kernel's `include/uapi/linux/io_uring.h`.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
struct RingNapi {
    usecs: u32,
    prefer: u8,
    rest: [u8; 11],
}

const IORING_REGISTER_NAPI: u32 = 27;

fn build(backend: Backend, napi: NapiPoll) -> Result<Reactor, BuildError> {
    Reactor::builder().backend(backend).napi(napi).build()
}

fn refusal(backend: Backend, napi: NapiPoll) -> NapiError {
    match build(backend, napi) {
        Err(BuildError::Napi(error)) => error,
        other => panic!("{backend}: {:?}", other.map(drop)),
    }
}

/// Whether the kernel has it. If not, it writes a line.
fn is_to_be_had(test: &str, backend: Backend) -> bool {
    if backend == Backend::Uring && !rings::are_to_be_had(test) {
        return false;
    }
    match build(backend, NAPI) {
        Err(BuildError::Napi(error @ NapiError::Missing(_))) => {
            let line = format!("skipped here: {test}: {error}\n");
            io::stderr().write_all(line.as_bytes()).unwrap();
            false
        }
        other => other.map(|_| true).unwrap(),
    }
}

/// The only descriptor of this process that is such a file. It stays open during the test.
fn only(file: &str) -> BorrowedFd<'static> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let target = std::fs::read_link(&path).ok()?;
        let number = path.file_name()?.to_str()?.parse::<i32>().ok()?;
        (target.to_str() == Some(file)).then_some(number)
    });
    let numbers: Vec<i32> = numbers.collect();
    let [number] = numbers[..] else { panic!("{file}: {numbers:?}") };
    // SAFETY: it is open, and its owner is the reactor, which lives on in the test.
    unsafe { BorrowedFd::borrow_raw(number) }
}

fn of_set() -> EpollParams {
    // SAFETY: the call writes a `struct epoll_params`.
    let getter = unsafe { Getter::<EPIOCGPARAMS, EpollParams>::new() };
    // SAFETY: as above, and the descriptor is an epoll set.
    unsafe { ioctl(only("anon_inode:[eventpoll]"), getter) }.unwrap()
}

/// Reads the ring's settings, and clears them.
fn of_ring() -> RingNapi {
    let ring = only("anon_inode:[io_uring]");
    let mut argument = RingNapi::default();
    // SAFETY: the call reads and writes one such argument.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            IORING_REGISTER_NAPI,
            &raw mut argument,
            1,
        )
    };
    assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
    argument
}

#[test]
fn an_epoll_set_polls_as_it_was_told() {
    const TEST: &str = "an_epoll_set_polls_as_it_was_told";
    if !is_to_be_had(TEST, Backend::Epoll) || !is_own_process(TEST) {
        return;
    }
    let reactor = build(Backend::Epoll, NAPI).unwrap();
    assert_eq!(of_set(), EpollParams { usecs: 37, budget: 11, prefer: 1, pad: 0 });
    drop(reactor);
    let reactor = Reactor::builder().backend(Backend::Epoll).build().unwrap();
    assert_eq!(of_set(), EpollParams::default(), "nothing is set by default");
    drop(reactor);
}

/// The descriptor is asked for when it is registered only.
struct Slot(Option<OwnedFd>);

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().unwrap().as_fd()
    }
}

#[test]
fn a_set_that_replaces_another_polls_too() {
    const TEST: &str = "a_set_that_replaces_another_polls_too";
    if !is_to_be_had(TEST, Backend::Epoll) || !is_own_process(TEST) {
        return;
    }
    let builder = Reactor::builder().backend(Backend::Epoll).napi(NAPI).quarantine_max(0);
    let mut reactor = builder.build().unwrap();
    let fd = eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let duplicate = rustix::io::fcntl_dupfd_cloexec(&fd, 3).unwrap();
    let key = interest()
        .read()
        .with_fd(Slot(Some(fd)))
        .with_handler(|slot: &mut Slot| drop(slot.0.take()))
        .register_into(&mut reactor)
        .unwrap();
    reactor.run_once(Duration::ZERO).unwrap();
    reactor.delete(key).unwrap();
    while reactor.stats().rebuilds == 0 {
        reactor.run_once(Duration::ZERO).unwrap();
    }
    assert_eq!(of_set(), EpollParams { usecs: 37, budget: 11, prefer: 1, pad: 0 });
    drop(duplicate);
}

#[test]
fn a_ring_polls_as_it_was_told() {
    const TEST: &str = "a_ring_polls_as_it_was_told";
    if !is_to_be_had(TEST, Backend::Uring) || !is_own_process(TEST) {
        return;
    }
    let reactor = build(Backend::Uring, NAPI).unwrap();
    assert_eq!(of_ring(), RingNapi { usecs: 37, prefer: 1, rest: [0; 11] });
    drop(reactor);
}

#[test]
fn poll_has_no_such_polling() {
    let error = refusal(Backend::Poll, NAPI);
    assert_eq!(error, NapiError::Backend(Backend::Poll));
    assert!(error.to_string().ends_with(": poll"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Unsupported);
}

#[test]
fn the_longest_time_is_the_same_on_each_backend() {
    const TEST: &str = "the_longest_time_is_the_same_on_each_backend";
    let longest = i32::MAX.unsigned_abs();
    for backend in [Backend::Epoll, Backend::Uring] {
        if is_to_be_had(TEST, backend) {
            build(backend, NapiPoll { usecs: longest, ..NAPI }).unwrap();
            let error = refusal(backend, NapiPoll { usecs: longest + 1, ..NAPI });
            assert_eq!(error, NapiError::Usecs(longest + 1));
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn a_large_budget_needs_a_privilege() {
    const TEST: &str = "a_large_budget_needs_a_privilege";
    if !is_to_be_had(TEST, Backend::Epoll) || !is_own_process(TEST) {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    // SAFETY: the call takes numbers. The change of user drops all capabilities.
    let is_other = !is_root || unsafe { libc::setresuid(65_534, 65_534, 65_534) } == 0;
    assert!(is_other, "root may become another user");
    let mut backends = vec![Backend::Epoll];
    if rings::refusal().is_none() {
        backends.push(Backend::Uring);
    }
    for backend in backends {
        build(backend, NapiPoll { budget: 64, ..NAPI }).unwrap();
        let error = refusal(backend, NapiPoll { budget: 65, ..NAPI });
        assert_eq!(error, NapiError::Budget(65));
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
    }
}

/// From here on the process has a kernel of before Linux 6.9, by its answers.
fn age_kernel() {
    let [ioctl, register] =
        [libc::SYS_ioctl, libc::SYS_io_uring_register].map(|number| u32::try_from(number).unwrap());
    let load = |offset| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let unless = |k, jf| libc::sock_filter { code: 0x15, jt: 0, jf, k };
    let answer = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let error = |errno: i32| answer(libc::SECCOMP_RET_ERRNO | errno.unsigned_abs());
    // `struct seccomp_data` has the number of the call, and at 24 the second argument.
    let mut program = [
        load(0),
        unless(ioctl, 1),
        error(libc::ENOTTY),
        unless(register, 3),
        load(24),
        unless(IORING_REGISTER_NAPI, 1),
        error(libc::EINVAL),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 8, filter: program.as_mut_ptr() };
    // SAFETY: this option takes no pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program are valid throughout the call, which copies them.
    let outcome =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(outcome, 0);
}

#[test]
fn a_kernel_that_lacks_it_is_an_error_that_names_the_kernel() {
    if !is_own_process("a_kernel_that_lacks_it_is_an_error_that_names_the_kernel") {
        return;
    }
    age_kernel();
    let error = refusal(Backend::Epoll, NAPI);
    assert_eq!(error, NapiError::Missing(Errno::NOTTY));
    assert!(error.to_string().contains("Linux 6.9"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Unsupported);
    if rings::refusal().is_none() {
        for backend in [Backend::Uring, Backend::UringOrEpoll] {
            assert_eq!(refusal(backend, NAPI), NapiError::Missing(Errno::INVAL));
        }
    }
}
