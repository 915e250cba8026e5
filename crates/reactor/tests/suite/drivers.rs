//! The driver that runs at the end of every turn, right before the wait.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use windlass::{Event, NextTurn, Reactor, Turn, TurnDriver, interest, stream::StreamOptions};

use crate::{
    Build,
    bed::{
        HandClock, Log, NOW, Shared, drain, idle, noting, pair, panic_of, readable, ready, ring,
        tcp_pair,
    },
    script::{Script, open},
};

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

/// Reactors whose turns take the different paths of the loop: the shortest, with a latch, beside a
/// timer, and with all steps.
fn reactors(build: Build) -> Vec<(&'static str, Reactor)> {
    let mut all: Vec<_> = ["plain", "remote", "timer", "remote and timer", "hook"]
        .into_iter()
        .map(|name| (name, build().build().unwrap()))
        .collect();
    for (name, reactor) in &mut all {
        if name.contains("remote") {
            drop(reactor.remote());
        }
        if name.contains("timer") {
            reactor.after(HOUR, || panic!("an hour has passed")).unwrap();
        }
        if name.contains("hook") {
            reactor.before_wait(|_| {}).unwrap();
        }
    }
    all.push(("watchdog", build().watchdog(true).build().unwrap()));
    let watch = windlass::ProgressWatch::new(1, |_, _| {});
    all.push(("progress watch", build().progress_watch(watch).build().unwrap()));
    all.push(("busy", build().busy_poll(MS).build().unwrap()));
    all
}

/// A driver that takes its steps one after another, one for each call.
struct Steps<'s>(VecDeque<Box<dyn FnMut(Turn<'_>) -> NextTurn + 's>>);

impl<'s> Steps<'s> {
    fn new() -> Self {
        Self(VecDeque::new())
    }

    fn then(mut self, step: impl FnMut(Turn<'_>) -> NextTurn + 's) -> Self {
        self.0.push_back(Box::new(step));
        self
    }
}

impl TurnDriver for Steps<'_> {
    fn end_of_turn(&mut self, turn: Turn<'_>) -> NextTurn {
        self.0.pop_front().expect("it was called more often than it has steps")(turn)
    }
}

fn a_driver_is_called_before_every_wait(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let log = Log::new();
        let fd = idle();
        noting(&mut reactor, &fd, &log, "handler");
        // Whatever the handler of the last turn did, the wait would be for ever without this.
        let before = reactor.stats().turns;
        let mut left = 3;
        let mut driver = |turn: Turn<'_>| {
            log.note("driver");
            assert_eq!(turn.stats().turns - before, 3 - left, "{name}: one call a turn");
            if left == 0 {
                return NextTurn::Stop;
            }
            left -= 1;
            ring(&fd);
            NextTurn::Wait
        };
        reactor.run_with(&mut driver).unwrap();
        let expected = ["driver", "handler", "driver", "handler", "driver", "handler", "driver"];
        assert_eq!(log.take(), expected, "{name}");
        assert!(!reactor.stop_requested(), "{name}: the run has consumed it");
    }
}

fn a_stop_of_any_kind_ends_the_run_before_the_wait(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let turns = reactor.stats().turns;
        reactor.run_with(&mut |_: Turn<'_>| NextTurn::Stop).unwrap();
        reactor
            .run_with(&mut |mut turn: Turn<'_>| {
                turn.stop();
                NextTurn::Wait
            })
            .unwrap();
        let stop = reactor.stop_handle();
        stop.stop();
        reactor.run_with(&mut |_: Turn<'_>| panic!("it was stopped before")).unwrap();
        assert_eq!(reactor.stats().turns, turns, "{name}");
        assert!(!reactor.stop_requested(), "{name}");
        // A handle wakes the wait.
        let mut by_handle = |_: Turn<'_>| {
            stop.stop();
            NextTurn::Until(Instant::now() + HOUR)
        };
        reactor.run_with(&mut by_handle).unwrap();
        let turns = reactor.stats().turns;
        // A handler stops it too.
        reactor.defer(|mut turn| turn.stop()).unwrap();
        let mut calls = 0;
        reactor
            .run_with(&mut |_: Turn<'_>| {
                calls += 1;
                NextTurn::Wait
            })
            .unwrap();
        assert_eq!((calls, reactor.stats().turns), (1, turns + 1), "{name}");
        // The turn is over: only the owner between two turns may take a subscriber out.
        let key = noting(&mut reactor, &idle(), &Log::new(), ());
        reactor.run_with(&mut |_: Turn<'_>| NextTurn::Stop).unwrap();
        reactor.take_fd::<Shared>(key).unwrap();
    }
}

