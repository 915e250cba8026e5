//! An epoll loop that another thread wakes by an eventfd, beside timers.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use windlass_bench_driver::tasks::AN_HOUR;
use windlass_bench_driver::wakeup::{LoopSubject, Waker};
use windlass_bench_driver::{Error, Unsupported};

/// The eventfd is watched edge-triggered and never read. A wake cannot do less work.
pub(crate) struct EventfdLoop<const LIVE_TIMERS: usize> {
    epoll: OwnedFd,
    eventfd: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
    timers: VecDeque<Instant>,
}

impl<const LIVE_TIMERS: usize> LoopSubject for EventfdLoop<LIVE_TIMERS> {
    type Waker = EventfdWaker;

    fn new(_backend: &str, spin: Duration) -> Result<Self, Error> {
        if !spin.is_zero() {
            return Err(Unsupported("executors do not spin before they sleep").into());
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &eventfd, epoll::EventData::new_u64(0), flags)?;
        let timers = (0..LIVE_TIMERS).map(|_| Instant::now() + AN_HOUR).collect();
        Ok(Self { epoll, eventfd: Arc::new(eventfd), events: Vec::with_capacity(8), timers })
    }

    fn waker(&self) -> EventfdWaker {
        EventfdWaker(Arc::clone(&self.eventfd))
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        loop {
            let deadline = self.timers.front();
            let limit = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            super::wait::wait(&self.epoll, &mut self.events, limit)?;
            if !self.events.is_empty() && !handler() {
                return Ok(());
            }
        }
    }
}

pub(crate) struct EventfdWaker(Arc<OwnedFd>);

impl Waker for EventfdWaker {
    #[inline]
    fn wake(&self) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).expect("2^64 wakes never come together");
    }
}
