//! Posts, timers and handlers of descriptors, for many seeds.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use windlass::{
    Key, Reactor, Registrar, Turn, interest,
    sim::{self, Faults, Kernel, Sim, SimFd, ThreadStep},
};

use crate::tools::again;

const SECOND: Duration = Duration::from_secs(1);

/// Writes one to an eventfd, from time to time.
fn write_from_a_thread(sim: &Sim, fd: SimFd, times: u64) {
    let host = sim.host([10, 0, 0, 1].into());
    let (kernel, mut written) = (sim.kernel().clone(), 0);
    sim.thread(&host, move || {
        written += u64::from(fd.write(&1u64.to_ne_bytes()).is_ok());
        match written {
            count if count == times => ThreadStep::End,
            _ => ThreadStep::After(Duration::from_nanos(1 + kernel.choose(20_000))),
        }
    });
}

/// Reads an eventfd. A fault may interrupt the call.
fn read(fd: &SimFd) -> u64 {
    let mut count = [0; 8];
    loop {
        match fd.read(&mut count) {
            Ok(_) => return u64::from_ne_bytes(count),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return 0,
        }
    }
}

/// Runs the simulation until something is so, through the panics of handlers. Their number.
pub(crate) fn run_through_panics(sim: &Sim, is_so: impl Fn() -> bool) -> u64 {
    let mut panics = 0;
    while catch_unwind(AssertUnwindSafe(|| sim.run_until(&is_so).unwrap())).is_err() {
        panics += 1;
        assert!(panics < 1_000, "it does not end");
    }
    panics
}

#[test]
fn posts_run_once_and_in_order() {
    sim::check(|sim| {
        let mut reactor =
            sim.builder().calls_per_turn(3).remote_max(8).build().expect("the settings are valid");
        let host = sim.host([10, 0, 0, 1].into());
        let ran = Arc::new(Mutex::new([0_u64; 3]));
        for thread in 0..3 {
            let (remote, ran, kernel) = (reactor.remote(), Arc::clone(&ran), sim.kernel().clone());
            let mut next = 0;
            sim.thread(&host, move || {
                let (ran, number) = (Arc::clone(&ran), next);
                let post = move |_: Turn<'_>| {
                    let mut ran = ran.lock().unwrap();
                    assert_eq!(ran[thread], number, "out of order, lost or doubled");
                    ran[thread] += 1;
                };
                let is_accepted = remote.try_post(post).is_ok();
                next += u64::from(is_accepted);
                match next {
                    20 => ThreadStep::End,
                    _ if is_accepted && kernel.choose(3) > 0 => ThreadStep::Again,
                    _ => ThreadStep::After(Duration::from_nanos(1 + kernel.choose(3_000))),
                }
            });
        }
        sim.spawn(reactor);
        // Nothing else would wake the reactor.
        sim.run_for(SECOND).unwrap();
        assert_eq!(*ran.lock().unwrap(), [20; 3]);
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

/// The deadline of each timer that runs, as a naive list.
type Deadlines = Rc<RefCell<Vec<(Option<Key>, Option<Instant>)>>>;

/// Starts, resets or cancels some timers, of which none may be later than `late_max`.
fn change(
    timers: &Deadlines,
    kernel: &Kernel,
    fired: &Rc<Cell<u64>>,
    late_max: Duration,
    turn: &mut Turn<'_>,
) {
    for _ in 0..kernel.choose(4) {
        let place = usize::try_from(kernel.choose(12)).unwrap();
        let delay = Duration::from_nanos(kernel.choose(50_000_000));
        let (key, deadline) = timers.borrow()[place];
        let at = Some(turn.now() + delay);
        match (key, deadline) {
            (Some(key), Some(_)) if kernel.choose(3) == 0 => {
                turn.cancel(key).unwrap();
                timers.borrow_mut()[place] = (None, None);
            }
            (Some(key), Some(_)) => {
                turn.reset(key, delay).unwrap();
                timers.borrow_mut()[place].1 = at;
            }
            _ => {
                let (all, kernel, fired) = (Rc::clone(timers), kernel.clone(), Rc::clone(fired));
                let fire = move |mut turn: Turn<'_>| {
                    let (_, deadline) = std::mem::take(&mut all.borrow_mut()[place]);
                    let deadline = deadline.expect("a timer fires that was cancelled or has fired");
                    let late = turn.now().checked_duration_since(deadline).expect("early");
                    assert!(late <= late_max, "late by {late:?}");
                    fired.set(fired.get() + 1);
                    if fired.get() < 100 {
                        change(&all, &kernel, &fired, late_max, &mut turn);
                    }
                };
                timers.borrow_mut()[place] = (Some(turn.after_with(delay, fire).unwrap()), at);
            }
        }
    }
}

fn timers_are_punctual(sim: &Sim, late_max: Duration) {
    let mut reactor = sim.reactor().unwrap();
    let timers: Deadlines = Rc::new(RefCell::new(vec![(None, None); 12]));
    let (all, kernel, fired) = (Rc::clone(&timers), sim.kernel().clone(), Rc::default());
    let begin = move |mut turn: Turn<'_>| {
        for _ in 0..6 {
            change(&all, &kernel, &fired, late_max, &mut turn);
        }
    };
    reactor.defer(begin).unwrap();
    sim.spawn(reactor);
    sim.run_for(SECOND * 10).unwrap();
    let late: Vec<_> = timers.borrow().iter().filter_map(|(_, deadline)| *deadline).collect();
    assert!(late.is_empty(), "{} timers have not fired", late.len());
}

