//! Other threads and the reactor: waking it, having it run closures, sending it items.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::{PostReason, Reactor, Remote};
use windlass_bench_driver::Error;
use windlass_bench_driver::wakeup::{
    CallSubject, Caller, Item, LoopSubject, QueueSender, QueueSubject, Sink, Waker, answer,
};

use crate::backend_of;

/// A wake is a flag and, where it was not set, an empty closure for the reactor: what a program does that has a queue of its
/// own.
pub(crate) struct Woken {
    reactor: Reactor,
    remote: Remote,
    is_woken: Arc<AtomicBool>,
}

impl LoopSubject for Woken {
    type Waker = FlagAndPost;

    fn new(backend: &str, spin: Duration) -> Result<Self, Error> {
        let mut reactor = Reactor::builder().backend(backend_of(backend)?).busy_poll(spin).build()?;
        let remote = reactor.remote();
        Ok(Self { reactor, remote, is_woken: Arc::default() })
    }

    fn waker(&self) -> FlagAndPost {
        FlagAndPost { remote: self.remote.clone(), is_woken: Arc::clone(&self.is_woken) }
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        loop {
            self.reactor.run_once(None)?;
            if self.is_woken.swap(false, Ordering::AcqRel) && !handler() {
                return Ok(());
            }
        }
    }
}

pub(crate) struct FlagAndPost {
    remote: Remote,
    is_woken: Arc<AtomicBool>,
}

impl Waker for FlagAndPost {
    #[inline]
    fn wake(&self) {
        if self.is_woken.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(refused) = self.remote.try_post(|_| {}) {
            // When as many others wait, the loop wakes as well.
            assert_eq!(refused.reason, PostReason::Full, "the loop is there");
        }
    }
}

/// A reactor with room for so many calls and posts.
fn with_room(backend: &str, bound: usize, spin: Duration) -> Result<(Reactor, Remote), Error> {
    let mut reactor = Reactor::builder().backend(backend_of(backend)?).remote_max(bound).busy_poll(spin).build()?;
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
        self.0.call(move |_| answer(argument)).map_err(|refused| format!("a call failed: {refused}").into())
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
        self.0.post(move |_| sink.take(item)).map_err(|refused| format!("a post failed: {refused}").into())
    }
}
