//! Wakes by posts: races with the loop's sleep, and the cost of a wake.

use std::{
    os::fd::{IntoRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustix::event::{
    PollFd, PollFlags,
    epoll::{self as foreign, CreateFlags, EventData, EventFlags},
    poll,
};
use windlass::{Embedded, Reactor, Remote, Turn, interest};

use crate::{
    Build,
    bed::{
        Log, NOW, Numbered, close, drain, duplicate_from, idle, noting, own_numbers, panic_of,
        readable, ready, ring, sendable, spinning_alone,
    },
};

/// Longer than any test, however slow the machine. If a wake is lost, the test hangs.
const LONG: Duration = Duration::from_secs(3600);

const ROUNDS: u64 = if cfg!(miri) { 8 } else { 5_000 };

fn note(remote: &Remote, ran: &Arc<AtomicU64>) {
    let ran = ran.clone();
    assert!(remote.post(move |_: Turn<'_>| _ = ran.fetch_add(1, Relaxed)).is_ok());
}

/// Another thread posts repeatedly, often just after the last post has run. `turn` is called until
/// all have run.
///
/// If a wake is lost, the test hangs.
fn race(remote: Remote, rounds: u64, mut turn: impl FnMut()) {
    let _alone = spinning_alone();
    let ran = Arc::new(AtomicU64::new(0));
    let seen = ran.clone();
    let poster = thread::spawn(move || {
        for round in 0..rounds {
            note(&remote, &seen);
            // In pairs, so that some posts find the queue empty and others do not.
            while round % 2 == 0 && seen.load(Relaxed) <= round {
                thread::yield_now();
            }
        }
    });
    while ran.load(Relaxed) < rounds {
        turn();
    }
    poster.join().unwrap();
}

fn no_post_is_lost_by_a_turn_of_any_timeout(build: Build) {
    for timeout in [None, Some(NOW), Some(LONG), Some(Duration::from_nanos(1))] {
        let mut reactor = build().remote_max(4).build().unwrap();
        let remote = reactor.remote();
        race(remote, ROUNDS, || _ = reactor.run_once(timeout).unwrap());
    }
}

fn no_post_is_lost_beside_timers(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let key = reactor.every(Duration::from_micros(50), || {}).unwrap();
    race(remote, ROUNDS, || _ = reactor.run_once(None).unwrap());
    reactor.cancel(key).unwrap();
    reactor.after(LONG, || panic!("it has waited for the timer")).unwrap();
    let remote = reactor.remote();
    race(remote, ROUNDS, || _ = reactor.run_once(None).unwrap());
}

// The busy poll can end at any time. A post before, during or after its end must be found.
fn no_post_is_lost_by_a_busy_poll(build: Build) {
    for busy in [Duration::from_nanos(1), Duration::from_micros(3), Duration::from_micros(30)] {
        let mut reactor = build().busy_poll(busy).build().unwrap();
        let remote = reactor.remote();
        race(remote, ROUNDS, || _ = reactor.run_once(None).unwrap());
    }
}

fn no_post_is_lost_where_a_turn_has_room_for_one_event(build: Build) {
    let mut reactor = build().events_per_turn(1).calls_per_turn(1).build().unwrap();
    let remote = reactor.remote();
    // Two that are always ready fill every batch.
    let fds = [ready(), ready()];
    for fd in &fds {
        interest()
            .read()
            .with_fd(fd.clone())
            .with_handler(|| {})
            .register_into(&mut reactor)
            .unwrap();
    }
    race(remote, ROUNDS / 4, || _ = reactor.run_once(None).unwrap());
    fds.iter().for_each(|fd| _ = drain(fd));
    let remote = reactor.remote();
    race(remote, ROUNDS / 4, || _ = reactor.run_once(None).unwrap());
}

// A panic ends the turn in which the loop has found the post.
fn no_post_is_lost_where_handlers_panic(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let fd = sendable();
    let handler = |fd: &mut Arc<OwnedFd>| {
        drain(fd);
        // Bypasses the panic hook, which would print each panic.
        std::panic::resume_unwind(Box::new("handler"));
    };
    readable().with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    let mut panics = 0;
    race(remote, ROUNDS / 10 + 1, || {
        ring(&fd);
        let turn = std::panic::AssertUnwindSafe(|| reactor.run_once(None));
        panics += u64::from(std::panic::catch_unwind(turn).is_err());
    });
    assert!(panics > 0);
}

// A signal interrupts the kernel's wait while the loop is marked asleep. Then the loop waits again.
fn no_post_is_lost_where_signals_interrupt_the_wait(build: Build) {
    crate::waits::interrupted(|| {
        let mut reactor = build().build().unwrap();
        let remote = reactor.remote();
        race(remote.clone(), ROUNDS / 10, || _ = reactor.run_once(None).unwrap());
        reactor.after(LONG, || panic!("it has waited for the timer")).unwrap();
        race(remote, ROUNDS / 10, || _ = reactor.run_once(None).unwrap());
    });
}

// io-event: a wake before the loop waits, a second one, and one while it is idle.
fn of_two_wakes_neither_is_lost_and_one_is_enough(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let ran = Arc::new(AtomicU64::new(0));
    for round in 1..=3 {
        note(&remote, &ran);
        note(&remote, &ran);
        reactor.run_once(None).unwrap();
        assert_eq!(ran.load(Relaxed), 2 * round);
        assert_eq!(reactor.run_once(NOW).unwrap(), 0, "nothing is left of them");
    }
}

// polling, libuv: a notification during a wait ends that wait, and the next turn waits again.
fn the_turn_after_a_wake_waits_again(build: Build) {
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let ran = Arc::new(AtomicU64::new(0));
    race(remote.clone(), 3, || _ = reactor.run_once(None).unwrap());
    reactor.run_once(NOW).unwrap();
    let (turns, span) = (reactor.stats().turns, Duration::from_millis(2));
    let start = std::time::Instant::now();
    assert_eq!(reactor.run_once(span).unwrap(), 0);
    assert!(start.elapsed() >= span, "an old wake has ended it");
    assert_eq!(reactor.stats().turns, turns + 1);
    note(&remote, &ran);
    reactor.run_once(None).unwrap();
    assert_eq!(ran.load(Relaxed), 1);
}

// mio 1205: a deregistered source does not fire beside a wake. mio: another thread registers while
// the loop waits.
fn a_post_that_deregisters_and_registers_while_the_loop_waits_is_obeyed(build: Build) {
    let mut reactor = build().build().unwrap();
    let (fd, hits) = (sendable(), Arc::new(AtomicU64::new(0)));
    let (theirs, counted) = (fd.clone(), hits.clone());
    crate::remote::serve(&mut reactor, move |remote| {
        for _ in 0..20 {
            let counted = counted.clone();
            let handler = move |fd: &mut Arc<OwnedFd>| _ = counted.fetch_add(drain(fd), Relaxed);
            let key = readable()
                .with_fd(theirs.clone())
                .with_handler(handler)
                .register_remotely(remote)
                .unwrap();
            ring(&theirs);
            remote.call(move |mut turn: Turn<'_>| turn.delete(key).unwrap()).unwrap();
            let before = remote.call(|turn: Turn<'_>| turn.stats().subscribers).unwrap();
            ring(&theirs);
            assert_eq!(before, 0);
            remote.call(|_| ()).unwrap();
            drain(&theirs);
        }
    });
    assert!(hits.load(Relaxed) <= 20);
}

/// The write count of the descriptor that wakes a reactor. Only `Backend::Poll` ever reads that
/// descriptor.
struct Rings(i32);

impl Rings {
    /// Finds the descriptor: the eventfd that a new reactor has created.
    fn of_new(build: Build) -> (Self, Reactor) {
        let numbers = || -> Vec<i32> {
            let list = std::fs::read_dir("/proc/self/fd").unwrap();
            list.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
                .collect()
        };
        let link = |number: &i32| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
        let mut before = numbers();
        // The number of the directory listing itself is free again.
        before.retain(|number| link(number).is_some());
        let reactor = build().build().unwrap();
        let mut fresh = numbers();
        fresh.retain(|number| {
            !before.contains(number)
                && link(number).is_some_and(|link| link.to_str() == Some("anon_inode:[eventfd]"))
        });
        let [number] = fresh[..] else { panic!("one eventfd is the latch's: {fresh:?}") };
        (Self(number), reactor)
    }

    fn count(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
        u64::from_str_radix(count.trim(), 16).unwrap()
    }
}

// A wake of a running loop makes no system call, and `Stats::wakes` does not count it.
fn a_wake_of_a_running_loop_writes_nothing(build: Build) {
    if !crate::bed::in_own_process(build, "remote_wakes", "a_wake_of_a_running_loop_writes_nothing")
    {
        return;
    }
    let (rings, mut reactor) = Rings::of_new(build);
    let remote = reactor.remote();
    let ran = Arc::new(AtomicU64::new(0));
    // From a handler, from a call, between turns, and from another thread while a call runs.
    let (from, counted) = (remote.clone(), ran.clone());
    reactor.defer(move |_: Turn<'_, _>| note(&from, &counted)).unwrap();
    reactor.run_once(NOW).unwrap();
    note(&remote, &ran);
    let (from, counted) = (remote.clone(), ran.clone());
    let other = move |_: Turn<'_>| {
        note(&from, &counted);
        thread::spawn(move || note(&from, &counted)).join().unwrap();
    };
    assert!(remote.try_post(other).is_ok());
    for _ in 0..4 {
        reactor.run_once(NOW).unwrap();
    }
    remote.stop();
    reactor.run().unwrap();
    assert_eq!((ran.load(Relaxed), rings.count(), reactor.stats().wakes), (4, 0, 0));
}

// The second of two posts finds the loop woken already.
fn a_loop_that_sleeps_is_rung_once_for_many_posts(build: Build) {
    if !crate::bed::in_own_process(
        build,
        "remote_wakes",
        "a_loop_that_sleeps_is_rung_once_for_many_posts",
    ) {
        return;
    }
    let (rings, mut reactor) = Rings::of_new(build);
    let remote = reactor.remote();
    let ran = Arc::new(AtomicU64::new(0));
    let (go, wait) = mpsc::channel();
    let (theirs, counted) = (remote.clone(), ran.clone());
    let number = rings.0;
    let poster = thread::spawn(move || {
        wait.recv().unwrap();
        let rings = Rings(number);
        // Repeated until one writes, because the loop may still be awake.
        while rings.count() == 0 {
            note(&theirs, &counted);
            thread::yield_now();
        }
        theirs.stop();
        rings.count()
    });
    go.send(()).unwrap();
    reactor.run().unwrap();
    let counted = poster.join().unwrap();
    reactor.run_once(NOW).unwrap();
    assert!(counted >= 1 && reactor.stats().wakes >= 1);
    assert!(reactor.stats().wakes <= rings.count(), "each of them has rung");
}

// Without a remote, every stop writes to the descriptor. With a remote, a stop writes only if the
// loop is asleep.
fn a_stop_of_a_loop_without_a_remote_always_rings(build: Build) {
    if !crate::bed::in_own_process(
        build,
        "remote_wakes",
        "a_stop_of_a_loop_without_a_remote_always_rings",
    ) {
        return;
    }
    let (rings, mut reactor) = Rings::of_new(build);
    let stop = reactor.stop_handle();
    let is_read = reactor.backend() == windlass::Backend::Poll;
    for round in 1..4 {
        stop.stop();
        assert_eq!(rings.count(), if is_read { 1 } else { round });
        reactor.run_once(None).unwrap();
        assert_eq!(reactor.stats().wakes, round);
        reactor.run().unwrap();
    }
    stop.stop();
    let remote = reactor.remote();
    // The earlier write is noticed once more, and is the last.
    reactor.run_once(None).unwrap();
    remote.stop();
    reactor.run().unwrap();
    note(&remote, &Arc::default());
    reactor.run_once(None).unwrap();
    assert_eq!(rings.count(), if is_read { 0 } else { 4 });
}

/// Sleeps in poll(2) until the guest is readable.
fn host_sleeps(guest: &Embedded) {
    assert_eq!(poll(&mut [PollFd::new(guest, PollFlags::IN)], None).unwrap(), 1);
}

fn no_post_is_lost_in_a_host_that_polls(build: Build) {
    let mut guest = build().calls_per_turn(1).build().unwrap().embed().unwrap();
    let remote = guest.with(Reactor::remote);
    race(remote, ROUNDS, || {
        host_sleeps(&guest);
        guest.run_once(NOW).unwrap();
    });
}

fn no_post_is_lost_in_a_foreign_epoll_host(build: Build) {
    let mut guest = build().build().unwrap().embed().unwrap();
    let host = foreign::create(CreateFlags::CLOEXEC).unwrap();
    foreign::add(&host, &guest, EventData::new_u64(0), EventFlags::IN).unwrap();
    // The guest may also wake the host for its own events.
    let remote = guest.with(Reactor::remote);
    let mut round = 0;
    race(remote, ROUNDS, || {
        assert_eq!(poll(&mut [PollFd::new(&host, PollFlags::IN)], None).unwrap(), 1);
        round += 1;
        let timeout = if round % 3 == 0 { Some(Duration::from_nanos(1)) } else { Some(NOW) };
        guest.run_once(timeout).unwrap();
    });
}

fn no_post_is_lost_in_a_guest_of_another_reactor(build: Build) {
    let mut host = build().build().unwrap();
    let mut guest = build().build().unwrap().embed().unwrap();
    let remotes = [guest.with(Reactor::remote), host.remote()];
    let handler = |guest: &mut Embedded| _ = guest.run_once(NOW).unwrap();
    interest().read().with_fd(guest).with_handler(handler).register_into(&mut host).unwrap();
    for remote in remotes {
        race(remote, ROUNDS, || _ = host.run_once(None).unwrap());
    }
}

// The remote is created late: in a guest that is asleep, or that a stop has woken. The guest is
// also taken out and embedded again.
fn a_guest_gets_its_remote_late_and_keeps_it_when_it_moves(build: Build) {
    let ran = Arc::new(AtomicU64::new(0));
    for stopped in [false, true] {
        let mut guest = build().build().unwrap().embed().unwrap();
        if stopped {
            guest.with(|reactor| reactor.stop_handle().stop());
        }
        let remote = guest.with(|reactor| {
            let remote = reactor.remote();
            note(&remote, &ran);
            remote
        });
        host_sleeps(&guest);
        guest.run_once(NOW).unwrap();
        assert_eq!(ran.swap(0, Relaxed), 1);
        assert_eq!(guest.with(|reactor| reactor.stop_requested()), stopped);
        // Taken out with a post that came while embedded. Embedded with one that came while it was
        // out.
        note(&remote, &ran);
        let mut reactor = guest.into_reactor();
        reactor.run_once(None).unwrap();
        assert_eq!(ran.swap(0, Relaxed), 1);
        note(&remote, &ran);
        let mut guest = reactor.embed().unwrap();
        host_sleeps(&guest);
        guest.run_once(NOW).unwrap();
        assert_eq!(ran.swap(0, Relaxed), 1);
        let (mut reactor, theirs, counted) = (guest.into_reactor(), remote.clone(), ran.clone());
        let poster = thread::spawn(move || note(&theirs, &counted));
        while ran.load(Relaxed) == 0 {
            reactor.run_once(None).unwrap();
        }
        poster.join().unwrap();
        ran.store(0, Relaxed);
    }
}

// Either event may be first in the batch. The kept event, or the calls alone, wake the host again.
fn a_guests_panic_beside_a_post_wakes_its_host_again(build: Build) {
    for post_first in [true, false] {
        let mut guest = build().build().unwrap().embed().unwrap();
        let remote = guest.with(Reactor::remote);
        let ran = Arc::new(AtomicU64::new(0));
        if post_first {
            note(&remote, &ran);
        }
        let handler = |fd: &mut crate::bed::Shared| {
            drain(fd);
            panic!("handler");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut guest).unwrap();
        if !post_first {
            note(&remote, &ran);
        }
        assert_eq!(panic_of(|| guest.run_once(NOW)), "handler");
        host_sleeps(&guest);
        guest.run_once(NOW).unwrap();
        assert_eq!(ran.load(Relaxed), 1);
    }
}

// Rule 7: the new set contains the descriptor of the wake.
fn no_post_is_lost_while_the_epoll_set_is_built_anew(build: Build) {
    let mut reactor = build().quarantine_max(0).build().unwrap();
    let remote = reactor.remote();
    let log = Log::new();
    let spare = own_numbers();
    let mut rounds = 0;
    race(remote, ROUNDS / 4, || {
        rounds += 1;
        if rounds % 8 == 0 {
            // The number is closed while a duplicate exists, so its entry stays. The next turn
            // rebuilds the set.
            let file = idle();
            let number = duplicate_from(&file, spare).into_raw_fd();
            let key = interest()
                .read()
                .with_fd(Numbered(number))
                .with_handler(|| {})
                .register_into(&mut reactor)
                .unwrap();
            close(number);
            reactor.delete(key).unwrap();
        }
        reactor.run_once(None).unwrap();
    });
    assert!(reactor.stats().rebuilds > 0);
    let fd = idle();
    noting(&mut reactor, &fd, &log, ());
    ring(&fd);
    while log.len() == 0 {
        reactor.run_once(None).unwrap();
    }
}

scenarios! {
    no_post_is_lost_by_a_turn_of_any_timeout,
    no_post_is_lost_beside_timers,
    no_post_is_lost_by_a_busy_poll,
    no_post_is_lost_where_a_turn_has_room_for_one_event,
    no_post_is_lost_where_handlers_panic,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    no_post_is_lost_where_signals_interrupt_the_wait,
    of_two_wakes_neither_is_lost_and_one_is_enough,
    the_turn_after_a_wake_waits_again,
    a_post_that_deregisters_and_registers_while_the_loop_waits_is_obeyed,
    #[cfg_attr(miri, ignore = "Miri starts no processes")]
    a_wake_of_a_running_loop_writes_nothing,
    #[cfg_attr(miri, ignore = "Miri starts no processes")]
    a_loop_that_sleeps_is_rung_once_for_many_posts
        except [poll "the descriptor is read there, so its count says nothing"],
    #[cfg_attr(miri, ignore = "Miri starts no processes")]
    a_stop_of_a_loop_without_a_remote_always_rings,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    no_post_is_lost_in_a_host_that_polls except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    no_post_is_lost_in_a_foreign_epoll_host except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    no_post_is_lost_in_a_guest_of_another_reactor
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_guest_gets_its_remote_late_and_keeps_it_when_it_moves
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_guests_panic_beside_a_post_wakes_its_host_again
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri closes no number under a living duplicate")]
    no_post_is_lost_while_the_epoll_set_is_built_anew except [
        poll "poll(2) keeps no state, so nothing is rebuilt",
        uring "a ring has no stale entries, so nothing is rebuilt"
    ],
}