#[test]
fn timers_that_are_reset_and_cancelled_fire_when_they_are_due() {
    let punctual = |sim: &mut Sim| timers_are_punctual(sim, Duration::from_micros(3));
    sim::check(punctual).seeds(100).faults(Faults::calm()).run();
    let soon = |sim: &mut Sim| timers_are_punctual(sim, SECOND);
    sim::check(soon).seeds(100).faults(Faults::hostile()).run();
}

/// Rule 8: the panicking handler's event is consumed, and the rest of the batch is kept.
#[test]
fn no_event_is_lost_when_handlers_panic() {
    sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let counted = Rc::new(Cell::new(0));
        for _ in 0..6 {
            let counter = again(|| sim.eventfd(0));
            let (counted, kernel) = (Rc::clone(&counted), sim.kernel().clone());
            let handler = move |fd: &mut SimFd| {
                counted.set(counted.get() + read(fd));
                assert!(!kernel.chance(100_000), "planned");
            };
            write_from_a_thread(sim, counter.clone(), 10);
            let edges = interest().read().edge_triggered().with_fd(counter);
            edges.with_handler(handler).register_into(&mut reactor).unwrap();
        }
        sim.spawn(reactor);
        run_through_panics(sim, || counted.get() == 60);
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

/// Rule 8: timers that a panic has put off come first. The event that leads to it is in each batch,
/// and only pauses of the reactor let time pass.
#[test]
fn panics_in_every_turn_do_not_put_timers_off() {
    sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let counter = again(|| sim.eventfd(1));
        let panicking = |_: &mut SimFd| panic!("planned");
        let level = interest().read().with_fd(counter).with_handler(panicking);
        level.register_into(&mut reactor).unwrap();
        let fired = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (fired, span) = (Rc::clone(&fired), sim.kernel().choose(1_000));
            let fire = move |_: Turn<'_>| fired.set(fired.get() + 1);
            reactor.after_with(Duration::from_nanos(span), fire).unwrap();
        }
        sim.spawn(reactor);
        run_through_panics(sim, || fired.get() == 3);
    })
    .seeds(20)
    .faults(Faults { pause: 100_000, ..Faults::calm() })
    .run();
}

#[test]
fn a_one_shot_is_silent_until_it_is_armed_and_loses_nothing() {
    sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let counted = Rc::new(Cell::new(0));
        for _ in 0..4 {
            let counter = again(|| sim.eventfd(0));
            let is_armed = Rc::new(Cell::new(true));
            let (counted, kernel) = (Rc::clone(&counted), sim.kernel().clone());
            let key = Rc::new(Cell::new(None));
            let own = Rc::clone(&key);
            let handler = move |fd: &mut SimFd, mut turn: Turn<'_>| {
                assert!(is_armed.replace(false), "it has fired and was not armed");
                counted.set(counted.get() + read(fd));
                let (key, is_armed) = (own.get().expect("it is registered"), Rc::clone(&is_armed));
                if kernel.choose(2) == 0 {
                    is_armed.set(true);
                    return turn.rearm(key).unwrap();
                }
                let later = Duration::from_nanos(kernel.choose(50_000));
                let arm = move |mut turn: Turn<'_>| {
                    is_armed.set(true);
                    turn.rearm(key).unwrap();
                };
                turn.after_with(later, arm).unwrap();
            };
            write_from_a_thread(sim, counter.clone(), 10);
            let once = interest().read().one_shot().with_fd(counter);
            key.set(Some(once.with_handler(handler).register_into(&mut reactor).unwrap()));
        }
        sim.spawn(reactor);
        sim.run_until(|| counted.get() == 40).unwrap();
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