fn a_stop_from_another_thread_is_not_slept_over(build: Build) {
    for (_, mut reactor) in reactors(build) {
        let stop = reactor.stop_handle();
        // During the driver's call, and after it.
        reactor
            .run_with(&mut |_: Turn<'_>| {
                thread::scope(|scope| _ = scope.spawn(|| stop.stop()));
                NextTurn::Wait
            })
            .unwrap();
        let mut stopper = None;
        reactor
            .run_with(&mut |_: Turn<'_>| {
                let stop = stop.clone();
                stopper.get_or_insert_with(|| thread::spawn(move || stop.stop()));
                NextTurn::Wait
            })
            .unwrap();
        stopper.unwrap().join().unwrap();
    }
}

fn what_the_driver_does_takes_effect_before_the_wait(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let log = Log::new();
        let (quiet, kick) = (idle(), ready());
        let key = noting(&mut reactor, &quiet, &log, "changed");
        let victim = noting(&mut reactor, &kick, &log, "victim");
        let noted = crate::bed::Noted(log.clone(), "dropped");
        let timer = reactor.after(NOW, move || log_of(&noted)).unwrap();
        let deferred = log.clone();
        let (timed, added) = (log.clone(), log.clone());
        let mut driver = Steps::new()
            .then(|mut turn| {
                turn.delete(victim).unwrap();
                turn.cancel(timer).unwrap();
                let log = deferred.clone();
                turn.defer(move |_| log.note("deferred")).unwrap();
                NextTurn::Wait
            })
            .then(|mut turn| {
                let log = timed.clone();
                turn.after_with(MS, move |_| log.note("timer")).unwrap();
                NextTurn::Wait
            })
            .then(|mut turn| {
                turn.modify(key, interest().write()).unwrap();
                NextTurn::Wait
            })
            .then(|mut turn| {
                turn.modify(key, interest()).unwrap();
                noting(&mut turn, &kick, &added, "added");
                NextTurn::Wait
            })
            .then(|_| NextTurn::Stop);
        reactor.run_with(&mut driver).unwrap();
        let expected = ["dropped", "deferred", "timer", "changed", "added"];
        assert_eq!(log.take(), expected, "{name}");
    }
}

fn log_of(noted: &crate::bed::Noted<&'static str>) {
    noted.0.note("fired");
}

fn a_stream_that_the_driver_writes_to_is_sent_before_the_wait(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let stop = reactor.stop_handle();
        let (ours, mut theirs) = tcp_pair();
        theirs.set_nonblocking(false).unwrap();
        let key = open(&mut reactor, StreamOptions::new(), ours.into(), Script::new(&Log::new()));
        let reader = thread::spawn(move || {
            let mut buffer = [0; 5];
            theirs.read_exact(&mut buffer).unwrap();
            stop.stop();
            (theirs, buffer)
        });
        let mut has_sent = false;
        let mut send = |mut turn: Turn<'_>| {
            if !std::mem::replace(&mut has_sent, true) {
                turn.stream(key).unwrap().send(b"hello").unwrap();
            }
            NextTurn::Wait
        };
        reactor.run_with(&mut send).unwrap();
        let (mut theirs, buffer) = reader.join().unwrap();
        assert_eq!(&buffer, b"hello", "{name}");
        // No wait follows here, which would send the bytes.
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut heard = || {
            let mut buffer = [0; 3];
            // It goes on when a ring's work interrupts it.
            theirs.read_exact(&mut buffer).unwrap();
            buffer
        };
        for next in [NextTurn::Stop, NextTurn::Wait] {
            let mut last = |mut turn: Turn<'_>| {
                turn.stream(key).unwrap().send(b"bye").unwrap();
                if next == NextTurn::Wait {
                    turn.stop();
                }
                next
            };
            reactor.run_with(&mut last).unwrap();
            assert_eq!(heard(), *b"bye", "{name}: run_with");
            reactor.run_once_with(None, &mut last).unwrap();
            assert_eq!(heard(), *b"bye", "{name}: run_once_with");
            assert!(reactor.stop_requested());
            reactor.run().unwrap();
        }
    }
}

