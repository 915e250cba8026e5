//! Single-threaded async/await on the Windlass reactor.
//!
//! The page `docs/guide/async.md` of the repository leads to a first program.
//!
//! ```
//! use windlass_task::{block_on, spawn};
//!
//! let output = block_on(async {
//!     let task = spawn(async { "from a task" });
//!     task.await.unwrap()
//! });
//! assert_eq!(output, "from a task");
//! ```
//!
//! # The parts
//!
//! ```text
//!    block_on   spawn   JoinHandle   JoinSet            Spawner, AbortHandle, wakers
//!        \        |         |           /                      | any thread
//!         v       v         v          v                       v
//!    +---------------- Executor: one thread -------------------------------+
//!    |  run queue --> poll, at most 61 a turn     <-- injector: woken tasks|
//!    +----------------------------------+----------------------------------+
//!                                       | end of each turn
//!                                       v
//!                             windlass::Reactor
//! ```
//!
//! | to | use |
//! |---|---|
//! | run a future | [`block_on()`], [`macro@main`], [`macro@test`], [`Executor`], [`ExecutorBuilder`] |
//! | start a task, wait for it, cancel it | [`spawn()`], [`JoinHandle`], [`AbortHandle`], [`JoinSet`] |
//! | spawn from another thread | [`Spawner`] |
//! | use several processors | [`Workers`]: one executor on each |
//! | use sockets | the module [`net`]; their traits: [`io`] |
//! | wait for any descriptor | [`AsyncFd`] |
//! | wait for the first of two futures | [`race`](race()) |
//! | cancel operations from outside | the module [`cancel`] |
//! | wait for signals | the module [`signal`] |
//! | wait for a time, limit the time of an operation | the module [`time`] |
//! | use the reactor from a task | [`with_turn`] |
//! | run a closure that blocks | [`spawn_blocking`], [`BlockingHandle`] |
//! | let other tasks run | [`yield_now()`], [`budget`] |
//! | use libraries that ask for `Send` | [`Pinned`] |
//! | run hyper on it | the module `rt`, with the feature `hyper` |
//! | measure | [`stats`], [`ExecutorStats`] |
//!
//! # Other libraries
//!
//! A library runs here unless it needs a runtime of its own kind. These were tried with the
//! versions of November 2026:
//!
//! | library | runs |
//! |---|---|
//! | `futures-util`: `join!`, `select!`, `select_all`, `FuturesUnordered`, streams | yes |
//! | `tokio::sync`, `tokio::select!`, tokio-util's `CancellationToken`, tokio-stream, async-channel | yes; loops over them need [`budget::cooperative`] |
//! | tokio's traits of streams, tokio-util's `codec` | with the feature `tokio-io` |
//! | async-fs, async-process | yes, with threads of their own |
//! | `spawn`, `time`, `fs`, `net`, `process` and `signal` of tokio | no: they panic without tokio's runtime |
//!
//! # Rules for all of it
//!
//! - *Threads.* An executor, its tasks and their outputs stay on one thread. Futures are dropped
//!   there. Wakers, [`AbortHandle`]s and [`Spawner`]s may be used and dropped on any thread, at any
//!   time.
//! - *Fairness.* Tasks are polled in the order in which they were woken, at most 61 between two
//!   looks at the reactor. A poll does at most 32 operations of this crate. Futures of other crates
//!   do not count theirs: a loop over one that is always ready needs [`budget::cooperative`] or
//!   [`budget::consume`].
//! - *Panics.* A panic of a task is in its [`JoinHandle`]. The others go on.
//! - *Cancellation.* Dropping a future cancels it. Dropping a [`JoinHandle`] detaches the task.

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The models have no reactor, so they use a part of the crate alone.
#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "the models use the tasks alone"))]

#[cfg(not(target_os = "linux"))]
compile_error!("windlass-task is for Linux: it runs on the reactor of the crate windlass");

