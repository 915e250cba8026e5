//! Full queues, a kernel that takes no requests, and conditions that a poll reports without being
//! asked.

#![allow(
    unsafe_code,
    reason = "descriptors by number, which are replaced behind the reactor's back"
)]

use std::{
    cell::RefCell,
    io::Write,
    mem::ManuallyDrop,
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags},
    io::DupFlags,
};
use windlass::{Event, Interest, Key, Ready, Turn, interest};

use crate::tools::{Log, NOW, Noting, builder, counter, fire, heard, noting, run_dry};

const EDGE: Interest = interest().read().edge_triggered();

fn counters(count: usize) -> Vec<Rc<OwnedFd>> {
    (0..count).map(|_| Rc::new(counter(0))).collect()
}

pub(crate) fn a_turn_fetches_more_than_the_kernel_makes_ready_at_once() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let fds = counters(300);
    for (who, fd) in fds.iter().enumerate() {
        noting(&mut reactor, fd, EDGE, who, &log);
    }
    run_dry(&mut reactor);
    for timeout in [Some(NOW), None] {
        fds.iter().for_each(fire);
        assert_eq!(reactor.run_once(timeout).unwrap(), 300, "not twenty");
        assert_eq!(heard(&log), (0..300).collect::<Vec<_>>());
    }
}

pub(crate) fn nothing_is_lost_where_completions_overflow() {
    // The completion queue has room for eight, and a turn takes four events.
    let mut reactor = builder().ring_entries(4, 8).events_per_turn(4).build().unwrap();
    let log = Log::default();
    let fds = counters(100);
    for (who, fd) in fds.iter().enumerate() {
        let interest = if who % 2 == 0 { EDGE } else { interest().read() };
        noting(&mut reactor, fd, interest, who, &log);
    }
    assert_eq!(run_dry(&mut reactor), 0);
    for _ in 0..200 {
        fds.iter().for_each(fire);
        run_dry(&mut reactor);
        let mut all = heard(&log);
        // If the queue overflows, the poll ends. Arming it again reports the current state, so an
        // edge may be reported twice.
        all.dedup();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}

pub(crate) fn deletions_while_completions_overflow_are_harmless() {
    let mut reactor = builder().ring_entries(4, 8).events_per_turn(4).build().unwrap();
    let log = Log::default();
    for _ in 0..100 {
        let fds = counters(60);
        let watch = |(who, fd)| noting(&mut reactor, fd, EDGE, who, &log);
        let mut keys: Vec<Key> = fds.iter().enumerate().map(watch).collect();
        run_dry(&mut reactor);
        fds.iter().for_each(fire);
        // Some events are fetched, some are in the completion queue, and some are in the kernel's
        // overflow list.
        reactor.run_once(NOW).unwrap();
        let early = heard(&log);
        let dead: Vec<Key> = keys.drain(..30).collect();
        let in_turn =
            move |mut turn: Turn<'_>| dead.iter().for_each(|key| turn.delete(*key).unwrap());
        reactor.defer(in_turn).map_err(drop).unwrap();
        reactor.run_once(NOW).unwrap();
        heard(&log);
        run_dry(&mut reactor);
        assert!(heard(&log).iter().all(|who| *who >= 30), "the dead are silent");
        assert!(early.len() <= 4);
        for key in keys {
            reactor.delete(key).unwrap();
        }
    }
    assert_eq!(reactor.stats().subscribers, 0);
}

pub(crate) fn a_queue_of_one_entry_takes_any_number() {
    let mut reactor = builder().ring_entries(1, 2).build().unwrap();
    let log = Log::default();
    let fds = counters(50);
    let watch = |(who, fd)| noting(&mut reactor, fd, interest().read(), who, &log);
    let keys: Vec<Key> = fds.iter().enumerate().map(watch).collect();
    for _ in 0..10 {
        fds.iter().for_each(fire);
        run_dry(&mut reactor);
        assert_eq!(heard(&log), (0..50).collect::<Vec<_>>());
    }
    for key in keys {
        reactor.delete(key).unwrap();
    }
}

pub(crate) fn short_submissions_are_tried_again() {
    // The first calls submit nothing. So polls, and then cancellations, wait in the submission
    // queue and in the overflow list behind it.
    for stalls in 1..12 {
        let mut reactor = builder().ring_entries(4, 16).ring_stalls(stalls).build().unwrap();
        let log = Log::default();
        let fds = counters(20);
        let watch = |(who, fd)| noting(&mut reactor, fd, interest().read(), who, &log);
        let keys: Vec<Key> = fds.iter().enumerate().map(watch).collect();
        reactor.run_once(NOW).unwrap();
        for key in &keys[..10] {
            reactor.delete(*key).unwrap();
        }
        fds.iter().for_each(fire);
        let start = Instant::now();
        let mut all = Vec::new();
        while all.len() < 10 {
            reactor.run_once(Duration::from_millis(1)).unwrap();
            all.extend(heard(&log));
            assert!(start.elapsed() < Duration::from_secs(10), "{all:?}");
        }
        run_dry(&mut reactor);
        all.sort_unstable();
        assert_eq!(all, (10..20).collect::<Vec<_>>(), "after {stalls} calls that took nothing");
    }
}

pub(crate) fn what_has_found_no_room_is_submitted_before_the_wait() {
    // The kernel takes nothing while the polls are queued, so most of them find no room. Then it
    // takes all.
    for stalls in 1..30 {
        let mut reactor = builder().ring_entries(4, 64).ring_stalls(stalls).build().unwrap();
        let log = Log::default();
        let fds = counters(20);
        for (who, fd) in fds.iter().enumerate() {
            noting(&mut reactor, fd, interest().read(), who, &log);
        }
        fire(&*fds[19]);
        assert_eq!(
            reactor.run_once(Duration::from_secs(5)).unwrap(),
            1,
            "{stalls} calls took nothing"
        );
        assert_eq!(heard(&log), [19]);
    }
}

pub(crate) fn a_kernel_that_takes_nothing_does_not_make_the_loop_spin() {
    let mut reactor = builder().ring_stalls(20).build().unwrap();
    let log = Log::default();
    let fd = Rc::new(counter(1));
    noting(&mut reactor, &fd, interest().read(), 1, &log);
    let start = Instant::now();
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    // Every attempt except the last pauses for some milliseconds.
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    assert_eq!(heard(&log), [1]);
}

pub(crate) fn more_changes_than_there_are_generations() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let fd = Rc::new(counter(0));
    let key = noting(&mut reactor, &fd, EDGE, 1, &log);
    for round in 0..1000 {
        // Armed and cancelled in every turn, with and without an event to report.
        reactor.run_once(NOW).unwrap();
        if round % 3 == 0 {
            fire(&*fd);
        }
        let manner = [EDGE, interest().read(), interest().read().one_shot(), interest()][round % 4];
        reactor.modify(key, manner).unwrap();
    }
    run_dry(&mut reactor);
    heard(&log);
    let _ = rustix::io::read(&*fd, &mut [0; 8]);
    reactor.modify(key, EDGE).unwrap();
    run_dry(&mut reactor);
    heard(&log);
    fire(&*fd);
    assert_eq!((run_dry(&mut reactor), heard(&log)), (1, vec![1]), "once, for one edge");
}

