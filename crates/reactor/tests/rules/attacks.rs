//! Memory errors that another reactor of this design had in safe code. `crates/testkit` has the
//! attacks that must not compile.

use std::{
    cell::{Cell, RefCell},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use windlass::{Event, Interest, Reactor, Subscriber, Turn, interest};

use crate::{
    Build,
    tools::{Log, Witness, caught, on_ready, ready, turn},
};

/// Attack 1: the reactor is dropped or replaced inside a handler. Only a `RefCell` could give
/// access to it there, and that is borrowed.
fn a_reactor_shared_with_its_own_handler_cannot_be_replaced_by_it(build: Build) {
    let shared = Rc::new(RefCell::new(build().build().unwrap()));
    let inside = shared.clone();
    let refused = Rc::new(Cell::new(false));
    let out = refused.clone();
    on_ready(&mut shared.borrow_mut(), ready(), move |_, _| {
        out.set(inside.try_borrow_mut().is_err())
    });
    turn(&mut shared.borrow_mut());
    assert!(refused.get());
    // Breaks the reference cycle.
    drop(shared.replace(build().build().unwrap()));
}

/// Attack 3: a handler deletes a subscriber whose destructor panics and whose event is in the
/// batch.
fn a_victim_whose_destructor_panics_is_not_called_by_its_pending_event(build: Build) {
    for _ in 0..if cfg!(miri) { 5 } else { 20 } {
        let mut reactor = build().build().unwrap();
        let log = Log::default();
        let keys = Rc::new(Cell::new([None; 3]));
        let all = [0, 1, 2].map(|me| {
            let (said, keys, witness) = (log.clone(), keys.clone(), Witness::bomb(&log, "value"));
            let big = [me; 32];
            Some(on_ready(&mut reactor, ready(), move |mut turn, _| {
                witness.here();
                assert_eq!(big[31], me, "the value is whole");
                said.say("run");
                for other in (0..3).filter(|other| *other != me) {
                    let _ = caught(|| turn.delete(keys.get()[other].unwrap()));
                }
            }))
        });
        keys.set(all);
        assert_eq!(turn(&mut reactor), 3);
        assert_eq!(log.take(), ["run", "drop value", "drop value"]);
        let _ = caught(|| drop(reactor));
        assert_eq!(log.take(), ["drop value"]);
    }
}

/// Attacks 4 and 5: a subscriber swaps its descriptor, or returns another one, and then deletes
/// itself.
fn a_self_delete_is_known_as_one_whatever_the_descriptor_says_by_then(build: Build) {
    struct Swapped {
        fd: OwnedFd,
        other: OwnedFd,
        witness: Witness,
    }
    impl AsFd for Swapped {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    let value = Swapped { fd: ready(), other: ready(), witness: Witness::new(&log, "value") };
    let handler = move |value: &mut Swapped, event: Event, mut turn: Turn<'_, _>| {
        std::mem::swap(&mut value.fd, &mut value.other);
        turn.delete(event.key()).unwrap();
        said.say(format!("alive {}", value.witness.panics));
    };
    interest().read().with_fd(value).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(log.take(), ["alive false", "drop value"]);
}

/// The same with a descriptor that panics on the second `as_fd` call. There is no second call.
fn a_descriptor_that_panics_when_it_is_asked_twice_is_not_asked_twice(build: Build) {
    struct Once(OwnedFd, Cell<bool>);
    impl AsFd for Once {
        fn as_fd(&self) -> BorrowedFd<'_> {
            assert!(!self.1.replace(true), "asked twice");
            self.0.as_fd()
        }
    }
    let mut reactor = build().build().unwrap();
    let fd = Once(ready(), Cell::new(false));
    let handler = |event: Event, mut turn: Turn<'_, _>| {
        turn.modify(event.key(), interest().read().write()).unwrap();
        turn.delete(event.key()).unwrap();
    };
    interest().read().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(turn(&mut reactor), 1);
    assert_eq!(turn(&mut reactor), 0);
}

