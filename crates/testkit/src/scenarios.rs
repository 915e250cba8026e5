//! Tests that run on every backend.
//!
//! A scenario is a function of [`Build`], which starts a reactor's builder for one backend.
//! [`scenarios!`](crate::scenarios!) at the end of each module makes one test per scenario and
//! backend. A scenario that is missing there is dead code, and the compiler warns.

/// Starts a builder for one of the backends. A scenario may set limits before it builds.
pub type Build = fn() -> windlass::Builder;

/// Makes tests from scenarios, one per backend. Attributes (such as `ignore` under Miri) are copied
/// to the tests. Where rings are forbidden, their tests report it and do nothing.
///
/// `name except [backend "why"]` excludes a backend that lacks a feature. The test is ignored
/// there, with that reason. Separate scenarios test that the backend rejects the feature: see
/// `interests.rs` and `embedding.rs`.
#[macro_export]
macro_rules! scenarios {
    ($($(#[$attribute:meta])* $name:ident $(except [$($backend:ident $why:literal),+])?,)*) => {
        // To add a backend, add one line here and one in `scenario!`.
        $crate::scenarios!(@on [] epoll Epoll $($(#[$attribute])* $name [$($($backend $why)+)?])*);
        // Miri supports neither rings nor ppoll(2).
        $crate::scenarios!(
            @on [#[cfg(not(miri))]] uring Uring
            $($(#[$attribute])* $name [$($($backend $why)+)?])*
        );
        $crate::scenarios!(
            @on [#[cfg(not(miri))]] poll Poll
            $($(#[$attribute])* $name [$($($backend $why)+)?])*
        );
    };
    (
        @on [$($cfg:tt)*] $module:ident $variant:ident
        $($(#[$attribute:meta])* $name:ident $except:tt)*
    ) => {
        $($cfg)*
        mod $module {
            $($crate::scenario! { $module $variant $except $(#[$attribute])* $name })*
        }
    };
}

/// One scenario on one backend, which may be one of its excluded backends.
#[macro_export]
#[doc(hidden)]
macro_rules! scenario {
    (epoll $variant:ident [epoll $why:literal $($rest:tt)*] $($test:tt)*) => {
        $crate::scenario! { @without $why $($test)* }
    };
    (uring $variant:ident [uring $why:literal $($rest:tt)*] $($test:tt)*) => {
        $crate::scenario! { @without $why $($test)* }
    };
    (poll $variant:ident [poll $why:literal $($rest:tt)*] $($test:tt)*) => {
        $crate::scenario! { @without $why $($test)* }
    };
    ($module:ident $variant:ident [$other:ident $why:literal $($rest:tt)*] $($test:tt)*) => {
        $crate::scenario! { $module $variant [$($rest)*] $($test)* }
    };
    (uring Uring [] $(#[$attribute:meta])* $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            if $crate::rings::are_to_be_had(name) {
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
