//! `Workers`: one executor a thread. On the backend that the environment names.

#![deny(unsafe_code)]

use windlass_testkit::{backend, panics};

#[path = "../common/acknowledged.rs"]
mod acknowledged;

#[path = "../common/leak.rs"]
mod leak;

mod connections;
mod ends;
mod messages;
mod starts;

use windlass::{Builder, Reactor};
use windlass_task::{Executor, Workers, WorkersBuilder};

fn reactor() -> Builder {
    Reactor::builder().backend(backend::chosen())
}

fn builder(count: usize) -> WorkersBuilder {
    Workers::builder().count(count).executor(move || Executor::builder().reactor(reactor()))
}

/// Unwinds without a message on the standard error.
fn quiet_panic(payload: &'static str) -> ! {
    std::panic::resume_unwind(Box::new(payload))
}
