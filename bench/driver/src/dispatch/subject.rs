//! A reactor under test.

use std::io;

use crate::measured::Error;
use crate::protocol::Trigger;
use crate::source::{Device, Handler, Source};

/// A reactor under test.
pub trait Subject: Sized + 'static {
    /// What deletes a registration.
    type Key;

    /// Makes one on the named backend.
    ///
    /// # Errors
    ///
    /// If it has no such backend, or the kernel refuses.
    fn new(backend: &str) -> Result<Self, Error>;

    /// Watches `source` for reading and has `handler` called for each of its events.
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

    /// Watches four sources on behalf of one state, in the way that is natural to the library.
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

    /// Ends a registration.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn delete(&mut self, key: Self::Key) -> Result<(), Error>;

    /// Waits without a time limit, then has the handlers called of up to
    /// [`EVENTS_PER_TURN`](crate::measured::EVENTS_PER_TURN) events. Every implementation marks it
    /// `#[inline(always)]`: it stands for the call in its user's own loop, and is no layer of its
    /// own.
    ///
    /// # Errors
    ///
    /// If the wait fails.
    fn turn(&mut self) -> io::Result<()>;
}

/// Takes no turns: what the workload itself costs.
pub(crate) struct Idle;

impl Subject for Idle {
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
