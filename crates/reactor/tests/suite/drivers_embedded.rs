//! The driver of a reactor inside another loop: its answer makes the descriptor readable.

use std::{
    cell::Cell,
    io::Read,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass::{Backend, Embedded, Event, NextTurn, Reactor, Turn, stream::StreamOptions};

use crate::{
    Build,
    bed::{Log, NOW, idle, noting, panic_of, readable, ready, tcp_pair},
    script::{Script, open},
};

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

fn embedded(build: Build) -> Embedded {
    build().build().unwrap().embed().unwrap()
}

fn is_readable(guest: &Embedded) -> bool {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(guest, PollFlags::IN)], Some(&zero)).unwrap() == 1
}

/// Sleeps like a host until the descriptor is readable. Otherwise the test hangs.
fn sleep(guest: &Embedded) {
    assert_eq!(poll(&mut [PollFd::new(guest, PollFlags::IN)], None).unwrap(), 1);
}

/// Runs one turn with a driver that gives this answer.
fn answer(guest: &mut Embedded, next: NextTurn) {
    guest.run_once_with(NOW, &mut |_: Turn<'_>| next).unwrap();
}

fn the_answer_makes_it_readable_or_not(build: Build) {
    let mut guest = embedded(build);
    answer(&mut guest, NextTurn::Wait);
    assert!(!is_readable(&guest));
    answer(&mut guest, NextTurn::Again);
    assert!(is_readable(&guest));
    // The answer holds until the driver is asked again.
    guest.run_once(NOW).unwrap();
    guest.with(|_| ());
    assert!(is_readable(&guest));
    answer(&mut guest, NextTurn::Until(Instant::now() + HOUR));
    assert!(!is_readable(&guest));
    answer(&mut guest, NextTurn::Until(Instant::now() - MS));
    sleep(&guest);
    answer(&mut guest, NextTurn::Stop);
    assert!(guest.with(|reactor| reactor.stop_requested()));
    assert!(!is_readable(&guest));
}

/// Blocks of deleted cells and merged changes were left to another turn, for which the host woke.
fn a_turn_leaves_no_work_for_another(build: Build) {
    let mut guest = embedded(build);
    let (log, quiet) = (Log::new(), idle());
    let key = guest.with(|reactor| {
        let handler = |event: Event, mut turn: Turn<'_, _>| turn.delete(event.key()).unwrap();
        readable().with_fd(ready()).with_handler(handler).register_into(reactor).unwrap();
        noting(reactor, &quiet, &log, "quiet")
    });
    assert_eq!(guest.run_once(NOW).unwrap(), 1);
    assert!(!is_readable(&guest), "after a deletion");
    if guest.with(|reactor| reactor.backend()) == Backend::Uring {
        // There a change reaches the kernel with the next wait.
        return;
    }
    let mut driver = |mut turn: Turn<'_>| {
        turn.modify(key, readable().priority()).unwrap();
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut driver).unwrap();
    assert!(!is_readable(&guest), "after a change by the driver");
}

fn a_deadline_wakes_the_host_and_never_early(build: Build) {
    let mut guest = embedded(build);
    for with_timer in [false, true, false] {
        let key = guest.with(|reactor| reactor.after(HOUR, || panic!("an hour")).unwrap());
        if !with_timer {
            guest.with(|reactor| reactor.cancel(key)).unwrap();
        }
        let deadline = Instant::now() + 2 * MS;
        answer(&mut guest, NextTurn::Until(deadline));
        sleep(&guest);
        assert!(Instant::now() >= deadline);
        answer(&mut guest, NextTurn::Wait);
        assert!(!is_readable(&guest), "the deadline is forgotten");
    }
}

fn a_timer_before_the_deadline_wakes_the_host(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let noted = log.clone();
    guest.with(|reactor| reactor.after(MS, move || noted.note("timer")).unwrap());
    let mut driver = |_: Turn<'_>| NextTurn::Until(Instant::now() + HOUR);
    guest.run_once_with(NOW, &mut driver).unwrap();
    while log.len() == 0 {
        sleep(&guest);
        guest.run_once_with(NOW, &mut driver).unwrap();
    }
    assert!(!is_readable(&guest));
}

fn the_driver_is_called_after_the_turn(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    guest.with(|reactor| noting(reactor, &ready(), &log, "event"));
    let mut driver = |_: Turn<'_>| {
        log.note("driver");
        NextTurn::Wait
    };
    assert_eq!(guest.run_once_with(NOW, &mut driver).unwrap(), 1);
    assert_eq!(log.take(), ["event", "driver"]);
    // A turn that may wait asks before the wait, too.
    assert_eq!(guest.run_once_with(MS, &mut driver).unwrap(), 0);
    assert_eq!(log.take(), ["driver", "driver"]);
}

