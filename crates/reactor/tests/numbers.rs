//! Rule 7: descriptors that are closed and replaced while they are registered.
//!
//! These tests use fixed descriptor numbers, which belong to the whole process. So each test holds
//! a lock for its whole duration, and the tests are a separate program.

#![allow(unsafe_code, reason = "the reactor's own wake descriptor by number, to replace it")]

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use windlass::{
    AddReason, Backend, Builder, Event, Interest, Key, ModifyError, Reactor, Turn, interest,
};

/// Uses epoll: only an epoll set keeps entries after their number was closed.
fn builder() -> Builder {
    Reactor::builder().backend(Backend::Epoll)
}

fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An eventfd that is readable and stays so.
fn ready() -> OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn dup(fd: impl AsFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).unwrap()
}

/// Duplicates the descriptor to exactly this number. The number must be free or the descriptor's
/// own.
fn at(fd: OwnedFd, number: i32) -> OwnedFd {
    if fd.as_raw_fd() == number {
        return fd;
    }
    let dup = rustix::io::fcntl_dupfd_cloexec(fd, number).unwrap();
    assert_eq!(dup.as_raw_fd(), number, "the number is free: the lock is held");
    dup
}

/// A descriptor that its own handler can close and replace, as any safe code can.
struct Slot(Option<OwnedFd>);

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("asked for at registration only").as_fd()
    }
}

type Acts = Rc<RefCell<VecDeque<Box<dyn FnOnce(&mut Slot)>>>>;

/// A registered slot: the action of its next event, and the number of its events so far.
struct Subject {
    key: Key,
    number: i32,
    acts: Acts,
    fired: Rc<Cell<u32>>,
    errors: Rc<Cell<u32>>,
}

impl Subject {
    fn new(reactor: &mut Reactor, fd: OwnedFd, interest: Interest) -> Self {
        let (acts, fired, errors) = (Acts::default(), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let number = fd.as_raw_fd();
        let (todo, count, bad) = (acts.clone(), fired.clone(), errors.clone());
        let handler = move |slot: &mut Slot, event: Event| {
            count.set(count.get() + 1);
            bad.set(bad.get() + u32::from(event.has_error()));
            let act = todo.borrow_mut().pop_front();
            if let Some(act) = act {
                act(slot);
            }
        };
        let key =
            interest.with_fd(Slot(Some(fd))).with_handler(handler).register_into(reactor).unwrap();
        Self { key, number, acts, fired, errors }
    }

    /// Runs an action on the descriptor from inside the handler.
    fn act(&self, reactor: &mut Reactor, act: impl FnOnce(&mut Slot) + 'static) {
        self.acts.borrow_mut().push_back(Box::new(act));
        reactor.run_once(Duration::ZERO).unwrap();
        assert!(self.acts.borrow().is_empty(), "it has fired");
    }

    fn close(&self, reactor: &mut Reactor) {
        self.act(reactor, |slot| drop(slot.0.take()));
    }

    /// Uses dup2(2) to put another file at the registered number.
    fn replace(&self, reactor: &mut Reactor, by: OwnedFd) {
        self.act(reactor, move |slot| rustix::io::dup2(&by, slot.0.as_mut().unwrap()).unwrap());
    }
}

/// Runs turns until one has no events.
fn quiet(reactor: &mut Reactor) {
    for _ in 0..4 {
        if reactor.run_once(Duration::ZERO).unwrap() == 0 {
            return;
        }
    }
    panic!("the loop does not come to rest");
}

#[test]
fn a_descriptor_closed_while_a_duplicate_lives_is_deletable_and_silent_and_its_number_is_usable() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let subject = Subject::new(&mut reactor, ready(), interest().read());
    let duplicate = Rc::new(RefCell::new(None));
    let out = duplicate.clone();
    subject.act(&mut reactor, move |slot| *out.borrow_mut() = Some(dup(&*slot)));
    subject.close(&mut reactor);
    assert_eq!(
        reactor.run_once(Duration::ZERO).unwrap(),
        1,
        "the file is still ready under the duplicate"
    );
    let fired = subject.fired.get();
    reactor.delete(subject.key).unwrap();
    assert_eq!(reactor.stats().quarantined, 1);
    // Uses the number before the new set can get it.
    let again = at(ready(), subject.number);
    quiet(&mut reactor);
    assert_eq!(
        (subject.fired.get(), reactor.stats().quarantined, reactor.stats().rebuilds),
        (fired, 0, 1)
    );
    let again = Subject::new(&mut reactor, again, interest().read());
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1);
    assert_eq!(again.fired.get(), 1);
    drop(duplicate);
}

