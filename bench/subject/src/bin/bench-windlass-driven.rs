//! Windlass with a driver at the end of every turn, for the suite `dispatch`. The driver does
//! nothing, so the difference from `bench-windlass` is what a driver costs.

#![deny(unsafe_code)]

#[path = "bench-windlass/backend.rs"]
mod backend;
#[path = "bench-windlass/registration.rs"]
mod registration;

use std::process::ExitCode;

use windlass::{Key, NextTurn, Reactor, Turn};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite};

fn main() -> ExitCode {
    let suites = vec![Suite::dispatch::<Driven>()];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct Driven(Reactor);

impl Subject for Driven {
    type Key = Key;

    fn new(backend: &str) -> Result<Self, Error> {
        let backend = backend::parse(backend)?;
        let builder = Reactor::builder().backend(backend).events_per_turn(EVENTS_PER_TURN);
        Ok(Self(builder.build()?))
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        handler: H,
    ) -> Result<Key, Error> {
        registration::add(&mut self.0, source, trigger, handler)
    }

    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        registration::add_device(&mut self.0, sources, trigger, device)
    }

    fn delete(&mut self, key: Key) -> Result<(), Error> {
        Ok(self.0.delete(key)?)
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.0.run_once_with(None, &mut |_: Turn<'_>| NextTurn::Wait)?;
        Ok(())
    }
}
