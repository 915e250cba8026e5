//! Calls of a handler on the other subscribers of its own batch.

use std::rc::Rc;

use windlass::{AddReason, Event, Interest, Key, NotFound, Reactor, Turn, interest};

use crate::{
    Build,
    bed::{
        Log, NOW, Noted, Shared, Slot, drain, idle, noting, pair, readable, ready, ring, run_dry,
        slot,
    },
};

type Hands = Rc<std::cell::RefCell<Vec<Key>>>;

/// Registers ready eventfds with one common handler. It gets the keys of all and its own index.
fn peers(
    reactor: &mut Reactor,
    count: usize,
    interest: Interest,
    act: impl Fn(usize, &[Key], Event, Turn<'_, Reactor>) + Clone + 'static,
) -> (Vec<Shared>, Vec<Key>) {
    let hands: Hands = Hands::default();
    let fds: Vec<Shared> = (0..count).map(|_| ready()).collect();
    for (place, fd) in fds.iter().enumerate() {
        let (all, act) = (hands.clone(), act.clone());
        let handler = move |fd: &mut Shared, event: Event, turn: Turn<'_, _>| {
            drain(fd);
            act(place, &all.borrow(), event, turn);
        };
        let key =
            interest.with_fd(fd.clone()).with_handler(handler).register_into(reactor).unwrap();
        hands.borrow_mut().push(key);
    }
    let keys = hands.borrow().clone();
    (fds, keys)
}

// eventp: self-delete in a batch.
fn every_subscriber_of_a_batch_may_delete_itself(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (fds, keys) = peers(&mut reactor, 5, readable(), {
        let log = log.clone();
        move |place, _, event, mut turn| {
            turn.delete(event.key()).unwrap();
            assert_eq!(turn.delete(event.key()), Err(NotFound), "deleted once");
            log.note(place);
        }
    });
    assert_eq!(reactor.run_once(NOW).unwrap(), 5);
    assert_eq!((log.len(), reactor.stats().subscribers), (5, 0));
    for (fd, key) in fds.iter().zip(keys) {
        ring(fd);
        assert_eq!(reactor.delete(key), Err(NotFound));
    }
    assert_eq!(run_dry(&mut reactor), 0);
}

fn the_destructor_of_one_that_deletes_itself_runs_after_its_handler_and_before_the_next(
    build: Build,
) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    for name in ["a", "b"] {
        let noted = Noted(log.clone(), "dropped");
        let handler = move |event: Event, mut turn: Turn<'_, _>| {
            turn.delete(event.key()).unwrap();
            noted.0.note(name);
            noted.0.note("returns");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    assert_eq!(reactor.run_once(NOW).unwrap(), 2);
    let notes = log.take();
    let (first, second) = notes.split_at(3);
    assert_eq!(
        (&first[1..], &second[1..]),
        (&["returns", "dropped"][..], &["returns", "dropped"][..]),
        "{notes:?}"
    );
}

// eventp: cross-delete, the victim's event is pending in the same batch.
fn a_pending_victim_is_dropped_at_once_and_does_not_fire(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let hands: Hands = Hands::default();
    for place in 0..2 {
        let (all, log) = (hands.clone(), log.clone());
        let noted = Noted(log.clone(), "dropped");
        let handler = move |mut turn: Turn<'_, _>| {
            let _ = &noted;
            log.note("fired");
            turn.delete(all.borrow()[1 - place]).unwrap();
            log.note("deleted");
        };
        let key =
            readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
        hands.borrow_mut().push(key);
    }
    let count = reactor.run_once(NOW).unwrap();
    assert!(count <= 2);
    assert_eq!(
        log.take(),
        ["fired", "dropped", "deleted"],
        "whichever came first, the other never fired"
    );
    assert_eq!(reactor.stats().subscribers, 1);
}

fn the_first_of_a_batch_may_delete_all_the_others(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (fds, keys) = peers(&mut reactor, 10, readable(), {
        let log = log.clone();
        move |place, keys, event, mut turn| {
            for key in keys.iter().filter(|key| **key != event.key()) {
                turn.delete(*key).unwrap();
            }
            log.note(place);
        }
    });
    run_dry(&mut reactor);
    let survivors = log.take();
    assert_eq!((survivors.len(), reactor.stats().subscribers), (1, 1));
    fds.iter().for_each(ring);
    run_dry_deleting(&mut reactor, keys[survivors[0]]);
    assert_eq!(log.len(), 0);
}

