//! Tasks that another thread spawns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::laps::Laps;
use super::runtime::{RemoteSpawn, Runtime};
use super::signal::Signal;
use crate::alloc::{CountMode, counting};
use crate::measured::Error;
use crate::threads::{self, Padded, wait_until};

/// Number of tasks between two looks at the number that has run, which another processor writes.
const LOOK_EVERY: u64 = 64;

#[derive(Default)]
struct Shared {
    is_ready: AtomicBool,
    may_start: AtomicBool,
    /// Number of tasks that have run. Only the executor's thread writes it.
    done: Padded<AtomicU64>,
}

pub(super) fn run<R: Runtime>(
    runtime: &mut R,
    bound: usize,
    rounds: u64,
    laps: &Laps,
) -> Result<(), Error> {
    threads::check_processors()?;
    let remote = runtime.remote()?;
    let shared = Arc::new(Shared::default());
    let finished = Signal::default();
    let _counting = counting(CountMode::Not);
    let sender = {
        let (shared, finished) = (Arc::clone(&shared), finished.clone());
        threads::opposite(move || send_all(&remote, bound, rounds, &shared, &finished))
    };
    wait_until("start of the thread", || shared.is_ready.load(Ordering::Acquire))?;
    laps.start();
    shared.may_start.store(true, Ordering::Release);
    runtime.block_on(finished.wait());
    laps.stop(shared.done.0.load(Ordering::Relaxed));
    threads::join(sender)
}

fn send_all(
    remote: &impl RemoteSpawn,
    bound: usize,
    rounds: u64,
    shared: &Arc<Shared>,
    finished: &Signal,
) -> Result<(), Error> {
    shared.is_ready.store(true, Ordering::Release);
    wait_until("start", || shared.may_start.load(Ordering::Acquire))?;
    let done = |shared: &Shared| shared.done.0.load(Ordering::Acquire);
    for number in 0..rounds {
        if number.is_multiple_of(LOOK_EVERY) {
            let fits = || number + LOOK_EVERY <= done(shared) + bound as u64;
            // The executor would wait for the signal for ever.
            wait_until("task that has run", fits).inspect_err(|_| finished.set())?;
        }
        let (shared, finished) = (Arc::clone(shared), finished.clone());
        let end = finished.clone();
        let spawned = remote.spawn(move || {
            let count = shared.done.0.load(Ordering::Relaxed) + 1;
            shared.done.0.store(count, Ordering::Release);
            if count == rounds {
                finished.set();
            }
        });
        spawned.inspect_err(|_| end.set())?;
    }
    Ok(())
}
