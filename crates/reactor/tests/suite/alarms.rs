//! Timers beside turns that do something else. After some of these the reactor arms its alarm, and
//! looks at the clock no more (`timing/alarm.rs`). The tests run with the system's clock, because
//! a custom one has no alarm, and check lower bounds only.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Key, Reactor};

use crate::{
    Build,
    bed::{NOW, readable, ready},
};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// More turns than the reactor makes before it arms its alarm.
fn turn_beside(reactor: &mut Reactor) {
    for _ in 0..40 {
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    }
}

/// Adds a descriptor that is ready all the time.
fn add_ready(reactor: &mut Reactor) {
    readable().with_fd(ready()).with_handler(|| {}).register_into(reactor).unwrap();
}

fn fired(reactor: &Reactor) -> u64 {
    reactor.stats().timers_fired
}

/// Starts a timer that must not be early.
fn start(reactor: &mut Reactor, delay: Duration) -> Key {
    let begin = Instant::now();
    reactor.after(delay, move || assert!(begin.elapsed() >= delay, "{delay:?}")).unwrap()
}

fn a_far_timer_fires_in_the_turn_that_waits_for_it(build: Build) {
    for limit in [None, Some(HOUR)] {
        let mut reactor = build().build().unwrap();
        start(&mut reactor, 30 * MS);
        turn_beside(&mut reactor);
        // A slow machine may have been beside it for long enough.
        if fired(&reactor) == 0 {
            let turns = reactor.stats().turns;
            assert_eq!(reactor.run_once(limit).unwrap(), 0);
            assert_eq!((fired(&reactor), reactor.stats().turns), (1, turns + 1), "{limit:?}");
        }
        assert_eq!(reactor.stats().events, 0, "the alarm is no event");
    }
}

fn a_far_timer_fires_in_a_turn_that_does_not_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    start(&mut reactor, 5 * MS);
    while fired(&reactor) == 0 {
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    }
    turn_beside(&mut reactor);
    assert_eq!(fired(&reactor), 1);
}

fn a_timer_before_the_far_one_fires_first(build: Build) {
    let mut reactor = build().build().unwrap();
    let far = reactor.after(HOUR, || {}).unwrap();
    turn_beside(&mut reactor);
    start(&mut reactor, 3 * MS);
    reactor.run_once(None).unwrap();
    assert_eq!(fired(&reactor), 1);
    turn_beside(&mut reactor);
    assert_eq!(fired(&reactor), 1);
    reactor.reset(far, 3 * MS).unwrap();
    reactor.run_once(None).unwrap();
    assert_eq!(fired(&reactor), 2, "reset to an earlier time");
}

fn a_far_timer_that_is_cancelled_or_reset_does_not_end_the_wait(build: Build) {
    for is_reset in [false, true] {
        for limit in [Some(25 * MS), None] {
            let mut reactor = build().build().unwrap();
            let gone = start(&mut reactor, 15 * MS);
            turn_beside(&mut reactor);
            if fired(&reactor) > 0 {
                continue;
            }
            if is_reset {
                reactor.reset(gone, HOUR).unwrap();
            } else {
                reactor.cancel(gone).unwrap();
            }
            let begin = Instant::now();
            if limit.is_none() {
                start(&mut reactor, 25 * MS);
            }
            assert_eq!(reactor.run_once(limit).unwrap(), 0);
            assert!(begin.elapsed() >= 25 * MS, "{limit:?}");
            assert_eq!(fired(&reactor), u64::from(limit.is_none()));
        }
    }
}

fn a_far_timer_fires_beside_a_descriptor_that_is_always_ready(build: Build) {
    let mut reactor = build().build().unwrap();
    add_ready(&mut reactor);
    start(&mut reactor, 5 * MS);
    while fired(&reactor) == 0 {
        assert!(reactor.run_once(None).unwrap() <= 1);
    }
    assert_eq!(reactor.stats().timers, 0);
}

