//! What every measured program shares.
//!
//! `windlass-bench` starts one small program per implementation and talks to it in lines of JSON
//! ([`protocol`]). The workload itself is here, once, generic over the implementation: a program
//! only says how its library registers, deletes and takes one turn ([`dispatch::Subject`],
//! [`poll0::AskingSubject`]), how it keeps timers ([`timers::TimerSubject`]), counts
//! ([`flow::CounterSubject`]), is woken ([`wakeup`]), echoes messages
//! ([`websocket::EngineSubject`]) and does the parts of that ([`unmask`], [`utf8`], [`deflate`]).
//! So the work is the same by construction, and every slice ends with a check that exactly the
//! expected handlers ran.

#![deny(unsafe_code)]

pub mod alloc;
mod clock;
pub mod deflate;
pub mod dispatch;
pub mod flow;
pub mod payload;
mod place;
mod poll;
pub mod poll0;
pub mod protocol;
mod random;
mod serve;
pub mod server;
pub mod source;
mod threads;
pub mod timers;
pub mod unmask;
pub mod utf8;
pub mod wakeup;
pub mod websocket;

pub use place::{FIRST, first, pin};
pub use serve::{Measured, Program, STEPPED, Suite, Unsupported, locked_version};

/// Any failure of a measured program; its text is sent to `windlass-bench` and reported there.
pub type Error = Box<dyn std::error::Error>;

/// Most events that one turn takes from the kernel, in every implementation that lets us choose.
pub const EVENTS_PER_TURN: usize = 1024;
