//! Panics during panics.

use std::{
    cell::Cell,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    pipe::{PipeFlags, pipe_with},
};
use windlass::{Event, Interest, Key, KickError, Reactor, Ready, Subscriber, Turn, interest};

use crate::{
    child::survives,
    tools::{Log, Witness, counter, drain, on_ready, ready, turn, turn_panics},
};

/// Regression: events kept after a panic were subtracted twice from a count if the next turn
/// panicked too. The count underflowed in a destructor, which aborted.
#[test]
fn a_hook_that_panics_over_a_kept_batch_does_not_spoil_the_counts() {
    survives("panics::a_hook_that_panics_over_a_kept_batch_does_not_spoil_the_counts", || {
        let mut reactor = crate::builder().build().unwrap();
        let (count, seen) = counter();
        for _ in 0..5 {
            let count = count.clone();
            let handler = move |fd: &mut OwnedFd| {
                drain(fd);
                count.set(count.get() + 1);
                assert_ne!(count.get(), 1, "the first one panics");
            };
            interest()
                .read()
                .with_fd(ready())
                .with_handler(handler)
                .register_into(&mut reactor)
                .unwrap();
        }
        turn_panics(&mut reactor);
        let hook = reactor.before_wait(|_: Turn<'_, _>| panic!("hook")).unwrap();
        for _ in 0..3 {
            assert_eq!(turn_panics(&mut reactor), "hook");
        }
        reactor.remove_hook(hook).unwrap();
        assert_eq!(reactor.run_once(None).unwrap(), 4);
        assert_eq!((seen.get(), reactor.stats().events), (5, 5));
    });
}

/// The same miscount, caused by destructors that panic at the beginning of a turn while events are
/// kept.
#[test]
fn who_deletes_itself_and_panics_twice_costs_its_own_event_alone() {
    survives("panics::who_deletes_itself_and_panics_twice_costs_its_own_event_alone", || {
        let mut reactor = crate::builder().build().unwrap();
        let log = Log::default();
        for _ in 0..4 {
            let (said, witness) = (log.clone(), Witness::bomb(&log, "value"));
            on_ready(&mut reactor, ready(), move |mut turn, event| {
                witness.here();
                said.say("run");
                turn.delete(event.key()).unwrap();
                panic!("handler");
            });
        }
        let panicked = (0..20)
            .filter(|_| catch_unwind(AssertUnwindSafe(|| turn(&mut reactor))).is_err())
            .count();
        let said = log.take();
        let run = said.iter().filter(|word| *word == "run").count();
        assert_eq!((panicked, run, said.len(), reactor.stats().events), (8, 4, 8, 4));
    });
}

/// Calls its closure when the handler that owns it unwinds.
struct Guard<'t, D: Fn(&mut Turn<'_, Reactor>)>(Turn<'t, Reactor>, D);

impl<D: Fn(&mut Turn<'_, Reactor>)> Drop for Guard<'_, D> {
    fn drop(&mut self) {
        (self.1)(&mut self.0);
    }
}

/// A handler's panic runs `delete`, which removes a value whose destructor panics too.
fn deleted_by_a_guard(
    reactor: &mut Reactor,
    log: &Log,
    delete: impl Fn(&mut Turn<'_, Reactor>) + Copy + 'static,
) {
    on_ready(reactor, ready(), move |turn, event| {
        let mut guard = Guard(turn, delete);
        guard.0.delete(event.key()).unwrap();
        panic!("handler");
    });
    assert_eq!(turn_panics(reactor), "handler");
    assert!(log.take().is_empty(), "no destructor runs while a panic is under way");
    assert_eq!(turn_panics(reactor), "the destructor of victim panics");
    assert_eq!(log.take(), ["drop victim"]);
    assert_eq!((turn(reactor), reactor.stats().subscribers, reactor.stats().timers), (0, 0, 0));
}

struct Quiet(OwnedFd, #[expect(dead_code, reason = "dropped")] Witness);

impl Subscriber for Quiet {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
    fn interest(&self) -> Interest {
        interest()
    }
    fn handle(&mut self, _: Event, _: Turn<'_, Reactor>) {}
}

/// Regression: the destructor ran at once, and its panic met the handler's panic and aborted.
#[test]
fn a_subscriber_that_is_deleted_by_an_unwinding_handler_is_destroyed_afterwards() {
    survives(
        "panics::a_subscriber_that_is_deleted_by_an_unwinding_handler_is_destroyed_afterwards",
        || {
            let mut reactor = crate::builder().build().unwrap();
            let log = Log::default();
            let victim = reactor.add(Quiet(ready(), Witness::bomb(&log, "victim"))).unwrap();
            deleted_by_a_guard(&mut reactor, &log, move |turn| turn.delete(victim).unwrap());
        },
    );
}

/// The same regression, for timers.
#[test]
fn a_timer_that_is_cancelled_by_an_unwinding_handler_is_destroyed_afterwards() {
    survives(
        "panics::a_timer_that_is_cancelled_by_an_unwinding_handler_is_destroyed_afterwards",
        || {
            let mut reactor = crate::builder().build().unwrap();
            let log = Log::default();
            let witness = Witness::bomb(&log, "victim");
            let victim = reactor.after(Duration::from_secs(100), move || witness.here()).unwrap();
            deleted_by_a_guard(&mut reactor, &log, move |turn| turn.cancel(victim).unwrap());
        },
    );
}

/// Regression: the descriptor was leaked, neither returned nor closed. A return value is leaked if
/// the destructor of a local panics: rust-lang/rust#47949.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no ppoll")]
fn a_descriptor_is_closed_when_its_handlers_destructor_panics_in_take_fd() {
    let mut reactor = crate::builder().build().unwrap();
    let log = Log::default();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let witness = Witness::bomb(&log, "handler");
    let key = interest()
        .read()
        .with_fd(reader)
        .with_handler(move |_: &mut OwnedFd| witness.here())
        .register_into(&mut reactor)
        .unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| reactor.take_fd::<OwnedFd>(key))).is_err());
    assert_eq!(log.take(), ["drop handler"]);
    // A process that another test is starting may still have the reader for a moment.
    let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
    let mut watched = [PollFd::new(&writer, PollFlags::empty())];
    assert_eq!(poll(&mut watched, Some(&patience)).unwrap(), 1, "the reader is open still");
}

/// Regression: all subscribers were leaked.
#[test]
fn subscribers_are_dropped_when_a_timers_destructor_panics_in_into_subscribers() {
    let mut reactor = crate::builder().build().unwrap();
    let log = Log::default();
    for _ in 0..3 {
        let witness = Witness::new(&log, "subscriber");
        on_ready(&mut reactor, ready(), move |_, _| witness.here());
    }
    let witness = Witness::bomb(&log, "timer");
    reactor.after(Duration::from_secs(100), move || witness.here()).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| reactor.into_subscribers())).is_err());
    let mut said = log.take();
    said.sort();
    assert_eq!(said, ["drop subscriber", "drop subscriber", "drop subscriber", "drop timer"]);
}

