//! The duration of waits. The tests check only lower bounds, because a loaded machine may be late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{Pid, gettid};

use crate::{
    Build,
    bed::{Log, NOW, idle, noting, ready, sendable},
};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

// mio: zero timeouts.
fn a_timeout_of_zero_asks_and_returns(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    assert_eq!(reactor.run_once(NOW).unwrap(), 0, "without subscribers");
    let fd = idle();
    noting(&mut reactor, &fd, &log, ());
    assert_eq!(reactor.run_once(NOW).unwrap(), 0);
    crate::bed::ring(&fd);
    assert_eq!(reactor.run_once(NOW).unwrap(), 1);
}

// polling: precision below and above one millisecond. mio: sub-millisecond timeouts.
fn a_wait_is_never_shorter_than_asked(build: Build) {
    let mut reactor = build().build().unwrap();
    noting(&mut reactor, &idle(), &Log::new(), ());
    let spans = [
        Duration::from_nanos(1),
        US,
        37 * US,
        250 * US,
        999 * US,
        MS,
        MS + US,
        3 * MS + 141 * US,
        20 * MS,
    ];
    for span in spans {
        let start = Instant::now();
        assert_eq!(reactor.run_once(span).unwrap(), 0);
        let waited = start.elapsed();
        assert!(waited >= span, "{waited:?} instead of {span:?}");
    }
}

fn a_timer_is_never_early(build: Build) {
    let mut reactor = build().build().unwrap();
    for span in [Duration::from_nanos(1), 10 * US, 250 * US, 999 * US, MS + US, 5 * MS] {
        let log = Log::new();
        let fired = log.clone();
        let start = Instant::now();
        reactor.after(span, move || fired.note(Instant::now())).unwrap();
        while log.len() == 0 {
            assert_eq!(reactor.run_once(None).unwrap(), 0);
        }
        assert!(log.take()[0] - start >= span, "{span:?}");
    }
}

fn beats_are_never_early(build: Build) {
    const PERIOD: Duration = Duration::from_micros(700);
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let start = Instant::now();
    reactor
        .every(PERIOD, move |tick: windlass::Tick| noted.note((tick.missed, Instant::now())))
        .unwrap();
    while log.len() < 5 {
        reactor.run_once(None).unwrap();
    }
    let mut beats = 0;
    for (missed, at) in log.take() {
        beats += 1 + u32::try_from(missed).unwrap();
        assert!(at - start >= PERIOD * beats, "beat {beats}");
    }
}

// libuv: backend timeout.
fn the_next_timer_bounds_the_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    noting(&mut reactor, &idle(), &log, "never");
    for (name, after) in [("late", Duration::from_secs(3600)), ("soon", MS)] {
        let log = log.clone();
        reactor.after(after, move || log.note(name)).unwrap();
    }
    while log.len() == 0 {
        assert_eq!(reactor.run_once(None).unwrap(), 0);
    }
    assert_eq!(log.take(), ["soon"]);
}

fn a_timer_ends_a_longer_timeout_and_outlives_a_shorter_one(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let first = log.clone();
    reactor.after(MS, move || first.note(1)).unwrap();
    while log.len() == 0 {
        reactor.run_once(Duration::from_secs(3600)).unwrap();
    }
    let second = log.clone();
    let start = Instant::now();
    reactor.after(20 * MS, move || second.note(2)).unwrap();
    while log.len() == 1 {
        reactor.run_once(US).unwrap();
    }
    assert!(start.elapsed() >= 20 * MS);
}

fn a_cancelled_timer_neither_fires_nor_ends_a_wait(build: Build) {
    let mut reactor = build().build().unwrap();
    let key = reactor.after(MS, || panic!("cancelled")).unwrap();
    reactor.after(Duration::from_secs(3600), || {}).unwrap();
    reactor.cancel(key).unwrap();
    let start = Instant::now();
    assert_eq!(reactor.run_once(5 * MS).unwrap(), 0);
    assert!(start.elapsed() >= 5 * MS, "its deadline is forgotten");
}

// libuv: huge timeouts. The longest timeout waits forever, and events end the wait.
fn a_huge_timeout_is_one_for_ever(build: Build) {
    for span in [
        Duration::MAX,
        Duration::from_secs(u64::MAX),
        Duration::from_secs(1 << 40),
        Duration::from_secs(1 << 31),
    ] {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        noting(&mut reactor, &ready(), &log, ());
        assert_eq!(reactor.run_once(span).unwrap(), 1);
        // Without events it waits until another thread stops it.
        let stop = reactor.stop_handle();
        let stopper = thread::spawn(move || stop.stop());
        assert_eq!(reactor.run_once(span).unwrap(), 0);
        assert!(reactor.stop_requested(), "{span:?}");
        stopper.join().unwrap();
    }
}

