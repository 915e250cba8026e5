//! A child deletes registrations in every way. The parent keeps them.

use std::{
    cell::RefCell,
    os::fd::OwnedFd,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, poll};
use windlass::{Backend, Group, Signal, SignalSet, interest};

use crate::tools::{
    FOR_EVER, Log, NOW, Parent, assert_refused, assert_wakes, counter, drain, fire, fork, in_child,
    raise, reactor_on, reap, register,
};

/// The child runs `act` on its copy of the parent's reactor.
fn a_child_does(backend: Backend, act: impl FnOnce(&mut Parent)) {
    let mut parent = Parent::new(backend);
    in_child(|| act(&mut parent));
    parent.assert_works();
}

pub(crate) fn a_reactor_dropped_by_a_child_leaves_the_parents_alone(backend: Backend) {
    a_child_does(backend, |parent| {
        let own = reactor_on(Backend::Poll).unwrap();
        drop(std::mem::replace(&mut parent.reactor, own));
    });
}

pub(crate) fn a_reactor_taken_apart_by_a_child_leaves_the_parents_alone(backend: Backend) {
    a_child_does(backend, |parent| {
        let own = reactor_on(Backend::Poll).unwrap();
        let subscribers = std::mem::replace(&mut parent.reactor, own).into_subscribers();
        assert_eq!(subscribers.len(), 2);
    });
}

/// Another thread of the parent may hold the queue's lock at the fork. The child's copy of the lock
/// is then never unlocked, so a reactor dropped in the child leaves the queue alone.
pub(crate) fn a_closure_posted_to_the_parent_is_not_dropped_by_a_child(backend: Backend) {
    static RUN: AtomicU32 = AtomicU32::new(0);
    static DROPPED: AtomicU32 = AtomicU32::new(0);
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut parent = Parent::new(backend);
    let guard = Guard;
    let posted = parent.reactor.remote().post(move |_| {
        let _guard = &guard;
        RUN.fetch_add(1, Ordering::Relaxed);
    });
    assert!(posted.is_ok());
    in_child(|| {
        drop(std::mem::replace(&mut parent.reactor, reactor_on(Backend::Poll).unwrap()));
        let seen = (RUN.load(Ordering::Relaxed), DROPPED.load(Ordering::Relaxed));
        assert_eq!(seen, (0, 0));
    });
    parent.assert_works();
    assert_eq!((RUN.load(Ordering::Relaxed), DROPPED.load(Ordering::Relaxed)), (1, 1));
}

/// A reactor in a thread-local variable is dropped when the thread ends, and so also when the
/// process exits.
pub(crate) fn a_childs_exit_drops_no_registration_of_the_parent(backend: Backend) {
    thread_local! {
        static PARENT: RefCell<Option<Parent>> = const { RefCell::new(None) };
    }
    PARENT.set(Some(Parent::new(backend)));
    match fork() {
        None => std::process::exit(0),
        Some(child) => reap(child),
    }
    PARENT.take().unwrap().assert_works();
}

pub(crate) fn a_registration_deleted_by_a_child_is_the_parents_still(backend: Backend) {
    a_child_does(backend, |parent| {
        parent.reactor.delete(parent.first.key).unwrap();
        parent.reactor.delete(parent.second.key).unwrap();
        assert!(parent.reactor.delete(parent.first.key).is_err(), "it is gone here");
        assert_refused(parent.reactor.run_once(NOW));
    });
}

pub(crate) fn an_exclusive_registration_changed_by_a_child_is_the_parents_still(backend: Backend) {
    let mut parent = Parent::new(backend);
    let exclusive = interest().read().exclusive();
    if !parent.reactor.supports(exclusive) {
        return;
    }
    // A change of an exclusive registration deletes it and adds it again.
    let third = register(&mut parent.reactor, exclusive, 3, &parent.log);
    parent.reactor.run_once(NOW).unwrap();
    in_child(|| assert!(parent.reactor.modify(third.key, interest().read().write()).is_err()));
    fire(&third.fd);
    while parent.log.borrow().is_empty() {
        parent.reactor.run_once(FOR_EVER).unwrap();
    }
    assert_eq!(parent.log.take(), [3]);
    parent.assert_works();
}

pub(crate) fn a_descriptor_taken_out_by_a_child_is_the_parents_still(backend: Backend) {
    a_child_does(backend, |parent| {
        let fd: OwnedFd = parent.reactor.take_fd(parent.first.key).unwrap();
        drain(&fd);
    });
}

pub(crate) fn a_group_deleted_by_a_child_is_the_parents_still(backend: Backend) {
    let mut parent = Parent::new(backend);
    let fd = Rc::new(counter());
    let member = |count: &mut u32, fd: &mut Rc<OwnedFd>| {
        drain(fd);
        *count += 1;
    };
    let registered = Group::new(0u32)
        .fd(interest().read(), fd.clone(), member)
        .register_into(&mut parent.reactor)
        .unwrap();
    parent.reactor.run_once(NOW).unwrap();
    in_child(|| parent.reactor.delete_group(registered.group).unwrap());
    fire(&fd);
    while *parent.reactor.group_mut(registered.group).unwrap() == 0 {
        parent.reactor.run_once(FOR_EVER).unwrap();
    }
    parent.assert_works();
}

