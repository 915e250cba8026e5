//! Signals. raise(3) sends a signal to the calling thread, and masks are per thread, so parallel
//! tests do not interfere.

use std::{cell::Cell, io, mem::MaybeUninit, ptr, rc::Rc, sync::mpsc, thread};

use rustix::thread::gettid;
use windlass::{Event, Group, Reactor, ReceivedSignals, Signal, SignalSet, Turn, interest};

use crate::{
    Build,
    bed::{Log, NOW, in_own_process, run_dry},
    waits::signal_thread,
};

/// Sends a signal to this thread.
fn raise(signal: Signal) {
    // SAFETY: raise(3) has no preconditions. The callers have blocked the signal.
    assert_eq!(unsafe { libc::raise(signal.as_raw()) }, 0);
}

/// A set of signals of the process or thread, filled by a function of the C library.
fn filled(fill: impl FnOnce(*mut libc::sigset_t) -> i32) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    assert_eq!(fill(set.as_mut_ptr()), 0);
    // SAFETY: all zeros are a valid empty set on Linux, and the call has succeeded.
    unsafe { set.assume_init() }
}

fn contains(set: &libc::sigset_t, signal: Signal) -> bool {
    // SAFETY: the set is initialised and valid throughout the call.
    unsafe { libc::sigismember(set, signal.as_raw()) == 1 }
}

/// True if this thread has blocked the signal.
fn is_blocked(signal: Signal) -> bool {
    // SAFETY: the new mask may be null. The old one is written to valid memory.
    contains(
        &filled(|set| unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set) }),
        signal,
    )
}

/// True if the signal is pending for this thread.
fn is_pending(signal: Signal) -> bool {
    // SAFETY: the pointer is valid for a write of the set.
    contains(&filled(|set| unsafe { libc::sigpending(set) }), signal)
}

/// Blocks or unblocks a signal directly, without a `SignalSet`.
fn mask(how: i32, signal: Signal) {
    let set = filled(|set| {
        // SAFETY: the pointer is valid for a write of the set.
        unsafe { libc::sigemptyset(set) };
        // SAFETY: sigemptyset(3) has initialised the set.
        unsafe { libc::sigaddset(set, signal.as_raw()) }
    });
    // SAFETY: the set is initialised. A null pointer for the old mask is allowed.
    assert_eq!(unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) }, 0);
}

/// Registers a set whose handler reads it and records the signals.
fn watch(reactor: &mut Reactor, set: SignalSet, log: &Log<Vec<Signal>>) -> windlass::Key {
    let log = log.clone();
    let handler = move |set: &mut SignalSet| log.note(set.read().unwrap().iter().collect());
    interest().read().with_fd(set).with_handler(handler).register_into(reactor).unwrap()
}

fn a_signal_is_an_event_that_says_which_came(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let set = SignalSet::new([Signal::USR1, Signal::USR2, Signal::TERM, Signal::USR1]).unwrap();
    assert!(is_blocked(Signal::USR1) && is_blocked(Signal::TERM) && !is_blocked(Signal::HUP));
    let key = watch(&mut reactor, set, &log);
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    raise(Signal::USR2);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [[Signal::USR2]]);
    raise(Signal::TERM);
    raise(Signal::USR1);
    assert_eq!(run_dry(&mut reactor), 1);
    assert_eq!(log.take(), [[Signal::USR1, Signal::TERM]], "both in one event, by number");
    reactor.delete(key).unwrap();
    assert!(!is_blocked(Signal::USR1), "the mask is as it was");
}

fn signals_of_one_kind_coalesce(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let realtime = Signal::from_raw(libc::SIGRTMIN() + 3).unwrap();
    watch(&mut reactor, SignalSet::new([Signal::USR1, realtime]).unwrap(), &log);
    for _ in 0..5 {
        raise(Signal::USR1);
        raise(realtime);
    }
    assert_eq!(run_dry(&mut reactor), 1, "one read takes all, those that queue as well");
    assert_eq!(log.take(), [[Signal::USR1, realtime]]);
}

fn a_signal_from_another_thread_ends_the_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    watch(&mut reactor, SignalSet::new([Signal::USR1]).unwrap(), &log);
    let this = gettid();
    let sender = thread::spawn(move || signal_thread(this, libc::SIGUSR1));
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    sender.join().unwrap();
    assert_eq!(log.take(), [[Signal::USR1]]);
}

