//! [`ServiceHost`]: where a service starts, a reactor or a turn of it.

use std::{io, time::Duration};

use windlass::{Backend, Interest, Reactor, Registrar, Turn};

pub(crate) trait ServiceHost: Registrar<Ops = Reactor> {
    fn backend(&self) -> Backend;
    fn has_own_clock(&self) -> bool;
    fn supports(&self, interest: Interest) -> bool;
    fn repeat(&mut self, every: Duration, call: impl FnMut(Turn<'_>) + 'static) -> io::Result<()>;
    /// Calls a closure before the next wait.
    fn defer(&mut self, call: impl FnOnce(Turn<'_>) + 'static) -> io::Result<()>;
}

impl ServiceHost for Reactor {
    fn backend(&self) -> Backend {
        self.backend()
    }

    fn has_own_clock(&self) -> bool {
        self.has_own_clock()
    }

    fn supports(&self, interest: Interest) -> bool {
        self.supports(interest)
    }

    fn repeat(&mut self, every: Duration, call: impl FnMut(Turn<'_>) + 'static) -> io::Result<()> {
        self.every(every, call).map_err(io::Error::from)?;
        Ok(())
    }

    fn defer(&mut self, call: impl FnOnce(Turn<'_>) + 'static) -> io::Result<()> {
        self.defer(call).map_err(io::Error::from)
    }
}

impl ServiceHost for Turn<'_> {
    fn backend(&self) -> Backend {
        self.backend()
    }

    fn has_own_clock(&self) -> bool {
        self.has_own_clock()
    }

    fn supports(&self, interest: Interest) -> bool {
        self.supports(interest)
    }

    fn repeat(&mut self, every: Duration, call: impl FnMut(Turn<'_>) + 'static) -> io::Result<()> {
        self.every(every, call).map_err(io::Error::from)?;
        Ok(())
    }

    fn defer(&mut self, call: impl FnOnce(Turn<'_>) + 'static) -> io::Result<()> {
        self.defer(call).map_err(io::Error::from)
    }
}