/// Deletes the last one before its handler can look for the others.
fn run_dry_deleting(reactor: &mut Reactor, last: Key) {
    reactor.delete(last).unwrap();
    assert_eq!(run_dry(reactor), 0);
}

fn one_that_was_called_already_can_be_deleted_by_the_next(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let before: Slot<Key> = slot();
    peers(&mut reactor, 3, readable(), {
        let log = log.clone();
        move |_, _, event, mut turn| {
            if let Some(before) = before.replace(Some(event.key())) {
                log.note(turn.delete(before));
            }
        }
    });
    run_dry(&mut reactor);
    assert_eq!(log.take(), [Ok(()), Ok(())]);
    assert_eq!(reactor.stats().subscribers, 1);
}

// eventp: re-add after a self-delete.
fn a_number_is_taken_until_the_handler_that_deleted_itself_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let fd = ready();
    let handler = {
        let (log, fd) = (log.clone(), fd.clone());
        move |event: Event, mut turn: Turn<'_, _>| {
            turn.delete(event.key()).unwrap();
            let again = readable().with_fd(fd.clone()).with_handler(|| {});
            let error = again.register_into(&mut turn).unwrap_err();
            assert_eq!(error, AddReason::AlreadyExists);
            // A closure at the end of the turn can do it.
            let (log, fd) = (log.clone(), fd.clone());
            turn.defer(move |mut turn: Turn<'_, _>| {
                noting(&mut turn, &fd, &log, "again");
            })
            .unwrap();
        }
    };
    readable().with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.len(), 0, "what a turn adds does not fire in it");
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), ["again"]);
}

// eventp: re-add after a cross-delete. The address of the old cell is still in the batch.
fn a_victim_that_is_added_again_fires_in_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let hands: Hands = Hands::default();
    let fds = [ready(), ready()];
    for place in 0..2 {
        let (all, log, others) = (hands.clone(), log.clone(), fds[1 - place].clone());
        let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
            drain(fd);
            log.note(("old", place));
            turn.delete(all.borrow()[1 - place]).unwrap();
            noting(&mut turn, &others, &log, ("new", 1 - place));
        };
        let key = readable()
            .with_fd(fds[place].clone())
            .with_handler(handler)
            .register_into(&mut reactor)
            .unwrap();
        hands.borrow_mut().push(key);
    }
    assert_eq!(reactor.run_once(NOW).unwrap(), 2, "the event of the dead cell counts");
    let first = log.take();
    assert!(matches!(first[..], [("old", _)]), "{first:?}");
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), [("new", 1 - first[0].1)]);
}

// eventp: a registration that is added in a turn fires in the next, even if it is ready now.
fn what_is_added_in_a_turn_fires_in_the_next(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |fd: &mut Shared, mut turn: Turn<'_, _>| {
            drain(fd);
            noting(&mut turn, &ready(), &log, "added");
        }
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!((reactor.run_once(NOW).unwrap(), log.len()), (1, 0));
    assert_eq!((reactor.run_once(None).unwrap(), log.len()), (1, 1));
}

// event-manager: modify inside dispatch. eventp: the interest is updated.
fn a_handler_changes_its_own_interest(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _theirs) = pair();
    let handler = {
        let log = log.clone();
        move |event: Event, interest: Interest, mut turn: Turn<'_, _>| {
            log.note((interest, event.ready().has_write()));
            turn.modify(event.key(), windlass::interest().read()).unwrap();
        }
    };
    let key =
        interest().write().with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), [(interest().write(), true)]);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0, "it waits for data now, and none came");
    reactor.modify(key, interest().write()).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 1, "outside a turn a change is in force at once");
}

// event-manager: one handler changes another's interest.
fn a_handler_changes_the_interest_of_another(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let quiet = idle();
    let (ours, _theirs) = pair();
    let key = readable()
        .with_fd(ours)
        .with_handler({
            let log = log.clone();
            move |event: Event| log.note((event.interest(), event.ready().has_write()))
        })
        .register_into(&mut reactor)
        .unwrap();
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
        drain(fd);
        // The last change wins.
        for last in [interest(), interest().read(), interest().write()] {
            turn.modify(key, last).unwrap();
        }
    };
    readable().with_fd(quiet.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    ring(&quiet);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
    assert_eq!(log.take(), [(interest().write(), true)]);
}

