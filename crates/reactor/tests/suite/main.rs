//! What a reactor does, seen from outside: one suite, run on every backend.
//!
//! A scenario is a function of [`Build`], which begins a reactor on some backend. [`scenarios!`] at the end of each module makes a
//! test of every scenario on every backend; one that is forgotten there is dead code, which the compiler tells.

#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "what fails in a test ends it, and the types of its handlers are said once"
)]

/// Begins the builder of a reactor on one of the backends. A scenario may set limits before it builds.
type Build = fn() -> windlass::Builder;

/// Makes tests of scenarios, one on each backend. Attributes (`ignore` under Miri, say) go to the tests.
macro_rules! scenarios {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        scenarios!(@on epoll Epoll $($(#[$attribute])* $name,)*);
        // The next backend is one more such line.
    };
    (@on $module:ident $backend:ident $($(#[$attribute:meta])* $name:ident,)*) => {
        mod $module {
            $(
                #[test]
                $(#[$attribute])*
                fn $name() {
                    super::$name(|| windlass::Reactor::builder().backend(windlass::Backend::$backend));
                }
            )*
        }
    };
}

mod bed;
mod script;

mod batches;
mod building;
mod contention;
mod conversions;
mod deferral;
mod destructors;
mod embedding;
mod groups;
mod groups_refused;
mod interests;
mod panics;
mod registration;
mod remote;
mod remote_async;
mod remote_wakes;
mod signals;
mod signatures;
mod sockets;
mod stopping;
mod streams;
mod streams_ends;
mod streams_listeners;
mod streams_random;
mod streams_shared;
mod streams_time;
mod timer_limits;
mod timers;
mod turns;
mod waits;
