//! eventp for the workloads of `windlass-bench`.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, RawFd};
use std::process::ExitCode;
use std::rc::Rc;

use eventp::epoll::EpollCreateFlags;
use eventp::tri_subscriber::WithHandler;
use eventp::{EventpOps, Interest, Subscriber};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite, locked_version};

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "eventp");
    let suites =
        vec![Suite::dispatch::<Eventp>(), Suite::kick::<Eventp>(), Suite::first_event::<Eventp>()];
    Program { version, suites }.serve()
}

struct Eventp(eventp::Eventp);

fn interest(trigger: Trigger) -> Interest {
    match trigger {
        Trigger::Level => eventp::interest().read(),
        Trigger::Edge => eventp::interest().read().edge_triggered(),
    }
}

impl Subject for Eventp {
    /// eventp identifies a registration by its descriptor.
    type Key = RawFd;

    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self(eventp::Eventp::new(EVENTS_PER_TURN, EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        mut handler: H,
    ) -> Result<RawFd, Error> {
        interest(trigger)
            .with_fd(source)
            .with_handler(move |source: &mut Source| handler.handle(*source))
            .register_into(&mut self.0)?;
        Ok(source.as_raw_fd())
    }

    /// A subscriber has one descriptor, so four of them share the state by `Rc<RefCell<_>>`.
    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        let device = Rc::new(RefCell::new(device));
        for (queue, source) in sources.into_iter().enumerate() {
            let device = Rc::clone(&device);
            interest(trigger)
                .with_fd(source)
                .with_handler(move |source: &mut Source| {
                    device.borrow_mut().handle(queue, *source);
                })
                .register_into(&mut self.0)?;
        }
        Ok(())
    }

    fn delete(&mut self, key: RawFd) -> Result<(), Error> {
        Ok(self.0.delete(key)?)
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.0.run_once()
    }
}
