//! Rules 1, 2 and 9: a deleted subscriber does not fire again. It is dropped when its handler is
//! not running, and freed when no address of it is left.

use std::{cell::Cell, os::fd::OwnedFd, rc::Rc};

use windlass::{AddReason, Event, Group, NotFound, Reactor, TakeError, Turn, interest};

use crate::{
    Build,
    tools::{Log, Pair, Witness, counter, on_ready, ready, turn},
};

/// Two subscribers are ready at once. The one that runs first deletes the other.
fn rule_9_a_victim_in_the_same_batch_does_not_fire(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let keys = Rc::new(Cell::new([None; 2]));
    let register = |reactor: &mut Reactor, me: usize| {
        let (log, keys, witness) =
            (log.clone(), keys.clone(), Witness::new(&log, ["first", "second"][me]));
        on_ready(reactor, ready(), move |mut turn, _| {
            witness.here();
            log.say("run");
            turn.delete(keys.get()[1 - me].unwrap()).unwrap();
            log.say("deleted");
        })
    };
    let both = [0, 1].map(|me| Some(register(&mut reactor, me)));
    keys.set(both);
    assert_eq!(turn(&mut reactor), 2, "the victim's event was fetched");
    let said = log.take();
    // The exception of rule 13: the victim's destructor runs at once, inside `delete`.
    assert!(
        said == ["run", "drop first", "deleted"] || said == ["run", "drop second", "deleted"],
        "{said:?}"
    );
    assert_eq!(reactor.stats().subscribers, 1);
}

fn rule_1_who_deletes_itself_is_destroyed_after_its_handler(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let (said, witness) = (log.clone(), Witness::new(&log, "value"));
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        turn.delete(event.key()).unwrap();
        assert_eq!(turn.delete(event.key()), Err(NotFound), "the key is stale at once");
        said.say(format!("still here, {}", std::mem::size_of_val(&witness) > 0));
    });
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(log.take(), ["still here, true", "drop value"]);
    assert_eq!((turn(&mut reactor), reactor.stats().subscribers), (0, 0));
}

fn rule_1_the_events_behind_one_that_deletes_itself_still_come(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, seen) = counter();
    for _ in 0..5 {
        let count = count.clone();
        on_ready(&mut reactor, ready(), move |mut turn, event| {
            count.set(count.get() + 1);
            turn.delete(event.key()).unwrap();
        });
    }
    assert_eq!(turn(&mut reactor), 5);
    assert_eq!((seen.get(), reactor.stats().subscribers), (5, 0));
}

fn the_number_of_who_deletes_itself_is_taken_until_its_handler_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let mut pair = Pair::new();
    pair.fire();
    let fd = pair.take();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
    let (count, seen) = counter();
    interest()
        .read()
        .with_fd(Rc::new(fd))
        .with_handler(move |fd: &mut Rc<OwnedFd>, event: Event, mut turn: Turn<'_, _>| {
            turn.delete(event.key()).unwrap();
            let again = interest().read().with_fd(fd.clone()).with_handler(|_: Event| {});
            let refused = again.try_register_into(&mut turn).unwrap_err();
            assert_eq!(refused.reason, AddReason::AlreadyExists);
            let (_, back, _) = refused.subscriber.into_parts();
            assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&back), number);
            // At the end of the turn its number is free again.
            turn.defer(move |mut turn: Turn<'_, Reactor>| {
                interest()
                    .read()
                    .with_fd(back)
                    .with_handler(|_: Event| {})
                    .register_into(&mut turn)
                    .unwrap();
            })
            .unwrap();
            count.set(1);
        })
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!((seen.get(), reactor.stats().subscribers), (1, 1));
}

/// If the victim's block were freed at once, a new cell of the same size would get its address.
/// Then the new cell would get the victim's event.
fn rule_2_a_victims_address_is_not_given_to_a_newcomer_of_the_same_turn(build: Build) {
    // Miri sees a use of a freed address at once; elsewhere the allocator must give it out again.
    for _ in 0..if cfg!(miri) { 5 } else { 50 } {
        let mut reactor = build().build().unwrap();
        let keys = Rc::new(Cell::new([None; 2]));
        let (ran, newcomers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let both = [0, 1].map(|me| {
            let (keys, ran, newcomers) = (keys.clone(), ran.clone(), newcomers.clone());
            Some(on_ready(&mut reactor, ready(), move |mut turn, event| {
                ran.set(ran.get() + 1);
                turn.delete(keys.get()[1 - me].unwrap()).unwrap();
                for _ in 0..8 {
                    let newcomers = newcomers.clone();
                    interest()
                        .read()
                        .with_fd(ready())
                        .with_handler(move |_: Turn<'_, Reactor>| {
                            newcomers.set(newcomers.get() + 1)
                        })
                        .register_into(&mut turn)
                        .unwrap();
                }
                turn.delete(event.key()).unwrap();
            }))
        });
        keys.set(both);
        assert_eq!(turn(&mut reactor), 2);
        assert_eq!(
            (ran.get(), newcomers.get()),
            (1, 0),
            "rule 9: who is added in a turn does not fire in it"
        );
        turn(&mut reactor);
        assert_eq!(newcomers.get(), 8);
    }
}