/// A descriptor or interest whose getter panics during registration leaves nothing behind.
fn a_panic_while_it_is_being_registered_leaves_nothing_behind(build: Build) {
    struct Rude(OwnedFd, Witness, bool);
    impl Subscriber for Rude {
        fn fd(&self) -> BorrowedFd<'_> {
            assert!(!self.2, "no descriptor");
            self.0.as_fd()
        }
        fn interest(&self) -> Interest {
            assert!(self.2, "no interest");
            interest().read()
        }
        fn handle(&mut self, _: Event, _: Turn<'_, Reactor>) {
            self.1.here();
        }
    }
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    for which in [true, false] {
        let rude = Rude(ready(), Witness::new(&log, "rude"), which);
        assert!(caught(|| reactor.add(rude)).is_err());
        assert_eq!(log.take(), ["drop rude"]);
    }
    assert_eq!((turn(&mut reactor), reactor.stats().subscribers), (0, 0));
}

/// Attack 6: a stale interest after a subscriber modifies itself through a second reference. See
/// also `rule_5_*`.
fn a_value_is_not_touched_by_modify_while_it_runs(build: Build) {
    struct Own {
        fd: OwnedFd,
        numbers: [u64; 4],
        key: Option<windlass::Key>,
    }
    impl Subscriber for Own {
        fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
        fn interest(&self) -> Interest {
            interest().read()
        }
        fn handle(&mut self, event: Event, mut turn: Turn<'_, Reactor>) {
            let numbers = &mut self.numbers;
            numbers[0] += 1;
            turn.modify(event.key(), interest().read().write()).unwrap();
            numbers[1] += numbers[0];
            self.key = Some(event.key());
        }
    }
    let mut reactor = build().build().unwrap();
    let key = reactor.add(Own { fd: ready(), numbers: [0; 4], key: None }).unwrap();
    turn(&mut reactor);
    let own: Own = reactor.take(key).unwrap();
    assert_eq!((own.numbers, own.key), ([1, 1, 0, 0], Some(key)));
}

/// A reactor inside another one's handler is run there, and dropped with its subscribers.
fn another_reactor_can_be_run_and_dropped_inside_a_handler(build: Build) {
    let mut outer = build().build().unwrap();
    let log = Log::default();
    let said = log.clone();
    let mut inner = Some(build().build().unwrap());
    let witness = Witness::new(&log, "inner value");
    on_ready(inner.as_mut().unwrap(), ready(), move |mut turn, event| {
        witness.here();
        turn.delete(event.key()).unwrap();
    });
    on_ready(&mut outer, ready(), move |mut turn, event| {
        let mut inner = inner.take().unwrap();
        assert_eq!(inner.run_once(Duration::ZERO).unwrap(), 1);
        drop(inner);
        said.say("outer goes on");
        turn.delete(event.key()).unwrap();
    });
    assert_eq!(turn(&mut outer), 1);
    assert_eq!(log.take(), ["drop inner value", "outer goes on"]);
}

/// A turn that is kept for as long as Rust allows, and used after everything was deleted through
/// it.
fn a_turn_stays_harmless_after_everything_was_deleted_through_it(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let keys = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..4 {
        let (said, keys, witness) = (log.clone(), keys.clone(), Witness::new(&log, "value"));
        let key = on_ready(&mut reactor, ready(), {
            let keys = keys.clone();
            move |mut turn, _| {
                witness.here();
                for key in keys.borrow_mut().drain(..) {
                    turn.delete(key).unwrap();
                }
                assert_eq!(turn.stats().subscribers, 0);
                let fresh =
                    interest().read().with_fd(ready()).with_handler(|| {}).register_into(&mut turn);
                said.say(format!("added {}", fresh.is_ok()));
            }
        });
        keys.borrow_mut().push(key);
    }
    assert_eq!(turn(&mut reactor), 4);
    assert_eq!(log.take().len(), 5);
    assert_eq!(reactor.stats().subscribers, 1);
}

scenarios! {
    a_reactor_shared_with_its_own_handler_cannot_be_replaced_by_it,
    a_victim_whose_destructor_panics_is_not_called_by_its_pending_event,
    a_self_delete_is_known_as_one_whatever_the_descriptor_says_by_then,
    a_descriptor_that_panics_when_it_is_asked_twice_is_not_asked_twice,
    a_panic_while_it_is_being_registered_leaves_nothing_behind,
    a_value_is_not_touched_by_modify_while_it_runs,
    another_reactor_can_be_run_and_dropped_inside_a_handler,
    a_turn_stays_harmless_after_everything_was_deleted_through_it,
}
