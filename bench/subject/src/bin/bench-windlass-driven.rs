//! Windlass with a driver at the end of every turn, for the suite `dispatch`. The driver does
//! nothing, so the difference from `bench-windlass` is what a driver costs.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass::{Backend, Group, Interest, Key, NextTurn, Reactor, Turn, interest};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite, Unsupported};

fn main() -> ExitCode {
    let suites = vec![Suite::dispatch::<Driven>()];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

struct Driven(Reactor);

fn watched(trigger: Trigger) -> Interest {
    match trigger {
        Trigger::Level => interest().read(),
        Trigger::Edge => interest().read().edge_triggered(),
    }
}

impl Subject for Driven {
    type Key = Key;

    fn new(backend: &str) -> Result<Self, Error> {
        let backend: Backend =
            backend.parse().map_err(|_| Unsupported("windlass has no such backend"))?;
        let builder = Reactor::builder().backend(backend).events_per_turn(EVENTS_PER_TURN);
        Ok(Self(builder.build()?))
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        mut handler: H,
    ) -> Result<Key, Error> {
        let key = watched(trigger)
            .with_fd(source)
            .with_handler(move |source: &mut Source| handler.handle(*source))
            .register_into(&mut self.0);
        key.map_err(|refused| std::io::Error::from(refused).into())
    }

    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        let mut group = Group::new(device);
        for (queue, source) in sources.into_iter().enumerate() {
            group = group.fd(
                watched(trigger),
                source,
                move |device: &mut Device, source: &mut Source| device.handle(queue, *source),
            );
        }
        let registered = group.register_into(&mut self.0);
        registered.map(drop).map_err(|refused| std::io::Error::from(refused).into())
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
