//! Flow control between threads and processes, for senders that are faster than their receiver.
//!
//! - [`EventCounter`] is an eventfd with a maximum. A writer that would reach it waits, and both
//!   sides can be polled.
//! - [`Latch`] wakes a loop. Only a wake that finds the loop asleep makes a system call.
//! - [`Mailbox`] is a bounded queue from many threads to one, with a [`Latch`] to wake the
//!   receiver.
//!
//! Nothing here needs the reactor. Each type has a descriptor that any loop can poll.

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("windlass-flow is for Linux: it is made of eventfds and futexes");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("windlass-flow is for 64-bit targets: the counter is one 64-bit word");

mod counter;
mod latch;
mod mailbox;
#[doc(hidden)]
pub mod panics;
mod sync;
mod sys;

#[cfg(not(loom))]
pub use counter::CounterParts;
pub use counter::{
    BuildError, Corrupt, CounterBuilder, CounterReader, CounterWriter, EventCounter, PartsError,
    PartsReason, ReadError, SetMaximumError, WriteError,
};
pub use latch::Latch;
pub use mailbox::{
    Bounds, Drain, Mailbox, Push, PushError, PushReason, Sender, mailbox, weighed_mailbox,
};
pub use rustix::io::Errno;