/// A poll that is ready when armed completes at once. A cancelled poll completes later, in groups
/// of twenty. So polls of one cell do not complete in the order in which they were armed.
pub(crate) fn a_poll_that_was_cancelled_long_ago_is_not_taken_for_the_present_one() {
    for (others, rounds) in (1..10).flat_map(|rounds| [(0, rounds), (100, rounds), (300, rounds)]) {
        let mut reactor = builder().events_per_turn(2).build().unwrap();
        let (log, silent, noise) = (Log::default(), Log::default(), Log::default());
        let fds = counters(others);
        let many: Vec<Key> =
            fds.iter().map(|fd| noting(&mut reactor, fd, EDGE, 1, &silent)).collect();
        let fd = Rc::new(counter(0));
        let ours = |fd: &Rc<OwnedFd>, interest, log: &Log| Noting {
            fd: fd.clone(),
            interest,
            who: 2,
            log: log.clone(),
            drains: false,
        };
        let key = reactor.add(ours(&fd, interest().read().one_shot(), &log)).unwrap();
        run_dry(&mut reactor);
        // These two fill every turn, so completions behind them wait.
        let loud = [Rc::new(counter(1)), Rc::new(counter(1))];
        loud.iter().for_each(|fd| _ = reactor.add(ours(fd, interest().read(), &noise)).unwrap());
        reactor.run_once(NOW).unwrap();
        many.iter().for_each(|key| reactor.modify(*key, EDGE).unwrap());
        for round in 0..rounds {
            reactor.rearm(key).unwrap();
            if round % 2 == 0 {
                fire(&*fd);
            } else {
                let _ = rustix::io::read(&*fd, &mut [0; 8]);
            }
            reactor.run_once(NOW).unwrap();
        }
        let _ = rustix::io::read(&*fd, &mut [0; 8]);
        reactor.rearm(key).unwrap();
        (0..100).for_each(|_| _ = reactor.run_once(NOW).unwrap());
        let early = log.take();
        assert!(
            early.iter().all(|(_, ready)| *ready == Ready::empty().read()),
            "{others} others, {rounds} changes: {early:?}"
        );
        fire(&*fd);
        (0..100).for_each(|_| _ = reactor.run_once(NOW).unwrap());
        let told = log.take();
        assert_eq!(
            told,
            [(2, Ready::empty().read())],
            "{others} others, {rounds} changes: one shot, and no error"
        );
        assert!(silent.take().is_empty());
    }
}