/// Rules 7 and 9: a descriptor that is deleted and added again, also within one turn.
#[test]
fn a_descriptor_that_is_added_again_loses_nothing() {
    /// Registers it, until it registers itself again.
    fn register(
        reactor: &mut impl Registrar<Ops = Reactor>,
        counter: SimFd,
        kernel: Kernel,
        counted: Rc<Cell<u64>>,
    ) {
        let (key, is_deleted) = (Rc::new(Cell::new(None)), Cell::new(false));
        let own: Rc<Cell<Option<Key>>> = Rc::clone(&key);
        let handler = move |fd: &mut SimFd, mut turn: Turn<'_, Reactor>| {
            assert!(!is_deleted.get(), "it was deleted");
            counted.set(counted.get() + read(fd));
            if kernel.choose(3) == 0 {
                is_deleted.set(true);
                turn.delete(own.get().expect("it is registered")).unwrap();
                let (fd, kernel, counted) = (fd.clone(), kernel.clone(), Rc::clone(&counted));
                let again = move |mut turn: Turn<'_, Reactor>| {
                    register(&mut turn, fd, kernel, counted);
                };
                turn.defer(again).unwrap();
            }
        };
        let edges = interest().read().edge_triggered().with_fd(counter);
        key.set(Some(edges.with_handler(handler).register_into(reactor).unwrap()));
    }

    sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let counted = Rc::new(Cell::new(0));
        for _ in 0..4 {
            let counter = again(|| sim.eventfd(0));
            write_from_a_thread(sim, counter.clone(), 10);
            register(&mut reactor, counter, sim.kernel().clone(), Rc::clone(&counted));
        }
        sim.spawn(reactor);
        sim.run_until(|| counted.get() == 40).unwrap();
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

/// A descriptor of the next test.
struct Place {
    fd: SimFd,
    key: Cell<Option<Key>>,
}

/// Registers the descriptor of a place. Its handler replaces others.
fn replace(
    into: &mut impl Registrar<Ops = Reactor>,
    places: &Rc<Vec<Place>>,
    at: usize,
    (kernel, counted): (Kernel, Rc<Cell<u64>>),
    born: u64,
) {
    let all = Rc::clone(places);
    let handler = move |fd: &mut SimFd, mut turn: Turn<'_, Reactor>| {
        assert_ne!(turn.number(), born, "it fires in the turn in which it was added");
        counted.set(counted.get() + read(fd));
        let other = usize::try_from(kernel.choose(2 * all.len() as u64)).unwrap();
        if other == at || other >= all.len() {
            return;
        }
        turn.delete(all[other].key.get().expect("it is registered")).unwrap();
        let (both, number) = ((kernel.clone(), Rc::clone(&counted)), turn.number());
        replace(&mut turn, &all, other, both, number);
    };
    let edges = interest().read().edge_triggered().with_fd(places[at].fd.clone());
    let key = edges.with_handler(handler).register_into(into).unwrap();
    places[at].key.set(Some(key));
}

/// Rules 2 and 9: the memory of a deleted cell may be used again in the turn, but not while the
/// batch names it.
#[test]
fn what_is_added_in_a_turn_does_not_fire_in_it() {
    sim::check(|sim| {
        let mut reactor = sim.reactor().unwrap();
        let counted = Rc::new(Cell::new(0));
        let place = |_| Place { fd: again(|| sim.eventfd(0)), key: Cell::new(None) };
        let places: Rc<Vec<Place>> = Rc::new((0..6).map(place).collect());
        for (at, place) in places.iter().enumerate() {
            write_from_a_thread(sim, place.fd.clone(), 10);
            let both = (sim.kernel().clone(), Rc::clone(&counted));
            replace(&mut reactor, &places, at, both, u64::MAX);
        }
        sim.spawn(reactor);
        sim.run_until(|| counted.get() == 60).unwrap();
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}
