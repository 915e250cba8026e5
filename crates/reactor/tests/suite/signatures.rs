//! A handler takes any ordered subset of the parameters: all 65 signatures, as functions and as
//! closures.

use std::{cell::Cell, os::fd::OwnedFd, rc::Rc};

use windlass::{Event, Group, Interest, Reactor, ReactorOps, Turn, interest};

use crate::{
    Build,
    bed::{Shared, drain, readable, ready},
};

thread_local! {
    /// The parameters of the handler that ran last: one digit each, in order.
    static CALLED: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Calls `$emit!` with every ordered subset of a list of names.
macro_rules! each_ordered_subset {
    ($emit:ident $context:tt [$($all:ident)*]) => {
        each_ordered_subset!(@with $emit $context [] [$($all)*]);
    };
    (@with $emit:ident $context:tt [$($taken:ident)*] [$($rest:ident)*]) => {
        $emit!($context [$($taken)*]);
        each_ordered_subset!(@then $emit $context [$($taken)*] [] [$($rest)*]);
    };
    (
        @then $emit:ident $context:tt
        [$($taken:ident)*] [$($before:ident)*] [$next:ident $($after:ident)*]
    ) => {
        each_ordered_subset!(@with $emit $context [$($taken)* $next] [$($before)* $($after)*]);
        each_ordered_subset!(@then $emit $context [$($taken)*] [$($before)* $next] [$($after)*]);
    };
    (@then $emit:ident $context:tt $taken:tt $before:tt []) => {};
}

/// The type of a parameter, and the test's use of it.
macro_rules! param {
    (fd) => { &mut Shared };
    (event) => { Event };
    (interest) => { Interest };
    (turn) => { Turn<'_, Reactor> };
    (digit fd) => { 1 };
    (digit event) => { 2 };
    (digit interest) => { 3 };
    (digit turn) => { 4 };
    (use fd $value:ident) => { assert_eq!(drain($value), 1) };
    (use event $value:ident) => { assert!($value.has_read()) };
    (use interest $value:ident) => { assert_eq!($value, readable()) };
    (use turn $value:ident) => { assert_eq!($value.stats().subscribers, 1) };
}

/// The digits of a signature's parameters.
macro_rules! signature {
    ($($p:ident)*) => {
        [$(param!(digit $p)),*].iter().fold(0u32, |sum, digit: &u32| sum * 10 + digit)
    };
}

/// Registers a handler, runs one event, and checks that the handler got its parameters.
macro_rules! check {
    ($build:ident $count:ident [$($p:ident)*] $handler:expr) => {{
        let mut reactor = $build().build().unwrap();
        CALLED.set(u32::MAX);
        let registration = readable().with_fd(ready()).with_handler($handler);
        registration.register_into(&mut reactor).unwrap();
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        assert_eq!(CALLED.get(), signature!($($p)*));
        $count += 1;
    }};
}

macro_rules! function {
    ([$build:ident $count:ident] [$($p:ident)*]) => {{
        fn handler($($p: param!($p)),*) {
            $(param!(use $p $p);)*
            CALLED.set(signature!($($p)*));
        }
        check!($build $count [$($p)*] handler);
    }};
}

macro_rules! closure {
    ([$build:ident $count:ident] [$($p:ident)*]) => {{
        let token = Rc::new(());
        let handler = {
            let token = token.clone();
            move |$($p: param!($p)),*| {
                $(param!(use $p $p);)*
                assert_eq!(Rc::strong_count(&token), 2, "it has its state");
                CALLED.set(signature!($($p)*));
            }
        };
        check!($build $count [$($p)*] handler);
        assert_eq!(Rc::strong_count(&token), 1, "dropped with the reactor");
    }};
}

macro_rules! member {
    ([$build:ident $count:ident] [$($p:ident)*]) => {{
        let mut reactor = $build().build().unwrap();
        let group = Group::new(0u32)
            .fd(readable(), ready(), |state: &mut u32, $($p: param!($p)),*| {
                $(param!(use $p $p);)*
                *state += 1 + signature!($($p)*);
            })
            .register_into(&mut reactor)
            .unwrap()
            .group;
        assert_eq!(reactor.run_once(None).unwrap(), 1);
        assert_eq!(reactor.group_mut(group), Some(&mut (1 + signature!($($p)*))));
        $count += 1;
    }};
}

fn all_65_as_functions(build: Build) {
    let mut count = 0;
    each_ordered_subset!(function [build count] [fd event interest turn]);
    assert_eq!(count, 65);
}

fn all_65_as_closures(build: Build) {
    let mut count = 0;
    each_ordered_subset!(closure [build count] [fd event interest turn]);
    assert_eq!(count, 65);
}

fn all_65_behind_the_state_of_a_group(build: Build) {
    let mut count = 0;
    each_ordered_subset!(member [build count] [fd event interest turn]);
    assert_eq!(count, 65);
}

fn a_function_over_any_descriptor_and_any_reactor(build: Build) {
    trait Counter {
        fn count(&mut self) -> u64;
    }
    impl Counter for OwnedFd {
        fn count(&mut self) -> u64 {
            drain(&*self)
        }
    }
    fn on_ready(counter: &mut impl Counter, mut turn: Turn<'_, impl ReactorOps>) {
        assert_eq!(counter.count(), 1);
        turn.stop();
    }
    let mut reactor = build().build().unwrap();
    let fd = crate::bed::counter(1);
    crate::bed::edge(&reactor, interest().read())
        .with_fd(fd)
        .with_handler(on_ready)
        .register_into(&mut reactor)
        .unwrap();
    reactor.run().unwrap();
}

fn a_closure_that_infers_its_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let handler = |fd: &mut Shared, mut turn: Turn<'_, _>| {
        drain(fd);
        turn.stop();
    };
    readable().with_handler(handler).with_fd(ready()).register_into(&mut reactor).unwrap();
    reactor.run().unwrap();
}

scenarios! {
    all_65_as_functions,
    all_65_as_closures,
    all_65_behind_the_state_of_a_group,
    a_function_over_any_descriptor_and_any_reactor,
    a_closure_that_infers_its_turn,
}
