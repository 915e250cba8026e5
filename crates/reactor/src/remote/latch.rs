//! Latches whose owner is a handler.

use std::io;

use windlass_flow::Latch;

/// A latch of `windlass-flow` whose owner is a handler of a reactor of this thread, for example the
/// one that drains a [`Mailbox`](windlass_flow::Mailbox).
///
/// Register the latch, in an [`Arc`](std::sync::Arc) if others wake it, and let the handler own the
/// mailbox. [`Latch::rearm`] says when to call what. On a thread with a simulation (feature `sim`)
/// the latch is simulated: [`Latch::new`] would make a descriptor of the kernel, which a simulated
/// reactor rejects.
///
/// ```
/// use std::sync::Arc;
/// use windlass::{Reactor, Turn, interest};
/// use windlass_flow::{Bounds, Latch, mailbox};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut reactor = Reactor::new()?;
/// let latch = Arc::new(windlass::latch()?);
/// let (sender, mut inbox) = mailbox(Bounds::items(10), Arc::clone(&latch));
/// latch.rearm();
/// interest()
///     .read()
///     .edge_triggered()
///     .with_fd(latch)
///     .with_handler(move |latch: &mut Arc<Latch>, mut turn: Turn<'_, _>| {
///         latch.awake();
///         if inbox.drain(10).any(|item| item == "stop") {
///             turn.stop();
///         }
///         latch.rearm();
///     })
///     .register_into(&mut reactor)?;
/// std::thread::spawn(move || sender.try_push("stop"));
/// reactor.run()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of eventfd(2), for example `EMFILE`.
pub fn latch() -> io::Result<Latch> {
    #[cfg(feature = "sim")]
    if let Some(world) = crate::world::World::current() {
        return Ok(Latch::simulated(world.eventfd()?));
    }
    Ok(Latch::new()?)
}
