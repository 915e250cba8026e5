//! A ring inside another loop: how it wakes the host, and what remains afterwards.

use std::{os::fd::AsRawFd, rc::Rc, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
};
use windlass::{Backend, Embedded, Errno, Interest, Reactor, interest};

use crate::{
    processes::in_child,
    tools::{Log, NOW, builder, counter, fire, heard, noting},
};

/// Returns whether the host is woken within that time.
fn wakes(guest: &Embedded, seconds: i64) -> bool {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::new(guest, PollFlags::IN)], Some(&time)).unwrap() == 1
}

fn settle(guest: &mut Embedded) {
    while wakes(guest, 0) {
        guest.run_once(NOW).unwrap();
    }
}

/// A change of an exclusive registration deletes it and adds it again.
pub(crate) fn a_host_hears_of_an_exclusive_registration_after_it_was_changed() {
    const EXCLUSIVE: Interest = interest().read().exclusive();
    for to in [EXCLUSIVE, EXCLUSIVE.write().without_write(), interest().read()] {
        let mut guest = builder().build().unwrap().embed().unwrap();
        let log = Log::default();
        let fd = Rc::new(counter(0));
        let key = guest.with(|reactor| noting(reactor, &fd, EXCLUSIVE, 1, &log));
        settle(&mut guest);
        guest.with(|reactor| reactor.modify(key, to)).unwrap();
        settle(&mut guest);
        for round in 0..20 {
            fire(&*fd);
            assert!(wakes(&guest, 5), "{to:?} in round {round}");
            settle(&mut guest);
            assert_eq!(heard(&log), [1]);
        }
    }
}

pub(crate) fn a_host_is_woken_again_for_what_a_turn_had_no_room_for() {
    for manner in [interest().read(), interest().read().edge_triggered()] {
        let mut guest = builder().events_per_turn(1).build().unwrap().embed().unwrap();
        let log = Log::default();
        let fds: Vec<_> = (0..5).map(|_| Rc::new(counter(0))).collect();
        for (who, fd) in fds.iter().enumerate() {
            guest.with(|reactor| noting(reactor, fd, manner, who, &log));
        }
        settle(&mut guest);
        fds.iter().for_each(fire);
        settle(&mut guest);
        assert_eq!(heard(&log), [0, 1, 2, 3, 4]);
    }
}

pub(crate) fn a_host_hears_of_a_number_that_has_come_again() {
    let mut guest = builder().build().unwrap().embed().unwrap();
    let log = Log::default();
    for who in 0..3 {
        // No other test runs in this process, so the number is free again.
        let fd = Rc::new(rustix::io::fcntl_dupfd_cloexec(counter(0), 800).unwrap());
        assert_eq!(fd.as_raw_fd(), 800);
        let key = guest.with(|reactor| noting(reactor, &fd, interest().read(), who, &log));
        settle(&mut guest);
        for round in 0..20 {
            fire(&*fd);
            assert!(wakes(&guest, 5), "file {who} in round {round}");
            settle(&mut guest);
            assert_eq!(heard(&log), [who]);
        }
        guest.with(|reactor| reactor.delete(key)).unwrap();
        settle(&mut guest);
    }
}

/// The parent owns the same eventfd and timerfd that wake the host.
pub(crate) fn a_child_of_fork_does_not_keep_the_parents_host_asleep() {
    for backend in [Backend::Uring, Backend::Epoll] {
        let mut guest = Reactor::builder().backend(backend).build().unwrap().embed().unwrap();
        let timer = guest.with(|reactor| reactor.after(Duration::from_millis(50), || {})).unwrap();
        let late = guest.with(|reactor| reactor.after(Duration::from_secs(1000), || {})).unwrap();
        in_child(|| {
            guest.with(|reactor| {
                reactor.cancel(timer).unwrap();
                reactor.cancel(late).unwrap();
            });
            let error = guest.run_once(NOW).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
        });
        assert!(wakes(&guest, 5), "{backend}");
        while guest.with(|reactor| reactor.stats().timers_fired) == 0 {
            assert!(wakes(&guest, 5), "{backend}");
            guest.run_once(NOW).unwrap();
        }
    }
}

fn open_files() -> usize {
    let folder =
        rustix::fs::open("/proc/self/fd", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .unwrap();
    rustix::fs::Dir::read_from(folder).unwrap().count()
}

pub(crate) fn a_ring_that_leaves_its_host_keeps_nothing_of_it() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let fd = Rc::new(counter(0));
    let before = open_files();
    let key = noting(&mut reactor, &fd, interest().read(), 1, &log);
    for _ in 0..3 {
        let mut guest = reactor.embed().unwrap();
        fire(&*fd);
        assert!(wakes(&guest, 5));
        settle(&mut guest);
        assert_eq!(heard(&log), [1]);
        reactor = guest.into_reactor();
        assert_eq!(open_files(), before);
        fire(&*fd);
        reactor.run_once(None).unwrap();
        assert_eq!(heard(&log), [1]);
    }
    reactor.delete(key).unwrap();
}
