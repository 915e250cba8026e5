//! Flow control between threads and processes, for senders that are faster than their receiver.
//!
//! The page `docs/guide/threads.md` of the repository leads to a first program.
//!
//! ```text
//!    threads of one process                     threads, or processes that map one page
//!
//!    Sender   Sender   Sender                   CounterWriter   CounterWriter
//!       |        |        |  try_push, push,          |               |  write, signal: wait
//!       v        v        v  push_async               v               v  below the maximum
//!    +-----------------------+                  +-------------------------------+
//!    | Mailbox               |                  | EventCounter                  |
//!    | items_max, bytes_max  |                  | { maximum, count }            |
//!    +-----------------------+                  +-------------------------------+
//!       |              | wakes                        |               |  read: waits
//!       v drain        v                              v               v  while it is zero
//!    receiver  <---- Latch                      CounterReader   CounterReader
//!               (a descriptor)                        (each side is a descriptor)
//! ```
//!
//! - [`Latch`] wakes a loop from any thread. Only a wake that finds the loop asleep makes a system
//!   call.
//! - [`Mailbox`] is a bounded queue from many threads to one. [`mailbox()`] creates it with its
//!   first [`Sender`]. It wakes the receiver through a [`Latch`].
//! - [`EventCounter`] is an eventfd with a maximum. A writer that would reach the maximum waits.
//!   [`CounterReader`] and [`CounterWriter`] are its sides, which can be polled.
//!   [`CounterParts`] sends it to another process.
//!
//! Each of them has a descriptor that any loop can poll. No reactor is needed.
//!
//! # Errors
//!
//! Each operation has a small error type, which converts into [`std::io::Error`]. An error returns
//! the value that the caller has passed, in a [`Returned`], so it is `Sync` whatever the value is:
//!
//! | operation | error | variants |
//! |---|---|---|
//! | [`Sender::try_push`], [`push`](Sender::push), [`push_timeout`](Sender::push_timeout), [`push_async`](Sender::push_async) | [`PushError`] with a [`PushReason`] | `Full`, `TimedOut`, `TooLarge`, `Closed` |
//! | [`EventCounter::new`], [`CounterBuilder::build`] | [`CounterBuildError`] | `ZeroMaximum`, `InitialTooLarge`, `Os` |
//! | [`EventCounter::write`], [`try_write`](EventCounter::try_write), [`write_timeout`](EventCounter::write_timeout) | [`WriteError`] | `WouldBlock`, `TimedOut`, `Zero`, `TooLarge`, `Corrupt` |
//! | [`EventCounter::read`], [`try_read`](EventCounter::try_read), [`read_timeout`](EventCounter::read_timeout) | [`ReadError`] | `WouldBlock`, `TimedOut`, `Corrupt` |
//! | [`EventCounter::set_maximum`] | [`SetMaximumError`] | `NotAboveCount`, `Corrupt` |
//! | [`EventCounter::into_parts`], [`from_parts`](EventCounter::from_parts) | [`PartsError`] with a [`PartsReason`] | `NotShared`, `NotSealed`, `TooSmall`, `WrongMagic`, `WrongVersion`, `Corrupt`, `NotATimerFd`, `Os` |
//! | [`EventCounter::count`], [`maximum`](EventCounter::maximum), [`signal`](EventCounter::signal), [`is_overflowed`](EventCounter::is_overflowed) | [`Corrupt`] | |
//! | [`Latch::new`], [`EventCounter::reader`], [`writer`](EventCounter::writer) | [`Errno`] | errors of eventfd(2) |

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("windlass-flow is for Linux: it is made of eventfds and futexes");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("windlass-flow is for 64-bit targets: the counter is one 64-bit word");

#[cfg(all(feature = "sim", not(loom)))]
mod bell;
mod counter;
mod latch;
mod mailbox;
#[doc(hidden)]
pub mod panics;
#[doc(hidden)]
pub mod process;
mod returned;
mod sync;
mod sys;

#[cfg(all(feature = "sim", not(loom)))]
#[doc(hidden)]
pub use bell::SimBell;
#[cfg(not(loom))]
pub use counter::CounterParts;
pub use counter::{
    Corrupt, CounterBuildError, CounterBuilder, CounterReader, CounterWriter, EventCounter,
    PartsError, PartsReason, ReadError, SetMaximumError, WriteError,
};
pub use latch::Latch;
pub use mailbox::{
    Bounds, Drain, Mailbox, Push, PushError, PushReason, Sender, mailbox, weighed_mailbox,
};
pub use returned::Returned;
pub use rustix::io::Errno;
