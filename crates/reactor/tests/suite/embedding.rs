//! A reactor inside another loop: one descriptor that is readable whenever there is work.

use std::{
    os::fd::{AsFd, IntoRawFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass::{
    AddReason, Backend, EmbedReason, Embedded, Errno, Group, Reactor, Ready, Turn, interest,
};

use crate::{
    Build,
    bed::{
        HandClock, Log, NOW, Numbered, Shared, close, drain, duplicate_from, idle, noting,
        own_numbers, panic_of, readable, ready, ring,
    },
};

const MS: Duration = Duration::from_millis(1);

/// True if the descriptor is readable now. `is_due` must agree.
fn is_readable(embedded: &Embedded) -> bool {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(embedded, PollFlags::IN)];
    let was_due = embedded.is_due();
    let is_readable = poll(&mut fds, Some(&zero)).unwrap() == 1;
    // A timer may have expired in between.
    assert!((!was_due || is_readable) && (!is_readable || embedded.is_due()));
    is_readable
}

/// Sleeps like a host until the descriptor is readable. Otherwise the test hangs.
fn sleep(embedded: &Embedded) {
    let mut fds = [PollFd::new(embedded, PollFlags::IN)];
    assert_eq!(poll(&mut fds, None).unwrap(), 1);
}

fn embedded(build: Build) -> Embedded {
    build().build().unwrap().embed().unwrap()
}

/// Runs the guest until it has no work.
fn settle(guest: &mut Embedded) {
    while is_readable(guest) {
        guest.run_once(NOW).unwrap();
    }
}

fn an_event_makes_it_readable_until_it_is_handled(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let fd = idle();
    guest.with(|reactor| noting(reactor, &fd, &log, ()));
    assert!(!is_readable(&guest));
    ring(&fd);
    assert!(is_readable(&guest) && is_readable(&guest), "level-triggered");
    assert_eq!(guest.run_once(NOW).unwrap(), 1);
    assert!(!is_readable(&guest));
    assert_eq!(log.len(), 1);
}

fn a_kick_wakes_the_host(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let key = guest.with(|reactor| noting(reactor, &idle(), &log, ()));
    settle(&mut guest);
    guest.with(|reactor| reactor.kick(key, Ready::empty().read())).unwrap();
    assert!(is_readable(&guest));
    assert_eq!((guest.run_once(None).unwrap(), log.len()), (1, 1));
    assert!(!is_readable(&guest));
}

fn a_timer_wakes_the_host(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let (soon, late) = (log.clone(), log.clone());
    let start = Instant::now();
    guest.with(|reactor| {
        reactor.after(Duration::from_secs(3600), move || late.note("late")).unwrap();
        reactor.after(3 * MS, move || soon.note("soon")).unwrap();
    });
    while log.len() == 0 {
        sleep(&guest);
        guest.run_once(NOW).unwrap();
    }
    assert!(start.elapsed() >= 3 * MS);
    assert_eq!(log.take(), ["soon"]);
    assert!(!is_readable(&guest));
}

fn a_repeated_timer_wakes_the_host_again_and_again(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let noted = log.clone();
    let key = guest.with(|reactor| reactor.every(MS, move || noted.note(())).unwrap());
    while log.len() < 3 {
        sleep(&guest);
        guest.run_once(NOW).unwrap();
    }
    guest.with(|reactor| reactor.cancel(key)).unwrap();
    settle(&mut guest);
    assert!(!is_readable(&guest));
}

fn a_timer_that_is_due_already_makes_it_readable(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let noted = log.clone();
    guest.with(|reactor| reactor.at(Instant::now() - MS, move || noted.note(())).unwrap());
    sleep(&guest);
    guest.run_once(NOW).unwrap();
    assert_eq!(log.len(), 1);
}

fn a_deferred_closure_makes_it_readable(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let noted = log.clone();
    guest.with(|reactor| reactor.defer(move |_: Turn<'_, _>| noted.note(())).unwrap());
    assert!(is_readable(&guest));
    assert_eq!(guest.run_once(NOW).unwrap(), 0);
    assert_eq!(log.len(), 1);
    assert!(!is_readable(&guest));
}

fn work_left_over_by_a_turn_makes_it_readable(build: Build) {
    let builder = build().deferred_per_turn(1).timers_per_turn(1);
    let mut guest = builder.build().unwrap().embed().unwrap();
    let log = Log::new();
    guest.with(|reactor| {
        for _ in 0..2 {
            let (closure, timer) = (log.clone(), log.clone());
            reactor.defer(move |_: Turn<'_, _>| closure.note("closure")).unwrap();
            reactor.after(NOW, move || timer.note("timer")).unwrap();
        }
    });
    for _ in 0..10 {
        if log.len() == 4 {
            break;
        }
        sleep(&guest);
        guest.run_once(NOW).unwrap();
    }
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["closure", "closure", "timer", "timer"]);
    settle(&mut guest);
}

fn a_kept_event_makes_it_readable(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    for _ in 0..2 {
        let log = log.clone();
        let handler = move |fd: &mut Shared| {
            drain(fd);
            log.note(());
            assert!(log.len() > 1, "first");
        };
        // Edge-triggered: both edges are fetched when the panic comes, so the kernel reports
        // nothing more.
        let wanted = interest().read().edge_triggered();
        wanted.with_fd(ready()).with_handler(handler).register_into(&mut guest).unwrap();
    }
    assert_eq!(panic_of(|| guest.run_once(NOW)), "first");
    assert!(is_readable(&guest));
    assert_eq!(guest.run_once(NOW).unwrap(), 1);
    assert_eq!(log.len(), 2);
    assert!(!is_readable(&guest));
}

fn a_destructor_left_behind_makes_it_readable(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let noted = crate::bed::Noted(log.clone(), ());
    let handler = move |event: windlass::Event, mut turn: Turn<'_, Reactor>| {
        let _ = &noted;
        turn.delete(event.key()).unwrap();
        panic!("handler");
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut guest).unwrap();
    assert_eq!(panic_of(|| guest.run_once(NOW)), "handler");
    assert!(is_readable(&guest) && log.len() == 0);
    guest.run_once(NOW).unwrap();
    assert_eq!(log.len(), 1);
    assert!(!is_readable(&guest));
}

fn a_stop_from_anywhere_makes_it_readable(build: Build) {
    let mut guest = embedded(build);
    let stop = guest.with(|reactor| reactor.stop_handle());
    let stopper = std::thread::spawn(move || stop.stop());
    sleep(&guest);
    stopper.join().unwrap();
    guest.run_once(NOW).unwrap();
    assert!(guest.with(|reactor| reactor.stop_requested()));
    assert!(!is_readable(&guest));
}

fn a_post_wakes_the_host(build: Build) {
    let mut guest = embedded(build);
    let remote = guest.with(Reactor::remote);
    assert!(!is_readable(&guest));
    // One post comes while the host sleeps, another from a closure of the guest itself. Neither may
    // be lost.
    for from_inside in [false, true, false] {
        let (ran, theirs) = (Arc::new(AtomicU64::new(0)), remote.clone());
        let counted = ran.clone();
        let post = move || {
            assert!(theirs.try_post(move |_: Turn<'_>| _ = counted.fetch_add(1, Relaxed)).is_ok())
        };
        if from_inside {
            guest.with(|reactor| reactor.defer(move |_| post()).map_err(drop)).unwrap();
            sleep(&guest);
            guest.run_once(NOW).unwrap();
            sleep(&guest);
        } else {
            let poster = std::thread::spawn(post);
            sleep(&guest);
            poster.join().unwrap();
        }
        guest.run_once(NOW).unwrap();
        assert_eq!(ran.load(Relaxed), 1);
        settle(&mut guest);
    }
}

fn calls_left_over_by_a_turn_make_it_readable(build: Build) {
    let mut guest = build().calls_per_turn(1).build().unwrap().embed().unwrap();
    let remote = guest.with(Reactor::remote);
    let ran = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let ran = ran.clone();
        assert!(remote.try_post(move |_: Turn<'_>| _ = ran.fetch_add(1, Relaxed)).is_ok());
    }
    for count in 1..=3 {
        sleep(&guest);
        guest.run_once(NOW).unwrap();
        assert_eq!(ran.load(Relaxed), count);
    }
    settle(&mut guest);
    // A stop works as before.
    remote.stop();
    sleep(&guest);
    guest.run_once(NOW).unwrap();
    assert!(guest.with(|reactor| reactor.stop_requested()));
    settle(&mut guest);
}

// A post during the guest's turn must wake the host when it goes to sleep.
fn no_post_is_lost_between_the_guests_turn_and_the_hosts_sleep(build: Build) {
    let rounds: u64 = if cfg!(miri) { 20 } else { 50_000 };
    let mut guest = embedded(build);
    let remote = guest.with(Reactor::remote);
    let count = Arc::new(AtomicU64::new(0));
    let seen = count.clone();
    let poster = std::thread::spawn(move || {
        for round in 0..rounds {
            let counted = seen.clone();
            assert!(remote.post(move |_: Turn<'_>| _ = counted.fetch_add(1, Relaxed)).is_ok());
            while round % 3 == 0 && seen.load(Relaxed) <= round {
                std::thread::yield_now();
            }
        }
    });
    while count.load(Relaxed) < rounds {
        sleep(&guest);
        guest.run_once(NOW).unwrap();
    }
    poster.join().unwrap();
}

fn a_merged_change_is_in_force_for_the_host(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let quiet = idle();
    let key = guest.with(|reactor| noting(reactor, &quiet, &log, "now writable"));
    let kick = idle();
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        turn.modify(key, interest().write()).unwrap();
    };
    interest()
        .read()
        .with_fd(kick.clone())
        .with_handler(handler)
        .register_into(&mut guest)
        .unwrap();
    ring(&kick);
    guest.run_once(NOW).unwrap();
    sleep(&guest);
    guest.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["now writable"]);
}

fn work_from_before_the_embedding_counts(build: Build) {
    let log = Log::new();
    let mut reactor = build().build().unwrap();
    let (closure, timer) = (log.clone(), log.clone());
    reactor.defer(move |_: Turn<'_, _>| closure.note("closure")).unwrap();
    let mut guest = reactor.embed().unwrap();
    assert!(is_readable(&guest));
    guest.run_once(NOW).unwrap();
    let mut reactor = guest.into_reactor();
    reactor.after(MS, move || timer.note("timer")).unwrap();
    noting(&mut reactor, &ready(), &log, "event");
    let mut guest = reactor.embed().unwrap();
    while log.len() < 3 {
        sleep(&guest);
        guest.run_once(NOW).unwrap();
    }
    assert_eq!(log.take(), ["closure", "event", "timer"]);
}

fn a_reactor_comes_out_again_whole(build: Build) {
    let log = Log::new();
    let mut guest = embedded(build);
    let fd = idle();
    guest.with(|reactor| noting(reactor, &fd, &log, ()));
    let mut reactor = guest.into_reactor();
    ring(&fd);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.len(), 1);
}

fn a_custom_clock_fires_the_timers(build: Build) {
    let clock = HandClock::new();
    let mut guest = build().clock(clock.clone()).build().unwrap().embed().unwrap();
    let log = Log::new();
    let noted = log.clone();
    guest.with(|reactor| reactor.after(MS, move || noted.note(())).unwrap());
    guest.run_once(NOW).unwrap();
    assert_eq!(log.len(), 0);
    clock.advance(MS);
    // The kernel measures the wait in real time. The descriptor is readable afterwards, or the
    // host's own timeout ends the sleep.
    sleep(&guest);
    guest.run_once(NOW).unwrap();
    assert_eq!(log.len(), 1);
}

fn a_new_epoll_set_inside_still_wakes_the_host(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let file = idle();
    // The number is closed while a duplicate exists, so its entry stays. When it fires, the set is
    // rebuilt.
    let number = duplicate_from(&file, own_numbers()).into_raw_fd();
    let key = interest()
        .read()
        .with_fd(Numbered(number))
        .with_handler(|| panic!("closed"))
        .register_into(&mut guest);
    close(number);
    guest.with(|reactor| reactor.delete(key.unwrap())).unwrap();
    let fd = idle();
    guest.with(|reactor| noting(reactor, &fd, &log, ()));
    ring(&file);
    for _ in 0..10 {
        guest.run_once(NOW).unwrap();
    }
    assert_eq!(guest.with(|reactor| reactor.stats().rebuilds), 1);
    drain(&file);
    assert!(!is_readable(&guest));
    ring(&fd);
    sleep(&guest);
    assert_eq!(guest.run_once(NOW).unwrap(), 1);
    assert_eq!(log.len(), 1);
}

fn another_reactor_may_be_put_in_its_place(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let fd = idle();
    let old = guest.with(|reactor| std::mem::replace(reactor, build().build().unwrap()));
    guest.with(|reactor| noting(reactor, &fd, &log, ()));
    drop(old);
    ring(&fd);
    sleep(&guest);
    assert_eq!(guest.run_once(NOW).unwrap(), 1);
}

/// Registers a guest in a host.
fn host(host: &mut impl windlass::Registrar<Ops = Reactor>, guest: Embedded) -> windlass::Key {
    let handler = |guest: &mut Embedded| _ = guest.run_once(NOW).unwrap();
    interest().read().with_fd(guest).with_handler(handler).register_into(host).unwrap()
}

fn a_guest_of_a_reactor_is_served(build: Build) {
    let mut outer = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let mut guest = embedded(build);
    guest.with(|reactor| noting(reactor, &fd, &log, "event"));
    let timer = log.clone();
    guest.with(|reactor| reactor.after(MS, move || timer.note("timer")).unwrap());
    let key = host(&mut outer, guest);
    ring(&fd);
    while log.len() < 2 {
        outer.run_once(None).unwrap();
    }
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["event", "timer"]);
    let mut reactor = outer.take_fd::<Embedded>(key).unwrap().into_reactor();
    ring(&fd);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
}

fn a_guest_whose_handler_panics_stays_with_its_host(build: Build) {
    let mut outer = build().build().unwrap();
    let log = Log::new();
    let mut guest = embedded(build);
    for _ in 0..2 {
        let log = log.clone();
        let handler = move |fd: &mut Shared| {
            drain(fd);
            log.note(());
            assert!(log.len() > 1, "guest");
        };
        let wanted = interest().read().edge_triggered();
        wanted.with_fd(ready()).with_handler(handler).register_into(&mut guest).unwrap();
    }
    host(&mut outer, guest);
    assert_eq!(panic_of(|| outer.run_once(None)), "guest");
    assert_eq!(outer.run_once(None).unwrap(), 1, "the kept event wakes the host");
    assert_eq!(log.len(), 2);
}

fn a_member_of_a_group_may_be_a_guest(build: Build) {
    let mut outer = build().build().unwrap();
    let log = Log::new();
    let fd = idle();
    let mut guest = embedded(build);
    guest.with(|reactor| noting(reactor, &fd, &log, ()));
    let handler = |turns: &mut u32, guest: &mut Embedded| {
        guest.run_once(NOW).unwrap();
        *turns += 1;
    };
    let group = Group::new(0)
        .fd(interest().read(), guest, handler)
        .register_into(&mut outer)
        .unwrap()
        .group;
    ring(&fd);
    outer.run_once(None).unwrap();
    assert_eq!((outer.group_mut(group), log.len()), (Some(&mut 1), 1));
}

// A chain of epoll sets has at most five levels (epoll_ctl(2)).
fn one_guest_in_a_guest_in_a_host_is_as_deep_as_it_goes(build: Build) {
    let log = Log::new();
    let fd = idle();
    let mut inner = embedded(build);
    inner.with(|reactor| noting(reactor, &fd, &log, ()));
    let mut middle = embedded(build);
    host(&mut middle, inner);
    let mut outer = build().build().unwrap();
    host(&mut outer, middle);
    ring(&fd);
    while log.len() == 0 {
        outer.run_once(None).unwrap();
    }
    // The host has become the fifth level, so it cannot be embedded.
    let error = outer.try_embed().unwrap_err();
    assert_eq!(error.reason, EmbedReason::Os(Errno::LOOP));
    let mut outer = error.reactor;
    ring(&fd);
    assert_eq!(outer.run_once(None).unwrap(), 1, "unharmed");
    assert_eq!(log.len(), 2);
}

fn a_guest_too_deep_is_refused_and_comes_back(build: Build) {
    let inner = embedded(build);
    let mut middle = embedded(build);
    host(&mut middle, inner);
    let mut outer = embedded(build);
    let registration = interest()
        .read()
        .with_fd(middle)
        .with_handler(|guest: &mut Embedded| _ = guest.run_once(NOW));
    let error = registration.try_register_into(&mut outer).unwrap_err();
    assert_eq!(error.reason, AddReason::NestedTooDeep);
    let (_, mut middle, _) = error.subscriber.into_parts();
    assert_eq!(middle.run_once(NOW).unwrap(), 0, "unharmed");
}

fn its_descriptor_is_one_like_any_other(build: Build) {
    let guest = embedded(build);
    assert!(rustix::io::fcntl_getfd(guest.as_fd()).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert!(format!("{guest:?}").contains("Embedded"));
}

// The documentation of `Backend` says which backends can be embedded.
fn a_backend_whose_wait_has_no_descriptor_is_not_embedded(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    noting(&mut reactor, &ready(), &log, "event");
    let is_refused = reactor.backend() == Backend::Poll;
    match reactor.try_embed() {
        Ok(mut guest) => {
            assert!(!is_refused);
            assert_eq!(guest.run_once(NOW).unwrap(), 1);
        }
        Err(mut error) => {
            assert!(is_refused, "{error}");
            assert_eq!(error.reason, EmbedReason::Unsupported);
            assert_eq!(error.to_string(), "the reactor's backend cannot be embedded");
            assert_eq!(error.reactor.run_once(NOW).unwrap(), 1, "unharmed");
        }
    }
    assert_eq!(log.take(), ["event"]);
}

fn a_reactor_that_cannot_be_embedded_is_not_put_in_the_place_of_one_that_was(build: Build) {
    let mut guest = Reactor::builder().backend(Backend::Epoll).build().unwrap().embed().unwrap();
    let log = Log::new();
    guest.with(|reactor| {
        *reactor = build().build().unwrap();
        noting(reactor, &ready(), &log, "event");
    });
    assert!(is_readable(&guest), "something is due: an event, or trouble");
    let done = guest.run_once(NOW).map_err(|e| e.raw_os_error());
    let is_refused = guest.with(|reactor| reactor.backend()) == Backend::Poll;
    assert_eq!(done, if is_refused { Err(Some(libc::EOPNOTSUPP)) } else { Ok(1) });
    assert_eq!(log.take(), ["event"], "the turn was run");
    assert_eq!(is_readable(&guest), is_refused, "trouble stays");
}

scenarios! {
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_backend_whose_wait_has_no_descriptor_is_not_embedded,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_reactor_that_cannot_be_embedded_is_not_put_in_the_place_of_one_that_was,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    an_event_makes_it_readable_until_it_is_handled
        except [poll "a wait of poll(2) has no descriptor"],
    a_kick_wakes_the_host except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_timer_wakes_the_host except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_repeated_timer_wakes_the_host_again_and_again
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_timer_that_is_due_already_makes_it_readable
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_deferred_closure_makes_it_readable except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    work_left_over_by_a_turn_makes_it_readable except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_kept_event_makes_it_readable except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_destructor_left_behind_makes_it_readable except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_stop_from_anywhere_makes_it_readable except [poll "a wait of poll(2) has no descriptor"],
    a_post_wakes_the_host except [poll "a wait of poll(2) has no descriptor"],
    calls_left_over_by_a_turn_make_it_readable except [poll "a wait of poll(2) has no descriptor"],
    no_post_is_lost_between_the_guests_turn_and_the_hosts_sleep
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_merged_change_is_in_force_for_the_host except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    work_from_before_the_embedding_counts except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_reactor_comes_out_again_whole except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_custom_clock_fires_the_timers except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_new_epoll_set_inside_still_wakes_the_host except [
        poll "a wait of poll(2) has no descriptor",
        uring "a ring has no stale entries, so nothing is rebuilt"
    ],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    another_reactor_may_be_put_in_its_place except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_guest_of_a_reactor_is_served except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_guest_whose_handler_panics_stays_with_its_host
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_member_of_a_group_may_be_a_guest except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    one_guest_in_a_guest_in_a_host_is_as_deep_as_it_goes
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_guest_too_deep_is_refused_and_comes_back except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    its_descriptor_is_one_like_any_other except [poll "a wait of poll(2) has no descriptor"],
}