fn deleting_another_and_registering_its_descriptor_again_in_one_handler_works(build: Build) {
    let mut reactor = build().build().unwrap();
    let shared = Rc::new(ready());
    let (count, seen) = counter();
    let old = interest()
        .read()
        .with_fd(shared.clone())
        .with_handler(|| panic!("deleted"))
        .register_into(&mut reactor)
        .unwrap();
    // The old one is ready too. Whichever runs first, the old one must not fire after its deletion.
    reactor.modify(old, interest()).unwrap();
    on_ready(&mut reactor, ready(), move |mut turn, event| {
        turn.delete(old).unwrap();
        let count = count.clone();
        let again = interest()
            .read()
            .with_fd(shared.clone())
            .with_handler(move || count.set(count.get() + 1));
        assert_ne!(again.register_into(&mut turn).unwrap(), old);
        turn.delete(event.key()).unwrap();
    });
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!((turn(&mut reactor), seen.get()), (1, 1));
}

struct State(Witness);

fn rule_1_a_groups_state_outlives_the_handler_that_deletes_the_group(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let key = Rc::new(Cell::new(None));
    let (said, mine) = (log.clone(), key.clone());
    let on_first = move |state: &mut State, _: &mut OwnedFd, mut turn: Turn<'_, _>| {
        turn.delete_group(mine.get().unwrap()).unwrap();
        said.say("group deleted");
        assert!(!state.0.panics, "the state is still there to be read");
        assert_eq!(turn.delete_group(mine.get().unwrap()), Err(NotFound));
    };
    let sibling = Witness::new(&log, "sibling");
    let timer = Witness::new(&log, "timer");
    let registered = Group::new(State(Witness::new(&log, "state")))
        .fd(interest().read(), ready(), on_first)
        .fd(interest(), ready(), move |_: &mut State| sibling.here())
        .after(std::time::Duration::from_secs(3600), move |_: &mut State| timer.here())
        .register_into(&mut reactor)
        .unwrap();
    key.set(Some(registered.group));
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(log.take(), ["drop sibling", "drop timer", "group deleted", "drop state"]);
    assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
    assert!(reactor.group_mut(registered.group).is_none());
}

fn rule_1_the_last_sibling_deleted_by_itself_takes_the_state_along_afterwards(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    let registered = Group::new(State(Witness::new(&log, "state")))
        .fd(
            interest().read(),
            ready(),
            move |state: &mut State, event: Event, mut turn: Turn<'_, _>| {
                turn.delete(event.key()).unwrap();
                said.say(format!("state panics: {}", state.0.panics));
            },
        )
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(log.take(), ["state panics: false", "drop state"]);
    assert_eq!(reactor.delete_group(registered.group), Err(NotFound));
}

fn a_groups_state_goes_with_its_last_member_whoever_deletes_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let registered = Group::new(State(Witness::new(&log, "state")))
        .fd(interest().read(), Pair::new().take(), |_: &mut State| {})
        .every(std::time::Duration::from_secs(60), |_: &mut State| {})
        .register_into(&mut reactor)
        .unwrap();
    reactor.delete(registered.members[0]).unwrap();
    assert!(log.take().is_empty());
    assert!(!reactor.group_mut(registered.group).unwrap().0.panics);
    reactor.cancel(registered.members[1]).unwrap();
    assert_eq!(log.take(), ["drop state"]);
}

fn a_groups_timer_that_fires_once_takes_the_state_along_if_it_was_the_last(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    Group::new(State(Witness::new(&log, "state")))
        .after(std::time::Duration::ZERO, move |_: &mut State| said.say("fired"))
        .register_into(&mut reactor)
        .unwrap();
    turn(&mut reactor);
    assert_eq!(log.take(), ["fired", "drop state"]);
}

fn a_member_is_not_taken_out_of_its_group(build: Build) {
    let mut reactor = build().build().unwrap();
    let registered = Group::new(0u64)
        .fd(interest().read(), ready(), |count: &mut u64| *count += 1)
        .register_into(&mut reactor)
        .unwrap();
    let member = registered.members[0];
    assert_eq!(reactor.take_fd::<OwnedFd>(member).unwrap_err(), TakeError::InGroup);
    assert_eq!(reactor.take_boxed(member).err(), Some(TakeError::InGroup));
    assert_eq!((turn(&mut reactor), reactor.group_mut(registered.group)), (1, Some(&mut 1)));
    assert!(reactor.into_subscribers().is_empty());
}

scenarios! {
    rule_9_a_victim_in_the_same_batch_does_not_fire,
    rule_1_who_deletes_itself_is_destroyed_after_its_handler,
    rule_1_the_events_behind_one_that_deletes_itself_still_come,
    the_number_of_who_deletes_itself_is_taken_until_its_handler_has_returned,
    rule_2_a_victims_address_is_not_given_to_a_newcomer_of_the_same_turn,
    deleting_another_and_registering_its_descriptor_again_in_one_handler_works,
    rule_1_a_groups_state_outlives_the_handler_that_deletes_the_group,
    rule_1_the_last_sibling_deleted_by_itself_takes_the_state_along_afterwards,
    a_groups_state_goes_with_its_last_member_whoever_deletes_it,
    a_groups_timer_that_fires_once_takes_the_state_along_if_it_was_the_last,
    a_member_is_not_taken_out_of_its_group,
}