/// The alarm of the timers is opened while the loop runs (`timing/alarm.rs`), when other code may
/// have closed the number of a live registration.
#[test]
fn the_alarm_takes_no_number_of_a_live_cell() {
    let _alone = alone();
    for backend in [Backend::Epoll, Backend::Poll] {
        let mut reactor = Reactor::builder().backend(backend).build().unwrap();
        let subject = Subject::new(&mut reactor, ready(), interest().read());
        subject.close(&mut reactor);
        let has_fired = Rc::new(Cell::new(false));
        let fires = Rc::clone(&has_fired);
        reactor.after(Duration::from_millis(50), move || fires.set(true)).unwrap();
        for _ in 0..40 {
            reactor.run_once(Duration::ZERO).unwrap();
        }
        reactor.delete(subject.key).unwrap();
        // Ends the wait if the deletion has removed the alarm.
        let stop = reactor.stop_handle();
        let (done, is_done) = mpsc::channel::<()>();
        let guard = thread::spawn(move || {
            let outcome = is_done.recv_timeout(Duration::from_secs(10));
            if outcome == Err(mpsc::RecvTimeoutError::Timeout) {
                stop.stop();
            }
        });
        while !has_fired.get() && !reactor.stop_requested() {
            reactor.run_once(None).unwrap();
        }
        drop(done);
        guard.join().unwrap();
        assert!(has_fired.get(), "{backend:?}");
    }
}

#[test]
fn a_delete_that_hits_the_wrong_entry_frees_nothing() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let (a, b) = (ready(), ready());
    let first = Subject::new(&mut reactor, dup(&a), interest().read());
    // The number refers to b now. The set has (a, number) for the first registration.
    first.replace(&mut reactor, dup(&b));
    assert_eq!(
        reactor.modify(first.key, interest().read().edge_triggered()),
        Err(ModifyError::Os(rustix::io::Errno::NOENT))
    );
    reactor.delete(first.key).unwrap();
    assert_eq!(reactor.stats().quarantined, 1);
    // The second is registered as (b, number). Then the number refers to a again.
    let second =
        Subject::new(&mut reactor, at(dup(&b), first.number), interest().read().edge_triggered());
    let mut ran = 0;
    while second.fired.get() == 0 {
        second.acts.borrow_mut().clear();
        let back = dup(&a);
        second.acts.borrow_mut().push_back(Box::new(move |slot| {
            rustix::io::dup2(&back, slot.0.as_mut().unwrap()).unwrap()
        }));
        reactor.run_once(Duration::ZERO).unwrap();
        ran += 1;
        assert!(ran < 4);
    }
    let (fired_first, fired_second) = (first.fired.get(), second.fired.get());
    let rebuilt = reactor.stats().rebuilds;
    // This DEL succeeds if the first entry still exists, and removes that entry.
    reactor.delete(second.key).unwrap();
    assert!(reactor.stats().quarantined >= 1 || reactor.stats().rebuilds > rebuilt);
    rustix::io::write(&b, &1u64.to_ne_bytes()).unwrap();
    quiet(&mut reactor);
    assert_eq!(
        (first.fired.get(), second.fired.get()),
        (fired_first, fired_second),
        "both are silent"
    );
    let third = Subject::new(&mut reactor, dup(&b), interest().read());
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1);
    assert_eq!(third.fired.get(), 1);
}

/// The same without events in between, so no rebuild helps.
#[test]
fn a_cell_added_under_a_tainted_number_is_quarantined_whatever_the_kernel_says() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let silent = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let (a, b) = (silent(), silent());
    let fire = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
    let first = Subject::new(&mut reactor, dup(&a), interest().read().edge_triggered());
    fire(&a);
    first.replace(&mut reactor, dup(&b));
    reactor.delete(first.key).unwrap();
    assert_eq!((reactor.stats().quarantined, reactor.stats().rebuilds), (1, 0));
    let second =
        Subject::new(&mut reactor, at(dup(&b), first.number), interest().read().edge_triggered());
    fire(&b);
    second.replace(&mut reactor, dup(&a));
    // (a, number) is the entry of the first registration. The kernel deletes it and reports
    // success. The entry of the second, (b, number), remains.
    reactor.delete(second.key).unwrap();
    assert_eq!(
        (reactor.stats().quarantined, reactor.stats().rebuilds),
        (2, 0),
        "a yes of the kernel's is not believed"
    );
    let number = at(dup(&b), first.number);
    fire(&b);
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1, "the is_stale fires");
    quiet(&mut reactor);
    assert_eq!((reactor.stats().quarantined, reactor.stats().rebuilds), (0, 1));
    assert_eq!((first.fired.get(), second.fired.get()), (1, 1));
    // The number has no stale entry any more, so the result of a DEL is trusted again.
    let third = Subject::new(&mut reactor, number, interest().read());
    reactor.delete(third.key).unwrap();
    assert_eq!(reactor.stats().quarantined, 0);
}

