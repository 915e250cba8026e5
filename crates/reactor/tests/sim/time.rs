//! Virtual time: timers, waits, posts, closures and hooks.

use std::{
    cell::Cell,
    os::fd::{AsFd as _, AsRawFd as _},
    rc::Rc,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use windlass::{
    Errno, NextTurn, Reactor, Turn,
    sim::{Running, ThreadStep},
    stream::Listener,
};

use crate::tools::{Log, address, calm};

const HOUR: Duration = Duration::from_secs(3600);
const NOW: Duration = Duration::ZERO;

#[test]
fn a_year_of_timers_takes_no_time() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (begin, log) = (sim.now(), Log::new());
    for hours in [3, 1, 24 * 365, 2] {
        let log = log.clone();
        let note = move |mut turn: Turn<'_>| log.note(turn.now() - begin);
        reactor.after_with(HOUR * hours, note).unwrap();
    }
    let real = Instant::now();
    while reactor.stats().timers > 0 {
        reactor.run_once(None).unwrap();
    }
    assert!(real.elapsed() < Duration::from_secs(60));
    let fired = log.take();
    for (fired, hours) in fired.iter().zip([1, 2, 3, 24 * 365]) {
        let late = fired.checked_sub(HOUR * hours).expect("not early");
        assert!(late <= Duration::from_micros(1), "{late:?}");
    }
    assert_eq!(fired.len(), 4);
}

#[test]
fn a_wait_with_a_limit_takes_exactly_that() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let begin = sim.elapsed();
    assert_eq!(reactor.run_once(HOUR).unwrap(), 0);
    assert_eq!(sim.elapsed() - begin, HOUR);
}

#[test]
fn a_wait_that_finds_nothing_takes_a_microsecond() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let is_due = Rc::new(Cell::new(false));
    let seen = Rc::clone(&is_due);
    reactor.after(Duration::from_millis(1), move || seen.set(true)).unwrap();
    let mut turns = 0;
    while !is_due.get() {
        reactor.run_once(NOW).unwrap();
        turns += 1;
    }
    assert!((900..=1_100).contains(&turns), "{turns} turns in a millisecond");
}

#[test]
fn nothing_that_can_happen_is_an_error() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let error = reactor.run().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::DEADLK.raw_os_error()));
    assert!(sim.trace().to_string().contains("nothing can happen any more"));
}

#[test]
fn a_stop_ends_the_run_also_from_a_simulated_thread() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let stop = reactor.stop_handle();
    let mut steps = 0;
    let host = sim.host([10, 0, 0, 1].into());
    sim.thread(&host, move || {
        steps += 1;
        match steps {
            1 => ThreadStep::After(HOUR),
            _ => {
                stop.stop();
                ThreadStep::End
            }
        }
    });
    reactor.run().unwrap();
    assert!(sim.elapsed() >= HOUR);
    reactor.stop_handle().stop();
    reactor.run().unwrap();
}

#[test]
fn posts_of_simulated_threads_run_in_order() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let host = sim.host([10, 0, 0, 1].into());
    let shared = Arc::new(Mutex::new(Vec::new()));
    for name in ["a", "b"] {
        let (remote, shared) = (reactor.remote(), Arc::clone(&shared));
        let mut count = 0;
        sim.thread(&host, move || {
            if count == 10 {
                return ThreadStep::End;
            }
            let (shared, number) = (Arc::clone(&shared), count);
            let post = move |mut turn: Turn<'_>| {
                let mut shared = shared.lock().unwrap();
                shared.push((name, number));
                if shared.len() == 20 {
                    turn.stop();
                }
            };
            remote.try_post(post).map_err(drop).unwrap();
            count += 1;
            if count % 3 == 0 { ThreadStep::After(HOUR) } else { ThreadStep::Again }
        });
    }
    reactor.run().unwrap();
    let shared = shared.lock().unwrap();
    for name in ["a", "b"] {
        let numbers: Vec<u32> =
            shared.iter().filter(|(by, _)| *by == name).map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn closures_hooks_and_drivers_run_as_elsewhere() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    let (before, after, deferred) = (log.clone(), log.clone(), log.clone());
    reactor.before_wait(move |_| before.note("before")).unwrap();
    reactor.after_turn(move |_| after.note("after")).unwrap();
    reactor.defer(move |_| deferred.note("deferred")).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["before", "deferred", "after"]);
    let (begin, mut rounds) = (sim.now(), 0);
    reactor
        .run_with(&mut |mut turn: Turn<'_>| {
            rounds += 1;
            match rounds {
                1 => NextTurn::Until(begin + HOUR),
                2 if turn.now() >= begin + HOUR => NextTurn::Again,
                2 => panic!("early"),
                _ => NextTurn::Stop,
            }
        })
        .unwrap();
    assert_eq!(rounds, 3);
}

#[test]
fn a_reactor_of_the_simulation_runs_beside_the_tests_own() {
    let sim = calm();
    let log = Log::new();
    let mut own = sim.reactor().unwrap();
    let mut other: Reactor = sim.reactor().unwrap();
    let mut beats = 0;
    let (noted, stop) = (log.clone(), own.stop_handle());
    other
        .every_with(HOUR, move |mut turn| {
            beats += 1;
            noted.note(beats);
            if beats == 3 {
                stop.stop();
                turn.stop();
            }
        })
        .unwrap();
    let running = sim.spawn(other);
    assert!(!running.has_ended());
    own.run().unwrap();
    sim.run_until(|| running.has_ended()).unwrap();
    assert!(running.take_result().unwrap().is_ok());
    assert_eq!(log.take(), [1, 2, 3]);
}

