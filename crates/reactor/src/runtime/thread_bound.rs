//! A reactor stays on its thread. This module makes the compiler's message clear if code moves one
//! to another thread.
//!
//! [`Reactor`] is already neither `Send` nor `Sync` because of its fields. The compiler would
//! report each such field, in 15 errors of 500 lines. The two implementations below replace them by
//! one error, with the message of [`MayLeaveItsThread`], because they decide without looking at the
//! fields.
//!
//! 1. No type implements [`MayLeaveItsThread`], and no other crate can implement it for
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

// SAFETY: the condition never holds (rule 2 of this module), so this implementation never applies.
// `for<'never>` is needed because the compiler rejects a condition that is known to be false,
// unless it has a lifetime.
unsafe impl Send for Reactor where for<'never> ReactorStaysOnItsThread: MayLeaveItsThread {}

// SAFETY: as for `Send`.
unsafe impl Sync for Reactor where for<'never> ReactorStaysOnItsThread: MayLeaveItsThread {}
