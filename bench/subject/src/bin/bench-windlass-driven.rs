//! Windlass with a driver at the end of every turn, for the suite `dispatch`. The driver does
//! nothing, so the difference from `bench-windlass` is what a driver costs.

#![deny(unsafe_code)]

#[path = "bench-windlass/backend.rs"]
mod backend;
#[path = "bench-windlass/events.rs"]
mod events;
#[path = "bench-windlass/registration.rs"]
mod registration;

use std::process::ExitCode;

use windlass::{Builder, NextTurn, Reactor, Turn};
use windlass_bench_driver::{Error, Program, Suite};

fn main() -> ExitCode {
    let suites = vec![Suite::dispatch::<events::Windlass>()];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

/// As [`events`] makes its reactor.
fn build(builder: Builder) -> Result<Reactor, Error> {
    Ok(builder.build()?)
}

/// As [`events`] takes its turns.
#[inline(always)]
fn turn(reactor: &mut Reactor) -> std::io::Result<()> {
    reactor.run_once_with(None, &mut |_: Turn<'_>| NextTurn::Wait)?;
    Ok(())
}
