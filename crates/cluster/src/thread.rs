//! The thread of a bus: one connection after another.
//!
//! Each connection has a runtime of its own, which ends with it. So nothing of an old connection,
//! neither tasks nor buffers, reaches a new one.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Runtime};
use windlass_server::bus::{BusSink, BusState};

use crate::{
    NatsEvent,
    builder::Config,
    bus::Shared,
    link::{End, Link},
};

/// The first delay between attempts to connect.
const DELAY_MIN: Duration = Duration::from_millis(50);

pub(crate) struct BusThread {
    pub(crate) config: Config,
    pub(crate) shared: Arc<Shared>,
    pub(crate) sink: BusSink,
    /// The runtime of the first connection.
    first: Option<Runtime>,
}

impl BusThread {
    pub(crate) fn new(config: Config, shared: Arc<Shared>, sink: BusSink) -> io::Result<Self> {
        Ok(Self { config, shared, sink, first: Some(runtime()?) })
    }

    pub(crate) fn run(mut self) {
        // Also if a callback panics.
        let _end = EndOnDrop(Arc::clone(&self.shared));
        let mut delays = Delays { next: DELAY_MIN, max: self.config.reconnect_delay_max };
        while !self.shared.is_stopping() {
            let begin = Instant::now();
            let end = match self.first.take().map_or_else(runtime, Ok) {
                Ok(runtime) => {
                    let end = runtime.block_on(Link::new(&self).run());
                    // Without waiting for the lookup of a name.
                    runtime.shutdown_background();
                    end
                }
                Err(error) => End::NotConnected(format!("no runtime can be made: {error}")),
            };
            let is_lost = matches!(end, End::Lost(_));
            let delay = delays.after(is_lost.then(|| begin.elapsed()));
            match end {
                End::Stopped => break,
                End::NotConnected(reason) => {
                    (self.config.on_event)(&NatsEvent::ConnectFailed { reason, retry_in: delay });
                }
                End::Lost(reason) => {
                    self.sink.set_state(BusState::Connecting);
                    (self.config.on_event)(&NatsEvent::Disconnected { reason });
                }
            }
            self.wait(delay);
        }
    }

    /// Waits, or until the bus is stopped.
    fn wait(&self, delay: Duration) {
        let begin = Instant::now();
        while !self.shared.is_stopping() {
            let Some(left) = delay.checked_sub(begin.elapsed()) else { return };
            thread::park_timeout(left);
        }
    }
}

/// The delays between attempts to connect.
struct Delays {
    next: Duration,
    max: Duration,
}

impl Delays {
    /// The delay after a connection that has lasted so long, or after a failed attempt.
    fn after(&mut self, lasted: Option<Duration>) -> Duration {
        // A server that ends each connection at once is not asked all the time.
        if lasted >= Some(self.max) {
            self.next = DELAY_MIN;
        }
        let delay = self.next.min(self.max);
        self.next = (delay * 2).min(self.max);
        with_jitter(delay)
    }
}

struct EndOnDrop(Arc<Shared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

pub(crate) fn runtime() -> io::Result<Runtime> {
    // Other threads are for names only.
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .thread_name("windlass-names")
        .build()
}

/// Between a half of the delay and the whole, so that nodes do not connect all at once.
fn with_jitter(delay: Duration) -> Duration {
    // The standard library seeds its hashers from the system's random numbers.
    let random = RandomState::new().hash_one(0) as u32;
    delay.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_a_connection_has_lasted() {
        let max = Duration::from_millis(300);
        let mut delays = Delays { next: DELAY_MIN, max };
        let mut is_next = |lasted: Option<u64>, expected: u64| {
            let delay = delays.after(lasted.map(Duration::from_millis));
            let expected = Duration::from_millis(expected);
            assert!((expected / 2..=expected).contains(&delay), "{delay:?}, not {expected:?}");
        };
        for expected in [50, 100, 200, 300, 300] {
            is_next(None, expected);
        }
        is_next(Some(299), 300);
        for (lasted, expected) in [(Some(300), 50), (None, 100), (Some(0), 200)] {
            is_next(lasted, expected);
        }
        let mut delays = Delays { next: DELAY_MIN, max: Duration::from_millis(1) };
        assert!(delays.after(None) <= Duration::from_millis(1));
    }
}
