//! event-manager for the workloads of `windlass-bench`, and `windlass-event-manager`, which has the
//! same interface: two packages compile this file.

use std::process::ExitCode;

use event_manager::{
    EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberId, SubscriberOps,
};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite, locked_version};

fn main() -> ExitCode {
    let package = env!("CARGO_PKG_NAME").trim_start_matches("windlass-bench-peer-");
    let version = locked_version(include_str!("../../Cargo.lock"), package);
    Program { version, suites: vec![Suite::dispatch::<Manager>(), Suite::kick::<Manager>()] }
        .serve()
}

/// Subscribers of several types, as its users have them.
struct Manager(EventManager<Box<dyn MutEventSubscriber>>);

fn events(source: &Source, data: u32, trigger: Trigger) -> Events {
    let set = match trigger {
        Trigger::Level => EventSet::IN,
        Trigger::Edge => EventSet::IN | EventSet::EDGE_TRIGGERED,
    };
    Events::with_data(source, data, set)
}

struct OneSource<H> {
    source: Source,
    trigger: Trigger,
    handler: H,
}

impl<H: Handler> MutEventSubscriber for OneSource<H> {
    fn process(&mut self, _events: Events, _ops: &mut EventOps<'_>) {
        self.handler.handle(self.source);
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        // `init` has no way to report an error.
        let added = ops.add(events(&self.source, 0, self.trigger));
        assert_eq!(added, Ok(()), "event-manager refused a source");
    }
}

/// One subscriber with four descriptors, as intended by event-manager. The event's data contains
/// the number of the queue, so no look-up by descriptor is needed.
struct FourSources {
    sources: [Source; 4],
    trigger: Trigger,
    device: Device,
}

impl MutEventSubscriber for FourSources {
    fn process(&mut self, events: Events, _ops: &mut EventOps<'_>) {
        let queue = events.data() as usize;
        self.device.handle(queue, self.sources[queue]);
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        for (queue, source) in self.sources.iter().enumerate() {
            let added = ops.add(events(source, queue as u32, self.trigger));
            assert_eq!(added, Ok(()), "event-manager refused a source");
        }
    }
}

impl Subject for Manager {
    type Key = SubscriberId;

    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self(EventManager::new_with_capacity(EVENTS_PER_TURN)?))
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        handler: H,
    ) -> Result<SubscriberId, Error> {
        Ok(self.0.add_subscriber(Box::new(OneSource { source, trigger, handler })))
    }

    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        self.0.add_subscriber(Box::new(FourSources { sources, trigger, device }));
        Ok(())
    }

    fn delete(&mut self, key: SubscriberId) -> Result<(), Error> {
        self.0.remove_subscriber(key)?;
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.0.run().map(drop).map_err(std::io::Error::other)
    }
}
