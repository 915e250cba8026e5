//! polling with a slab of handlers, for the workloads of `windlass-bench`.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use polling::{Event, Events, PollMode, Poller};
use slab::Slab;
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::poll0::PollSubject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "polling");
    let suites = vec![
        Suite::dispatch::<Polling>(),
        Suite::poll0::<Polling>(),
        Suite::first_event::<Polling>(),
    ];
    Program { version, suites }.serve()
}

struct Polling {
    poller: Poller,
    events: Events,
    handlers: Slab<Box<dyn FnMut()>>,
}

impl Polling {
    fn watch(
        &mut self,
        source: Source,
        trigger: Trigger,
        handler: Box<dyn FnMut()>,
    ) -> Result<(usize, Source), Error> {
        let key = self.handlers.insert(handler);
        let mode = match trigger {
            Trigger::Level => PollMode::Level,
            Trigger::Edge => PollMode::Edge,
        };
        // SAFETY: the descriptor is deleted, or the poller dropped, before the pool closes it, for
        // the driver drops the subject before the pool.
        unsafe {
            self.poller.add_with_mode(source.as_raw_fd(), Event::readable(key), mode)?;
        }
        Ok((key, source))
    }
}

impl Subject for Polling {
    type Key = (usize, Source);

    fn new(_backend: &str) -> Result<Self, Error> {
        let capacity = NonZeroUsize::new(EVENTS_PER_TURN).ok_or("no room for events")?;
        Ok(Self {
            poller: Poller::new()?,
            events: Events::with_capacity(capacity),
            handlers: Slab::new(),
        })
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        mut handler: H,
    ) -> Result<Self::Key, Error> {
        self.watch(source, trigger, Box::new(move || handler.handle(source)))
    }

    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        let device = Rc::new(RefCell::new(device));
        for (queue, source) in sources.into_iter().enumerate() {
            let device = Rc::clone(&device);
            let handler = Box::new(move || device.borrow_mut().handle(queue, source));
            self.watch(source, trigger, handler)?;
        }
        Ok(())
    }

    fn delete(&mut self, (key, source): Self::Key) -> Result<(), Error> {
        self.poller.delete(source)?;
        drop(self.handlers.try_remove(key).ok_or("no such key")?);
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.turn_within(None)
    }
}

impl PollSubject for Polling {
    #[inline(always)]
    fn turn_at_once(&mut self) -> std::io::Result<()> {
        self.turn_within(Some(Duration::ZERO))
    }
}

impl Polling {
    #[inline(always)]
    fn turn_within(&mut self, limit: Option<Duration>) -> std::io::Result<()> {
        self.events.clear();
        self.poller.wait(&mut self.events, limit)?;
        for event in self.events.iter() {
            if let Some(handler) = self.handlers.get_mut(event.key) {
                handler();
            }
        }
        Ok(())
    }
}