pub(crate) fn a_signal_set_deleted_by_a_child_is_the_parents_still(backend: Backend) {
    let mut parent = Parent::new(backend);
    let log = parent.log.clone();
    let set = SignalSet::new([Signal::USR1]).unwrap();
    let handler = move |set: &mut SignalSet| {
        assert!(set.read().unwrap().contains(Signal::USR1));
        log.borrow_mut().push(9);
    };
    let key = interest()
        .read()
        .with_fd(set)
        .with_handler(handler)
        .register_into(&mut parent.reactor)
        .unwrap();
    parent.reactor.run_once(NOW).unwrap();
    in_child(|| parent.reactor.delete(key).unwrap());
    raise(Signal::USR1.as_raw());
    while parent.log.borrow().is_empty() {
        parent.reactor.run_once(FOR_EVER).unwrap();
    }
    assert_eq!(parent.log.take(), [9]);
    parent.assert_works();
}

/// A reactor inside another loop. It must wake that loop after a child has run `act`.
fn a_child_does_to_a_guest(backend: Backend, act: impl FnOnce(windlass::Embedded, windlass::Key)) {
    let mut guest = reactor_on(backend).unwrap().embed().unwrap();
    let log = Log::default();
    let registered = guest.with(|reactor| register(reactor, interest().read(), 1, &log));
    guest.run_once(NOW).unwrap();
    let mut guest = Some(guest);
    in_child(|| act(guest.take().unwrap(), registered.key));
    let mut guest = guest.unwrap();
    fire(&registered.fd);
    while log.borrow().is_empty() {
        poll(&mut [PollFd::new(&guest, PollFlags::IN)], None).unwrap();
        guest.run_once(NOW).unwrap();
    }
    assert_wakes(&mut guest.into_reactor());
}

pub(crate) fn an_embedded_reactor_dropped_by_a_child_still_wakes_the_parents_host(
    backend: Backend,
) {
    a_child_does_to_a_guest(backend, |guest, _| drop(guest));
    a_child_does_to_a_guest(backend, |guest, _| drop(guest.into_reactor()));
}

pub(crate) fn a_registration_deleted_by_a_childs_embedded_reactor_is_the_parents_still(
    backend: Backend,
) {
    a_child_does_to_a_guest(backend, |mut guest, key| {
        guest.with(|reactor| reactor.delete(key)).unwrap();
        assert_refused(guest.run_once(NOW));
    });
}

/// The parent's events carry addresses that mean something else in the child.
pub(crate) fn a_child_is_refused_the_shortest_turn(backend: Backend) {
    let mut parent = Parent::new(backend);
    fire(&parent.first.fd);
    in_child(|| {
        for _ in 0..2 {
            assert_refused(parent.reactor.run_once(NOW));
            assert_refused(parent.reactor.run_once(None));
        }
        assert_refused(parent.reactor.run());
        assert!(parent.log.borrow().is_empty());
    });
    parent.assert_works();
}

/// The alarm of the timers is one timerfd for both processes.
pub(crate) fn a_timer_of_a_child_leaves_the_parents_alarm_alone(backend: Backend) {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut reactor = reactor_on(backend).unwrap();
    reactor.after(2 * HOUR, || {}).unwrap();
    let turns = 40;
    for _ in 0..turns {
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    }
    assert!(seconds_until_the_alarm() > 6000);
    in_child(|| {
        reactor.after(HOUR, || {}).unwrap();
        for _ in 0..turns {
            assert_refused(reactor.run_once(NOW));
        }
    });
    assert!(seconds_until_the_alarm() > 6000, "the child has armed it for its own timer");
}

/// The timers count by a clock that stands still while the machine is suspended, and so must the
/// alarm: `CLOCK_MONOTONIC` (timerfd_create(2)).
pub(crate) fn the_alarm_stands_still_while_the_machine_is_suspended(backend: Backend) {
    let mut reactor = reactor_on(backend).unwrap();
    reactor.after(Duration::from_secs(3600), || {}).unwrap();
    for _ in 0..40 {
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    }
    assert_eq!(of_the_alarm("clockid: "), libc::CLOCK_MONOTONIC.to_string());
}

fn seconds_until_the_alarm() -> u64 {
    let value = of_the_alarm("it_value: (");
    let (seconds, _) = value.split_once(',').expect("two numbers");
    seconds.parse().expect("a number")
}

/// What proc(5) says behind `name` of the only timerfd of this process.
fn of_the_alarm(name: &str) -> String {
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    // The folder's own descriptor is closed by the time its entry is read.
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.unwrap().path()).ok());
    let of_timerfds = texts.filter(|text| text.contains("it_value"));
    let mut values = of_timerfds.map(|text| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.expect("a line of it").to_owned()
    });
    let value = values.next().expect("the alarm has been armed");
    assert!(values.next().is_none(), "another timerfd");
    value
}
