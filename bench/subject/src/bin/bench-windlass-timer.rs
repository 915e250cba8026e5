//! Windlass beside one timer that is not due, for the suites `dispatch`, `poll0` and `wakeup`. The
//! difference from `bench-windlass` is what a timer costs a loop that has other work.

#![deny(unsafe_code)]

#[path = "bench-windlass/backend.rs"]
mod backend;
#[path = "bench-windlass/events.rs"]
mod events;
#[path = "bench-windlass/registration.rs"]
mod registration;
#[path = "bench-windlass/remote.rs"]
mod remote;

use std::process::ExitCode;
use std::time::Duration;

use windlass::{Builder, Reactor};
use windlass_bench_driver::{Error, Program, Suite};

/// Longer than any measurement.
const NOT_DUE: Duration = Duration::from_secs(24 * 3_600);

const WARM_TURNS: u32 = 100;

fn main() -> ExitCode {
    let suites = vec![
        Suite::dispatch::<events::Windlass>(),
        Suite::poll0::<events::Windlass>(),
        Suite::wake::<remote::Woken>(),
        Suite::call::<remote::Calls>(),
        Suite::post::<remote::Queue>(),
    ];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

/// As [`events`] and [`remote`] make their reactors.
fn build(builder: Builder) -> Result<Reactor, Error> {
    let mut reactor = builder.build()?;
    reactor.after(NOT_DUE, || ()).map_err(std::io::Error::from)?;
    // After some turns, the reactor looks at the timer in another way.
    for _ in 0..WARM_TURNS {
        reactor.run_once(Duration::ZERO)?;
    }
    Ok(reactor)
}

/// As [`events`] takes its turns.
#[inline(always)]
fn turn(reactor: &mut Reactor) -> std::io::Result<()> {
    reactor.run_once(None)?;
    Ok(())
}
