//! mio's `Waker` for the workloads of `windlass-bench`.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use windlass_bench_driver::wakeup::{LoopSubject, Waker};
use windlass_bench_driver::{EVENTS_PER_TURN, Error};

const WAKE: Token = Token(0);

pub(crate) struct Loop {
    poll: Poll,
    events: Events,
    waker: Arc<mio::Waker>,
    spin: Duration,
}

impl Loop {
    /// True if the waker's event arrived.
    fn poll(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => Ok(self.events.iter().any(|event| event.token() == WAKE)),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Spins instead of sleeping, as its user would write it, because mio has no such option.
    fn spins(&mut self) -> Result<bool, Error> {
        let started = Instant::now();
        while started.elapsed() < self.spin {
            if self.poll(Some(Duration::ZERO))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl LoopSubject for Loop {
    type Waker = End;

    fn new(_backend: &str, spin: Duration) -> Result<Self, Error> {
        let poll = Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKE)?);
        Ok(Self { poll, events: Events::with_capacity(EVENTS_PER_TURN), waker, spin })
    }

    fn waker(&self) -> End {
        End(Arc::clone(&self.waker))
    }

    fn run(&mut self, handler: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        loop {
            let woken = (!self.spin.is_zero() && self.spins()?) || self.poll(None)?;
            if woken && !handler() {
                return Ok(());
            }
        }
    }
}

pub(crate) struct End(Arc<mio::Waker>);

impl Waker for End {
    #[inline]
    fn wake(&self) {
        self.0.wake().expect("an eventfd takes a write");
    }
}