#[test]
fn a_modify_under_a_tainted_number_taints_the_cell() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let silent = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let (a, b) = (silent(), silent());
    let fire = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
    let first = Subject::new(&mut reactor, dup(&a), interest().read().edge_triggered());
    fire(&a);
    first.replace(&mut reactor, dup(&b));
    reactor.delete(first.key).unwrap();
    let second =
        Subject::new(&mut reactor, at(dup(&b), first.number), interest().read().edge_triggered());
    fire(&b);
    second.replace(&mut reactor, dup(&a));
    // This modifies (a, number), the entry of the first. From now on it carries the second's
    // address, and so does (b, number).
    reactor.modify(second.key, interest().read().edge_triggered()).unwrap();
    reactor.delete(second.key).unwrap();
    assert_eq!(reactor.stats().quarantined, 2);
    fire(&b);
    quiet(&mut reactor);
    assert_eq!(reactor.stats().rebuilds, 1);
}

#[test]
fn the_first_file_brought_back_under_its_number_can_be_registered_again() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let a = ready();
    let first = Subject::new(&mut reactor, dup(&a), interest().read());
    first.close(&mut reactor);
    reactor.delete(first.key).unwrap();
    // The set still has (a, number), so a plain ADD would fail with EEXIST.
    let second =
        Subject::new(&mut reactor, at(dup(&a), first.number), interest().read().exclusive());
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1);
    assert_eq!((first.fired.get(), second.fired.get()), (1, 1));
}

#[test]
fn a_live_registration_keeps_its_number_even_when_its_file_is_gone() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let subject = Subject::new(&mut reactor, ready(), interest().read());
    subject.close(&mut reactor);
    let other = at(ready(), subject.number);
    let refused = interest()
        .read()
        .with_fd(other)
        .with_handler(|| {})
        .try_register_into(&mut reactor)
        .unwrap_err();
    assert_eq!(refused.reason, AddReason::AlreadyExists);
    reactor.delete(subject.key).unwrap();
    refused.subscriber.register_into(&mut reactor).unwrap();
}

/// Creates a stale entry that is ready. The turn after the next rebuilds the set.
fn make_ghost(reactor: &mut Reactor) -> OwnedFd {
    let a = ready();
    let subject = Subject::new(reactor, dup(&a), interest().read());
    subject.close(reactor);
    reactor.delete(subject.key).unwrap();
    a
}

#[test]
fn a_rebuild_loses_no_edge_and_arms_no_fired_one_shot() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let (shot, edge) = (ready(), ready());
    let one_shot = Subject::new(&mut reactor, dup(&shot), interest().read().one_shot());
    let edges = Subject::new(&mut reactor, dup(&edge), interest().read().edge_triggered());
    reactor.run_once(Duration::ZERO).unwrap();
    assert_eq!((one_shot.fired.get(), edges.fired.get()), (1, 1));
    let is_stale = make_ghost(&mut reactor);
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1, "the is_stale");
    drop(is_stale);
    assert_eq!(
        reactor.run_once(Duration::ZERO).unwrap(),
        1,
        "the new set reports what is ready now"
    );
    assert_eq!((one_shot.fired.get(), edges.fired.get(), reactor.stats().rebuilds), (1, 2, 1));
    rustix::io::write(&edge, &1u64.to_ne_bytes()).unwrap();
    reactor.rearm(one_shot.key).unwrap();
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 2);
    assert_eq!((one_shot.fired.get(), edges.fired.get()), (2, 3));
    reactor.delete(one_shot.key).unwrap();
    reactor.delete(edges.key).unwrap();
    assert_eq!(reactor.stats().quarantined, 0, "both were in the new set");
}

