//! The loop over a batch, where one line of it decides: what a panic, a self-delete or a driver
//! leaves behind. Each test here failed when its line was taken out.

use std::{
    cell::{Cell, RefCell},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{Event, Key, NextTurn, Reactor, Turn, interest};

use crate::{
    Build,
    tools::{Log, Pair, Witness, counter, on_ready, ready, turn, turn_panics},
};

type Fd = OwnedFd;

/// The mark that closures run was left by the panic of one.
fn rule_8_after_the_panic_of_a_closure_a_handlers_closure_runs_in_its_own_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.defer(|_: Turn<'_, Reactor>| panic!("closure")).unwrap();
    assert_eq!(turn_panics(&mut reactor), "closure");
    let log = Log::default();
    let said = log.clone();
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        turn.modify(event.key(), interest()).unwrap();
        let said = said.clone();
        turn.defer(move |_: Turn<'_, Reactor>| said.say("deferred")).unwrap();
    });
    assert_eq!((turn(&mut reactor), log.take()), (1, vec!["deferred".to_owned()]));
}

/// The turn's clock was still that of the turn that had panicked.
fn rule_8_after_a_panic_the_clock_is_read_again(build: Build) {
    let (reads, seen) = counter();
    let clock = move || {
        reads.set(reads.get() + 1);
        Instant::now()
    };
    let mut reactor = build().clock(clock).build().unwrap();
    let panics = Rc::new(Cell::new(true));
    on_ready(&mut reactor, ready(), move |mut turn, _| {
        let _ = turn.now();
        assert!(!panics.replace(false), "handler");
    });
    let before = seen.get();
    turn_panics(&mut reactor);
    assert_eq!((turn(&mut reactor), seen.get()), (1, before + 2));
}

/// The batch was still open, so the closure's victim was taken for one that deletes itself.
fn rule_1_who_ran_last_is_destroyed_at_once_by_a_closure_of_its_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let (said, witness) = (log.clone(), Witness::new(&log, "value"));
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        witness.here();
        let (said, key) = (said.clone(), event.key());
        turn.defer(move |mut turn: Turn<'_, Reactor>| {
            turn.delete(key).unwrap();
            said.say("deleted");
        })
        .unwrap();
    });
    assert_eq!((turn(&mut reactor), log.take()), (1, vec!["drop value".into(), "deleted".into()]));
}

/// The reactor still seemed to be in a turn.
fn the_owner_takes_subscribers_after_a_turn_in_which_a_timer_fired(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, seen) = counter();
    reactor.every(Duration::from_nanos(1), move || count.set(count.get() + 1)).unwrap();
    let key = on_ready(&mut reactor, Pair::new().take(), |_, _| {});
    while seen.get() < 3 {
        reactor.run_once(None).unwrap();
        reactor.modify(key, interest().read()).unwrap();
    }
    assert!(reactor.take_fd::<Fd>(key).is_ok());
}

/// The same after a driver that has changed something and ended the loop.
fn the_owner_takes_subscribers_after_a_driver_that_ended_the_loop(build: Build) {
    let mut reactor = build().build().unwrap();
    let key = on_ready(&mut reactor, Pair::new().take(), |_, _| {});
    let mut driver = |mut turn: Turn<'_>| {
        turn.modify(key, interest().read().write()).unwrap();
        NextTurn::Stop
    };
    reactor.run_with(&mut driver).unwrap();
    assert!(reactor.take_fd::<Fd>(key).is_ok());
}

/// Calls that came between two turns were bounded by themselves, beside those that were left over.
fn rule_10_calls_that_are_left_over_and_new_ones_share_the_bound_of_a_turn(build: Build) {
    let mut reactor = build().calls_per_turn(2).build().unwrap();
    let remote = reactor.remote();
    let before = reactor.stats().calls;
    let post = |count: usize| (0..count).for_each(|_| remote.try_post(|_| {}).ok().unwrap());
    post(5);
    turn(&mut reactor);
    assert_eq!(reactor.stats().calls - before, 2);
    // The wake of this is noticed in the turn that begins with those that are left over.
    post(1);
    for expected in [4, 6] {
        turn(&mut reactor);
        assert_eq!(reactor.stats().calls - before, expected);
    }
}

/// Is asked for its descriptor at registration only.
struct Slot(Option<OwnedFd>);

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().unwrap().as_fd()
    }
}

/// Error events that a batch had no room for were lost.
fn rule_10_error_events_beyond_a_batch_come_in_the_next_turns(build: Build) {
    let mut reactor = build().events_per_turn(1).build().unwrap();
    let keys: Rc<RefCell<Vec<Key>>> = Rc::default();
    let (errors, seen) = counter();
    // Registered before the others close theirs, so that it has another number.
    let mut pair = Pair::new();
    let changed = Rc::clone(&keys);
    on_ready(&mut reactor, pair.take(), move |mut turn, event| {
        for key in changed.take() {
            turn.modify(key, interest().read().write()).unwrap();
        }
        turn.delete(event.key()).unwrap();
    });
    for _ in 0..3 {
        let errors = errors.clone();
        let handler = move |slot: &mut Slot, event: Event, mut turn: Turn<'_, _>| {
            // The kernel forgets the descriptor, and the change below is an error.
            drop(slot.0.take());
            errors.set(errors.get() + usize::from(event.has_error()));
            if event.has_error() {
                turn.delete(event.key()).unwrap();
            }
        };
        let slot = interest().read().with_fd(Slot(Some(ready()))).with_handler(handler);
        keys.borrow_mut().push(slot.register_into(&mut reactor).unwrap());
    }
    (0..3).for_each(|_| assert_eq!(turn(&mut reactor), 1));
    pair.fire();
    for expected in 0..=3 {
        assert_eq!((turn(&mut reactor), seen.get()), (1, expected));
    }
    assert_eq!(reactor.stats().subscribers, 0);
}

scenarios! {
    rule_8_after_the_panic_of_a_closure_a_handlers_closure_runs_in_its_own_turn,
    rule_8_after_a_panic_the_clock_is_read_again,
    rule_1_who_ran_last_is_destroyed_at_once_by_a_closure_of_its_turn,
    the_owner_takes_subscribers_after_a_turn_in_which_a_timer_fired,
    the_owner_takes_subscribers_after_a_driver_that_ended_the_loop,
    rule_10_calls_that_are_left_over_and_new_ones_share_the_bound_of_a_turn,
    #[cfg_attr(miri, ignore = "a descriptor is closed behind Miri's epoll")]
    rule_10_error_events_beyond_a_batch_come_in_the_next_turns
        except [poll "it tells of a closed number", uring "another test may take the number"],
}