/// This attack found no bug.
#[test]
fn a_kept_batch_survives_that_its_reactor_is_swapped_and_emptied() {
    let (mut one, mut other) =
        (crate::builder().build().unwrap(), crate::builder().build().unwrap());
    let fired = Rc::new(Cell::new(None));
    let keys: Vec<Key> = (0..6)
        .map(|_| {
            let fired = fired.clone();
            let handler = move |_: &mut OwnedFd, event: Event| {
                fired.set(Some(event.key()));
                panic!("every one");
            };
            interest()
                .read()
                .edge_triggered()
                .with_fd(ready())
                .with_handler(handler)
                .register_into(&mut one)
                .unwrap()
        })
        .collect();
    turn_panics(&mut one);
    let first = fired.take().unwrap();
    let rest: Vec<Key> = keys.into_iter().filter(|key| *key != first).collect();
    std::mem::swap(&mut one, &mut other);
    drop(other.take_fd::<OwnedFd>(rest[0]).unwrap());
    drop(other.take_boxed(rest[1]).unwrap());
    other.delete(rest[2]).unwrap();
    turn_panics(&mut other);
    assert!(rest[3..].contains(&fired.take().unwrap()), "one of those that are left");
    let left = other.into_subscribers();
    assert_eq!(left.len(), 3);
    for (_, subscriber) in left {
        one.add(subscriber).unwrap();
    }
    turn_panics(&mut one);
}

/// A handler that panics between a kick and its call, a destructor that kicks by a guard while it
/// unwinds, and keys that are stale by then.
#[test]
fn kicks_of_an_unwinding_handler_are_told_to_those_that_are_left() {
    survives("panics::kicks_of_an_unwinding_handler_are_told_to_those_that_are_left", || {
        const READ: Ready = Ready::empty().read();
        let mut reactor = crate::builder().build().unwrap();
        let (count, seen) = counter();
        let idle = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let keys: [Key; 3] = [0, 1, 2].map(|_| {
            let count = count.clone();
            on_ready(&mut reactor, idle(), move |_, event| {
                assert_eq!(event.ready(), READ.error());
                count.set(count.get() + 1);
            })
        });
        on_ready(&mut reactor, ready(), move |turn, event| {
            let mut guard = Guard(turn, move |turn| {
                turn.kick(keys[0], READ).unwrap();
                turn.kick(keys[1], READ.error()).unwrap();
                turn.delete(keys[2]).unwrap();
                assert_eq!(turn.kick(keys[2], READ), Err(KickError::NotFound));
                assert_eq!(turn.kick(event.key(), READ), Err(KickError::NotFound));
            });
            guard.0.kick(keys[0], Ready::empty().error()).unwrap();
            guard.0.kick(keys[2], READ).unwrap();
            guard.0.kick(event.key(), READ).unwrap();
            guard.0.delete(event.key()).unwrap();
            panic!("handler");
        });
        assert_eq!(turn_panics(&mut reactor), "handler");
        assert_eq!((reactor.run_once(None).unwrap(), seen.get()), (2, 2));
        assert_eq!((turn(&mut reactor), reactor.stats().subscribers), (0, 2));
    });
}
