//! The builder: limits that are rejected, and what the reactor reports about itself.

use std::{io, time::Duration};

use windlass::{Backend, BuildError, Builder, Capacity, Reactor};

use crate::Build;

fn each_capacity_of_zero_is_an_error(build: Build) {
    let zero = [
        (build().events_per_turn(0), Capacity::EventsPerTurn),
        (build().timers_per_turn(0), Capacity::TimersPerTurn),
        (build().deferred_per_turn(0), Capacity::DeferredPerTurn),
        (build().calls_per_turn(0), Capacity::CallsPerTurn),
        (build().remote_max(0), Capacity::RemoteMax),
        (build().subscribers_max(0), Capacity::SubscribersMax),
    ];
    for (builder, capacity) in zero {
        let error = builder.build().unwrap_err();
        assert_eq!(error, BuildError::ZeroCapacity(capacity));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        assert!(!error.to_string().is_empty());
    }
}

fn capacities_beyond_what_a_key_or_the_kernel_takes_are_errors(build: Build) {
    let large = [
        (build().events_per_turn(usize::MAX), Capacity::EventsPerTurn),
        (build().subscribers_max(usize::MAX), Capacity::SubscribersMax),
        (build().timers_max(usize::MAX), Capacity::TimersMax),
    ];
    for (builder, capacity) in large {
        let error = builder.build().unwrap_err();
        assert_eq!(error, BuildError::CapacityTooLarge(capacity));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
    }
    build()
        .deferred_max(usize::MAX)
        .quarantine_max(usize::MAX)
        .build()
        .expect("these need no room of their own");
}

/// In other builds the tests of each backend show that it works.
#[cfg(not(feature = "uring"))]
#[test]
fn a_ring_that_is_not_compiled_is_an_error_that_names_the_feature() {
    let error = Reactor::builder().backend(Backend::Uring).build().unwrap_err();
    assert_eq!(error, BuildError::Ring(windlass::RingError::NotCompiled));
    assert!(error.to_string().contains("enable the feature `uring`"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Unsupported);
    assert_eq!(Reactor::new().unwrap().backend(), Backend::Epoll);
}

/// Also where rings are forbidden, and in builds without them.
#[test]
fn a_preferred_ring_is_taken_if_it_can_be_had_and_otherwise_the_reason_is_told() {
    let expected = match Reactor::builder().backend(Backend::Uring).build() {
        Ok(_) => (Backend::Uring, None),
        Err(BuildError::Ring(error)) => (Backend::Epoll, Some(error)),
        Err(error) => panic!("{error}"),
    };
    let mut reactor = Reactor::builder().backend(Backend::UringOrEpoll).build().unwrap();
    let stats = reactor.stats();
    assert_eq!((stats.backend, stats.ring_error), expected);
    assert_eq!(reactor.backend(), stats.backend);
    let log = crate::bed::Log::new();
    let fd = crate::bed::ready();
    crate::bed::noting(&mut reactor, &fd, &log, ());
    assert_eq!(reactor.run_once(None).unwrap(), 1);
}

fn the_smallest_capacities_do(build: Build) {
    let builder =
        build().events_per_turn(1).timers_per_turn(1).deferred_per_turn(1).subscribers_max(1);
    let mut reactor = builder.timers_max(1).deferred_max(1).quarantine_max(0).build().unwrap();
    let log = crate::bed::Log::new();
    crate::bed::noting(&mut reactor, &crate::bed::ready(), &log, "event");
    let (timer, closure) = (log.clone(), log.clone());
    reactor.after(Duration::ZERO, move || timer.note("timer")).unwrap();
    reactor.defer(move |_: windlass::Turn<'_, _>| closure.note("closure")).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["closure", "event", "timer"]);
}

fn a_reactor_says_what_it_was_built_with(build: Build) {
    let reactor = build().build().unwrap();
    assert_eq!(reactor.backend(), reactor.stats().backend);
    assert_ne!(reactor.backend(), Backend::Auto, "what is at work, not what was asked for");
    assert_ne!(reactor.backend().to_string(), "");
    assert!(format!("{reactor:?}").contains("subscribers: 0"), "{reactor:?}");
    assert!(format!("{:?}", build()).contains("events_per_turn"));
    assert!(format!("{:?}", build()).contains("napi: None"));
}

fn a_reactor_may_be_moved_between_turns(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = crate::bed::Log::new();
    let fd = crate::bed::ready();
    crate::bed::noting(&mut reactor, &fd, &log, ());
    let mut boxed: Box<Reactor> = Box::new(reactor);
    assert_eq!(boxed.run_once(None).unwrap(), 1);
    let mut moved = *boxed;
    crate::bed::ring(&fd);
    assert_eq!(moved.run_once(None).unwrap(), 1);
}

/// In threads of their own, because the slack belongs to the thread.
fn the_slack_of_timers_is_that_of_the_thread_and_stays(build: Build) {
    let slack = || rustix::thread::current_timer_slack().unwrap();
    let of_reactor = |builder: fn(Build) -> Builder| {
        let run = move || {
            let before = slack();
            let reactor = builder(build).build().unwrap();
            let during = slack();
            drop(reactor);
            (before, during, slack())
        };
        std::thread::spawn(run).join().unwrap()
    };
    let ns = Duration::from_nanos;
    let (before, during, after) = of_reactor(|build| build());
    assert_eq!((during, after), (before, before), "unchanged by default");
    let micro: fn(Build) -> Builder = |build| build().timer_slack(Duration::from_micros(7));
    let (_, during, after) = of_reactor(micro);
    assert_eq!((during, after), (7000, 7000));
    assert_eq!(of_reactor(|build| build().timer_slack(Duration::ZERO)).1, 1);
    assert_eq!(of_reactor(|build| build().timer_slack(Duration::MAX)).1, 1_000_000_000);
    let error = build().timer_slack(ns(5)).timers_per_turn(0).build().unwrap_err();
    assert_eq!((error, slack() == 5), (BuildError::ZeroCapacity(Capacity::TimersPerTurn), false));
}

scenarios! {
    the_slack_of_timers_is_that_of_the_thread_and_stays,
    each_capacity_of_zero_is_an_error,
    capacities_beyond_what_a_key_or_the_kernel_takes_are_errors,
    the_smallest_capacities_do,
    a_reactor_says_what_it_was_built_with,
    a_reactor_may_be_moved_between_turns,
}

/// Not a scenario, because it leaves the choice of backend to the builder.
#[test]
fn auto_and_the_default_are_epoll_and_a_ring_is_chosen_by_name_alone() {
    for reactor in
        [Reactor::builder().backend(Backend::Auto).build().unwrap(), Reactor::new().unwrap()]
    {
        assert_eq!((reactor.backend(), reactor.stats().backend), (Backend::Epoll, Backend::Epoll));
    }
    assert_eq!((Backend::default(), Backend::Epoll.to_string().as_str()), (Backend::Auto, "epoll"));
}