#[test]
fn a_one_shot_armed_again_before_its_fetched_event_came_is_armed_after_a_rebuild() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let is_stale = make_ghost(&mut reactor);
    let (fired, target) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None::<Key>)));
    // It became ready before the one-shot, so it is reported first.
    let (count, armed) = (fired.clone(), target.clone());
    let rearm = move |mut turn: windlass::Turn<'_, Reactor>| {
        if let Some(target) = armed.take() {
            assert_eq!(count.get(), 0, "the one-shot's event waits in the batch");
            turn.rearm(target).unwrap();
        }
    };
    interest().read().with_fd(ready()).with_handler(rearm).register_into(&mut reactor).unwrap();
    let count = fired.clone();
    let one_shot = interest()
        .read()
        .one_shot()
        .with_fd(ready())
        .with_handler(move || count.set(count.get() + 1));
    target.set(Some(one_shot.register_into(&mut reactor).unwrap()));
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 3);
    assert_eq!(fired.get(), 1, "by the event that was fetched before it was armed again");
    drop(is_stale);
    reactor.run_once(Duration::ZERO).unwrap();
    assert_eq!((fired.get(), reactor.stats().rebuilds), (2, 1));
    assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1, "and now it has fired");
}

#[test]
fn a_cell_that_cannot_be_added_to_the_new_set_gets_one_error_event() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let broken = Subject::new(&mut reactor, ready(), interest().read());
    let is_stale = make_ghost(&mut reactor);
    // Closed last, so that the number is free when the new set is created. The set may get that
    // number, and a set cannot be added to itself.
    broken.close(&mut reactor);
    for _ in 0..4 {
        reactor.run_once(Duration::ZERO).unwrap();
    }
    drop(is_stale);
    assert_eq!((broken.errors.get(), reactor.stats().rebuilds), (1, 1));
    reactor.delete(broken.key).unwrap();
    assert_eq!(reactor.stats().quarantined, 0, "the new set never had it");
}

#[test]
fn too_many_ghosts_are_a_reason_to_rebuild_although_none_fires() {
    let _alone = alone();
    let mut reactor = builder().quarantine_max(3).build().unwrap();
    let mut files = Vec::new();
    for round in 0..8 {
        let a = ready();
        let subject = Subject::new(&mut reactor, dup(&a), interest().read().edge_triggered());
        subject.close(&mut reactor);
        reactor.delete(subject.key).unwrap();
        files.push(a);
        assert!(reactor.stats().quarantined <= 4, "round {round}");
    }
    quiet(&mut reactor);
    assert_eq!(reactor.stats().rebuilds, 2);
}

/// While it exists, the process can open no descriptor. Dropping it restores the limit, even if the
/// test fails.
struct Exhausted(Rlimit);

impl Exhausted {
    fn new() -> Self {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
        Self(limit)
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

/// The process's eventfds by number. `/proc/self/fd` shows the type of each descriptor.
fn eventfds() -> Vec<i32> {
    let is_eventfd = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
    };
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let numbers = entries.filter(|entry| is_eventfd(&entry.path()));
    numbers.map(|entry| entry.file_name().into_string().unwrap().parse().unwrap()).collect()
}

/// Replaces a reactor's wake descriptor by a file that epoll rejects. Dropping this restores it.
struct Deaf {
    number: std::mem::ManuallyDrop<OwnedFd>,
    wake: OwnedFd,
}

impl Deaf {
    fn new(before: &[i32]) -> Self {
        let number = eventfds().into_iter().find(|number| !before.contains(number)).unwrap();
        // SAFETY: the number is open, and the `ManuallyDrop` never closes it: the reactor owns it.
        let number = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        let deaf = Self { wake: dup(&*number), number };
        deaf.put(&std::fs::File::open("/proc/self/exe").unwrap().into());
        deaf
    }

    fn put(&self, file: &OwnedFd) {
        // SAFETY: the number is open, and the reactor owns it, so this must not close it either.
        let mut number =
            std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.number.as_raw_fd()) });
        rustix::io::dup2(file, &mut number).unwrap();
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        self.put(&self.wake);
    }
}

