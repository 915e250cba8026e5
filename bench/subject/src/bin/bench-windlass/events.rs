//! A reactor with sources: turns with events, and turns that find none.

use std::time::Duration;

use windlass::{Key, Reactor};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::poll0::PollSubject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error};

use crate::{backend, registration};

pub(crate) struct Windlass(pub(crate) Reactor);

impl Windlass {
    pub(crate) fn make(backend: &str) -> Result<Self, Error> {
        let backend = backend::parse(backend)?;
        let builder = Reactor::builder().backend(backend).events_per_turn(EVENTS_PER_TURN);
        Ok(Self(crate::build(builder)?))
    }
}

impl Subject for Windlass {
    type Key = Key;

    fn new(backend: &str) -> Result<Self, Error> {
        Self::make(backend)
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
        crate::turn(&mut self.0)
    }
}

impl PollSubject for Windlass {
    #[inline(always)]
    fn turn_at_once(&mut self) -> std::io::Result<()> {
        self.0.run_once(Duration::ZERO)?;
        Ok(())
    }
}
