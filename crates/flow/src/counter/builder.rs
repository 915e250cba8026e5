//! The settings of a counter.

use std::sync::Arc;

use super::{EventCounter, core::Core, error::CounterBuildError, page::Memory, word::Word};
use crate::sys::Scope;

/// The settings of an [`EventCounter`].
///
/// ```
/// use windlass_flow::EventCounter;
///
/// # fn main() -> std::io::Result<()> {
/// let counter = EventCounter::builder().maximum(100).semaphore(true).initial(3).build()?;
/// assert_eq!(counter.read()?, 1);
/// assert_eq!(counter.count()?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it is built by `build`"]
pub struct CounterBuilder {
    maximum: u32,
    initial: u32,
    semaphore: bool,
    nonblocking: bool,
    #[cfg(not(loom))]
    shared: bool,
}

impl CounterBuilder {
    pub(super) const fn new() -> Self {
        Self {
            maximum: u32::MAX,
            initial: 0,
            semaphore: false,
            nonblocking: false,
            #[cfg(not(loom))]
            shared: false,
        }
    }

    /// Sets the maximum. Writes stay below it. It must not be zero. Default: `u32::MAX`.
    pub const fn maximum(self, maximum: u32) -> Self {
        Self { maximum, ..self }
    }

    /// Sets the initial count, which must be below the maximum. Default: zero.
    pub const fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }

    /// Sets semaphore mode: a read takes one instead of all.
    #[doc(alias = "EFD_SEMAPHORE")]
    pub const fn semaphore(self, semaphore: bool) -> Self {
        Self { semaphore, ..self }
    }

    /// See [`EventCounter::set_nonblocking`].
    #[doc(alias = "EFD_NONBLOCK")]
    pub const fn nonblocking(self, nonblocking: bool) -> Self {
        Self { nonblocking, ..self }
    }

    /// Makes the counter usable between processes. Its state lies in a page of a sealed memfd, and
    /// it holds three open descriptors. See [`EventCounter::into_parts`].
    ///
    /// Between threads it works like any other counter, but is a little slower when polled.
    #[cfg(not(loom))]
    pub const fn shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// Builds the counter.
    ///
    /// # Errors
    /// - `ZeroMaximum` if the maximum is zero;
    /// - `InitialTooLarge` if the initial count is not below the maximum;
    /// - `Os` for a shared counter, the error of memfd_create(2), mmap(2) or timerfd_create(2).
    pub fn build(self) -> Result<EventCounter, CounterBuildError> {
        let word = match Word::new(self.maximum, self.initial) {
            _ if self.maximum == 0 => return Err(CounterBuildError::ZeroMaximum),
            Some(word) if !word.is_overflowed() => word,
            _ => return Err(CounterBuildError::InitialTooLarge),
        };
        #[cfg(not(loom))]
        if self.shared {
            return self.build_shared(word);
        }
        let page = Memory::heap(word, self.semaphore);
        let core = Core::new(page, Scope::Process, self.semaphore, self.nonblocking);
        Ok(EventCounter { core: Arc::new(core) })
    }

    #[cfg(not(loom))]
    fn build_shared(self, word: Word) -> Result<EventCounter, CounterBuildError> {
        use super::{PartsReason, flag::Flag, page::Mapping, sides::SideFd};
        let page = Mapping::create(word, self.semaphore).map_err(|reason| match reason {
            PartsReason::Os(errno) => CounterBuildError::Os(errno),
            // A new memfd can fail its checks only if the system is at fault.
            _ => CounterBuildError::Os(crate::Errno::INVAL),
        })?;
        let core = Core::new(Memory::Shared(page), Scope::System, self.semaphore, self.nonblocking);
        for side in [&core.reader, &core.writer] {
            let filled = side.set(SideFd::Flag(Flag::new().map_err(CounterBuildError::Os)?));
            debug_assert!(filled.is_ok(), "it is new");
        }
        Ok(EventCounter { core: Arc::new(core) })
    }
}
