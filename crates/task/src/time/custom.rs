//! A clock of the user's, which the executor shares with its reactor.

use core::cell::{Cell, OnceCell};
use std::{rc::Rc, time::Instant};

use windlass::{Builder, Clock};

use crate::handle::Handle;

/// The clock of [`windlass::Builder::clock`].
pub(crate) struct CustomClock {
    clock: Rc<dyn Clock>,
    /// The latest reading. A clock that goes back stands still, as it does for the reactor.
    latest: Cell<Option<Instant>>,
}

#[derive(Default)]
struct CustomSlot(OnceCell<Rc<CustomClock>>);

impl CustomClock {
    /// That of a reactor, if it has one.
    pub(crate) fn of(settings: &mut Builder) -> Option<Self> {
        Some(Self { clock: settings.share_clock()?, latest: Cell::new(None) })
    }

    /// Makes it the clock of an executor. The reactor has it too, and drops it last.
    pub(crate) fn install(self, handle: &Handle) {
        let slot = handle.extension::<CustomSlot>();
        slot.0.get_or_init(|| Rc::new(self));
    }

    fn read(&self) -> Instant {
        // The user's code runs first.
        let now = self.clock.now();
        let now = self.latest.get().map_or(now, |latest| latest.max(now));
        self.latest.set(Some(now));
        now
    }
}

/// The time of the custom clock of the executor that runs on this thread, if it has one.
pub(super) fn custom_now() -> Option<Instant> {
    let slot = Handle::current()?.extension::<CustomSlot>();
    Some(slot.0.get()?.read())
}