#[test]
fn a_driver_of_a_spawned_reactor_is_asked_again_when_it_says() {
    let sim = calm();
    let reactor = sim.reactor().unwrap();
    let log = Log::new();
    let (noted, begin) = (log.clone(), sim.now());
    let running = sim.spawn_with(reactor, move |mut turn: Turn<'_>| {
        let passed = turn.now() - begin;
        noted.note(passed);
        if passed >= HOUR * 2 { NextTurn::Stop } else { NextTurn::Until(begin + passed + HOUR) }
    });
    sim.run_until(|| running.has_ended()).unwrap();
    assert!((3..=6).contains(&log.len()), "{:?}", log.take());
}

#[test]
fn timers_of_a_spawned_reactor_are_punctual() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (log, begin) = (Log::new(), sim.now());
    for hours in [2, 1, 5] {
        let noted = log.clone();
        let note = move |mut turn: Turn<'_>| noted.note(turn.now() - begin);
        reactor.after_with(HOUR * hours, note).unwrap();
    }
    sim.spawn(reactor);
    sim.run_until(|| log.len() == 3).unwrap();
    for (fired, hours) in log.take().into_iter().zip([1, 2, 5]) {
        let late = fired.checked_sub(HOUR * hours).expect("not early");
        assert!(late <= Duration::from_micros(2), "{late:?}");
    }
}

#[test]
fn a_post_of_a_spawned_reactor_to_itself_is_not_lost() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let remote = reactor.remote();
    // The last step of a turn, after the inbox was checked.
    let mut is_posted = false;
    reactor
        .after_turn(move |_| {
            if !std::mem::replace(&mut is_posted, true) {
                remote.try_post(|mut turn: Turn<'_>| turn.stop()).map_err(drop).unwrap();
            }
        })
        .unwrap();
    let running = sim.spawn(reactor);
    sim.run_until(|| running.has_ended()).unwrap();
    assert!(sim.elapsed() < Duration::from_millis(1));
}

#[test]
fn a_program_of_the_simulation_cannot_wait() {
    let sim = calm();
    let mut inner = sim.reactor().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let host = sim.host([10, 0, 0, 1].into());
    // A wait of the test's own, which `run_for` has begun already.
    let listener = sim.listen(address("10.0.0.9:80")).unwrap();
    sim.thread(&host, move || {
        noted.note(inner.run().unwrap_err().raw_os_error());
        noted.note(listener.accept().unwrap_err().raw_os_error());
        ThreadStep::End
    });
    sim.run_for(HOUR).unwrap();
    assert_eq!(log.take(), [Some(Errno::DEADLK.raw_os_error()); 2]);
    assert_eq!(sim.elapsed(), HOUR);
}

#[test]
fn the_panic_of_a_handler_leaves_the_simulation_usable() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let mut count = 0;
    reactor
        .every_with(HOUR, move |mut turn| {
            count += 1;
            noted.note(count);
            match count {
                1 => panic!("planned"),
                2 => turn.stop(),
                _ => unreachable!(),
            }
        })
        .unwrap();
    let running = sim.spawn(reactor);
    let run = std::panic::AssertUnwindSafe(|| sim.run_until(|| running.has_ended()));
    std::panic::catch_unwind(run).unwrap_err();
    sim.run_until(|| running.has_ended()).unwrap();
    assert_eq!(log.take(), [1, 2]);
    running.take_result().expect("it has run").unwrap();
    assert!(running.has_ended(), "also without its result");
}

/// Panics when it is dropped.
struct Falls(Log<&'static str>, &'static str);

impl Drop for Falls {
    fn drop(&mut self) {
        self.0.note(self.1);
        panic!("planned: {}", self.1);
    }
}

#[test]
fn every_program_is_dropped_at_the_end_although_destructors_panic() {
    let sim = calm();
    let log = Log::new();
    let running = ["one", "two"].map(|name| {
        let mut reactor = sim.reactor().unwrap();
        let falls = Falls(log.clone(), name);
        reactor.every(HOUR, move || _ = &falls).unwrap();
        sim.spawn(reactor)
    });
    let _host_that_is_kept = sim.host([10, 0, 0, 1].into());
    let end = std::panic::AssertUnwindSafe(|| drop(sim));
    std::panic::catch_unwind(end).unwrap_err();
    assert_eq!(log.take(), ["one", "two"]);
    assert!(running.iter().all(Running::has_ended));
    assert!(
        Listener::tcp(address("127.0.0.1:0"))
            .is_ok_and(|listener| listener.as_fd().as_raw_fd() > 2)
    );
}

#[test]
fn the_panic_of_a_program_leaves_what_the_test_waits_for_usable() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    reactor.after(HOUR, || panic!("planned")).unwrap();
    let _running = sim.spawn(reactor);
    let listener = sim.listen(address("10.0.0.9:80")).unwrap();
    let accept = std::panic::AssertUnwindSafe(|| listener.accept());
    std::panic::catch_unwind(accept).unwrap_err();
    let error = listener.accept().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::DEADLK.raw_os_error()));
}
