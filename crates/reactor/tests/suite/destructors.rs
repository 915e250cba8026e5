//! Panicking destructors: of a subscriber that deletes itself or is deleted by another, beside a
//! handler's panic, and at the end.

use std::{cell::Cell, os::fd::AsFd, rc::Rc, time::Duration};

use windlass::{Event, Key, Reactor, Turn};

use crate::{
    Build,
    bed::{
        HandClock, Log, NOW, Noted, Shared, Slot, counter, drain, idle, noting, panic_of, readable,
        ready, ring, run_dry, slot,
    },
};

/// Counts its drop, and panics in it.
struct Bomb(Rc<Cell<u32>>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        panic!("bomb");
    }
}

/// A descriptor whose destructor panics.
struct BombFd(Shared, #[expect(dead_code, reason = "dropped")] Bomb);

impl AsFd for BombFd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn bombs() -> (Rc<Cell<u32>>, impl Fn() -> Bomb) {
    let count = Rc::new(Cell::new(0));
    (count.clone(), move || Bomb(count.clone()))
}

fn of_one_that_deletes_itself(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let log = Log::new();
    let fds = [ready(), ready()];
    for fd in &fds {
        let (bomb, log) = (bomb(), log.clone());
        let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
            let _ = &bomb;
            log.note(());
            turn.delete(event.key()).unwrap();
        };
        readable().with_fd(fd.clone()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb");
    assert_eq!((count.get(), log.len()), (1, 1), "the rest of the batch waits");
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb");
    assert_eq!((count.get(), log.len(), reactor.stats().subscribers), (2, 2, 0));
    assert!(
        fds.iter().all(|fd| Rc::strong_count(fd) == 1),
        "what else the cell held is dropped all the same"
    );
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn of_one_that_another_deletes(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let log = Log::new();
    let victim_fd = idle();
    let bomb = bomb();
    let handler = move || {
        let _ = &bomb;
    };
    let victim = readable()
        .with_fd(victim_fd.clone())
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    let killer = {
        let log = log.clone();
        move |fd: &mut Shared, mut turn: Turn<'_, Reactor>| {
            drain(fd);
            log.note("killer");
            turn.delete(victim).unwrap();
            log.note("unreachable");
        }
    };
    readable().with_fd(ready()).with_handler(killer).register_into(&mut reactor).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb", "out of the handler that deleted it");
    assert_eq!((count.get(), log.take()), (1, vec!["killer"]));
    assert_eq!(Rc::strong_count(&victim_fd), 1);
    assert_eq!(reactor.delete(victim), Err(windlass::NotFound));
    ring(&victim_fd);
    noting(&mut reactor, &victim_fd, &log, "again");
    assert_eq!((run_dry(&mut reactor), log.take()), (1, vec!["again"]));
}

fn caught_by_the_handler_that_deletes(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let bomb = bomb();
    let log = Log::new();
    let handler = move || {
        let _ = &bomb;
    };
    let victim =
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    let killer = {
        let log = log.clone();
        move |event: Event, mut turn: Turn<'_, Reactor>| {
            assert_eq!(panic_of(|| turn.delete(victim)), "bomb");
            // The turn works as before.
            noting(&mut turn, &ready(), &log, "added");
            turn.delete(event.key()).unwrap();
        }
    };
    readable().with_fd(ready()).with_handler(killer).register_into(&mut reactor).unwrap();
    assert_eq!(
        run_dry(&mut reactor),
        3,
        "the killer, the victim's event or its own first one, the added one"
    );
    assert_eq!((count.get(), log.take(), reactor.stats().subscribers), (1, vec!["added"], 1));
}

fn outside_a_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let bomb = bomb();
    let handler = move || {
        let _ = &bomb;
    };
    let key =
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(panic_of(|| reactor.delete(key)), "bomb");
    assert_eq!((count.get(), reactor.stats().subscribers), (1, 0));
    assert_eq!(reactor.delete(key), Err(windlass::NotFound));
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn of_handler_and_descriptor_both(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let fd = BombFd(ready(), bomb());
    let shared = fd.0.clone();
    let bomb = bomb();
    let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
        let _ = &bomb;
        turn.delete(event.key()).unwrap();
    };
    readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb");
    assert_eq!(
        (count.get(), Rc::strong_count(&shared)),
        (2, 1),
        "both ran, one panic came out, nothing aborted"
    );
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn beside_a_panic_of_the_handler(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let bomb = bomb();
    let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
        let _ = &bomb;
        turn.delete(event.key()).unwrap();
        panic!("handler");
    };
    readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
    assert_eq!(count.get(), 0);
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb", "in the next turn");
    assert_eq!(count.get(), 1);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn beside_a_panic_of_the_handler_and_then_the_end(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    for _ in 0..2 {
        let bomb = bomb();
        let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
            let _ = &bomb;
            turn.delete(event.key()).unwrap();
            panic!("handler");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
    assert_eq!(panic_of(|| drop(reactor)), "bomb");
    assert_eq!(count.get(), 2);
}

fn of_all_at_the_end(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let log = Log::new();
    for _ in 0..3 {
        let bomb = bomb();
        let handler = move || {
            let _ = &bomb;
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    let (timer, deferred, before, after) = (bomb(), bomb(), bomb(), bomb());
    let keep = |bomb: Bomb| {
        move |_: Turn<'_, _>| {
            let _ = &bomb;
        }
    };
    reactor.after(Duration::from_secs(1), keep(timer)).unwrap();
    reactor.defer(keep(deferred)).unwrap();
    reactor.before_wait(keep(before)).unwrap();
    reactor.after_turn(keep(after)).unwrap();
    windlass::Group::new(bomb())
        .fd(readable(), counter(0), |_: &mut Bomb| {})
        .every(Duration::from_secs(1), |_: &mut Bomb| {})
        .register_into(&mut reactor)
        .unwrap();
    let noted = Noted(log.clone(), ());
    reactor.after(Duration::from_secs(1), keep_noted(noted)).unwrap();
    assert_eq!(panic_of(|| drop(reactor)), "bomb", "the first");
    assert_eq!((count.get(), log.len()), (8, 1), "each destructor ran once");

    fn keep_noted(noted: Noted<()>) -> impl FnMut() {
        move || {
            let _ = &noted;
        }
    }
}

fn at_the_end_while_another_panic_is_under_way(build: Build) {
    let (count, bomb) = bombs();
    let message = panic_of(|| {
        let mut reactor = build().build().unwrap();
        for _ in 0..2 {
            let bomb = bomb();
            let handler = move || {
                let _ = &bomb;
            };
            readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
        }
        panic!("the owner's");
    });
    assert_eq!((message.as_str(), count.get()), ("the owner's", 2), "no abort");
}

fn of_a_clock_at_the_end(build: Build) {
    let (count, bomb) = bombs();
    let bomb = bomb();
    let clock = HandClock::new();
    let reading = move || {
        let _ = &bomb;
        clock.time()
    };
    let reactor = build().clock(reading).build().unwrap();
    assert_eq!(panic_of(|| drop(reactor)), "bomb");
    assert_eq!(count.get(), 1);
}

fn of_a_timer(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let keep = |bomb: Bomb| {
        move || {
            let _ = &bomb;
        }
    };
    let key = reactor.after(Duration::from_secs(1), keep(bomb())).unwrap();
    assert_eq!(panic_of(|| reactor.cancel(key)), "bomb", "when it is cancelled");
    reactor.after(NOW, keep(bomb())).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb", "when it has fired");
    let bomb = bomb();
    let handler = move || {
        let _ = &bomb;
        panic!("handler");
    };
    reactor.after(NOW, handler).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "handler");
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb", "after a panic of its own");
    assert_eq!((count.get(), reactor.stats().timers), (3, 0));
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn of_a_deferred_closure(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let log = Log::new();
    let bomb = bomb();
    reactor.defer(move |_: Turn<'_, _>| drop(bomb)).unwrap();
    reactor
        .defer({
            let log = log.clone();
            move |_: Turn<'_, _>| log.note(())
        })
        .unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "bomb");
    reactor.run_once(None).unwrap();
    assert_eq!((count.get(), log.len()), (1, 1));
}

fn of_a_removed_hook(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let bomb = bomb();
    let key = reactor
        .before_wait(move |_: Turn<'_, _>| {
            let _ = &bomb;
        })
        .unwrap();
    assert_eq!(panic_of(|| reactor.remove_hook(key)), "bomb");
    assert_eq!((count.get(), reactor.remove_hook(key)), (1, Err(windlass::NotFound)));
}

fn of_a_groups_members_and_state(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let (a, b) = (bomb(), bomb());
    let registered = windlass::Group::new(bomb())
        .fd(readable(), ready(), move |_: &mut Bomb| {
            let _ = &a;
        })
        .after(Duration::from_secs(1), move |_: &mut Bomb| {
            let _ = &b;
        })
        .register_into(&mut reactor)
        .unwrap();
    assert_eq!(panic_of(|| reactor.delete_group(registered.group)), "bomb");
    assert_eq!(
        reactor.stats().subscribers + reactor.stats().timers,
        0,
        "the books are right at once"
    );
    // The values that the panic has left are dropped in the next turns, one panic per turn.
    for _ in 0..2 {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.run_once(NOW)));
    }
    assert_eq!(count.get(), 3);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
}

fn of_one_taken_out_is_the_owners_business(build: Build) {
    let mut reactor = build().build().unwrap();
    let (count, bomb) = bombs();
    let keys: Slot<Key> = slot();
    let bomb = bomb();
    let handler = move || {
        let _ = &bomb;
    };
    keys.set(Some(
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap(),
    ));
    let boxed = reactor.take_boxed(keys.take().unwrap()).unwrap();
    assert_eq!((count.get(), reactor.stats().subscribers), (0, 0));
    assert_eq!(panic_of(|| drop(boxed)), "bomb");
    assert_eq!((count.get(), reactor.run_once(NOW).unwrap()), (1, 0));
}

scenarios! {
    of_one_that_deletes_itself,
    of_one_that_another_deletes,
    caught_by_the_handler_that_deletes,
    outside_a_turn,
    of_handler_and_descriptor_both,
    beside_a_panic_of_the_handler,
    beside_a_panic_of_the_handler_and_then_the_end,
    of_all_at_the_end,
    at_the_end_while_another_panic_is_under_way,
    of_a_clock_at_the_end,
    of_a_timer,
    of_a_deferred_closure,
    of_a_removed_hook,
    of_a_groups_members_and_state,
    of_one_taken_out_is_the_owners_business,
}
