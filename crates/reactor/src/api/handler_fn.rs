//! Handlers that take only the parameters they need: any ordered subset of those available.
//!
//! For a descriptor, these are `&mut Fd`, [`Event`], [`Interest`] and [`Turn`]: 1 + 4 + 12 + 24 +
//! 24 = 65 signatures. In a group the state comes first. For a timer, they are [`Tick`] and
//! [`Turn`]: 5 signatures. One macro generates the subsets.
//!
//! Rust lets one type implement `FnMut` for several argument lists. Therefore each trait here has a
//! parameter `Args` that names the list (a tuple of the markers in [`arg`]) and keeps the
//! implementations apart. The compiler infers it.

use crate::{Event, Interest, Tick, Turn, api::ops::ReactorOps};

/// Markers that stand for a handler's parameters.
pub(crate) mod arg {
    macro_rules! markers { ($($name:ident)*) => { $(
        #[derive(Debug)]
        #[allow(non_camel_case_types, reason = "the name is what the macros call the parameter")]
        pub enum $name {}
    )* } }
    markers!(fd event interest tick turn);
}

/// A function or closure that handles the events of a descriptor of type `Fd`.
///
/// ```
/// use std::{io, os::unix::net::UnixStream};
/// use windlass::{Event, HandlerFn, Key, Reactor, Turn, interest};
///
/// fn watch<H, Args: 'static>(reactor: &mut Reactor, fd: UnixStream, handler: H) -> io::Result<Key>
/// where
///     H: HandlerFn<UnixStream, Reactor, Args>,
/// {
///     Ok(interest().read().with_fd(fd).with_handler(handler).register_into(reactor)?)
/// }
///
/// # fn main() -> io::Result<()> {
/// # let mut reactor = Reactor::new()?;
/// let (one, other) = UnixStream::pair()?;
/// watch(&mut reactor, one, |_: &mut UnixStream, mut turn: Turn<'_>| turn.stop())?;
/// watch(&mut reactor, other, |event: Event| println!("{event:?}"))?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a descriptor of type `{Fd}`",
    label = "not a handler",
    note = "a handler takes any of `&mut {Fd}`, `Event`, `Interest`, `Turn<'_, _>`, each at most \
            once, in any order, and returns `()`",
    note = "a closure writes the types of its parameters: `|fd: &mut {Fd}, turn: Turn<'_, _>| ..`"
)]
pub trait HandlerFn<Fd, R: ReactorOps, Args>: 'static {
    #[doc(hidden)]
    fn call(&mut self, fd: &mut Fd, event: Event, turn: Turn<'_, R>);
}

/// A function or closure that handles the events of a group's member. It takes the state, then any
/// ordered subset of the other parameters.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Group, MemberFn, Reactor, interest};
///
/// fn count_events<H, Args: 'static>(stream: UnixStream, handler: H) -> Group<u32>
/// where
///     H: MemberFn<u32, UnixStream, Reactor, Args>,
/// {
///     Group::new(0).fd(interest().read(), stream, handler)
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let mut reactor = Reactor::new()?;
/// let (stream, _peer) = UnixStream::pair()?;
/// count_events(stream, |events: &mut u32| *events += 1).register_into(&mut reactor)?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a member with a descriptor of type `{Fd}` in a group \
               of state `{S}`",
    label = "not a member's handler",
    note = "it takes `&mut {S}` first, then any of `&mut {Fd}`, `Event`, `Interest`, \
            `Turn<'_, _>`, each at most once, in any order, and returns `()`",
    note = "a closure writes the types of its parameters: `|state: &mut {S}, fd: &mut {Fd}, \
            turn: Turn<'_, _>| ..`"
)]
pub trait MemberFn<S, Fd, R: ReactorOps, Args>: 'static {
    #[doc(hidden)]
    fn call(&mut self, state: &mut S, fd: &mut Fd, event: Event, turn: Turn<'_, R>);
}

/// A function or closure that a timer calls.
///
/// ```
/// use std::{io, time::Duration};
/// use windlass::{Key, Reactor, Tick, TimerFn, Turn};
///
/// fn each_second<Args: 'static>(
///     reactor: &mut Reactor,
///     handler: impl TimerFn<Reactor, Args>,
/// ) -> io::Result<Key> {
///     Ok(reactor.every(Duration::from_secs(1), handler)?)
/// }
///
/// # fn main() -> io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// each_second(&mut reactor, || println!("tick"))?;
/// each_second(&mut reactor, |tick: Tick, mut turn: Turn<'_>| _ = turn.cancel(tick.key))?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a timer's handler",
    label = "not a timer's handler",
    note = "it takes any of `Tick`, `Turn<'_, _>`, each at most once, in any order, and returns \
            `()`",
    note = "a closure writes the types of its parameters: `|turn: Turn<'_, _>| ..`"
)]
pub trait TimerFn<R: ReactorOps, Args>: 'static {
    #[doc(hidden)]
    fn call(&mut self, tick: Tick, turn: Turn<'_, R>);
}

