//! Timers of groups that are paused and resumed.

use std::time::Duration;

use windlass::{Group, GroupKey, NotFound, Tick, Turn};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, Slot, slot},
};

const MS: Duration = Duration::from_millis(1);

fn timers_wait_for_the_resume(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let group = Group::new(log.clone())
        .after(2 * MS, |log: &mut Log<_>| log.note("after"))
        .every(3 * MS, |log: &mut Log<_>, tick: Tick| {
            assert_eq!(tick.missed, 0);
            log.note("every");
        })
        .after(20 * MS, |log: &mut Log<_>| log.note("late"))
        .after(2 * MS, |log: &mut Log<_>| log.note("reset"))
        .after(2 * MS, |log: &mut Log<_>| log.note("cancelled"))
        .register_into(&mut reactor)
        .unwrap();
    let (key, timers) = (group.group, group.members);
    reactor.pause_group(key).unwrap();
    clock.advance(10 * MS);
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
    reactor.cancel(timers[4]).unwrap();
    reactor.reset(timers[3], 5 * MS).unwrap();
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (0, 0));
    let noted = log.clone();
    let resume = move |mut turn: Turn<'_>| {
        turn.resume_group(key).unwrap();
        noted.note("resumed");
    };
    reactor.defer(resume).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["resumed"], "not in the same turn (rule 9)");
    clock.advance(Duration::from_nanos(1));
    reactor.run_once(NOW).unwrap();
    reactor.run_once(NOW).unwrap();
    clock.advance(Duration::from_micros(1));
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["after", "every"], "once");
    for (step, expected) in [(3, vec!["every"]), (2, vec!["reset"]), (1, vec!["every"])] {
        clock.advance(step * MS);
        reactor.run_once(NOW).unwrap();
        assert_eq!(log.take(), expected);
    }
    clock.advance(4 * MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["every", "late"]);
    reactor.resume_group(key).unwrap();
    clock.advance(MS + MS / 2);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.len(), 0, "the resume of a group that runs changes nothing");
    reactor.pause_group(key).unwrap();
    clock.advance(10 * MS);
    reactor.resume_group(key).unwrap();
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["every"], "outside of a turn it is due at once");
}

/// A turn without a limit waits for other timers, and not for those that are paused.
fn paused_timers_keep_the_loop_from_no_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    let group = Group::new(()).every(MS, |(): &mut ()| panic!("it is paused"));
    let key = group.register_into(&mut reactor).unwrap().group;
    reactor.pause_group(key).unwrap();
    let turns = reactor.stats().turns;
    reactor.after(20 * MS, |mut turn: Turn<'_>| turn.stop()).unwrap();
    reactor.run().unwrap();
    assert!(reactor.stats().turns - turns < 5, "{}", reactor.stats().turns);
}

/// Turns beside a far timer do not look at the clock any more when the nearer one is resumed.
fn a_resumed_timer_is_not_late(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.after(Duration::from_secs(3600), || {}).unwrap();
    let group = Group::new(()).after(20 * MS, |(): &mut (), mut turn: Turn<'_>| turn.stop());
    let key = group.register_into(&mut reactor).unwrap().group;
    reactor.pause_group(key).unwrap();
    for _ in 0..40 {
        reactor.run_once(NOW).unwrap();
    }
    reactor.resume_group(key).unwrap();
    reactor.run().unwrap();
}

fn a_timer_may_pause_its_own_group(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let this: Slot<GroupKey<Log<&'static str>>> = slot();
    let log = Log::new();
    let pause = |name: &'static str, resets: bool| {
        let this = this.clone();
        move |log: &mut Log<&'static str>, tick: Tick, mut turn: Turn<'_>| {
            log.note(name);
            turn.pause_group(this.get().unwrap()).unwrap();
            if resets {
                turn.reset(tick.key, MS).unwrap();
            }
        }
    };
    let registered = Group::new(log.clone())
        .after(MS, pause("once", false))
        .after(2 * MS, pause("again", true))
        .every(3 * MS, pause("every", false))
        .register_into(&mut reactor)
        .unwrap();
    this.set(Some(registered.group));
    clock.advance(3 * MS);
    let mut calls = Vec::new();
    for _ in 0..3 {
        reactor.run_once(NOW).unwrap();
        reactor.run_once(NOW).unwrap();
        calls.extend(log.take());
        reactor.resume_group(registered.group).unwrap();
    }
    assert_eq!(calls, ["once", "again", "every"], "one for each resume");
    assert_eq!(reactor.stats().timers, 2, "one has fired for the last time");
    clock.advance(3 * MS);
    reactor.run_once(NOW).unwrap();
    assert_eq!(log.take(), ["again"]);
    assert_eq!(reactor.cancel(registered.members[0]), Err(NotFound));
}

scenarios! {
    timers_wait_for_the_resume,
    paused_timers_keep_the_loop_from_no_wait,
    a_resumed_timer_is_not_late,
    a_timer_may_pause_its_own_group,
}
