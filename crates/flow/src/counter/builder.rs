//! A counter's settings.

use std::sync::Arc;

use super::{EventCounter, core::Core, error::BuildError, page::Memory, word::Word};
use crate::sys::Scope;

/// Settings of an [`EventCounter`].
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

    /// What writes stay below. Not zero; `u32::MAX` unless set.
    pub const fn maximum(self, maximum: u32) -> Self {
        Self { maximum, ..self }
    }

    /// The count to begin with, below the maximum. Zero unless set.
    pub const fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }

    /// A read takes one instead of all.
    #[doc(alias = "EFD_SEMAPHORE")]
    pub const fn semaphore(self, semaphore: bool) -> Self {
        Self { semaphore, ..self }
    }

    /// See [`EventCounter::set_nonblocking`].
    #[doc(alias = "EFD_NONBLOCK")]
    pub const fn nonblocking(self, nonblocking: bool) -> Self {
        Self { nonblocking, ..self }
    }

    /// Between processes, too: the state lies in a page of a sealed memfd, and three descriptors
    /// are open. See [`EventCounter::into_parts`].
    ///
    /// Between threads such a counter does all that another one does, a little slower when it is
    /// polled.
    #[cfg(not(loom))]
    pub const fn shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// The counter.
    ///
    /// # Errors
    /// `ZeroMaximum`, `InitialTooLarge`; of a shared counter what the kernel says.
    pub fn build(self) -> Result<EventCounter, BuildError> {
        let word = match Word::new(self.maximum, self.initial) {
            _ if self.maximum == 0 => return Err(BuildError::ZeroMaximum),
            Some(word) if !word.is_overflowed() => word,
            _ => return Err(BuildError::InitialTooLarge),
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
    fn build_shared(self, word: Word) -> Result<EventCounter, BuildError> {
        use super::{PartsReason, flag::Flag, page::Mapping, sides::SideFd};
        let page = Mapping::create(word, self.semaphore).map_err(|reason| match reason {
            PartsReason::Os(errno) => BuildError::Os(errno),
            // A new memfd has no other flaw; if it had, the system would be to blame.
            _ => BuildError::Os(crate::Errno::INVAL),
        })?;
        let core = Core::new(Memory::Shared(page), Scope::System, self.semaphore, self.nonblocking);
        for side in [&core.reader, &core.writer] {
            let filled = side.set(SideFd::Flag(Flag::new().map_err(BuildError::Os)?));
            debug_assert!(filled.is_ok(), "it is new");
        }
        Ok(EventCounter { core: Arc::new(core) })
    }
}