/// A function or closure that a group's timer calls. It takes the state, then any ordered subset of
/// the other parameters.
///
/// ```
/// use std::time::Duration;
/// use windlass::{Group, MemberTimerFn, Reactor};
///
/// fn each_second<Args: 'static>(handler: impl MemberTimerFn<u32, Reactor, Args>) -> Group<u32> {
///     Group::new(0).every(Duration::from_secs(1), handler)
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// each_second(|seconds: &mut u32| *seconds += 1).register_into(&mut reactor)?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a timer's handler in a group of state `{S}`",
    label = "not a member's timer handler",
    note = "it takes `&mut {S}` first, then any of `Tick`, `Turn<'_, _>`, each at most once, in \
            any order, and returns `()`",
    note = "a closure writes the types of its parameters: `|state: &mut {S}, turn: Turn<'_, _>| ..`"
)]
pub trait MemberTimerFn<S, R: ReactorOps, Args>: 'static {
    #[doc(hidden)]
    fn call(&mut self, state: &mut S, tick: Tick, turn: Turn<'_, R>);
}

/// Calls `$emit!` with every ordered subset of a list of names, and with the whole list.
macro_rules! each_ordered_subset {
    ($emit:ident $all:tt) => { each_ordered_subset!(@with $emit $all [] $all); };
    (@with $emit:ident $all:tt [$($taken:ident)*] [$($rest:ident)*]) => {
        $emit!([$($taken)*] $all);
        each_ordered_subset!(@then $emit $all [$($taken)*] [] [$($rest)*]);
    };
    (
        @then $emit:ident $all:tt
        [$($taken:ident)*] [$($before:ident)*] [$next:ident $($after:ident)*]
    ) => {
        each_ordered_subset!(@with $emit $all [$($taken)* $next] [$($before)* $($after)*]);
        each_ordered_subset!(@then $emit $all [$($taken)*] [$($before)* $next] [$($after)*]);
    };
    (@then $emit:ident $all:tt $taken:tt $before:tt []) => {};
}

/// The type of a parameter.
macro_rules! param {
    (fd, $Fd:ident, $R:ident) => { &mut $Fd };
    (event, $Fd:ident, $R:ident) => { Event };
    (interest, $Fd:ident, $R:ident) => { Interest };
    (tick, $Fd:ident, $R:ident) => { Tick };
    (turn, $Fd:ident, $R:ident) => { Turn<'_, $R> };
}

/// Implements both traits of a descriptor's handlers for one parameter list.
macro_rules! impl_handler {
    ([$($p:ident)*] [$fd:ident $event:ident $interest:ident $turn:ident]) => {
        impl<F, Fd, R: ReactorOps> HandlerFn<Fd, R, ($(arg::$p,)*)> for F
        where
            F: FnMut($(param!($p, Fd, R)),*) + 'static,
        {
            #[inline(always)]
            #[allow(unused_variables, reason = "a handler takes what it needs")]
            fn call(&mut self, $fd: &mut Fd, $event: Event, $turn: Turn<'_, R>) {
                let $interest = $event.interest();
                self($($p),*)
            }
        }

        impl<F, S, Fd, R: ReactorOps> MemberFn<S, Fd, R, ($(arg::$p,)*)> for F
        where
            F: FnMut(&mut S, $(param!($p, Fd, R)),*) + 'static,
        {
            #[inline(always)]
            #[allow(unused_variables, reason = "a handler takes what it needs")]
            fn call(&mut self, state: &mut S, $fd: &mut Fd, $event: Event, $turn: Turn<'_, R>) {
                let $interest = $event.interest();
                self(state, $($p),*)
            }
        }
    };
}

/// Implements both traits of a timer's handlers for one parameter list.
macro_rules! impl_timer {
    ([$($p:ident)*] [$tick:ident $turn:ident]) => {
        impl<F, R: ReactorOps> TimerFn<R, ($(arg::$p,)*)> for F
        where
            F: FnMut($(param!($p, Fd, R)),*) + 'static,
        {
            #[inline(always)]
            #[allow(unused_variables, reason = "a handler takes what it needs")]
            fn call(&mut self, $tick: Tick, $turn: Turn<'_, R>) {
                self($($p),*)
            }
        }

        impl<F, S, R: ReactorOps> MemberTimerFn<S, R, ($(arg::$p,)*)> for F
        where
            F: FnMut(&mut S, $(param!($p, Fd, R)),*) + 'static,
        {
            #[inline(always)]
            #[allow(unused_variables, reason = "a handler takes what it needs")]
            fn call(&mut self, state: &mut S, $tick: Tick, $turn: Turn<'_, R>) {
                self(state, $($p),*)
            }
        }
    };
}

each_ordered_subset!(impl_handler [fd event interest turn]);
each_ordered_subset!(impl_timer [tick turn]);
