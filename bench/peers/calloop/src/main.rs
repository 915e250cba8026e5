//! calloop for the workloads of `windlass-bench`: events and timers.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use calloop::generic::Generic;
use calloop::timer::{TimeoutAction, Timer};
use calloop::{Dispatcher, EventLoop, Interest, Mode, PostAction, RegistrationToken};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::poll0::PollSubject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Hits, Source};
use windlass_bench_driver::timers::TimerSubject;
use windlass_bench_driver::{Error, Program, Suite, Unsupported, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "calloop");
    let suites = vec![
        Suite::dispatch::<Calloop>(),
        Suite::poll0::<Calloop>(),
        Suite::timers::<Calloop>(),
        Suite::first_event::<Calloop>(),
    ];
    Program { version, suites }.serve()
}

/// Maximum number of timers. Starting and cancelling take time that grows with their number, so a
/// million timers would take minutes.
const TIMERS_MAX: usize = 10_000;

/// calloop has a fixed number of events per turn, 1024, which is that of the others.
struct Calloop {
    events: EventLoop<'static, ()>,
    timers: usize,
}

impl Calloop {
    fn make() -> Result<Self, Error> {
        Ok(Self { events: EventLoop::try_new()?, timers: 0 })
    }

    fn watch(
        &mut self,
        source: Source,
        trigger: Trigger,
        mut handler: impl FnMut() + 'static,
    ) -> Result<RegistrationToken, Error> {
        let mode = match trigger {
            Trigger::Level => Mode::Level,
            Trigger::Edge => Mode::Edge,
        };
        let watched = Generic::new(source, Interest::READ, mode);
        let token = self.events.handle().insert_source(watched, move |_, _, ()| {
            handler();
            Ok(PostAction::Continue)
        });
        token.map_err(|refused| refused.error.into())
    }
}

impl Subject for Calloop {
    type Key = RegistrationToken;

    fn new(_backend: &str) -> Result<Self, Error> {
        Self::make()
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        mut handler: H,
    ) -> Result<RegistrationToken, Error> {
        self.watch(source, trigger, move || handler.handle(source))
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
            self.watch(source, trigger, move || device.borrow_mut().handle(queue, source))?;
        }
        Ok(())
    }

    fn delete(&mut self, key: RegistrationToken) -> Result<(), Error> {
        self.events.handle().remove(key);
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.events.dispatch(None, &mut ()).map_err(std::io::Error::other)
    }
}

impl PollSubject for Calloop {
    #[inline(always)]
    fn turn_at_once(&mut self) -> std::io::Result<()> {
        self.events.dispatch(Duration::ZERO, &mut ()).map_err(std::io::Error::other)
    }
}

impl TimerSubject for Calloop {
    type Key = (RegistrationToken, Dispatcher<'static, Timer, ()>);

    fn new(_backend: &str) -> Result<Self, Error> {
        Self::make()
    }

    fn insert(&mut self, deadline: Instant, fired: Hits) -> Result<Self::Key, Error> {
        if self.timers == TIMERS_MAX {
            return Err(Unsupported(
                "calloop's time per timer grows with their number: 10 000 at most here",
            )
            .into());
        }
        self.timers += 1;
        let timer = Dispatcher::new(Timer::from_deadline(deadline), move |_, (), ()| {
            fired.add();
            TimeoutAction::Drop
        });
        Ok((self.events.handle().register_dispatcher(timer.clone())?, timer))
    }

    fn every(&mut self, period: Duration, fired: Hits) -> Result<(), Error> {
        let inserted =
            self.events.handle().insert_source(Timer::immediate(), move |due, (), ()| {
                fired.add();
                TimeoutAction::ToInstant(due + period)
            });
        inserted.map(drop).map_err(|refused| refused.error.into())
    }

    fn cancel(&mut self, (token, _): Self::Key) -> Result<(), Error> {
        self.events.handle().remove(token);
        self.timers -= 1;
        Ok(())
    }

    fn reset(&mut self, (token, timer): &mut Self::Key, deadline: Instant) -> Result<(), Error> {
        timer.as_source_mut().set_deadline(deadline);
        Ok(self.events.handle().update(token)?)
    }

    fn turn(&mut self) -> Result<(), Error> {
        Ok(self.events.dispatch(Duration::ZERO, &mut ())?)
    }
}
