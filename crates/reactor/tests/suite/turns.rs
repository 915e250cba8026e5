//! The costs and counts of a turn: clock readings, statistics, busy polling, the watchdog.

use std::{
    thread,
    time::{Duration, Instant},
};

use windlass::{Reactor, Turn};

use crate::{
    Build,
    bed::{
        HandClock, Log, NOW, Shared, drain, idle, noting, panic_of, readable, ready, ring, sendable,
    },
};

fn no_clock_is_read_in_a_turn_without_timer_and_watchdog(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let fd = idle();
    noting(&mut reactor, &fd, &log, ());
    clock.reads();
    for _ in 0..3 {
        ring(&fd);
        reactor.run_once(None).unwrap();
        ring(&fd);
        reactor.run_once(NOW).unwrap();
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!((log.len(), clock.reads()), (6, 0));
    // The same if handlers register, defer and delete.
    let handler = |fd: &mut Shared, event: windlass::Event, mut turn: Turn<'_, Reactor>| {
        drain(fd);
        turn.defer(|_: Turn<'_, _>| {}).unwrap();
        turn.delete(event.key()).unwrap();
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    reactor.run_once(None).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(clock.reads(), 0);
}

fn a_turn_with_timers_reads_the_clock_a_few_times_however_many_there_are(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    for _ in 0..100 {
        reactor.after(NOW, |mut turn: Turn<'_, _>| _ = turn.now()).unwrap();
    }
    clock.reads();
    reactor.run_once(None).unwrap();
    assert!((1..=4).contains(&clock.reads()));
    reactor.run_once(NOW).unwrap();
    assert_eq!(clock.reads(), 0, "they have all fired");
}

/// The clock is not custom, so the turns beside the timer are short.
fn a_turn_beside_a_waiting_timer_does_all_that_its_handlers_ask_for(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let remote = reactor.remote();
    let far = log.clone();
    let far = reactor.after(Duration::from_secs(3600), move || far.note("far")).unwrap();
    let fd = ready();
    let (noted, posts) = (log.clone(), remote.clone());
    let handler = move |event: windlass::Event, mut turn: Turn<'_>| {
        noted.note("event");
        let (closure, timer) = (noted.clone(), noted.clone());
        assert!(turn.defer(move |_: Turn<'_>| closure.note("closure")).is_ok());
        turn.after(NOW, move || timer.note("timer")).unwrap();
        assert!(posts.try_post(|_: Turn<'_>| {}).is_ok());
        turn.delete(event.key()).unwrap();
    };
    readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    while log.len() < 3 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["event", "closure", "timer"]);
    while reactor.stats().calls < 1 {
        reactor.run_once(None).unwrap();
    }
    // The wait ends for the timer, which fires in the same call.
    let (noted, before) = (log.clone(), reactor.stats().turns);
    reactor.after(Duration::from_millis(2), move || noted.note("soon")).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert_eq!((log.take(), reactor.stats().turns), (vec!["soon"], before + 1));
    reactor.cancel(far).unwrap();
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len(), reactor.stats().timers), (0, 0, 0));
}

/// A descriptor is ready in every turn, so no wait ends for the timer.
fn a_timer_fires_at_most_one_turn_after_it_is_due_beside_events(build: Build) {
    let mut reactor = build().build().unwrap();
    readable().with_fd(ready()).with_handler(|| {}).register_into(&mut reactor).unwrap();
    for timeout in [None, Some(NOW)] {
        let log = Log::new();
        let due = std::time::Instant::now() + Duration::from_millis(1);
        let noted = log.clone();
        reactor.at(due, move || noted.note(std::time::Instant::now())).unwrap();
        let mut turns_late = 0;
        while log.len() == 0 {
            turns_late += u32::from(std::time::Instant::now() > due + Duration::from_micros(1));
            assert_eq!(reactor.run_once(timeout).unwrap(), 1);
        }
        assert!(log.take()[0] >= due && turns_late <= 2, "{turns_late}");
    }
}

/// The clock is not custom, so the turns in which the timers are due are short.
fn a_short_turn_fires_so_many_timers_and_the_rest_go_first_in_the_next(build: Build) {
    let mut reactor = build().timers_per_turn(3).build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move || noted.note(100);
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    for place in 0..8 {
        let noted = log.clone();
        reactor.after(NOW, move || noted.note(place)).unwrap();
    }
    for expected in [vec![100, 0, 1, 2], vec![3, 4, 5, 100], vec![6, 7, 100], vec![100]] {
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        assert_eq!(log.take(), expected);
    }
    assert_eq!(reactor.stats().timers_fired, 8);
}

// Rule 8.
fn a_panic_in_a_short_turn_leaves_the_due_timers_to_the_next(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move || {
        noted.note("event");
        assert!(noted.len() > 1, "the first call");
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    let noted = log.clone();
    reactor.after(NOW, move || noted.note("timer")).unwrap();
    panic_of(|| reactor.run_once(None));
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), ["event", "timer", "event"]);
}

// Rule 9. The handlers start timers that are due at once, and end the last one.
fn timers_started_in_a_short_turn_fire_in_the_next(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (noted, inner) = (log.clone(), log.clone());
    let handler = move |mut turn: Turn<'_>| {
        noted.note("outer");
        let inner = inner.clone();
        turn.after(NOW, move || inner.note("inner")).unwrap();
        let gone = turn.after(NOW, || unreachable!("it was cancelled")).unwrap();
        turn.cancel(gone).unwrap();
    };
    reactor.after(NOW, handler).unwrap();
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert_eq!(log.take(), ["outer"]);
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert_eq!((log.take(), reactor.stats().timers), (vec!["inner"], 0));
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

/// Calls come first in a turn whose wait they end, and a due timer does not delay them.
fn calls_and_due_timers_share_short_turns(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, remote) = (Log::new(), reactor.remote());
    let noted = log.clone();
    let beat = reactor.every(Duration::from_micros(1), move || noted.note("beat")).unwrap();
    for calls in 1..=10 {
        assert!(remote.try_post(|_: Turn<'_>| {}).is_ok());
        reactor.run_once(None).unwrap();
        assert_eq!(reactor.stats().calls, calls);
        // A wake-up may be left, which ends a wait before the beat.
        while (log.len() as u64) < calls {
            reactor.run_once(None).unwrap();
        }
    }
    // Beats that were due in the turns of calls fired in them.
    assert!(reactor.stats().turns < 40, "{:?}", reactor.stats());
    reactor.cancel(beat).unwrap();
}

fn a_clock_is_read_once_for_all_who_ask_in_a_turn(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    for _ in 0..5 {
        let handler = |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
            drain(fd);
            let _ = (turn.now(), turn.now());
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    clock.reads();
    assert_eq!((reactor.run_once(None).unwrap(), clock.reads()), (5, 1));
}

fn a_clock_that_goes_back_stands_still(build: Build) {
    let start = Instant::now() + Duration::from_secs(1000);
    let readings = std::cell::Cell::new(0u32);
    let clock = move || {
        let reading = readings.replace(readings.get() + 1);
        if reading % 2 == 0 { start + Duration::from_secs(u64::from(reading)) } else { start }
    };
    let mut reactor = build().clock(clock).build().unwrap();
    let log = Log::new();
    for _ in 0..10 {
        let log = log.clone();
        reactor.defer(move |mut turn: Turn<'_, _>| log.note(turn.now())).unwrap();
        reactor.run_once(NOW).unwrap();
    }
    let times = log.take();
    assert!(times.is_sorted(), "{times:?}");
}

fn a_clock_that_panics_leaves_the_reactor_usable(build: Build) {
    let clock = HandClock::new();
    let broken = std::rc::Rc::new(std::cell::Cell::new(false));
    let (inner, is_broken) = (clock.clone(), broken.clone());
    let reading = move || {
        assert!(!is_broken.get(), "clock");
        inner.time()
    };
    let mut reactor = build().clock(reading).build().unwrap();
    let log = Log::new();
    let timer = log.clone();
    reactor.after(NOW, move || timer.note("timer")).unwrap();
    noting(&mut reactor, &ready(), &log, "event");
    broken.set(true);
    assert_eq!(panic_of(|| reactor.run_once(None)), "clock");
    broken.set(false);
    while log.len() < 2 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["event", "timer"]);
}

fn statistics_count_turns_events_timers_and_subscribers(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let start = reactor.stats();
    assert_eq!(
        (start.turns, start.events, start.timers_fired, start.wakes, start.rebuilds),
        (0, 0, 0, 0, 0)
    );
    assert_eq!((start.subscribers, start.timers, start.quarantined), (0, 0, 0));
    let (a, b) = (ready(), ready());
    let key = noting(&mut reactor, &a, &log, ());
    noting(&mut reactor, &b, &log, ());
    reactor.run_once(None).unwrap();
    reactor.run_once(NOW).unwrap();
    reactor.after(NOW, || {}).unwrap();
    reactor.after(Duration::from_secs(3600), || {}).unwrap();
    while reactor.stats().timers_fired == 0 {
        reactor.run_once(None).unwrap();
    }
    reactor.delete(key).unwrap();
    let stats = reactor.stats();
    assert!(stats.turns >= 3);
    assert_eq!((stats.events, stats.timers_fired, stats.subscribers, stats.timers), (2, 1, 1, 1));
    assert_eq!((stats.handler_max, stats.lag_max), (NOW, NOW), "the watchdog is off");
    reactor.stop_handle().stop();
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert_eq!(reactor.stats().wakes, 1);
}

fn a_handler_reads_the_statistics_too(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut Shared, turn: Turn<'_, Reactor>| {
        drain(fd);
        noted.note((turn.stats().turns, turn.stats().subscribers));
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(log.take(), [(1, 1)]);
}

fn the_watchdog_tells_the_longest_handler_and_the_lag(build: Build) {
    const BUSY: Duration = Duration::from_millis(2);
    let mut reactor = build().watchdog(true).build().unwrap();
    for _ in 0..2 {
        let handler = |fd: &mut Shared| {
            drain(fd);
            let start = Instant::now();
            while start.elapsed() < BUSY {}
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    reactor.run_once(None).unwrap();
    let stats = reactor.stats();
    assert!(stats.handler_max >= BUSY, "{stats:?}");
    assert!(stats.lag_max >= BUSY, "the second handler waited for the first: {stats:?}");
}

fn the_watchdog_times_timers_and_closures(build: Build) {
    const BUSY: Duration = Duration::from_millis(1);
    fn busy(times: u32) {
        let start = Instant::now();
        while start.elapsed() < BUSY * times {}
    }
    let mut reactor = build().watchdog(true).build().unwrap();
    reactor.defer(|_: Turn<'_, _>| busy(1)).unwrap();
    reactor.run_once(None).unwrap();
    assert!(reactor.stats().handler_max >= BUSY);
    reactor.after(NOW, || busy(2)).unwrap();
    while reactor.stats().timers_fired == 0 {
        reactor.run_once(None).unwrap();
    }
    assert!(reactor.stats().handler_max >= 2 * BUSY);
}

fn the_watchdog_survives_a_panic_and_a_deletion(build: Build) {
    let mut reactor = build().watchdog(true).build().unwrap();
    let handler = |event: windlass::Event, mut turn: Turn<'_, Reactor>| {
        turn.delete(event.key()).unwrap();
        panic!("handler");
    };
    for _ in 0..2 {
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
    assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
    assert_eq!((reactor.run_once(NOW).unwrap(), reactor.stats().subscribers), (0, 0));
}

// mio #1835: busy poll.
fn a_busy_polling_reactor_sees_events_timers_and_timeouts(build: Build) {
    const SPIN: Duration = Duration::from_micros(200);
    let mut reactor = build().busy_poll(SPIN).build().unwrap();
    let log = Log::new();
    let fd = ready();
    noting(&mut reactor, &fd, &log, "event");
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    let start = Instant::now();
    assert_eq!(reactor.run_once(4 * SPIN).unwrap(), 0);
    assert!(start.elapsed() >= 4 * SPIN, "the timeout is not shortened to the spin");
    let start = Instant::now();
    assert_eq!(reactor.run_once(SPIN / 2).unwrap(), 0);
    assert!(start.elapsed() >= SPIN / 2);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    let timer = log.clone();
    reactor.after(SPIN / 4, move || timer.note("timer")).unwrap();
    while log.len() < 2 {
        assert_eq!(reactor.run_once(None).unwrap(), 0);
    }
    assert_eq!(log.take(), ["event", "timer"]);
}

/// A thread's state and its processor time in clock ticks (proc_pid_stat(5)).
fn state_and_ticks(task: &std::path::Path) -> (char, u64) {
    let stat =
        std::fs::read_to_string(std::path::Path::new("/proc").join(task).join("stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    (
        fields[0].chars().next().unwrap(),
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap(),
    )
}

/// Regression: the end of such a busy poll overflows, and was computed as its start.
fn the_longest_busy_poll_spins_until_something_comes(build: Build) {
    let mut reactor = build().busy_poll(Duration::MAX).build().unwrap();
    let remote = reactor.remote();
    let task = std::fs::read_link("/proc/thread-self").unwrap();
    let watcher = thread::spawn(move || {
        let (_, first) = state_and_ticks(&task);
        let mut asleep = 0;
        let spins = loop {
            match state_and_ticks(&task) {
                (_, ticks) if ticks >= first + 3 => break true,
                // A thread that sleeps for another reason, before the wait, does so only briefly.
                ('S', _) if asleep == 1000 => break false,
                ('S', _) => asleep += 1,
                _ => asleep = 0,
            }
            thread::yield_now();
        };
        remote.post(|_: Turn<'_>| {}).unwrap();
        spins
    });
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert!(watcher.join().unwrap(), "the loop sleeps");
    let start = Instant::now();
    let timeout = Duration::from_micros(100);
    assert_eq!(reactor.run_once(timeout).unwrap(), 0);
    assert!(start.elapsed() >= timeout, "a timeout ends the spin");
    let log = Log::new();
    let timer = log.clone();
    reactor.after(timeout, move || timer.note("timer")).unwrap();
    while log.len() == 0 {
        reactor.run_once(None).unwrap();
    }
}

fn a_turn_is_lent_and_used_again(build: Build) {
    struct Lender<'a>(Turn<'a>);
    impl Lender<'_> {
        fn turn(&mut self) -> Turn<'_> {
            self.0.reborrow()
        }
    }
    let (log, mut reactor) = (Log::new(), build().build().unwrap());
    let [first, second, third] = [(); 3].map(|()| log.clone());
    let lend = move |turn: Turn<'_>| {
        let mut lender = Lender(turn);
        assert!(lender.turn().defer(move |_: Turn<'_>| first.note("first")).is_ok());
        let mut lent = lender.turn();
        assert!(lent.reborrow().defer(move |_: Turn<'_>| second.note("second")).is_ok());
        assert!(lender.0.defer(move |_: Turn<'_>| third.note("third")).is_ok());
    };
    assert!(reactor.defer(lend).is_ok());
    for _ in 0..2 {
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!(log.take(), ["first", "second", "third"]);
}

fn a_reactor_says_whose_clock_it_goes_by(build: Build) {
    assert!(!build().build().unwrap().has_own_clock());
    let clock = HandClock::new();
    assert!(build().clock(clock).build().unwrap().has_own_clock());
}

fn a_turn_tells_its_backend_and_its_number(build: Build) {
    let (log, mut reactor) = (Log::new(), build().build().unwrap());
    let backend = reactor.backend();
    for number in 1..4 {
        for _ in 0..2 {
            let noted = log.clone();
            let call = move |turn: Turn<'_>| {
                assert_eq!((turn.backend(), turn.number()), (backend, number));
                assert_eq!(turn.stats().turns, number);
                noted.note("asked");
            };
            assert!(reactor.defer(call).is_ok());
        }
        reactor.run_once(NOW).unwrap();
    }
    assert_eq!(log.len(), 6);
}

/// Rule 9, and its enforcement: a later turn has a later time.
fn a_timer_that_a_turn_starts_waits_for_a_clock_that_stands_still(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    for _ in 0..3 {
        let noted = log.clone();
        let start = move |mut turn: Turn<'_>| {
            _ = turn.after(Duration::ZERO, move || noted.note("inside")).unwrap()
        };
        assert!(reactor.defer(start).is_ok());
        let noted = log.clone();
        reactor.after(Duration::ZERO, move || noted.note("outside")).unwrap();
        for _ in 0..3 {
            reactor.run_once(NOW).unwrap();
        }
        assert_eq!(log.take(), ["outside"], "what is started outside a turn is due in it");
        clock.advance(Duration::from_micros(1));
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.take(), ["inside"]);
    }
}

fn a_busy_polling_reactor_is_woken_in_and_after_its_spin(build: Build) {
    for spin in [Duration::from_nanos(1), Duration::from_millis(5)] {
        let mut reactor = build().busy_poll(spin).build().unwrap();
        let fd = sendable();
        let theirs = fd.clone();
        let handler = |fd: &mut std::sync::Arc<std::os::fd::OwnedFd>| _ = drain(fd);
        readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
        let writer = thread::spawn(move || ring(&theirs));
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        writer.join().unwrap();
        let stop = reactor.stop_handle();
        let stopper = thread::spawn(move || stop.stop());
        reactor.run().unwrap();
        stopper.join().unwrap();
    }
}

scenarios! {
    a_turn_is_lent_and_used_again,
    a_reactor_says_whose_clock_it_goes_by,
    a_turn_tells_its_backend_and_its_number,
    a_timer_that_a_turn_starts_waits_for_a_clock_that_stands_still,
    no_clock_is_read_in_a_turn_without_timer_and_watchdog,
    a_turn_with_timers_reads_the_clock_a_few_times_however_many_there_are,
    a_turn_beside_a_waiting_timer_does_all_that_its_handlers_ask_for,
    a_timer_fires_at_most_one_turn_after_it_is_due_beside_events,
    a_short_turn_fires_so_many_timers_and_the_rest_go_first_in_the_next,
    a_panic_in_a_short_turn_leaves_the_due_timers_to_the_next,
    timers_started_in_a_short_turn_fire_in_the_next,
    calls_and_due_timers_share_short_turns,
    a_clock_is_read_once_for_all_who_ask_in_a_turn,
    a_clock_that_goes_back_stands_still,
    a_clock_that_panics_leaves_the_reactor_usable,
    statistics_count_turns_events_timers_and_subscribers,
    a_handler_reads_the_statistics_too,
    the_watchdog_tells_the_longest_handler_and_the_lag,
    the_watchdog_times_timers_and_closures,
    the_watchdog_survives_a_panic_and_a_deletion,
    a_busy_polling_reactor_sees_events_timers_and_timeouts,
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    the_longest_busy_poll_spins_until_something_comes,
    a_busy_polling_reactor_is_woken_in_and_after_its_spin,
}
