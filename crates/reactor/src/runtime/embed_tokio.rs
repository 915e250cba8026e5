//! An embedded reactor as a future of tokio.
//!
//! 1. Tokio registers edge-triggered. An edge is consumed first, then turns run until nothing is
//!    due. Whatever becomes due later is a new edge ([`Embedded::is_due`]), so no wake is lost.
//! 2. The future yields between two turns, so that other tasks run, and tokio looks at its other
//!    descriptors.
//! 3. The future owns its registration alone. So it may be dropped wherever it waits.

use core::future::poll_fn;
use std::{io, os::fd::AsFd, time::Duration};

use tokio::{
    io::{Interest, unix::AsyncFd},
    task::yield_now,
};

use crate::{Embedded, TurnDriver};

/// Runs the turns of an embedded reactor in tokio whenever they are due, until a stop is requested,
/// as [`Reactor::run`](crate::Reactor::run) does.
///
/// Events, timers and calls of other threads wake tokio. The future yields after a turn that leaves
/// work over, so it is fair to other tasks. It is not `Send`: it runs in `block_on`, with `select!`
/// or `join!`, or as a task of a `LocalSet`. Dropping it leaves the [`Embedded`] as it is, and a
/// later call goes on.
///
/// ```
/// use std::time::Duration;
/// use windlass::Reactor;
///
/// # fn main() -> std::io::Result<()> {
/// let mut guest = Reactor::new()?;
/// guest.after_with(Duration::from_millis(1), |mut turn| {
///     println!("one millisecond has passed");
///     turn.stop();
/// })?;
/// let mut guest = guest.embed()?;
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// runtime.block_on(windlass::drive(&mut guest))
/// # }
/// ```
///
/// # Errors
/// The errors of [`Embedded::run_once`], and an error of the kernel if tokio cannot watch the
/// descriptor, for example `EMFILE`.
///
/// # Panics
/// - With the panic of a handler or destructor. The `Embedded` stays usable, and a later call goes
///   on with what is left (rule 8).
/// - Outside of a runtime of tokio, or if its I/O is not enabled.
pub async fn drive(embedded: &mut Embedded) -> io::Result<()> {
    drive_turns(embedded, |embedded| embedded.run_once(Duration::ZERO)).await
}

/// [`drive`] with a driver, as [`Reactor::run_with`](crate::Reactor::run_with): it is called before
/// the first wait, and at the end of every turn.
///
/// If code outside of the reactor hands something to the driver, that code must also wake the
/// reactor, for example with [`Remote::wake`](crate::Remote::wake).
///
/// ```
/// use windlass::{NextTurn, Reactor, Turn};
///
/// # fn main() -> std::io::Result<()> {
/// let mut left = 3;
/// let mut driver = |_: Turn<'_>| {
///     left -= 1;
///     if left == 0 { NextTurn::Stop } else { NextTurn::Again }
/// };
/// let mut guest = Reactor::new()?.embed()?;
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// runtime.block_on(windlass::drive_with(&mut guest, &mut driver))?;
/// assert_eq!(left, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`drive`].
///
/// # Panics
/// As [`drive`], and with the panic of the driver.
pub async fn drive_with(
    embedded: &mut Embedded,
    driver: &mut (impl TurnDriver + ?Sized),
) -> io::Result<()> {
    drive_turns(embedded, |embedded| embedded.run_once_with(Duration::ZERO, driver)).await
}

async fn drive_turns(
    embedded: &mut Embedded,
    mut turn: impl FnMut(&mut Embedded) -> io::Result<usize>,
) -> io::Result<()> {
    // A duplicate of the outer set, which anybody may make by `AsFd`: it has no addresses
    // (rule 11). It is another number for the same set, so it has the same edges.
    let outer = embedded.as_fd().try_clone_to_owned()?;
    #[allow(deprecated, reason = "its promise, a descriptor that stays, is that of an `OwnedFd`")]
    let outer = AsyncFd::with_interest(outer, Interest::READABLE)?;
    while !embedded.stop().take() {
        turn(embedded)?;
        if embedded.is_due() {
            yield_now().await;
            continue;
        }
        while !embedded.stop().is_asked() && !embedded.is_due() {
            // Not `readable`, which would not count as an operation of the task.
            poll_fn(|context| outer.poll_read_ready(context)).await?.clear_ready();
        }
    }
    Ok(())
}
