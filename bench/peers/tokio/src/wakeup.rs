//! tokio's `Notify` and channels: one task on a current-thread runtime, and other threads outside
//! it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Notify, oneshot};
use windlass_bench_driver::wakeup::{
    CallSubject, Caller, Item, LoopSubject, QueueSender, QueueSubject, Sink, Waker, answer,
};
use windlass_bench_driver::{Error, Unsupported};

fn runtime() -> Result<Runtime, Error> {
    // With the I/O driver, as its users have it, so that the thread parks in epoll_wait(2) and not
    // in a futex.
    Ok(Builder::new_current_thread().enable_io().build()?)
}

fn check(spin: Duration) -> Result<(), Error> {
    if spin.is_zero() {
        Ok(())
    } else {
        Err(Unsupported("tokio's runtime does not spin before it parks").into())
    }
}

pub(crate) struct Loop {
    runtime: Runtime,
    notify: Arc<Notify>,
}

impl LoopSubject for Loop {
    type Waker = End;

    fn new(_backend: &str, spin: Duration) -> Result<Self, Error> {
        check(spin)?;
        Ok(Self { runtime: runtime()?, notify: Arc::new(Notify::new()) })
    }

    fn waker(&self) -> End {
        End(Arc::clone(&self.notify))
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.runtime.block_on(async {
            loop {
                self.notify.notified().await;
                if !handler() {
                    return Ok(());
                }
            }
        })
    }
}

pub(crate) struct End(Arc<Notify>);

impl Waker for End {
    #[inline]
    fn wake(&self) {
        self.0.notify_one();
    }
}

pub(crate) struct Queue {
    runtime: Runtime,
    sender: Sender<Item>,
    receiver: Receiver<Item>,
}

impl QueueSubject for Queue {
    type Sender = ItemSender;

    fn new(_backend: &str, bound: usize) -> Result<Self, Error> {
        let (sender, receiver) = channel(bound);
        Ok(Self { runtime: runtime()?, sender, receiver })
    }

    fn sender(&self) -> ItemSender {
        ItemSender(self.sender.clone())
    }

    fn run(&mut self, sink: &'static Sink) -> Result<(), Error> {
        let receiver = &mut self.receiver;
        self.runtime.block_on(async {
            while !sink.is_done() {
                sink.take(receiver.recv().await.ok_or("all senders have gone")?);
            }
            Ok(())
        })
    }
}

pub(crate) struct ItemSender(Sender<Item>);

impl QueueSender for ItemSender {
    #[inline]
    fn send(&mut self, item: Item, _sink: &'static Sink) -> Result<(), Error> {
        Ok(self.0.blocking_send(item)?)
    }
}

type Closure = Box<dyn FnOnce() + Send>;

/// A task that runs boxed closures. Each sends its result through a oneshot channel. `None` ends
/// the task.
pub(crate) struct Calls {
    runtime: Runtime,
    sender: Sender<Option<Closure>>,
    receiver: Receiver<Option<Closure>>,
}

impl CallSubject for Calls {
    type Caller = CallerEnd;

    fn new(_backend: &str, bound: usize, spin: Duration) -> Result<Self, Error> {
        check(spin)?;
        let (sender, receiver) = channel(bound);
        Ok(Self { runtime: runtime()?, sender, receiver })
    }

    fn caller(&self) -> CallerEnd {
        CallerEnd(self.sender.clone())
    }

    fn run(&mut self) -> Result<(), Error> {
        let receiver = &mut self.receiver;
        self.runtime.block_on(async {
            while let Some(Some(closure)) = receiver.recv().await {
                closure();
            }
        });
        Ok(())
    }
}

pub(crate) struct CallerEnd(Sender<Option<Closure>>);

impl Caller for CallerEnd {
    fn call(&mut self, argument: u64) -> Result<u64, Error> {
        let (reply, replied) = oneshot::channel();
        let closure = move || {
            // The receiver exists, because the caller waits.
            let _ = reply.send(answer(argument));
        };
        self.0.blocking_send(Some(Box::new(closure)))?;
        Ok(replied.blocking_recv()?)
    }

    fn stop(self) {
        // This fails only if the loop has already ended.
        let _ = self.0.blocking_send(None);
    }
}