fn a_driver_that_is_never_done_keeps_nothing_from_running(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let log = Log::new();
        noting(&mut reactor, &ready(), &log, "event");
        let (timed, posted) = (log.clone(), Arc::new(AtomicU64::new(0)));
        reactor.after(MS, move || timed.note("timer")).unwrap();
        let count = posted.clone();
        if name.contains("remote") {
            reactor.remote().try_post(move |_: Turn<'_>| _ = count.fetch_add(1, Relaxed)).unwrap();
        } else {
            count.store(1, Relaxed);
        }
        let start = Instant::now();
        let mut driver = |_: Turn<'_>| {
            assert!(start.elapsed() < Duration::from_secs(20), "{name}: {} came", log.len());
            let is_done = log.len() == 2 && posted.load(Relaxed) == 1;
            if is_done { NextTurn::Stop } else { NextTurn::Again }
        };
        reactor.run_with(&mut driver).unwrap();
        assert_eq!(log.take(), ["event", "timer"], "{name}");
    }
}

fn a_deadline_ends_the_wait_and_never_early(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let start = Instant::now();
        let mut deadlines = (1..=20).map(|at| start + at * MS / 2);
        let mut last = None;
        let mut driver = |_: Turn<'_>| {
            let now = Instant::now();
            assert!(last.is_none_or(|last| now >= last), "{name}: {:?} early", last.unwrap() - now);
            last = deadlines.next();
            last.map_or(NextTurn::Stop, NextTurn::Until)
        };
        reactor.run_with(&mut driver).unwrap();
        assert!(start.elapsed() >= 10 * MS, "{name}");
        // In the past, and beyond the range of every clock.
        let far = Instant::now() + Duration::from_secs(1 << 36);
        let stop = reactor.stop_handle();
        let mut stopper = None;
        let mut driver = Steps::new().then(move |_| NextTurn::Until(start)).then(|_| {
            let stop = stop.clone();
            stopper = Some(thread::spawn(move || stop.stop()));
            NextTurn::Until(far)
        });
        for _ in 0..3 {
            driver = driver.then(|_| NextTurn::Until(far));
        }
        reactor.run_with(&mut driver).unwrap();
        drop(driver);
        stopper.unwrap().join().unwrap();
    }
}

