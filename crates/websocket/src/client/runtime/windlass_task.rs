//! windlass-task.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use windlass_task::{
    net::{TcpStream, lookup_host},
    time::{Sleep, now, sleep_until},
};

use super::Runtime;
use crate::{adapters::FuturesIo, timer::Timer};

/// The sockets and timer of windlass-task, with names resolved by the C library on a blocking
/// thread. It is for Linux only.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindlassTask;

type Boxed<T> = Pin<Box<dyn Future<Output = io::Result<T>>>>;

impl Runtime for WindlassTask {
    type Stream = FuturesIo<TcpStream>;
    type Timer = TaskTimer;
    type Resolving = Boxed<Vec<SocketAddr>>;
    type Connecting = Boxed<Self::Stream>;

    fn timer(&self) -> TaskTimer {
        TaskTimer::new()
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolving {
        let host = host.to_owned();
        Box::pin(async move { lookup_host((host, port)).await })
    }

    fn connect(&self, address: SocketAddr) -> Self::Connecting {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(FuturesIo::new(stream))
        })
    }
}

/// The timer of windlass-task.
#[derive(Debug)]
pub struct TaskTimer {
    start: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl TaskTimer {
    /// A timer of the current executor.
    #[must_use]
    pub fn new() -> Self {
        Self { start: now(), sleep: None }
    }
}

impl Default for TaskTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl Timer for TaskTimer {
    fn now(&self) -> Duration {
        now().duration_since(self.start)
    }

    fn poll_until(&mut self, context: &mut Context<'_>, deadline: Duration) -> Poll<()> {
        let Some(deadline) = self.start.checked_add(deadline) else { return Poll::Pending };
        loop {
            // A far deadline moves with every message. One sleep to an earlier one serves them all.
            let sleep = match &mut self.sleep {
                Some(sleep) if sleep.deadline() <= deadline => sleep,
                place => place.insert(Box::pin(sleep_until(deadline))),
            };
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
            if now() >= deadline {
                return Poll::Ready(());
            }
        }
    }
}
