//! Tests that run on every backend. Each program of tests that has such includes this file.
//!
//! A scenario is a function of [`Build`], which begins a reactor on some backend. [`scenarios!`] at
//! the end of each module makes a test of every scenario on every backend; one that is forgotten
//! there is dead code, which the compiler tells.

#[cfg(not(miri))]
#[path = "rings.rs"]
pub(crate) mod rings;

/// Begins the builder of a reactor on one of the backends. A scenario may set limits before it
/// builds.
pub(crate) type Build = fn() -> windlass::Builder;

/// Makes tests of scenarios, one on each backend. Attributes (`ignore` under Miri, say) go to the
/// tests. Where rings are forbidden, a test of theirs says so and does nothing.
///
/// `name except [backend "why"]` is for what a backend does not have: there the test is ignored,
/// with the reason. That such a thing is refused is itself a scenario, see `interests.rs` and
/// `embedding.rs`.
macro_rules! scenarios {
    ($($(#[$attribute:meta])* $name:ident $(except [$($backend:ident $why:literal),+])?,)*) => {
        // A backend more is one line here, and one in `scenario!`.
        scenarios!(@on [] epoll Epoll $($(#[$attribute])* $name [$($($backend $why)+)?])*);
        // Miri has neither rings nor ppoll(2).
        scenarios!(@on [#[cfg(not(miri))]] uring Uring $($(#[$attribute])* $name [$($($backend $why)+)?])*);
        scenarios!(@on [#[cfg(not(miri))]] poll Poll $($(#[$attribute])* $name [$($($backend $why)+)?])*);
    };
    (@on [$($cfg:tt)*] $module:ident $variant:ident $($(#[$attribute:meta])* $name:ident $except:tt)*) => {
        $($cfg)*
        mod $module {
            $(scenario! { $module $variant $except $(#[$attribute])* $name })*
        }
    };
}

/// One scenario on one backend, which may be among those that it is not for.
macro_rules! scenario {
    (epoll $variant:ident [epoll $why:literal $($rest:tt)*] $($test:tt)*) => { scenario! { @without $why $($test)* } };
    (uring $variant:ident [uring $why:literal $($rest:tt)*] $($test:tt)*) => { scenario! { @without $why $($test)* } };
    (poll $variant:ident [poll $why:literal $($rest:tt)*] $($test:tt)*) => { scenario! { @without $why $($test)* } };
    ($module:ident $variant:ident [$other:ident $why:literal $($rest:tt)*] $($test:tt)*) => {
        scenario! { $module $variant [$($rest)*] $($test)* }
    };
    (uring Uring [] $(#[$attribute:meta])* $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            if crate::scenarios::rings::are_to_be_had(concat!(module_path!(), "::", stringify!($name))) {
                super::$name(|| windlass::Reactor::builder().backend(windlass::Backend::Uring));
            }
        }
    };
    ($module:ident $variant:ident [] $(#[$attribute:meta])* $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            super::$name(|| windlass::Reactor::builder().backend(windlass::Backend::$variant));
        }
    };
    (@without $why:literal $(#[$attribute:meta])* $name:ident) => {
        #[test]
        #[ignore = $why]
        fn $name() {
            unreachable!($why);
        }
    };
}