fn an_event_ends_a_wait_beside_timers_far_away(build: Build) {
    let mut reactor = build().build().unwrap();
    reactor.after(Duration::MAX, || {}).unwrap();
    let fd = sendable();
    let theirs = fd.clone();
    let log = Log::new();
    let noted = log.clone();
    let handler = move |fd: &mut Arc<std::os::fd::OwnedFd>| noted.note(crate::bed::drain(fd));
    crate::bed::readable().with_fd(fd).with_handler(handler).register_into(&mut reactor).unwrap();
    let writer = thread::spawn(move || crate::bed::ring(&theirs));
    assert_eq!(reactor.run_once(None).unwrap(), 1);
    writer.join().unwrap();
    assert_eq!(log.take(), [1]);
}

static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_interrupt(_: libc::c_int) {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

/// Installs a handler without `SA_RESTART`, so its signal interrupts system calls.
fn interrupt_on(signal: i32) {
    let handler: extern "C" fn(libc::c_int) = count_interrupt;
    // SAFETY: all zeros are a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    // SAFETY: the handler does one atomic addition, which is async-signal-safe.
    let outcome = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(outcome, 0);
}

/// Sends a signal to a thread of this process.
pub(crate) fn signal_thread(thread: Pid, signal: i32) {
    windlass_testkit::signals::signal_thread(
        std::process::id(),
        thread.as_raw_nonzero().get(),
        signal,
    );
}

/// Sends a signal to a thread repeatedly until told to stop.
fn pester(signal: i32, enough: &AtomicBool, thread: Pid) {
    while !enough.load(Ordering::Acquire) {
        signal_thread(thread, signal);
        thread::yield_now();
    }
}

/// Runs a closure on this thread while signals interrupt it.
pub(crate) fn interrupted(run: impl FnOnce()) {
    interrupt_on(libc::SIGURG);
    let this = gettid();
    let enough = Arc::new(AtomicBool::new(false));
    let told = enough.clone();
    let pesterer = thread::spawn(move || pester(libc::SIGURG, &told, this));
    let before = INTERRUPTS.load(Ordering::Relaxed);
    while INTERRUPTS.load(Ordering::Relaxed) == before {}
    run();
    enough.store(true, Ordering::Release);
    pesterer.join().unwrap();
}

fn interrupts_neither_end_nor_stretch_a_wait(build: Build) {
    interrupt_on(libc::SIGURG);
    let mut reactor = build().build().unwrap();
    noting(&mut reactor, &idle(), &Log::new(), ());
    let this = gettid();
    let enough = Arc::new(AtomicBool::new(false));
    let told = enough.clone();
    let pesterer = thread::spawn(move || pester(libc::SIGURG, &told, this));
    let span = 30 * MS;
    while INTERRUPTS.load(Ordering::Relaxed) == 0 {}
    let before = INTERRUPTS.load(Ordering::Relaxed);
    let start = Instant::now();
    // If each signal restarted the full timeout, this call would never return.
    assert_eq!(reactor.run_once(span).unwrap(), 0);
    assert!(start.elapsed() >= span, "not ended early");
    assert!(INTERRUPTS.load(Ordering::Relaxed) > before, "it was interrupted");

    let log = Log::new();
    let fired = log.clone();
    let start = Instant::now();
    reactor.after(span, move || fired.note(Instant::now())).unwrap();
    while log.len() == 0 {
        assert_eq!(reactor.run_once(None).unwrap(), 0);
    }
    assert!(log.take()[0] - start >= span);
    // A wait without a timeout ends only by a stop.
    let stop = reactor.stop_handle();
    let counted = INTERRUPTS.load(Ordering::Relaxed);
    let stopper = thread::spawn(move || {
        while INTERRUPTS.load(Ordering::Relaxed) < counted + 10 {
            thread::yield_now();
        }
        stop.stop();
    });
    assert_eq!(reactor.run_once(None).unwrap(), 0);
    assert!(reactor.stop_requested());
    stopper.join().unwrap();
    enough.store(true, Ordering::Release);
    pesterer.join().unwrap();
}

scenarios! {
    a_timeout_of_zero_asks_and_returns,
    a_wait_is_never_shorter_than_asked,
    a_timer_is_never_early,
    beats_are_never_early,
    the_next_timer_bounds_the_wait,
    a_timer_ends_a_longer_timeout_and_outlives_a_shorter_one,
    a_cancelled_timer_neither_fires_nor_ends_a_wait,
    a_huge_timeout_is_one_for_ever,
    an_event_ends_a_wait_beside_timers_far_away,
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    interrupts_neither_end_nor_stretch_a_wait,
}