fn what_comes_first_ends_the_wait(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let log = Log::new();
        let timed = log.clone();
        reactor.after(MS, move || timed.note("timer")).unwrap();
        let late = Instant::now() + HOUR;
        let mut driver = |_: Turn<'_>| {
            if log.len() == 0 { NextTurn::Until(late) } else { NextTurn::Stop }
        };
        reactor.run_with(&mut driver).unwrap();
        assert_eq!(log.take(), ["timer"], "{name}");
        // The timeout of a turn of one's own.
        let mut wait = |_: Turn<'_>| NextTurn::Wait;
        assert_eq!(reactor.run_once_with(MS, &mut wait).unwrap(), 0, "{name}");
        assert_eq!(reactor.run_once_with(MS, &mut |_: Turn<'_>| NextTurn::Until(late)).unwrap(), 0);
        let soon = Instant::now() + MS;
        assert_eq!(
            reactor.run_once_with(HOUR, &mut |_: Turn<'_>| NextTurn::Until(soon)).unwrap(),
            0
        );
        assert!(Instant::now() >= soon);
        assert_eq!(reactor.run_once_with(HOUR, &mut |_: Turn<'_>| NextTurn::Again).unwrap(), 0);
        noting(&mut reactor, &ready(), &log, "event");
        assert_eq!(reactor.run_once_with(None, &mut wait).unwrap(), 1, "{name}");
    }
}

fn a_deadline_is_one_of_the_reactors_clock(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    clock.advance(HOUR);
    // It has passed by this clock, and is far off by the kernel's.
    let deadline = clock.time() - MS;
    let mut driver = Steps::new()
        .then(|mut turn| {
            assert_eq!(turn.now(), clock.time());
            NextTurn::Until(deadline)
        })
        .then(|mut turn| {
            clock.advance(MS);
            assert_eq!(turn.now(), clock.time(), "the clock is read anew");
            clock.advance(MS);
            assert_eq!(turn.now(), clock.time() - MS, "once a call");
            NextTurn::Stop
        });
    reactor.run_with(&mut driver).unwrap();
}

fn a_wake_during_the_drivers_call_is_not_slept_over(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let remote = reactor.remote();
        let count = Arc::new(AtomicU64::new(0));
        let mut driver = Steps::new();
        for from_outside in [false, true, true] {
            let (remote, count) = (&remote, &count);
            driver = driver.then(move |_| {
                let count = count.clone();
                let post = move || {
                    remote.try_post(move |_: Turn<'_>| _ = count.fetch_add(1, Relaxed)).unwrap();
                };
                if from_outside {
                    thread::scope(|scope| _ = scope.spawn(post));
                } else {
                    post();
                }
                NextTurn::Wait
            });
        }
        // A bare wake ends the wait without any call.
        driver = driver
            .then(|_| {
                remote.wake();
                NextTurn::Wait
            })
            .then(|_| NextTurn::Stop);
        reactor.run_with(&mut driver).unwrap();
        assert_eq!(count.load(Relaxed), 3, "{name}");
    }
}

// Posts that come at any moment of the turns. A lost wake hangs the test.
fn no_post_is_lost_beside_a_driver(build: Build) {
    let rounds: u64 = if cfg!(miri) { 20 } else { 5_000 };
    let mut reactor = build().build().unwrap();
    let remote = reactor.remote();
    let count = Arc::new(AtomicU64::new(0));
    let seen = count.clone();
    let poster = thread::spawn(move || {
        for round in 0..rounds {
            let counted = seen.clone();
            assert!(remote.post(move |_: Turn<'_>| _ = counted.fetch_add(1, Relaxed)).is_ok());
            while round % 3 == 0 && seen.load(Relaxed) <= round {
                thread::yield_now();
            }
        }
    });
    let mut driver = |_: Turn<'_>| {
        if count.load(Relaxed) == rounds { NextTurn::Stop } else { NextTurn::Wait }
    };
    reactor.run_with(&mut driver).unwrap();
    poster.join().unwrap();
}

fn a_panic_of_the_driver_leaves_the_reactor_usable(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let log = Log::new();
        let fd = ready();
        noting(&mut reactor, &fd, &log, "event");
        let (ours, mut theirs) = pair();
        let key = open(&mut reactor, StreamOptions::new(), ours.into(), Script::new(&Log::new()));
        log.take();
        let (deferred, timed) = (log.clone(), log.clone());
        let mut driver = Steps::new()
            .then(|mut turn| {
                turn.stream(key).unwrap().send(b"x").unwrap();
                let log = deferred.clone();
                turn.defer(move |_| log.note("deferred")).unwrap();
                let log = timed.clone();
                turn.after(NOW, move || log.note("timer")).unwrap();
                let _: std::time::Instant = turn.now();
                panic!("driver")
            })
            .then(|_| {
                log.note("driver");
                ring(&fd);
                NextTurn::Wait
            })
            .then(|_| if log.len() < 4 { NextTurn::Again } else { NextTurn::Stop })
            .then(|_| NextTurn::Stop);
        let other = noting(&mut reactor, &idle(), &Log::new(), ());
        assert_eq!(panic_of(|| reactor.run_with(&mut driver)), "driver");
        assert!(!reactor.stop_requested());
        // The turn is over: only the owner between two turns may take a subscriber out.
        reactor.take_fd::<Shared>(other).unwrap();
        reactor.run_with(&mut driver).unwrap();
        drop(driver);
        let mut notes = log.take();
        assert_eq!(notes.remove(0), "driver", "{name}: it is called before the wait");
        notes.sort_unstable();
        assert_eq!(notes, ["deferred", "event", "timer"], "{name}");
        assert_eq!(crate::bed::read_some(&mut theirs), b"x", "{name}");
    }
}

/// A queue that other values put something into when they are dropped.
#[derive(Clone, Default)]
struct Queue(Rc<RefCell<Vec<&'static str>>>);

struct PushedByDrop(Queue, &'static str);

impl Drop for PushedByDrop {
    fn drop(&mut self) {
        self.0.0.borrow_mut().push(self.1);
    }
}

/// A driver that runs a queue. It waits only if the queue is empty.
fn run_queue(queue: &Queue, log: &Log<&'static str>) -> impl FnMut(Turn<'_>) -> NextTurn {
    let (queue, log) = (queue.clone(), log.clone());
    move |_| {
        for name in queue.0.take() {
            log.note(name);
            if name == "stop" {
                return NextTurn::Stop;
            }
        }
        NextTurn::Wait
    }
}

// The destructor runs at the start of the next turn. The driver must be asked after it.
fn the_driver_sees_what_a_late_destructor_has_queued(build: Build) {
    for (name, mut reactor) in reactors(build) {
        let (queue, log) = (Queue::default(), Log::new());
        let pushes = PushedByDrop(queue.clone(), "stop");
        let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
            let _ = &pushes;
            turn.delete(event.key()).unwrap();
            panic!("handler");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
        let mut driver = run_queue(&queue, &log);
        assert_eq!(panic_of(|| reactor.run_with(&mut driver)), "handler");
        assert_eq!(log.len(), 0, "{name}");
        reactor.run_with(&mut driver).unwrap();
        assert_eq!(log.take(), ["stop"], "{name}");
    }
}

// The same, for a destructor that the driver itself has put off: it has caught a panic.
fn the_driver_sees_what_its_own_late_destructor_has_queued(build: Build) {
    struct Guard<'t>(Turn<'t>, windlass::Key);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.delete(self.1).unwrap();
        }
    }
    for (name, mut reactor) in reactors(build) {
        let (queue, log) = (Queue::default(), Log::new());
        let pushes = PushedByDrop(queue.clone(), "stop");
        let handler = move || _ = &pushes;
        let key =
            readable().with_fd(idle()).with_handler(handler).register_into(&mut reactor).unwrap();
        let mut inner = run_queue(&queue, &log);
        let mut is_first = true;
        let mut driver = |mut turn: Turn<'_>| {
            if std::mem::take(&mut is_first) {
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let _guard = Guard(turn.reborrow(), key);
                    std::panic::resume_unwind(Box::new(()));
                }));
                assert!(unwound.is_err() && queue.0.borrow().is_empty());
            }
            inner(turn)
        };
        reactor.run_with(&mut driver).unwrap();
        assert_eq!(log.take(), ["stop"], "{name}");
    }
}