fn a_set_of_nothing_is_silent(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    watch(&mut reactor, SignalSet::new([]).unwrap(), &log);
    assert_eq!((run_dry(&mut reactor), log.len()), (0, 0));
    assert_eq!(SignalSet::new([]).unwrap().read().unwrap(), ReceivedSignals::default());
}

fn what_cannot_be_caught_is_refused_and_the_mask_stays(_: Build) {
    for raw in [libc::SIGKILL, libc::SIGSTOP, 32, 33, libc::SIGRTMIN() - 1] {
        let signal = Signal::from_raw(raw).unwrap();
        let error = SignalSet::new([Signal::USR1, signal]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{signal:?}");
        assert!(!is_blocked(Signal::USR1));
    }
}

fn a_pending_signal_is_discarded_with_its_set(_: Build) {
    // By default SIGUSR1 ends the process. If it were not discarded, the test program would end.
    let set = SignalSet::new([Signal::USR1]).unwrap();
    raise(Signal::USR1);
    assert!(is_pending(Signal::USR1));
    drop(set);
    assert!(!is_pending(Signal::USR1) && !is_blocked(Signal::USR1));
}

fn a_set_that_is_closed_returns_what_it_discards(_: Build) {
    let other = SignalSet::new([Signal::USR2]).unwrap();
    let set = SignalSet::new([Signal::USR1, Signal::USR2, Signal::TERM]).unwrap();
    for signal in [Signal::TERM, Signal::USR1, Signal::USR1, Signal::USR2] {
        raise(signal);
    }
    let discarded: Vec<_> = set.close().iter().collect();
    assert_eq!(discarded, [Signal::USR1, Signal::TERM], "another set holds the third");
    assert!(!is_pending(Signal::TERM) && !is_blocked(Signal::TERM));
    assert!(other.close().contains(Signal::USR2));
    assert!(SignalSet::new([Signal::USR1]).unwrap().close().is_empty());
}

fn more_pending_signals_than_one_read_takes_do_not_strike_when_the_set_goes(build: Build) {
    if !in_own_process(
        build,
        "signals",
        "more_pending_signals_than_one_read_takes_do_not_strike_when_the_set_goes",
    ) {
        return;
    }
    let realtime = Signal::from_raw(libc::SIGRTMIN() + 4).unwrap();
    let set = SignalSet::new([realtime]).unwrap();
    for _ in 0..1100 {
        raise(realtime);
    }
    drop(set);
    assert!(!is_pending(realtime) || is_blocked(realtime));
}

fn more_signals_than_one_read_takes_leave_the_set_readable(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let realtime = Signal::from_raw(libc::SIGRTMIN() + 5).unwrap();
    watch(&mut reactor, SignalSet::new([realtime]).unwrap(), &log);
    for _ in 0..1100 {
        raise(realtime);
    }
    assert_eq!(run_dry(&mut reactor), 2);
    assert_eq!(log.take(), [[realtime], [realtime]]);
    assert!(!is_pending(realtime));
}

fn overlapping_sets_hold_a_signal_until_the_last_is_gone(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let first = SignalSet::new([Signal::USR1, Signal::USR2]).unwrap();
    let second = SignalSet::new([Signal::USR2, Signal::TERM]).unwrap();
    drop(first);
    assert!(!is_blocked(Signal::USR1), "nobody holds it");
    assert!(is_blocked(Signal::USR2) && is_blocked(Signal::TERM));
    raise(Signal::USR2);
    let key = watch(&mut reactor, second, &log);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert_eq!(log.take(), [[Signal::USR2]]);
    reactor.delete(key).unwrap();
    assert!(!is_blocked(Signal::USR2) && !is_blocked(Signal::TERM));
}

fn a_signal_that_two_sets_hold_goes_to_the_one_that_reads_first(_: Build) {
    let mut first = SignalSet::new([Signal::USR1]).unwrap();
    let mut second = SignalSet::new([Signal::USR1]).unwrap();
    raise(Signal::USR1);
    assert!(second.read().unwrap().contains(Signal::USR1));
    assert!(first.read().unwrap().is_empty());
    raise(Signal::USR1);
    drop(second);
    assert!(
        first.read().unwrap().contains(Signal::USR1),
        "pending ones stay with the set that is left"
    );
}

// A signal that was blocked before the set existed stays blocked and pending.
fn a_signal_that_was_blocked_before_stays_so_and_stays_pending(_: Build) {
    mask(libc::SIG_BLOCK, Signal::USR2);
    let set = SignalSet::new([Signal::USR2]).unwrap();
    raise(Signal::USR2);
    drop(set);
    assert!(is_blocked(Signal::USR2) && is_pending(Signal::USR2));
    let mut set = SignalSet::new([Signal::USR2]).unwrap();
    assert!(set.read().unwrap().contains(Signal::USR2));
    drop(set);
    mask(libc::SIG_UNBLOCK, Signal::USR2);
}

fn another_thread_has_a_mask_of_its_own(_: Build) {
    let _set = SignalSet::new([Signal::USR1]).unwrap();
    let (before, after) = (mpsc::channel(), mpsc::channel());
    let (to_main, from_thread) = before;
    let (to_thread, from_main) = after;
    // A thread inherits the mask of its creator. Its sets are counted separately.
    let thread = thread::spawn(move || {
        assert!(is_blocked(Signal::USR1) && !is_blocked(Signal::USR2));
        let set = SignalSet::new([Signal::USR1, Signal::USR2]).unwrap();
        to_main.send(()).unwrap();
        let () = from_main.recv().unwrap();
        raise(Signal::USR2);
        drop(set);
        assert!(is_blocked(Signal::USR1), "it was blocked before");
        assert!(!is_blocked(Signal::USR2));
    });
    from_thread.recv().unwrap();
    assert!(!is_blocked(Signal::USR2));
    to_thread.send(()).unwrap();
    thread.join().unwrap();
    assert!(is_blocked(Signal::USR1));
}

fn a_group_ends_the_run_by_a_signal(build: Build) {
    let mut reactor = build().build().unwrap();
    let set = SignalSet::new([Signal::TERM, Signal::INT]).unwrap();
    let handler = |received: &mut Vec<Signal>, set: &mut SignalSet, mut turn: Turn<'_, Reactor>| {
        received.extend(set.read().unwrap().iter());
        turn.stop();
    };
    let group =
        Group::new(Vec::new()).signals(set, handler).register_into(&mut reactor).unwrap().group;
    raise(Signal::INT);
    reactor.run().unwrap();
    assert_eq!(reactor.group_mut(group), Some(&mut vec![Signal::INT]));
    reactor.delete_group(group).unwrap();
    assert!(!is_blocked(Signal::INT));
}

