//! Time: sleeps, time limits, intervals, and a paused clock for tests.
//!
//! | to | use |
//! |---|---|
//! | wait | [`sleep()`], [`sleep_until`], [`Sleep`] |
//! | limit the time of an operation | [`timeout()`], [`timeout_at`] |
//! | do something periodically | [`interval()`], [`interval_at`], [`MissedTickBehavior`] |
//! | test code that waits, without waiting | [`paused_clock`], [`advance`], [`now`] |
//!
//! ```
//! use std::time::Duration;
//! use windlass_task::{Executor, time};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut executor = Executor::builder().paused_clock(true).build()?;
//! executor.block_on(async {
//!     let start = time::now();
//!     time::sleep(Duration::from_secs(3600)).await;
//!     assert_eq!(time::now() - start, Duration::from_secs(3600));
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # Rules for all of it
//!
//! - *Clock.* Deadlines are instants of the executor's clock. That is the system's monotonic clock,
//!   the paused clock, or the [`Clock`](windlass::Clock) of the
//!   [reactor's settings](windlass::Builder::clock). Where no executor runs, it is the system's.
//! - *Never early.* A sleep is ready when its deadline has passed, and not before. How late it may
//!   be is up to the kernel's timer slack
//!   ([`timer_slack`](crate::ExecutorBuilder::timer_slack)) and the load. Sleeps that are due
//!   together wake their tasks by deadline, then in the order in which they were started.
//! - *Threads.* A sleep may be sent to another thread. It waits on the executor that polls it. A
//!   poll on a thread that runs no executor panics.
//! - *Cancellation.* Dropping the future cancels it. No timer is left behind.
//! - *Memory.* A timer starts when its future is first pending. It takes no allocation of its own.
//!   There are at most [`timers_max`](windlass::Builder::timers_max) timers.
//!
//! [`paused_clock`]: crate::ExecutorBuilder::paused_clock

mod custom;
mod interval;
mod paused;
mod sleep;
mod timeout;
mod timers;

use std::time::{Duration, Instant};

pub(crate) use custom::CustomClock;
pub use interval::{Interval, MissedTickBehavior, interval, interval_at};
use paused::own_now;
pub(crate) use paused::{VirtualClock, after_paused_round};
pub use paused::{advance, now};
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, TimeoutFuture, timeout, timeout_at};

/// A time that is far away. Larger sums do not fit into an [`Instant`].
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// `start + delay`, or a time far away if there is no such instant.
fn after(start: Instant, delay: Duration) -> Instant {
    start.checked_add(delay).or_else(|| start.checked_add(FAR)).unwrap_or(start)
}