fn the_driver_sees_what_a_hook_before_the_wait_has_queued(build: Build) {
    let mut reactor = build().build().unwrap();
    let (queue, log) = (Queue::default(), Log::new());
    let theirs = queue.clone();
    reactor.before_wait(move |_| theirs.0.borrow_mut().push("stop")).unwrap();
    reactor.run_with(&mut run_queue(&queue, &log)).unwrap();
    assert_eq!((log.take(), reactor.stats().turns), (vec!["stop"], 0));
}

fn events_kept_by_a_panic_come_beside_a_driver(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let calls = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let (log, calls) = (log.clone(), calls.clone());
        let handler = move |fd: &mut Shared| {
            drain(fd);
            calls.set(calls.get() + 1);
            assert!(calls.get() > 1, "first");
            log.note("event");
        };
        readable().with_fd(ready()).with_handler(handler).register_into(&mut reactor).unwrap();
    }
    let mut driver = |_: Turn<'_>| {
        log.note("driver");
        if log.len() < 3 { NextTurn::Wait } else { NextTurn::Stop }
    };
    assert_eq!(panic_of(|| reactor.run_with(&mut driver)), "first");
    reactor.run_with(&mut driver).unwrap();
    assert_eq!(log.take(), ["driver", "driver", "event", "event", "driver"]);
}

fn drivers_of_every_form_are_accepted(build: Build) {
    fn answer(_: Turn<'_>) -> NextTurn {
        NextTurn::Stop
    }
    let mut reactor = build().build().unwrap();
    let mut boxed: Box<dyn FnMut(Turn<'_>) -> NextTurn> = Box::new(answer);
    reactor.run_with(&mut boxed).unwrap();
    let by_name: &mut dyn TurnDriver = &mut Steps::new().then(answer);
    reactor.run_with(by_name).unwrap();
    reactor.run_with(&mut answer).unwrap();
    assert_eq!(reactor.stats().turns, 0);
}

scenarios! {
    a_driver_is_called_before_every_wait,
    a_stop_of_any_kind_ends_the_run_before_the_wait,
    a_stop_from_another_thread_is_not_slept_over,
    what_the_driver_does_takes_effect_before_the_wait,
    #[cfg_attr(miri, ignore = "Miri has no sockets of TCP")]
    a_stream_that_the_driver_writes_to_is_sent_before_the_wait,
    a_driver_that_is_never_done_keeps_nothing_from_running,
    a_deadline_ends_the_wait_and_never_early,
    what_comes_first_ends_the_wait,
    a_deadline_is_one_of_the_reactors_clock,
    a_wake_during_the_drivers_call_is_not_slept_over,
    no_post_is_lost_beside_a_driver,
    a_panic_of_the_driver_leaves_the_reactor_usable,
    the_driver_sees_what_a_late_destructor_has_queued,
    the_driver_sees_what_its_own_late_destructor_has_queued,
    the_driver_sees_what_a_hook_before_the_wait_has_queued,
    events_kept_by_a_panic_come_beside_a_driver,
    drivers_of_every_form_are_accepted,
}
