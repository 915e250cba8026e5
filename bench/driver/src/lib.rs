//! The common part of all measured programs.
//!
//! `windlass-bench` starts one small program per implementation and exchanges lines of JSON with it
//! ([`protocol`]). The workload is here, generic over the implementation. A program only implements
//! how its library registers, deletes and takes one turn ([`dispatch::Subject`],
//! [`poll0::PollSubject`]), keeps timers ([`timers::TimerSubject`]), sleeps
//! ([`sleep::SleepSubject`]), starts ([`startup::StartSubject`]), sends to streams
//! ([`streams::StreamSubject`]), counts ([`flow::CounterSubject`]), is woken ([`wakeup`]), echoes
//! messages ([`websocket::EngineSubject`]), does the parts of that ([`unmask`], [`utf8`],
//! [`deflate`]), and runs futures ([`tasks`]) that serve HTTP ([`http`]).
//! So all implementations do the same work. Every slice ends with a check that exactly the expected
//! handlers ran.

#![deny(unsafe_code)]

mod affinity;
pub mod alloc;
pub mod calls;
pub mod client;
mod clock;
pub mod cluster;
pub mod deflate;
pub mod dispatch;
mod epoll;
pub mod flow;
pub mod http;
mod kick;
pub mod load;
mod measured;
pub mod payload;
mod poll;
pub mod poll0;
mod program;
pub mod protocol;
mod random;
pub mod server;
pub mod sleep;
pub mod source;
pub mod startup;
pub mod streams;
pub mod tasks;
mod threads;
pub mod timers;
pub mod tls;
pub mod unmask;
pub mod utf8;
pub mod wakeup;
pub mod websocket;
pub mod websocket_cases;

pub use affinity::{PRIORITIES, on_all_processors, pin, pin_off_opposite, raise_priority};
pub use clock::work;
pub use measured::{EVENTS_PER_TURN, Error, Measured, STEPPED, Unsupported};
pub use program::{Program, Suite, locked_version};