/// Regression: the turn that created the new set waited with the caller's timeout and could not be
/// woken.
#[test]
fn a_reactor_whose_wake_descriptor_is_refused_does_not_wait_and_hears_again() {
    let (say, heard) = std::sync::mpsc::channel();
    let work = std::thread::spawn(move || {
        let _alone = alone();
        let before = eventfds();
        let mut reactor = builder().build().unwrap();
        let deaf = Deaf::new(&before);
        let is_stale = make_ghost(&mut reactor);
        assert_eq!(reactor.run_once(Duration::ZERO).unwrap(), 1, "the is_stale");
        assert_eq!(reactor.run_once(None).unwrap(), 0, "the turn that rebuilds");
        for _ in 0..3 {
            assert_eq!(reactor.run_once(None).unwrap(), 0, "and those after it");
        }
        assert_eq!(
            (reactor.stats().rebuilds, reactor.stats().quarantined),
            (1, 0),
            "one new set is enough"
        );
        // A stop that is requested meanwhile is noticed.
        let stop = reactor.stop_handle();
        std::thread::spawn(move || stop.stop()).join().unwrap();
        reactor.run().unwrap();
        drop((deaf, is_stale));
        // The reactor can be woken again, and sleeps until it is.
        let stop = reactor.stop_handle();
        let remote = reactor.remote();
        say.send(None).unwrap();
        let stopper = std::thread::spawn(move || stop.stop());
        reactor.run().unwrap();
        stopper.join().unwrap();
        let turns = reactor.stats().turns;
        let poster =
            std::thread::spawn(move || remote.post(|mut turn: Turn<'_>| turn.stop()).unwrap());
        reactor.run().unwrap();
        poster.join().unwrap();
        say.send(Some(reactor.stats().turns - turns)).unwrap();
    });
    // Long enough for any machine. The wait reaches it only if the test fails.
    let patience = Duration::from_secs(60);
    assert_eq!(heard.recv_timeout(patience).expect("the loop waits and nobody can wake it"), None);
    let turns = heard.recv_timeout(patience).expect("the loop does not hear").unwrap();
    assert!(turns <= 3, "{turns} turns for one post");
    work.join().unwrap();
}

/// A stop or a call could not wake the host either, so the host stays awake until the wake is
/// repaired.
#[test]
fn an_embedded_reactor_whose_wake_descriptor_is_refused_keeps_its_host_awake() {
    let _alone = alone();
    let before = eventfds();
    let mut reactor = builder().build().unwrap();
    let deaf = Deaf::new(&before);
    let is_stale = make_ghost(&mut reactor);
    quiet(&mut reactor);
    let mut embedded = reactor.embed().unwrap();
    let is_readable = |embedded: &windlass::Embedded| {
        let mut fds = [PollFd::new(embedded, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    for _ in 0..3 {
        assert!(is_readable(&embedded));
        assert_eq!(embedded.run_once(Duration::ZERO).unwrap(), 0);
    }
    drop((deaf, is_stale));
    while is_readable(&embedded) {
        embedded.run_once(Duration::ZERO).unwrap();
    }
    assert_eq!(embedded.with(|reactor| reactor.stats().rebuilds), 1);
}

#[test]
fn without_a_descriptor_for_a_new_set_the_old_one_stays_and_it_is_tried_again() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let other = Subject::new(&mut reactor, ready(), interest().read());
    let file = ready();
    let subject = Subject::new(&mut reactor, dup(&file), interest().read());
    subject.close(&mut reactor);
    let exhausted = Exhausted::new();
    reactor.delete(subject.key).unwrap();
    for _ in 0..3 {
        reactor.run_once(Duration::ZERO).unwrap();
    }
    assert_eq!((reactor.stats().rebuilds, reactor.stats().quarantined), (0, 1));
    assert!(other.fired.get() >= 3, "the others are served as before");
    drop(exhausted);
    reactor.run_once(Duration::ZERO).unwrap();
    assert_eq!((reactor.stats().rebuilds, reactor.stats().quarantined), (1, 0));
}

#[test]
fn a_descriptor_for_a_new_set_is_held_from_the_moment_when_there_is_a_ghost() {
    let _alone = alone();
    let mut reactor = builder().build().unwrap();
    let is_stale = make_ghost(&mut reactor);
    let exhausted = Exhausted::new();
    reactor.run_once(Duration::ZERO).unwrap();
    reactor.run_once(Duration::ZERO).unwrap();
    assert_eq!((reactor.stats().rebuilds, reactor.stats().quarantined), (1, 0));
    drop((exhausted, is_stale));
}