fn changes_that_cancel_each_other_out_leave_the_subscriber_as_it_was(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (calm, kick) = (idle(), ready());
    let key = noting(&mut reactor, &calm, &log, "read");
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
        drain(fd);
        turn.modify(key, interest().priority()).unwrap();
        turn.modify(key, interest().read()).unwrap();
    };
    readable().with_fd(kick).with_handler(handler).register_into(&mut reactor).unwrap();
    run_dry(&mut reactor);
    ring(&calm);
    assert_eq!((run_dry(&mut reactor), log.take()), (1, vec!["read"]));
}

// event-manager: remove inside dispatch, after a modify in the same turn.
fn a_change_of_one_that_is_deleted_in_the_same_turn_is_forgotten(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let victim = noting(&mut reactor, &idle(), &log, "victim");
    let handler = move |fd: &mut Shared, mut turn: Turn<'_, _>| {
        drain(fd);
        turn.modify(victim, interest().write()).unwrap();
        turn.delete(victim).unwrap();
        assert_eq!(turn.modify(victim, interest().write()), Err(windlass::ModifyError::NotFound));
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!((run_dry(&mut reactor), log.len()), (1, 0));
    assert_eq!(reactor.stats().quarantined, 0);
}

// event-manager: event-list size.
fn a_batch_smaller_than_the_ready_set_serves_all_in_turn(build: Build) {
    const COUNT: usize = 10;
    for per_turn in [1, 3, COUNT] {
        let mut reactor = build().events_per_turn(per_turn).build().unwrap();
        let log = Log::new();
        // Level-triggered and never drained: the first must not starve the last.
        for place in 0..COUNT {
            let log = log.clone();
            let handler = move || log.note(place);
            readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
        }
        for _ in 0..COUNT.div_ceil(per_turn) {
            let count = reactor.run_once(NOW).unwrap();
            assert!((1..=per_turn).contains(&count), "{count} of {per_turn}");
        }
        let mut served = log.take();
        served.sort_unstable();
        served.dedup();
        assert_eq!(served, (0..COUNT).collect::<Vec<_>>(), "{per_turn} a turn");
    }
}

// event-manager: an error in a subscriber. Here the subscriber handles its error, and the others
// are served.
fn a_subscriber_whose_read_fails_leaves_the_others_alone(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let handler = {
        let log = log.clone();
        move |event: Event, mut turn: Turn<'_, _>| {
            // The write end of a pipe cannot be read.
            log.note("failed");
            turn.delete(event.key()).unwrap();
        }
    };
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    drop(reading);
    interest().with_fd(writing).with_handler(handler).register_into(&mut reactor).unwrap();
    noting(&mut reactor, &ready(), &log, "served");
    assert_eq!(reactor.run_once(NOW).unwrap(), 2);
    let mut notes = log.take();
    notes.sort_unstable();
    assert_eq!(notes, ["failed", "served"]);
    assert_eq!(reactor.stats().subscribers, 1);
}

scenarios! {
    every_subscriber_of_a_batch_may_delete_itself,
    the_destructor_of_one_that_deletes_itself_runs_after_its_handler_and_before_the_next,
    a_pending_victim_is_dropped_at_once_and_does_not_fire,
    the_first_of_a_batch_may_delete_all_the_others,
    one_that_was_called_already_can_be_deleted_by_the_next,
    a_number_is_taken_until_the_handler_that_deleted_itself_has_returned,
    a_victim_that_is_added_again_fires_in_the_next_turn,
    what_is_added_in_a_turn_fires_in_the_next,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_handler_changes_its_own_interest,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    a_handler_changes_the_interest_of_another,
    changes_that_cancel_each_other_out_leave_the_subscriber_as_it_was,
    a_change_of_one_that_is_deleted_in_the_same_turn_is_forgotten,
    #[cfg_attr(miri, ignore = "the stand-in for Miri's epoll serves the first again and again")]
    a_batch_smaller_than_the_ready_set_serves_all_in_turn,
    a_subscriber_whose_read_fails_leaves_the_others_alone,
}