pub(crate) fn edges_that_come_between_two_waits_are_one_event() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let fd = Rc::new(counter(0));
    noting(&mut reactor, &fd, EDGE, 1, &log);
    let others: Vec<Key> = counters(3)
        .iter()
        .map(|other| noting(&mut reactor, other, interest().read(), 2, &log))
        .collect();
    run_dry(&mut reactor);
    for other in others {
        fire(&*fd);
        // This fetches the completions that have arrived so far.
        reactor.delete(other).unwrap();
    }
    assert_eq!((run_dry(&mut reactor), heard(&log)), (1, vec![1]));
}

/// An owner of a number that another value owns.
fn behind_the_back(number: RawFd) -> ManuallyDrop<OwnedFd> {
    // SAFETY: the `ManuallyDrop` never closes the number. The other owner's file is replaced, but
    // the number is always open.
    ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The number refers to another file when its poll is armed again. It reports one error. After that
/// it reports nothing until a modify, which may set the same interest.
pub(crate) fn a_poll_that_was_refused_is_armed_again_by_a_change_to_what_it_was() {
    let mut reactor = builder().build().unwrap();
    let log = Log::default();
    let file = counter(1);
    let number = rustix::io::fcntl_dupfd_cloexec(&file, 900).unwrap();
    let place = number.as_raw_fd();
    let fd = Rc::new(number);
    let ours = Noting {
        fd: fd.clone(),
        interest: interest().read(),
        who: 1,
        log: log.clone(),
        drains: false,
    };
    let key = reactor.add(ours).unwrap();
    reactor.run_once(NOW).unwrap();
    // An `O_PATH` descriptor cannot be polled.
    let path = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let swap = |file: &OwnedFd| {
        rustix::io::dup3(file, &mut behind_the_back(place), DupFlags::CLOEXEC).unwrap()
    };
    swap(&path);
    (0..3).for_each(|_| _ = reactor.run_once(NOW).unwrap());
    assert_eq!(log.take(), [(1, Ready::empty().read()), (1, Ready::empty().error())], "{place}");
    swap(&file);
    let change = move |mut turn: Turn<'_>| turn.modify(key, interest().read()).unwrap();
    reactor.defer(change).map_err(drop).unwrap();
    (0..3).for_each(|_| _ = reactor.run_once(NOW).unwrap());
    assert!(log.take().iter().all(|told| *told == (1, Ready::empty().read())));
    assert!(reactor.run_once(NOW).unwrap() == 1, "it is watched again");
}

/// A socket that has no room to send, and its peer, which writes no more.
fn full() -> (UnixStream, UnixStream) {
    let (mut ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 4096]).is_ok() {}
    peer.shutdown(Shutdown::Write).unwrap();
    (ours, peer)
}

pub(crate) fn a_hang_up_that_nobody_asked_for_does_not_spin() {
    // The kernel adds the hang-up to every poll.
    for manner in [
        interest().write(),
        interest().write().one_shot(),
        interest().write().edge_triggered(),
        interest(),
    ] {
        let mut reactor = builder().build().unwrap();
        let (ours, _peer) = full();
        let handler = |_: &mut UnixStream| panic!("there is no room, and nobody asked for more");
        manner.with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
        for _ in 0..10 {
            assert_eq!(reactor.run_once(NOW).unwrap(), 0);
        }
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        assert_eq!(reactor.run_once(Duration::from_millis(200)).unwrap(), 0);
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let used = (used.tv_sec - cpu.tv_sec) * 1_000_000_000 + used.tv_nsec - cpu.tv_nsec;
        assert!(used < 20_000_000, "{manner:?} spins: {used} ns");
    }
}

pub(crate) fn one_who_was_quiet_hears_what_it_asked_for() {
    for manner in [interest().write(), interest().write().one_shot()] {
        let mut reactor = builder().build().unwrap();
        let (ours, peer) = full();
        let number = ours.as_fd().as_raw_fd();
        let log = Rc::new(RefCell::new(Vec::new()));
        let noted = log.clone();
        let handler = move |event: Event| noted.borrow_mut().push(event.ready());
        let key = manner.with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
        run_dry(&mut reactor);
        assert!(log.borrow().is_empty(), "{number}");
        let mut room = vec![0; 1 << 20];
        peer.set_nonblocking(true).unwrap();
        while rustix::io::read(&peer, &mut room).is_ok() {}
        for _ in 0..3 {
            reactor.run_once(NOW).unwrap();
        }
        let told = std::mem::take(&mut *log.borrow_mut());
        let expected = if manner.has_one_shot() { 1 } else { 3 };
        assert_eq!(told, vec![Ready::empty().write(); expected], "{manner:?}");
        // In its own manner again.
        reactor.modify(key, interest().read_hangup()).unwrap();
        assert_eq!(reactor.run_once(NOW).unwrap(), 1);
        assert_eq!(log.take(), [Ready::empty().read_hangup()]);
    }
}