#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
pub mod budget;
#[cfg(not(loom))]
pub mod cancel;
#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod fd;
#[cfg(not(loom))]
mod handle;
#[cfg(all(feature = "hyper", not(loom)))]
mod hyper_rt;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
pub mod net;
#[cfg(not(loom))]
mod pinned;
mod process;
#[cfg(not(loom))]
mod race;
#[cfg(not(loom))]
pub mod signal;
#[cfg(all(feature = "sim", not(loom)))]
mod simulation;
#[cfg(not(loom))]
mod spawner;
mod sync;
mod task;
#[cfg(not(loom))]
pub mod time;
#[cfg(not(loom))]
mod workers;
mod yield_now;

#[cfg(not(loom))]
pub use blocking::{BlockingError, BlockingHandle, BlockingReason, spawn_blocking};
#[cfg(not(loom))]
pub use executor::{Executor, ExecutorBuilder, ExecutorStats, block_on, stats};
#[cfg(not(loom))]
pub use fd::{AsyncFd, Direction, RegisterError};
#[cfg(not(loom))]
pub use handle::with_turn;
#[cfg(not(loom))]
pub use join::{AbortHandle, JoinHandle, JoinSet, spawn};
#[cfg(not(loom))]
pub use pinned::Pinned;
#[cfg(not(loom))]
pub use race::{Either, race};
#[cfg(all(feature = "sim", not(loom)))]
pub use simulation::is_simulated;
#[cfg(not(loom))]
pub use spawner::{SpawnError, SpawnReason, Spawner};
pub use task::error::{JoinError, PanicPayload};
pub use windlass_flow::Returned;
/// Runs an `async fn main` with [`block_on()`].
///
/// ```
/// #[windlass_task::main]
/// async fn main() -> std::io::Result<()> {
///     windlass_task::spawn(async { println!("hello") }).await?;
///     Ok(())
/// }
/// ```
#[cfg(not(loom))]
#[doc(inline)]
pub use windlass_task_macros::main;
/// Makes a test of an `async fn`, which runs with [`block_on()`].
///
/// ```
/// #[windlass_task::test]
/// async fn a_task_has_an_output() {
///     assert_eq!(windlass_task::spawn(async { 1 }).await.unwrap(), 1);
/// }
/// ```
///
/// With `paused_clock = true`, sleeps take no time
/// ([`paused_clock`](ExecutorBuilder::paused_clock)):
///
/// ```
/// use std::time::Duration;
/// use windlass_task::time::sleep;
///
/// #[windlass_task::test(paused_clock = true)]
/// async fn a_day_passes_at_once() {
///     sleep(Duration::from_secs(24 * 3600)).await;
/// }
/// ```
#[cfg(not(loom))]
#[doc(inline)]
pub use windlass_task_macros::test;
#[cfg(not(loom))]
pub use workers::{
    Backlog, PushError, PushReason, WorkerContext, WorkerInbox, WorkerStats, Workers,
    WorkersBuilder, WorkersHandle,
};
pub use yield_now::{YieldNow, yield_now};

#[cfg(all(feature = "hyper", not(loom)))]
pub mod rt {
    //! What hyper needs of a runtime: a timer and an executor (feature `hyper`).
    //!
    //! Streams implement `hyper::rt::{Read, Write}` themselves, with vectored writes and without
    //! clearing hyper's buffers. So they are passed to hyper as they are, without an adapter.
    //!
    //! ```
    //! use windlass_task::rt::{WindlassExecutor, WindlassTimer};
    //!
    //! fn settings<E>(_: E, _: impl hyper::rt::Timer + Send + Sync + 'static) {}
    //!
    //! // `http2::Builder::new(executor)` and `http1::Builder::new().timer(timer)` take them.
    //! settings(WindlassExecutor, WindlassTimer::new());
    //! ```

    pub use crate::hyper_rt::{WindlassExecutor, WindlassTimer};
}
