//! A reactor stays on its thread: what the compiler says to whoever moves one away.
//!
//! [`Reactor`] is neither `Send` nor `Sync` by its fields alone. The compiler then reports each
//! field that is to blame, in 15 errors of 500 lines. The two implementations below replace that by
//! one error, with the words of [`MayLeaveItsThread`], because they decide without a look at the
//! fields.
//!
//! 1. No type implements [`MayLeaveItsThread`], and nobody outside this crate can implement it for
//!    [`ReactorStaysOnItsThread`]: both belong to this crate.
//! 2. Therefore the condition of the implementations never holds, and `Reactor` is neither `Send`
//!    nor `Sync`. An assertion in `reactor.rs` fails to compile if it ever is.

#![allow(unsafe_code, reason = "Send and Sync are unsafe traits, even where nobody gets them")]

use crate::Reactor;

/// Implemented by no type (rule 1 of this module).
#[diagnostic::on_unimplemented(
    message = "a `Reactor` stays on the thread that has built it",
    label = "this takes the reactor, or a reference to it, to another thread",
    note = "build the reactor in the closure of the thread that runs it",
    note = "other threads reach it through `Reactor::remote` and `Reactor::stop_handle`"
)]
pub trait MayLeaveItsThread {}

/// Stands for the reactor in the condition.
#[derive(Debug)]
pub struct ReactorStaysOnItsThread;

// SAFETY: rule 2 of this module: the condition never holds. `for<'never>` is there because the
// compiler refuses a condition that it knows to be false, unless it has a lifetime.
unsafe impl Send for Reactor where for<'never> ReactorStaysOnItsThread: MayLeaveItsThread {}

// SAFETY: as for `Send`.
unsafe impl Sync for Reactor where for<'never> ReactorStaysOnItsThread: MayLeaveItsThread {}