fn a_set_comes_back_from_the_reactor(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let key = watch(&mut reactor, SignalSet::new([Signal::USR1]).unwrap(), &log);
    let mut set: SignalSet = reactor.take_fd(key).unwrap();
    raise(Signal::USR1);
    assert_eq!((run_dry(&mut reactor), log.len()), (0, 0));
    assert!(set.read().unwrap().contains(Signal::USR1));
    assert_eq!(format!("{set:?}"), "[SIGUSR1]");
}

fn a_handler_that_deletes_its_set_unblocks_when_it_has_returned(build: Build) {
    let mut reactor = build().build().unwrap();
    let was_blocked = Rc::new(Cell::new(false));
    let seen = was_blocked.clone();
    let handler = move |set: &mut SignalSet, event: Event, mut turn: Turn<'_, Reactor>| {
        turn.delete(event.key()).unwrap();
        set.read().unwrap();
        seen.set(is_blocked(Signal::USR1));
    };
    let set = SignalSet::new([Signal::USR1]).unwrap();
    interest().read().with_fd(set).with_handler(handler).register_into(&mut reactor).unwrap();
    raise(Signal::USR1);
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    assert!(was_blocked.get() && !is_blocked(Signal::USR1));
}

scenarios! {
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_signal_is_an_event_that_says_which_came,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    signals_of_one_kind_coalesce,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_signal_from_another_thread_ends_the_wait,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_set_of_nothing_is_silent,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    what_cannot_be_caught_is_refused_and_the_mask_stays,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_pending_signal_is_discarded_with_its_set,
    a_set_that_is_closed_returns_what_it_discards,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    more_pending_signals_than_one_read_takes_do_not_strike_when_the_set_goes,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    more_signals_than_one_read_takes_leave_the_set_readable,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    overlapping_sets_hold_a_signal_until_the_last_is_gone,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_signal_that_two_sets_hold_goes_to_the_one_that_reads_first,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_signal_that_was_blocked_before_stays_so_and_stays_pending,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    another_thread_has_a_mask_of_its_own,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_group_ends_the_run_by_a_signal,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_set_comes_back_from_the_reactor,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    a_handler_that_deletes_its_set_unblocks_when_it_has_returned,
}
