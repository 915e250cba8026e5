//! Other threads and the reactor: wakes, closures and items.

use std::time::Duration;

use windlass::{Reactor, Remote};
use windlass_bench_driver::Error;
use windlass_bench_driver::wakeup::{
    CallSubject, Caller, Item, LoopSubject, QueueSender, QueueSubject, Sink, Waker, answer,
};

use crate::backend;

/// A reactor without other work.
pub(crate) struct Woken {
    reactor: Reactor,
    remote: Remote,
}

impl LoopSubject for Woken {
    type Waker = RemoteEnd;

    fn new(backend: &str, spin: Duration) -> Result<Self, Error> {
        let builder = Reactor::builder().backend(backend::parse(backend)?).busy_poll(spin);
        let mut reactor = crate::build(builder)?;
        let remote = reactor.remote();
        Ok(Self { reactor, remote })
    }

    fn waker(&self) -> RemoteEnd {
        RemoteEnd(self.remote.clone())
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        loop {
            // It returns only after a wake.
            self.reactor.run_once(None)?;
            if !handler() {
                return Ok(());
            }
        }
    }
}

pub(crate) struct RemoteEnd(Remote);

impl Waker for RemoteEnd {
    #[inline]
    fn wake(&self) {
        self.0.wake();
    }
}

/// Creates a reactor with space for this number of calls and posts.
fn with_room(backend: &str, bound: usize, spin: Duration) -> Result<(Reactor, Remote), Error> {
    let builder = Reactor::builder().backend(backend::parse(backend)?);
    let mut reactor = crate::build(builder.remote_max(bound).busy_poll(spin))?;
    let remote = reactor.remote();
    Ok((reactor, remote))
}

pub(crate) struct Calls {
    reactor: Reactor,
    remote: Remote,
}

impl CallSubject for Calls {
    type Caller = CallerEnd;

    fn new(backend: &str, bound: usize, spin: Duration) -> Result<Self, Error> {
        let (reactor, remote) = with_room(backend, bound, spin)?;
        Ok(Self { reactor, remote })
    }

    fn caller(&self) -> CallerEnd {
        CallerEnd(self.remote.clone())
    }

    fn run(&mut self) -> Result<(), Error> {
        Ok(self.reactor.run()?)
    }
}

pub(crate) struct CallerEnd(Remote);

impl Caller for CallerEnd {
    fn call(&mut self, argument: u64) -> Result<u64, Error> {
        self.0
            .call(move |_| answer(argument))
            .map_err(|refused| format!("a call failed: {refused}").into())
    }

    fn stop(self) {
        self.0.stop();
    }
}

pub(crate) struct Queue {
    reactor: Reactor,
    remote: Remote,
}

impl QueueSubject for Queue {
    type Sender = ItemSender;

    fn new(backend: &str, bound: usize) -> Result<Self, Error> {
        let (reactor, remote) = with_room(backend, bound, Duration::ZERO)?;
        Ok(Self { reactor, remote })
    }

    fn sender(&self) -> ItemSender {
        ItemSender(self.remote.clone())
    }

    fn run(&mut self, sink: &'static Sink) -> Result<(), Error> {
        while !sink.is_done() {
            self.reactor.run_once(None)?;
        }
        Ok(())
    }
}

pub(crate) struct ItemSender(Remote);

impl QueueSender for ItemSender {
    #[inline]
    fn send(&mut self, item: Item, sink: &'static Sink) -> Result<(), Error> {
        self.0
            .post(move |_| sink.take(item))
            .map_err(|refused| format!("a post failed: {refused}").into())
    }
}
