//! The first event on a current-thread runtime with its I/O driver.
#![allow(unsafe_code, reason = "`AsyncFd` asks for a descriptor that stays open")]

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use windlass_bench_driver::Error;
use windlass_bench_driver::source::{Hits, Source};
use windlass_bench_driver::startup::StartSubject;

pub(crate) struct Start {
    /// Dropped before the runtime.
    _watched: AsyncFd<Source>,
    _runtime: Runtime,
}

impl StartSubject for Start {
    fn first_event(_backend: &str, source: Source, hits: &Hits) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let watched = runtime.block_on(async {
            // SAFETY: the pool of the driver closes the descriptor after it has dropped this value.
            let watched = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) }?;
            drop(watched.readable().await?);
            hits.add();
            Ok::<_, Error>(watched)
        })?;
        Ok(Self { _watched: watched, _runtime: runtime })
    }
}
