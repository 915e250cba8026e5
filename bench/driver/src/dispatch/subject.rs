//! A reactor under test.

use std::io;

use crate::measured::Error;
use crate::protocol::Trigger;
use crate::source::{Device, Handler, Source};

/// A reactor under test.
pub trait Subject: Sized + 'static {
    /// Identifies a registration, to delete it.
    type Key;

    /// Whether it has level-triggered interest, with which a source that is not read stays ready.
    const IS_LEVEL_TRIGGERED: bool = true;

    /// Creates one on the named backend.
    ///
    /// # Errors
    ///
    /// If it does not have this backend, or if the kernel returns an error.
    fn new(backend: &str) -> Result<Self, Error>;

    /// Watches `source` for reading, and calls `handler` for each of its events.
    ///
    /// # Errors
    ///
    /// If the registration fails.
    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        handler: H,
    ) -> Result<Self::Key, Error>;

    /// Watches four sources with one state, in the library's usual way.
    ///
    /// # Errors
    ///
    /// If the registration fails.
    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error>;

    /// Deletes a registration.
    ///
    /// # Errors
    ///
    /// If there is no such registration.
    fn delete(&mut self, key: Self::Key) -> Result<(), Error>;

    /// Waits without a time limit, and then calls the handlers of up to
    /// [`EVENTS_PER_TURN`](crate::measured::EVENTS_PER_TURN) events. Implementations mark it
    /// `#[inline(always)]`, because it replaces the call in the user's own loop.
    ///
    /// # Errors
    ///
    /// If the wait fails.
    fn turn(&mut self) -> io::Result<()>;
}

/// Takes no turns, to measure the workload's own cost.
pub(crate) struct NoTurns;

impl Subject for NoTurns {
    type Key = ();

    fn new(_: &str) -> Result<Self, Error> {
        Ok(Self)
    }

    fn add<H: Handler>(&mut self, _: Source, _: Trigger, _: H) -> Result<(), Error> {
        Ok(())
    }

    fn add_device(&mut self, _: [Source; 4], _: Trigger, _: Device) -> Result<(), Error> {
        Ok(())
    }

    fn delete(&mut self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self) -> io::Result<()> {
        Ok(())
    }
}
