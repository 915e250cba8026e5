//! `windlass-flow` without the reactor: the latch in an epoll loop, and the mailbox.

#![deny(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use windlass_bench_driver::wakeup::{Item, LoopSubject, QueueSender, QueueSubject, Sink, Waker};
use windlass_bench_driver::{Error, Program, Suite};
use windlass_flow::{Bounds, Latch, Mailbox, Sender, mailbox};

fn main() -> ExitCode {
    let suites = vec![Suite::wake::<Loop>(), Suite::post::<Queue>()];
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

/// The loop of `bench-eventfd`, with a latch instead of the eventfd.
struct Loop {
    epoll: OwnedFd,
    latch: Arc<Latch>,
    spin: Duration,
}

impl Loop {
    /// Spins instead of sleeping.
    fn spins(&self) {
        let started = Instant::now();
        while !self.latch.is_woken() && started.elapsed() < self.spin {
            std::hint::spin_loop();
        }
    }
}

impl LoopSubject for Loop {
    type Waker = LatchWaker;

    fn new(_backend: &str, spin: Duration) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let latch = Latch::new()?;
        epoll::add(
            &epoll,
            &latch,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Self { epoll, latch: Arc::new(latch), spin })
    }

    fn waker(&self) -> LatchWaker {
        LatchWaker(Arc::clone(&self.latch))
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        loop {
            if !self.spin.is_zero() {
                self.spins();
            }
            if self.latch.sleep() {
                let mut events = [const { MaybeUninit::uninit() }; 8];
                match epoll::wait(&self.epoll, &mut events, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            if self.latch.awake() && !handler() {
                return Ok(());
            }
        }
    }
}

struct LatchWaker(Arc<Latch>);

impl Waker for LatchWaker {
    #[inline]
    fn wake(&self) {
        self.0.wake();
    }
}

/// The mailbox, whose receiver has no other work.
struct Queue {
    sender: Sender<Item>,
    mailbox: Mailbox<Item>,
    latch: Arc<Latch>,
    bound: usize,
}

impl QueueSubject for Queue {
    type Sender = ItemSender;

    fn new(_backend: &str, bound: usize) -> Result<Self, Error> {
        let latch = Arc::new(Latch::new()?);
        let (sender, mailbox) = mailbox(Bounds::items(bound), Arc::clone(&latch));
        Ok(Self { sender, mailbox, latch, bound })
    }

    fn sender(&self) -> ItemSender {
        ItemSender(self.sender.clone())
    }

    fn run(&mut self, sink: &'static Sink) -> Result<(), Error> {
        while !sink.is_done() {
            self.mailbox.drain(self.bound).for_each(|item| sink.take(item));
            if !sink.is_done() {
                self.latch.wait(None);
            }
        }
        Ok(())
    }
}

struct ItemSender(Sender<Item>);

impl QueueSender for ItemSender {
    #[inline]
    fn send(&mut self, item: Item, _sink: &'static Sink) -> Result<(), Error> {
        self.0.push(item).map_err(|refused| refused.reason.into())
    }
}