fn what_the_driver_does_is_done_before_the_host_sleeps(build: Build) {
    let mut guest = embedded(build);
    let log = Log::new();
    let (ours, mut theirs) = tcp_pair();
    theirs.set_nonblocking(false).unwrap();
    let key = guest
        .with(|reactor| open(reactor, StreamOptions::new(), ours.into(), Script::new(&Log::new())));
    let mut send = |mut turn: Turn<'_>| {
        turn.stream(key).unwrap().send(b"hello").unwrap();
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut send).unwrap();
    let mut buffer = [0; 5];
    theirs.read_exact(&mut buffer).unwrap();
    let deferred = log.clone();
    let mut defer = |mut turn: Turn<'_>| {
        let log = deferred.clone();
        turn.defer(move |_| log.note("deferred")).unwrap();
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut defer).unwrap();
    assert!(is_readable(&guest));
    answer(&mut guest, NextTurn::Wait);
    assert_eq!(log.take(), ["deferred"]);
    let timed = log.clone();
    let mut start = |mut turn: Turn<'_>| {
        let log = timed.clone();
        turn.after(NOW, move || log.note("timer")).unwrap();
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut start).unwrap();
    while log.len() == 0 {
        sleep(&guest);
        answer(&mut guest, NextTurn::Wait);
    }
    let quiet = crate::bed::idle();
    let key = guest.with(|reactor| noting(reactor, &quiet, &log, "changed"));
    let mut change = |mut turn: Turn<'_>| {
        turn.modify(key, windlass::interest().write()).unwrap();
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut change).unwrap();
    sleep(&guest);
    answer(&mut guest, NextTurn::Wait);
    let mut delete = |mut turn: Turn<'_>| {
        turn.delete(key).unwrap();
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut delete).unwrap();
    assert!(!is_readable(&guest));
    // Once more in the turn before the deletion.
    assert_eq!(log.take(), ["timer", "changed", "changed"]);
}

fn a_wake_during_the_drivers_call_wakes_the_host(build: Build) {
    let mut guest = embedded(build);
    let remote = guest.with(Reactor::remote);
    let (log, ran) = (Log::new(), Rc::new(Cell::new(false)));
    let mut post = |_: Turn<'_>| {
        if !ran.replace(true) {
            thread::scope(|scope| {
                scope.spawn(|| remote.try_post(|mut turn: Turn<'_>| turn.stop()).unwrap());
            });
        }
        log.note(());
        NextTurn::Wait
    };
    guest.run_once_with(NOW, &mut post).unwrap();
    sleep(&guest);
    guest.run_once_with(NOW, &mut post).unwrap();
    assert!(guest.with(|reactor| reactor.stop_requested()));
}

fn a_panic_makes_it_readable(build: Build) {
    let mut guest = embedded(build);
    let mut driver = |_: Turn<'_>| -> NextTurn { panic!("driver") };
    assert_eq!(panic_of(|| guest.run_once_with(NOW, &mut driver)), "driver");
    assert!(is_readable(&guest), "the driver has not answered");
    answer(&mut guest, NextTurn::Wait);
    assert!(!is_readable(&guest));
    // A handler's panic keeps the driver from being called in that turn.
    guest.with(|reactor| reactor.defer(|_: Turn<'_, _>| panic!("closure"))).unwrap();
    let mut never = |_: Turn<'_>| -> NextTurn { unreachable!("the turn has panicked") };
    assert_eq!(panic_of(|| guest.run_once_with(NOW, &mut never)), "closure");
    assert!(is_readable(&guest));
    answer(&mut guest, NextTurn::Wait);
    assert!(!is_readable(&guest));
}

scenarios! {
    the_answer_makes_it_readable_or_not except [poll "a wait of poll(2) has no descriptor"],
    a_turn_leaves_no_work_for_another except [poll "a wait of poll(2) has no descriptor"],
    a_deadline_wakes_the_host_and_never_early except [poll "a wait of poll(2) has no descriptor"],
    a_timer_before_the_deadline_wakes_the_host except [poll "a wait of poll(2) has no descriptor"],
    the_driver_is_called_after_the_turn except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "Miri has no sockets of TCP")]
    what_the_driver_does_is_done_before_the_host_sleeps
        except [poll "a wait of poll(2) has no descriptor"],
    a_wake_during_the_drivers_call_wakes_the_host
        except [poll "a wait of poll(2) has no descriptor"],
    a_panic_makes_it_readable except [poll "a wait of poll(2) has no descriptor"],
}
