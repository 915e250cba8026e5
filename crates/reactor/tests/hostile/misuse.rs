//! Keys of another reactor, and clocks with extreme values.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{NotFound, Tick, Turn};

use crate::tools::{counter, turn};

/// Regression: the count of missed beats overflowed.
#[test]
fn a_clock_that_leaps_a_thousand_years_makes_no_timer_panic() {
    let start = Instant::now();
    let passed = Rc::new(Cell::new(Duration::ZERO));
    let reading = passed.clone();
    let mut reactor = crate::builder()
        .timer_resolution(Duration::from_nanos(1))
        .clock(move || start + reading.get())
        .build()
        .unwrap();
    let missed = Rc::new(RefCell::new(Vec::new()));
    let told = missed.clone();
    let key = reactor
        .every(Duration::from_nanos(1), move |tick: Tick| told.borrow_mut().push(tick.missed))
        .unwrap();
    reactor.reset_at(key, start).unwrap();
    passed.set(Duration::from_secs(1000 * 366 * 24 * 3600));
    turn(&mut reactor);
    assert!(!missed.take().is_empty());
    // At the maximum of the clock there is no later deadline.
    reactor.reset(key, Duration::ZERO).unwrap();
    turn(&mut reactor);
    reactor.cancel(key).unwrap();
}

/// Regression: hooks were numbered from the same start in every reactor, so a key also matched
/// another reactor's hook.
#[test]
fn a_hooks_key_names_nothing_in_another_reactor() {
    let (mut one, mut other) =
        (crate::builder().build().unwrap(), crate::builder().build().unwrap());
    let (count, seen) = counter();
    let key = one.before_wait(|_: Turn<'_, _>| {}).unwrap();
    other.before_wait(move |_: Turn<'_, _>| count.set(count.get() + 1)).unwrap();
    assert_eq!(other.remove_hook(key), Err(NotFound));
    turn(&mut other);
    assert_eq!(seen.get(), 1);
    one.remove_hook(key).unwrap();
}