fn a_due_timer_does_not_wait_for_all_that_is_ready(build: Build) {
    // An alarm that is armed before a batch was full rings behind all that is ready.
    let most = if cfg!(windlass_force_alarm) { 103 } else { 3 };
    // The kernel of a busy machine may ring late, which is no fault of the reactor's: a timer that
    // waits its turn is late in every round.
    let rounds = (0..50).map(|_| turns_after_the_deadline(build)).take_while(|&late| late > most);
    let late: Vec<u32> = rounds.collect();
    assert!(late.len() < 50, "turns that began after the deadline, by round: {late:?}");
}

/// How many turns begin after a timer's deadline and before it fires, beside a hundred descriptors
/// that are ready all the time, with one event a turn.
fn turns_after_the_deadline(build: Build) -> u32 {
    let mut reactor = build().events_per_turn(1).build().unwrap();
    for _ in 0..100 {
        add_ready(&mut reactor);
    }
    let deadline = Instant::now() + 5 * MS;
    reactor.at(deadline, || {}).unwrap();
    let mut late = 0;
    while fired(&reactor) == 0 {
        late += u32::from(Instant::now() >= deadline);
        reactor.run_once(None).unwrap();
    }
    late
}

fn an_embedded_reactor_tells_its_host_of_a_far_timer(build: Build) {
    let Ok(mut guest) = build().build().unwrap().embed() else { return };
    guest.with(|guest| start(guest, 20 * MS));
    let mut host = Reactor::new().unwrap();
    for _ in 0..40 {
        guest.run_once(NOW).unwrap();
    }
    let stop = host.stop_handle();
    let is_over = move |guest: &mut windlass::Embedded| {
        guest.run_once(NOW).unwrap();
        if guest.with(|guest| fired(guest)) == 1 {
            stop.stop();
        }
    };
    if guest.with(|guest| fired(guest)) == 0 {
        windlass::interest()
            .read()
            .with_fd(guest)
            .with_handler(is_over)
            .register_into(&mut host)
            .unwrap();
        host.run().unwrap();
    }
}

/// Random programs. Each timer fires once, never early, and not after it was cancelled.
fn random_timers_are_neither_early_nor_lost(build: Build) {
    for seed in 0..8_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut dice = |sides: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % sides
        };
        let mut reactor = build().build().unwrap();
        let mut timers: Vec<(Key, Rc<Cell<Option<Instant>>>)> = Vec::new();
        let mut expected = 0;
        for _ in 0..60 {
            let delay = Duration::from_micros(dice(3) * 500 + dice(4) * 7);
            match dice(6) {
                0 | 1 => {
                    let due = Rc::new(Cell::new(Some(Instant::now() + delay)));
                    let own = Rc::clone(&due);
                    let call = move || {
                        let due = own.take().expect("it fires once, unless it was cancelled");
                        assert!(Instant::now() >= due, "seed {seed}: early");
                    };
                    timers.push((reactor.after(delay, call).unwrap(), due));
                    expected += 1;
                }
                2 if !timers.is_empty() => {
                    let at = dice(timers.len() as u64) as usize;
                    let (key, due) = &timers[at];
                    let deadline = Instant::now() + delay;
                    if reactor.reset(*key, delay).is_ok() {
                        due.set(Some(deadline));
                    }
                }
                3 if !timers.is_empty() => {
                    let at = dice(timers.len() as u64) as usize;
                    let (key, due) = timers.swap_remove(at);
                    if reactor.cancel(key).is_ok() {
                        due.set(None);
                        expected -= 1;
                    }
                }
                4 if reactor.stats().timers > 0 => _ = reactor.run_once(None).unwrap(),
                _ => turn_beside(&mut reactor),
            }
        }
        while reactor.stats().timers > 0 {
            reactor.run_once(None).unwrap();
        }
        assert_eq!(fired(&reactor), expected, "seed {seed}");
    }
}

scenarios! {
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_far_timer_fires_in_the_turn_that_waits_for_it,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_far_timer_fires_in_a_turn_that_does_not_wait,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_timer_before_the_far_one_fires_first,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_far_timer_that_is_cancelled_or_reset_does_not_end_the_wait,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_far_timer_fires_beside_a_descriptor_that_is_always_ready,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    a_due_timer_does_not_wait_for_all_that_is_ready,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    an_embedded_reactor_tells_its_host_of_a_far_timer,
    #[cfg_attr(miri, ignore = "Miri has no timerfd")]
    random_timers_are_neither_early_nor_lost,
}
