//! A waker whose clone has another address, as that of a foreign executor may have.

#![allow(unsafe_code, reason = "wakers made by hand, whose clones have addresses of their own")]

use std::{
    cell::RefCell,
    ptr,
    task::{RawWaker, RawWakerVTable, Waker},
};

use windlass_task::{
    time::{now, sleep},
    yield_now,
};

use crate::{
    scenarios::Build,
    tools::{LONG, ms, poll_with, run},
};

thread_local! {
    /// Whom the waker with this number wakes. Its number stands for its address.
    static TARGETS: RefCell<Vec<char>> = const { RefCell::new(Vec::new()) };
    static WOKEN: RefCell<Vec<char>> = const { RefCell::new(Vec::new()) };
}

/// A number from 1 on, because an address is not zero.
fn new_number(target: char) -> usize {
    TARGETS.with_borrow_mut(|targets| {
        targets.push(target);
        targets.len()
    })
}

fn target_of(data: *const ()) -> char {
    TARGETS.with_borrow(|targets| targets[data.addr() - 1])
}

const fn raw(number: usize) -> RawWaker {
    RawWaker::new(ptr::without_provenance(number), &TABLE)
}

static TABLE: RawWakerVTable =
    RawWakerVTable::new(|data| raw(new_number(target_of(data))), wake, wake, |_| ());

fn wake(data: *const ()) {
    WOKEN.with_borrow_mut(|woken| woken.push(target_of(data)));
}

fn waker(number: usize) -> Waker {
    // SAFETY: the functions of the table take any number that was given out, use nothing else, and
    // own nothing. The waker stays on its thread: it is polled and woken by the executor there.
    unsafe { Waker::from_raw(raw(number)) }
}

/// The address of a waker that was dropped may be that of another one.
fn a_waker_at_the_address_of_an_earlier_one_is_another(build: Build) {
    run(build, async {
        let mut sleep = sleep(LONG);
        let number = new_number('a');
        assert!(poll_with(&mut sleep, &waker(number)).is_pending());
        TARGETS.with_borrow_mut(|targets| targets[number - 1] = 'b');
        assert!(poll_with(&mut sleep, &waker(number)).is_pending());
        sleep.reset(now() + ms(1));
        while WOKEN.with_borrow(Vec::is_empty) {
            yield_now().await;
        }
    });
    assert_eq!(WOKEN.take(), ['b']);
}

scenarios! {
    a_waker_at_the_address_of_an_earlier_one_is_another,
}
